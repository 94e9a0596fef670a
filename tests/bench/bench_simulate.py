"""How many pods per second a replay of the openb trace decides about, with BestFit as a YAML policy."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster import trace as traces
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.registry import Live, Registry
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.source import Problems

from .figure import Figure, Missing

POLICIES = {"best-fit": 2000.0, "dot-product": None, "gpu-packing": None}
"""The shipped policies by their folder, with the least that they are meant to decide per second."""
_PROJECT = Path(__file__).parents[2]


def main() -> Iterator[Figure]:
    """Yield pods per second by policy, over the default trace with seed 42 in one process."""
    data = os.environ.get("KOORD_POLICY_DATA") or (
        Path(os.environ["KOORD_POLICY_CASES"]).resolve().parent / "data" if os.environ.get("KOORD_POLICY_CASES") else None
    )
    if data is None or not (Path(data) / "openb" / traces.POD_LIST).exists():
        raise Missing("set KOORD_POLICY_DATA to the directory that holds `openb/` with the trace's lists")
    workload = traces.generate(traces.load(Path(data) / "openb"), seed=42)
    for name, bound in POLICIES.items():
        problems = Problems()
        loaded = load_paths([_PROJECT / "policies" / "trace" / name], source_name="shipped")
        problems.extend(loaded.problems)
        live = Live(Registry.of([*PLUGINS, *compile_documents(loaded.documents, problems)], generation=1))
        problems.raise_errors()
        gc.collect()
        result = simulate(workload, live, clock=time.perf_counter)
        yield Figure(f"openb default, {name}: decisions", result.pods_per_second, "pods/s", bound, more_is_better=True)
