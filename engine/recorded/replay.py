"""The replay of a recording in virtual time: arrivals and departures, the scheduling queue, and a descheduler.

The real clock is used only for the duration of the replay: the same recording, policies and settings give
the same result.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, Final

from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.trace import DEVICE, KINDS, ClusterRecording, Stay, TraceNode
from koordpolicy.engine.comparison.evictions import proving_of
from koordpolicy.engine.descheduler.config import DeschedulerConfiguration
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, build_profiles
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.verdicts import EvictionProof
from koordpolicy.engine.descheduler.results import EvictionOutcome
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.queue.scheduling_queue import LONGEST_WAIT
from koordpolicy.engine.scheduler.trace_profile import trace_settings
from koordpolicy.engine.scheduler.verdict.verdict import Failure, Verdict

from .figures import SECOND, Amounts, NeverRan, RecordedEviction, RecordingResult, Step, StoppedEviction, Waits

_FOREVER: Final = 2**62
"""No pod is retried because of elapsed time alone: every change is reported to the queue."""
_NAMESPACE: Final = "default"
_QOS_LABEL: Final = "koordinator.sh/qosClass"
_QOS_CLASSES: Final = frozenset({"LSE", "LSR", "LS", "BE"})


class Leave(Enum):
    """The rule by which a pod leaves."""

    RECORDED = "recorded"
    """At its recorded deletion, running or not."""
    AFTER_RUN = "after-run"
    """After it has run for its recorded lifetime; an evicted pod runs for the rest later."""


@dataclass(frozen=True, slots=True)
class Descheduling:
    """The descheduler of a replay: its events, and the seconds between two of its cycles."""

    configuration: DeschedulerConfiguration
    interval_s: int


class _Kind(IntEnum):
    """Kinds of events, in the order in which they happen at one time."""

    LEAVE = 0
    ARRIVE = 1
    DESCHEDULE = 2


def thinned(nodes: Iterable[TraceNode], share: float) -> tuple[TraceNode, ...]:
    """Return a share of a cluster, 0 to 1: of each kind of nodes that share, rounded up, the first by name."""
    kinds: dict[tuple[object, ...], list[TraceNode]] = {}
    for node in sorted(nodes, key=lambda each: each.name):
        kinds.setdefault((node.cpu_milli, node.memory_mib, node.gpus, node.model), []).append(node)
    chosen = (each for kind in kinds.values() for each in kind[: math.ceil(len(kind) * share)])
    return tuple(sorted(chosen, key=lambda each: each.name))


def stretched(recording: ClusterRecording, factor: float) -> ClusterRecording:
    """Return the recording with the lifetimes of pods multiplied by `factor`."""
    if factor == 1:
        return recording
    stays = (replace(stay, deleted=stay.created + round((stay.deleted - stay.created) * factor))
             for stay in recording.stays)
    return replace(recording, stays=tuple(stays))


def replay(
    recording: ClusterRecording, live: Live, settings: Settings | None = None, *, leave: Leave = Leave.RECORDED,
    descheduling: Descheduling | None = None, clock: Callable[[], float],
    progress: Callable[[int], None] | None = None,
) -> RecordingResult:
    """Replay a recording under the plugins of a registry and return the result.

    An unschedulable pod waits in the scheduling queue; a departure or eviction retries the pods that it may help. An
    evicted pod returns to the queue. Evictions of the descheduler are proved by the profiles of `settings`, with the
    effects that plugins and documents declare. `clock` returns seconds, for the duration; `progress` is called with the
    number of arrived pods.

    Raises:
        PolicyError: a plugin cannot be instantiated, or the nodes are malformed.
    """
    return _Replay(recording, live, settings, leave, descheduling, progress=progress).run(clock)


@dataclass(slots=True)
class _Pod:
    """A pod of the recording, and its state in the replay; times in nanoseconds."""

    stay: Stay
    node: str = ""
    ran: int | None = None
    """The time of its first placement."""
    stays: int = 0
    """The number of placements and evictions; departures scheduled before the last one are void."""
    evicted: int | None = None
    """The index of the eviction that it returns from."""
    left: bool = False
    until: int = 0
    """The time when it left."""
    since: int = 0
    """The time since which it runs."""
    rest: int = 0
    """The remaining run time, if it leaves after its run."""
    reasons: Mapping[str, int] | None = None
    """The reason why its first scheduling attempt failed."""


class _Replay:
    def __init__(
        self, recording: ClusterRecording, live: Live, settings: Settings | None, leave: Leave,
        descheduling: Descheduling | None, *, progress: Callable[[int], None] | None,
    ) -> None:
        self._leave, self._descheduling, self._progress = leave, descheduling, progress
        self._pods = {
            f"{_NAMESPACE}/{stay.pod.name}": _Pod(stay, rest=(stay.deleted - stay.created) * SECOND)
            for stay in recording.stays
        }
        self._events: list[tuple[int, _Kind, int, str, int]] = []
        """Time, kind, a number that preserves the order, the pod, and its `stays` at that time."""
        self._number = 0
        self._now = self._changed = 0
        self._cpu = self._memory = self._gpu = 0
        self._running = self._arrived = self._gone = self._cycles = self._decisions = 0
        self._ahead = 0
        """The number of arrivals and departures to come."""
        self._steps: list[Step] = []
        self._evictions: list[RecordedEviction] = []
        self._useless: dict[tuple[str, int, str, str], StoppedEviction] = {}
        """By pod, its `stays`, plugin and rule."""
        self._errors: dict[tuple[str, str, str], Failure] = {}
        self._descheduler_errors: dict[str, None] = {}
        self._capacity = Amounts(
            sum(node.cpu_milli for node in recording.nodes), sum(node.memory_mib for node in recording.nodes),
            DEVICE * sum(node.gpus for node in recording.nodes),
        )
        self._cluster = Cluster((node.object() for node in recording.nodes), kinds=KINDS)
        self._live, self._settings = live, settings or trace_settings(live.registry)
        self._loop = SchedulingLoop(self._cluster, live, self._settings, clock=lambda: self._now, client=_Client(self),
                                    longest_wait=_FOREVER, concluded=self._conclude)
        self._profiles: Sequence[DeschedulerProfile] = ()
        if descheduling is not None:
            self._profiles = build_profiles(
                descheduling.configuration.profiles, live.registry, dry_run=True,
                snapshot=lambda: self._cluster.snapshot(self._now), memory=SourceStreaks(),
            )
        for key, pod in self._pods.items():
            self._push(pod.stay.created * SECOND, _Kind.ARRIVE, key)
        if self._events:
            self._now = self._events[0][0]
            self._push(self._now, _Kind.DESCHEDULE)

    def run(self, clock: Callable[[], float]) -> RecordingResult:
        begun = clock()
        settings = None if self._descheduling is None else self._settings
        with proving_of(self._live.registry, self._cluster, settings, lambda: self._now) as proving:
            self._replay(proving)
        self._loop.close()
        return self._result(clock() - begun)

    def _replay(self, proving: Proving | None) -> None:
        while (moment := self._next()) is not None:
            self._now = moment
            happening = []
            # Departures of the same time follow the decisions, so that a pod without a duration has run.
            while self._events and self._events[0][0] <= moment:
                happening.append(heapq.heappop(self._events))
            for _, kind, _, key, stays in happening:
                self._ahead -= kind is not _Kind.DESCHEDULE
                if kind is _Kind.ARRIVE:
                    self._arrive(key)
                elif kind is _Kind.LEAVE:
                    self._depart(key, stays)
                else:
                    self._deschedule(proving)
            for verdict in self._loop.schedule_all():
                if not verdict.waiting:
                    self._conclude(verdict)
            self._step()

    def _next(self) -> int | None:
        """Return the time of the next event; None at the end."""
        retry = self._loop.next_time()
        if self._ahead:
            first = self._events[0][0]
            return first if retry is None else min(first, retry)
        # There are no more arrivals and departures, and all pending pods were tried in this state before.
        if retry is not None and self._waiting() and retry <= self._changed + LONGEST_WAIT:
            return retry
        return None

    def _waiting(self) -> int:
        return self._arrived - self._running - self._gone

    def _push(self, time: int, kind: _Kind, key: str = "", stays: int = 0) -> None:
        self._number += 1
        self._ahead += kind is not _Kind.DESCHEDULE
        heapq.heappush(self._events, (time, kind, self._number, key, stays))

    # Events

    def _arrive(self, key: str) -> None:
        pod = self._pods[key]
        self._arrived += 1
        self._cluster.upsert(self._object(pod))
        if self._leave is Leave.RECORDED:
            self._push(pod.stay.deleted * SECOND, _Kind.LEAVE, key, -1)
        if self._progress is not None:
            self._progress(self._arrived)

    def _depart(self, key: str, stays: int) -> None:
        pod = self._pods[key]
        if stays not in (-1, pod.stays):
            return
        if pod.node:
            self._take(pod, -1)
        pod.left, pod.until, pod.node = True, self._now, ""
        self._gone += 1
        self._changed = self._now
        self._cluster.delete("Pod", key)

    def _conclude(self, verdict: Verdict) -> None:
        pod = self._pods[verdict.pod.key]
        self._decisions += 1
        for failure in verdict.errors():
            self._errors.setdefault((failure.plugin, failure.point.value, failure.message), failure)
        if verdict.node is None:
            if pod.reasons is None:
                pod.reasons = verdict.reasons()
            return
        if pod.left:  # while it waited for a permit
            return
        pod.node, pod.since = verdict.node, self._now
        pod.stays += 1
        if pod.ran is None:
            pod.ran = self._now
        self._changed = self._now
        self._take(pod, 1)
        self._cluster.upsert(self._object(pod))
        if pod.evicted is not None:
            before = self._evictions[pod.evicted]
            again = self._now / SECOND - before.time
            self._evictions[pod.evicted] = replace(before, again=round(again, 9))
            pod.evicted = None
        if self._leave is Leave.AFTER_RUN:
            self._push(self._now + pod.rest, _Kind.LEAVE, verdict.pod.key, pod.stays)

    def evict(self, key: str, plugin: str, rule: str, reason: str, proof: EvictionProof | None = None) -> None:
        """Send a pod back to the queue."""
        pod = self._pods[key]
        if not pod.node:
            return
        self._take(pod, -1)
        pod.evicted = len(self._evictions)
        self._evictions.append(
            RecordedEviction(self._now / SECOND, pod.stay.pod.name, pod.node, plugin, rule, reason, None, proof),
        )
        pod.node = ""
        pod.rest -= self._now - pod.since
        pod.stays += 1
        self._changed = self._now
        self._cluster.delete("Pod", key)
        self._cluster.upsert(self._object(pod))

    def _deschedule(self, proving: Proving | None) -> None:
        if self._descheduling is None:
            return
        configuration = self._descheduling.configuration
        self._cycles += 1
        result = run_cycle(self._profiles, self._cluster.snapshot(self._now), limits=configuration.limits, dry_run=True,
                           node_selector=configuration.node_selector, proving=proving,
                           interval=self._descheduling.interval_s * SECOND)
        errors = [f"`{failure.plugin}`: {failure.message}" for failure in result.failures]
        self._descheduler_errors.update(dict.fromkeys([*errors, *filter(None, [result.error])]))
        for pod, _, decision in result.evicted:
            self.evict(pod, decision.plugin, decision.rule, decision.reason, decision.proof)
        # Two profiles may have the same plugin.
        for each in {(each.pod, each.decision.plugin, each.decision.rule): each for each in result.useless}.values():
            self._note_useless(each)
        self._push(self._now + self._descheduling.interval_s * SECOND, _Kind.DESCHEDULE)

    def _note_useless(self, outcome: EvictionOutcome) -> None:
        """Count an eviction that its proof stopped."""
        decision = outcome.decision
        assert decision.proof is not None
        pod = self._pods[outcome.pod]
        key = (outcome.pod, pod.stays, decision.plugin, decision.rule)
        if (known := self._useless.get(key)) is not None:
            self._useless[key] = replace(known, cycles=known.cycles + 1)
            return
        self._useless[key] = StoppedEviction(
            self._now / SECOND, pod.stay.pod.name, outcome.node, decision.plugin, decision.rule, decision.proof)

    # State

    def _take(self, pod: _Pod, sign: int) -> None:
        spec = pod.stay.pod
        self._cpu += sign * spec.cpu_milli
        self._memory += sign * spec.memory_mib
        self._gpu += sign * spec.gpu_total
        self._running += sign

    def _step(self) -> None:
        used = Amounts(self._cpu, self._memory, self._gpu)
        step = Step(self._now, used, self._running, self._waiting())
        if self._steps and self._steps[-1].time == self._now:
            self._steps[-1] = step
        elif not self._steps or (self._steps[-1].used, self._steps[-1].running, self._steps[-1].pending) != (
            step.used, step.running, step.pending,
        ):
            self._steps.append(step)

    def _object(self, pod: _Pod) -> dict[str, Any]:
        """Return the pod as the API server would serve it now."""
        item = pod.stay.pod.object(_NAMESPACE)
        metadata, created = item["metadata"], pod.stay.created * SECOND
        if pod.stay.qos in _QOS_CLASSES:
            metadata["labels"] = {_QOS_LABEL: pod.stay.qos}
        if evictions := pod.stays // 2:
            # A returning pod is a new pod of the same name, as from a StatefulSet.
            metadata["uid"] = f"{metadata['uid']}-{evictions}"
        # A returning pod has an owner; descheduler filters protect pods without one.
        metadata["ownerReferences"] = [_owner(pod.stay.pod.name)]
        metadata["creationTimestamp"] = str(Timestamp(created))
        if pod.node:
            item["spec"]["nodeName"] = pod.node
            item["status"] = {"phase": "Running", "startTime": str(Timestamp(self._now))}
        else:
            item["status"] = {"phase": "Pending"}
        return item

    def _result(self, seconds: float) -> RecordingResult:
        pods = list(self._pods.values())
        first = [(pod.ran, pod.ran - pod.stay.created * SECOND) for pod in pods if pod.ran is not None]
        never = [
            NeverRan(pod.stay.pod.name, ((pod.until if pod.left else self._now) - pod.stay.created * SECOND) / SECOND,
                     pod.left, pod.reasons or {})
            for pod in pods if pod.ran is None
        ]
        again = [round(each.again * SECOND) for each in self._evictions if each.again is not None]
        waits = Waits.of([wait for _, wait in first])
        return RecordingResult(
            self._capacity, len(pods), waits, Waits.of(again), tuple(never), tuple(self._evictions),
            self._cycles, self._steps, self._now, tuple(self._errors.values()), tuple(self._descheduler_errors),
            self._decisions, seconds, first, tuple(self._useless.values()),
        )


def _owner(name: str) -> dict[str, object]:
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"owner-of-{name}", "controller": True}


class _Client:
    """Writes into the replay's cluster, and requeues evicted pods (implements `framework.handle.Client`)."""

    simulated = True

    def __init__(self, owner: _Replay) -> None:
        self._owner = owner

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Leave objects unchanged: they are created again from the recording whenever they change."""

    def bind(self, pod: PodInfo, node: str) -> None:
        """Do nothing: the pod is already assumed on the node."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Send the pod back to the queue."""
        self._owner.evict(pod.key, "preemption", "", reason)

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Send the pod back to the queue."""
        self.evict(pod, f"preempted by {preemptor.key} on {node}")
