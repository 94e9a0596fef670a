"""A flight recording as a whole: its segments in order, as one stream of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from koordpolicy.engine.source import PolicyError, Problem

from .fields import Fields
from .records import (
    Changed,
    Concluded,
    Decided,
    Ended,
    Existing,
    Gap,
    Header,
    Idle,
    Policies,
    Started,
    Touched,
)
from .segments import SegmentReader, segments_in


@dataclass(frozen=True, slots=True)
class Resync:
    """All objects at a time: the start of the recording, or what is known again after a gap."""

    time: int
    header: Header
    objects: Sequence[Existing]


Step: TypeAlias = Resync | Policies | Changed | Touched | Decided | Concluded | Idle


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
    """The segments of a directory, or some of them."""

    def __init__(self, segments: Sequence[Path]) -> None:
        self._segments = tuple(segments)
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
        return self._segments

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
            raise _unusable("no segment of the recording can be used: " + "; ".join(self._notes),
                            "replay another recording: of this one no segment holds all objects of its beginning")
        found.segments = len(self._segments)
        found.gaps, found.notes = self._gaps, self._notes
        return found

    def steps(self) -> Iterator[Step]:
        """Yield the recording in order: a `Resync` at the start and after each gap, and what happened after it.

        A segment that continues the one before it adds its changes only.
        """
        self._gaps, self._notes = [], []
        before: Header | None = None
        in_order = False
        end = dropped = 0
        why = ""
        for path in self._segments:
            reader = SegmentReader(path)
            header: Header | None = None
            existing: list[Existing] = []
            policies: list[Policies] = []
            known = closed = False
            for record in reader:
                match record:
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
                    case Ended():
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


def _unusable(message: str, help: str) -> PolicyError:  # noqa: A002
    return PolicyError([Problem(message, help=help, code="recording")])
