"""Scheduling queue: pods waiting for a decision, pods waiting for an event that may help, and gated pods.

As in kube-scheduler there are an *active* heap, a *backoff* heap (a failed pod is not tried again before one
second, doubled with each attempt up to ten) and the *unschedulable* pods. The events that may help an unschedulable pod
are derived from the plugins that refused it: a document's expressions read exact paths (`Depends`), other plugins may
have a requeue hint (`Hinted`), and for those without one every event counts. No pod stays unschedulable for longer than
five minutes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.encoding import key_of, value_at
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.scheduler import QueuedPod

from ..observe.metrics_recorder import (
    BACKOFF_COMPLETE,
    FAILURE,
    FORCE_ACTIVATE,
    POD_ADD,
    UNSCHEDULABLE_TIMEOUT,
    MetricsRecorder,
    event_label,
)

SECOND: Final = 1_000_000_000
INITIAL_BACKOFF: Final = 1 * SECOND
LONGEST_BACKOFF: Final = 10 * SECOND
LONGEST_WAIT: Final = 300 * SECOND
"""kube-scheduler's podInitialBackoffSeconds, podMaxBackoffSeconds and podMaxInUnschedulablePodsDuration."""

_MOST_EVENTS: Final = 1000
"""The number of events stored for pods that are being scheduled, waiting for a permit or being bound."""

Hint: TypeAlias = Callable[[Event, PodInfo], bool]
"""Returns whether a pod is worth another attempt after an event."""


def by_priority(queued: QueuedPod) -> tuple[int, int]:
    """Sort by priority, highest first, then by time (kube-scheduler's PrioritySort)."""
    return -queued.pod.priority, queued.since


def any_change(event: Event, pod: PodInfo) -> bool:  # noqa: ARG001 - a hint is given both
    """Return true: the hint of plugins without declared dependencies."""
    return True


@dataclass(frozen=True)
class PathHint:
    """The requeue hint of a refusal that depends on paths of the variables of filters."""

    paths: frozenset[Path]
    _by_kind: Mapping[str, tuple[Path, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the kinds of objects from the paths."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.paths):
            for kind in _kinds(path):
                found.setdefault(kind, []).append(path)
        object.__setattr__(self, "_by_kind", {kind: tuple(paths) for kind, paths in found.items()})

    @property
    def timed(self) -> bool:
        """True if the result may change with time alone."""
        return any(path[0] in ("now", "metricAge") or path in _EXPIRING for path in self.paths)

    def __call__(self, event: Event, pod: PodInfo) -> bool:
        """Return whether something changed at one of the paths."""
        if event.kind == "Pod" and event.key == pod.key:
            return event.old != event.new
        paths = self._by_kind.get(event.kind)
        if paths is None:
            return False
        if event.kind == "Pod":
            return _moved(event) or any(_alters(path, event) for path in paths)
        if event.kind != "Node" or event.old is None or event.new is None:
            return True
        return any(_differs(path, event.old, event.new) for path in paths)


class _Comparable:
    """A sort key of any type: keys that cannot be compared are ordered by the names of their types."""

    __slots__ = ("_key",)

    def __init__(self, key: Any) -> None:
        self._key = key

    def __lt__(self, other: object) -> bool:
        return _before(self._key, other._key if isinstance(other, _Comparable) else other)

    def __gt__(self, other: object) -> bool:
        return _before(other._key if isinstance(other, _Comparable) else other, self._key)

    def __eq__(self, other: object) -> bool:
        return not self < other and not self > other

    __hash__ = None  # type: ignore[assignment]


def _before(one: Any, other: Any) -> bool:
    try:
        return bool(one < other)
    except BaseException as error:  # the plugin's own values
        must_be_survived(error)
        return type(one).__name__ < type(other).__name__


_POD_FACTS: Final = frozenset({"pods", "gpuFree", "gpuFreeDevices"})
_POD_FIELDS: Final[tuple[Path, ...]] = (
    ("spec",), ("metadata", "labels"), ("metadata", "annotations"), ("metadata", "deletionTimestamp"),
    ("metadata", "ownerReferences"), ("status", "phase"), ("status", "startTime"), ("status", "resources"),
    ("status", "qosClass"))
"""The fields of a pod on a node that change sums and facts of its node, its requests aside."""
_NODE_FACTS: Final[Mapping[str, Path]] = {
    "name": ("metadata", "name"), "images": ("status", "images"), "zone": ("metadata", "labels"),
    "region": ("metadata", "labels"), "unschedulable": ("spec",), "gpuTotal": ("status",), "gpuDevices": ("status",),
    "gpuModel": ("metadata", "labels"), "gpuFree": ("status",), "gpuFreeDevices": ("status",),
}
_EXPIRING: Final[frozenset[Path]] = frozenset((("nodeInfo",), ("nodeInfo", "measured")))
"""The change of a metric that expires."""


def _kinds(path: Path) -> tuple[str, ...]:
    match path[0]:
        case "node":
            return ("Node",)
        case "nodeInfo" if len(path) > 1 and path[1] in _POD_FACTS:
            return ("Node", "Pod", "Device")
        case "allocatable" | "nodeInfo" if path[0] == "allocatable" or (len(path) > 1 and path[1] in _NODE_FACTS):
            return ("Node", "Device")
        case "nodeInfo" if len(path) > 1:
            return ("Node", "NodeMetric")
        case "requested" | "nonZeroRequested" | "existingPod" | "existingPodInfo":
            return ("Node", "Pod")
        case "devices":
            return ("Node", "Pod", "Device")
        case "objects" if len(path) > 1:
            return (path[1],)
        case "usage" | "metricAge" | "nodeMetric":
            return ("Node", "NodeMetric")
        case "nodeInfo" | "estimated":
            return ("Node", "Pod", "NodeMetric", "Device")
        case _:
            return ()


def _differs(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    match path[0]:
        case "node":
            below: Path = path[1:]
        case "allocatable":
            below = ("status",)
        case "devices":
            return _differs(("allocatable",), old, new) or _differs(("nodeInfo", "gpuModel"), old, new)
        case "nodeInfo":
            below = _NODE_FACTS.get(path[1], ()) if len(path) > 1 else ()
            if not below and len(path) > 1:
                return False
        case _:
            return False  # added and deleted nodes do not count as changes of their pods or metrics
    return key_of(value_at(old, below)) != key_of(value_at(new, below))


def _moved(event: Event) -> bool:
    """Return whether a pod was added to a node, or removed from one."""
    before = "" if event.old_pod is None else event.old_pod.node_name
    after = "" if event.new_pod is None else event.new_pod.node_name
    return before != after


def _alters(path: Path, event: Event) -> bool:
    """Return whether a change of a pod that stays on its node changes the value at a path.

    A kubelet writes the status of each of its pods again and again: conditions and times change no amounts.
    """
    old, new = event.old_pod, event.new_pod
    if old is None or new is None or not new.node_name or event.old is None or event.new is None:
        return False
    if path[0] == "existingPod":
        return key_of(value_at(event.old, path[1:])) != key_of(value_at(event.new, path[1:]))
    return old.uid != new.uid or old.requests != new.requests or any(
        value_at(event.old, each) != value_at(event.new, each) for each in _POD_FIELDS)


@dataclass(frozen=True, slots=True)
class WaitingEntry:
    """A pod that waits, and where."""

    part: str
    """`active`, `backoff`, `unschedulable`, `gated`, or `permit`."""
    queued: QueuedPod
    until: int | None = None
    """The end of its backoff, in nanoseconds since the epoch; None if it does not back off."""
    plugins: tuple[str, ...] = ()
    """The plugins whose permit it waits for."""


@dataclass(slots=True)
class _Entry:
    """A pod in the queue, with its requeue hints."""

    queued: QueuedPod
    hints: tuple[Hint, ...] = ()
    """The pod's hints; empty while it backs off."""
    failed_at: int = 0
    until: int = 0
    """The time at which it is tried again, even without an event."""


class _Waiting:
    """Pods by their hints: an event is checked once per set of hints, however many pods share it."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self._groups: dict[tuple[Hint, ...], dict[str, _Entry]] = {}

    def add(self, entry: _Entry) -> None:
        key = entry.queued.pod.key
        self.entries[key] = entry
        if entry.hints:
            self._groups.setdefault(entry.hints, {})[key] = entry

    def remove(self, key: str) -> _Entry | None:
        entry = self.entries.pop(key, None)
        if entry is not None and entry.hints:
            group = self._groups[entry.hints]
            del group[key]
            if not group:
                del self._groups[entry.hints]
        return entry

    def helped(self, event: Event) -> list[_Entry]:
        """Return the pods for which the event may help."""
        found: dict[str, _Entry] = {}
        own = self.entries.get(event.key) if event.kind == "Pod" else None
        if own is not None and any(hint(event, own.queued.pod) for hint in own.hints):
            found[event.key] = own
        for hints, group in self._groups.items():
            some = next(iter(group.values())).queued.pod
            if any(hint is any_change or (isinstance(hint, PathHint) and hint(event, some)) for hint in hints):
                # Events of the pods themselves were handled before.
                found.update((key, entry) for key, entry in group.items() if entry is not own)
                continue
            others = [hint for hint in hints if not isinstance(hint, PathHint)]
            if others:
                found.update((key, entry) for key, entry in group.items()
                             if any(hint(event, entry.queued.pod) for hint in others))
        return list(found.values())


class SchedulingQueue:
    """The pods that wait for a decision (implements `framework.handle.Queue`); for the deciding thread."""

    def __init__(
        self, clock: Callable[[], int], *, initial_backoff: int = INITIAL_BACKOFF,
        longest_backoff: int = LONGEST_BACKOFF, longest_wait: int = LONGEST_WAIT,
    ) -> None:
        """Times are in nanoseconds, `clock`'s since the epoch; the active pods are sorted by `by_priority` at first."""
        self._clock = clock
        self._key: Callable[[QueuedPod], Any] = by_priority
        self._initial_backoff = initial_backoff
        self._longest_backoff = longest_backoff
        self._longest_wait = longest_wait
        self._numbers = itertools.count()
        self._active: list[tuple[Any, int, str]] = []
        self._ready: dict[str, tuple[int, QueuedPod]] = {}
        """The number of the valid entry in the heap `_active`; entries of other numbers are out of date."""
        self._timers: list[tuple[int, int, str]] = []
        self._unschedulable = _Waiting()
        self._gated = _Waiting()
        self._early: dict[tuple[str, str], int] = {}
        """The number of events at the start of each running attempt, by the pod's key and UID."""
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._happened = 0
        self._reconsidered: dict[str, None] = {}
        """The gated pods whose preEnqueue plugins are to run again."""
        self.recorder: MetricsRecorder | None = None
        """If set, it receives the pods that are added to parts of the queue, or removed."""

    def sort_by(self, key: Callable[[QueuedPod], Any]) -> None:
        """Sort the active pods by the key of a queueSort plugin (`framework.scheduler.QueueSort`)."""
        self._key = key
        self._active = [(self._sorted(queued), number, name) for name, (number, queued) in self._ready.items()]
        heapq.heapify(self._active)

    # Reading

    def __len__(self) -> int:
        """The number of pods in all parts of the queue."""
        return len(self._ready) + len(self._unschedulable.entries) + len(self._gated.entries)

    def pods(self) -> tuple[PodInfo, ...]:
        """Return all pods that wait for a decision, including gated ones."""
        entries = (*self._unschedulable.entries.values(), *self._gated.entries.values())
        return (*(queued.pod for _, queued in self._ready.values()), *(entry.queued.pod for entry in entries))

    def gated(self, key: str) -> PodInfo | None:
        """Return a pod that is gated, or None."""
        entry = self._gated.entries.get(key)
        return None if entry is None else entry.queued.pod

    def counts(self) -> dict[str, int]:
        """Return the numbers of active, backing-off, unschedulable and gated pods (kube-scheduler's pending_pods).

        For any thread.
        """
        entries = tuple(self._unschedulable.entries.values())  # made at once, whatever the owner does meanwhile
        backing_off = sum(not entry.hints for entry in entries)
        return {"active": len(self._ready), "backoff": backing_off, "unschedulable": len(entries) - backing_off,
                "gated": len(self._gated.entries)}

    def waiting(self) -> tuple[WaitingEntry, ...]:
        """Return all pods with the part of the queue that they are in; for any thread, which may see a pod twice."""
        active, others = tuple(self._ready.values()), tuple(self._unschedulable.entries.values())
        gated = tuple(self._gated.entries.values())
        return (*(WaitingEntry("active", queued) for _, queued in active),
                *(WaitingEntry("unschedulable", each.queued) if each.hints
                  else WaitingEntry("backoff", each.queued, each.until) for each in others),
                *(WaitingEntry("gated", each.queued) for each in gated))

    def events(self) -> tuple[Event, ...]:
        """Return the events that are stored for running attempts; for any thread."""
        return tuple(self._events)

    def next_time(self) -> int | None:
        """Return the time at which a pod becomes active without an event; None if there is none."""
        while self._timers and not self._stands(*self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    # Changes

    def add(self, pod: PodInfo, *, since: int | None = None) -> None:
        """Add a pod to the active queue, from now on unless `since` is set; one that is present stays."""
        known = self._take(pod.key)
        self._activate(QueuedPod(pod, self._clock() if since is None else since) if known is None
                       else replace(known, pod=pod), POD_ADD)

    def gate(self, pod: PodInfo, hints: Iterable[Hint]) -> None:
        """Add a pod to the unschedulable pods, until one of the hints returns that an event may help."""
        known = self._take(pod.key)
        queued = QueuedPod(pod, self._clock()) if known is None else replace(known, pod=pod)
        self._gated.add(_Entry(queued, tuple(dict.fromkeys(hints))))
        if self.recorder is not None:
            self.recorder.queued(pod.key, "gated", POD_ADD)

    def update(self, pod: PodInfo) -> None:
        """Replace a waiting pod by its new version; `note` decides whether the update may help."""
        if pod.key in self._ready:
            number, queued = self._ready[pod.key]
            changed = replace(queued, pod=pod)
            if _before(self._key(queued), self._key(changed)) or _before(self._key(changed), self._key(queued)):
                self._activate(changed, "")
            else:
                self._ready[pod.key] = (number, changed)
        for waiting in (self._unschedulable, self._gated):
            entry = waiting.entries.get(pod.key)
            if entry is not None:
                entry.queued = replace(entry.queued, pod=pod)

    def remove(self, key: str) -> None:
        """Remove a pod, if it is in the queue."""
        if self._take(key) is not None and self.recorder is not None:
            self.recorder.removed(key)

    def pop(self, key: str | None = None) -> QueuedPod | None:
        """Remove and return the next pod (or the one with `key`), and begin its attempt; None if there is none."""
        self._flush()
        if key is not None:
            queued = self._take(key)
            return None if queued is None else self._begun(queued)
        while self._active:
            _, number, name = heapq.heappop(self._active)
            ready = self._ready.get(name)
            if ready is not None and ready[0] == number:
                del self._ready[name]
                return self._begun(ready[1])
        return None

    def failed(self, queued: QueuedPod, hints: Iterable[Hint] | None) -> None:
        """Requeue an unschedulable pod, to wait for one of the hints; after an error (None) it only backs off.

        Events since the attempt began count.
        """
        found = None if hints is None else tuple(dict.fromkeys(hints))
        now = self._clock()
        helped = not found or self._helped_meanwhile(queued.pod, found)
        self.done(queued.pod)
        if not found or helped:
            self._back_off(queued, now, FAILURE)
            return
        timed = any(isinstance(hint, PathHint) and hint.timed for hint in found)
        entry = _Entry(queued, found, now, now + (self._longest_backoff if timed else self._longest_wait))
        self._unschedulable.add(entry)
        heapq.heappush(self._timers, (entry.until, next(self._numbers), queued.pod.key))
        if self.recorder is not None:
            self.recorder.queued(queued.pod.key, "unschedulable", FAILURE)

    def done(self, pod: PodInfo) -> None:
        """Record the end of a pod's attempt; a new pod of that name is not affected."""
        self._early.pop((pod.key, pod.uid), None)
        if not self._early:
            self._events.clear()

    def activate(self, keys: Collection[str]) -> None:
        """Activate these pods, whatever they wait for; gated ones are returned by `reconsidered`."""
        for key in keys:
            if key in self._gated.entries:
                self._reconsidered[key] = None
            elif key not in self._ready:
                queued = self._take(key)
                if queued is not None:
                    self._activate(queued, FORCE_ACTIVATE)

    def reconsidered(self) -> tuple[PodInfo, ...]:
        """Return the gated pods that were activated since the last call: their preEnqueue plugins are to run again."""
        keys, self._reconsidered = self._reconsidered, {}
        return tuple(self._gated.entries[key].queued.pod for key in keys if key in self._gated.entries)

    def release_all(self) -> None:
        """Activate all unschedulable pods and reconsider gated ones, after a change of the policies."""
        self.sort_by(self._key)  # the queueSort plugin may have changed
        for entry in list(self._unschedulable.entries.values()):
            if entry.hints:
                self._back_off(entry.queued, entry.failed_at, FORCE_ACTIVATE)
        self.activate(list(self._gated.entries))

    def note(self, event: Event) -> tuple[PodInfo, ...]:
        """Apply an event: pods for which it may help become active, once their backoff is over.

        Returns the gated pods for which it may help: they stay gated until they are added.
        """
        if self._early:
            self._events.append(event)
            self._happened += 1
        helped = self._unschedulable.helped(event)
        label = event_label(event) if helped and self.recorder is not None else ""
        for entry in helped:
            self._back_off(entry.queued, entry.failed_at, label)
        return tuple(entry.queued.pod for entry in self._gated.helped(event))

    # Parts

    def _take(self, key: str) -> QueuedPod | None:
        ready = self._ready.pop(key, None)
        if ready is not None:
            return ready[1]
        entry = self._unschedulable.remove(key) or self._gated.remove(key)
        return None if entry is None else entry.queued

    def _begun(self, queued: QueuedPod) -> QueuedPod:
        self._early[queued.pod.key, queued.pod.uid] = self._happened
        return QueuedPod(queued.pod, queued.since, queued.attempts + 1, queued.first_attempt or self._clock())

    def _activate(self, queued: QueuedPod, event: str) -> None:
        """Add a pod to the active queue because of an event; an empty one is not reported."""
        number = next(self._numbers)
        key = self._sorted(queued)
        self._ready[queued.pod.key] = (number, queued)
        heapq.heappush(self._active, (key, number, queued.pod.key))
        if self.recorder is not None and event:
            self.recorder.queued(queued.pod.key, "active", event)

    def _sorted(self, queued: QueuedPod) -> Any:
        key = self._key(queued)
        plain = type(key) is tuple and all(type(each) is int for each in key)
        return key if plain else _Comparable(key)

    def _helped_meanwhile(self, pod: PodInfo, hints: tuple[Hint, ...]) -> bool:
        """Return whether an event since the attempt began may help; true if the events are no longer stored."""
        count = self._happened - self._early.get((pod.key, pod.uid), self._happened)
        if count > len(self._events):
            return True
        missed = itertools.islice(reversed(self._events), count)
        # The pod's own placement and its removal do not count.
        return any(hint(event, pod) for event in missed if not (event.assumed and event.key == pod.key)
                   for hint in hints)

    def _back_off(self, queued: QueuedPod, failed_at: int, event: str) -> None:
        """Put the pod into the backoff heap because of an event; its backoff began when its last attempt failed."""
        self._unschedulable.remove(queued.pod.key)
        wait = min(self._initial_backoff << min(max(queued.attempts - 1, 0), 30), self._longest_backoff)
        until = failed_at + wait
        if until <= self._clock():
            self._activate(queued, event)
            return
        self._unschedulable.add(_Entry(queued, (), failed_at, until))
        heapq.heappush(self._timers, (until, next(self._numbers), queued.pod.key))
        if self.recorder is not None:
            self.recorder.queued(queued.pod.key, "backoff", event)

    def _stands(self, until: int, _number: int, key: str) -> bool:
        entry = self._unschedulable.entries.get(key)
        return entry is not None and entry.until == until

    def _flush(self) -> None:
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            until, number, key = heapq.heappop(self._timers)
            if self._stands(until, number, key):
                entry = self._unschedulable.remove(key)
                assert entry is not None
                self._activate(entry.queued, UNSCHEDULABLE_TIMEOUT if entry.hints else BACKOFF_COMPLETE)
