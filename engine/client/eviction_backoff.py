"""When pods may be evicted again, by the API server's answers to evictions before: state without input and output.

A refusal holds back the pod, all pods of a PodDisruptionBudget, or every eviction, depending on the answer. Nothing
here sleeps: a caller looks whether a pod is held, sends, and notes the answer. Times are in seconds of one clock.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from .writes import WriteResult, WriteStatus

_LEAVING_S: Final = 120.0
_UNKNOWN_S: Final = 15.0
"""The time for which an eviction without an answer counts as done; then it may be requested again, by UID."""
_SHORTEST_S: Final = 1.0
_BUDGET_S: Final = 10.0
_LONGEST_S: Final = 300.0
_LONGEST_PAUSE_S: Final = 30.0


class EvictionEffect(enum.Enum):
    """The meaning of an answer for later evictions."""

    LEFT = "left"
    """The pod leaves, or is gone."""
    UNKNOWN = "unknown"
    """No answer arrived: the pod may leave, so it is not evicted again at once."""
    PROTECTED = "protected"
    """A PodDisruptionBudget refuses it, or several select the pod: its pods are held back."""
    PAUSED = "paused"
    """The server has too many requests, cannot be reached, or forbids evictions: all pods are held back."""
    REFUSED = "refused"
    """Any other refusal: this pod is held back."""


@dataclass(frozen=True, slots=True)
class Evictee:
    """A pod as back-offs know it."""

    uid: str
    workload: str
    """The UID of its controller; of a pod without one, its own."""
    namespace: str = ""
    budgets: frozenset[str] | None = None
    """The names of the PodDisruptionBudgets that select it; None if they are not known."""

    @classmethod
    def of(cls, pod: Mapping[str, Any], budgets: Iterable[str] | None = None) -> Evictee:
        """Return the keys of a pod, given as the API has it, for back-offs; pods of one controller are a workload."""
        metadata = pod.get("metadata") or {}
        uid = str(metadata.get("uid") or "")
        owners: Iterable[Mapping[str, Any]] = metadata.get("ownerReferences") or ()
        workload = next((str(each["uid"]) for each in owners if each.get("controller") and each.get("uid")), uid)
        return cls(uid, workload, str(metadata.get("namespace") or "default"),
                   None if budgets is None else frozenset(budgets))


@dataclass(frozen=True, slots=True)
class Hold:
    """Until when pods are held back, and why."""

    until: float
    reason: str
    status: WriteStatus
    """That of the answer which is the reason."""
    next_s: float
    """The length of the next one, if the next answer is the same."""
    budget: str = ""
    """The PodDisruptionBudget; empty if the server named none, or it is none."""


class EvictionBackoff:
    """The back-offs of one evictor. Belongs to one thread, or to one lock.

    Budgets that refuse are held for 10 s, doubling to 5 minutes; several budgets of a pod for 5 minutes; one whose
    status is not up to date for as long as the server says. Of pods whose budgets are not known, all of the workload
    are held.
    """

    def __init__(self, leaving_s: float = _LEAVING_S) -> None:
        """`leaving_s` is the time for which an evicted pod counts as leaving."""
        self._leaving_s = leaving_s
        self._pending: dict[str, float] = {}
        """Times of requests without an answer, by UID."""
        self._leaving: dict[str, float] = {}
        """Times until which pods count as leaving, by UID."""
        self._pods: dict[str, Hold] = {}
        """By UID."""
        self._workloads: dict[str, Hold] = {}
        self._budgets: dict[tuple[str, str], Hold] = {}
        """By namespace and name of the budget."""
        self._everyone = Hold(float("-inf"), "", WriteStatus.DONE, _SHORTEST_S)

    # Before a request

    def is_leaving(self, uid: str) -> bool:
        """Return whether the pod leaves, or an answer about it is awaited; call `forget` before."""
        return uid in self._pending or uid in self._leaving

    @property
    def leaving(self) -> frozenset[str]:
        """The UIDs of pods that leave, or about which an answer is awaited; call `forget` before."""
        return frozenset((*self._pending, *self._leaving))

    def pause(self, now: float) -> Hold | None:
        """Return the back-off that delays every eviction, or None."""
        return self._everyone if now < self._everyone.until else None

    def refusals(self, now: float) -> Mapping[str, Hold]:
        """Return the pods that are held by themselves, by UID."""
        return {uid: hold for uid, hold in self._pods.items() if now < hold.until}

    @property
    def protects(self) -> bool:
        """True if pods may be protected at all."""
        return bool(self._workloads or self._budgets)

    def protection(self, pod: Evictee, now: float) -> Hold | None:
        """Return the budget that holds the pod, or None."""
        for name in sorted(pod.budgets or ()):
            hold = self._budgets.get((pod.namespace, name))
            if hold is not None and now < hold.until:
                return hold
        hold = self._workloads.get(pod.workload)
        if hold is None or now >= hold.until or (
                hold.budget and pod.budgets is not None and hold.budget not in pod.budgets):
            return None
        return hold

    def hold(self, pod: Evictee, now: float) -> Hold | None:
        """Return the back-off that delays the eviction of the pod, of any kind, or None; a pod that leaves has none."""
        refusal = self._pods.get(pod.uid)
        if refusal is not None and now < refusal.until:
            return refusal
        return self.pause(now) or self.protection(pod, now)

    def begin(self, uid: str, now: float) -> None:
        """Note that an eviction is sent."""
        self._pending[uid] = now

    def cancel(self, uid: str) -> None:
        """Note that it was not sent after all."""
        self._pending.pop(uid, None)

    def postpone(self, uid: str, reason: str, until: float) -> None:
        """Hold a pod whose eviction was not sent, for a reason of the caller."""
        self._pods[uid] = Hold(until, reason, WriteStatus.THROTTLED, _SHORTEST_S)

    def assume(self, uid: str, now: float) -> None:
        """Note that a pod counts as leaving, as it would after a dry run in earnest."""
        self._leaving[uid] = now + self._leaving_s

    # After an answer

    def note(self, pod: Evictee, result: WriteResult, now: float) -> EvictionEffect:
        """Note the answer to an eviction, and return what it means."""
        status = result.status
        self._pending.pop(pod.uid, None)
        if status in LEFT:
            self._leaving[pod.uid] = now + self._leaving_s
            self._pods.pop(pod.uid, None)
            self._workloads.pop(pod.workload, None)
            self._everyone = replace(self._everyone, next_s=_SHORTEST_S)
            return EvictionEffect.LEFT
        if status is WriteStatus.UNKNOWN:
            self._leaving[pod.uid] = now + _UNKNOWN_S
            return EvictionEffect.UNKNOWN
        if status in BY_BUDGET:
            self._note_budget(pod, result, now)
            return EvictionEffect.PROTECTED
        reason = result.message or status.value
        if _is_for_all(result):
            shortest_s = _LONGEST_PAUSE_S if status is WriteStatus.FORBIDDEN else self._everyone.next_s
            delay = max(shortest_s, result.retry_after or 0.0)
            self._everyone = Hold(now + delay, reason, status, min(2 * self._everyone.next_s, _LONGEST_PAUSE_S))
            return EvictionEffect.PAUSED
        before = self._pods.get(pod.uid)
        delay = max(before.next_s if before is not None else _SHORTEST_S, result.retry_after or 0.0)
        self._pods[pod.uid] = Hold(now + delay, reason, status, min(2 * delay, _LONGEST_S))
        return EvictionEffect.REFUSED

    def _note_budget(self, pod: Evictee, result: WriteResult, now: float) -> None:
        key = pod.namespace, result.budget
        before = self._budgets.get(key) if result.budget else self._workloads.get(pod.workload)
        if result.status is WriteStatus.MULTI_PDB:
            delay = _LONGEST_S
        elif result.status is WriteStatus.PDB_STALE:
            delay = result.retry_after or _BUDGET_S
        else:
            delay = before.next_s if before is not None else _BUDGET_S
        if before is not None and now < before.until:
            hold = before  # another pod of it was refused meanwhile
        else:
            following = min(2 * delay, _LONGEST_S) if result.status is WriteStatus.PDB_BLOCKED else _BUDGET_S
            hold = Hold(now + delay, result.message, result.status, following, result.budget)
        if result.budget:
            self._budgets[key] = hold
        self._workloads[pod.workload] = hold

    def release(self, namespace: str, budget: str) -> None:
        """Hold no pod for a budget any more, as it permits evictions now."""
        self._budgets.pop((namespace, budget), None)
        # Workloads have UIDs, no namespaces; at worst another budget of the name refuses once more.
        self._workloads = {key: hold for key, hold in self._workloads.items() if hold.budget != budget}

    def forget(self, now: float) -> None:
        """Drop what is over. A back-off is remembered for its own length after its end, so that the next is longer."""
        if self._leaving:
            self._leaving = {uid: until for uid, until in self._leaving.items() if now < until}
        self._pods = _recent(self._pods, now)
        self._workloads = _recent(self._workloads, now)
        self._budgets = _recent(self._budgets, now)

    def budgets(self, now: float) -> Mapping[str, Hold]:
        """Return the budgets that hold pods back, by `namespace/name`; for any thread."""
        return {f"{namespace}/{name}": hold for (namespace, name), hold in tuple(self._budgets.items())
                if now < hold.until}


LEFT: Final[Collection[WriteStatus]] = frozenset({
    WriteStatus.DONE, WriteStatus.GONE, WriteStatus.REPLACED, WriteStatus.TERMINATING})
"""The answers after which a pod is on its way, or was gone before."""
BY_BUDGET: Final[Collection[WriteStatus]] = frozenset({
    WriteStatus.PDB_BLOCKED, WriteStatus.PDB_STALE, WriteStatus.MULTI_PDB})
"""The answers in which PodDisruptionBudgets refuse."""
_NO_RIGHT: Final = ("cannot create resource", "cannot delete resource", "Unauthorized")
"""In the message of a refusal that is about this client; any other is about the pod, as by an admission webhook."""


def _is_for_all(result: WriteResult) -> bool:
    """Return whether no other pod could be evicted now either."""
    if result.status is WriteStatus.FORBIDDEN:
        return any(text in result.message for text in _NO_RIGHT)
    # A webhook may answer 429 about one pod: it moves it, or tries to.
    by_webhook = "denied the request" in result.message
    return result.status is WriteStatus.UNREACHABLE or (result.status is WriteStatus.THROTTLED and not by_webhook)


def _recent(holds: dict[Any, Hold], now: float) -> dict[Any, Hold]:
    return {key: hold for key, hold in holds.items() if now < hold.until + hold.next_s} if holds else holds
