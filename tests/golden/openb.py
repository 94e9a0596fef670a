"""Golden figures of the openb study: each trace replayed under each of its policies, compared digit by digit.

A case is one figure of one run: `openb_pod_list_default/05-BestFit/42/alloc_pct.100`. The short form runs the first
seed of each trace and policy, the long form all of them. The traces are read from the folder `openb` of the directory
that KOORD_POLICY_DATA names, else of `data` beside the directory of the cases.

The random policy draws from a generator of its own: of the short form its figures must lie within four standard
deviations of the published mean; of the long form the means over the seeds at the last load (`.../mean/...`) may differ
by three standard errors of their difference.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.experiments.inputs import registry_of
from koordpolicy.engine.experiments.replays import STUDY, policy_of
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Plugin
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods
from koordpolicy.engine.scheduler.simulate import SimulationResult as Outcome
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.scheduler.trace_profile import trace_profile

from .result import Result

SUITE = "openb"
RANDOM = "01-Random"


def parts(path: Path, *, full: bool = False) -> Sequence[str]:
    """Return `<trace>/<policy>` for each pair that the file has figures of."""
    return [f"{trace}/{policy}" for trace, of in _read(path)["traces"].items() for policy in of["policies"]]


def sample(parts: Sequence[str]) -> list[str]:
    """Return a part of each trace, under the policies in turn."""
    by_trace: dict[str, list[str]] = {}
    for part in parts:
        by_trace.setdefault(part.split("/")[0], []).append(part)
    return [of[index % len(of)] for index, of in enumerate(by_trace.values())]


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of every figure of the file."""
    for part in parts(path, full=full):
        yield from run_part(path, part, full=full)


def run_part(path: Path, part: str, *, full: bool = False) -> Iterator[Result]:
    """Yield the results of one trace under one policy."""
    content = _read(path)
    trace, name = part.split("/")
    figures: Mapping[str, Any] = content["traces"][trace]["policies"][name]
    seeds: Sequence[int] = content["meta"]["seeds"][: None if full else 1]
    tune: float = content["meta"]["tune"]
    study = name.partition("-")[2]
    if study not in STUDY:
        for seed in seeds:
            for figure, _ in _expected(figures):
                yield Result(SUITE, f"{part}/{seed}/{figure}", False, f"policy `{name}` is not built yet")
        return
    recorded = traces.load(_data(path) / f"{trace}.csv")
    typical = typical_pods(recorded.pods)
    found: dict[str, list[float | None]] = {figure: [] for figure, _ in _expected(figures)}
    policy = policy_of(study)
    registry = registry_of(policy.texts, _plugins)
    profile = trace_profile(policy.profile, typical, registry.of_framework(Framework.SCHEDULER))
    for index, seed in enumerate(seeds):
        workload = traces.generate(recorded, seed=seed, tune=tune)
        settings = Settings((profile,), seed=seed)
        outcome = simulate(workload, Live(registry), settings, clock=time.perf_counter, typical=typical)
        for figure, expected in _expected(figures):
            value = _figure(outcome, figure)
            found[figure].append(value)
            if name != RANDOM:
                yield _compare(f"{part}/{seed}/{figure}", value, expected["by_seed"][index], 0.005)
            elif not full:
                yield _compare(f"{part}/{seed}/{figure}", value, expected["mean"], 4 * expected["std"])
    if name == RANDOM and full:
        for figure, expected in _expected(figures):
            if figure == "final_alloc_pct" or figure.endswith(".130"):
                yield compare_means(f"{part}/mean/{figure}", found[figure], expected["by_seed"])


def compare_means(name: str, values: Sequence[float | None], published: Sequence[float]) -> Result:
    """Compare two means of independent runs: they may differ by 3 sqrt(s1^2/n1 + s2^2/n2)."""
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return Result(SUITE, name, False, f"has {len(known)} figures of {len(values)} runs")
    tolerance = 3 * math.sqrt(variance(known) / len(known) + variance(published) / len(published))
    return _compare(name, fmean(known), fmean(published), tolerance)


def _compare(name: str, value: float | None, expected: float, tolerance: float) -> Result:
    # The figures have 2 decimals (ratios 4): a binary fraction must not make a difference of half of one.
    if value is not None and abs(value - expected) <= tolerance + 1e-9:
        return Result(SUITE, name, True)
    return Result(SUITE, name, False, f"is {value}, expected {expected} (tolerance {tolerance:g})")


def _expected(figures: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, content in figures.items():
        if isinstance(content, dict):
            if "mean" in content:
                yield name, content
            else:
                yield from ((f"{name}.{percent}", each) for percent, each in content.items())


def _figure(outcome: Outcome, name: str) -> float | None:
    figure, _, percent = name.partition(".")
    if figure == "failed_pods_prototype":
        return outcome.failed
    load = int(percent) if percent else 130
    if figure in ("final_alloc_pct", "alloc_pct"):
        allocation = outcome.allocation(load)
        return None if allocation is None else allocation.gpu
    fragmentation = outcome.fragmentation(load)
    if fragmentation is None:
        return None
    return {"frag_amount_pct": fragmentation[0], "frag_ratio_pct": fragmentation[1]}.get(figure)


def _plugins() -> Sequence[Plugin]:
    return PLUGINS


def _data(path: Path) -> Path:
    return Path(os.environ.get("KOORD_POLICY_DATA") or path.resolve().parent.parent / "data") / "openb"


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
