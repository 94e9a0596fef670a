"""Recorders of metrics: they receive durations and results while pods are scheduled.

Without a recorder the scheduler measures nothing. With one, a pod costs a dozen readings of the clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import Deferred, QueuedPod, Skip, Wait

from ..profiles.profile import Profile
from ..verdict.verdict import PodRejection, Verdict

SUCCESS: Final = "Success"
ERROR: Final = "Error"
UNSCHEDULABLE: Final = "Unschedulable"
WAIT: Final = "Wait"
POINT_NAMES: Final[Mapping[Point, str]] = {point: f"{point.value[0].upper()}{point.value[1:]}" for point in Point}
"""The extension points by kube-scheduler's names."""
UNRESERVE: Final = "Unreserve"

# The events that add a pod to a part of the queue, beside those of the cluster (`event_label`), as kube-scheduler
# calls them.
FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
FORCE_ACTIVATE: Final = "ForceActivate"
UNSCHEDULABLE_TIMEOUT: Final = "UnschedulableTimeout"
POD_ADD: Final = "UnschedulablePodAdd"

_STATUS: Final = {Code.UNSCHEDULABLE: UNSCHEDULABLE, Code.UNRESOLVABLE: Code.UNRESOLVABLE.value, Code.ERROR: ERROR}


class MetricsRecorder(Protocol):
    """Receives measurements. `plugin_ended` may be called in any thread, the others in the one that owns the cluster.

    Durations are in seconds; statuses are the names of kube-scheduler's codes.
    """

    def samples_plugins(self) -> bool:
        """Return whether `plugin_ended` shall be called in the attempt that begins."""
        ...

    def plugin_ended(self, plugin: str, point: Point, status: str, seconds: float) -> None:
        """Note one call of a plugin."""
        ...

    @property
    def point_ended(self) -> Callable[[float, str, str, str], None]:
        """Notes the seconds of an extension point of one attempt, with its name, status and profile."""
        ...

    def decided(self, profile: Profile, verdict: Verdict, seconds: float, skipped: frozenset[str]) -> None:
        """Note a decision of a profile, from the preFilters to the scores.

        `skipped` are the plugins that preFilter skipped.
        """
        ...

    def preempted(self, victims: int | None) -> None:
        """Note an attempt to preempt, and the number of its victims; None if preemption does not help."""
        ...

    def permit_ended(self, status: str, seconds: float) -> None:
        """Note the end of the time for which permits held a pod."""
        ...

    def attempt_began(self, queued: QueuedPod) -> None:
        """Note that a pod left the queue for an attempt."""
        ...

    def attempt_ended(self, queued: QueuedPod, verdict: Verdict, began: int) -> None:
        """Note the result of an attempt, its binding included. `began` is its start on the loop's clock."""
        ...

    def event_handled(self, event: Event, seconds: float) -> None:
        """Note that the queue has handled an event of the cluster."""
        ...

    def hint_ended(self, plugin: str, event: Event, result: str, seconds: float) -> None:
        """Note the call of a plugin's requeue hint: Queue, QueueSkip or Error."""
        ...

    def queued(self, key: str, part: str, event: str) -> None:
        """Note that a pod was added to a part of the queue: active, backoff, unschedulable or gated."""
        ...

    def removed(self, key: str) -> None:
        """Note that a pod left the queue without an attempt."""
        ...


class PointTimer:
    """Measures the extension points of one attempt, one after the other."""

    __slots__ = ("_begun", "_name", "_observe", "_profile", "_recorder", "_since", "plugins")

    def __init__(self, recorder: MetricsRecorder, profile: Profile) -> None:
        """Begin the first point."""
        self._recorder = recorder
        self._profile = profile
        self._name = profile.name
        self._observe = recorder.point_ended
        self.plugins = PluginTimer(recorder) if recorder.samples_plugins() else None
        """The recorder of plugin calls; None if this attempt is not sampled."""
        self._begun = self._since = perf_counter()

    def begin(self) -> None:
        """Begin a point some time after the one before ended."""
        self._since = perf_counter()

    def end(self, point: str, rejection: PodRejection | None = None, status: str = SUCCESS) -> None:
        """End a point, and begin the next one; a rejection overrules the status."""
        now = perf_counter()
        shown = status if rejection is None else status_of(rejection[2])
        self._observe(now - self._since, point, shown, self._name)
        self._since = now

    def decided(self, verdict: Verdict, skipped: set[str]) -> None:
        """Report the decision."""
        self._recorder.decided(self._profile, verdict, perf_counter() - self._begun, frozenset(skipped))

    def preempted(self, victims: int | None) -> None:
        """Report an attempt to preempt."""
        self._recorder.preempted(victims)

    def permit_ended(self, rejection: PodRejection | None) -> None:
        """Report that permits hold the pod no longer. They held it since the end of the last point."""
        self._recorder.permit_ended(
            SUCCESS if rejection is None else status_of(rejection[2]), perf_counter() - self._since)


class PluginTimer:
    """Measures the calls of plugins of one attempt."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: MetricsRecorder) -> None:
        self._recorder = recorder

    def measured(self, plugin: str, point: Point, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is measured; it may be made in any thread."""
        recorder = self._recorder

        def timed(*arguments: Any) -> Any:
            begun = perf_counter()
            try:
                answer = call(*arguments)
            except BaseException:
                recorder.plugin_ended(plugin, point, ERROR, perf_counter() - begun)
                raise
            if not isinstance(answer, Deferred):  # its call is measured
                recorder.plugin_ended(plugin, point, status_of(answer), perf_counter() - begun)
            return answer

        return timed

    def measured_async(
        self, plugin: str, point: Point, call: Callable[[], Awaitable[Any]],
    ) -> Callable[[], Awaitable[Any]]:
        """Return an asynchronous call that is measured."""
        recorder = self._recorder

        async def timed() -> Any:
            begun = perf_counter()
            try:
                answer = await call()
            except BaseException:
                recorder.plugin_ended(plugin, point, ERROR, perf_counter() - begun)
                raise
            recorder.plugin_ended(plugin, point, status_of(answer), perf_counter() - begun)
            return answer

        return timed


def status_of(answer: object) -> str:
    """Return the status of a plugin's answer."""
    if isinstance(answer, Refusal):
        return _STATUS[answer.code]
    return "Skip" if isinstance(answer, Skip) else WAIT if isinstance(answer, Wait) else SUCCESS


def event_label(event: Event) -> str:
    """Return kube-scheduler's name of an event: `NodeAdd`, `NodeUpdateNodeTaint`, `AssignedPodDelete`."""
    if event.kind == "Pod":
        was, now = event.old_pod, event.new_pod
        had_node, has_node = was is not None and bool(was.node_name), now is not None and bool(now.node_name)
        kind = "AssignedPod" if had_node or has_node else "UnschedulablePod"
        if now is None or (had_node and not has_node):
            return f"{kind}Delete"
        return f"{kind}Add" if was is None or has_node is not had_node else f"{kind}Update"
    if event.old is None or event.new is None:
        return f"{event.kind}{'Add' if event.old is None else 'Delete'}"
    if event.kind != "Node":
        return f"{event.kind}Update"
    for part, path in _NODE_PARTS.items():
        if _at(event.old, path) != _at(event.new, path):
            return f"NodeUpdateNode{part}"
    return "NodeUpdate"


_NODE_PARTS: Final = {
    "Allocatable": ("status", "allocatable"), "Label": ("metadata", "labels"), "Taint": ("spec", "taints"),
    "Condition": ("status", "conditions"), "Annotation": ("metadata", "annotations"),
}


def _at(item: Mapping[str, Any], path: tuple[str, str]) -> Any:
    below = item.get(path[0])
    return below.get(path[1]) if isinstance(below, Mapping) else None
