"""The scheduling loop: takes pods from the queue one by one, schedules them, and requeues those that fail.

It runs in real or in virtual time: `clock` returns the time, `next_time` the time of the next action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from time import perf_counter

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.discovery import methods_of
from koordpolicy.engine.framework.handle import Client, Count
from koordpolicy.engine.framework.points import Code, Enforcement, Point, Refusal
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.framework.scheduler import (
    STALE_POD,
    AfterError,
    BeforeError,
    Depends,
    Hinted,
    NextPod,
    QueuedPod,
)
from koordpolicy.engine.framework.slots import PENDING_POD_VARIABLES

from ..extensions.controllers import ControllerRuns
from ..extensions.reservations import follow, is_reserve_pod
from ..observe.cycle_observer import CycleObserver, CycleObservers
from ..observe.metrics_recorder import MetricsRecorder
from ..observe.monitor import Monitor
from ..profiles.profile import Active, Profile, ProfileSpec
from ..profiles.rowwise import has
from ..queue.nominator import nominated_node
from ..queue.scheduling_queue import LONGEST_WAIT, Hint, PathHint, SchedulingQueue, any_change, by_priority
from ..verdict.verdict import Failure, Verdict
from .binding import same_pod
from .executor import Executor
from .plugin_calls import call_plugin
from .schedule_one import Scheduler, Settings


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to schedule a pod that has ended: the pod is bound, or it was requeued, or dropped."""

    queued: QueuedPod
    """The pod as it was taken from the queue, with the number of its attempts, this one included."""
    verdict: Verdict
    """The final verdict; of a pod without a node it is valid until the cluster changes."""
    began: int
    """When the pod was taken from the queue, in nanoseconds since the epoch."""
    pod: PodInfo | None = None
    """The requeued pod in its current version; None if the pod was bound, deleted or replaced."""


class SchedulingLoop:
    """A scheduler with its queue; for one thread, which owns both and the cluster."""

    def __init__(
        self, cluster: Cluster, live: Live, settings: Settings | None = None, *, clock: Callable[[], int],
        client: Client | None = None, count: Count | None = None, monitor: Monitor | None = None,
        longest_wait: int = LONGEST_WAIT, concluded: Callable[[Verdict], None] = lambda _: None,
        explained: bool = False, executor: Executor | None = None,
        observe: Callable[[Attempt], None] = lambda _: None, cycle_observers: Iterable[CycleObserver] = (),
    ) -> None:
        """The arguments that are not described here are those of `Scheduler`.

        `observe` is called with each attempt that ended; it must not change the cluster. With `cycle_observers`, the
        time of `clock` stands still during each cycle, see `CycleObservers`.

        With `explained`, verdicts about placed pods stay valid too (see `Verdict.explained`).

        A pod is tried again after `longest_wait` nanoseconds in the queue at the latest.

        The cluster's pods without a node are queued, in the order of their creation.

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
        """
        settings = settings or Settings()
        observers = tuple(cycle_observers)
        self._observers = CycleObservers(observers, clock) if observers else None
        if self._observers is not None:
            clock = self._observers.clock
        self.queue = SchedulingQueue(clock, initial_backoff=settings.initial_backoff,
                                     longest_backoff=settings.longest_backoff, longest_wait=longest_wait)
        self.gated: dict[str, tuple[str, Refusal]] = {}
        """The plugin that gates a pod, and its refusal, by the pod's key."""
        self.scheduler = Scheduler(cluster, live, settings, clock=clock, client=client, count=count, queue=self.queue,
                                   concluded=self._concluded, executor=executor)
        self.queue.sort_by(self._key)
        self.failures: list[Failure] = []
        """The last failures of plugins outside of decisions."""
        self._observe = observe
        self._clock = clock
        self._monitor = monitor
        self._recorder: MetricsRecorder | None = None
        self._observe_verdict = concluded
        self._explained = explained
        self._active = self.scheduler.hot_swap.active
        self._in_binding: dict[tuple[str, str], tuple[QueuedPod, int]] = {}
        """The pods that wait for a permit or are being bound, by key and UID, with the start of their attempt."""
        self._controllers = ControllerRuns()
        names = frozenset(profile.name for profile in self.scheduler.profiles)
        self._own_names = None if self.scheduler.settings.foreign_pods else names
        follow(cluster, lambda name: not name or name in names)
        self.scheduler.refresh()  # plugins that gate pods need all objects first
        cluster.listen(self._note)
        for pod in cluster.pending:
            self._enqueue(pod)
            self._nominate_as_status_says(pod)

    def schedule_one(self) -> Verdict | None:
        """Schedule the next pod and return its verdict; None if no pod is ready."""
        if self._observers is None:
            return self._schedule_one()
        self._observers.begin()
        verdict = None
        try:
            verdict = self._schedule_one()
        finally:
            self._observers.end(verdict)
        return verdict

    def _schedule_one(self) -> Verdict | None:
        active = self.scheduler.refresh()
        self.scheduler.process_bindings()
        del self.failures[:-_MOST_FAILURES]
        self._controllers.run(active.profiles.values(), self._clock())
        if active is not self._active:
            self._active = active
            self.queue.release_all()
        self._reconsider()
        queued = self._next()
        if queued is None and self._reconsider():  # the plugin that chooses the next pod may have activated some
            queued = self._next()
        if queued is None:
            return None
        pod, began = queued.pod, self._clock()
        if self._recorder is not None:
            self._recorder.attempt_began(queued)
        if self._monitor is not None:
            self._monitor.start(pod.key, active.profile_of(pod).name)
        nominated = self.scheduler.nominations.recorded_node_of(pod)
        verdict = self.scheduler.schedule(pod, explained=self._explained)
        if nominated is not None and verdict.node is None:
            self._note_freed(pod, nominated)
        if verdict.waiting or verdict.binding:
            self._in_binding[pod.key, pod.uid] = queued, began
        else:
            self._conclude(queued, verdict, began)
        if self._monitor is not None:
            self._monitor.complete(pod.key)
        return verdict if verdict.scheduled else verdict.explained()

    def schedule_all(self) -> Iterator[Verdict]:
        """Schedule pods until none is ready."""
        while (verdict := self.schedule_one()) is not None:
            yield verdict

    def is_ours(self, pod: PodInfo) -> bool:
        """Return whether the pod is scheduled here: `Settings.foreign_pods` says which are."""
        if self._own_names is None:
            return True
        name = (pod.object.get("spec") or {}).get("schedulerName") or ProfileSpec().name
        return name in self._own_names or is_reserve_pod(pod)

    def lost(self) -> tuple[PodInfo, ...]:
        """Return the pods without a node that are scheduled here, and are neither in the queue nor being bound.

        There are none, unless the cluster and the queue disagree: a pod may be here for a moment while the report of
        its binding is under way. Takes time in proportion to the pods of the cluster.
        """
        known = {pod.key for pod in self.queue.pods()}
        known.update(key for key, _ in self._in_binding)
        return tuple(pod for pod in self.scheduler.cluster.pending if pod.key not in known and self.is_ours(pod))

    def enqueue(self, pod: PodInfo) -> None:
        """Add a pod to the queue that `lost` returned."""
        self._enqueue(pod)

    def report_to(self, recorder: MetricsRecorder) -> None:
        """Report results and durations to a recorder from now on."""
        self._recorder = self.queue.recorder = self.scheduler.recorder = recorder

    @property
    def held(self) -> int:
        """The number of pods that wait for a permit or are being bound; for any thread."""
        return len(self._in_binding)

    def held_pods(self) -> dict[str, QueuedPod]:
        """Return the pods that wait for a permit or are being bound, by key, as the queue had them; for any thread."""
        return {key: queued for (key, _), (queued, _) in tuple(self._in_binding.items())}

    def gated_verdicts(self) -> tuple[Verdict, ...]:
        """Return a verdict for each gated pod: the plugin that gates it, and why."""
        names = self.scheduler.cluster.names
        found = []
        for pod in self.queue.pods():
            if pod.key in self.gated:
                plugin, refusal = self.gated[pod.key]
                profile = self._profile_of(pod)
                found.append(Verdict(pod, profile.name, profile.generation, tuple(names),
                                     refusal=(plugin, Point.PRE_ENQUEUE, refusal)))
        return tuple(found)

    def next_time(self) -> int | None:
        """Return the time of the next action if no event comes before; None if there is none."""
        times = [time for time in (self.queue.next_time(), self.scheduler.next_time()) if time is not None]
        return min(times, default=None)

    def close(self) -> None:
        """Close all plugins; no more pods are scheduled."""
        self.scheduler.close()

    def _profile_of(self, pod: PodInfo) -> Profile:
        return self.scheduler.hot_swap.active.profile_of(pod)

    # Into the queue

    def _key(self, queued: QueuedPod) -> object:
        # All profiles share one queue, so the first profile's order applies to all, as in kube-scheduler.
        for active in self._sorters():
            failed = len(self.failures)
            key = call_plugin(self.failures, active, Point.QUEUE_SORT, active.instance.queue_key, queued)
            if len(self.failures) == failed:
                return key
        return by_priority(queued)

    def _sorters(self) -> tuple[Active, ...]:
        return next(iter(self.scheduler.hot_swap.active.profiles.values())).at[Point.QUEUE_SORT]

    def _note(self, event: Event) -> None:
        if self._recorder is None or event.assumed:
            self._handle(event)
            return
        begun = perf_counter()
        self._handle(event)
        self._recorder.event_handled(event, perf_counter() - begun)

    def _handle(self, event: Event) -> None:
        if event.kind == "Pod":
            pod = event.new_pod
            before = event.old_pod
            if pod is None or pod.node_name:
                self.queue.remove(event.key)
                self.gated.pop(event.key, None)
                if not event.assumed:
                    self._withdraw(pod or before)
            elif not event.assumed and (before is None or before.node_name or not same_pod(before, pod)):
                self.queue.remove(event.key)
                self._withdraw(before)
                self._enqueue(pod)
                self._nominate_as_status_says(pod)
            elif not event.assumed:
                assert before is not None
                self.queue.update(pod)
                nominated = self.scheduler.nominations.recorded_node_of(before)
                self.scheduler.nominations.update(before, pod)
                if nominated is not None:
                    self._note_freed(pod, nominated)
        for pod in self.queue.note(event):
            self._enqueue(pod)

    def _withdraw(self, pod: PodInfo | None) -> None:
        """Withdraw the nomination of a pod."""
        if pod is None:
            return
        node = self.scheduler.nominations.recorded_node_of(pod)
        self.scheduler.nominations.withdraw(pod)
        if node is not None:
            self._note_freed(pod, node)

    def _note_freed(self, pod: PodInfo, node: str) -> None:
        """Notify the queue that a nominated pod left the node, which helps other pods as its deletion would."""
        if self.scheduler.nominations.recorded_node_of(pod) != node:
            self.queue.note(Event("Pod", pod.key, pod.object, None, pod.on(node), None, assumed=True))

    def _nominate_as_status_says(self, pod: PodInfo) -> None:
        """Nominate a pod for the node that its status names."""
        node = nominated_node(pod)
        if node and self.is_ours(pod):
            self.scheduler.nominations.nominate(pod, node)

    def _reconsider(self) -> bool:
        """Call the preEnqueue plugins for gated pods that were activated; return whether there were any."""
        activated = self.queue.reconsidered()
        for pod in activated:
            self._enqueue(pod)
        return bool(activated)

    def _enqueue(self, pod: PodInfo, but: str = "") -> None:
        self.gated.pop(pod.key, None)
        if (pod.object.get("metadata") or {}).get("deletionTimestamp") or not self.is_ours(pod):
            return
        profile = self._profile_of(pod)
        for active in profile.at[Point.PRE_ENQUEUE]:
            if active.name == but:
                continue
            refusal = call_plugin(self.failures, active, Point.PRE_ENQUEUE, active.instance.pre_enqueue, pod,
                              self.scheduler.cluster.snapshot(self._clock()), kinds=())
            if refusal is not None and active.enforced:
                self.gated[pod.key] = (active.name, refusal)
                self.queue.gate(pod, [self._hint_of(active, frozenset((refusal.rule,)))])
                return
        self.queue.add(pod)

    def _next(self) -> QueuedPod | None:
        while (queued := self._pop_chosen() or self.queue.pop()) is not None:
            # Taken from the queue: results of bindings can no longer remove it from there.
            self.scheduler.process_bindings()
            terminating = (queued.pod.object.get("metadata") or {}).get("deletionTimestamp")
            if not terminating and not self._is_bound(queued.pod):
                return queued
            self.queue.done(queued.pod)
        return None

    def _is_bound(self, pod: PodInfo) -> bool:
        """Return whether the cluster's object of the pod has a node: a binding cycle that was given up succeeded."""
        known = self.scheduler.cluster.object("Pod", pod.key)
        if known is None or not (known.get("spec") or {}).get("nodeName"):
            return False
        return same_pod(PodInfo.of(known), pod)

    def _pop_chosen(self) -> QueuedPod | None:
        name = ""
        for profile in self.scheduler.hot_swap.active.profiles.values():
            for active in profile.having(NextPod)[:1]:
                # Only one such plugin is used in a process, though each profile has its own instance.
                name = name or active.name
                if active.name != name:
                    continue
                key = call_plugin(self.failures, active, Point.QUEUE_SORT, active.instance.next_pod)
                gated = self.queue.gated(key) if isinstance(key, str) else None
                if gated is not None:  # a plugin may pass its own gate here, no other one's
                    self._enqueue(gated, but=active.name)
                    if key in self.gated:
                        continue
                found = self.queue.pop(key) if isinstance(key, str) else None
                if found is not None:
                    return found
        return None

    # After an attempt

    def _concluded(self, verdict: Verdict) -> None:
        attempt = self._in_binding.pop((verdict.pod.key, verdict.pod.uid), None)
        if attempt is not None:
            self._conclude(attempt[0], verdict, attempt[1])
        if self._observers is not None:
            self._observers.concluded(verdict)
        self._observe_verdict(verdict)

    def _conclude(self, queued: QueuedPod, verdict: Verdict, began: int) -> None:
        if self._recorder is not None:
            self._recorder.attempt_ended(queued, verdict, began)
        requeued: PodInfo | None = None
        try:
            if verdict.node is None:
                requeued = self._handle_failure(self._profile_of(queued.pod), queued, verdict)
        finally:
            self.queue.done(queued.pod)
        self._observe(Attempt(queued, verdict, began, requeued))

    def _handle_failure(self, profile: Profile, queued: QueuedPod, verdict: Verdict) -> PodInfo | None:
        """Call the error handlers, and requeue the pod; return it as it was requeued, or None if it was not."""
        requeued: PodInfo | None = None
        refusal = verdict.refusal[2] if verdict.refusal is not None else Refusal("", verdict.message())
        for active in profile.having(BeforeError):
            if call_plugin(self.failures, active, Point.POST_FILTER, active.instance.before_error, queued.pod,
                       refusal) is True:
                break
        else:
            current = self.scheduler.cluster.pod(queued.pod.key)
            stale = refusal.rule == STALE_POD and refusal.code is Code.ERROR
            if current is not None and not current.node_name and same_pod(current, queued.pod) and not stale:
                hints = None if refusal.code is Code.ERROR else self._hints_of(profile, verdict)
                self.queue.failed(replace(queued, pod=current), hints)
                requeued = current
        for active in profile.having(AfterError):
            if call_plugin(self.failures, active, Point.POST_FILTER, active.instance.after_error, queued.pod,
                       refusal) is True:
                break
        return requeued

    def _hints_of(self, profile: Profile, verdict: Verdict) -> list[Hint]:
        """Return the requeue hints of the pod: the dependencies of each plugin that refused it."""
        plugins = {each.name: each for each in profile.made}
        found: list[Hint] = []
        if verdict.refusal is not None:
            name, point, refusal = verdict.refusal
            found.append(self._hint_of(plugins.get(name), frozenset((refusal.rule,))))
            if point in _AFTER_ASSUMING:
                # The pod had a node: the refusals of other nodes are older than this one.
                return found
        for step in verdict.filters:
            if step.enforcement is Enforcement.ENFORCE and len(step.refused):
                rules = frozenset[str]() if step.answer.rules is None else step.answer.rules(step.refused)
                found.append(self._hint_of(plugins.get(step.plugin), rules))
        if not verdict.names:
            found.append(_NODES)
        return found

    def _hint_of(self, active: Active | None, rules: frozenset[str]) -> Hint:
        if active is None:
            return any_change
        if has(active.instance, *methods_of(Depends)):
            paths = call_plugin(self.failures, active, Point.QUEUE_SORT, active.instance.depends_on, rules)
            known = isinstance(paths, AbstractSet) and all(type(path) is tuple and path[:1] in _KNOWN for path in paths)
            return PathHint(frozenset(paths)) if known else any_change
        if has(active.instance, *methods_of(Hinted)):
            return _PluginHint(active, self.failures, self._recorder)
        return any_change


_NODES = PathHint(frozenset({("node",)}))
_KNOWN = frozenset((name,) for name in (
    *PENDING_POD_VARIABLES, "params", "variables", "aggregates", "now", "node", "nodeInfo", "nodeMetric", "allocatable",
    "requested", "nonZeroRequested", "usage", "estimated", "metricAge", "devices", "existingPod", "existingPodInfo",
    "objects",
))
"""The first elements of known paths; changes of other paths are not tracked."""
_MOST_FAILURES = 100
_AFTER_ASSUMING = frozenset((Point.PERMIT, Point.PRE_BIND, Point.BIND))


@dataclass(frozen=True, slots=True)
class _PluginHint:
    """A requeue hint that calls the plugin; if that fails, the event may help."""

    active: Active
    failures: list[Failure] = field(compare=False, repr=False)
    recorder: MetricsRecorder | None = field(default=None, compare=False, repr=False)

    def __call__(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the plugin expects the event to help."""
        begun, result = 0.0 if self.recorder is None else perf_counter(), ""
        try:
            helps = bool(self.active.instance.may_help(event, pod))
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            plugin = self.active.plugin
            message = f"the requeue hint failed: {describe(error)}"
            failure = Failure(plugin.name, plugin.origin, Point.QUEUE_SORT, message)
            if failure not in self.failures[-_MOST_ALIKE:]:
                self.failures.append(failure)
            helps, result = True, "Error"
        if self.recorder is not None:
            result = result or ("Queue" if helps else "QueueSkip")
            self.recorder.hint_ended(self.active.name, event, result, perf_counter() - begun)
        return helps

    def __hash__(self) -> int:
        return hash((self.active.name, id(self.active.instance)))


_MOST_ALIKE = 8
