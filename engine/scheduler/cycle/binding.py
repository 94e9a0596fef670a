"""The binding cycle of a pod that has its node, and the pods that wait for a permit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.framework.handle import Client
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import ApplyPatch, CycleState, PreBind, PreBindReservation, Skip

from ..extensions.reservations import is_reserve_pod, reservation_of
from ..profiles.profile import Active, Profile
from .plugin_runner import guarded
from .rowwise import describe
from .verdict import Failure, PodRejection, Verdict


@dataclass(slots=True)
class BindingCycle:
    """A pod that has its node and is not bound yet: its cycle state, failures and rejection."""

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


def bind(binding: BindingCycle, pod: PodInfo, cluster: Cluster, client: Client, feature_gates: Collection[str]) -> None:
    """Run the binding cycle of a pod that was assumed; what stops it is noted in `binding`."""
    node = binding.verdict.node
    assert node is not None
    profile = binding.profile
    reservation = reservation_of(pod) if is_reserve_pod(pod) else None
    if reservation is None and "DynamicSchedulerCheck" in feature_gates:
        fault = _fault_of(pod, cluster.object("Pod", pod.key), profile.name)
        if fault:
            binding.refuse("DynamicSchedulerCheck", Point.PRE_BIND, Refusal("", fault, Code.ERROR))
            return
    if node not in cluster.index:
        binding.refuse("bind", Point.PRE_BIND, Refusal("", f"the node `{node}` is gone", Code.ERROR))
        return
    if profile.at[Point.PRE_BIND]:
        original = pod.object if reservation is None else cluster.object("Reservation", reservation)
        if original is None:
            message = f"the reservation `{reservation}` is gone"
            binding.refuse("Reservation", Point.PRE_BIND, Refusal("", message, Code.ERROR))
            return
        # Where nobody writes into the draft there is nothing to send: then it is not even made.
        if reservation is not None or profile.having(PreBind):
            _prepare(binding, pod, original, node, reserves=reservation is not None)
    if binding.refusal is None:
        _bind(binding, pod, node, client)
    if binding.refusal is None:
        for active in profile.at[Point.POST_BIND]:
            guarded(binding.failures, active, Point.POST_BIND, active.ask.post_bind, binding.state, pod, node)


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


def _prepare(binding: BindingCycle, pod: PodInfo, original: Mapping[str, Any], node: str, *, reserves: bool) -> None:
    draft: dict[str, Any] = copy.deepcopy(dict(original))
    if reserves:
        draft.setdefault("status", {})["nodeName"] = node
        for active in binding.profile.having(PreBindReservation):
            if _stopped(binding, active, active.ask.pre_bind_reservation, binding.state, draft, node):
                return
    else:
        for active in binding.profile.having(PreBind):
            if _stopped(binding, active, active.ask.pre_bind, binding.state, pod, draft, node):
                return
    for active in binding.profile.having(ApplyPatch):
        answer = guarded(binding.failures, active, Point.PRE_BIND, active.ask.apply_patch,
                         binding.state, original, draft, kinds=(Skip,))
        if isinstance(answer, Skip):
            continue
        if answer is not None:
            binding.refuse(active.name, Point.PRE_BIND, answer)
        return


def _stopped(binding: BindingCycle, active: Active, ask: Callable[..., Refusal | None], *arguments: object) -> bool:
    refusal = guarded(binding.failures, active, Point.PRE_BIND, ask, *arguments, kinds=())
    if refusal is not None:
        binding.refuse(active.name, Point.PRE_BIND, refusal)
    return refusal is not None


def _bind(binding: BindingCycle, pod: PodInfo, node: str, client: Client) -> None:
    for active in binding.profile.at[Point.BIND]:
        answer = guarded(binding.failures, active, Point.BIND, active.ask.bind, binding.state, pod, node, kinds=(Skip,))
        if isinstance(answer, Skip):
            continue
        if answer is not None:
            binding.refuse(active.name, Point.BIND, answer)
        return
    # A profile without a plugin that binds leaves that to the framework: there is only one way.
    try:
        client.bind(pod, node)
    except Exception as error:  # the API server, or what stands for it
        binding.refuse("bind", Point.BIND, Refusal("", describe(error), Code.ERROR, EvaluationError(describe(error))))
