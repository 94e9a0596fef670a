"""Moments of a flight recording: the recorded cluster at any time, without reading all that was before it.

A segment begins with all objects, so only the segment of a moment is read, from its start or from the nearest
checkpoint before the moment. Checkpoints are made while a segment is read, and stay in memory, within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.source import PolicyError, Problem

from .recorded_state import RecordedState, Resync, Step
from .records import Decided, Existing, Gap, Header, Policies, SegmentEnd, Started
from .segments import Position, SegmentReader, begin_of, name_of, segments_in

_SPACING: Final = 20_000
"""The number of records between two checkpoints."""
_MOST_ENTRIES: Final = 1_000_000
"""The number of references to objects in all checkpoints together, about 100 bytes each."""
_MOST_SEGMENTS: Final = 24
"""The number of segments, latest first, in which a state or the decision about a pod is looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Checkpoint:
    state: RecordedState
    position: Position

    @property
    def entries(self) -> int:
        return len(self.state.objects) + len(self.state.decided)


class Moments:
    """The moments of the recording in a directory, also while it is written; for one thread."""

    def __init__(self, directory: Path, *, spacing: int = _SPACING, most_entries: int = _MOST_ENTRIES) -> None:
        self._directory = directory
        self._spacing = spacing
        self._most_entries = most_entries
        self._checkpoints: dict[Path, list[_Checkpoint]] = {}
        """By segment, in order of time; the segment that was used last is the last one."""
        self.records_read = 0
        """The number of records that were read so far."""

    def at(self, time: int, poll: Callable[[], None] = lambda: None) -> RecordedState:
        """Return the recorded cluster at a time (ns since the epoch); the caller must not change it.

        `poll` is called between blocks, and may raise: then a later call continues where this one ended.

        Raises:
            PolicyError: nothing is recorded of that time: it is before the recording, or its segments are not usable.
        """
        return next(self._backwards(time, poll))

    def decision_about(
        self, key: str, time: int, poll: Callable[[], None] = lambda: None, uid: str = "",
    ) -> Decided | None:
        """Return the last recorded decision about a pod up to a time; None if the last segments before it have none.

        With `uid`, decisions about other pods of that name are ignored. Raises what `at` raises.
        """
        for state in self._backwards(time, poll):
            decided = state.decided.get(key)
            if decided is not None and (not uid or decided.uid == uid):
                return decided
        return None

    def _backwards(self, time: int, poll: Callable[[], None]) -> Iterator[RecordedState]:
        """Yield the recorded cluster at a time, then at the ends of the segments before; raise what `at` raises."""
        segments = segments_in(self._directory)
        name = name_of(time)
        faults = []
        usable = False
        for path in reversed([path for path in segments if path.name <= name][-_MOST_SEGMENTS:]):
            state, fault = self._in_segment(path, time, poll)
            if state is not None:
                usable = True
                yield state
            else:
                faults.append(f"`{path.name}`: {fault or 'it ends before all objects were written'}")
        if not usable:
            why = "; ".join(faults) or (
                f"the recording begins at {rfc3339(begin_of(segments[0]))}" if segments else "it is empty")
            raise nothing_recorded(why)

    def _in_segment(self, path: Path, time: int, poll: Callable[[], None]) -> tuple[RecordedState | None, str]:
        known = self._checkpoints.pop(path, [])
        self._checkpoints[path] = known
        near = next((each for each in reversed(known) if each.state.time <= time), None)
        reader = SegmentReader(path, None if near is None else near.position)
        fold = _Fold(None if near is None else near.state.copy())
        since = 0
        for records in reader.blocks():
            poll()
            for number, record in enumerate(records):
                if getattr(record, "time", 0) > time and fold.state is not None:
                    self.records_read += number
                    return fold.state, ""
                if not fold.apply(record):
                    self.records_read += number
                    return fold.state, "it has changes before its objects"
            self.records_read += len(records)
            since += len(records)
            state = fold.state
            if since >= self._spacing and state is not None and (not known or state.time > known[-1].state.time):
                since = 0
                known.append(_Checkpoint(state.copy(), reader.position))
                self._evict()
        return fold.state, reader.fault

    def _evict(self) -> None:
        """Remove checkpoints beyond the limit: all of the least recently used segment, or every other one of the only
        segment.
        """
        while sum(each.entries for of in self._checkpoints.values() for each in of) > self._most_entries:
            path = next(iter(self._checkpoints))
            rest = self._checkpoints[path][1::2] if len(self._checkpoints) == 1 else []
            if rest:
                self._checkpoints[path] = rest
            else:
                del self._checkpoints[path]
            if not self._checkpoints:
                return


def nothing_recorded(why: str) -> PolicyError:
    """Return the error about a time of which nothing is recorded."""
    return PolicyError([Problem(f"nothing is recorded of this time: {why}", help="choose another time",
                                code="recording")])


class _Fold:
    """The records of one segment as a state; None until all objects of its start were read."""

    def __init__(self, state: RecordedState | None) -> None:
        self.state = state
        self._header: Header | None = None
        self._existing: list[Existing] = []
        self._policies: list[Policies] = []

    def apply(self, record: object) -> bool:
        """Apply a record; return False if a segment must not have it there."""
        if self.state is not None:
            if isinstance(record, Step):
                self.state.apply(record)
            return True
        match record:
            case Header():
                self._header = record
            case Existing():
                self._existing.append(record)
            case Policies():
                self._policies.append(record)
            case Started():
                assert self._header is not None  # the reader's first record
                self.state = RecordedState(Resync(record.time, self._header, self._existing))
                for each in self._policies:
                    self.state.apply(each)
            case SegmentEnd() | Gap():
                pass
            case _:
                return False
        return True
