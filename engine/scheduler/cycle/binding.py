"""The binding cycle: preBind, bind and postBind of pods that have their node.

A binding cycle is a generator that runs in the owner's thread, top to bottom, and yields each piece of input and
output: an `Executor` does that, and the generator goes on with the result.
"""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.handle import Client
from koordpolicy.engine.framework.instances import Lease
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import (
    ApplyPatch,
    CycleState,
    Deferred,
    PreBind,
    PreBindReservation,
    Skip,
)
from koordpolicy.engine.records import replaced

from ..extensions.reservations import is_reserve_pod, reservation_of
from ..profiles.profile import Active, Profile
from ..verdict.verdict import Failure, PodRejection, Verdict
from .executor import Executor, Job
from .plugin_runner import guarded

_LOG: Final = logging.getLogger(__name__)

_Result: TypeAlias = tuple[Any, Sequence[Failure]]
"""A plugin's result (None, a refusal or `SKIP`), and its failures."""
_Step: TypeAlias = tuple[Point, Callable[[], _Result]]
_Steps: TypeAlias = Generator[_Step, _Result, None]
"""A running binding cycle: yields a call for the executor, with its point, and receives the result."""


class BindingPhase(enum.Enum):
    """The phase of a pod's binding."""

    ASSUMED = "assumed"
    WAITING = "waiting"
    BINDING = "binding"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class BindingCycle:
    """A pod that is assumed on its node and not bound yet: its cycle state, failures and rejection."""

    pod: PodInfo
    """The pod, as it is assumed on the node."""
    profile: Profile
    state: CycleState
    verdict: Verdict
    failures: list[Failure] = field(default_factory=list)
    rejection: PodRejection | None = None
    phase: BindingPhase = BindingPhase.ASSUMED
    reported_later: bool = False
    """True if the scheduler returned the pod's verdict before the cycle ended."""
    lease: Lease | None = None
    """Keeps the plugins open while the cycle runs concurrently with others."""
    begun: int = 0
    """When the first job was submitted, in nanoseconds since the epoch."""
    deadline: int = 0
    steps: _Steps | None = None
    job: Job | None = None
    """The input or output in progress."""
    point: Point = Point.PRE_BIND
    """The point of `job`, or of the last one."""
    bound: bool = False
    """True if the pod is bound: nothing rejects it any more."""

    def __post_init__(self) -> None:
        """Begin with the failures of the decision."""
        self.failures.extend(self.verdict.failures)

    @property
    def node(self) -> str:
        """The node's name."""
        assert self.verdict.node is not None
        return self.verdict.node

    def reject(self, plugin: str, point: Point, refusal: Refusal) -> None:
        """Record the rejection; the first one counts."""
        self.rejection = self.rejection or (plugin, point, refusal)

    def fail(self, error: BaseException) -> None:
        """Log an error that is not a plugin's; it is the rejection of a pod that is not bound yet."""
        message = describe(error)
        _LOG.error("%s: the binding cycle failed: %s", self.pod.key, message, exc_info=error)
        if not self.bound:
            self.reject("bind", self.point, Refusal("", message, Code.ERROR, EvaluationError(message)))

    def outcome(self) -> Verdict:
        """Return the verdict, updated with the cycle's failures and rejection."""
        if self.rejection is not None:
            return replaced(self.verdict, node=None, row=-1, failures=tuple(self.failures), refusal=self.rejection)
        waiting, binding = self.phase is BindingPhase.WAITING, self.phase is BindingPhase.BINDING
        if len(self.failures) == len(self.verdict.failures) and not (waiting or binding):
            return self.verdict
        return replaced(self.verdict, waiting=waiting, binding=binding, failures=tuple(self.failures))

    def release(self) -> None:
        """Release the lease, if there is one."""
        if self.lease is not None:
            self.lease.release()


class BindingCycles:
    """Runs binding cycles; for the thread that owns the cluster.

    No call waits for input or output that runs on workers.

    A cycle that takes longer than `timeout` nanoseconds is abandoned. Its input or output may still succeed later: see
    `bound_late`.
    """

    def __init__(
        self, cluster: Cluster, client: Client, feature_gates: Collection[str], executor: Executor, *,
        clock: Callable[[], int], timeout: int, lease: Callable[[], Lease],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._feature_gates = feature_gates
        self._executor = executor
        self._clock = clock
        self._timeout = timeout
        self._lease = lease
        self._by_job: dict[Job, BindingCycle] = {}
        """The cycles whose job is in progress."""
        self._abandoned: dict[Job, tuple[BindingCycle, Lease | None]] = {}
        """The cycles that were abandoned while a worker ran their job; the leases are released when the job ends."""
        self._in_flight: dict[BindingCycle, None] = {}
        """The running cycles, oldest first; all have the same timeout."""
        self._bound_late: list[BindingCycle] = []

    @property
    def idle(self) -> bool:
        """True if no worker has anything to do, or to report, for a binding cycle."""
        return not (self._in_flight or self._abandoned)

    @property
    def in_flight(self) -> tuple[BindingCycle, ...]:
        """The cycles that have not ended, oldest first."""
        return tuple(self._in_flight)

    @property
    def begun(self) -> tuple[int, ...]:
        """When the cycles began that are in flight, or abandoned with a worker in their job; for any thread."""
        # Both tuples are made at once, whatever the owner of the cluster does meanwhile.
        in_flight, abandoned = tuple(self._in_flight), tuple(self._abandoned.values())
        return (*(binding.begun for binding in in_flight), *(binding.begun for binding, _ in abandoned))

    def next_time(self) -> int | None:
        """Return the time of the next timeout; None if no cycle is running."""
        return next((binding.deadline for binding in self._in_flight), None)

    def start(self, binding: BindingCycle) -> bool:
        """Run the binding cycle until it waits for a worker; return whether it has ended."""
        binding.steps = _binding_cycle(binding, self._cluster, self._client, self._feature_gates)
        if self._resume(binding, binding.steps, None):
            return True
        binding.phase = BindingPhase.BINDING
        binding.begun = self._clock()
        binding.deadline = binding.begun + self._timeout
        binding.lease = binding.lease or self._lease()
        self._in_flight[binding] = None
        return False

    def ended(self) -> Iterator[BindingCycle]:
        """Yield the cycles that have ended since the last call: in the order of completion, then the abandoned ones."""
        for job in self._executor.completed():
            if job in self._abandoned:
                self._note_late(job)
                continue
            binding = self._by_job.pop(job)
            assert binding.steps is not None
            binding.job = None
            if job.error is not None:
                binding.fail(job.error)
                binding.steps.close()
            elif not self._resume(binding, binding.steps, job.result):
                continue
            self._in_flight.pop(binding, None)
            yield binding
        while self._in_flight:
            binding = next(iter(self._in_flight))
            if binding.deadline > self._clock():
                return
            self._give_up(binding)
            yield binding

    def bound_late(self) -> tuple[BindingCycle, ...]:
        """Return the abandoned cycles whose pods were bound after all, since the last call."""
        found, self._bound_late = tuple(self._bound_late), []
        return found

    def _resume(self, binding: BindingCycle, steps: _Steps, result: _Result | None) -> bool:
        """Resume a cycle with the result of its last call until it waits for a worker; return whether it has ended."""
        try:
            while True:
                binding.point, call = next(steps) if result is None else steps.send(result)
                result = self._executor.submit(call)
                if isinstance(result, Job):
                    binding.job = result
                    self._by_job[result] = binding
                    return False
        except StopIteration:
            return True
        except BaseException as error:  # whatever it is, no job is under way that would end the cycle later
            self._in_flight.pop(binding, None)
            must_be_survived(error)
            binding.fail(error)
            steps.close()
            return True

    def _give_up(self, binding: BindingCycle) -> None:
        job = binding.job
        assert job is not None
        assert binding.steps is not None
        del self._in_flight[binding], self._by_job[job]
        binding.job = None
        binding.steps.close()
        message = f"binding the pod to `{binding.node}` takes longer than {self._timeout / 1e9:g} s"
        binding.reject("bind", binding.point, Refusal("timeout", message, Code.ERROR))
        _LOG.error("%s: %s; it is tried again", binding.pod.key, message)
        if self._executor.abandon(job):
            self._abandoned[job], binding.lease = (binding, binding.lease), None

    def _note_late(self, job: Job) -> None:
        """Record the end of the input or output of an abandoned cycle."""
        binding, lease = self._abandoned.pop(job)
        if lease is not None:
            lease.release()
        if binding.point is Point.BIND and job.error is None and job.result[0] is None:
            self._bound_late.append(binding)


def same_pod(one: PodInfo, other: PodInfo) -> bool:
    """Return whether two pods of one key are versions of one pod, not a pod and its successor of the same name."""
    return not one.uid or not other.uid or one.uid == other.uid


def _binding_cycle(
    binding: BindingCycle, cluster: Cluster, client: Client, feature_gates: Collection[str],
) -> _Steps:
    """Bind an assumed pod; a failure is recorded as the rejection of `binding`.

    A pod that the cluster shows bound to its node, as an earlier attempt succeeded late, is not bound again.
    """
    if not is_shown_bound(cluster, binding):
        yield from _bind_pod(binding, cluster, client, feature_gates)
    if binding.rejection is None:
        note_bound(binding)


def is_shown_bound(cluster: Cluster, binding: BindingCycle) -> bool:
    """Return whether the cluster's object of the pod says that it is bound to the node."""
    known = cluster.object("Pod", binding.pod.key)
    if known is None or (known.get("spec") or {}).get("nodeName") != binding.node:
        return False
    return same_pod(PodInfo.of(known), binding.pod)


def note_bound(binding: BindingCycle) -> None:
    """Record that the pod is bound, whatever an attempt to bind it said, and run the postBind plugins."""
    binding.bound, binding.rejection = True, None
    for active in binding.profile.at[Point.POST_BIND]:
        guarded(binding.failures, active, Point.POST_BIND, active.ask.post_bind, binding.state, binding.pod,
                binding.node)


def _bind_pod(
    binding: BindingCycle, cluster: Cluster, client: Client, feature_gates: Collection[str],
) -> _Steps:
    pod, node, profile = binding.pod, binding.node, binding.profile
    reservation = reservation_of(pod) if is_reserve_pod(pod) else None
    if reservation is None and "DynamicSchedulerCheck" in feature_gates:
        fault = _fault_of(pod, cluster.object("Pod", pod.key), profile.name)
        if fault:
            binding.reject("DynamicSchedulerCheck", Point.PRE_BIND, Refusal("", fault, Code.ERROR))
            return
    if node not in cluster.index:
        binding.reject("bind", Point.PRE_BIND, Refusal("", f"the node `{node}` is gone", Code.ERROR))
        return
    if profile.at[Point.PRE_BIND]:
        original = pod.object if reservation is None else cluster.object("Reservation", reservation)
        if original is None:
            message = f"the reservation `{reservation}` is gone"
            binding.reject("Reservation", Point.PRE_BIND, Refusal("", message, Code.ERROR))
            return
        # If no plugin writes into the draft there is nothing to send, so none is made.
        if reservation is not None or profile.having(PreBind):
            yield from _run_pre_bind_plugins(binding, original, reserves=reservation is not None)
    if binding.rejection is None:
        yield from _run_bind_plugins(binding, client)


def _fault_of(pod: PodInfo, current: Mapping[str, Any] | None, profile: str) -> str:
    """Return why a pod must no longer be bound; empty if it may be."""
    if current is None:
        return ""  # the cluster has no object of the pod to compare it with
    named = (current.get("spec") or {}).get("schedulerName")
    before = (pod.object.get("spec") or {}).get("schedulerName")
    if named not in (before, profile):
        return "schedulerName unmatched"
    if (current.get("metadata") or {}).get("deletionTimestamp"):
        return "pod is being deleted"
    return ""


def _run_pre_bind_plugins(binding: BindingCycle, original: Mapping[str, Any], *, reserves: bool) -> _Steps:
    draft: dict[str, Any] = copy.deepcopy(dict(original))
    profile, state, pod, node = binding.profile, binding.state, binding.pod, binding.node
    if reserves:
        draft.setdefault("status", {})["nodeName"] = node
        for active in profile.having(PreBindReservation):
            call = partial(active.ask.pre_bind_reservation, state, draft, node)
            yield from _run(binding, active, Point.PRE_BIND, call)
            if binding.rejection is not None:
                return
    else:
        for active in profile.having(PreBind):
            yield from _run(binding, active, Point.PRE_BIND, partial(active.ask.pre_bind, state, pod, draft, node))
            if binding.rejection is not None:
                return
    for active in profile.having(ApplyPatch):
        call = partial(active.ask.apply_patch, state, original, draft)
        if (yield from _run(binding, active, Point.PRE_BIND, call, skips=True)):
            return


def _run_bind_plugins(binding: BindingCycle, client: Client) -> _Steps:
    pod, node = binding.pod, binding.node
    for active in binding.profile.at[Point.BIND]:
        call = partial(active.ask.bind, binding.state, pod, node)
        if (yield from _run(binding, active, Point.BIND, call, skips=True)):
            return
    # The framework binds the pods of a profile without a bind plugin.
    refusal, _ = yield Point.BIND, partial(_bind, client, pod, node)
    if refusal is not None:
        binding.reject("bind", Point.BIND, refusal)


def _bind(client: Client, pod: PodInfo, node: str) -> _Result:
    try:
        client.bind(pod, node)
    except Exception as error:  # the API server, or what stands for it
        return Refusal("", describe(error), Code.ERROR, EvaluationError(describe(error))), ()
    return None, ()


def _run(
    binding: BindingCycle, active: Active, point: Point, call: Callable[[], Any], *, skips: bool = False,
) -> Generator[_Step, _Result, bool]:
    """Call a plugin and return whether it did not skip; its refusal is the binding's rejection.

    The executor calls thread-safe plugins, and the deferred calls of others; all other calls are made in this thread.
    """
    kinds: tuple[type, ...] = (Skip,) if skips else ()
    if getattr(active.ask, "thread_safe", False):
        result, failures = yield point, partial(_call, active, point, call, kinds)
    else:
        result, failures = _call(active, point, call, (*kinds, Deferred))
        if isinstance(result, Deferred):
            binding.failures += failures
            result, failures = yield point, partial(_call, active, point, result.call, kinds)
    binding.failures += failures
    if isinstance(result, Skip):
        return False
    if result is not None:
        binding.reject(active.name, point, result)
    return True


def _call(active: Active, point: Point, call: Callable[[], Any], kinds: tuple[type, ...]) -> _Result:
    failures: list[Failure] = []
    return guarded(failures, active, point, call, kinds=kinds), failures
