"""Experiments over a snapshot of a cluster: the outcome of policies there, for each value of their params.

Axes: `params.NAME`, `policy` (a path), `seed`, `tieBreak` and `hotPercent`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Objects
from koordpolicy.engine.comparison.outcome import HOT_PERCENT, outcome
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.cycle.tie_break import TIE_BREAKS
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.engine.source import PolicyError

from .axes import Axis, Point
from .axis_checks import ANY, TIE_BREAK, WHOLE_NUMBER, AxisCheck, check_axis
from .inputs import POLICY, Builtins, Packed, PolicyTexts, Texts, registry_of
from .journal import ExperimentOutcome
from .params import params_of
from .runners import NotRun

FIGURES: Final[Mapping[str, str]] = {
    "pending": "pods that found no node",
    "placed": "pods that found one",
    "misfits": "running pods that their node would refuse now",
    "evictions": "pods that would be evicted",
    "suppressed": "nodes on which best-effort pods would be held back",
    "hot": "nodes whose load is above the mark, after placements and evictions",
    "cpu_usage_pct": "mean use of CPU over the measured nodes, in percent of what is allocatable",
    "cpu_usage_spread": "standard deviation of the nodes' use of CPU, in percentage points",
    "cpu_requested_pct": "mean of the CPU requests over all nodes, in percent of what is allocatable",
    "cpu_requested_spread": "standard deviation of the nodes' CPU requests, in percentage points",
    "memory_requested_pct": "mean of the memory requests over all nodes, in percent of what is allocatable",
    "memory_requested_spread": "standard deviation of the nodes' memory requests, in percentage points",
    "errors": "kinds of errors in plugins and expressions",
}

_SEED: Final = "seed"
_TIE_BREAK: Final = "tieBreak"
_HOT: Final = "hotPercent"


@dataclass(frozen=True, slots=True)
class SnapshotExperiment:
    """One self-contained experiment, which any process with this package can run."""

    point: Point
    texts: Texts
    objects: Packed
    now: int
    builtins: Builtins = field(repr=False)


class Snapshots:
    """The experiments that some axes span over one cluster."""

    def __init__(
        self, axes: Sequence[Axis], objects: Iterable[Mapping[str, Any]], *, now: int, builtins: Builtins,
        policies: Sequence[str] = (),
    ) -> None:
        """`objects` are the cluster's; `now` is the moment of all decisions, in nanoseconds since the epoch.

        Raises:
            ValueError: an axis or one of its values does not exist.
            PolicyError: policies cannot be read.
        """
        self.axes = tuple(axes)
        for axis in axes:
            check_axis(axis, _CHECKS, "a cluster")
        self._now = now
        given = list(objects)
        kinds = objects.kinds if isinstance(objects, Objects) else None
        self._objects = Packed.of((given, kinds), json.dumps(given, sort_keys=True, default=str))
        self._policies = PolicyTexts(axes, policies, builtins)

    def task(self, point: Point) -> SnapshotExperiment:
        """Return the experiment at a point."""
        return SnapshotExperiment(point, self._policies.at(point), self._objects, self._now, self._policies.builtins)

    def inputs(self, point: Point) -> str:
        """Return a fingerprint of everything but the point that determines an experiment's result."""
        return f"{self._policies.at(point).digest}/{self._objects.digest}/{self._now}"

    def check(self, points: Iterable[Point]) -> None:
        """Compile the policies of all points.

        Raises:
            ValueError: no policy has such a param.
            PolicyError: policies are invalid, as they are or with such params.
        """
        self._policies.check(points)


def run(task: SnapshotExperiment) -> ExperimentOutcome:
    """Run an experiment.

    Raises:
        NotRun: its policies are invalid with its params, or a plugin cannot be made.
    """
    point = task.point
    start = time.perf_counter()
    objects, kinds = task.objects.value()
    cluster = Cluster(kinds=kinds)
    cluster.upsert_all(objects)
    seed, hot = point.get(_SEED, 0), point.get(_HOT, HOT_PERCENT)
    assert isinstance(seed, int)
    assert isinstance(hot, int)
    try:
        registry = registry_of(task.texts, task.builtins, tuple(params_of(point).items()))
        settings = Settings(_profiles(registry), str(point.get(_TIE_BREAK, TIE_BREAKS[0])), seed)
        found = outcome(registry, cluster, now=task.now, settings=settings, hot_percent=hot).summary
    except (PolicyError, ValueError) as error:
        raise NotRun(str(error)) from None
    cpu = found.usage.get("cpu")
    return ExperimentOutcome({
        "pending": found.pending, "placed": found.placed, "misfits": found.misfits, "evictions": found.evictions,
        "suppressed": found.suppressed, "hot": found.hot,
        "cpu_usage_pct": None if cpu is None else round(cpu.mean, 4),
        "cpu_usage_spread": None if cpu is None else round(cpu.deviation, 4),
        **{
            f"{resource}_requested_{what}": round(value, 4)
            for resource, spread in found.requested.items() if resource in ("cpu", "memory")
            for what, value in (("pct", spread.mean), ("spread", spread.deviation))
        },
        "errors": found.faults,
    }, {}, time.perf_counter() - start)


def _profiles(registry: Registry) -> tuple[ProfileSpec, ...]:
    """Return the default profile, and those that policies name: pods choose among them by their `schedulerName`."""
    default = ProfileSpec()
    named = {name for plugin in registry.of_framework(Framework.SCHEDULER) for name in plugin.profiles or ()}
    return default, *(ProfileSpec(name) for name in sorted(named - {default.name}))


_CHECKS: Final[Mapping[str, AxisCheck]] = {
    POLICY: ANY, _SEED: WHOLE_NUMBER, _TIE_BREAK: TIE_BREAK,
    _HOT: AxisCheck(lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 100,
                    "a whole percentage from 1 to 100"),
}
