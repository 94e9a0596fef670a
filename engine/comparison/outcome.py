"""Outcome of a set of policies over one cluster, as plain values that can be compared with those of another set.

`outcome` is the only entry point. It changes nothing: the pods that it places are removed again before it returns, so
that several sets of policies can be evaluated over one cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler import config as descheduling
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.evictor import PROOF
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.verdicts import EvictionProof
from koordpolicy.engine.descheduler.results import CycleResult, EvictionOutcome
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Enforcement, Framework
from koordpolicy.engine.framework.qos import UNSUPPORTED
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.kubernetes.vocabulary import BE
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, filter_nodes, score_nodes
from koordpolicy.engine.scheduler.verdict.verdict import Filtered, Verdict, in_fixed_words

from .placements import SchedulerPlacements
from .qos_round import NodeRound, qos_rounds
from .shapes import FieldReads, shapes_of

HOT_PERCENT: Final = 65
"""The percentage of its allocatable cpu from which a node counts as hot by default (Koordinator's default
threshold of load-aware scheduling)."""
ELIGIBLE: Final = -1
_MOST_CAUSES: Final = 30_000
"""The number of causes that a column of 16 bits can hold, less some for plugins whose reasons did not fit."""
_OTHERWISE: Final = "for one of too many reasons to tell them apart"

_Progress = Callable[[float], None]
_SPREAD: Final = ("cpu", "memory")
_VETO: Final = "would stay: "
_PREEMPTION: Final = "preemption"
GPU_SPREAD: Final = "gpu"
"""The name of GPUs among the requested resources: allocated devices, out of those of all nodes."""
_CYCLE: Final = (Framework.DESCHEDULER, Framework.SCHEDULER)
# The approximate progress after each part of the work.
_DESCHEDULED, _ROUNDS, _SHAPES = 0.05, 0.25, 0.65


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a refusal: the plugin, its rule, and the fixed text of the rule's reason.

    `rule` is empty if the plugin has no rules, or failed as a whole.
    """

    plugin: str
    rule: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Return plain data."""
        return {"plugin": self.plugin, "rule": self.rule, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of a pod when the pods are scheduled one after the other; `node` is None if none fits.

    `score` is the weighted total of that node and `scores` are its parts by plugin, unweighted; both are empty if only
    one node passed. If no node was found, `reasons` are the reasons of refusals with their numbers of nodes.
    """

    pod: str
    node: str | None
    passed: int
    score: int | None = None
    scores: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """Pods that the policies cannot distinguish, and their results on every node of the current cluster.

    The node of a running pod is evaluated without that pod, as if it were pending; scores are those of the unchanged
    nodes.
    """

    name: str
    """The key of the first of them."""
    pods: tuple[str, ...]
    profile: str
    running: bool
    refused_by: NDArray[np.int16]
    """By node: the index in `Outcome.causes` of its first refusal, or `ELIGIBLE`."""
    totals: NDArray[np.int64]
    """By node: the weighted sum of the scores; -1 if the node is refused."""
    best: str | None
    """The node with the highest sum, the first by name among equals; None if none is eligible."""
    watched: Mapping[int, int] = field(default_factory=dict)
    """The number of nodes that plugins with Warn or Audit would refuse, by index of the cause."""

    @property
    def eligible(self) -> int:
        """The number of nodes that the pods may run on."""
        return int(np.count_nonzero(self.refused_by == ELIGIBLE))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A pod that runs on a node which would refuse it now."""

    pod: str
    node: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class PredictedEviction:
    """A pod that would be evicted, with the framework (`descheduler`, `qos`, or `scheduler` for a preemption), plugin,
    rule and reason.

    `proof` says whether it helps; None for other frameworks than the descheduler.
    """

    pod: str
    node: str
    framework: str
    plugin: str
    rule: str
    reason: str
    proof: EvictionProof | None = None


@dataclass(frozen=True, slots=True)
class Suppression:
    """A limit or write of a QoS plugin on a node, other than an eviction; one for each subject.

    `values` are the limits (`target` in milli-cores of cpu); `best_effort` is the number of such pods on the node.
    """

    node: str
    plugin: str
    item: str
    kind: str
    subject: str
    values: Mapping[str, object]
    reason: str
    best_effort: int

    @property
    def felt(self) -> bool:
        """Return whether it has an effect: a limit of best-effort pods has none on a node without such pods."""
        return self.kind != "suppressCPU" or self.best_effort > 0


@dataclass(slots=True)
class QoSUse:
    """The rounds of a QoS plugin and their results, over all nodes."""

    rounds: int = 0
    true: Counter[str] = field(default_factory=Counter)
    """The number of rounds in which the expression of a threshold was true."""
    held: Counter[str] = field(default_factory=Counter)
    """The number of rounds in which a threshold held."""
    acted: Counter[str] = field(default_factory=Counter)
    """The number of adjustments of each action."""


@dataclass(frozen=True, slots=True)
class FailureCount:
    """A failure of a plugin or an expression, with its count, and the first pod or node concerned."""

    plugin: str
    point: str
    rule: str
    message: str
    times: int
    example: str


@dataclass(frozen=True, slots=True)
class Scorer:
    """The scores of a plugin over all shapes and the nodes that they may run on, unweighted (0..100).

    `shapes` is the number of kinds of pods with more than one scored node, `constant` the number of those with equal
    scores for all nodes.
    """

    plugin: str
    weight: int
    enforcement: Enforcement
    mean: float
    low: int
    high: int
    shapes: int
    constant: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Percent of the allocatable over all nodes that have any: mean, and standard deviation in percentage points."""

    mean: float
    deviation: float


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
            "suppressed": self.suppressed, "hot": self.hot, **spreads, "faults": self.faults,
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
    faults = _Faults()
    if before is not None:
        faults.take_over(before.faults, same)
    placements: dict[str, Placement] = {}
    client = _Onlooker(cluster)
    scheduler = Scheduler(
        cluster, Live(registry), settings, clock=lambda: now, client=client,
        concluded=lambda verdict: placements.update({verdict.pod.key: _placed(verdict, faults)}),
    )
    try:
        snapshot = cluster.snapshot(now)
        # The proof of an eviction depends on the scheduler, too.
        if before is not None and same.issuperset(_CYCLE if proves else _CYCLE[:1]):
            cycle = before.cycle
        else:
            with _proving(registry, cluster, scheduler.settings if proves else None, now) as proving:
                cycle = _cycle(registry, snapshot, descheduler, cycles, proving)
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
            of_qos, suppressions, use = _of_rounds(rounds, snapshot, faults)
        if before is not None and Framework.SCHEDULER in same:
            shapes, causes, misfits, scorers = before.shapes, before.causes, before.misfits, before.scorers
            placements = dict(before.placements)
            preempted = tuple(each for each in before.evictions if each.framework == Framework.SCHEDULER.value)
        else:
            look = _Look(scheduler, snapshot, FieldReads.of(scheduler.profiles), faults)
            shapes, misfits = look.at(pods, _part(progress, _ROUNDS, _SHAPES))
            causes, scorers = tuple(look.causes.found), look.scorers()
            _place(pods, scheduler, placements, faults, _part(progress, _SHAPES, 1.0))
            preempted = tuple(client.evictions)
        evictions = (*_of_cycle(cycle), *of_qos, *preempted)
        with _on_their_nodes(cluster, pods, placements):
            hot, measured, requested, usage = _loads(cluster.snapshot(now), evictions, hot_percent)
    finally:
        scheduler.close()
    placed = sum(each.node is not None for each in placements.values())
    summary = OutcomeSummary(
        nodes=snapshot.size, running=sum(len(row.pods) for row in cluster.rows), to_place=len(placements),
        placed=placed, pending=len(placements) - placed, misfits=len(misfits),
        evictions=len({each.pod for each in evictions}),
        suppressed=len({each.node for each in suppressions if each.felt}), hot=hot, measured=measured,
        requested=requested, usage=usage, faults=len(faults.found),
    )
    progress(1.0)
    return Outcome(digests, tuple(cluster.names), placements, shapes, causes, misfits, evictions, _useless(cycle),
                   suppressions, scorers, faults.counts(), cycle, use, summary)


def _digest(registry: Registry, framework: Framework) -> str:
    return repr([(each.name, each.digest, each.enforcement, each.enabled) for each in registry.of_framework(framework)])


class _Onlooker:
    """A client that writes nothing and records evictions (implements `Client`)."""

    simulated = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.evictions: list[PredictedEviction] = []

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> None:
        """Do nothing."""

    def bind(self, pod: PodInfo, node: str) -> None:
        """Do nothing: the pod is already assumed on the node."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Remember the pod, which stays."""
        node = known.node_name if (known := self._cluster.pod(pod.key)) is not None else pod.node_name
        self.evictions.append(PredictedEviction(pod.key, node, Framework.SCHEDULER.value, _PREEMPTION, "", reason))

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Remember the pod, which stays."""
        self.evict(pod, f"preempted by {preemptor.key} on {node}")


def _place(
    pods: Sequence[PodInfo], scheduler: Scheduler, placements: dict[str, Placement], faults: _Faults,
    progress: _Progress,
) -> None:
    """Record the nodes of the pods, placed one after the other; they are removed again.

    The scheduler reports the final verdicts of pods that waited for a permit.
    """
    try:
        for number, pod in enumerate(pods, start=1):
            verdict = scheduler.schedule(pod)
            if verdict.waiting or pod.key not in placements:
                placements[pod.key] = _placed(verdict, faults)
            progress(number / len(pods))
        scheduler.process_bindings()
    finally:
        for pod in reversed(pods):
            scheduler.cluster.forget(pod.key)


@contextmanager
def _on_their_nodes(
    cluster: Cluster, pods: Sequence[PodInfo], placements: Mapping[str, Placement],
) -> Iterator[None]:
    """Keep the pods on their nodes while the block runs."""
    placed = [(pod, node) for pod in pods if (node := placements[pod.key].node) is not None]
    try:
        for pod, node in placed:
            cluster.assume(pod, node)
        yield
    finally:
        for pod, _ in reversed(placed):
            cluster.forget(pod.key)


class _Faults:
    """Collects failures, each kind once."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str, str], list[Any]] = {}

    def add(self, key: tuple[str, str, str, str], subject: str, times: int = 1) -> None:
        """Count a failure: plugin, point, rule, message."""
        if key in self.found:
            self.found[key][0] += times
        else:
            self.found[key] = [times, subject]

    def add_verdict(self, verdict: Verdict) -> None:
        for each in verdict.errors():
            subject = f"{verdict.pod.key} on {each.nodes[0]}" if each.nodes else verdict.pod.key
            self.add((each.plugin, each.point.value, each.rule, each.message), subject, max(1, len(each.nodes)))

    def take_over(self, faults: Iterable[FailureCount], frameworks: Collection[Framework]) -> None:
        """Add the failures of the plugins of these frameworks."""
        for each in faults:
            if _framework_of(each.point) in frameworks:
                self.add((each.plugin, each.point, each.rule, each.message), each.example, each.times)

    def add_cycle(self, cycle: CycleResult, watched: Collection[str]) -> None:
        """Record the failures of a cycle; they include the vetoes of plugins that are not enforced (`watched`)."""
        failures = [each for each in cycle.failures if each.plugin not in watched or not each.message.startswith(_VETO)]
        for each in failures:
            self.add((each.plugin, Framework.DESCHEDULER.value, each.rule, each.message), each.subject)
        if cycle.error and not failures:
            self.add(("", Framework.DESCHEDULER.value, "", cycle.error), "the whole cycle")

    def counts(self) -> tuple[FailureCount, ...]:
        return tuple(FailureCount(*key, *rest) for key, rest in self.found.items())


def _framework_of(point: str) -> Framework:
    return next((each for each in (Framework.QOS, Framework.DESCHEDULER) if each.value == point), Framework.SCHEDULER)


@dataclass(slots=True)
class _ScoreSums:
    """The scores of a plugin so far."""

    weight: int
    enforcement: Enforcement
    sum: int = 0
    count: int = 0
    low: int = 0
    high: int = 0
    shapes: int = 0
    constant: int = 0


class Causes:
    """Causes by number, as columns store them.

    A plugin may have a different reason for every pod. Beyond `most` causes, new ones are recorded without the reason.
    """

    def __init__(self, most: int = _MOST_CAUSES) -> None:
        self._most = most
        self._numbers: dict[Cause, int] = {}
        self.found: list[Cause] = []
        """The causes, each at its number."""

    def number(self, cause: Cause) -> int:
        """Return the number of a cause."""
        if cause not in self._numbers and len(self.found) >= self._most:
            cause = Cause(cause.plugin, cause.rule, _OTHERWISE)
        if cause not in self._numbers:
            self._numbers[cause] = len(self.found)
            self.found.append(cause)
        return self._numbers[cause]


@dataclass(slots=True)
class _Look:
    """Evaluates every kind of pod on every node."""

    scheduler: Scheduler
    snapshot: Snapshot
    reading: FieldReads
    faults: _Faults
    causes: Causes = field(default_factory=Causes)
    _said: dict[str, _ScoreSums] = field(default_factory=dict)
    _columns: dict[bytes, NDArray[Any]] = field(default_factory=dict)

    def at(self, pods: Sequence[PodInfo], progress: _Progress) -> tuple[tuple[PodShape, ...], tuple[Misfit, ...]]:
        """Return the kinds of pending and of running pods, and the running pods whose node would refuse them."""
        running = [pod for row in range(self.snapshot.size) for pod in self.snapshot.pods(row)]
        groups = shapes_of((*pods, *running), self.reading)
        shapes: list[PodShape] = []
        misfits: list[Misfit] = []
        for number, group in enumerate(groups, start=1):
            shape = self._shape(group)
            shapes.append(shape)
            if shape.running:
                misfits += self._misfits(group, shape)
            progress(number / len(groups))
        return tuple(shapes), tuple(misfits)

    def _shape(self, group: tuple[PodInfo, ...]) -> PodShape:
        first, pod = group[0], group[0].unbound()
        profile = self.scheduler.profile_of(pod)
        verdict = filter_nodes(profile, pod, self.snapshot)
        self.faults.add_verdict(verdict)
        refused_by = self._refused_by(verdict)
        if first.node_name:
            # One of the replicas on each node: removing any of them gives the same node.
            there = {pod.node_name: pod for pod in reversed(group)}
            alone = [there] if self.reading.asks_alone(pod, self.snapshot) else [
                {node: other} for node, other in there.items()
            ]
            for each in alone:
                self._ask_without(each, pod, refused_by)
        passed = np.flatnonzero(refused_by == ELIGIBLE)
        totals = np.full(self.snapshot.size, -1, np.int64)
        if len(passed):
            totals[passed] = self._totals(pod, passed)
        best = self.snapshot.names[int(totals.argmax())] if len(passed) else None
        watched: dict[int, int] = {}
        for step in verdict.filters:
            if step.enforcement is not Enforcement.ENFORCE:
                for cause, rows in self._by_cause(step):
                    watched[cause] = watched.get(cause, 0) + len(rows)
        refused_by, totals = self._shared(refused_by), self._shared(totals)
        keys = tuple(pod.key for pod in group)
        return PodShape(first.key, keys, profile.name, bool(first.node_name), refused_by, totals, best, watched)

    def _shared(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the first stored column with this content.

        If a policy distinguishes every pod, there are as many kinds as pods, and most of their columns are equal.
        """
        return self._columns.setdefault(blake2b(column.tobytes(), digest_size=16).digest(), column)

    def _ask_without(self, pods: Mapping[str, PodInfo], pod: PodInfo, refused_by: NDArray[np.int16]) -> None:
        """Evaluate the nodes of these pods, without these pods."""
        snapshot = self.snapshot.overlay({node: NodeChange(remove=[other.key]) for node, other in pods.items()})
        rows = np.array(sorted(self.snapshot.index[node] for node in pods), np.intp)
        verdict = filter_nodes(self.scheduler.profile_of(pod), pod, snapshot, among=rows)
        refused_by[rows] = self._refused_by(verdict)[rows]

    def _totals(self, pod: PodInfo, passed: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the weighted sums of the scores of the nodes that passed."""
        verdict = score_nodes(self.scheduler.profile_of(pod), pod, self.snapshot, among=passed)
        self.faults.add_verdict(verdict)
        for step in verdict.scores:
            values = step.scores.values[passed].astype(np.int64)
            said = self._said.setdefault(step.plugin, _ScoreSums(step.weight, step.enforcement, low=HIGHEST_SCORE))
            low, high = int(values.min()), int(values.max())
            said.sum += int(values.sum())
            said.count += len(values)
            said.low, said.high = min(said.low, low), max(said.high, high)
            if len(values) > 1:
                said.shapes += 1
                said.constant += low == high
        assert verdict.totals is not None
        return verdict.totals

    def _refused_by(self, verdict: Verdict) -> NDArray[np.int16]:
        refused_by = np.full(self.snapshot.size, ELIGIBLE, np.int16)
        if verdict.refusal is not None:
            plugin, _, refusal = verdict.refusal
            refused_by[:] = self.causes.number(Cause(plugin, refusal.rule, refusal.brief or refusal.message))
            return refused_by
        for step in reversed(verdict.filters):  # reversed, so that the first refusal is written last
            if step.enforcement is Enforcement.ENFORCE:
                for cause, refused in self._by_cause(step):
                    refused_by[refused] = cause
        return refused_by

    def _by_cause(self, step: Filtered) -> Iterable[tuple[int, NDArray[np.intp]]]:
        for reason, rows in in_fixed_words(step, step.refused).items():
            rule = step.answer.explain(int(rows[0])).rule
            yield self.causes.number(Cause(step.plugin, rule, reason)), rows

    def _misfits(self, group: tuple[PodInfo, ...], shape: PodShape) -> Iterable[Misfit]:
        for pod in group:
            number = int(shape.refused_by[self.snapshot.index[pod.node_name]])
            if number != ELIGIBLE:
                yield Misfit(pod.key, pod.node_name, self.causes.found[number])

    def scorers(self) -> tuple[Scorer, ...]:
        """Return the scores of the scorers, in their order."""
        return tuple(
            Scorer(name, said.weight, said.enforcement, said.sum / said.count, said.low, said.high, said.shapes,
                   said.constant)
            for name, said in self._said.items()
        )


def _part(progress: _Progress, start: float, end: float) -> _Progress:
    """Return a callback that maps the progress of a part to the range from `start` to `end`."""
    return lambda part: progress(start + (end - start) * part)


def _placed(verdict: Verdict, faults: _Faults) -> Placement:
    faults.add_verdict(verdict)
    passed = len(verdict.passed)
    if verdict.waiting:
        return Placement(verdict.pod.key, None, passed, reasons={"a permit holds it back": verdict.size})
    if verdict.node is None:
        return Placement(verdict.pod.key, None, passed, reasons=verdict.reasons())
    if verdict.totals is None:
        return Placement(verdict.pod.key, verdict.node, passed)
    row = int(np.searchsorted(verdict.passed, verdict.row))
    scores = {step.plugin: int(step.scores.values[verdict.row]) for step in verdict.scores}
    return Placement(verdict.pod.key, verdict.node, passed, int(verdict.totals[row]), scores)


# Evictions


class _Settled(SourceStreaks):
    """A history in which every source has been the same for any duration."""

    def observe(self, profile: str, item: str, node: str, *, source: bool, now: int, timeout: int) -> int:  # noqa: ARG002
        """Return the cycles in a row."""
        return 2**31 if source else 0


@contextmanager
def _proving(registry: Registry, cluster: Cluster, settings: Settings | None, now: int) -> Iterator[Proving | None]:
    """Return the means to prove evictions, valid in the block: these profiles, and a budget without a clock.

    As for other proofs, ties are broken at random, so that a pod that may come back by luck is known to. None without
    settings.
    """
    if settings is None:
        yield None
        return
    placements = SchedulerPlacements(Scheduler(
        cluster, Live(registry), Settings(settings.profiles, tie_break="random"), clock=lambda: now,
    ))
    try:
        yield Proving(placements, clock=lambda: 0.0)
    finally:
        placements.close()


def _cycle(
    registry: Registry, snapshot: Snapshot, configuration: descheduling.DeschedulerConfiguration | None, cycles: int,
    proving: Proving | None,
) -> CycleResult:
    result = CycleResult(registry.generation, dry_run=True, nodes=snapshot.size)
    if not registry.of_framework(Framework.DESCHEDULER):
        return result
    configuration = configuration or descheduling.default()
    profiles = build_profiles(
        configuration.profiles, registry, dry_run=True, snapshot=lambda: snapshot, memory=_Settled(),
    )
    if not any(profile.deschedule or profile.balance for profile in profiles):
        return result
    for _ in range(cycles):
        result = run_cycle(profiles, snapshot, limits=configuration.limits, generation=registry.generation,
                           node_selector=configuration.node_selector, proving=proving)
    return result


def _of_cycle(cycle: CycleResult) -> tuple[PredictedEviction, ...]:
    return tuple(_predicted(each) for each in cycle.evicted)


def _useless(cycle: CycleResult) -> tuple[PredictedEviction, ...]:
    """Return the evictions that only their proof stopped, of pods that nothing else evicts."""
    evicted = {each.pod for each in cycle.evicted}
    return tuple(_predicted(each) for each in cycle.kept if each.stopped_by == PROOF and each.pod not in evicted)


def _predicted(of: EvictionOutcome) -> PredictedEviction:
    return PredictedEviction(of.pod, of.node, Framework.DESCHEDULER.value, of.plugin, of.rule, of.reason, of.proof)


# Quality of service


def _of_rounds(
    rounds: Iterable[NodeRound], snapshot: Snapshot, faults: _Faults,
) -> tuple[list[PredictedEviction], tuple[Suppression, ...], dict[str, QoSUse]]:
    use: dict[str, QoSUse] = {}
    evictions: dict[str, PredictedEviction] = {}
    found: dict[tuple[str, str, str, str], Suppression] = {}
    for each in rounds:
        of = use.setdefault(each.plugin, QoSUse())
        of.rounds += 1
        of.true.update(threshold.name for threshold in each.report.thresholds if threshold.true)
        of.held.update(threshold.name for threshold in each.report.thresholds if threshold.holds)
        of.acted.update(adjustment.item for adjustment in each.report.adjustments)
        for error in each.report.errors:
            if error.reason != UNSUPPORTED:
                faults.add((each.plugin, Framework.QOS.value, error.item, error.message), error.subject)
        if not each.enforced:
            continue
        for adjustment in each.report.adjustments:
            if adjustment.kind == "evict":
                evictions.setdefault(adjustment.subject, PredictedEviction(
                    adjustment.subject, each.node, Framework.QOS.value, each.plugin, adjustment.item, adjustment.reason,
                ))
            elif not adjustment.recovers:
                waiting = sum(pod.qos_class == BE for pod in snapshot.pods(snapshot.index[each.node]))
                key = (each.node, each.plugin, adjustment.item, adjustment.subject)
                found[key] = Suppression(
                    each.node, each.plugin, adjustment.item, adjustment.kind, adjustment.subject,
                    dict(adjustment.values), adjustment.reason, waiting,
                )
    return list(evictions.values()), tuple(found.values()), use


# Loads


def _loads(
    snapshot: Snapshot, evictions: Iterable[PredictedEviction], hot_percent: int,
) -> tuple[int, int, dict[str, Spread], dict[str, Spread]]:
    """Return the numbers of hot and of measured nodes, and the spreads of requests and usage."""
    gone: dict[str, list[str]] = {}
    for each in evictions:
        gone.setdefault(each.node, []).append(each.pod)
    requested: dict[str, list[float]] = {name: [] for name in _SPREAD}
    usage: dict[str, list[float]] = {name: [] for name in _SPREAD}
    hot = measured = 0
    for number in range(snapshot.size):
        row = snapshot.row(number)
        leaving = [row.pods[key] for key in dict.fromkeys(gone.get(row.name, ())) if key in row.pods]
        if (devices := sum(row.total)) > 0:
            requested.setdefault(GPU_SPREAD, []).append(100 * (devices - sum(row.free)) / devices)
        fresh = row.metric is not None and snapshot.is_fresh(number)
        measured += fresh
        expected: Mapping[str, int] = row.estimated() if fresh else {}
        for name in _SPREAD:
            allocatable = row.allocatable[name]
            if not allocatable:
                continue
            amount = row.requested[name] - sum(pod.requests[name] for pod in leaving)
            requested[name].append(100 * amount / allocatable)
            if fresh and name in expected:
                assert row.metric is not None
                of_pods = row.metric.pods
                used = expected[name] - sum(of_pods[pod.key][name] for pod in leaving if pod.key in of_pods)
                usage[name].append(100 * max(0, used) / allocatable)
                hot += name == "cpu" and usage[name][-1] > hot_percent
    return (hot, measured, {name: _spread(values) for name, values in requested.items() if values},
            {name: _spread(values) for name, values in usage.items() if values})


def _spread(percents: Sequence[float]) -> Spread:
    return Spread(float(np.mean(percents)), float(np.std(percents)))
