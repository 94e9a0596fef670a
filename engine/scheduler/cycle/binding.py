"""The binding cycle: preBind, bind and postBind of pods that have their node.

A binding cycle is a generator that runs in the owner's thread, top to bottom, and yields each piece of input and
output: an `Executor` does that, and the generator goes on with the result. It also yields what it waits for: objects of
the cluster that others change (`ObjectWaits`). Annotations that preBinds add travel in the binding itself where the
client and the bind plugins can do that, so that a pod costs one write.
"""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.handle import AsyncBinder, Client, StalePodError
from koordpolicy.engine.framework.instances import Lease
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import (
    STALE_POD,
    ApplyPatch,
    AwaitObjects,
    BindAnnotations,
    CycleState,
    Deferred,
    PreBind,
    PreBindPreFlight,
    PreBindReservation,
    Skip,
)
from koordpolicy.engine.records import replaced

from ..extensions.reservations import is_reserve_pod, reservation_of
from ..observe.metrics_recorder import POINT_NAMES, PointTimer
from ..profiles.profile import Active, Profile
from ..verdict.verdict import Failure, PodRejection, Verdict
from .executor import Executor, Job
from .object_waits import ObjectWaits
from .plugin_calls import call_plugin, invalid_answer

_LOG: Final = logging.getLogger(__name__)

_Result: TypeAlias = tuple[Any, Sequence[Failure]]
"""A plugin's result (None, a refusal or `SKIP`), and its failures."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The objects that a plugin waits for."""

    active: Active
    point: Point
    objects: AwaitObjects

    def result(self) -> _Result | None:
        """Return the plugin's result; None if the cycle must wait on."""
        failures: list[Failure] = []
        found = call_plugin(failures, self.active, self.point, self.objects.condition, kinds=(bool, AwaitObjects))
        if found is False or (isinstance(found, AwaitObjects) and found.objects <= self.objects.objects):
            return None
        if found is None:
            found = invalid_answer(failures, self.active, self.point, found)
        return (None if found is True else found), failures

    def timed_out(self) -> _Result:
        """Return the plugin's result after the timeout."""
        return Refusal("timeout", self.objects.timed_out, Code.ERROR), ()


@dataclass(frozen=True, slots=True)
class _Coroutine:
    """A call for an event loop."""

    call: Callable[[], Awaitable[_Result]]


_Step: TypeAlias = tuple[Point, Callable[[], _Result] | _Awaited | _Coroutine]
_Steps: TypeAlias = Generator[_Step, _Result, None]
"""A running binding cycle: yields a call for the executor or objects to wait for, and receives the result."""


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
    """The time at which the first job was submitted, in nanoseconds since the epoch; after a wait for objects, the
    first one since.
    """
    deadline: int = 0
    steps: _Steps | None = None
    job: Job | None = None
    """The input or output in progress."""
    awaited: _Awaited | None = None
    """The objects that the cycle waits for."""
    point: Point = Point.PRE_BIND
    """The point of `job`, or of the last one."""
    bound: bool = False
    """True if the pod is bound: nothing rejects it any more."""
    timer: PointTimer | None = None
    """Measures the attempt, if it is observed."""

    def __post_init__(self) -> None:
        """Begin with the failures of the decision."""
        self.failures.extend(self.verdict.failures)

    @property
    def node(self) -> str:
        """The node's name."""
        assert self.verdict.node is not None
        return self.verdict.node

    def measured(self, active: Active, point: Point, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a plugin, measured if the attempt is sampled."""
        if self.timer is None or self.timer.plugins is None:
            return call
        return self.timer.plugins.measured(active.name, point, call)

    def reject(self, plugin: str, point: Point, refusal: Refusal) -> None:
        """Record the rejection; the first one counts."""
        self.rejection = self.rejection or (plugin, point, refusal)

    def fail(self, error: BaseException) -> None:
        """Log an error that is not a plugin's; it is the rejection of a pod that is not bound yet."""
        message = describe(error)
        _LOG.error("%s: the binding cycle failed: %s", self.pod.key, message, exc_info=error,
                   extra={"pod": self.pod.key})
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

    A cycle whose input and output takes longer than `timeout` nanoseconds is abandoned. It may still succeed later: see
    `bound_late`. A wait for objects has a timeout of its own, and none of the executor's workers.
    """

    def __init__(
        self, cluster: Cluster, client: Client, feature_gates: Collection[str], executor: Executor, *,
        clock: Callable[[], int], timeout: int, lease: Callable[[], Lease],
    ) -> None:
        self._cluster = cluster
        self._client = client
        # `isinstance` of a protocol takes as long as the whole binding of a pod in memory.
        self._async_client = client if isinstance(client, AsyncBinder) else None
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
        """The cycles with a job in progress, oldest first; all have the same timeout."""
        self._waits: ObjectWaits[BindingCycle] = ObjectWaits(clock)
        self._bound_late: list[BindingCycle] = []
        cluster.listen(self._note)

    def close(self) -> None:
        """Stop receiving events."""
        self._cluster.unlisten(self._note)

    @property
    def idle(self) -> bool:
        """True if no binding cycle has anything to do, or to wait for."""
        return not (self._in_flight or self._abandoned or self._waits)

    @property
    def in_flight(self) -> tuple[BindingCycle, ...]:
        """The cycles with input or output in progress, oldest first."""
        return tuple(self._in_flight)

    @property
    def awaiting(self) -> tuple[BindingCycle, ...]:
        """The cycles that wait for objects, oldest first."""
        return tuple(self._waits)

    @property
    def begun(self) -> tuple[int, ...]:
        """The start times of the cycles that are in flight, or abandoned with a worker in their job; for any thread."""
        # Both tuples are made at once, whatever the owner of the cluster does meanwhile.
        in_flight, abandoned = tuple(self._in_flight), tuple(self._abandoned.values())
        return (*(binding.begun for binding in in_flight), *(binding.begun for binding, _ in abandoned))

    def next_time(self) -> int | None:
        """Return the time of the next timeout; None if no cycle is running."""
        times = (next((binding.deadline for binding in self._in_flight), None), self._waits.next_time())
        return min((time for time in times if time is not None), default=None)

    def start(self, binding: BindingCycle) -> bool:
        """Run the binding cycle until it waits for a worker or for objects; return whether it has ended."""
        binding.steps = _binding_cycle(binding, self._cluster, self._client, self._async_client, self._feature_gates)
        if self._resume(binding, binding.steps, None):
            return True
        binding.phase = BindingPhase.BINDING
        binding.lease = binding.lease or self._lease()
        return False

    def cancel(self, key: str, plugin: str, message: str) -> bool:
        """Reject the pod if its cycle is still before the bind plugins; return whether it is.

        Input and output in progress is not interrupted: the cycle ends after it.
        """
        binding = next((each for each in (*self._waits, *self._in_flight) if each.pod.key == key), None)
        if binding is None or binding.point is not Point.PRE_BIND:
            return False
        binding.reject(plugin, Point.PRE_BIND, Refusal("", message))
        if binding.awaited is not None:
            self._waits.touch(binding)
        return True

    def ended(self) -> Iterator[BindingCycle]:
        """Yield the cycles that have ended since the last call: in the order of completion, then those whose wait for
        objects has ended, then the abandoned ones.
        """
        yield from self._completed()
        yield from self._waited()
        while self._in_flight:
            binding = next(iter(self._in_flight))
            if binding.deadline > self._clock():
                return
            self._give_up(binding)
            yield binding

    def _note(self, event: Event) -> None:
        if self._waits:
            self._waits.note(event)

    def _completed(self) -> Iterator[BindingCycle]:
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

    def _waited(self) -> Iterator[BindingCycle]:
        """Resume the cycles whose wait has ended; yield those that have ended with it."""
        while (due := self._waits.take()) is not None:
            binding, late = due
            assert binding.awaited is not None
            assert binding.steps is not None
            result = self._result_of_wait(binding, binding.awaited)
            if result is None and late:
                result = binding.awaited.timed_out()
            if result is not None:
                self._waits.remove(binding)
                binding.awaited = None
                if self._resume(binding, binding.steps, result):
                    yield binding

    def _result_of_wait(self, binding: BindingCycle, awaited: _Awaited) -> _Result | None:
        """Return the result of a wait; None if the cycle must wait on."""
        if binding.rejection is not None:
            return None, ()
        fault = self._fault_of(binding)
        return (Refusal("", fault, Code.ERROR), ()) if fault else awaited.result()

    def _fault_of(self, binding: BindingCycle) -> str:
        """Return why a waiting pod can no longer be bound; empty if it can."""
        pod = self._cluster.pod(binding.pod.key)
        if pod is None:
            return "the pod does not exist any more"
        if not same_pod(pod, binding.pod):
            return "the pod was made anew"
        if _is_going(self._cluster.object("Pod", pod.key)):
            return "the pod is being deleted"
        if pod.node_name != binding.node:
            return f"the pod was bound to `{pod.node_name}` by another scheduler"
        if binding.node not in self._cluster.index:
            return f"the node `{binding.node}` is gone"
        return "the pod is bound already" if is_shown_bound(self._cluster, binding) else ""

    def bound_late(self) -> tuple[BindingCycle, ...]:
        """Return the abandoned cycles whose pods were bound after all, since the last call."""
        found, self._bound_late = tuple(self._bound_late), []
        return found

    def _resume(self, binding: BindingCycle, steps: _Steps, result: _Result | None) -> bool:
        """Resume a cycle with the result of its last step until it waits again; return whether it has ended."""
        try:
            while True:
                binding.point, step = next(steps) if result is None else steps.send(result)
                if isinstance(step, _Awaited):
                    result = self._result_of_wait(binding, step)
                    if result is None:
                        self._in_flight.pop(binding, None)
                        binding.awaited = step
                        own = {("Pod", binding.pod.key), ("Node", binding.node)}
                        self._waits.add(binding, step.objects.objects | own, step.objects.timeout)
                        return False
                    continue
                if isinstance(step, _Coroutine):
                    result = self._executor.submit_async(step.call)
                else:
                    result = self._executor.submit(step)
                if isinstance(result, Job):
                    self._await_job(binding, result)
                    return False
        except StopIteration:
            return True
        except BaseException as error:  # whatever it is, no job is under way that would end the cycle later
            self._in_flight.pop(binding, None)
            must_be_survived(error)
            binding.fail(error)
            steps.close()
            return True

    def _await_job(self, binding: BindingCycle, job: Job) -> None:
        binding.job = job
        self._by_job[job] = binding
        if binding not in self._in_flight:
            binding.begun = self._clock()
            binding.deadline = binding.begun + self._timeout
            self._in_flight[binding] = None

    def _give_up(self, binding: BindingCycle) -> None:
        job = binding.job
        assert job is not None
        assert binding.steps is not None
        del self._in_flight[binding], self._by_job[job]
        binding.job = None
        binding.steps.close()
        message = f"binding the pod to `{binding.node}` takes longer than {self._timeout / 1e9:g} s"
        binding.reject("bind", binding.point, Refusal("timeout", message, Code.ERROR))
        _LOG.error("%s: %s; it is tried again", binding.pod.key, message, extra={"pod": binding.pod.key})
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
    binding: BindingCycle, cluster: Cluster, client: Client, async_client: AsyncBinder | None,
    feature_gates: Collection[str],
) -> _Steps:
    """Bind an assumed pod; a failure is recorded as the rejection of `binding`.

    A pod that the cluster shows bound to its node, as an earlier attempt succeeded late, is not bound again.
    """
    if not is_shown_bound(cluster, binding):
        yield from _bind_pod(binding, cluster, client, async_client, feature_gates)
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
    if binding.timer is not None:
        binding.timer.begin()
    for active in binding.profile.at[Point.POST_BIND]:
        call_plugin(binding.failures, active, Point.POST_BIND,
                binding.measured(active, Point.POST_BIND, active.instance.post_bind), binding.state, binding.pod,
                binding.node)
    if binding.timer is not None:
        binding.timer.end(POINT_NAMES[Point.POST_BIND])


def _bind_pod(
    binding: BindingCycle, cluster: Cluster, client: Client, async_client: AsyncBinder | None,
    feature_gates: Collection[str],
) -> _Steps:
    pod, node, profile = binding.pod, binding.node, binding.profile
    reservation = reservation_of(pod) if is_reserve_pod(pod) else None
    if reservation is None and "DynamicSchedulerCheck" in feature_gates:
        fault = _fault_of_pod(pod, cluster.object("Pod", pod.key), profile.name)
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
        preparing = _preparing(binding) if reservation is None else ()
        if reservation is not None or preparing:
            in_binding = async_client is not None and _sends_annotations(profile)
            if binding.timer is not None:
                binding.timer.begin()
            yield from _run_pre_bind_plugins(
                binding, original, preparing, reserves=reservation is not None, in_binding=in_binding)
            if binding.timer is not None:
                binding.timer.end(POINT_NAMES[Point.PRE_BIND], binding.rejection)
    if binding.rejection is None:
        if binding.timer is not None:
            binding.timer.begin()
        yield from _run_bind_plugins(binding, client, async_client)
        if binding.timer is not None:
            binding.timer.end(POINT_NAMES[Point.BIND], binding.rejection)


def _fault_of_pod(pod: PodInfo, current: Mapping[str, Any] | None, profile: str) -> str:
    """Return why a pod must no longer be bound; empty if it may be."""
    if current is None:
        return ""  # the cluster has no object of the pod to compare it with
    named = (current.get("spec") or {}).get("schedulerName")
    before = (pod.object.get("spec") or {}).get("schedulerName")
    if named not in (before, profile):
        return "schedulerName unmatched"
    return "pod is being deleted" if _is_going(current) else ""


def _is_going(item: Mapping[str, Any] | None) -> bool:
    """Return whether an object is marked for deletion."""
    return item is not None and bool((item.get("metadata") or {}).get("deletionTimestamp"))


def _preparing(binding: BindingCycle) -> tuple[Active, ...]:
    """Return the plugins whose preBind has something to do for the pod."""
    found = binding.profile.having(PreBind)
    idle = {
        active.name for active in binding.profile.having(PreBindPreFlight)
        if call_plugin(binding.failures, active, Point.PRE_BIND, active.instance.pre_bind_pre_flight, binding.state,
                   binding.pod, binding.node) is False
    }
    return tuple(active for active in found if active.name not in idle) if idle else found


def _sends_annotations(profile: Profile) -> bool:
    return all(getattr(active.instance, "sends_annotations", False) for active in profile.at[Point.BIND])


def _added_annotations(original: Mapping[str, Any], draft: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the annotations that a draft adds or changes; None if it differs in anything else than these."""
    metadata, changed = original.get("metadata") or {}, draft.get("metadata") or {}
    no = {"annotations": None}
    if {**original, "metadata": {**metadata, **no}} != {**draft, "metadata": {**changed, **no}}:
        return None
    old, new = metadata.get("annotations") or {}, changed.get("annotations") or {}
    return {name: text for name, text in new.items() if old.get(name) != text} if old.keys() <= new.keys() else None


def _run_pre_bind_plugins(
    binding: BindingCycle, original: Mapping[str, Any], preparing: Sequence[Active], *, reserves: bool,
    in_binding: bool,
) -> _Steps:
    draft: dict[str, Any] = copy.deepcopy(dict(original))
    profile, state, pod, node = binding.profile, binding.state, binding.pod, binding.node
    if reserves:
        draft.setdefault("status", {})["nodeName"] = node
        for active in profile.having(PreBindReservation):
            call = partial(active.instance.pre_bind_reservation, state, draft, node)
            yield from _run(binding, active, Point.PRE_BIND, call)
            if binding.rejection is not None:
                return
    else:
        for active in preparing:
            yield from _run(binding, active, Point.PRE_BIND, partial(active.instance.pre_bind, state, pod, draft, node))
            if binding.rejection is not None:
                return
        if in_binding and (added := _added_annotations(original, draft)) is not None:
            state[BindAnnotations] = added
            return
    for active in profile.having(ApplyPatch):
        call = partial(active.instance.apply_patch, state, original, draft)
        if (yield from _run(binding, active, Point.PRE_BIND, call, skips=True)):
            return


def _run_bind_plugins(binding: BindingCycle, client: Client, async_client: AsyncBinder | None) -> _Steps:
    pod, node = binding.pod, binding.node
    for active in binding.profile.at[Point.BIND]:
        call = partial(active.instance.bind, binding.state, pod, node)
        if (yield from _run(binding, active, Point.BIND, call, skips=True)):
            return
    # The framework binds the pods of a profile without a bind plugin.
    if async_client is not None:
        annotations = binding.state.get(BindAnnotations) or {}
        refusal, _ = yield Point.BIND, _Coroutine(partial(_bind_async, async_client, pod, node, annotations))
    else:
        refusal, _ = yield Point.BIND, partial(_bind, client, pod, node)
    if refusal is not None:
        binding.reject("bind", Point.BIND, refusal)


def _bind(client: Client, pod: PodInfo, node: str) -> _Result:
    try:
        client.bind(pod, node)
    except Exception as error:  # the API server, or what stands for it
        return _not_bound(error), ()
    return None, ()


async def _bind_async(client: AsyncBinder, pod: PodInfo, node: str, annotations: Mapping[str, str]) -> _Result:
    try:
        await client.bind_async(pod, node, annotations)
    except Exception as error:  # the API server, or what stands for it
        return _not_bound(error), ()
    return None, ()


def _not_bound(error: Exception) -> Refusal:
    rule = STALE_POD if isinstance(error, StalePodError) else ""
    return Refusal(rule, describe(error), Code.ERROR, EvaluationError(describe(error)))


def _run(
    binding: BindingCycle, active: Active, point: Point, call: Callable[[], Any], *, skips: bool = False,
) -> Generator[_Step, _Result, bool]:
    """Call a plugin and return whether it did not skip; its refusal is the binding's rejection.

    The executor calls thread-safe plugins, and the deferred calls of others; all other calls are made in this thread.
    """
    kinds: tuple[type, ...] = (Skip,) if skips else (AwaitObjects,) if point is Point.PRE_BIND else ()
    call = binding.measured(active, point, call)
    if getattr(active.instance, "thread_safe", False):
        result, failures = yield point, partial(_call, active, point, call, kinds)
    else:
        result, failures = _call(active, point, call, (*kinds, Deferred))
        if isinstance(result, Deferred):
            binding.failures += failures
            deferred: Callable[[], Any] = result.call
            if result.asynchronous:
                if binding.timer is not None and binding.timer.plugins is not None:
                    deferred = binding.timer.plugins.measured_async(active.name, point, deferred)
                result, failures = yield point, _Coroutine(partial(_call_async, active, point, deferred, kinds))
            else:
                deferred = binding.measured(active, point, deferred)
                result, failures = yield point, partial(_call, active, point, deferred, kinds)
    binding.failures += failures
    while isinstance(result, AwaitObjects) and binding.rejection is None:
        result, failures = yield point, _Awaited(active, point, result)
        binding.failures += failures
    if isinstance(result, Skip):
        return False
    if isinstance(result, Refusal):
        binding.reject(active.name, point, result)
    return True


def _call(active: Active, point: Point, call: Callable[[], Any], kinds: tuple[type, ...]) -> _Result:
    failures: list[Failure] = []
    return call_plugin(failures, active, point, call, kinds=kinds), failures


async def _call_async(
    active: Active, point: Point, call: Callable[[], Awaitable[Any]], kinds: tuple[type, ...],
) -> _Result:
    try:
        answer = await call()
    except BaseException as error:  # the border between framework and plugin
        return _call(active, point, partial(_raise, error), kinds)
    return _call(active, point, lambda: answer, kinds)


def _raise(error: BaseException) -> NoReturn:
    raise error
