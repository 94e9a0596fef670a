"""The replay of a flight recording under other policies, in virtual time.

Two clusters go through the recorded time side by side. One is the recorded cluster: every change, and the recorded
bindings. In the other one the policies of the replay decide: changes that the recorded cluster made by itself (nodes,
metrics, arriving and ending pods, pods that others bound) are applied as recorded, pods that the recorded scheduler
was responsible for are placed anew. Each recorded scheduling cycle is one cycle of the replay, at the same time, so
that the policies that decided then decide the same; further pods are scheduled whenever the recorded scheduler was
idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.kubernetes.vocabulary import (
    DEVICE_ALLOCATED_ANNOTATION,
    RESERVATION_ALLOCATED_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
)
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.reservations import is_reserve_pod
from koordpolicy.engine.scheduler.verdict.verdict import Failure, Verdict
from koordpolicy.engine.source import PolicyError, Problem

from .figures import Eviction, Meter, PodOutcome, RecordedReplay
from .recorded_state import Resync, Step, disruption_of, key_of, uid_of
from .recording import FlightRecording, Overview
from .records import Changed, Concluded, Decided, Idle, Touched

_SECOND: Final = 1_000_000_000
_LATE: Final = _SECOND
"""A pod whose back-off ended longer ago than this is scheduled, though no recorded cycle follows: the recorded
scheduler was idle. Below it a recorded cycle may be the one that the back-off led to."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_RESULTS: Final = frozenset({
    DEVICE_ALLOCATED_ANNOTATION, RESERVATION_ALLOCATED_ANNOTATION, RESOURCE_STATUS_ANNOTATION,
})
"""Annotations in which a scheduler writes what it allocated on the node."""
_MOST_PROBLEMS: Final = 20
_MOST_EXPIRY_S: Final = 1_000_000_000

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Pod:
    """A pod of the recording that the replay is responsible for."""

    key: str
    uid: str
    """The UID, or the key of a pod without one."""
    arrived: int
    item: Json
    """The recorded object."""
    outcome: PodOutcome
    node: str = ""
    """The node in the replay."""
    patches: dict[str, str] = field(default_factory=dict)
    """The annotations that the replay's plugins wrote."""
    evictions: int = 0
    returns: int | None = None
    """The index of the eviction that it returns from."""


def replay(
    recording: FlightRecording, overview: Overview, live: Live, settings: Settings, *, clock: Callable[[], float],
    points: int = 60, progress: Callable[[int], None] | None = None,
) -> RecordedReplay:
    """Replay a recording under the plugins of a registry and return the result.

    `overview` is that of the recording; `points` is the number of spans of the series. `clock` returns seconds, for
    the duration; `progress` is called with the number of recorded cycles that are done.

    Raises:
        PolicyError: a plugin cannot be instantiated.
    """
    return _Replay(recording, overview, live, settings, points=points, progress=progress).run(clock)


class _Replay:
    def __init__(
        self, recording: FlightRecording, overview: Overview, live: Live, settings: Settings, *,
        points: int, progress: Callable[[int], None] | None,
    ) -> None:
        self._recording, self._overview, self._live, self._settings = recording, overview, live, settings
        self._progress = progress
        self._names = {spec.name for spec in settings.profiles}
        self._now = overview.start
        self._idle = False
        first = overview.first
        kinds = None if first.kinds is None else frozenset(first.kinds)
        expiry = min(max(first.metric_expiry, 0), _MOST_EXPIRY_S)
        self._recorded = Cluster(kinds=kinds, metric_expiry_seconds=expiry)
        self._cluster = Cluster(kinds=kinds, metric_expiry_seconds=expiry)
        self._pods: dict[str, _Pod] = {}
        """The pods that the replay is responsible for and that exist, by key."""
        self._outcomes: dict[int, PodOutcome] = {}
        """By identity, in the order of arrival."""
        self._evictions: list[Eviction] = []
        self._recorded_evictions: list[Eviction] = []
        self._evicted: set[str] = set()
        """The UIDs of pods whose recorded eviction is counted."""
        self._errors: dict[tuple[str, str, str], Failure] = {}
        self._problems: dict[str, None] = {}
        self._problems_left_out = 0
        self._decisions = self._cycles = 0
        self._before, self._after = (
            Meter(cluster, lambda: self._now, overview.start, overview.end, points)
            for cluster in (self._recorded, self._cluster))
        self._loop: SchedulingLoop | None = None

    def run(self, clock: Callable[[], float]) -> RecordedReplay:
        begun = clock()
        for step in self._recording.steps():
            self._wake_until(step.time)
            self._now = max(self._now, step.time)
            self._take(step)
        self._wake_until(self._overview.end)
        self._now = max(self._now, self._overview.end)
        if self._loop is not None:
            self._loop.close()
        for meter in (self._before, self._after):
            meter.finish()
        overview = self._overview
        return RecordedReplay(
            overview.start, overview.end, overview.segments, tuple(overview.gaps), tuple(overview.notes),
            tuple(self._outcomes.values()), sum(not pod.node for pod in self._pods.values()),
            tuple(self._recorded_evictions), tuple(self._evictions), self._before.mean(), self._after.mean(),
            self._before.spans(), self._after.spans(), tuple(self._errors.values()), tuple(self._problems),
            self._problems_left_out, overview.decisions, self._decisions, clock() - begun,
        )

    # The recording

    def _take(self, step: Step) -> None:
        match step:
            case Resync():
                self._resync(step)
            case Changed():
                self._idle = self._idle and step.own
                self._change(step)
            case Touched():
                self._idle = self._idle and step.own
                known = self._recorded.object(step.kind, step.key)
                if known is not None:
                    self._change(Changed(step.time, step.kind, step.key, known, step.own))
            case Decided():
                self._idle = False
                self._decided(step)
            case Concluded():
                self._concluded(step)
            case Idle():
                self._drain()
                self._idle = True
            case _:
                pass

    def _resync(self, step: Resync) -> None:
        """Apply the differences between what was known and all objects at a time."""
        before = {(kind, key) for kind, objects in self._recorded.all_objects().items()
                  for key in (key_of(each) for each in objects)}
        usable = [each for each in step.objects if isinstance(each.object, dict) and key_of(each.object)]
        nodes = [each.object for each in usable if each.object.get("kind") == "Node"]
        if self._loop is None:  # many nodes are added at once, as each renumbers the rows
            for cluster in (self._recorded, self._cluster):
                self._report(cluster.upsert_all(nodes))
        for each in sorted(usable, key=lambda each: _rank(each.object)):
            kind, key = str(each.object.get("kind")), key_of(each.object)
            before.discard((kind, key))
            if self._recorded.object(kind, key) != each.object:
                self._change(Changed(step.time, kind, key, each.object), assumed=each.node)
            elif each.node:
                self._assume(key, each.node)
        for kind, key in sorted(before):
            self._change(Changed(step.time, kind, key, None))
        if self._loop is None:
            self._loop = SchedulingLoop(
                self._cluster, self._live, self._settings, clock=lambda: self._now, client=_Client(self),
                concluded=self._conclude,
            )
        self._idle = False

    def _change(self, step: Changed, *, assumed: str = "") -> None:
        if step.object is None:
            self._recorded.delete(step.kind, step.key)
            if not step.own:
                self._delete(step.kind, step.key)
            return
        item = step.object
        if not isinstance(item, dict) or (item.get("kind"), key_of(item)) != (step.kind, step.key):
            self._report([Problem(f"{step.kind} `{step.key}`: the recorded object is no {step.kind}")])
            return
        known = self._recorded.object("Pod", step.key) if step.kind == "Pod" else None
        if not self._apply(self._recorded, step.object):
            return
        if assumed:
            self._assume(step.key, assumed)
        if step.own:
            return
        if step.kind != "Pod":
            self._apply(self._cluster, step.object)
            return
        if known is not None and uid_of(known) != uid_of(step.object):
            self._delete("Pod", step.key)  # another pod of that name
        self._note_eviction(step.object)
        self._change_pod(step.key, step.object, assumed)

    def _change_pod(self, key: str, item: Json, assumed: str) -> None:
        pod = self._pods.get(key)
        if pod is None:
            node = assumed or str((item.get("spec") or {}).get("nodeName") or "")
            if self._cluster.object("Pod", key) is not None or node or not self._is_ours(key, item):
                # Bound by others, or before the recording began, or of another scheduler.
                self._apply(self._cluster, _on(item, node))
                return
            pod = self._pods[key] = _Pod(key, uid_of(item) or key, self._now, item, PodOutcome(
                key, uid_of(item) or key, self._now))
            self._outcomes[id(pod.outcome)] = pod.outcome
        pod.item = item
        if pod.outcome.recorded is None and (node := str((item.get("spec") or {}).get("nodeName") or "")):
            if pod.uid not in self._overview.decided and not pod.node:
                # Bound by others: the recording is that of a replica that did not lead, or its decision was dropped.
                del self._pods[key]
                del self._outcomes[id(pod.outcome)]
                self._apply(self._cluster, item)
                return
            pod.outcome.recorded = (node, self._now)
        if (item.get("status") or {}).get("phase") in _FINISHED:
            pod.outcome.ended = pod.outcome.ended or self._now
        self._apply(self._cluster, self._object(pod))

    def _delete(self, kind: str, key: str) -> None:
        if kind == "Pod":
            pod = self._pods.pop(key, None)
            if pod is not None:
                pod.outcome.ended = pod.outcome.ended or self._now
        self._cluster.delete(kind, key)
        if kind == "Node":
            self._lose_node(key)

    def _lose_node(self, name: str) -> None:
        """Return pods to the queue whose node in the replay is gone, but not that of the recording."""
        for pod in list(self._pods.values()):
            if pod.node == name and (pod.outcome.recorded is None or pod.outcome.recorded[0] != name):
                self.evict(pod.key, "", f"the node {name} was deleted")

    def _decided(self, step: Decided) -> None:
        pod = self._pods.get(step.pod)
        if step.node is not None:
            self._assume(step.pod, step.node)
        elif pod is not None and pod.outcome.recorded_reasons is None:
            pod.outcome.recorded_reasons = {reason: nodes for _, _, reason, nodes in step.reasons}
        for key, uid in step.victims:
            if (uid or key) not in self._evicted:
                self._evicted.add(uid or key)
                self._recorded_evictions.append(Eviction(step.time, key, step.nominated, "preemption", (
                    f"preempted by {step.pod} on {step.nominated}")))
        assert self._loop is not None
        verdict = self._loop.schedule_one()
        if verdict is not None and not verdict.waiting:
            self._conclude(verdict)
        self._cycles += 1
        if self._progress is not None:
            self._progress(self._cycles)

    def _concluded(self, step: Concluded) -> None:
        if step.node is not None:
            return
        known = self._recorded.pod(step.pod)
        if known is None or (known.object.get("spec") or {}).get("nodeName"):
            return
        self._recorded.forget(step.pod)
        pod = self._pods.get(step.pod)
        if pod is not None:
            pod.outcome.recorded = None  # its binding failed
        elif self._cluster.object("Pod", step.pod) is not None:
            # Bound before the recording began, as it seemed: now the replay places it.
            self._cluster.delete("Pod", step.pod)
            self._change_pod(step.pod, known.object, "")

    def _assume(self, key: str, node: str) -> None:
        """Bind a pod in the recorded cluster."""
        pod = self._recorded.pod(key)
        if pod is not None and not pod.node_name and node in self._recorded.index:
            self._recorded.assume(pod, node)
        ours = self._pods.get(key)
        if ours is not None and ours.outcome.recorded is None:
            ours.outcome.recorded = (node, self._now)

    def _is_ours(self, key: str, item: Json) -> bool:
        if (item.get("status") or {}).get("phase") in _FINISHED:
            return False
        if (uid_of(item) or key) in self._overview.decided or self._settings.foreign_pods:
            return True
        return str((item.get("spec") or {}).get("schedulerName") or _DEFAULT_SCHEDULER) in self._names

    def _note_eviction(self, item: Json) -> None:
        uid = uid_of(item)
        if not uid or uid in self._evicted:
            return
        if (condition := disruption_of(item)) is not None:
            self._evicted.add(uid)
            known = self._recorded.pod(key_of(item))
            self._recorded_evictions.append(Eviction(
                self._now, key_of(item), "" if known is None else known.node_name,
                str(condition.get("reason") or ""), str(condition.get("message") or "")))

    # The replay

    def _wake_until(self, time: int) -> None:
        """Schedule pods whose back-off ended in a time in which the recorded scheduler was idle."""
        loop = self._loop
        while self._idle and loop is not None and (due := loop.next_time()) is not None and due + _LATE < time:
            self._now = max(self._now, due)
            before = self._decisions
            self._drain()
            if self._decisions == before and loop.next_time() == due:
                return

    def _drain(self) -> None:
        assert self._loop is not None
        for verdict in self._loop.schedule_all():
            if not verdict.waiting:
                self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> None:
        self._decisions += 1
        for failure in verdict.errors():
            self._errors.setdefault((failure.plugin, failure.point.value, failure.message), failure)
        pod = self._pods.get(verdict.pod.key)
        if pod is None or is_reserve_pod(verdict.pod):
            return
        outcome = pod.outcome
        if verdict.node is None:
            if outcome.reasons is None:
                outcome.reasons = verdict.reasons()
            return
        pod.node = verdict.node
        if outcome.replayed is None:
            outcome.replayed = (verdict.node, self._now)
        if pod.returns is not None:
            self._evictions[pod.returns].again = self._now
            pod.returns = None

    def evict(self, key: str, by: str, reason: str) -> None:
        """Remove a pod from its node in the replay; one that a controller owns returns to the queue."""
        known = self._cluster.pod(key)
        if known is None:
            return
        pod = self._pods.get(key)
        self._evictions.append(Eviction(self._now, key, known.node_name, by, reason))
        self._cluster.delete("Pod", key)
        if pod is None:
            return
        pod.node = ""
        pod.patches.clear()
        owners = (pod.item.get("metadata") or {}).get("ownerReferences") or ()
        if any(isinstance(owner, dict) and owner.get("controller") for owner in owners):
            pod.evictions += 1
            pod.returns = len(self._evictions) - 1
            self._apply(self._cluster, self._object(pod))

    def preempt(self, pod: PodInfo, reason: str) -> None:
        """Evict a victim, unless the recorded cluster did the same: then it ends when it ended there."""
        if not self._ends_by_itself(pod):
            self.evict(pod.key, "preemption", reason)
            return
        metadata = pod.object.get("metadata") or {}
        if metadata.get("deletionTimestamp"):
            return
        self._evictions.append(Eviction(self._now, pod.key, pod.node_name, "preemption", reason))
        known = self._cluster.object("Pod", pod.key)
        if known is not None:
            marked = {**known["metadata"], "deletionTimestamp": rfc3339(self._now)}
            self._apply(self._cluster, {**known, "metadata": marked})

    def _ends_by_itself(self, pod: PodInfo) -> bool:
        """Return whether the recording shows how this victim of the recorded scheduler ends."""
        if (pod.uid or pod.key) not in self._overview.victims or pod.key in self._overview.own_deletions:
            return False
        known = self._recorded.object("Pod", pod.key)
        return known is not None and uid_of(known) == pod.uid

    def patch(self, original: Json, modified: Json) -> Json:
        """Write an object into the cluster of the replay."""
        if original == modified:
            return modified
        metadata = modified.get("metadata") or {}
        pod = self._pods.get(key_of(modified)) if modified.get("kind") == "Pod" else None
        if pod is not None:
            before = (original.get("metadata") or {}).get("annotations") or {}
            after = metadata.get("annotations") or {}
            pod.patches.update({name: text for name, text in after.items() if before.get(name) != text})
        self._apply(self._cluster, modified)
        return modified

    def delete(self, item: Json) -> None:
        """Remove an object from the cluster of the replay."""
        self._cluster.delete(str(item["kind"]), key_of(item))

    def _object(self, pod: _Pod) -> Json:
        """Return the recorded pod as the replay's cluster has it."""
        item = _on(pod.item, pod.node)
        metadata, status = dict(item["metadata"]), dict(item.get("status") or {})
        if pod.evictions:
            # A returning pod is a new pod of the same name, as from a StatefulSet.
            metadata["uid"] = f"{pod.uid}-{pod.evictions}"
        annotations = metadata.get("annotations")
        if pod.patches or (annotations and not _RESULTS.isdisjoint(annotations)):
            metadata["annotations"] = {name: text for name, text in (annotations or {}).items()
                                       if name not in _RESULTS} | pod.patches
        if not pod.node and status.get("phase") not in _FINISHED:
            status["phase"] = "Pending"
        status.pop("nominatedNodeName", None)
        known = self._cluster.pod(pod.key)
        loop = self._loop
        nominated = None if known is None or loop is None else loop.scheduler.nominations.recorded_node_of(known)
        if nominated and not pod.node:
            status["nominatedNodeName"] = nominated
        return {**item, "metadata": metadata, "status": status}

    def _apply(self, cluster: Cluster, item: Json) -> bool:
        try:
            cluster.upsert(item)
        except PolicyError as error:
            self._report(error.problems)
            return False
        return True

    def _report(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if len(self._problems) < _MOST_PROBLEMS:
                self._problems.setdefault(problem.message)
            elif problem.message not in self._problems:
                self._problems_left_out += 1


class _Client:
    """Writes into the replay's cluster (implements `framework.handle.Client`)."""

    def __init__(self, owner: _Replay) -> None:
        self._owner = owner

    def patch(self, original: Json, modified: Json) -> Json | None:
        """Replace the object, and return it."""
        return self._owner.patch(original, modified)

    def bind(self, pod: PodInfo, node: str) -> None:
        """Do nothing: the pod is already assumed on the node."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Evict the pod."""
        self._owner.evict(pod.key, "eviction", reason)

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Evict the pod in favour of another one."""
        self._owner.preempt(pod, f"preempted by {preemptor.key} on {node}")

    def delete(self, item: Json) -> None:
        """Remove an object."""
        self._owner.delete(item)


def _on(item: Json, node: str) -> dict[str, Any]:
    """Return a pod's object with this node, or with none."""
    spec = {name: value for name, value in (item.get("spec") or {}).items() if name != "nodeName"}
    if node:
        spec["nodeName"] = node
    return {**item, "spec": spec}


def _rank(item: object) -> int:
    """Return the place of an object's kind: nodes first, then all that pods refer to, then pods."""
    kind = item.get("kind") if isinstance(item, dict) else None
    return 0 if kind == "Node" else 2 if kind == "Pod" else 1
