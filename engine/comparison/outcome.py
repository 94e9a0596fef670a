"""Outcome of a set of policies over one cluster, as plain values that can be compared with those of another set.

`outcome` is the only entry point. It changes nothing: the pods that it places are removed again before it returns, so
that several sets of policies can be evaluated over one cluster.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler import config as descheduling
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.points import Enforcement, Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings

from .eligibility import Cause, Misfit, PodShape, Scorer, ShapeEvaluation
from .evictions import PredictedEviction, dry_cycle, evictions_of, proving_of, useless_of
from .failures import FailureCount, Faults
from .loads import Spread, loads
from .qos_round import qos_rounds
from .scheduling import Onlooker, Placement, on_their_nodes, place_all, placement_of
from .shapes import FieldReads
from .suppressions import QoSUse, Suppression, sum_up

HOT_PERCENT: Final = 65
"""The percentage of its allocatable cpu from which a node counts as hot by default (Koordinator's default
threshold of load-aware scheduling)."""

_Progress = Callable[[float], None]
_CYCLE: Final = (Framework.DESCHEDULER, Framework.SCHEDULER)
# The approximate progress after each part of the work.
_DESCHEDULED, _ROUNDS, _SHAPES = 0.05, 0.25, 0.65


@dataclass(frozen=True, slots=True)
class OutcomeSummary:
    """The outcome in numbers."""

    nodes: int
    running: int
    """The number of pods on nodes."""
    to_place: int
    """The number of pods to place."""
    placed: int
    pending: int
    """The pods among these that found no node."""
    misfits: int
    """Running pods whose node would refuse them now."""
    evictions: int
    unproved: int
    """The descheduler's evictions that should have been proved and were not."""
    suppressed: int
    """Nodes on which pods would be limited."""
    hot: int
    """Nodes whose load, after placements and evictions, is above the threshold."""
    measured: int
    """Nodes with a fresh metric; the load of the others is unknown."""
    requested: Mapping[str, Spread]
    """The requests of cpu, memory and GPUs (`GPU_SPREAD`), after placements and evictions; a resource that no node has
    is absent."""
    usage: Mapping[str, Spread]
    """The usage of cpu and memory over the measured nodes: the measured usage plus the estimates of placed pods, minus
    that of evicted pods; empty without metrics."""
    faults: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data; percentages are rounded to hundredths."""
        spreads = {
            name: {
                resource: {"mean": round(each.mean, 2), "deviation": round(each.deviation, 2)}
                for resource, each in of.items()
            } for name, of in (("requested", self.requested), ("usage", self.usage))
        }
        return {
            "nodes": self.nodes, "measured": self.measured, "running": self.running, "asked": self.to_place,
            "placed": self.placed, "pending": self.pending, "misfits": self.misfits, "evictions": self.evictions,
            "unproved": self.unproved, "suppressed": self.suppressed, "hot": self.hot, **spreads, "faults": self.faults,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a set of policies: plain values and arrays that stay valid when the cluster changes."""

    digests: Mapping[Framework, str]
    """By framework; equal if its plugins are equal."""
    nodes: tuple[str, ...]
    """The nodes' names, sorted: the rows of all arrays."""
    placements: Mapping[str, Placement]
    """The placements by pod, in the order of the decisions."""
    shapes: tuple[PodShape, ...]
    causes: tuple[Cause, ...]
    misfits: tuple[Misfit, ...]
    evictions: tuple[PredictedEviction, ...]
    useless: tuple[PredictedEviction, ...]
    """Evictions that are not made, since their proof says that they would not help (`proof: Enforce`)."""
    suppressions: tuple[Suppression, ...]
    scorers: tuple[Scorer, ...]
    faults: tuple[FailureCount, ...]
    cycle: CycleResult
    """The descheduler's dry cycle."""
    qos: Mapping[str, QoSUse]
    """The rounds by active QoS plugin."""
    summary: OutcomeSummary


def outcome(
    registry: Registry, cluster: Cluster, pods: Sequence[PodInfo] | None = None, *, now: int,
    settings: Settings | None = None, descheduler: descheduling.DeschedulerConfiguration | None = None, cycles: int = 1,
    gates: Mapping[str, bool] | None = None, hot_percent: int = HOT_PERCENT,
    proves: bool = False, before: Outcome | None = None, progress: _Progress = lambda _: None,
) -> Outcome:
    """Return the outcome of the plugins of a registry over a cluster at `now` (ns since the epoch).

    `pods` are scheduled one after the other in this order, each placement counting for those after it; None takes the
    cluster's pending pods as kube-scheduler does, by priority and then by arrival. They must not be bound to a node.
    `settings` has the scheduling profiles, the tie-break and the seed of random choices; the same arguments give the
    same outcome. Arguments of single plugins are given through its profiles (`ProfileSpec.args`), those of descheduling
    plugins through `descheduler`, whose profile without a file is that of the documents.

    Eligibility, scores, misfits, evictions and QoS are those of the current cluster, before any placement. One
    descheduling cycle is run as if the cluster had been in this state for as many cycles as any document requires
    (`anomaly`); Python plugins that count by themselves run `cycles` of them, of which the last is reported. QoS
    plugins run on nodes with a fresh metric. Only enforced results count. `hot_percent` is
    of the allocatable cpu. With `proves` the descheduler's evictions are proved by the profiles of `settings`, with the
    effects that plugins and documents declare. `before` is an outcome of another registry with the same other
    arguments: its results for a framework with the same plugins are reused. `progress` is called with the part that is
    done, from 0 to 1.

    The cluster is unchanged afterwards. It must not be used by others meanwhile.

    Raises:
        PolicyError: a plugin of the registry cannot be made.
        ValueError: one of the pods is bound already.
    """
    if pods is None:
        pods = sorted(cluster.pending, key=lambda pod: -pod.priority)
    bound = next((pod.key for pod in pods if (known := cluster.pod(pod.key)) is not None and known.node_name), None)
    if bound is not None:
        raise ValueError(f"`{bound}` is on a node already")
    digests = {framework: _digest(registry, framework) for framework in Framework}
    same = {each for each in Framework if before is not None and before.digests[each] == digests[each]}
    faults = Faults()
    if before is not None:
        faults.take_over(before.faults, same)
    placements: dict[str, Placement] = {}
    client = Onlooker(cluster)
    scheduler = Scheduler(
        cluster, Live(registry), settings, clock=lambda: now, client=client,
        concluded=lambda verdict: placements.update({verdict.pod.key: placement_of(verdict, faults)}),
    )
    try:
        snapshot = cluster.snapshot(now)
        # The proof of an eviction depends on the scheduler, too.
        if before is not None and same.issuperset(_CYCLE if proves else _CYCLE[:1]):
            cycle = before.cycle
        else:
            with proving_of(registry, cluster, scheduler.settings if proves else None, lambda: now) as proving:
                cycle = dry_cycle(registry, snapshot, descheduler, cycles, proving)
            faults.add_cycle(cycle, {
                each.name for each in registry.of_framework(Framework.DESCHEDULER)
                if each.enforcement is not Enforcement.ENFORCE
            })
        progress(_DESCHEDULED)
        if before is not None and Framework.QOS in same:
            of_qos = [each for each in before.evictions if each.framework == Framework.QOS.value]
            suppressions, use = before.suppressions, before.qos
        else:
            rounds = qos_rounds(registry, snapshot, gates=gates, progress=_part(progress, _DESCHEDULED, _ROUNDS))
            of_qos, suppressions, use = sum_up(rounds, snapshot, faults)
        if before is not None and Framework.SCHEDULER in same:
            shapes, causes, misfits, scorers = before.shapes, before.causes, before.misfits, before.scorers
            placements = dict(before.placements)
            preempted = tuple(each for each in before.evictions if each.framework == Framework.SCHEDULER.value)
        else:
            evaluation = ShapeEvaluation(scheduler, snapshot, FieldReads.of(scheduler.profiles), faults)
            shapes, misfits = evaluation.at(pods, _part(progress, _ROUNDS, _SHAPES))
            causes, scorers = tuple(evaluation.causes.found), evaluation.scorers()
            place_all(pods, scheduler, placements, faults, _part(progress, _SHAPES, 1.0))
            preempted = tuple(client.evictions)
        evictions = (*evictions_of(cycle), *of_qos, *preempted)
        with on_their_nodes(cluster, pods, placements):
            hot, measured, requested, usage = loads(cluster.snapshot(now), evictions, hot_percent)
    finally:
        scheduler.close()
    placed = sum(each.node is not None for each in placements.values())
    summary = OutcomeSummary(
        nodes=snapshot.size, running=sum(len(row.pods) for row in cluster.rows), to_place=len(placements),
        placed=placed, pending=len(placements) - placed, misfits=len(misfits),
        evictions=len({each.pod for each in evictions}), unproved=len({each.pod for each in cycle.unproved}),
        suppressed=len({each.node for each in suppressions if each.felt}), hot=hot, measured=measured,
        requested=requested, usage=usage, faults=len(faults.found),
    )
    progress(1.0)
    return Outcome(digests, tuple(cluster.names), placements, shapes, causes, misfits, evictions, useless_of(cycle),
                   suppressions, scorers, faults.counts(), cycle, use, summary)


def _digest(registry: Registry, framework: Framework) -> str:
    return repr([(each.name, each.digest, each.enforcement, each.enabled) for each in registry.of_framework(framework)])


def _part(progress: _Progress, start: float, end: float) -> _Progress:
    """Return a callback that maps the progress of a part to the range from `start` to `end`."""
    return lambda part: progress(start + (end - start) * part)
