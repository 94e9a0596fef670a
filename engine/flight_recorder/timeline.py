"""The timeline of a flight recording: how many pods were bound and waited, what was refused and evicted, over time.

A timeline takes the steps of a recording one after the other, so it can follow one that is still written. Its memory
does not grow with the time: beyond `most` spans, two neighbours become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.node_rows import allocatable_of
from koordpolicy.engine.cluster.objects.pods import PodInfo

from .recorded_state import RecordedState, Resync, Step, disruption_of, uid_of
from .records import Changed, Concluded, Decided, Policies

_SECOND: Final = 1_000_000_000
_MOST_SPANS: Final = 4096
_MOST_CHANGES: Final = 500
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(slots=True)
class TimelineSpan:
    """A part of the time: the state at its end, and the number of what happened in it."""

    start: int
    """In nanoseconds since the epoch."""
    nodes: int = 0
    bound: int = 0
    """Pods on a node that have not finished."""
    waiting: int = 0
    """Pods without a node, neither finished nor being deleted."""
    cpu: float = 0.0
    """Requests of the bound pods, in percent of what is allocatable."""
    memory: float = 0.0
    placed: int = 0
    """Scheduling cycles that found a node."""
    refused: int = 0
    """Scheduling cycles that found none."""
    evicted: int = 0
    policies: int = 0
    """The number of times that other policies became active."""

    def add(self, later: TimelineSpan) -> None:
        """Take in the span that follows."""
        self.nodes, self.bound, self.waiting = later.nodes, later.bound, later.waiting
        self.cpu, self.memory = later.cpu, later.memory
        self.placed += later.placed
        self.refused += later.refused
        self.evicted += later.evicted
        self.policies += later.policies


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Other policies became active: the names of plugins that came, went, and changed."""

    time: int
    generation: int
    digest: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _PodFacts:
    object: Mapping[str, Any]
    node: str
    cpu: int
    memory: int
    waits: bool
    runs: bool


@dataclass(slots=True)
class _NodeFacts:
    """A node: what is allocatable, None while there is no such node, and what its pods request."""

    cpu: int | None = None
    memory: int = 0
    requested_cpu: int = 0
    requested_memory: int = 0


@dataclass(slots=True)
class _Totals:
    nodes: int = 0
    bound: int = 0
    waiting: int = 0
    cpu: int = 0
    memory: int = 0
    allocatable_cpu: int = 0
    allocatable_memory: int = 0


@dataclass(slots=True)
class Timeline:
    """The timeline of the steps that were taken so far."""

    most: int = _MOST_SPANS
    """The number of spans in memory."""
    width: int = _SECOND
    """The length of a span, in nanoseconds; it doubles when there are too many."""
    state: RecordedState | None = None
    """The recorded cluster after the last step; None before the first one."""
    start: int = 0
    end: int = 0
    changes: list[PolicyChange] = field(default_factory=list)
    """The last changes of policies, the first policies included."""
    changes_left_out: int = 0
    """The number of earlier ones."""
    _spans: dict[int, TimelineSpan] = field(default_factory=dict)
    """By number since `start`; one in which nothing was recorded has none."""
    _pods: dict[str, _PodFacts] = field(default_factory=dict)
    _nodes: dict[str, _NodeFacts] = field(default_factory=dict)
    _totals: _Totals = field(default_factory=_Totals)
    _evicted: set[str] = field(default_factory=set)
    _last: Policies | None = None

    def take(self, step: Step) -> None:
        """Go on by a step of the recording."""
        if self.state is None:
            if not isinstance(step, Resync):
                return
            self.state = RecordedState(step)
            self.start = self.end = step.time
        else:
            self.state.apply(step)
        self.end = max(self.end, step.time)
        span = self._span()
        match step:
            case Resync():
                self._recount()
            case Changed(kind="Pod"):
                self._pod(step.key)
                self._note_eviction(span, step.object)
            case Changed(kind="Node"):
                self._node(step.key)
            case Decided():
                if step.node is None:
                    span.refused += 1
                else:
                    span.placed += 1
                    self._pod(step.pod)
                for key, uid in step.victims:
                    self._evict(span, uid or key)
            case Concluded():
                self._pod(step.pod)
            case Policies():
                self._policies(span, step)
            case _:
                pass
        totals = self._totals
        span.nodes, span.bound, span.waiting = totals.nodes, totals.bound, totals.waiting
        span.cpu = _percent(totals.cpu, totals.allocatable_cpu)
        span.memory = _percent(totals.memory, totals.allocatable_memory)

    def spans(self, start: int, end: int, points: int) -> tuple[TimelineSpan, ...]:
        """Return the spans from `start` to `end`, joined to at most `points` spans of equal length.

        They are at least as long as those in memory. A span in which nothing was recorded has the state before it.
        """
        if self.state is None:
            return ()
        first = max(0, (max(start, self.start) - self.start) // self.width)
        last = max(first, (min(end, self.end) - self.start) // self.width)
        joined = -(-(last - first + 1) // max(points, 1))
        before = self._before(first)
        found = []
        for number in range(first, last + 1):
            if (number - first) % joined == 0:
                found.append(TimelineSpan(self.start + number * self.width, before.nodes, before.bound,
                                          before.waiting, before.cpu, before.memory))
            known = self._spans.get(number)
            if known is not None:
                found[-1].add(known)
                before = known
        return tuple(found)

    def _before(self, number: int) -> TimelineSpan:
        return max((span for at, span in self._spans.items() if at < number), key=lambda span: span.start,
                   default=TimelineSpan(self.start))

    def _span(self) -> TimelineSpan:
        number = (self.end - self.start) // self.width
        while number >= self.most:
            self.width *= 2
            number //= 2
            joined: dict[int, TimelineSpan] = {}
            for at, span in sorted(self._spans.items()):
                known = joined.get(at // 2)
                if known is None:
                    span.start = self.start + at // 2 * self.width
                    joined[at // 2] = span
                else:
                    known.add(span)
            self._spans = joined
        found = self._spans.get(number)
        if found is None:
            found = self._spans[number] = TimelineSpan(self.start + number * self.width)
        return found

    def _recount(self) -> None:
        assert self.state is not None
        self._pods.clear()
        self._nodes.clear()
        self._totals = _Totals()
        for kind, key in self.state.objects:
            if kind == "Node":
                self._node(key)
        for kind, key in self.state.objects:
            if kind == "Pod":
                self._pod(key)

    def _node(self, name: str) -> None:
        assert self.state is not None
        item = self.state.objects.get(("Node", name))
        facts = self._nodes.get(name)
        if facts is None:
            facts = self._nodes[name] = _NodeFacts()
        self._count(facts, -1)
        facts.cpu, facts.memory = (None, 0) if item is None else _allocatable(item)
        self._count(facts, 1)
        if facts.cpu is None and not facts.requested_cpu and not facts.requested_memory:
            del self._nodes[name]

    def _pod(self, key: str) -> None:
        assert self.state is not None
        item, before = self.state.objects.get(("Pod", key)), self._pods.get(key)
        node = self.state.node_of(key)
        if before is not None and before.object is item and before.node == node:
            return
        if before is not None:
            del self._pods[key]
            self._add(before, -1)
        if item is not None:
            found = self._pods[key] = _pod_facts(item, node)
            self._add(found, 1)

    def _add(self, pod: _PodFacts, sign: int) -> None:
        self._totals.bound += sign * pod.runs
        self._totals.waiting += sign * pod.waits
        if not pod.runs:
            return
        facts = self._nodes.get(pod.node)
        if facts is None:
            facts = self._nodes[pod.node] = _NodeFacts()
        self._count(facts, -1)
        facts.requested_cpu += sign * pod.cpu
        facts.requested_memory += sign * pod.memory
        self._count(facts, 1)
        if facts.cpu is None and not facts.requested_cpu and not facts.requested_memory:
            del self._nodes[pod.node]

    def _count(self, facts: _NodeFacts, sign: int) -> None:
        if facts.cpu is None:
            return
        totals = self._totals
        totals.nodes += sign
        totals.cpu += sign * facts.requested_cpu
        totals.memory += sign * facts.requested_memory
        totals.allocatable_cpu += sign * facts.cpu
        totals.allocatable_memory += sign * facts.memory

    def _note_eviction(self, span: TimelineSpan, item: Any) -> None:
        if isinstance(item, dict) and (uid := uid_of(item)) and disruption_of(item) is not None:
            self._evict(span, uid)

    def _evict(self, span: TimelineSpan, uid: str) -> None:
        if uid not in self._evicted:
            self._evicted.add(uid)
            span.evicted += 1

    def _policies(self, span: TimelineSpan, step: Policies) -> None:
        last = self._last
        if last is not None and last.digest == step.digest:
            return
        before: Mapping[str, str] = {} if last is None else last.plugins
        self._last = step
        if last is not None:
            span.policies += 1
        self.changes.append(PolicyChange(
            step.time, step.generation, step.digest,
            tuple(sorted(step.plugins.keys() - before.keys())) if last is not None else (),
            tuple(sorted(before.keys() - step.plugins.keys())),
            tuple(sorted(name for name, digest in step.plugins.items() if before.get(name, digest) != digest))))
        if len(self.changes) > _MOST_CHANGES:
            del self.changes[0]
            self.changes_left_out += 1


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 3) if whole else 0.0


def _allocatable(node: Mapping[str, Any]) -> tuple[int | None, int]:
    try:
        found = allocatable_of(node)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None, 0  # a malformed node is none, as in a cluster
    return found["cpu"], found["memory"]


def _pod_facts(item: Mapping[str, Any], node: str) -> _PodFacts:
    try:
        pod = PodInfo.of(item)
    except (ValueError, TypeError, AttributeError, KeyError):
        return _PodFacts(item, node, 0, 0, waits=False, runs=False)  # malformed: no pod, as in a cluster
    status, metadata = item.get("status") or {}, item["metadata"]
    finished = status.get("phase") in _FINISHED
    return _PodFacts(item, node, pod.requests["cpu"], pod.requests["memory"],
                     waits=not node and not finished and not metadata.get("deletionTimestamp"),
                     runs=bool(node) and not finished)
