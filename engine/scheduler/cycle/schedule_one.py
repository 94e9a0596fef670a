"""The scheduling cycle: transformers, preFilter, filter, score, weights, the choice, reserve, permit; then the binding.

`decide` is the cycle up to the choice and changes nothing; `Scheduler` owns the cluster and carries a decision out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster, Snapshot
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.handle import NOTHING, Client, Count, Handle, Queue
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

from ..explain.diagnosis import diagnosis_of
from ..observe.tracing import Asked, traced
from ..profiles.profile import Profile, ProfileSpec
from ..profiles.profile_set import HotSwap, ProfileSet
from ..queue.events import EventHub, Subscriber
from ..queue.nominator import Nominations
from ..result_cache.result_cache import all_rows
from .binding import BindingCycle, bind
from .own_cluster import OwnCluster
from .plugin_runner import Phase, PluginRunner, RefusedNodes, guarded, odd_answer
from .rowwise import describe
from .tie_break import FIRST_BY_NAME, TieBreak, tie_break
from .verdict import Failure, Scored, Tie, Verdict
from .waiting_pods import WaitingPod, WaitingPodsMap, same_pod


class ReservedDevices:
    """The key of the cycle state under which a Reserve plugin leaves the minor numbers of the devices it took."""


def decide(
    profile: Profile, pod: PodInfo, snapshot: Snapshot, *, tie_break: TieBreak = FIRST_BY_NAME,
    exhaustive: bool = False, state: CycleState | None = None, nominations: Nominations | None = None,
) -> Verdict:
    """Decide where a pod should run; changes nothing.

    `exhaustive` asks every filter about every node and scores a single node too: for explanations, which want all
    reasons and not only the first. `nominations` are the nominated nodes of other pods. What the plugins do wrong never
    ends the decision: an exception, a malformed answer or a score outside 0..100 is in the verdict as that plugin's
    failure, with the meaning that `framework.points` gives to an error at its point. Where no node is left, the plugins
    that can make room (postFilter) are asked which pods would have to go; nobody is evicted here.
    """
    runner = PluginRunner(profile, CycleState() if state is None else state, pod, snapshot, exhaustive)
    everything = all_rows(snapshot.size)
    refusal, rows = runner.run_pre_filters(everything)
    if refusal is None:
        refusal, rows = runner.find_feasible_nodes(rows, nominations)
    names, steps = snapshot.names, runner.steps
    if refusal is not None or not len(rows):
        verdict = Verdict(pod, profile.name, profile.generation, names, filters=steps, passed=rows, refusal=refusal,
                          failures=tuple(runner.failures))
        return _run_post_filters(verdict, runner, RefusedNodes(runner, refusal, everything, nominations))
    scores: Sequence[Scored] = ()
    totals: NDArray[np.int64] | None = None
    row, among = int(rows[0]), 1
    if len(rows) > 1 or exhaustive:
        refusal, scores, totals = runner.score_nodes(rows)
        if refusal is not None:
            return Verdict(pod, profile.name, profile.generation, names, filters=steps, passed=rows, refusal=refusal,
                           failures=tuple(runner.failures))
        best = rows[totals == totals.max()]
        row, among = tie_break.pick(best), len(best)
    verdict = Verdict(
        pod, profile.name, profile.generation, names, names[row], row, filters=steps, passed=rows, scores=scores,
        totals=totals, tie=Tie(tie_break.rule, among, tie_break.seed), failures=tuple(runner.failures),
    )
    return _nominated(verdict, runner)


def _nominated(verdict: Verdict, runner: PluginRunner) -> Verdict:
    """Let the plugins choose what the pod takes on its node: its reservation (spec/scheduler.md 1.3, step 9)."""
    for active in runner.profile.having(ReservationNominator):
        refusal = guarded(
            runner.failures, active, Point.SCORE, active.ask.nominate_reservation,
            runner.state, runner.pod, runner.snapshot, verdict.row, kinds=(),
        )
        if refusal is not None:
            return replace(verdict, node=None, row=-1, refusal=(active.name, Point.SCORE, refusal),
                           failures=tuple(runner.failures))
    return verdict


def _run_post_filters(verdict: Verdict, runner: PluginRunner, refused: RefusedNodes) -> Verdict:
    """Run the postFilters; after an error of the cycle nothing is preempted."""
    if verdict.refusal is not None and verdict.refusal[2].code is Code.ERROR:
        return verdict
    profile, state = runner.profile, runner.state
    if not (profile.at[Point.POST_FILTER] or profile.having(AfterPostFilter)):
        return verdict
    state[Phase] = Point.POST_FILTER
    nomination: Nomination | None = None
    refusals: list[tuple[str, Refusal]] = []
    for active in profile.at[Point.POST_FILTER]:
        answer = guarded(
            runner.failures, active, Point.POST_FILTER, active.ask.post_filter,
            state, runner.pod, runner.snapshot, refused, kinds=(Nomination,),
        )
        if isinstance(answer, Nomination) and answer.node not in runner.snapshot.index:
            answer = odd_answer(runner.failures, active, Point.POST_FILTER, answer)
        if isinstance(answer, Nomination):
            nomination = answer
            break
        if isinstance(answer, Refusal):
            refusals.append((active.name, answer))
            if answer.code is not Code.UNSCHEDULABLE:
                break
    for active in profile.having(AfterPostFilter):
        guarded(
            runner.failures, active, Point.POST_FILTER, active.ask.after_post_filter,
            state, runner.pod, runner.snapshot, refused, nomination,
        )
    return replace(verdict, nomination=nomination, post_filter_refusals=tuple(refusals),
                   failures=tuple(runner.failures))


def filter_nodes(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Return which of the nodes `among` (rows; None for all) the pod may run on: `decide` up to its filters.

    The verdict chooses no node and has no scores; `passed` is its answer, unless the pod was refused as a whole.
    """
    runner = PluginRunner(profile, CycleState(), pod, snapshot)
    rows = all_rows(snapshot.size) if among is None else among
    refusal, passed = runner.run_pre_filters(rows)
    if refusal is None:
        refusal, passed = runner.find_feasible_nodes(passed, None)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, filters=runner.steps, passed=passed,
                   refusal=refusal, failures=tuple(runner.failures), considered=len(rows))


def score_nodes(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Return how good the nodes `among` (rows; None for all) are, which have passed: `decide` from its scores on.

    The verdict chooses no node; `totals` is its answer, in the order of `passed`, which are the nodes asked about.
    """
    runner = PluginRunner(profile, CycleState(), pod, snapshot)
    rows = all_rows(snapshot.size) if among is None else among
    runner.run_pre_filters(rows)  # what it leaves in the state is there for the scores; the pod has passed
    refusal, scores, totals = runner.score_nodes(rows)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, passed=rows, totals=totals, scores=scores,
                   refusal=refusal, failures=tuple(runner.failures), considered=len(rows))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a scheduler decides: its profiles (the first is for pods that name none of them), ties, and its seed."""

    profiles: tuple[ProfileSpec, ...] = (ProfileSpec(),)
    tie_break: str = "first"
    seed: int = 0
    """Of random tie-breaks, and of plugins that leave something to chance."""
    feature_gates: frozenset[str] = frozenset()
    """The names of the feature gates that are on, beside those that are on by themselves (`FEATURE_GATES`)."""
    initial_backoff: int = 1_000_000_000
    """How long a pod that failed waits before its second attempt, in nanoseconds; doubled with each one."""
    longest_backoff: int = 10_000_000_000
    kubernetes: Release | None = None
    """The release of Kubernetes whose kube-scheduler the plugins of all profiles follow, where releases differ.

    None: each profile follows the one of `release_of` its name.
    """


FEATURE_GATES = frozenset({"DynamicSchedulerCheck"})
"""The gates that are on by themselves, of those that change anything here (spec/scheduler.md 1.14)."""


@dataclass(slots=True)
class Debug:
    """What is written to the log for every decision; may be changed at any time, from any thread."""

    top_scores: int = 0
    """So many of the best nodes, with the scores that each plugin gave (0: none)."""
    filters: bool = False
    """Who refused which nodes, and why."""
    trace: bool = False
    """Every question to a plugin, in order, with what it came to and how long it took. Nothing that was kept counts."""
    diagnosis: bool = False
    """Of every pod that found no node, the diagnosis as JSON (see `diagnosis_of`)."""


class Scheduler:
    """Decides about pods and carries the decisions out on its cluster; for one thread, which owns both.

    Each cycle runs the profile set that is active when it begins (see `HotSwap`).
    """

    def __init__(
        self, cluster: Cluster, live: Live, settings: Settings | None = None, *, clock: Callable[[], int] = lambda: 0,
        count: Count | None = None, client: Client | None = None, queue: Queue = NOTHING,
        concluded: Callable[[Verdict], None] = lambda _: None,
    ) -> None:
        """`clock` tells the time of a decision, in nanoseconds since the epoch; `count` takes the plugins' metrics.

        `client` writes what was decided: without it, into the cluster that this scheduler owns and nowhere else.
        `queue` is what plugins may ask of the queue. `concluded` is told what became of pods that a permit held, once
        they are bound or have lost their node.

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
        """
        self.cluster = cluster
        self.settings = settings or Settings()
        self.feature_gates = FEATURE_GATES | self.settings.feature_gates
        self.debug = Debug()
        self.watch: Callable[[Profile], Profile] | None = None
        """Where it is given, pods are placed by what it returns for their profile: see `measuring`."""
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
        cluster.listen(self.waiting.note)
        self.hot_swap.start()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that the next cycle runs, in the order of the settings; any thread may read them."""
        return tuple(self.hot_swap.newest.profiles.values())

    def refresh(self) -> ProfileSet:
        """Activate the profile set of the live registry, and return the active one; only between cycles.

        Plugins that are new receive an event for each object that exists already.
        """
        active = self.hot_swap.activate()
        self._events.begin_subscriptions()
        return active

    def profile_of(self, pod: PodInfo) -> Profile:
        """Return the profile of the pod in the newest set (see `refresh`); only between cycles."""
        return self.refresh().profile_of(pod)

    def hold(self, pod: PodInfo) -> tuple[Profile, Lease]:
        """Return what `profile_of` returns, and a lease: until it is released, the plugins are not closed."""
        return self.profile_of(pod), self.hot_swap.lease()

    def decide(self, pod: PodInfo, *, exhaustive: bool = False) -> Verdict:
        """Decide about a pod and change nothing; see `decide`."""
        profile = self.profile_of(pod)
        return decide(profile, pod, self.cluster.snapshot(self._clock()), tie_break=self._tie_break,
                      exhaustive=exhaustive, nominations=self.nominations)

    def schedule(self, pod: PodInfo, *, explained: bool = False) -> Verdict:
        """Decide about a pod, reserve what it needs on the node, assume it there, and bind it.

        If a plugin refuses on the way, what the others have reserved is given back and the pod stays without a node.
        Where a permit holds the pod, it has its node and is bound by a later call of `settle` or `schedule`. Where no
        node is feasible and preemption helps, the pod is nominated for the node, and the victims are evicted.

        With `explained` the verdict may be kept (see `Verdict.explained`). Without it, its reasons must be read before
        the next change of the cluster where the pod was *not* placed; where it was, they would describe the cluster
        with the pod on it.
        """
        self.settle()
        profile = self.profile_of(pod)
        snapshot, state = self.cluster.snapshot(self._clock()), CycleState()
        if self.watch is not None:
            profile = self.watch(profile)
        verdict = decide(self.watched(profile, pod), pod, snapshot, tie_break=self._tie_break, state=state,
                         nominations=self.nominations)
        self.log(verdict)
        if explained or verdict.nomination is not None:  # who has to go changes what there is to explain
            verdict = verdict.explained()
        if verdict.node is None:
            return self._preempt(verdict)
        binding = BindingCycle(profile, state, verdict)
        pod = self._resized(binding, pod, snapshot)
        if binding.refusal is None:
            self._reserve(binding, pod, snapshot)
        if binding.refusal is not None:
            return binding.outcome()
        devices: tuple[int, ...] = state.get(ReservedDevices, ())
        if verdict.node not in self.cluster.index:  # a plugin that reserves may write to the cluster
            binding.refuse("assume", Point.RESERVE, Refusal("", f"the node `{verdict.node}` is gone", Code.ERROR))
            self._undo(binding, pod)
            return binding.outcome()
        self.cluster.assume(pod, verdict.node, devices)
        binding.verdict = replace(verdict, devices=devices) if devices else verdict
        self.nominations.withdraw(pod)
        if profile.at[Point.PERMIT]:
            waits = self._permit(binding, pod)
            if binding.refusal is None and waits:
                self.waiting.add(WaitingPod(pod, binding, waits, self.hot_swap.lease()))
                self.settle()  # this pod may have been the last one that others waited for, or itself be let go
                return replace(binding.verdict, waiting=pod.key in self.waiting)
        if binding.refusal is None:
            bind(binding, pod, self.cluster, self.client, self.feature_gates)
        if binding.refusal is not None:
            self._undo(binding, pod)
        self.settle()
        return binding.outcome()

    def watched(self, profile: Profile, pod: PodInfo) -> Profile:
        """Return the profile as it is asked about a pod: with `debug.trace`, one that writes down what it is asked."""
        return traced(profile, lambda asked: _log_asked(pod, asked)) if self.debug.trace else profile

    def log(self, verdict: Verdict) -> None:
        """Write to the log what `debug` asks for; to be called before the cluster changes."""
        if self.debug.top_scores or self.debug.filters:
            _log_verdict(verdict, self.debug)
        if self.debug.diagnosis and verdict.node is None:
            found = diagnosis_of(verdict, self._clock())
            logging.getLogger("koordpolicy.scheduler").info("diagnosis: %s", json.dumps(found))

    def settle(self) -> None:
        """Carry out what has become of waiting pods, and tell plugins of changes that they have not heard of yet."""
        self._events.begin_subscriptions()
        while True:
            waiting = self.waiting.take()
            if waiting is None:
                return
            binding, pod = waiting.binding, waiting.pod
            if binding.refusal is None:
                bind(binding, pod, self.cluster, self.client, self.feature_gates)
            if binding.refusal is not None:
                self._undo(binding, pod)
            waiting.lease.release()
            self._concluded(binding.outcome())

    def _preempt(self, verdict: Verdict) -> Verdict:
        nomination = verdict.nomination
        if nomination is None:
            if any(refusal.rule == NO_CANDIDATE for _, refusal in verdict.post_filter_refusals):
                self.nominations.clear(verdict.pod)
            return verdict
        # Pods of lower priority that are nominated for the node would find it taken: they are to look for another one.
        for other in self.nominations.nominated(nomination.node):
            if other.priority < verdict.pod.priority:
                self.nominations.clear(other)
        self.nominations.nominate(verdict.pod, nomination.node)
        for victim in nomination.victims:
            if self.waiting.reject(victim.key, "preemption", "preempted"):
                continue
            try:
                self.client.preempt(victim, f"preempted by {verdict.pod.key} on {nomination.node}")
            except Exception as error:  # the API server, or what stands for it
                self.nominations.withdraw(verdict.pod)
                refusal = Refusal("", describe(error), Code.ERROR)
                refusals = (*verdict.post_filter_refusals, ("preemption", refusal))
                return replace(verdict, nomination=None, post_filter_refusals=refusals)
        return verdict

    def _resized(self, binding: BindingCycle, pod: PodInfo, snapshot: Snapshot) -> PodInfo:
        if "ResizePod" not in self.feature_gates:
            return pod
        for active in binding.profile.having(ResizePod):
            answer = guarded(
                binding.failures, active, Point.RESERVE, active.ask.resize_pod,
                binding.state, pod, snapshot, binding.verdict.row, kinds=(PodInfo,),
            )
            if isinstance(answer, Refusal):
                binding.refuse(active.name, Point.RESERVE, answer)
                self._unreserve(binding, pod, snapshot)
                break
            pod = answer or pod
        return pod

    def _reserve(self, binding: BindingCycle, pod: PodInfo, snapshot: Snapshot) -> None:
        # The pod is assumed only after this: the snapshot that the plugins are shown holds until the cluster changes.
        binding.state[Phase] = Point.RESERVE
        for active in binding.profile.reserves:
            refusal = guarded(
                binding.failures, active, Point.RESERVE, active.ask.reserve,
                binding.state, pod, snapshot, binding.verdict.row, kinds=(),
            )
            if refusal is not None:
                binding.refuse(active.name, Point.RESERVE, refusal)
                self._give_back(binding, pod, snapshot)
                break
        for active in binding.profile.having(ReservationNominator):
            guarded(binding.failures, active, Point.RESERVE, active.ask.forget_nomination, pod)

    def _unreserve(self, binding: BindingCycle, pod: PodInfo, snapshot: Snapshot) -> None:
        row = snapshot.index.get(binding.verdict.names[binding.verdict.row], -1)
        for active in reversed(binding.profile.reserves):
            try:
                active.ask.unreserve(binding.state, pod, snapshot, row)
            except BaseException as error:  # whoever fails to give back must not keep the others from it
                must_be_survived(error)
                message = f"cannot give back: {describe(error)}"
                binding.failures.append(Failure(active.name, active.plugin.origin, Point.RESERVE, message))

    def _permit(self, binding: BindingCycle, pod: PodInfo) -> dict[str, int]:
        """Return which plugins hold the pod, and until when."""
        snapshot = self.cluster.snapshot(self._clock())
        waits: dict[str, int] = {}
        for active in binding.profile.at[Point.PERMIT]:
            answer = guarded(
                binding.failures, active, Point.PERMIT, active.ask.permit,
                binding.state, pod, snapshot, binding.verdict.row, kinds=(Wait,),
            )
            if isinstance(answer, Wait):
                waits[active.name] = snapshot.now + answer.timeout
            elif answer is not None:
                binding.refuse(active.name, Point.PERMIT, answer)
                break
        return waits

    def _undo(self, binding: BindingCycle, pod: PodInfo) -> None:
        """Give back what a pod that was assumed has; everybody is told, whatever fails."""
        self._give_back(binding, pod, self.cluster.snapshot(self._clock()))

    def _give_back(self, binding: BindingCycle, pod: PodInfo, snapshot: Snapshot) -> None:
        self._unreserve(binding, pod, snapshot)
        known = self.cluster.pod(pod.key)
        bound = known is not None and (known.object.get("spec") or {}).get("nodeName")
        if known is not None and same_pod(known, pod) and known.node_name == binding.verdict.node and not bound:
            # Another pod of that name, and one that somebody has bound meanwhile, is not what was assumed.
            self.cluster.forget(pod.key)
        for active in binding.profile.having(ForgetPod):
            guarded(binding.failures, active, Point.RESERVE, active.ask.forget_pod, pod)

    def close(self) -> None:
        """Close all plugins; the scheduler decides nothing any more."""
        self.hot_swap.close()

    def _handle(self, profile: str, plugin: str) -> Handle:
        def peers(capability: type[Any]) -> tuple[Any, ...]:
            running = self.hot_swap.active.profiles.get(profile)
            return () if running is None else tuple(each.ask for each in running.having(capability))

        handle = Handle(
            profile, self._snapshot, self._clock, logging.getLogger(f"koordpolicy.scheduler.{plugin}"),
            seed=self.settings.seed, events=self._events.subscriber(), waiting=self.waiting, queue=self._queue,
            nominator=self.nominations, client=self.client, peers=peers, feature_gates=self.feature_gates,
            kubernetes=self.settings.kubernetes or release_of(profile),
        )
        return handle if self._count is None else replace(handle, count=self._count)

    def _snapshot(self) -> Snapshot:
        if self.hot_swap.in_making:
            # Plugins are made beside running decisions, which own the cluster.
            raise RuntimeError("the cluster cannot be looked at while a plugin is made or started: ask for the "
                               "snapshot when the plugin is asked")
        return self.cluster.snapshot(self._clock())


def _begin_subscriptions(handles: Iterable[Handle]) -> None:
    for handle in handles:
        if isinstance(handle.events, Subscriber):
            handle.events.begin()


def _unsubscribe(handle: Handle) -> None:
    if isinstance(handle.events, Subscriber):
        handle.events.close()


def _log_asked(pod: PodInfo, asked: Asked) -> None:
    log = logging.getLogger("koordpolicy.scheduler")
    log.info("trace: pod=%s plugin=%s method=%s us=%.0f result=%r", pod.key, asked.plugin, asked.method,
             asked.seconds * 1e6, asked.result)


def _log_verdict(verdict: Verdict, debug: Debug) -> None:
    log = logging.getLogger("koordpolicy.scheduler")
    if debug.filters:
        for refused in verdict.refusals():
            log.info("filter: pod=%s plugin=%s reason=%r nodes=%s", verdict.pod.key, refused.plugin, refused.reason,
                     ",".join(refused.nodes))
    if debug.top_scores:
        for name, total in verdict.best(debug.top_scores):
            scores = " ".join(f"{plugin}={score}" for plugin, score in verdict.score_of(name).items())
            log.info("score: pod=%s node=%s total=%d %s", verdict.pod.key, name, total, scores)
