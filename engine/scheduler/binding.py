"""What comes after a pod has its node: permits that hold it, and the binding cycle."""

from __future__ import annotations

import copy
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..cel.values import EvaluationError
from ..cluster.pods import PodInfo
from ..cluster.snapshot import Cluster
from ..plugins import ApplyPatch, Client, CycleState, PreBind, PreBindReservation, Skip
from ..points import Code, Point, Refusal
from ..reload.instances import Lease
from .asking import guarded
from .profile import Active, Profile
from .reservations import is_reserve_pod, reservation_of
from .rowwise import describe
from .verdict import Failure, PodRejection, Verdict


@dataclass(slots=True)
class Bound:
    """A pod that is on its way from its node to being bound, and what stopped it."""

    profile: Profile
    state: CycleState
    verdict: Verdict
    failures: list[Failure] = field(default_factory=list)
    refusal: PodRejection | None = None

    def __post_init__(self) -> None:
        """Begin with what failed already."""
        self.failures.extend(self.verdict.failures)

    def refuse(self, plugin: str, point: Point, refusal: Refusal) -> None:
        """Take note of who stopped the pod; the first one counts."""
        self.refusal = self.refusal or (plugin, point, refusal)

    def outcome(self) -> Verdict:
        """Return the verdict with all that happened since."""
        if self.refusal is not None:
            return replace(self.verdict, node=None, row=-1, waiting=False, failures=tuple(self.failures),
                           refusal=self.refusal)
        if len(self.failures) == len(self.verdict.failures):
            return self.verdict
        return replace(self.verdict, failures=tuple(self.failures))


@dataclass(slots=True)
class Parked:
    """A pod that permits hold: by whom, and until when (nanoseconds since the epoch)."""

    pod: PodInfo
    held: Bound
    waits: dict[str, int]
    lease: Lease

    @property
    def deadline(self) -> int:
        """When the pod loses its node: the longest time that a plugin asked for."""
        return max(self.waits.values(), default=0)


class WaitingRoom:
    """The pods that permits hold (fulfils `plugins.WaitingPods`); for the thread that decides.

    What plugins say of a pod takes effect when `take` is asked next: never within the plugin that said it.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._parked: dict[str, Parked] = {}
        self._deadlines: list[tuple[int, int, Parked]] = []
        """A heap of deadlines, each with a number; what has left, or left out a plugin, is found out when it is met."""
        self._numbers = itertools.count()
        self._leaving: deque[Parked] = deque()

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the pods that wait, in the order in which they came."""
        return tuple(self._parked)

    def __contains__(self, key: str) -> bool:
        """Whether a pod waits."""
        return key in self._parked

    def parked(self, key: str) -> Parked | None:
        """Return a pod that waits, or None."""
        return self._parked.get(key)

    def next_time(self) -> int | None:
        """Return when the next pod has waited for too long; None where none waits."""
        while self._deadlines and self._parked.get(self._deadlines[0][2].pod.key) is not self._deadlines[0][2]:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def add(self, parked: Parked) -> None:
        """Let a pod wait."""
        self._parked[parked.pod.key] = parked
        heapq.heappush(self._deadlines, (parked.deadline, next(self._numbers), parked))

    def allow(self, key: str, plugin: str) -> bool:
        """Let the pod go on as far as this plugin goes; return whether it was waiting."""
        parked = self._parked.get(key)
        if parked is None:
            return False
        parked.waits.pop(plugin, None)
        if not parked.waits:
            self._leaving.append(self._parked.pop(key))
        else:
            heapq.heappush(self._deadlines, (parked.deadline, next(self._numbers), parked))
        return True

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Take the pod's node back; return whether it was waiting."""
        parked = self._parked.pop(key, None)
        if parked is None:
            return False
        parked.held.refuse(plugin, Point.PERMIT, Refusal("", message))
        self._leaving.append(parked)
        return True

    def take(self) -> Parked | None:
        """Return a pod that waits no more: allowed, rejected, or waiting for too long; None where there is none."""
        if not self._leaving and self._parked:
            now = self._clock()
            while (moment := self.next_time()) is not None and moment <= now:
                parked = heapq.heappop(self._deadlines)[2]
                slowest = max(parked.waits, key=lambda name: parked.waits[name])
                self.reject(parked.pod.key, slowest, "timeout after waiting for other pods")
        return self._leaving.popleft() if self._leaving else None


def same_pod(one: PodInfo, other: PodInfo) -> bool:
    """Whether two versions of a key are of one pod, and none was made anew under the name of one that is gone."""
    return not one.uid or not other.uid or one.uid == other.uid


def bind(held: Bound, pod: PodInfo, cluster: Cluster, client: Client, feature_gates: Collection[str]) -> None:
    """Run the binding cycle of a pod that was assumed; what stops it is noted in `held`."""
    node = held.verdict.node
    assert node is not None
    profile = held.profile
    reservation = reservation_of(pod) if is_reserve_pod(pod) else None
    if reservation is None and "DynamicSchedulerCheck" in feature_gates:
        fault = _fault_of(pod, cluster.object("Pod", pod.key), profile.name)
        if fault:
            held.refuse("DynamicSchedulerCheck", Point.PRE_BIND, Refusal("", fault, Code.ERROR))
            return
    if node not in cluster.index:
        held.refuse("bind", Point.PRE_BIND, Refusal("", f"the node `{node}` is gone", Code.ERROR))
        return
    if profile.at[Point.PRE_BIND]:
        original = pod.object if reservation is None else cluster.object("Reservation", reservation)
        if original is None:
            message = f"the reservation `{reservation}` is gone"
            held.refuse("Reservation", Point.PRE_BIND, Refusal("", message, Code.ERROR))
            return
        # Where nobody writes into the draft there is nothing to send: then it is not even made.
        if reservation is not None or profile.having(PreBind):
            _prepare(held, pod, original, node, reserves=reservation is not None)
    if held.refusal is None:
        _bind(held, pod, node, client)
    if held.refusal is None:
        for active in profile.at[Point.POST_BIND]:
            guarded(held.failures, active, Point.POST_BIND, active.ask.post_bind, held.state, pod, node)


def _fault_of(pod: PodInfo, current: Mapping[str, Any] | None, profile: str) -> str:
    """Return why a pod must not be bound any more; empty where it may (spec/scheduler.md 1.3, step 15)."""
    if current is None:
        return ""  # nobody told of the object: what is decided about is all there is
    named = (current.get("spec") or {}).get("schedulerName")
    before = (pod.object.get("spec") or {}).get("schedulerName")
    if named not in (before, profile):
        return "schedulerName unmatched"
    if (current.get("metadata") or {}).get("deletionTimestamp"):
        return "pod is being deleted"
    return ""


def _prepare(held: Bound, pod: PodInfo, original: Mapping[str, Any], node: str, *, reserves: bool) -> None:
    draft: dict[str, Any] = copy.deepcopy(dict(original))
    if reserves:
        draft.setdefault("status", {})["nodeName"] = node
        for active in held.profile.having(PreBindReservation):
            if _stopped(held, active, active.ask.pre_bind_reservation, held.state, draft, node):
                return
    else:
        for active in held.profile.having(PreBind):
            if _stopped(held, active, active.ask.pre_bind, held.state, pod, draft, node):
                return
    for active in held.profile.having(ApplyPatch):
        answer = guarded(held.failures, active, Point.PRE_BIND, active.ask.apply_patch, held.state, original, draft,
                         kinds=(Skip,))
        if isinstance(answer, Skip):
            continue
        if answer is not None:
            held.refuse(active.name, Point.PRE_BIND, answer)
        return


def _stopped(held: Bound, active: Active, ask: Callable[..., Refusal | None], *arguments: object) -> bool:
    refusal = guarded(held.failures, active, Point.PRE_BIND, ask, *arguments, kinds=())
    if refusal is not None:
        held.refuse(active.name, Point.PRE_BIND, refusal)
    return refusal is not None


def _bind(held: Bound, pod: PodInfo, node: str, client: Client) -> None:
    for active in held.profile.at[Point.BIND]:
        answer = guarded(held.failures, active, Point.BIND, active.ask.bind, held.state, pod, node, kinds=(Skip,))
        if isinstance(answer, Skip):
            continue
        if answer is not None:
            held.refuse(active.name, Point.BIND, answer)
        return
    # A profile without a plugin that binds leaves that to the framework: there is only one way.
    try:
        client.bind(pod, node)
    except Exception as error:  # the API server, or what stands for it
        held.refuse("bind", Point.BIND, Refusal("", describe(error), Code.ERROR, EvaluationError(describe(error))))
