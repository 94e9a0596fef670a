"""A flight recording as a whole: its segments in order, as one stream of records."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordpolicy.engine.source import PolicyError, Problem

from .fields import Fields
from .recorded_state import RecordedState, Resync, Step
from .records import (
    Changed,
    Decided,
    Existing,
    Gap,
    Header,
    Policies,
    Record,
    SegmentEnd,
    Started,
)
from .segments import SegmentReader, name_of, segments_in

_POLLED: Final = 512
"""The number of records between two polls."""


@dataclass(frozen=True, slots=True)
class RecordingGap:
    """A part of the time about which a recording knows nothing, or not everything, in nanoseconds."""

    start: int
    end: int
    dropped: int
    """The number of dropped records; 0 if it is unknown."""
    why: str


@dataclass(slots=True)
class Overview:
    """Facts about a whole recording, which a replay needs before it begins."""

    first: Header
    start: int
    end: int
    segments: int = 0
    fields: list[Fields] = field(default_factory=list)
    """The recorded fields of the segments, each set once."""
    decided: set[str] = field(default_factory=set)
    """The UIDs (keys, of pods without one) of the pods about which there were decisions."""
    victims: set[str] = field(default_factory=set)
    """The UIDs (or keys) of the pods that the recorded scheduler preempted."""
    own_deletions: set[str] = field(default_factory=set)
    """The keys of the pods that the recorded scheduler deleted itself, without an API server."""
    decisions: int = 0
    digests: list[str] = field(default_factory=list)
    """The digests of the recorded policies, each once, in order."""
    gaps: list[RecordingGap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Faults of segments, for people."""


class FlightRecording:
    """The segments of a directory, or some of them; or a part of their time, see `between`."""

    def __init__(self, segments: Sequence[Path], *, start: int | None = None, end: int | None = None,
                 poll: Callable[[], None] = lambda: None) -> None:
        """`start` and `end` limit the time, in nanoseconds since the epoch. `poll` is called now and then while records
        are read, and may raise.
        """
        self._segments = list(segments)
        self._poll = poll
        self._start, self._end = start, end
        self._gaps: list[RecordingGap] = []
        self._notes: list[str] = []

    @classmethod
    def open(cls, directory: Path) -> FlightRecording:
        """Return the recording of a directory.

        Raises:
            PolicyError: there is no segment in it.
            OSError: it cannot be read.
        """
        found = segments_in(directory)
        if not found:
            raise _unusable(f"there is no segment of a flight recording in `{directory}`",
                            "name the directory that `scheduler --record` wrote to")
        return cls(found)

    @property
    def segments(self) -> tuple[Path, ...]:
        """The files of the segments, oldest first."""
        return tuple(self._segments)

    @property
    def gaps(self) -> tuple[RecordingGap, ...]:
        """The gaps in what was read so far."""
        return tuple(self._gaps)

    @property
    def notes(self) -> tuple[str, ...]:
        """The faults of the segments that were read so far, for people."""
        return tuple(self._notes)

    def between(self, start: int, end: int, poll: Callable[[], None] = lambda: None) -> FlightRecording:
        """Return the part of the recording from `start` to `end`: it begins with all objects before `start`.

        Only segments with a part of this time are read. `poll` is called now and then while they are, and may raise.
        """
        names = [path.name for path in self._segments]
        first = max(bisect.bisect_right(names, name_of(start)) - 1, 0)
        last = bisect.bisect_right(names, name_of(end))
        return FlightRecording(self._segments[first : max(last, first + 1)], start=start, end=end,
                               poll=poll)

    def overview(self) -> Overview:
        """Read the whole recording once and return facts about it.

        Raises:
            PolicyError: no segment is usable.
        """
        found: Overview | None = None
        for step in self.steps():
            if isinstance(step, Resync) and found is None:
                found = Overview(step.header, step.time, step.time)
            assert found is not None  # a stream begins with all objects
            _take_in(found, step)
        if found is None:
            why = "; ".join(self._notes) or "nothing was recorded in this time"
            raise _unusable(f"no segment of the recording can be used: {why}",
                            "replay another recording: of this one no segment holds all objects of its beginning")
        found.end = found.end if self._end is None else max(found.end, self._end)
        found.segments = len(self._segments)
        found.gaps, found.notes = self._gaps, self._notes
        return found

    def steps(self) -> Iterator[Step]:
        """Yield the recording in order: a `Resync` at the start and after each gap, and the changes after it.

        A segment that continues the one before it adds its changes only.
        """
        steps = (step for step in self._walk(None) if step is not None)
        return steps if self._start is None else _part(steps, self._start, self._end)

    def follow(self, directory: Path) -> Iterator[Step | None]:
        """Yield the steps of a recording that is still written into the directory, without end.

        None means that there is nothing more for now.
        """
        return self._walk(directory)

    def _walk(self, directory: Path | None) -> Iterator[Step | None]:
        self._gaps, self._notes = [], []
        before: Header | None = None
        in_order = False
        end = dropped = 0
        why = ""
        number = 0
        while True:
            if number == len(self._segments):
                if directory is None:
                    return
                if not self._find_more(directory):
                    yield None
                    continue
            path = self._segments[number]
            number += 1
            reader = SegmentReader(path)
            header: Header | None = None
            existing: list[Existing] = []
            policies: list[Policies] = []
            known = closed = False
            for record in self._records(reader, number, directory):
                match record:
                    case None:
                        yield None
                    case Header():
                        header = record
                        known = (in_order and before is not None and before.run == header.run
                                 and before.number + 1 == header.number)
                    case Existing():
                        if not known:
                            existing.append(record)
                    case Started():
                        assert header is not None
                        if not known:
                            if before is not None:
                                self._gaps.append(
                                    RecordingGap(end, record.time, dropped, why or "another run was recorded"))
                            yield Resync(record.time, header, existing)
                            yield from policies
                            known, existing = True, []
                        end = record.time
                        before, in_order, dropped, why = header, False, 0, ""
                    case SegmentEnd():
                        closed = not record.last
                        why, end = "the recorder was stopped" if record.last else "", record.time
                    case Gap():
                        dropped, why, end = record.dropped, "records were dropped", record.time
                        break
                    case _ if known and before is header:
                        end = max(end, record.time)
                        yield record
                    case Policies():
                        policies.append(record)
                    case _:
                        self._notes.append(f"`{path.name}`: it has changes before its objects")
                        break
            if reader.fault:
                self._notes.append(f"`{path.name}`: {reader.fault}: the rest of it is left out")
                why = why or "a segment is incomplete"
                in_order = False
            else:
                in_order = closed and before is header
                why = why or ("" if in_order else "a segment was not ended")
            if header is not None and before is not header:
                self._notes.append(f"`{path.name}`: it ends before all objects were written, and is left out")

    def _records(self, reader: SegmentReader, number: int, directory: Path | None) -> Iterator[Record | None]:
        """Yield the records of a segment; of the last one of a directory that is followed, None where it ends."""
        while True:
            # A later segment is looked for first: nothing is written to this one once it is there.
            complete = directory is None or number < len(self._segments) or self._find_more(directory)
            try:
                for number_read, record in enumerate(reader):
                    if number_read % _POLLED == 0:
                        self._poll()
                    yield record
                    complete = complete or isinstance(record, SegmentEnd)
            except FileNotFoundError:
                if directory is None:
                    raise
                reader.fault, complete = "it was removed", True
            if complete:
                return
            yield None

    def _find_more(self, directory: Path) -> bool:
        """Add the segments that are new in a directory; return whether there are any."""
        last = self._segments[-1].name if self._segments else ""
        found = [path for path in segments_in(directory) if path.name > last]
        self._segments += found
        return bool(found)


def _part(steps: Iterable[Step], start: int, end: int | None) -> Iterator[Step]:
    """Yield the steps of a part of the time, its bounds included, after a `Resync` with what was before it."""
    state: RecordedState | None = None
    begun = False
    for step in steps:
        if end is not None and step.time > end:
            break
        if begun:
            yield step
        elif step.time < start or state is None:
            if state is None:
                assert isinstance(step, Resync)  # a stream begins with all objects
                state = RecordedState(step)
            else:
                state.apply(step)
        else:
            begun = True
            yield from state.steps(max(start, state.started))
            yield step
    if state is not None and not begun:
        yield from state.steps(max(start, state.started))


def _take_in(found: Overview, step: Step) -> None:
    found.end = max(found.end, step.time)
    match step:
        case Resync():
            fields = Fields.of_plain(step.header.fields)
            if fields not in found.fields:
                found.fields.append(fields)
        case Policies():
            if step.digest not in found.digests:
                found.digests.append(step.digest)
        case Decided():
            found.decisions += 1
            found.decided.add(step.uid or step.pod)
            found.victims.update(uid or key for key, uid in step.victims)
        case Changed(kind="Pod", object=None, own=True):
            found.own_deletions.add(step.key)
        case _:
            pass


def _unusable(message: str, help: str) -> PolicyError:  # noqa: A002 - as `Problem` calls it
    return PolicyError([Problem(message, help=help, code="recording")])
