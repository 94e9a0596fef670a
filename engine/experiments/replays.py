"""Experiments over a trace: one replay for each point, as the openb study runs them.

Axes: `policy`, `workload`, `seed`, `tune`, `tieBreak` and `params.NAME`. A policy is one of the study's six, a folder
of `policies/trace`, or a path; a workload is one of the lists of pods in the directory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.cluster.sources.trace import Trace
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.scheduler.trace_profile import trace_profile
from koordpolicy.engine.source import PolicyError, did_you_mean

from .axes import Axis, Point, show
from .axis_checks import ANY, TIE_BREAK, WHOLE_NUMBER, AxisCheck, check_axis
from .frozen_heap import frozen_heap
from .inputs import NO_TEXTS, POLICY, Builtins, Packed, Texts, check_all, registry_of
from .journal import ExperimentOutcome
from .params import params_of
from .runners import NotRun

SHIPPED: Final = Path(__file__).parents[2] / "policies" / "trace"
_ONLY_GIVEN: Final = "-"
"""The value of the policy axis for no additional policy."""
DEFAULTS: Final = (Axis("workload", ("default",)),
                   Axis("policy", ("Random", "DotProd", "GpuClustering", "GpuPacking", "BestFit", "FGD")),
                   Axis("seed", (42,)))
FIGURES: Final[Mapping[str, str]] = {
    "arrivals": "pods that arrived",
    "failed": "pods that found no node",
    "load_pct": "GPU requests of all pods that arrived, in percent of the cluster's; the next five are of that load",
    "cpu_alloc_pct": "allocated CPU, in percent of the cluster's",
    "memory_alloc_pct": "allocated memory, in percent of the cluster's",
    "gpu_alloc_pct": "allocated GPU, in percent of the cluster's",
    "frag_amount_pct": "idle GPU that the next pod could not use, in percent of the cluster's GPU",
    "frag_ratio_pct": "idle GPU that the next pod could not use, in percent of the idle GPU",
    "errors": "kinds of errors in plugins and expressions",
    "pods_per_second": "arrivals over the time that the replay took",
}
CURVES: Final[tuple[str, ...]] = (
    "cpu_alloc_pct", "memory_alloc_pct", "gpu_alloc_pct", "frag_amount_pct", "frag_ratio_pct",
)
"""The meanings of the curves, by whole percent of load from 0."""

_EVERY: Final = "*"
_PREFIX: Final = "openb_pod_list_"
_SUFFIX: Final = ".csv"


@dataclass(frozen=True, slots=True)
class Policy:
    """The plugins of an experiment: documents and built-in plugins, with their settings in a profile."""

    texts: Texts = NO_TEXTS
    profile: ProfileSpec = field(default_factory=ProfileSpec)


STUDY: Final[Mapping[str, tuple[str, ProfileSpec]]] = {
    "Random": ("", ProfileSpec(enabled=(PluginChoice("RandomScore"),), args={"GpuShare": {"select": "random"}})),
    "DotProd": ("dot-product", ProfileSpec()),
    "GpuClustering": ("", ProfileSpec(enabled=(PluginChoice("GpuClustering"),))),
    "GpuPacking": ("gpu-packing", ProfileSpec()),
    "BestFit": ("best-fit", ProfileSpec()),
    "FGD": ("", ProfileSpec(enabled=(PluginChoice("FragmentationGradient"),))),
}
"""The study's policies: a folder of the shipped documents, and the plugins that the profile enables."""


@dataclass(frozen=True, slots=True)
class ReplayExperiment:
    """One self-contained experiment, which any process with this package can run."""

    point: Point
    policy: Policy
    trace: Packed
    builtins: Builtins = field(repr=False)
    limit: int | None = None


def policy_of(name: str) -> Policy:
    """Return the policy of that name: one of the study's, else a path, else a folder of the shipped ones.

    Raises:
        ValueError: there is none.
        PolicyError: its files cannot be read.
    """
    if name in STUDY:
        folder, profile = STUDY[name]
        return Policy(Texts.read([SHIPPED / folder]) if folder else NO_TEXTS, profile)
    for path in (Path(name), SHIPPED / name):
        if path.exists():
            return Policy(Texts.read([path]))
    known = [*STUDY, *sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())]
    hint = did_you_mean(name, known) or f"name a path, or one of {', '.join(f'`{each}`' for each in known)}"
    raise ValueError(f"there is no policy `{name}`: {hint}")


class Replays:
    """The experiments that some axes span over the workloads of a directory."""

    def __init__(
        self, axes: Sequence[Axis], folder: Path, *, builtins: Builtins, nodes: Path | None = None,
        policies: Sequence[str] = (), enabled: Sequence[PluginChoice] = (), limit: int | None = None,
    ) -> None:
        """`policies` and the plugins `enabled` take part in every experiment, in addition to the policy of the axis.

        Missing axes have the values of `DEFAULTS`.

        Raises:
            ValueError: an axis or one of its values does not exist.
            PolicyError: policies or traces cannot be read, or are invalid.
        """
        given = {axis.name for axis in axes}
        alone = Axis("policy", (_ONLY_GIVEN,))
        default = [alone if axis.name == alone.name else axis for axis in DEFAULTS] if policies or enabled else DEFAULTS
        # Fixed values are shown too, so that a table names its seed.
        self.axes = (*(axis for axis in default if axis.name not in given), *axes)
        self._builtins, self._limit = builtins, limit
        by_name = {axis.name: axis for axis in self.axes}
        for axis in by_name.values():
            check_axis(axis, _CHECKS, "a trace")
        self._workloads, self.axes = _workloads(folder, nodes, self.axes)
        every = Texts.read(policies)
        self._policies = {}
        for value in by_name["policy"].values:
            policy = Policy() if value == _ONLY_GIVEN else policy_of(show(value))
            profile = replace(policy.profile, enabled=(*policy.profile.enabled, *enabled))
            self._policies[value] = Policy(policy.texts + every, profile)

    def task(self, point: Point) -> ReplayExperiment:
        """Return the experiment at a point."""
        return ReplayExperiment(
            point,
            self._policies[point["policy"]],
            self._workloads[show(point["workload"])],
            self._builtins,
            self._limit,
        )

    def inputs(self, point: Point) -> str:
        """Return a fingerprint of everything but the point that determines an experiment's result."""
        policy = self._policies[point["policy"]]
        return "/".join((policy.texts.digest, repr(policy.profile), self._workloads[show(point["workload"])].digest,
                         str(self._limit)))

    def check(self, points: Iterable[Point]) -> None:
        """Compile the policies of all points, so that faults are reported before hours of work.

        Raises:
            ValueError: no policy has such a param.
            PolicyError: policies are invalid, as they are or with such params.
        """
        check_all(((self._policies[point["policy"]].texts, tuple(params_of(point).items())) for point in points),
                  self._builtins)


def run(task: ReplayExperiment) -> ExperimentOutcome:
    """Run an experiment.

    Raises:
        NotRun: its policies are invalid with its params, or a plugin cannot be made.
    """
    point, (trace, typical) = task.point, task.trace.value()
    start = time.perf_counter()
    workload = traces.generate(trace, seed=_whole(point, "seed"), tune=float(point.get("tune", 1.3)))
    if task.limit is not None:
        workload = replace(workload, pods=workload.pods[: task.limit])
    try:
        registry = registry_of(task.policy.texts, task.builtins, tuple(params_of(point).items()))
        profile = trace_profile(task.policy.profile, typical, registry.of_framework(Framework.SCHEDULER))
        settings = Settings((profile,), seed=_whole(point, "seed"), tie_break=str(point.get("tieBreak", "first")))
        with frozen_heap():
            result = simulate(workload, Live(registry), settings, clock=time.perf_counter, typical=typical)
    except (PolicyError, ValueError) as error:
        raise NotRun(str(error)) from None
    found = result.curves()
    curves: dict[str, list[float | None]] = dict(zip(CURVES, (_plain(each) for each in (
        found.cpu, found.memory, found.gpu, found.fragmented_of_cluster, found.fragmented_of_idle)), strict=True))
    last = {name: curve[-1] if curve else None for name, curve in curves.items()}
    figures = {"arrivals": result.arrivals, "failed": result.failed, "load_pct": result.highest_load, **last,
               "errors": len(result.errors), "pods_per_second": round(result.pods_per_second, 1)}
    return ExperimentOutcome(figures, curves, time.perf_counter() - start)


def _plain(curve: Iterable[float]) -> list[float | None]:
    return [None if value != value else round(value, 4) for value in curve]  # noqa: PLR0124 - NaN is not JSON


def _whole(point: Point, name: str) -> int:
    value = point[name]
    assert isinstance(value, int)
    return value


_CHECKS: Final[Mapping[str, AxisCheck]] = {
    POLICY: ANY, "workload": ANY, "seed": WHOLE_NUMBER,
    "tune": AxisCheck(lambda value: isinstance(value, int | float) and 0 <= value <= 100, "a ratio from 0 to 100"),
    "tieBreak": TIE_BREAK,
}


def _workloads(folder: Path, nodes: Path | None, axes: Sequence[Axis]) -> tuple[dict[str, Packed], tuple[Axis, ...]]:
    """Return the traces by name, and the axes with `*` replaced by the names of all lists in the folder."""
    if folder.is_file():
        lists = {_name_of(folder): folder}
        axes = [Axis("workload", tuple(lists)) if axis.name == "workload" and axis in DEFAULTS else axis
                for axis in axes]
    else:
        lists = {_name_of(path): path for path in sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))}
    place = next(place for place, axis in enumerate(axes) if axis.name == "workload")
    names = [show(value) for value in axes[place].values]
    if names == [_EVERY]:
        names = list(lists)
    for name in names:
        if name not in lists:
            known = ", ".join(f"`{each}`" for each in lists) or f"no list `{_PREFIX}NAME{_SUFFIX}`"
            hint = did_you_mean(name, lists) or f"there is {known}"
            raise ValueError(f"there is no workload `{name}` in `{folder}`: {hint}")
    found: dict[str, Packed] = {}
    for name in names:
        trace: Trace = traces.load(lists[name], nodes)
        found[name] = Packed.of((trace, typical_pods(trace.pods)), repr(trace))
    axis = Axis("workload", tuple(names))
    return found, (*axes[:place], axis, *axes[place + 1:])


def _name_of(path: Path) -> str:
    return path.name.removesuffix(_SUFFIX).removeprefix(_PREFIX)
