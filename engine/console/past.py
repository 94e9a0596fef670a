"""The flight recording that the console shows: its timeline, and the state of the console at any time of it.

A thread reads the recording from its beginning, and goes on while it is written. Moments are read by the thread that
needs them, from the nearest checkpoint, so that none waits for the timeline.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.flight_recorder.fields import Fields, need_recorded
from koordpolicy.engine.flight_recorder.moments import Moments, nothing_recorded
from koordpolicy.engine.flight_recorder.recorded_state import RecordedState, Step
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.records import Decided
from koordpolicy.engine.flight_recorder.segments import begin_of, segments_in
from koordpolicy.engine.flight_recorder.settings import replay_settings
from koordpolicy.engine.flight_recorder.timeline import Timeline
from koordpolicy.engine.kubernetes.times import rfc3339

from .policy_set import PolicySet
from .state import ConsoleState, UnknownNameError

LAST: Final = 2**62
"""After all times of recordings, in nanoseconds since the epoch."""
PAST_TIMES: Final = 4
"""The factor by which a view of the past may take longer than another view."""
_PAUSE_S: Final = 2.0
"""The pause between two attempts to read on, at the end of a recording that may still be written."""
_QUIET: Final = 60_000_000_000
"""The time in ns after the last record, as nothing is written of a cluster in which nothing changes."""
_BATCH: Final = 500
_STATES: Final = 4
_MOST_EXPIRY_S: Final = 1_000_000_000
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Cached:
    state: ConsoleState
    written: tuple[str, int] | None
    """The last segment and its size when it was read; None if the state is final."""


class Past:
    """The recording in a directory. `start` begins to read its timeline, `close` ends that."""

    def __init__(self, directory: Path, *, pause: float = _PAUSE_S) -> None:
        self.directory = directory
        self._pause = pause
        self._moments = Moments(directory)
        self._states: OrderedDict[int, _Cached] = OrderedDict()
        self._recording = FlightRecording(())
        self._timeline = Timeline()
        self._complete = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="timeline", daemon=True)

    def start(self) -> None:
        """Begin to read the timeline."""
        self._thread.start()

    def close(self) -> None:
        """End the reading; waits for nothing."""
        self._ended.set()

    @contextmanager
    def timeline(self) -> Iterator[tuple[Timeline, FlightRecording, bool]]:
        """The timeline so far, the part of the recording that was read, and whether all that is written was read.

        Neither changes within the block.
        """
        with self._lock:
            yield self._timeline, self._recording, self._complete

    def moment(self, time: int) -> RecordedState:
        """Return the recorded cluster at a time, within the deadline of the thread.

        Raises:
            PolicyError: nothing is recorded of that time; the message has the recorded range.
            OverdueError: it takes too long; a later call goes on where this one ended.
        """
        self._check(time)
        return self._moments.at(time, Deadline.poll)

    def decision_about(self, key: str, time: int) -> Decided | None:
        """Return the last recorded decision about a pod until a time; raises what `moment` raises."""
        self._check(time)
        return self._moments.decision_about(key, time, Deadline.poll)

    def state_at(self, time: int, policies: PolicySet) -> ConsoleState:
        """Return the console's state at a time: the recorded cluster under these policies.

        The states of the last few times are cached.

        Raises:
            PolicyError: nothing is recorded of that time, or the policies read what was not recorded.
            OverdueError: as `moment` does.
        """
        self._check(time)
        return self._state_at(time, policies)

    def _check(self, time: int) -> None:
        """Raise what `moment` raises for a time outside of the recording."""
        segments = segments_in(self.directory)
        if not segments:
            return  # `Moments` says so
        begin = begin_of(segments[0])
        if begin <= time <= self._timeline.end + _QUIET:
            return
        end = max(self._timeline.end, self._moments.at(LAST, Deadline.poll).time)
        if not begin <= time <= end + _QUIET:
            raise nothing_recorded(f"the recording is of {rfc3339(begin)} to {rfc3339(end)}")

    def _state_at(self, time: int, policies: PolicySet) -> ConsoleState:
        written = self._written_until(time)
        known = self._states.get(time)
        if known is None or known.state.policies is not policies or known.written not in (None, written):
            # The size is read before the state: if the segment grows meanwhile, the next call reads the state again.
            moment = self._moments.at(time, Deadline.poll)
            known = self._states[time] = _Cached(state_of(moment, policies, time, name=str(self.directory)), written)
            while len(self._states) > _STATES:
                self._states.popitem(last=False)
        self._states.move_to_end(time)
        return known.state

    def _written_until(self, time: int) -> tuple[str, int] | None:
        """Return the last segment and its size; None if later times are recorded: then this one is final."""
        if self._timeline.end > time:
            return None
        last = max(segments_in(self.directory), default=None)
        return None if last is None else (last.name, last.stat().st_size)

    def last_state(self, policies: PolicySet, time: int | None = None) -> ConsoleState:
        """Return the state at the end of what is recorded, or at a time; raises what `state_at` raises."""
        at = self._moments.at(LAST, Deadline.poll).time if time is None else time
        return self._state_at(at, policies)

    def _follow(self) -> None:
        steps = self._recording.follow(self.directory)
        fault = ""
        while not self._ended.is_set():
            batch: list[Step] = []
            complete = False
            try:
                while len(batch) < _BATCH and not complete:
                    step = next(steps)
                    if step is None:
                        complete = True
                    else:
                        batch.append(step)
            except OSError as error:
                if str(error) != fault:
                    fault = str(error)
                    _LOG.error("the recording %s cannot be read: %s", self.directory, error.strerror or error)
                with self._lock:
                    self._recording, self._timeline, self._complete = FlightRecording(()), Timeline(), True
                steps = self._recording.follow(self.directory)
                self._ended.wait(self._pause)
                continue
            with self._lock:
                for each in batch:
                    self._timeline.take(each)
                self._complete = complete
            if complete:
                self._ended.wait(self._pause)


def time_of(text: str) -> int:
    """Return a time of a request (RFC 3339), in nanoseconds since the epoch; raises `ValueError`."""
    return min(max(nanoseconds(text, "the time"), 0), LAST)


def recorded(past: Past | None) -> Past:
    """Return the recording; raise `UnknownNameError` if the console has none."""
    if past is None:
        raise UnknownNameError("the console shows no flight recording: start it with `--recorded DIR`")
    return past


def state_of(
    moment: RecordedState, policies: PolicySet, time: int, *, name: str, poll: Callable[[], None] = Deadline.poll,
) -> ConsoleState:
    """Return the console's state at a moment of a recording; malformed objects are left out.

    Raises:
        PolicyError: the policies read what was not recorded, or the recorded settings cannot be used.
    """
    header = moment.header
    settings = replay_settings(header.settings, policies.registry)
    fields = Fields.of_plain(header.fields)
    need_recorded([fields], settings.profiles, policies.registry)
    cluster = Cluster(kinds=None if header.kinds is None else frozenset(header.kinds),
                      metric_expiry_seconds=min(max(header.metric_expiry, 0), _MOST_EXPIRY_S))

    def polled() -> Iterator[Mapping[str, Any]]:
        for number, item in enumerate(moment.objects.values()):
            if number % _BATCH == 0:
                poll()
            yield item

    cluster.upsert_all(polled())
    for key, node in moment.bound.items():
        pod = cluster.pod(key)
        if pod is not None and not pod.node_name and node in cluster.index:
            cluster.assume(pod, node)
    return ConsoleState(cluster, policies, now=time, name=f"{name}, {rfc3339(time)}", settings=settings, fields=fields)
