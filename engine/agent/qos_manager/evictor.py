"""The live evictor of the QoS manager: carries out the evictions that strategies return, and remembers their outcome.

The thread of the rounds calls `evict` and reads `evictions`, which neither wait nor send; requests run in the event
loop of the API client, each sent once. A refused eviction is repeated by the strategies' next rounds, after a back-off:
per pod, per PodDisruptionBudget with all pods of the workload, or for all pods if the server has too many requests. A
budget is only passed by an eviction that says so, and only after the budget has refused it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordpolicy.engine.client.event_recorder import EventSink
from koordpolicy.engine.client.eviction_backoff import BY_BUDGET, Evictee, EvictionBackoff, EvictionEffect
from koordpolicy.engine.client.io_thread import Spawner
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import pod_reference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Evictions

from ..pod_facts import PodFacts
from .evictions import LEAVING_FOR, eviction_id

_LOG: Final = logging.getLogger(__name__)

CONTROLLER: Final = "koordlet-qosManager"
"""The component that reports events, as koordlet names it."""
EVICTED_REASON: Final = "evictPodSuccess"
FAILED_REASON: Final = "evictPodFail"

_MIRROR: Final = "kubernetes.io/config.mirror"
_KILL: Final = ", kill pod: "


class AttemptOutcome(enum.StrEnum):
    """The outcome of a requested eviction."""

    EVICTED = "evicted"
    DELETED = "deleted"
    """A PodDisruptionBudget refused the eviction, and the pod was deleted past it."""
    GONE = "gone"
    """The pod, or the one of this UID, did not exist any more."""
    DRY_RUN = "dryRun"
    """Nothing was sent."""
    BLOCKED = "blocked"
    """A PodDisruptionBudget refuses it, or several select the pod."""
    PAUSED = "paused"
    """It was not sent: the server has too many requests, cannot be reached, or forbids evictions."""
    LIMITED = "limited"
    """It was not sent: there were too many evictions."""
    STALE = "stale"
    """It was not sent: the list of pods is too old."""
    UNKNOWN = "unknown"
    """No answer arrived: it may have been carried out."""
    FAILED = "failed"
    """Any other refusal."""

    @property
    def succeeded(self) -> bool:
        """True if the pod leaves the node, or would in earnest."""
        return self in {AttemptOutcome.EVICTED, AttemptOutcome.DELETED, AttemptOutcome.GONE,
                        AttemptOutcome.DRY_RUN}


@dataclass(frozen=True, slots=True)
class EvictionAttempt:
    """A requested eviction with its outcome, for the audit log and metrics."""

    item: str
    """The strategy's feature or the document's action that requested it."""
    namespace: str
    name: str
    uid: str
    reason: str
    """`trigger by koordlet feature NAME`; of other evictions, the item."""
    message: str
    outcome: AttemptOutcome
    error: str = ""
    """The reason of a refusal; of a deletion, that of the budget."""
    budget: str = ""
    """The PodDisruptionBudget that refused it."""


@dataclass(frozen=True, slots=True)
class EvictorOptions:
    """The limits of an evictor; times in seconds."""

    dry_run: bool = False
    pods_age_s: float = 60.0
    """The age of the list of pods above which nothing is evicted."""
    rate: float = 2.0
    """Evictions per second, above 0."""
    burst: int = 20
    """Evictions at once."""
    timeout_s: float = 30.0
    """The time for one eviction, with a deletion past a budget."""


class PodEvictor:
    """The evictor of one node (implements `EvictionQueue`). Methods may be called from any thread."""

    def __init__(
        self, io: Spawner, writer: ClusterWriter, *, pods: Callable[[], Sequence[PodInfo]],
        pods_age_s: Callable[[], float] = lambda: 0.0, events: EventSink | None = None,
        options: EvictorOptions | None = None, on_attempt: Sequence[Callable[[EvictionAttempt], object]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writer` belongs to the loop of `io`; `pods` returns the pods on the node, `pods_age_s` the age of their list
        in seconds. `on_attempt` are called with each outcome, in either thread, and must not wait: for the audit log
        and metrics.
        """
        self.options = options or EvictorOptions()
        self._pods = pods
        self._pods_age_s = pods_age_s
        self._io = io
        self._writer = writer
        self._events = events
        self._hooks = tuple(on_attempt)
        self._clock = clock
        self._faults = RepeatedFaults(clock=clock)
        self._lock = threading.Lock()
        """Of all below."""
        self._tokens_full_at = clock()
        self._backoff = EvictionBackoff(LEAVING_FOR / 1e9)
        self._mirrors = PodFacts(lambda pod: eviction_id(pod) if _is_mirror(pod) else None)

    @property
    def evictions(self) -> Evictions:
        """The evictions as the next round reads them."""
        pods, pods_age_s = self._pods(), self._pods_age_s()
        with self._lock:
            now = self._clock()
            backoff = self._backoff
            backoff.forget(now)
            leaving = backoff.leaving
            everyone = self._reason_for_all(now, pods_age_s)
            if everyone:
                return Evictions(leaving, {eviction_id(pod): everyone for pod in pods})
            refused = {uid: hold.reason for uid, hold in backoff.refusals(now).items()}
            refused |= {mirror: "its kubelet would start it again: it is a static pod"
                        for mirror in self._mirrors.of(pods) if mirror is not None}
            protected: dict[str, str] = {}
            if backoff.protects:
                for pod in pods:
                    hold = backoff.protection(Evictee.of(pod.object), now)
                    if hold is not None:
                        protected[eviction_id(pod)] = hold.reason
            return Evictions(leaving, refused, protected)

    def evict(self, pod: PodInfo, adjustment: Adjustment) -> None:
        """Begin an eviction and return at once.

        An eviction that is not sent, because the list of pods is too old or there are too many evictions, is an attempt
        too, with its outcome. A pod that is leaving already is left alone.
        """
        uid, sends, pods_age_s = pod.uid, False, self._pods_age_s()
        reason, killing, _ = adjustment.reason.partition(_KILL)
        if not killing and adjustment.item:
            reason = adjustment.item
        attempt = EvictionAttempt(
            adjustment.item, pod.namespace, pod.name, uid, reason, adjustment.reason, AttemptOutcome.FAILED)
        with self._lock:
            now = self._clock()
            self._backoff.forget(now)
            if self._backoff.is_leaving(uid):
                return
            everyone = self._reason_for_all(now, pods_age_s)
            if everyone:
                stale = pods_age_s > self.options.pods_age_s
                outcome = AttemptOutcome.STALE if stale else AttemptOutcome.PAUSED
                attempt = replace(attempt, outcome=outcome, error=everyone)
            elif not uid or _is_mirror(pod):
                attempt = replace(attempt, error="it is a static pod" if uid else "it has no UID")
            elif not self._take_token(now):
                error = f"there were more than {self.options.rate:g} evictions per second"
                attempt = replace(attempt, outcome=AttemptOutcome.LIMITED, error=error)
                self._backoff.postpone(uid, error, now + 1.0 / self.options.rate)
            elif self.options.dry_run:
                attempt = replace(attempt, outcome=AttemptOutcome.DRY_RUN)
                self._backoff.assume(uid, now)
            else:
                self._backoff.begin(uid, now)
                sends = True
        if not sends:
            self._report(attempt, pod)
            return
        try:
            self._io.spawn(self._evict(attempt, pod, past_budget=adjustment.past_budget), f"to evict {pod.key}")
        except RuntimeError as error:  # the agent stops
            with self._lock:
                self._backoff.cancel(uid)
            self._report(replace(attempt, outcome=AttemptOutcome.PAUSED, error=str(error)), pod)

    async def _evict(self, attempt: EvictionAttempt, pod: PodInfo, *, past_budget: bool) -> None:
        """Send one eviction, and note and report its outcome. Runs in the loop."""
        reference = pod_reference(pod.namespace, pod.name, pod.uid)
        refusal = WriteResult(WriteStatus.UNKNOWN, "no answer in time")
        result, deleting = refusal, False
        try:
            async with asyncio.timeout(self.options.timeout_s):
                result = await self._writer.evict(reference)
                if past_budget and result.status in BY_BUDGET:
                    refusal, result, deleting = result, WriteResult(WriteStatus.UNKNOWN, "no answer in time"), True
                    result = await self._writer.delete(reference, retries=0)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._note(pod, WriteResult(WriteStatus.UNKNOWN, "the agent stops"))
            raise
        except Exception as error:  # a fault here must not leave the pod pending for ever
            _LOG.exception("the eviction of %s failed", pod.key)
            result = WriteResult(WriteStatus.REFUSED, str(error))
        outcome = self._note(pod, result)
        message = "" if outcome.succeeded else result.message or result.status.value
        if deleting and outcome is AttemptOutcome.EVICTED:
            outcome, message = AttemptOutcome.DELETED, refusal.message
        budget = refusal.budget if deleting else result.budget
        self._report(replace(attempt, outcome=outcome, error=message, budget=budget), pod)

    def _note(self, pod: PodInfo, result: WriteResult) -> AttemptOutcome:
        """Remember the result of an eviction; return its outcome."""
        with self._lock:
            effect = self._backoff.note(Evictee.of(pod.object), result, self._clock())
        if effect is EvictionEffect.LEFT:
            return AttemptOutcome.EVICTED if result.status is WriteStatus.DONE else AttemptOutcome.GONE
        return _OUTCOMES[effect]

    def _reason_for_all(self, now: float, pods_age_s: float) -> str:
        """Return why no pod may be evicted now; empty if pods may."""
        if pods_age_s > self.options.pods_age_s:
            return f"the list of pods is {pods_age_s:.0f} s old, more than {self.options.pods_age_s:g} s"
        pause = self._backoff.pause(now)
        return "" if pause is None else pause.reason

    def _take_token(self, now: float) -> bool:
        full_at = max(self._tokens_full_at, now) + 1.0 / self.options.rate
        if full_at - now > self.options.burst / self.options.rate + 1e-6:
            return False
        self._tokens_full_at = full_at
        return True

    def _report(self, attempt: EvictionAttempt, pod: PodInfo) -> None:
        """Tell the log, the events and the hooks of an attempt."""
        if attempt.outcome.succeeded:
            _LOG.info("%s: %s %s/%s: %s%s", attempt.item, attempt.outcome, attempt.namespace, attempt.name,
                      attempt.message, f" ({attempt.error})" if attempt.error else "")
        elif self._faults.is_due(f"{attempt.outcome}: {attempt.error}", attempt.name):
            _LOG.warning("%s: %s/%s is not evicted (%s): %s", attempt.item, attempt.namespace, attempt.name,
                         attempt.outcome, attempt.error)
        if self._events is not None and attempt.outcome in _WITH_EVENT:
            note = (f"evict Pod:{attempt.namespace}/{attempt.name}, reason: {attempt.reason},"
                    f" message: {attempt.message}")
            if attempt.outcome is AttemptOutcome.DELETED:
                named = attempt.budget or "(several)"
                note += f", deleted past PodDisruptionBudget {named}, which refused: {attempt.error}"
            elif not attempt.outcome.succeeded:
                note += f", error {attempt.error}"
            self._events.record(
                pod_reference(pod.namespace, pod.name, pod.uid), type="Warning",
                reason=EVICTED_REASON if attempt.outcome.succeeded else FAILED_REASON, action="Evict", note=note,
                controller=CONTROLLER)
        for hook in self._hooks:
            try:
                hook(attempt)
            except Exception:
                _LOG.exception("an eviction could not be reported")


_OUTCOMES: Final = {
    EvictionEffect.UNKNOWN: AttemptOutcome.UNKNOWN, EvictionEffect.PROTECTED: AttemptOutcome.BLOCKED,
    EvictionEffect.PAUSED: AttemptOutcome.PAUSED, EvictionEffect.REFUSED: AttemptOutcome.FAILED,
}
_WITH_EVENT: Final = frozenset({
    AttemptOutcome.EVICTED, AttemptOutcome.DELETED, AttemptOutcome.BLOCKED, AttemptOutcome.UNKNOWN,
    AttemptOutcome.FAILED,
})


def _is_mirror(pod: PodInfo) -> bool:
    return _MIRROR in ((pod.object.get("metadata") or {}).get("annotations") or {})
