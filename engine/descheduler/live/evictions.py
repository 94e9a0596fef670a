"""Evictions of a live cluster: each is sent once, and its answer decides when it and others may be sent again.

Both ways lead here, the evict plugins of cycles and the jobs of the migration controller: back-offs and the pods that
leave already are the same for both. Nothing sleeps; a request is waited for, with a time limit.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.client.event_recorder import EventSink
from koordpolicy.engine.client.eviction_backoff import Evictee, EvictionBackoff, EvictionEffect, Hold
from koordpolicy.engine.client.io_thread import Submitter
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import ObjectReference, pod_reference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult
from koordpolicy.engine.framework.handle import EvictionRefusedError
from koordpolicy.engine.kubernetes.times import rfc3339

from ..background import BACKGROUND_MESSAGE
from ..own_facts import REQUEST_ONLY

_LOG: Final = logging.getLogger(__name__)

SOFT_EVICTION: Final = "scheduling.koordinator.sh/soft-eviction"
REQUEST_S: Final = 10.0
"""The time for one request. A budget that changes all the time takes the server up to ten seconds."""
REASON: Final = "Descheduled"
UNANSWERED: Final = 3
"""The requests in a row without an answer after which no other one is made for a while: each takes `REQUEST_S`."""
PAUSE_S: Final = 15.0
FAILED_REASON: Final = "EvictionFailed"
"""The reason of the event of a refused eviction; Kubernetes descheduler's (`evictionFailureEventNotification`)."""
_SUCCESS: Final = "success"
GONE: Final = "gone"
"""The result of an eviction that found the pod gone or replaced: nothing was evicted."""
LEAVING: Final = "leaving"
"""The rule of the refusal of a pod whose eviction was requested before."""
NOT_LEADING: Final = "not-leading"


@dataclass(frozen=True, slots=True)
class EvictionRequest:
    """A pod to evict, how, and why."""

    pod: Mapping[str, Any]
    """The pod as the API has it; its UID is the precondition."""
    mode: EvictionMode
    reason: str
    strategy: str
    """The plugin that chose the pod, or the trigger of its job."""
    controller: str
    """The component that events name: the profile."""
    action: str = "Evicting"
    """The action of the event: Evicting, or Migrating for a job."""
    note: str = ""
    """The text of the event; empty for `pod evicted by` with the strategy, and the reason."""
    delete_options: Mapping[str, Any] | None = None
    reports_failure: bool = False
    """True if a refusal of the API server is an event."""


@dataclass(frozen=True, slots=True)
class AttemptedEviction:
    """An eviction that was tried, with its result, for metrics and the status page."""

    time: float
    """In seconds since the epoch."""
    namespace: str
    name: str
    node: str
    strategy: str
    mode: EvictionMode
    result: str
    """`success`, `requested`, or why it was not evicted: `pdb-blocked`, `leaving`, `gone`."""
    message: str = ""
    sent: bool = True
    """False if a back-off, or that the pod leaves already, made a request unnecessary."""


class Silence:
    """The pause of all writes after several in a row had no answer: each takes its whole time limit.

    Belongs to the descheduler's thread; `hold` may be called from any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unanswered = 0
        self._hold: Hold | None = None

    def note(self, *, answered: bool) -> None:
        """Note a write that had an answer, or none."""
        self._unanswered = 0 if answered else self._unanswered + 1
        if self._unanswered >= UNANSWERED:
            self._hold = Hold(self._clock() + PAUSE_S, "the last writes had no answer", WriteStatus.UNKNOWN, PAUSE_S)

    def hold(self) -> Hold | None:
        """Return the pause, or None if writes may be sent."""
        hold = self._hold
        return hold if hold is not None and self._clock() < hold.until else None


class LiveEvictions:
    """Carries out evictions for the thread of the descheduler."""

    def __init__(
        self, io: Submitter, writer: ClusterWriter, *, events: EventSink | None = None,
        budgets: Callable[[Mapping[str, Any]], Iterable[str] | None] = lambda _: None,
        may_write: Callable[[], bool] = lambda: True, observers: Sequence[Callable[[AttemptedEviction], object]] = (),
        clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = time.time_ns,
        request_s: float = REQUEST_S, on_evicted: Callable[[Mapping[str, Any]], object] = lambda _: None,
        silence: Silence | None = None,
    ) -> None:
        """`writer` belongs to the loop of `io`. `budgets` returns the names of the PodDisruptionBudgets that select a
        pod, None if they are not known. `may_write` is called before each request, `on_evicted` with each pod that
        leaves from now on. `clock` measures back-offs in seconds, `now` returns the time in nanoseconds since the
        epoch. `silence` is shared with other writes to the same API server.
        """
        self._io = io
        self._writer = writer
        self._events = events
        self._budgets = budgets
        self._may_write = may_write
        self._observers = tuple(observers)
        self._clock = clock
        self._now = now
        self._request_s = request_s
        self._backoff = EvictionBackoff()
        self._faults = RepeatedFaults(clock=clock)
        self._on_evicted = on_evicted
        self._silence = silence or Silence(clock)

    def holds(self) -> Mapping[str, tuple[str, float]]:
        """Return the budgets that hold pods back, by `namespace/name`, with the reason and the seconds that are left;
        under `*` what holds back every eviction.
        """
        now = self._clock()
        pause = self._silence.hold() or self._backoff.pause(now)
        backoffs = dict(self._backoff.budgets(now)) | ({} if pause is None else {"*": pause})
        return {name: (hold.reason, hold.until - now) for name, hold in backoffs.items()}

    def evict(self, request: EvictionRequest) -> EvictionResult:
        """Evict a pod; return whether it leaves, or another component removes it.

        Raises:
            EvictionRefusedError: it stays, with the reason and a rule that names the kind of refusal.
        """
        pod = Evictee.of(request.pod, self._budgets(request.pod))
        now = self._clock()
        self._backoff.forget(now)
        refusal = self._refusal_before(request, pod, now)
        if refusal is not None:
            rule, message, until = refusal
            raise self._refused(request, rule, message, max(until - now, 0.0), sent=False)
        self._backoff.begin(pod.uid, now)
        result = self._send(request)
        now = self._clock()
        unknown = result.status is WriteStatus.UNKNOWN
        self._silence.note(answered=not unknown)
        if _is_moved(request, result):
            self._backoff.cancel(pod.uid)
            self._report(request, "requested", result.message)
            return EvictionResult.REQUESTED
        if request.mode is EvictionMode.SOFT_EVICTION and result.done:
            self._backoff.cancel(pod.uid)
            self._succeeded(request)
            return EvictionResult.REQUESTED
        effect = self._backoff.note(pod, result, now)
        if effect is EvictionEffect.LEFT:
            if result.status is not WriteStatus.DONE:
                self._report(request, GONE, "it was gone already")
                raise EvictionRefusedError("it was gone already", GONE)
            self._succeeded(request)
            return EvictionResult.EVICTED
        hold = self._hold(request, pod, now)
        raise self._refused(request, result.status.value, result.message or result.status.value,
                            0.0 if hold is None else hold.until - now, may_leave=unknown)

    def budget_changed(self, budget: Mapping[str, Any]) -> None:
        """Take note of a PodDisruptionBudget: pods that it held may be tried again, if it permits evictions now."""
        metadata, status = budget["metadata"], budget.get("status") or {}
        if (status.get("disruptionsAllowed") or 0) > 0:
            self._backoff.release(str(metadata.get("namespace") or "default"), str(metadata["name"]))

    def _refusal_before(self, request: EvictionRequest, pod: Evictee, now: float) -> tuple[str, str, float] | None:
        """Return rule and reason why nothing is sent, and until when, or None."""
        if not self._may_write():
            return NOT_LEADING, "this process does not lead any more", now
        if not pod.uid:
            return "uid", "the pod has no UID", now
        if self._backoff.is_leaving(pod.uid):
            return LEAVING, "its eviction was requested before", now
        hold = self._hold(request, pod, now)
        return None if hold is None else (hold.status.value, _held(hold, now), hold.until)

    def _hold(self, request: EvictionRequest, pod: Evictee, now: float) -> Hold | None:
        """Return the back-off that delays the eviction of the pod; budgets delay no deletion."""
        silence = self._silence.hold()
        if silence is not None:
            return silence
        if request.mode is EvictionMode.EVICTION:
            return self._backoff.hold(pod, now)
        return self._backoff.refusals(now).get(pod.uid) or self._backoff.pause(now)

    def _send(self, request: EvictionRequest) -> WriteResult:
        metadata = request.pod["metadata"]
        reference = pod_reference(str(metadata.get("namespace") or "default"), str(metadata["name"]),
                                  str(metadata["uid"]))
        try:
            sending = self._io.submit(self._request(reference, request))
        except RuntimeError as error:
            return WriteResult(WriteStatus.UNREACHABLE, str(error))
        try:
            return sending.result(self._request_s)
        except FutureTimeoutError:
            sending.cancel()
            return WriteResult(WriteStatus.UNKNOWN, f"there was no answer within {self._request_s:g} s")

    async def _request(self, pod: ObjectReference, request: EvictionRequest) -> WriteResult:
        match request.mode:
            case EvictionMode.DELETE:
                return await self._writer.delete(pod, more=request.delete_options, retries=0)
            case EvictionMode.SOFT_EVICTION:
                return await self._writer.merge_patch(pod, {"metadata": {"annotations": {
                    SOFT_EVICTION: soft_eviction(request, self._now())}}})
            case _:
                return await self._writer.evict(pod, more=request.delete_options)

    def _succeeded(self, request: EvictionRequest) -> None:
        if request.mode is not EvictionMode.SOFT_EVICTION:
            self._on_evicted(request.pod)
        by = f"pod evicted by {request.strategy}"
        self._record(request, "Normal", REASON, request.note or (f"{by}: {request.reason}" if request.reason else by))
        self._report(request, _SUCCESS, "")

    def _record(self, request: EvictionRequest, kind: str, reason: str, note: str) -> None:
        if self._events is None:
            return
        metadata = request.pod["metadata"]
        self._events.record(
            pod_reference(str(metadata.get("namespace") or "default"), str(metadata["name"]), str(metadata["uid"])),
            type=kind, reason=reason, action=request.action, controller=request.controller, note=note)

    def _refused(
        self, request: EvictionRequest, rule: str, message: str, retry_after_s: float, *, sent: bool = True,
        may_leave: bool = False,
    ) -> EvictionRefusedError:
        if sent and request.reports_failure:
            self._record(request, "Warning", FAILED_REASON, f"eviction by {request.strategy} failed: {message}")
        self._report(request, rule, message, sent=sent)
        return EvictionRefusedError(message, rule, retry_after_s=retry_after_s, may_leave=may_leave)

    def _report(self, request: EvictionRequest, result: str, message: str, *, sent: bool = True) -> None:
        metadata, spec = request.pod["metadata"], request.pod.get("spec") or {}
        attempt = AttemptedEviction(
            self._now() / 1e9, str(metadata.get("namespace") or "default"), str(metadata["name"]),
            str(spec.get("nodeName") or ""), request.strategy, request.mode, result, message, sent)
        if result == _SUCCESS:
            _LOG.info("%s: %s of %s/%s on %s: %s", attempt.strategy, attempt.mode, attempt.namespace, attempt.name,
                      attempt.node, request.reason)
        elif result != GONE and self._faults.is_due(f"{result}: {message}", attempt.name):
            _LOG.warning("%s: %s/%s is not evicted (%s): %s", attempt.strategy, attempt.namespace, attempt.name,
                         result, message)
        for observer in self._observers:
            try:
                observer(attempt)
            except Exception:
                _LOG.exception("an eviction could not be reported")


def soft_eviction(request: EvictionRequest, now: int) -> str:
    """Return the annotation by which other components are requested to remove a pod, as Koordinator writes it."""
    return json.dumps({
        "timestamp": rfc3339(now), "deleteOptions": dict(request.delete_options or {}), "initiator": request.strategy,
        "reason": request.reason})


def _is_moved(request: EvictionRequest, result: WriteResult) -> bool:
    """Return whether a refusal means that another component moves the pod."""
    annotations = (request.pod["metadata"].get("annotations") or {})
    return (result.status is WriteStatus.THROTTLED and BACKGROUND_MESSAGE in result.message
            and REQUEST_ONLY in annotations)


def _held(hold: Hold, now: float) -> str:
    return f"{hold.reason} (it is tried again in {hold.until - now:.0f} s)"
