"""Events (events.k8s.io/v1) about objects, with equal ones aggregated into a series.

`record` may be called from any thread and neither blocks nor writes; `run` writes in the transport's event loop. Events
that repeat while the server is slow are counted in memory and take no room in the buffer. Unlike Kubernetes' own
recorder, which shows the first note of a series for ever, this one updates the note when it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from koordpolicy.engine.kubernetes.times import rfc3339_micro
from koordpolicy.engine.source import PolicyError

from .io_thread import IoThread
from .repeats import RepeatedFaults
from .resources import ApiResource, ObjectReference
from .transport import MERGE_PATCH, ApiError, ConnectionFailed, Transport

_LOG: Final = logging.getLogger(__name__)

EVENTS: Final = ApiResource("Event", "events.k8s.io", "v1", "events")
CORE_EVENTS: Final = ApiResource("Event", "", "v1", "events")
"""The same objects. A note can be changed there only; it is called `message`."""

_BUFFER: Final = 1000
_AT_ONCE: Final = 16
"""Events that are written at the same time: if they were written one after the other, a scheduler would make more than
are written."""
_NOTE_BYTES: Final = 1024
_CUT: Final = b" ..."
_FIELD: Final = 128
_NAME: Final = 253
_TRIES: Final = 12
_RETRY_S: Final = 10.0
_RETRY_JITTER: Final = 0.25
_REFRESH_S: Final = 30 * 60.0
_FORGET_S: Final = 6 * 60.0
_LOOK_S: Final = 60.0
_FLUSH_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class RecorderView:
    """Counters of a recorder since its start, for other threads."""

    recorded: int = 0
    """Calls of `record` that were accepted."""
    dropped: int = 0
    """Calls of `record` that were not, as the buffer was full."""
    written: int = 0
    """Requests that succeeded: events that were created, and updates of series."""
    refused: int = 0
    """Writes that the server refused; they are not repeated."""
    failed: int = 0
    """Writes that were given up after 12 failed connections or an unexpected error."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Events with the same key are one series, whatever their notes are."""

    type: str
    action: str
    reason: str
    controller: str
    regarding: ObjectReference
    related: ObjectReference | None


@dataclass(slots=True)
class _Series:
    """One event on the server, with what was observed and what was written of it."""

    name: str
    first: float
    """Times in seconds since the epoch."""
    last: float
    note: str
    count: int = 1
    queued: bool = False
    """True from its entry into the buffer until the end of its write."""
    written_count: int = 0
    """0 until the event was created."""
    written_note: str = ""
    written_at: float = 0.0
    refreshed: bool = False
    """True once it is among the series to refresh."""

    @property
    def due(self) -> bool:
        """True if its first event, its first repeat or a new note is to be written, and is not queued for it."""
        return not self.queued and self.count > self.written_count and (
            self.written_count <= 1 or self.note != self.written_note)


class EventSink(Protocol):
    """Records events without waiting, as an `EventRecorder` does."""

    def record(
        self, regarding: ObjectReference, *, type: str, reason: str, action: str, note: str, controller: str,  # noqa: A002 - the field's name
    ) -> bool:
        """Record an event; return False if it was dropped."""
        ...


class EventRecorder:
    """Records events through one transport. Use a transport of its own, so that events do not delay other writes."""

    def __init__(
        self, transport: Transport, *, host: str | None = None, buffer: int = _BUFFER, at_once: int = _AT_ONCE,
        now: Callable[[], float] = time.time, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        """`host` (the machine's name if None) follows the controller's name in `reportingInstance`.

        At most `buffer` series wait to be written, and `at_once` are written at the same time. `now` returns seconds
        since the epoch, `jitter` numbers in [0, 1).
        """
        self.view = RecorderView()
        self._transport = transport
        self._host = socket.gethostname() if host is None else host
        self._buffer = buffer
        self._at_once = at_once
        self._writers: set[asyncio.Task[None]] = set()
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._lock = threading.Lock()
        self._faults = RepeatedFaults()
        """Of all below, and of the fields of each series."""
        self._series: dict[_Key, _Series] = {}
        """In the order of their last event: series that have ended are first."""
        self._refreshes: list[tuple[float, int, _Key, _Series]] = []
        """A heap of the series that were updated, each once, by the earliest time of its next refresh."""
        self._numbers = itertools.count()
        self._queue: deque[tuple[_Key, _Series]] = deque()
        self._looked_at = float("-inf")
        self._last_nanoseconds = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """The loop's thread."""
        self._wake = asyncio.Event()

    def record(
        self, regarding: ObjectReference, *, type: str, reason: str, action: str, note: str, controller: str,  # noqa: A002 - the field's name
        related: ObjectReference | None = None,
    ) -> bool:
        """Record an event; return False if it was dropped, as the buffer is full.

        `type` is Normal or Warning, `controller` the name that reports (of a scheduler, that of the profile). A note of
        more than 1024 bytes is cut. Within 6 minutes of the last event with the same arguments, the note aside, it is
        counted in the series of that one.
        """
        key = _Key(type, action[:_FIELD], reason[:_FIELD], controller, regarding, related)
        note, now = cut_note(note), self._now()
        with self._lock:
            series = self._series.pop(key, None)
            if series is not None:
                self._series[key] = series  # behind all others
                series.note, series.count, series.last = note, series.count + 1, now
            elif len(self._queue) >= self._buffer:
                self.view = replace(self.view, dropped=self.view.dropped + 1)
                return False
            else:
                series = self._series[key] = _Series(self._name(regarding, now), now, now, note)
            self.view = replace(self.view, recorded=self.view.recorded + 1)
            # Without a place in the buffer a series is written with its next event, or when it ends.
            if series.due and len(self._queue) < self._buffer:
                self._enqueue(key, series)
        if self._loop is not None and not self._wake.is_set():
            if threading.get_ident() == self._thread:
                self._wake.set()
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._wake.set)
        return True

    async def run(self) -> None:
        """Write events until cancelled; `flush` writes the rest."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        try:
            while True:
                self._wake.clear()
                self._look()
                self._start_writers()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._wake.wait()
        finally:
            await self._stop_writers()

    async def flush(self) -> None:
        """Write all that is due and return; use it at the end, within a time limit, once `run` has been cancelled.

        The transport's limit of requests is lifted: it would let a scheduler write 75 of its last events in that time.
        """
        self._transport.lift_limit()
        self._look()
        try:
            while self._queue or self._writers:
                self._start_writers()
                await asyncio.wait(self._writers)
        finally:
            await self._stop_writers()

    def _start_writers(self) -> None:
        # A writer that has begun takes the next one by itself.
        for _ in range(min(len(self._queue), self._at_once - len(self._writers))):
            writer = asyncio.get_running_loop().create_task(self._write_queued())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)

    async def _stop_writers(self) -> None:
        writers = tuple(self._writers)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)

    async def _write_queued(self) -> None:
        while self._queue:
            with self._lock:
                key, series = self._queue.popleft()
            try:
                await self._write(key, series)
            except asyncio.CancelledError:
                with self._lock:
                    self._queue.appendleft((key, series))
                raise
            except Exception:
                _LOG.exception("an event about %s/%s is lost", key.regarding.namespace, key.regarding.name,
                               extra=key.regarding.log_fields)
                with self._lock:
                    series.queued = False
                    self.view = replace(self.view, failed=self.view.failed + 1)
                    if self._series.get(key) is series:
                        del self._series[key]

    def _look(self) -> None:
        """Queue the series to refresh, and those that have ended, which are forgotten."""
        now = self._now()
        with self._lock:
            if now - self._looked_at < _LOOK_S:
                return
            self._looked_at = now
            while self._series:
                key, series = next(iter(self._series.items()))
                if now - series.last <= _FORGET_S:
                    break
                del self._series[key]
                if not series.queued and series.count > series.written_count:
                    self._enqueue(key, series)
            while self._refreshes and self._refreshes[0][0] <= now:
                _, number, key, series = heapq.heappop(self._refreshes)
                if self._series.get(key) is not series:
                    continue
                due = series.written_at + _REFRESH_S
                if due <= now:
                    if not series.queued:
                        self._enqueue(key, series)
                    due = now + _LOOK_S  # if it fails, it is tried again; else it is due later by then
                heapq.heappush(self._refreshes, (due, number, key, series))

    def _enqueue(self, key: _Key, series: _Series) -> None:
        series.queued = True
        self._queue.append((key, series))

    def _name(self, regarding: ObjectReference, now: float) -> str:
        self._last_nanoseconds = max(int(now * 1e9), self._last_nanoseconds + 1)
        suffix = f".{self._last_nanoseconds:x}"
        return regarding.name[:_NAME - len(suffix)].rstrip(".-") + suffix

    async def _write(self, key: _Key, series: _Series) -> None:
        with self._lock:
            state = replace(series)
        create = state.written_count == 0
        error = await self._send(key, state, create=create)
        if not create and isinstance(error, ApiError) and error.code == 404:
            # It has expired, or somebody deleted it.
            create = True
            error = await self._send(key, state, create=True)
        if create and isinstance(error, ApiError) and error.reason == "AlreadyExists":
            error = None  # the answer to an earlier attempt was lost
        with self._lock:
            series.queued = False
            if error is None:
                self.view = replace(self.view, written=self.view.written + 1)
            elif isinstance(error, ApiError):
                self.view = replace(self.view, refused=self.view.refused + 1)
            else:
                self.view = replace(self.view, failed=self.view.failed + 1)
            if error is not None:
                if self._faults.is_due(str(error), key.regarding.name):
                    _LOG.warning("the event %s about %s/%s cannot be written: %s", key.reason, key.regarding.namespace,
                                 key.regarding.name, error, extra=key.regarding.log_fields)
                if create:
                    if self._series.get(key) is series:
                        del self._series[key]
                    return
            if not isinstance(error, (ConnectionFailed, PolicyError)):
                # A refused update counts as written: the next change is the next attempt.
                if state.count > 1 and not series.refreshed:
                    series.refreshed = True
                    heapq.heappush(self._refreshes, (self._now() + _REFRESH_S, next(self._numbers), key, series))
                series.written_count, series.written_note, series.written_at = state.count, state.note, self._now()
            has_ended = self._series.get(key) is not series and series.count > series.written_count
            if (series.due or has_ended) and error is None:
                self._enqueue(key, series)

    async def _send(
        self, key: _Key, state: _Series, *, create: bool,
    ) -> ApiError | ConnectionFailed | PolicyError | None:
        """Create or update an event, with repeats while there is no answer; return the error of the last attempt."""
        namespace = key.regarding.namespace or "default"
        if create:
            request = ("POST", EVENTS.path(namespace), self._event(key, state), "application/json")
        elif state.note == state.written_note:
            request = ("PATCH", EVENTS.path(namespace, state.name), {"series": _of_series(state)}, MERGE_PATCH)
        else:
            patch = {"message": state.note, "series": _of_series(state)}
            request = ("PATCH", CORE_EVENTS.path(namespace, state.name), patch, MERGE_PATCH)
        method, path, body, content_type = request
        data, tries = json.dumps(body).encode(), 0
        while True:
            tries += 1
            try:
                await self._transport.request(method, path, body=data, content_type=content_type)
            except ApiError as error:
                return error
            except (ConnectionFailed, PolicyError) as error:
                if tries >= _TRIES:
                    return error
            else:
                return None
            await self._sleep(_RETRY_S * (1.0 + _RETRY_JITTER * (2.0 * self._jitter() - 1.0)))

    def _event(self, key: _Key, state: _Series) -> dict[str, Any]:
        event: dict[str, Any] = {
            "apiVersion": EVENTS.api_version, "kind": EVENTS.kind,
            "metadata": {"namespace": key.regarding.namespace or "default", "name": state.name},
            "eventTime": _micro(state.first), "type": key.type, "reason": key.reason, "action": key.action,
            "note": state.note, "regarding": _of_reference(key.regarding), "reportingController": key.controller,
            "reportingInstance": f"{key.controller}-{self._host}"[:_FIELD]}
        if key.related is not None:
            event["related"] = _of_reference(key.related)
        if state.count > 1:
            event["series"] = _of_series(state)
        return event


def end_recording(io: IoThread, recorder: EventRecorder, running: Future[Any], seconds: float = _FLUSH_S) -> None:
    """Cancel `running`, the future of `run`, and write what is due for `seconds` at most; not in the loop's thread."""
    running.cancel()
    try:
        flushing = io.submit(recorder.flush())
    except RuntimeError:
        return  # the loop does not run any more
    try:
        flushing.result(seconds)
    except FutureTimeoutError:
        flushing.cancel()
        _LOG.warning("not all events were written")
    except Exception:
        _LOG.exception("the last events were not written")


def _of_series(state: _Series) -> dict[str, Any]:
    return {"count": state.count, "lastObservedTime": _micro(state.last)}


def _of_reference(reference: ObjectReference) -> dict[str, str]:
    fields = {"apiVersion": reference.resource.api_version, "kind": reference.resource.kind,
              "namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
    return {name: value for name, value in fields.items() if value}


def _micro(seconds: float) -> str:
    return rfc3339_micro(int(seconds * 1e9))


def cut_note(note: str, ending: str = "") -> str:
    """Return a note of 1024 bytes of UTF-8 at most, which ends with `ending`.

    What is before the ending is cut if it is too long, at a character, with dots behind.
    """
    encoded, most = note.encode("utf-8", "replace"), _NOTE_BYTES - len(ending.encode())
    if len(encoded) <= most:
        return encoded.decode() + ending
    return encoded[:max(0, most - len(_CUT))].decode("utf-8", "ignore") + _CUT.decode() + ending
