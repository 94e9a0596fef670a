"""The scheduling cycle of one pod, top to bottom.

`decide` runs preFilters, finds the feasible nodes, scores them and selects one; if there is none, it runs the
postFilters. It changes nothing. `Scheduler.schedule` decides on the cluster that it owns, then preempts, or reserves,
assumes, permits, and hands the pod over to its binding cycle.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.scalar.budget import OVERDUE
from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.derived import all_rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.handle import NOTHING, ClearsNominations, Client, Count, Handle, Queue
from koordpolicy.engine.framework.instances import Lease
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.framework.scheduler import (
    NO_CANDIDATE,
    AfterPostFilter,
    CycleState,
    ForgetPod,
    Nomination,
    ReservationNominator,
    ResizePod,
    Wait,
)
from koordpolicy.engine.kubernetes.release import Release, release_of
from koordpolicy.engine.records import replaced
from koordpolicy.engine.source import Source

from ..observe.metrics_recorder import POINT_NAMES, SUCCESS, UNRESERVE, UNSCHEDULABLE, WAIT, MetricsRecorder, PointTimer
from ..observe.tracing import PluginCall, traced
from ..profiles.profile import Profile, ProfileSpec
from ..profiles.profile_set import HotSwap, ProfileSet
from ..queue.events import EventHub, Subscriber
from ..queue.nominator import Nominations
from ..verdict.diagnosis import diagnosis_of
from ..verdict.verdict import Failure, Scored, Tie, Verdict
from .binding import BindingCycle, BindingCycles, BindingPhase, is_shown_bound, note_bound, same_pod
from .executor import Executor, InlineExecutor
from .node_refusals import NodeRefusals
from .own_cluster import OwnCluster
from .plugin_calls import call_plugin, invalid_answer
from .plugin_runner import Phase, PluginRunner
from .tie_break import FIRST_BY_NAME, TieBreak, tie_break
from .waiting_pods import WaitingPod, WaitingPodsMap

_LOG: Final = logging.getLogger(__name__)
_LONGEST_PERMIT_WAIT: Final = 15 * 60 * 1_000_000_000
"""The maximum time for which a permit holds a pod, in nanoseconds: kube-scheduler `maxTimeout` in
`pkg/scheduler/framework/runtime/framework.go`.
"""


class ReservedDevices:
    """The key of the cycle state for the minor numbers of the devices that a Reserve plugin allocated."""


def decide(
    profile: Profile, pod: PodInfo, snapshot: Snapshot, *, tie_break: TieBreak = FIRST_BY_NAME,
    exhaustive: bool = False, state: CycleState | None = None, nominations: Nominations | None = None,
    timer: PointTimer | None = None, candidates: Rows | None = None, preempts: bool = True,
) -> Verdict:
    """Select a node for a pod among `candidates` (rows; None for all); changes nothing. `timer` measures the points.

    `exhaustive` runs every filter on every node, and the scorers also on a single node: explanations need all reasons,
    not only the first. `nominations` are the nominated nodes of other pods. A plugin's fault never ends the decision:
    an exception, a malformed result or a score outside 0..100 is recorded in the verdict as that plugin's failure, with
    the effect that `framework.points` defines for an error at its point. If no node is feasible, the postFilters name
    the victims of a preemption; none is evicted here. Without `preempts` they are not run.
    """
    runner = PluginRunner(profile, CycleState() if state is None else state, pod, snapshot, exhaustive, timer=timer)
    everything = all_rows(snapshot.size) if candidates is None else candidates
    rejection, rows = runner.run_pre_filters(everything)
    if timer is not None:
        timer.end(POINT_NAMES[Point.PRE_FILTER], rejection)
    if rejection is None:
        rejection, rows = runner.find_feasible_nodes(rows, nominations)
        if timer is not None:
            timer.end(POINT_NAMES[Point.FILTER], rejection)
    names, steps = snapshot.names, runner.steps
    if rejection is not None or not len(rows):
        verdict = Verdict(pod, profile.name, profile.generation, names, filters=steps, passed=rows, refusal=rejection,
                          failures=tuple(runner.failures))
        if timer is not None:
            timer.decided(verdict, runner.skipped)
        if not preempts:
            return verdict
        return _run_post_filters(verdict, runner, NodeRefusals(runner, rejection, everything, nominations))
    scores: Sequence[Scored] = ()
    totals: NDArray[np.int64] | None = None
    row, among = int(rows[0]), 1
    if len(rows) > 1 or exhaustive:
        rejection, scores, totals = runner.score_nodes(rows)
        if timer is not None:
            timer.end(POINT_NAMES[Point.SCORE], rejection)
        if rejection is not None:
            return Verdict(pod, profile.name, profile.generation, names, filters=steps, passed=rows, refusal=rejection,
                           failures=tuple(runner.failures))
        best = rows[(totals == totals[totals.argmax()]).nonzero()[0]]
        row, among = tie_break.pick(best), len(best)
    verdict = Verdict(
        pod, profile.name, profile.generation, names, names[row], row, filters=steps, passed=rows, scores=scores,
        totals=totals, tie=Tie(tie_break.rule, among, tie_break.seed), failures=tuple(runner.failures),
    )
    if timer is not None:
        timer.decided(verdict, runner.skipped)
    return _nominate_reservation(verdict, runner)


def _nominate_reservation(verdict: Verdict, runner: PluginRunner) -> Verdict:
    """Let the plugins nominate the reservation that the pod uses on its node."""
    for active in runner.profile.having(ReservationNominator):
        refusal = call_plugin(
            runner.failures, active, Point.SCORE, active.instance.nominate_reservation,
            runner.state, runner.pod, runner.snapshot, verdict.row, kinds=(),
        )
        if refusal is not None:
            return replaced(verdict, node=None, row=-1, refusal=(active.name, Point.SCORE, refusal),
                            failures=tuple(runner.failures))
    return verdict


def _run_post_filters(verdict: Verdict, runner: PluginRunner, refused: NodeRefusals) -> Verdict:
    """Run the postFilters, unless the cycle ended with an error."""
    if verdict.refusal is not None and verdict.refusal[2].code is Code.ERROR:
        return verdict
    profile, state = runner.profile, runner.state
    if not (profile.at[Point.POST_FILTER] or profile.having(AfterPostFilter)):
        return verdict
    state[Phase] = Point.POST_FILTER
    timer = runner.timer
    if timer is not None:
        timer.begin()
    nomination: Nomination | None = None
    refusals: list[tuple[str, Refusal]] = []
    for active in profile.at[Point.POST_FILTER]:
        answer = call_plugin(
            runner.failures, active, Point.POST_FILTER, active.instance.post_filter,
            state, runner.pod, runner.snapshot, refused, kinds=(Nomination,),
        )
        if isinstance(answer, Nomination) and answer.node not in runner.snapshot.index:
            answer = invalid_answer(runner.failures, active, Point.POST_FILTER, answer)
        if isinstance(answer, Nomination):
            nomination = answer
            break
        if isinstance(answer, Refusal):
            refusals.append((active.name, answer))
            if answer.code is not Code.UNSCHEDULABLE:
                break
    for active in profile.having(AfterPostFilter):
        call_plugin(
            runner.failures, active, Point.POST_FILTER, active.instance.after_post_filter,
            state, runner.pod, runner.snapshot, refused, nomination,
        )
    if timer is not None and profile.at[Point.POST_FILTER]:
        timer.end(POINT_NAMES[Point.POST_FILTER], status=UNSCHEDULABLE if nomination is None else SUCCESS)
        timer.preempted(None if nomination is None else len(nomination.victims))
    return replaced(verdict, nomination=nomination, post_filter_refusals=tuple(refusals),
                    failures=tuple(runner.failures))


def filter_only(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Run `decide` up to its filters, over the nodes `among` (rows; None for all).

    The verdict has no node and no scores; `passed` are the feasible nodes, unless the pod was rejected as a whole.
    """
    runner = PluginRunner(profile, CycleState(), pod, snapshot)
    rows = all_rows(snapshot.size) if among is None else among
    refusal, passed = runner.run_pre_filters(rows)
    if refusal is None:
        refusal, passed = runner.find_feasible_nodes(passed, None)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, filters=runner.steps, passed=passed,
                   refusal=refusal, failures=tuple(runner.failures), considered=len(rows))


def score_only(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Run the scoring part of `decide` over the feasible nodes `among` (rows; None for all).

    The verdict has no node; `totals` are the scores, in the order of `passed`, which are the nodes `among`.
    """
    runner = PluginRunner(profile, CycleState(), pod, snapshot)
    rows = all_rows(snapshot.size) if among is None else among
    runner.run_pre_filters(rows)  # for the cycle state that the scorers read; the pod has passed
    refusal, scores, totals = runner.score_nodes(rows)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, passed=rows, totals=totals, scores=scores,
                   refusal=refusal, failures=tuple(runner.failures), considered=len(rows))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a scheduler: its profiles (the first is for pods that name none of them), tie-break, and seed."""

    profiles: tuple[ProfileSpec, ...] = (ProfileSpec(),)
    tie_break: str = "first"
    seed: int = 0
    """The seed of random tie-breaks and of plugins that use random numbers."""
    feature_gates: frozenset[str] = frozenset()
    """The names of the enabled feature gates, in addition to the defaults (`FEATURE_GATES`)."""
    initial_backoff: int = 1_000_000_000
    """The back-off of a pod before its second attempt, in nanoseconds; doubled with each further one."""
    longest_backoff: int = 10_000_000_000
    binding_timeout: int = 60_000_000_000
    """The timeout of a binding cycle, in nanoseconds; the pod is tried again after it."""
    foreign_pods: bool = True
    """Schedule pods, too, whose `spec.schedulerName` is the name of no profile: by the first one."""
    kubernetes: Release | None = None
    """The release of Kubernetes whose kube-scheduler the plugins of all profiles follow, where releases differ.

    None: each profile follows the one of `release_of` its name.
    """
    decision_seconds: float = 30.0
    """The processor time after which the expressions of a decision are stopped, which is an error then, in seconds."""


FEATURE_GATES = frozenset({"DynamicSchedulerCheck", "GangPendingPodsConditionPatch"})
"""The feature gates that are enabled by default, of those that have an effect here.

Defaults are those of Koordinator `pkg/features/scheduler_features.go`.
"""


@dataclass(slots=True)
class Debug:
    """The parts of every decision that are logged; may be changed at any time, from any thread."""

    top_scores: int = 0
    """The number of best nodes to log with the scores of each plugin; 0 for none."""
    filters: bool = False
    """Log the plugins that refused nodes, with nodes and reasons."""
    trace: bool = False
    """Log every call of a plugin, in order, with its result and duration. Results of the cache are not used."""
    diagnosis: bool = False
    """Log the diagnosis of every unschedulable pod as JSON (see `diagnosis_of`)."""


class Scheduler:
    """Schedules pods on its cluster; for one thread, which owns both.

    Each cycle runs the profile set that is active when it begins (see `HotSwap`).
    """

    def __init__(
        self, cluster: Cluster, live: Live, settings: Settings | None = None, *, clock: Callable[[], int] = lambda: 0,
        count: Count | None = None, client: Client | None = None, queue: Queue = NOTHING,
        concluded: Callable[[Verdict], None] = lambda _: None, executor: Executor | None = None,
    ) -> None:
        """`clock` returns the time of a decision, in nanoseconds since the epoch; `count` counts the plugins' metrics.

        `client` writes the decisions; without it they are written only to the cluster that this scheduler owns. `queue`
        is the plugins' access to the queue. `concluded` receives the final verdict about each pod whose first one says
        `waiting` or `binding`, once. `executor` runs the input and output of binding cycles, inline by default (a
        `WorkerExecutor` needs a client whose methods may be called in any thread).

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
            ValueError: the executor has workers and there is no client for them.
        """
        self._executor: Executor = InlineExecutor() if executor is None else executor
        if client is None and not self._executor.inline:
            raise ValueError("workers cannot write into the scheduler's own cluster: a client is needed")
        self.cluster = cluster
        self.settings = settings or Settings()
        self.feature_gates = FEATURE_GATES | self.settings.feature_gates
        self.debug = Debug()
        self.watch: Callable[[Profile], Profile] | None = None
        """If set, pods are scheduled with the profile that it returns for theirs: see `measuring`."""
        self.recorder: MetricsRecorder | None = None
        """If set, it receives the durations of extension points and plugins."""
        self.nominations = Nominations()
        self.client: Client = OwnCluster(cluster) if client is None else client
        self.waiting = WaitingPodsMap(clock)
        self._queue = queue
        self._concluded = concluded
        self._clock = clock
        self._tie_break = tie_break(self.settings.tie_break, self.settings.seed)
        self._count = count
        self._events = EventHub(cluster)
        self.hot_swap = HotSwap(self.settings.profiles, live, self._handle, made=_begin_subscriptions,
                                released=_unsubscribe)
        self._bindings = BindingCycles(cluster, self.client, self.feature_gates, self._executor, clock=clock,
                                       timeout=self.settings.binding_timeout, lease=self.hot_swap.lease)
        cluster.listen(self.waiting.note)
        self.hot_swap.start()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that the next cycle runs, in the order of the settings; any thread may read them."""
        return tuple(self.hot_swap.newest.profiles.values())

    def refresh(self) -> ProfileSet:
        """Activate the profile set of the live registry, and return the active one; only between cycles.

        New plugins receive an event for each existing object.
        """
        active = self.hot_swap.activate()
        self._events.begin_subscriptions()
        return active

    def profile_of(self, pod: PodInfo) -> Profile:
        """Return the profile of the pod in the newest set (see `refresh`); only between cycles."""
        return self.refresh().profile_of(pod)

    def hold(self, pod: PodInfo) -> tuple[Profile, Lease]:
        """Return the profile of the pod, as `profile_of`, and a lease: until it is released, the plugins are not
        closed.
        """
        return self.profile_of(pod), self.hot_swap.lease()

    def decide(self, pod: PodInfo, *, exhaustive: bool = False) -> Verdict:
        """Decide about a pod without changing anything; see the function `decide`."""
        profile = self.profile_of(pod)
        return self._decide(profile, pod, self.cluster.snapshot(self._clock()), exhaustive=exhaustive)

    def _decide(
        self, profile: Profile, pod: PodInfo, snapshot: Snapshot, *, exhaustive: bool = False,
        state: CycleState | None = None, timer: PointTimer | None = None,
    ) -> Verdict:
        # The thread's own time: other programs must not change the result of a replay.
        with Deadline(self.settings.decision_seconds, time.thread_time) as deadline:
            verdict = decide(profile, pod, snapshot, tie_break=self._tie_break, exhaustive=exhaustive, state=state,
                             nominations=self.nominations, timer=timer)
            overdue = deadline.stopped if deadline.expired else None
        return verdict if overdue is None else self._overdue(verdict, overdue)

    def _overdue(self, verdict: Verdict, stopped: Source) -> Verdict:
        """Return the verdict about a pod whose decision took too long: what was evaluated after that says nothing."""
        plugin = next((each.plugin for each in verdict.errors() if OVERDUE in each.message), "koord-policy")
        refusal = Refusal("", f"an expression of `{stopped.name}` was stopped: the decision had taken "
                              f"{self.settings.decision_seconds:g} s", Code.ERROR)
        return Verdict(verdict.pod, verdict.profile, verdict.generation, verdict.names, failures=verdict.failures,
                       refusal=(plugin, Point.FILTER, refusal))

    def schedule(self, pod: PodInfo, *, explained: bool = False) -> Verdict:
        """Run the scheduling cycle of a pod, and its binding cycle until it has to wait.

        The verdict of a pod that waits for a permit, or that workers bind, is marked `waiting` or `binding`;
        `concluded` receives the final one. A rejection undoes all reservations and leaves the pod without a node. If no
        node is feasible and preemption helps, the pod is nominated for the node, and the victims are evicted.

        With `explained` the verdict stays valid (see `Verdict.explained`). Without it, the reasons of a pod that was
        *not* placed must be read before the cluster changes; those of a placed pod already describe the cluster with
        the pod on its node.

        Results of earlier binding cycles are processed after the decision: one of them may be that this pod is bound.
        A caller that takes pods from a queue calls `process_bindings` first, and checks that the pod is still pending.
        """
        profile = self.profile_of(pod)
        if self.watch is not None:
            profile = self.watch(profile)
        snapshot, state = self.cluster.snapshot(self._clock()), CycleState()
        timer = None if self.recorder is None else PointTimer(self.recorder, profile)
        verdict = self._decide(self.watched(profile, pod), pod, snapshot, state=state, timer=timer)
        self.log(verdict)
        if explained or verdict.nomination is not None:  # evicting the victims changes the explanation
            verdict = verdict.explained()
        if verdict.node is None:
            return self._preempt(verdict)
        if profile.warns:
            verdict = verdict.warned()
        binding = BindingCycle(pod, profile, state, verdict, timer=timer)
        if self._resize(binding, snapshot) and self._reserve(binding, snapshot) and self._assume(binding):
            if self._permit(binding):
                self._bind(binding)
            self.process_bindings()
        binding.reported_later = binding.phase is not BindingPhase.ENDED
        return binding.outcome()

    def process_bindings(self) -> None:
        """Continue the cycles of pods whose permits are decided, and of pods whose workers have results."""
        if not self._bindings.idle:
            for binding in self._bindings.ended():
                self._conclude(binding)
            for binding in self._bindings.bound_late():
                self._take_over(binding)
        while (waiting := self.waiting.take()) is not None:
            if waiting.binding.timer is not None:
                waiting.binding.timer.permit_ended(waiting.binding.rejection)
            self._bind(waiting.binding)

    @property
    def in_flight(self) -> tuple[BindingCycle, ...]:
        """The binding cycles that wait for workers, oldest first."""
        return self._bindings.in_flight

    @property
    def awaiting(self) -> tuple[BindingCycle, ...]:
        """The binding cycles that wait for objects of the cluster, oldest first."""
        return self._bindings.awaiting

    def binding_seconds(self) -> tuple[float, ...]:
        """Return for how many seconds each pod has been bound by workers; for any thread.

        An abandoned binding cycle counts until its worker returns.
        """
        now = self._clock()
        return tuple(max(0, now - begun) / 1e9 for begun in self._bindings.begun)

    def next_time(self) -> int | None:
        """Return the time of the next timeout that `process_bindings` has to handle; None if there is none."""
        times = (self.waiting.next_time(), self._bindings.next_time())
        return min((time for time in times if time is not None), default=None)

    def watched(self, profile: Profile, pod: PodInfo) -> Profile:
        """Return the profile that runs for a pod: with `debug.trace`, one that logs the calls of its plugins."""
        return traced(profile, lambda call: _log_call(pod, call)) if self.debug.trace else profile

    def log(self, verdict: Verdict) -> None:
        """Log the parts of the verdict that `debug` selects; call it before the cluster changes."""
        if self.debug.top_scores or self.debug.filters:
            _log_verdict(verdict, self.debug)
        if self.debug.diagnosis and verdict.node is None:
            found = diagnosis_of(verdict, self._clock())
            logging.getLogger("koordpolicy.scheduler").info("diagnosis: %s", json.dumps(found))

    def _preempt(self, verdict: Verdict) -> Verdict:
        nomination = verdict.nomination
        if nomination is None:
            if any(refusal.rule == NO_CANDIDATE for _, refusal in verdict.post_filter_refusals):
                self.nominations.clear(verdict.pod)
            return verdict
        # Pods of lower priority lose their nomination for the node, which this pod takes.
        for other in self.nominations.nominated(nomination.node):
            if other.priority < verdict.pod.priority:
                self.nominations.clear(other)
                if isinstance(self.client, ClearsNominations):
                    self.client.clear_nomination(other)
        self.nominations.nominate(verdict.pod, nomination.node)
        for victim in nomination.victims:
            if self.waiting.reject(victim.key, "preemption", "preempted"):
                continue
            if self._bindings.cancel(victim.key, "preemption", "preempted"):
                continue
            try:
                self.client.preempt(victim, verdict.pod, nomination.node)
            except Exception as error:  # the API server, or its substitute
                self.nominations.withdraw(verdict.pod)
                refusal = Refusal("", describe(error), Code.ERROR)
                refusals = (*verdict.post_filter_refusals, ("preemption", refusal))
                return replaced(verdict, nomination=None, post_filter_refusals=refusals)
        return verdict

    # After the node is selected: each step returns whether the cycle continues

    def _resize(self, binding: BindingCycle, snapshot: Snapshot) -> bool:
        if "ResizePod" not in self.feature_gates:
            return True
        for active in binding.profile.having(ResizePod):
            answer = call_plugin(
                binding.failures, active, Point.RESERVE, active.instance.resize_pod,
                binding.state, binding.pod, snapshot, binding.verdict.row, kinds=(PodInfo,),
            )
            if isinstance(answer, Refusal):
                binding.reject(active.name, Point.RESERVE, answer)
                self._unreserve(binding, snapshot)
                binding.phase = BindingPhase.ENDED
                return False
            binding.pod = answer or binding.pod
        return True

    def _reserve(self, binding: BindingCycle, snapshot: Snapshot) -> bool:
        # The pod is assumed only after this: the plugins' snapshot is valid until the cluster changes.
        binding.state[Phase] = Point.RESERVE
        if binding.timer is not None:
            binding.timer.begin()
        for active in binding.profile.reserves:
            refusal = call_plugin(
                binding.failures, active, Point.RESERVE,
                binding.measured(active, Point.RESERVE, active.instance.reserve),
                binding.state, binding.pod, snapshot, binding.verdict.row, kinds=(),
            )
            if refusal is not None:
                binding.reject(active.name, Point.RESERVE, refusal)
                self._forget(binding, snapshot)
                break
        for active in binding.profile.having(ReservationNominator):
            call_plugin(binding.failures, active, Point.RESERVE, active.instance.forget_nomination, binding.pod)
        if binding.timer is not None:
            binding.timer.end(POINT_NAMES[Point.RESERVE], binding.rejection)
        return binding.rejection is None

    def _assume(self, binding: BindingCycle) -> bool:
        if binding.node not in self.cluster.index:  # a plugin that reserves may write to the cluster
            binding.reject("assume", Point.RESERVE, Refusal("", f"the node `{binding.node}` is gone", Code.ERROR))
            self._forget(binding, self.cluster.snapshot(self._clock()))
            return False
        devices: tuple[int, ...] = binding.state.get(ReservedDevices, ())
        self.cluster.assume(binding.pod, binding.node, devices)
        if devices:
            binding.verdict = replaced(binding.verdict, devices=devices)
        self.nominations.withdraw(binding.pod)
        return True

    def _permit(self, binding: BindingCycle) -> bool:
        if not binding.profile.at[Point.PERMIT]:
            return True
        snapshot = self.cluster.snapshot(self._clock())
        timer = binding.timer
        if timer is not None:
            timer.begin()
        waits: dict[str, int] = {}
        for active in binding.profile.at[Point.PERMIT]:
            answer = call_plugin(
                binding.failures, active, Point.PERMIT, binding.measured(active, Point.PERMIT, active.instance.permit),
                binding.state, binding.pod, snapshot, binding.verdict.row, kinds=(Wait,),
            )
            if isinstance(answer, Wait):
                waits[active.name] = snapshot.now + min(answer.timeout, _LONGEST_PERMIT_WAIT)
            elif answer is not None:
                binding.reject(active.name, Point.PERMIT, answer)
                break  # the binding cycle handles the rejection
        if timer is not None:
            timer.end(POINT_NAMES[Point.PERMIT], binding.rejection, WAIT if waits else SUCCESS)
        if binding.rejection is not None:
            return True
        if waits:
            binding.phase, binding.lease = BindingPhase.WAITING, self.hot_swap.lease()
            self.waiting.add(WaitingPod(binding, waits))
        return not waits

    def _bind(self, binding: BindingCycle) -> None:
        """Hand the pod over to its binding cycle; the cycle of a rejected pod ends here."""
        if binding.rejection is not None or self._bindings.start(binding):
            self._conclude(binding)

    # After the binding cycle

    def _conclude(self, binding: BindingCycle) -> None:
        binding.phase = BindingPhase.ENDED
        try:
            if binding.rejection is not None and is_shown_bound(self.cluster, binding):
                note_bound(binding)  # an earlier attempt succeeded late, and this one was refused for it
            if binding.rejection is not None:
                self._forget(binding, self.cluster.snapshot(self._clock()))
        finally:
            binding.release()
        if binding.reported_later:
            try:
                self._concluded(binding.outcome())
            except Exception:  # the caller's: the results of other cycles, and the pod in turn, must not be lost
                _LOG.exception("%s: the final verdict was not taken", binding.pod.key,
                               extra={"pod": binding.pod.key})

    def _take_over(self, binding: BindingCycle) -> None:
        """Record that a pod was bound after its binding cycle was abandoned: it runs on that node."""
        known = self.cluster.object("Pod", binding.pod.key)
        if known is None or (known.get("spec") or {}).get("nodeName"):
            return
        pod = PodInfo.of(known)
        if same_pod(pod, binding.pod) and binding.node in self.cluster.index:
            _LOG.warning("%s was bound to %s after that had been given up", pod.key, binding.node,
                         extra={"pod": pod.key})
            self.cluster.upsert({**known, "spec": {**known["spec"], "nodeName": binding.node}})

    def _forget(self, binding: BindingCycle, snapshot: Snapshot) -> None:
        """Undo the reservations of a rejected pod; each plugin is called, even if another one fails."""
        binding.phase = BindingPhase.ENDED
        self._unreserve(binding, snapshot)
        self._leave_node(binding)
        for active in binding.profile.having(ForgetPod):
            call_plugin(binding.failures, active, Point.RESERVE, active.instance.forget_pod, binding.pod)

    def _leave_node(self, binding: BindingCycle) -> None:
        """Let the assumed pod leave its node, unless it is bound."""
        known, stored = self.cluster.pod(binding.pod.key), self.cluster.object("Pod", binding.pod.key)
        bound = known is not None and (known.object.get("spec") or {}).get("nodeName")
        if known is not None and same_pod(known, binding.pod) and known.node_name == binding.node and not bound:
            # A new pod of that name, or one bound by another client meanwhile, is not the assumed pod.
            self.cluster.forget(binding.pod.key)
            if stored is not None and (stored.get("spec") or {}).get("nodeName"):
                self.cluster.upsert(stored)  # it was bound before that: it is where its object says

    def _unreserve(self, binding: BindingCycle, snapshot: Snapshot) -> None:
        row = snapshot.index.get(binding.node, -1)
        if binding.timer is not None:
            binding.timer.begin()
        for active in reversed(binding.profile.reserves):
            try:
                active.instance.unreserve(binding.state, binding.pod, snapshot, row)
            except BaseException as error:  # a plugin that fails to release must not stop the others
                must_be_survived(error)
                message = f"cannot give back: {describe(error)}"
                binding.failures.append(Failure(active.name, active.plugin.origin, Point.RESERVE, message))
        if binding.timer is not None:
            binding.timer.end(UNRESERVE)

    def close(self) -> None:
        """Close the executor and all plugins; the scheduler accepts no more pods."""
        self._executor.close()
        self.hot_swap.close()
        self.cluster.unlisten(self.waiting.note)
        self._events.close()
        self._bindings.close()

    def _handle(self, profile: str, plugin: str) -> Handle:
        def peers(capability: type[Any]) -> tuple[Any, ...]:
            running = self.hot_swap.active.profiles.get(profile)
            return () if running is None else tuple(each.instance for each in running.having(capability))

        handle = Handle(
            profile, self._snapshot, self._clock, logging.getLogger(f"koordpolicy.scheduler.{plugin}"),
            seed=self.settings.seed, events=self._events.subscriber(), waiting=self.waiting, queue=self._queue,
            nominator=self.nominations, client=self.client, peers=peers, feature_gates=self.feature_gates,
            kubernetes=self.settings.kubernetes or release_of(profile),
        )
        return handle if self._count is None else replace(handle, count=self._count)

    def _snapshot(self) -> Snapshot:
        if self.hot_swap.in_making:
            # Plugins are made concurrently with decisions, which own the cluster.
            raise RuntimeError("the cluster cannot be looked at while a plugin is made or started: ask for the "
                               "snapshot when the plugin is called")
        return self.cluster.snapshot(self._clock())


def _begin_subscriptions(handles: Iterable[Handle]) -> None:
    for handle in handles:
        if isinstance(handle.events, Subscriber):
            handle.events.begin()


def _unsubscribe(handle: Handle) -> None:
    if isinstance(handle.events, Subscriber):
        handle.events.close()


def _log_call(pod: PodInfo, call: PluginCall) -> None:
    log = logging.getLogger("koordpolicy.scheduler")
    log.info("trace: pod=%s plugin=%s method=%s us=%.0f result=%r", pod.key, call.plugin, call.method,
             call.seconds * 1e6, call.result, extra={"pod": pod.key})


def _log_verdict(verdict: Verdict, debug: Debug) -> None:
    log = logging.getLogger("koordpolicy.scheduler")
    extra = {"pod": verdict.pod.key, "generation": verdict.generation}
    if debug.filters:
        for refused in verdict.refusals():
            log.info("filter: pod=%s plugin=%s reason=%r nodes=%s", verdict.pod.key, refused.plugin, refused.reason,
                     ",".join(refused.nodes), extra=extra)
    if debug.top_scores:
        for name, total in verdict.best(debug.top_scores):
            scores = " ".join(f"{plugin}={score}" for plugin, score in verdict.score_of(name).items())
            log.info("score: pod=%s node=%s total=%d %s", verdict.pod.key, name, total, scores, extra=extra)
