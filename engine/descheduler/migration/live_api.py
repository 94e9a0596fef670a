"""The requests of migrations to a live API server: made in the event loop of its client, awaited by the caller.

Each is sent once. An update has the resourceVersion, a deletion and an eviction the UID of its object. If no answer
arrives, the object is read to find out whether the write was carried out; one that arrives later hits another version.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult
from koordpolicy.engine.framework.handle import EvictionRefusedError
from koordpolicy.engine.source import PolicyError

from ..live.evictions import GONE, LEAVING, EvictionRequest
from . import jobs, reservations
from .controller import AlreadyExists, RequestFailed
from .settings import SECOND
from .writes import EvictPod, RecordEvent

Json = Mapping[str, Any]
T = TypeVar("T")

CONTROLLER: Final = "koord-descheduler"
"""The component that reports events, as Koordinator's."""
ACTION: Final = "Migrating"
_JOBS: Final = BY_KIND[jobs.KIND]
_RESERVATIONS: Final = BY_KIND[reservations.KIND]
_REQUEST_S: Final = 15.0
_LOOKS_S: Final = (0.0, 0.2, 1.0)
_GONE: Final = frozenset({WriteStatus.GONE, WriteStatus.REPLACED})


class EvictionSender(Protocol):
    """Evicts pods (`LiveEvictions`)."""

    def evict(self, request: EvictionRequest) -> EvictionResult:
        """Evict a pod; raises `EvictionRefusedError` if it stays."""
        ...


class LiveMigrationApi:
    """Implements `MigrationApi`. All methods wait for the answer, so they are not for the event loop of `io`."""

    def __init__(
        self, io: IoThread, transport: Transport, recorder: EventRecorder, evictions: EvictionSender, *,
        may_write: Callable[[], bool] = lambda: True, leads: Callable[[], bool] = lambda: True,
        looks_s: Sequence[float] = _LOOKS_S,
    ) -> None:
        """`transport` belongs to the loop of `io`. Before each write `may_write` is called; before those that work off
        jobs `leads`, too: of several replicas each creates jobs, and one works them off.

        `looks_s` are the delays before the reads of an object whose write has no answer, in seconds.
        """
        self._io = io
        self._transport = transport
        self._writer = ClusterWriter(transport)
        self._recorder = recorder
        self._evictions = evictions
        self._may_write = may_write
        self._leads = leads
        self._looks_s = tuple(looks_s)

    # Reads

    def job(self, name: str) -> Json | None:
        """Return a job as the API server has it, or None."""
        return self._read(ObjectReference(_JOBS, "", name))

    def reservation(self, name: str) -> Json | None:
        """Return a reservation as the API server has it, or None."""
        return self._read(ObjectReference(_RESERVATIONS, "", name))

    def pod(self, namespace: str, name: str) -> Json | None:
        """Return a pod as the API server has it, or None."""
        return self._read(pod_reference(namespace, name, ""))

    # Jobs

    def create_job(self, job: Json) -> Json:
        """Create a job and return it as stored."""
        result = self._sent(lambda: self._writer.create(_JOBS, job, retries=0))
        name = jobs.name_of(job)
        if result.status in {WriteStatus.UNKNOWN, WriteStatus.CONFLICT}:
            # The name is random: one of the same pod and the same creator is that of an earlier attempt.
            found = self._look(lambda: self.job(name), lambda found: found is not None)
            if found is not None and _is_same_request(found, job):
                return found
        return self._stored(result, f"create the migration job {name}")

    def update_job(self, job: Json) -> Json:
        """Write a job without its status, and return it as stored."""
        return self._update(job, None, ("metadata", "annotations"), ("spec",))

    def update_job_status(self, job: Json) -> Json:
        """Write a job's status, and return it as stored."""
        return self._update(job, "status", ("status",))

    def _update(self, job: Json, subresource: str | None, *fields: tuple[str, ...]) -> Json:
        result = self._send(lambda: self._writer.replace(_JOBS, job, subresource=subresource))
        name = jobs.name_of(job)
        if result.status in {WriteStatus.UNKNOWN, WriteStatus.CONFLICT}:
            # A conflict may be one with itself: the connection repeats a request that it may have lost.
            version = jobs.metadata_of(job).get("resourceVersion")
            found = self._look(
                lambda: self.job(name),
                lambda found: found is None or jobs.metadata_of(found).get("resourceVersion") != version)
            if found is not None and _has_fields_of(found, job, fields):
                return found
        return self._stored(result, f"change the migration job {name}")

    def delete_job(self, name: str, uid: str) -> None:
        """Delete a job of that UID."""
        reference = ObjectReference(_JOBS, "", name, uid)
        result = self._send(lambda: self._writer.delete(reference, propagation="Background", retries=0))
        self._check_deletion(result, lambda: self.job(name), uid, f"delete the migration job {name}")

    # Reservations

    def create_reservation(self, reservation: Json) -> None:
        """Create a reservation; raise `AlreadyExists` if there is one of that name."""
        name = jobs.name_of(reservation)
        result = self._send(lambda: self._writer.create(_RESERVATIONS, reservation, retries=0))
        if result.status is WriteStatus.UNKNOWN and self._look(
                lambda: self.reservation(name), lambda found: found is not None) is not None:
            raise AlreadyExists(name)  # whose it is, is found out as for any other
        if result.status is WriteStatus.CONFLICT:
            raise AlreadyExists(name)
        self._check(result, f"create the reservation {name}")

    def update_reservation(self, reservation: Json) -> None:
        """Write the labels of a reservation."""
        metadata = jobs.metadata_of(reservation)
        reference = ObjectReference(_RESERVATIONS, "", jobs.name_of(reservation), jobs.uid_of(reservation))
        result = self._send(lambda: self._writer.merge_patch(
            reference, {"metadata": {"labels": dict(metadata.get("labels") or {})}},
            resource_version=str(metadata.get("resourceVersion") or "")))
        self._check(result, f"label the reservation {reference.name}")

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""
        found = self.reservation(name)
        if found is None:
            return
        uid = jobs.uid_of(found)
        reference = ObjectReference(_RESERVATIONS, "", name, uid)
        result = self._send(lambda: self._writer.delete(reference, retries=0))
        self._check_deletion(result, lambda: self.reservation(name), uid, f"delete the reservation {name}")

    # Pods

    def evict(self, eviction: EvictPod) -> None:
        """Evict a pod of that UID by the eviction's policy."""
        self._check_leadership()
        try:
            self._evictions.evict(EvictionRequest(
                eviction.pod, EvictionMode(eviction.policy), eviction.reason, eviction.trigger, CONTROLLER, ACTION,
                f'Pod evicted from node "{eviction.node}" by the reason "{eviction.reason}"', eviction.delete_options))
        except EvictionRefusedError as refused:
            if refused.rule == GONE:
                return
            # One without an answer may have been carried out, and others may have requested the same.
            if refused.rule not in (LEAVING, WriteStatus.UNKNOWN.value) or not _leaves(
                    self.pod(eviction.namespace, eviction.name), eviction.uid):
                raise RequestFailed(f"cannot evict {eviction.namespace}/{eviction.name}: {refused}",
                                    retry_after=int(refused.retry_after_s * SECOND)) from refused

    def record(self, event: RecordEvent) -> None:
        """Record an event."""
        reference = ObjectReference(_JOBS, "", jobs.name_of(event.job), jobs.uid_of(event.job))
        self._recorder.record(
            reference, type="Warning" if event.warning else "Normal", reason=event.reason, action=ACTION,
            controller=CONTROLLER, note=event.message)

    # Requests

    def _check_leadership(self) -> None:
        if not self._leads():
            raise RequestFailed("this process does not lead any more")

    def _send(self, write: Callable[[], Coroutine[Any, Any, WriteResult]]) -> WriteResult:
        self._check_leadership()
        return self._sent(write)

    def _sent(self, write: Callable[[], Coroutine[Any, Any, WriteResult]]) -> WriteResult:
        if not self._may_write():
            raise RequestFailed("this process does not lead any more, and has no shard")

        async def send() -> WriteResult:
            try:
                async with asyncio.timeout(_REQUEST_S):
                    return await write()
            except TimeoutError:
                return WriteResult(WriteStatus.UNKNOWN, f"no answer within {_REQUEST_S:g} s")

        return self._io.submit(send()).result()

    def _read(self, reference: ObjectReference) -> Json | None:
        async def read() -> bytes:
            return await self._transport.request("GET", reference.path(), timeout=_REQUEST_S, retries=1)

        try:
            found: Json = json.loads(self._io.submit(read()).result())
        except ApiError as error:
            if error.code == 404:
                return None
            raise RequestFailed(
                f"cannot read {reference.resource.kind} {reference.name}: {error}",
                retry_after=int((error.retry_after or 0) * SECOND)) from error
        except (ConnectionFailed, PolicyError, ValueError) as error:
            raise RequestFailed(f"cannot read {reference.resource.kind} {reference.name}: {error}") from error
        return found

    def _look(self, read: Callable[[], T], decided: Callable[[T], bool]) -> T:
        """Read an object until what is read decides the outcome of a write, a few times at most."""
        *some, last = self._looks_s
        for delay in some:
            self._pause(delay)
            found = read()
            if decided(found):
                return found
        self._pause(last)
        return read()

    def _pause(self, seconds: float) -> None:
        if seconds:
            self._io.submit(asyncio.sleep(seconds)).result()

    def _stored(self, result: WriteResult, what: str) -> Json:
        self._check(result, what)
        found: Json = json.loads(result.answer)
        return found

    def _check_deletion(self, result: WriteResult, read: Callable[[], Json | None], uid: str, what: str) -> None:
        if result.status in _GONE:
            return
        if result.status is WriteStatus.UNKNOWN:
            found = self._look(read, lambda found: _leaves(found, uid))
            if _leaves(found, uid):
                return
        self._check(result, what)

    def _check(self, result: WriteResult, what: str) -> None:
        if not result.done:
            _refuse(result, what)


def _refuse(result: WriteResult, what: str) -> NoReturn:
    raise RequestFailed(f"cannot {what}: {result.message or result.status.value}",
                        retry_after=int((result.retry_after or 0) * SECOND))


def _leaves(found: Json | None, uid: str) -> bool:
    """Return whether the object of that UID is gone, replaced, or being deleted."""
    return found is None or jobs.uid_of(found) != uid or bool(jobs.metadata_of(found).get("deletionTimestamp"))


def _is_same_request(found: Json, job: Json) -> bool:
    return (jobs.pod_ref(found), jobs.annotations_of(found).get(jobs.CREATED_BY_ANNOTATION)) == (
        jobs.pod_ref(job), jobs.annotations_of(job).get(jobs.CREATED_BY_ANNOTATION))


def _has_fields_of(found: Json, job: Json, fields: Sequence[tuple[str, ...]]) -> bool:
    """Return whether an object is what was written: of the same UID, and with the same fields."""
    return jobs.uid_of(found) == jobs.uid_of(job) and all(_at(found, path) == _at(job, path) for path in fields)


def _at(item: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        item = (item or {}).get(name)
    return item or {}
