"""The flight recorder: writes the changes of a cluster and the decisions about its pods to segments.

The deciding thread only puts references into a bounded queue; a thread of the recorder projects, encodes and writes
them. If the disk is too slow, records are dropped and counted: a gap ends the segment, and the next one begins with all
objects, as each does.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.metrics import NANOSECONDS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.reservations import RESERVE_POD
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .background import CAPACITY, BackgroundWriter
from .fields import Fields, Projection, fields_of
from .records import (
    FORMAT,
    Changed,
    Concluded,
    Decided,
    Existing,
    Gap,
    Header,
    Idle,
    Policies,
    Record,
    RecordError,
    SegmentEnd,
    Started,
    Touched,
    encode,
)
from .segments import Directory, Limits, SegmentFile
from .settings import recorded_settings
from .summaries import next_best, reasons_in, total_of

_LOG: Final = logging.getLogger(__name__)
_FLUSH_S: Final = 1.0
_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Change:
    time: int
    event: Event
    own: bool


@dataclass(frozen=True, slots=True)
class _State:
    """All objects of the cluster at a time, and the policies."""

    time: int
    objects: Mapping[str, Sequence[Mapping[str, Any]]]
    bound: Sequence[PodInfo]
    registry: Registry
    kinds: frozenset[str] | None
    metric_expiry: int


@dataclass(frozen=True, slots=True)
class _NewPolicies:
    time: int
    registry: Registry


_Item: TypeAlias = _Change | _State | _NewPolicies | Record


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """The recording process, and the scope of its recording."""

    program: str
    settings: Settings
    fields: Fields = field(default_factory=Fields)
    """Fields that are recorded in addition to those that the policies read."""


class FlightRecorder:
    """Records what a scheduling loop sees and decides (implements `scheduler.observe.cycle_observer.CycleObserver`).

    `start` begins; all methods but `close` belong to the deciding thread.
    """

    def __init__(
        self, directory: Path, about: RecorderSettings, live: Live, *, clock: Callable[[], int],
        limits: Limits | None = None, capacity: int = CAPACITY,
    ) -> None:
        """`clock` returns nanoseconds since the epoch, as that of the loop; `capacity` is the length of the queue.

        Raises:
            Busy: another process records into the directory.
            OSError: the directory cannot be used.
        """
        limits = limits or Limits()
        self._clock = clock
        self._live = live
        self._registry: Registry | None = None
        self._cluster: Cluster | None = None
        self._own = self._busy = False
        self._cycle = 0
        self._lost = 0
        self._dropped = 0
        self._capacity = capacity
        self._sink = _Sink(Directory(directory, limits), limits, about)
        self._writer: BackgroundWriter[_Item] = BackgroundWriter("flight-recorder", self._sink.write, capacity=capacity)

    @property
    def dropped(self) -> int:
        """The number of records that were dropped; any thread may read it."""
        return self._dropped + self._sink.dropped

    @property
    def segments(self) -> int:
        """The number of segments that were begun; any thread may read it."""
        return self._sink.segments

    def start(self, cluster: Cluster) -> None:
        """Record all objects of the cluster, and its changes from now on."""
        self._cluster = cluster
        self._put_state()
        cluster.listen(self._note)

    def begin(self, now: int) -> None:
        """Record the changes until `end` as the scheduler's own."""
        self._own, self._cycle = True, now

    def end(self, verdict: Verdict | None, duration: int) -> None:
        """Record a decision, or that no pod is ready."""
        self._own = False
        registry = self._live.registry
        if registry is not self._registry:
            # Recorded with the first decision under them, or the first cycle without one.
            changed = self._registry is not None and registry.digest != self._registry.digest
            self._registry = registry
            if changed:
                self._put(_NewPolicies(self._cycle, registry))
        if verdict is not None:
            self._busy = True
            self._put(_decided(verdict, self._cycle, duration))
        elif self._busy:
            self._busy = False
            self._put(Idle(self._cycle))
        if self._sink.state_needed:
            self._put_state()

    def concluded(self, verdict: Verdict) -> None:
        """Record the end of a binding cycle."""
        time = self._cycle if self._own else self._clock()
        reasons, left_out = ([], 0) if verdict.node is not None else reasons_in(verdict)
        self._put(Concluded(time, verdict.pod.key, verdict.pod.uid, verdict.node, reasons, left_out))

    def close(self) -> None:
        """Write what is waiting, and end the last segment."""
        if self._cluster is not None:
            self._put(SegmentEnd(self._clock(), last=True))
        if not self._writer.close():
            _LOG.error("the flight recording could not be ended in time")
        self._sink.close()
        if self.dropped:
            _LOG.warning("the flight recording has gaps: %d records were dropped", self.dropped)

    def _note(self, event: Event) -> None:
        if event.assumed:
            return  # part of a decision
        self._busy = True
        self._put(_Change(self._cycle if self._own else self._clock(), event, self._own))
        if self._sink.state_needed and not self._own:
            self._put_state()

    def _put(self, item: _Item) -> None:
        if self._lost:
            # Nothing is worth recording before all objects are known again.
            if self._own or 2 * self._writer.room < self._capacity:
                self._lost += 1
                self._dropped += 1
                return
            self._writer.put(Gap(self._clock(), self._lost))
            self._lost = 0
            self._put_state()
        if not self._writer.put(item):
            self._lost += 1
            self._dropped += 1

    def _put_state(self) -> None:
        cluster = self._cluster
        assert cluster is not None
        self._registry = self._live.registry
        self._sink.state_needed = False
        state = _State(self._clock(), cluster.all_objects(), cluster.bound_pods(), self._registry,
                       cluster.kinds, cluster.metric_expiry // NANOSECONDS)
        if not self._writer.put(state):
            self._lost += 1
            self._dropped += 1


class _Sink:
    """Writes items to segments; for the recorder's thread, but for `state_needed`."""

    def __init__(self, directory: Directory, limits: Limits, about: RecorderSettings) -> None:
        self.state_needed = False
        """True if a new segment is to begin: the deciding thread puts all objects then."""
        self.dropped = 0
        self.segments = 0
        self._directory = directory
        self._limits = limits
        self._about = about
        self._run = secrets.token_hex(8)
        self._segment: SegmentFile | None = None
        self._projection = Projection(Fields())
        self._registry: Registry | None = None
        self._fields = Fields()
        self._begun = self._flushed = self._failed = 0.0
        self._fault = ""
        self._unrecordable: set[tuple[str, str]] = set()

    def write(self, items: Sequence[_Item]) -> None:
        """Write items in order; a failing disk costs the rest of the segment."""
        for item in items:
            try:
                self._write(item)
            except OSError as error:
                self._fail(error)
                self.dropped += 1
        now = monotonic()
        segment = self._segment
        if segment is None:
            if self._failed and now - self._failed >= _RETRY_S:
                self._failed = now
                self.state_needed = True
            return
        if now - self._flushed < _FLUSH_S and segment.unwritten:
            return
        try:
            self._flushed = now
            segment.flush()
            self._directory.prune(segment)
        except OSError as error:
            self._fail(error)
            return
        if segment.size >= self._limits.segment_bytes or now - self._begun >= self._limits.segment_seconds:
            self.state_needed = True

    def close(self) -> None:
        """Close the segment and the directory."""
        self._close_segment()
        self._directory.close()

    def _write(self, item: _Item) -> None:
        match item:
            case _State():
                self._begin(item)
            case _NewPolicies():
                self._renew(item)
            case _Change():
                self._change(item)
            case Gap():
                self._add(item)
                self._close_segment()
            case _:
                self._add(item)

    def _begin(self, state: _State) -> None:
        if self._segment is not None:
            self._add(SegmentEnd(state.time))
        self._close_segment()
        self._registry = state.registry
        self._fields = fields_of(self._about.settings.profiles, state.registry) | self._about.fields
        self._projection = self._fields.projection()
        self._segment = self._directory.create(state.time)
        self._begun = monotonic()
        self._failed, self._fault = 0.0, ""
        self.segments += 1
        about = self._about
        self._add(Header(
            FORMAT, about.program, self._run, self.segments, state.time, self._fields.plain,
            None if state.kinds is None else sorted(state.kinds),
            recorded_settings(about.settings), state.metric_expiry,
        ))
        self._add(_policies(state.time, state.registry))
        assumed = {pod.key: pod.node_name for pod in state.bound if not (pod.object.get("spec") or {}).get("nodeName")}
        count = 0
        for kind, objects in state.objects.items():
            if not self._projection.covers(kind):
                continue
            for each in objects:
                if kind == "Pod" and _is_derived(each):
                    continue
                metadata = each["metadata"]
                node = assumed.get(f"{metadata.get('namespace') or 'default'}/{metadata['name']}", "") if (
                    kind == "Pod") else ""
                count += self._add(Existing(self._projection.of(kind, each), node), each)
        self._add(Started(state.time, count))

    def _renew(self, item: _NewPolicies) -> None:
        self._add(_policies(item.time, item.registry))
        self._registry = item.registry
        fields = fields_of(self._about.settings.profiles, item.registry) | self._about.fields
        if fields != self._fields:
            self.state_needed = True

    def _change(self, item: _Change) -> None:
        event = item.event
        if not self._projection.covers(event.kind):
            return
        if event.kind == "Pod" and _is_derived(event.new or event.old or {}):
            return
        if event.new is None:
            self._add(Changed(item.time, event.kind, event.key, None, item.own))
            return
        new = self._projection.of(event.kind, event.new)
        if event.old is not None and self._projection.of(event.kind, event.old) == new:
            self._add(Touched(item.time, event.kind, event.key, item.own))
        else:
            self._add(Changed(item.time, event.kind, event.key, new, item.own), event.new)

    def _add(self, record: Record, item: Mapping[str, Any] | None = None) -> bool:
        """Append a record, about an object; return whether it could be encoded."""
        if self._segment is None:
            self.dropped += 1
            return False
        try:
            encoded = encode(record)
        except RecordError as error:
            self.dropped += 1
            if item is not None:
                key = str(item.get("kind")), str((item.get("metadata") or {}).get("name"))
                if key not in self._unrecordable:
                    self._unrecordable.add(key)
                    _LOG.warning("%s `%s` cannot be recorded, and is left out: %s", *key, error)
            return False
        self._segment.add(encoded)
        return True

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.close()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.abandon()
        self._failed = monotonic()
        fault = error.strerror or str(error)
        if fault != self._fault:
            self._fault = fault
            _LOG.error("the flight recording cannot be written, and is tried again: %s", fault)


def _decided(verdict: Verdict, time: int, duration: int) -> Decided:
    other = next_best(verdict)
    placed = verdict.node is not None
    nomination = verdict.nomination
    reasons, left_out = ([], 0) if placed else reasons_in(verdict)
    return Decided(
        time, verdict.pod.key, verdict.pod.uid, verdict.profile, verdict.generation, verdict.node, len(verdict.passed),
        total_of(verdict), None if other is None else other[0], None if other is None else other[1],
        reasons, "" if nomination is None else nomination.node,
        [] if nomination is None else [(victim.key, victim.uid) for victim in nomination.victims],
        verdict.waiting or verdict.binding, duration, left_out,
    )


def _policies(time: int, registry: Registry) -> Policies:
    return Policies(time, registry.generation, registry.digest,
                    {plugin.name: plugin.digest for plugin in registry.of_framework(Framework.SCHEDULER)})


def _is_derived(pod: Mapping[str, Any]) -> bool:
    """Return whether the scheduler itself made the pod, of a Reservation: a replay makes it again."""
    return (((pod.get("metadata") or {}).get("annotations")) or {}).get(RESERVE_POD) == "true"
