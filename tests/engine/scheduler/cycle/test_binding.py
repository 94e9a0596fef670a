"""Binding cycles on workers: slow, failing and hanging binders, and the pods that wait for permits meanwhile."""

from __future__ import annotations

import os
import threading
import time
from random import Random
from signal import SIGINT, default_int_handler, getsignal
from signal import signal as set_signal

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.executor import InlineExecutor, WorkerExecutor
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.plugin import SKIP, AwaitObjects, Deferred, Nomination, Wait

from .manual_executor import ManualExecutor

SECOND = 1_000_000_000
WAIT_S = 20
"""Seconds that a test waits for another thread before it fails."""


def node(name, cpu="4"):
    return {"kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}}


def pod(name, uid="", cpu="1", **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": uid or f"uid-{name}"},
            "spec": {"containers": [container], **spec}}


def plugin(name, instance, *points):
    return Plugin(name, Framework.SCHEDULER, points, lambda args, handle: instance, "here", name)


class Fits:
    """Refuses nodes whose cpu is taken."""

    def filter_node(self, state, pod, snapshot, row):
        at = snapshot.row(row)
        fits = at.requested["cpu"] + pod.requests["cpu"] <= at.allocatable["cpu"]
        return None if fits else Refusal("cpu", "Insufficient cpu")


class Api:
    """An API server; `hold` makes each bind wait until it is released, `fail` has errors by pod."""

    def __init__(self, hold=False):
        self.bound, self.patched, self.threads, self.fail = [], [], set(), {}
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        if not hold:
            self.gate.set()

    def bind(self, pod, node):
        self.threads.add(threading.current_thread().name.partition("-")[0])
        self.entered.release()
        assert self.gate.wait(WAIT_S)
        if pod.name in self.fail:
            raise self.fail[pod.name]
        self.bound.append((pod.name, node))

    def patch(self, original, modified):
        self.patched.append(modified["metadata"]["name"])
        return modified

    def evict(self, pod, reason):
        raise NotImplementedError

    preempt = evict


class Patches:
    """Prepares a pod with a patch that a worker sends."""

    thread_safe = True

    def pre_bind(self, state, pod, draft, node):
        """The patch says it all."""

    def apply_patch(self, state, original, modified):
        """The patch is sent."""


class World:
    """A scheduling loop over two nodes, with workers, a clock and what it reported later."""

    def __init__(self, *plugins, executor, client=None, nodes=("a", "b"), settings=None, cpu="4"):
        self.now, self.reported = 0, []
        self.cluster = Cluster(node(name, cpu) for name in nodes)
        self.api = client or Api()
        self.executor = executor
        self.live = Live(Registry.of([plugin("Fits", Fits(), Point.FILTER), *plugins], generation=1))
        self.loop = SchedulingLoop(
            self.cluster, self.live, settings, clock=lambda: self.now, client=self.api, executor=executor,
            concluded=lambda verdict: self.reported.append((verdict.pod.name, verdict.node)),
        )

    def add(self, *names, **rest):
        for name in names:
            self.cluster.upsert(pod(name, **rest))

    def schedule(self):
        """Schedule all pods that are to be tried now; return name, node and whether they are being bound."""
        return [(each.pod.name, each.node, each.binding) for each in self.loop.schedule_all()]

    def requested(self):
        return self.cluster.snapshot(self.now).requested("cpu").tolist()


@pytest.fixture
def signal():
    return threading.Semaphore(0)


@pytest.fixture
def workers(signal):
    executor = WorkerExecutor(2, wake=signal.release)
    yield executor
    executor.close()


def wait_for(semaphore, count=1):
    for _ in range(count):
        assert semaphore.acquire(timeout=WAIT_S)


# A slow binder


def test_a_slow_binder_does_not_hold_up_decisions_about_other_pods(workers, signal):
    world = World(executor=workers, client=Api(hold=True))
    world.add("one", "two")
    assert world.schedule() == [("one", "a", True), ("two", "a", True)]
    assert (world.api.bound, world.reported, world.requested()) == ([], [], [2000, 0])
    world.api.gate.set()
    wait_for(signal, 2)
    assert world.schedule() == []
    assert sorted(world.reported) == [("one", "a"), ("two", "a")]
    assert (sorted(world.api.bound), world.api.threads) == ([("one", "a"), ("two", "a")], {"bind"})
    assert (world.requested(), len(world.loop.queue)) == ([2000, 0], 0)


def test_results_come_in_the_order_of_completion():
    world = World(executor=ManualExecutor())
    world.add("one", "two", "three")
    assert [name for name, *_ in world.schedule()] == ["one", "two", "three"]
    world.executor.finish(2)
    world.executor.finish(0)
    assert (world.schedule(), world.reported) == ([], [("three", "a"), ("one", "a")])
    world.executor.finish()
    assert (world.schedule(), world.reported[2:]) == ([], [("two", "a")])


# A failing binder


def test_a_failing_binder_forgets_the_pod_which_is_tried_again_after_its_backoff(workers, signal):
    world = World(executor=workers)
    world.api.fail["one"] = OSError("503: etcd is gone")
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    wait_for(signal)
    assert (world.schedule(), world.reported, world.requested()) == ([], [("one", None)], [0, 0])
    assert world.loop.queue.counts()["backoff"] == 1
    del world.api.fail["one"]
    world.now += SECOND
    assert world.schedule() == [("one", "a", True)]
    wait_for(signal)
    assert (world.schedule(), world.reported[1:], world.api.bound) == ([], [("one", "a")], [("one", "a")])


def test_a_bind_plugin_that_fails_on_a_worker_is_named():
    class Fails:
        thread_safe = True

        def bind(self, state, pod, node):
            raise RuntimeError("no route to host")

    executor = ManualExecutor()
    scheduler = Scheduler(
        Cluster([node("a")]), Live(Registry.of([plugin("Fails", Fails(), Point.BIND)], generation=1)),
        client=Api(), executor=executor, concluded=(reported := []).append,
    )
    scheduler.cluster.upsert(pod("one"))
    assert scheduler.schedule(scheduler.cluster.pending[0]).binding
    executor.finish()
    scheduler.process_bindings()
    verdict, = reported
    assert (verdict.node, verdict.refusal[:2], verdict.refusal[2].message) == (
        None, ("Fails", Point.BIND), "RuntimeError: no route to host")
    assert [(each.plugin, each.point, each.message) for each in verdict.failures] == [
        ("Fails", Point.BIND, "RuntimeError: no route to host")]


class Reserves:
    """Writes down what is reserved and taken back, and refuses at a point if it is told to."""

    def __init__(self, name, log, refuses=None):
        self.name, self.log, self.refuses = name, log, refuses

    def reserve(self, state, pod, snapshot, row):
        self.log.append(f"{self.name} reserves {pod.name}")

    def unreserve(self, state, pod, snapshot, row):
        self.log.append(f"{self.name} unreserves {pod.name} in {threading.current_thread().name}")

    def forget_pod(self, pod):
        self.log.append(f"{self.name} forgets {pod.name}")


def test_what_was_reserved_is_taken_back_in_reverse_order_in_the_thread_that_decides(workers, signal):
    log = []
    world = World(plugin("1", Reserves("1", log), Point.RESERVE), plugin("2", Reserves("2", log), Point.RESERVE),
                  executor=workers)
    world.api.fail["one"] = OSError("409")
    world.add("one")
    world.schedule()
    wait_for(signal)
    world.schedule()
    here = threading.current_thread().name
    assert log == ["1 reserves one", "2 reserves one", f"2 unreserves one in {here}", f"1 unreserves one in {here}",
                   "1 forgets one", "2 forgets one"]


@pytest.mark.parametrize("error", [SystemExit("3"), OSError("503")])
def test_a_client_that_raises_fails_the_pod_and_nothing_else(error, signal, caplog):
    worker = WorkerExecutor(1, wake=signal.release)
    world = World(executor=worker, client=Api(hold=True))
    world.api.fail["one"] = error
    world.add("one", "two")
    assert world.schedule() == [("one", "a", True), ("two", "a", True)]
    world.api.gate.set()
    wait_for(signal, 2)
    assert (world.schedule(), world.reported) == ([], [("one", None), ("two", "a")])
    assert (world.requested(), world.loop.scheduler.in_flight, world.loop.queue.counts()["backoff"]) == (
        [1000, 0], (), 1)
    assert [record.getMessage() for record in caplog.records] == (
        ["shop/one: the binding cycle failed: SystemExit: 3"] if isinstance(error, SystemExit) else [])
    worker.close()


def test_a_client_that_raises_inline_fails_the_pod_and_nothing_else():
    world = World(executor=InlineExecutor())
    world.api.fail["one"] = SystemExit("3")
    world.add("one", "two")
    assert world.schedule() == [("one", None, False), ("two", "a", False)]
    assert (world.requested(), world.loop.queue.counts()["backoff"]) == ([1000, 0], 1)


def test_an_error_between_two_jobs_ends_the_binding_cycle(workers, signal, caplog):
    world = World(plugin("Patches", Patches(), Point.PRE_BIND), executor=workers)
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    wait_for(signal)
    workers.close()  # the patch is sent, and there is nobody to send the binding
    assert (world.schedule(), world.reported, world.requested()) == ([], [("one", None)], [0, 0])
    assert (world.loop.scheduler.in_flight, world.loop.next_time()) == ((), SECOND)
    assert [record.getMessage() for record in caplog.records] == [
        "shop/one: the binding cycle failed: RuntimeError: the executor is closed"]


def test_an_executor_that_takes_no_job_leaves_no_pod_behind(workers):
    world = World(executor=workers)
    workers.close()
    world.add("one")
    assert (world.schedule(), world.requested()) == ([("one", None, False)], [0, 0])
    assert (world.loop.scheduler.in_flight, world.loop.queue.counts()["backoff"]) == ((), 1)


class Interrupts:
    """Is interrupted by a person, between two instructions, when it is told that a pod is bound."""

    def __init__(self):
        self.interrupts = True

    def post_bind(self, state, pod, node):
        if self.interrupts:
            self.interrupts = False
            os.kill(os.getpid(), SIGINT)
            time.sleep(WAIT_S)


def test_a_person_who_interrupts_a_postbind_ends_the_binding_cycle_of_a_pod_that_is_bound(workers, signal):
    world = World(plugin("Interrupts", Interrupts(), Point.POST_BIND), executor=workers, client=Api(hold=True))
    world.add("one", "two")
    world.schedule()
    world.api.gate.set()
    wait_for(signal, 2)
    before = getsignal(SIGINT)
    set_signal(SIGINT, default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            world.loop.scheduler.process_bindings()
    finally:
        set_signal(SIGINT, before)
    world.loop.scheduler.process_bindings()
    world.now = 60 * SECOND
    world.loop.scheduler.process_bindings()
    assert (world.loop.scheduler.in_flight, world.requested()) == ((), [2000, 0])
    assert len(world.reported) == 1


def test_a_caller_who_fails_to_take_a_verdict_loses_neither_the_next_one_nor_the_pod_in_turn(workers, signal, caplog):
    taken = []

    def take(verdict):
        taken.append(verdict.pod.name)
        if verdict.pod.name == "one":
            raise OSError("the log is full")

    world = World(executor=workers)
    world.loop = SchedulingLoop(world.cluster, world.live, clock=lambda: world.now, client=world.api, executor=workers,
                                concluded=take)
    world.add("one")
    world.schedule()
    wait_for(signal)
    world.add("two")
    assert world.schedule() == [("two", "a", True)]
    wait_for(signal)
    assert (world.schedule(), taken, len(world.loop.queue)) == ([], ["one", "two"], 0)
    assert [record.getMessage() for record in caplog.records] == ["shop/one: the final verdict was not taken"]


# A hanging binder


def test_a_hanging_binder_is_given_up_and_the_pod_is_tried_again(workers, signal, caplog):
    world = World(executor=workers, client=Api(hold=True), nodes=("a",), cpu="1")
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    wait_for(world.api.entered)
    assert world.loop.next_time() == 60 * SECOND
    world.now = 60 * SECOND - 1
    assert (world.schedule(), world.reported) == ([], [])
    assert world.loop.scheduler.binding_seconds() == (60 - 1e-9,)
    world.now += 1
    assert (world.schedule(), world.reported, world.requested()) == ([], [("one", None)], [0])
    assert [record.getMessage() for record in caplog.records] == [
        "shop/one: binding the pod to `a` takes longer than 60 s; it is tried again"]
    world.now += SECOND
    assert world.schedule() == [("one", "a", True)]
    world.now += SECOND
    assert world.loop.scheduler.binding_seconds() == (1, 62)
    wait_for(world.api.entered)  # another worker took the place of the one that hangs
    world.api.gate.set()
    wait_for(signal, 2)
    assert (world.schedule(), world.reported[1:], workers.hanging) == ([], [("one", "a")], 0)
    assert world.loop.scheduler.binding_seconds() == ()


def test_a_bind_that_succeeds_after_it_was_given_up_is_taken_over():
    world = World(executor=ManualExecutor(), settings=Settings(binding_timeout=5 * SECOND))
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    world.now = 5 * SECOND
    assert (world.schedule(), world.reported) == ([], [("one", None)])
    world.executor.finish()
    assert (world.schedule(), world.requested()) == ([], [1000, 0])
    assert (world.cluster.object("Pod", "shop/one")["spec"]["nodeName"], len(world.loop.queue)) == ("a", 0)


def test_a_late_success_wins_over_the_next_attempt():
    world = World(executor=ManualExecutor(), settings=Settings(binding_timeout=5 * SECOND), cpu="1")
    world.add("one")
    world.schedule()
    world.now = 5 * SECOND
    world.schedule()
    world.add("two")
    assert world.schedule() == [("two", "a", True)]
    world.now += SECOND
    assert world.schedule() == [("one", "b", True)]
    first, two, second = world.executor.jobs
    world.executor.finish(world.executor.jobs.index(first))  # the first attempt has bound the pod to a after all
    world.schedule()
    world.api.fail["one"] = OSError("409: pod one is already assigned to node a")
    world.executor.finish(world.executor.jobs.index(second))
    assert (world.schedule(), world.executor.jobs) == ([], [two])
    assert world.reported == [("one", None), ("one", None)]
    assert (world.cluster.pod("shop/one").node_name, len(world.loop.queue)) == ("a", 0)
    assert world.requested() == [2000, 0]


@pytest.mark.parametrize("change", ["deleted", "made anew", "confirmed"])
def test_a_late_success_of_a_pod_that_is_gone_changes_nothing(change):
    world = World(executor=ManualExecutor(), settings=Settings(binding_timeout=5 * SECOND))
    world.add("one")
    world.schedule()
    world.now = 5 * SECOND
    world.schedule()
    match change:
        case "deleted":
            world.cluster.delete("Pod", "shop/one")
        case "made anew":
            world.cluster.upsert(pod("one", uid="another"))
        case _:
            world.cluster.upsert(pod("one", nodeName="b"))
    before = world.cluster.object("Pod", "shop/one")
    world.executor.finish()
    world.loop.scheduler.process_bindings()
    assert world.cluster.object("Pod", "shop/one") == before


def test_a_client_that_ends_its_thread_after_it_was_given_up_binds_nothing(workers, signal):
    world = World(executor=workers, client=Api(hold=True))
    world.api.fail["one"] = SystemExit("3")
    world.add("one")
    world.schedule()
    wait_for(world.api.entered)
    world.now = 60 * SECOND
    assert (world.schedule(), world.reported) == ([], [("one", None)])
    world.api.gate.set()
    wait_for(signal)
    assert (world.schedule(), world.requested(), world.loop.scheduler.binding_seconds()) == ([], [0, 0], ())


def test_a_pod_that_turns_out_bound_while_it_is_taken_from_the_queue_is_bound_once(workers, signal):
    class Late:
        """Releases the binder while the loop takes the next pod, and waits until it has returned."""

        def queue_key(self, queued):
            return 0

        def next_pod(self):
            if released:
                released.pop()
                world.api.gate.set()
                wait_for(signal)

    released = []
    world = World(plugin("Late", Late(), Point.QUEUE_SORT), executor=workers, client=Api(hold=True),
                  settings=Settings(binding_timeout=5 * SECOND))
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    wait_for(world.api.entered)
    world.now = 5 * SECOND
    assert (world.schedule(), world.reported) == ([], [("one", None)])
    released.append(True)
    world.now += SECOND
    assert (world.schedule(), world.schedule(), released) == ([], [], [])
    assert (world.api.bound, world.requested(), len(world.loop.queue)) == ([("one", "a")], [1000, 0], 0)
    assert (world.reported, world.loop.scheduler.in_flight) == ([("one", None)], ())


def test_a_pod_that_the_cluster_shows_bound_stays_there_when_another_attempt_to_bind_it_fails():
    world = World(executor=ManualExecutor())
    world.add("other")
    world.schedule()
    world.add("one", cpu="3")
    world.add("one", cpu="3", nodeName="b")
    world.api.fail["one"] = OSError("409: pod one is already assigned to node b")
    assert world.loop.scheduler.schedule(PodInfo.of(pod("one", cpu="3"))).node == "a"
    world.executor.finish(1)
    assert (world.schedule(), world.requested(), world.cluster.pod("shop/one").node_name) == ([], [1000, 3000], "b")


def test_a_patch_that_succeeds_after_the_pod_was_given_up_binds_nothing():
    world = World(plugin("Patches", Patches(), Point.PRE_BIND), executor=ManualExecutor())
    world.add("one")
    world.schedule()
    world.now = 60 * SECOND
    world.schedule()
    world.executor.finish()
    assert (world.schedule(), world.requested(), world.executor.jobs) == ([], [0, 0], [])


def test_plugins_are_closed_only_when_a_job_that_was_given_up_has_ended():
    closed = []

    class Binds:
        thread_safe = True

        def bind(self, state, pod, node):
            assert not closed

        def close(self):
            closed.append(True)

    world = World(plugin("Binds", Binds(), Point.BIND), executor=ManualExecutor())
    world.add("one")
    world.schedule()
    world.live.replace(lambda: [plugin("Fits", Fits(), Point.FILTER)])
    world.schedule()
    world.now = 60 * SECOND
    assert (world.schedule(), world.reported, closed) == ([], [("one", None)], [])
    world.executor.finish()
    world.schedule()
    assert closed == [True]


# Permits


class Holds:
    """Lets pods wait until somebody allows them."""

    name = "Holds"

    def __init__(self, *names):
        self.names = names

    def permit(self, state, pod, snapshot, row):
        return Wait(30 * SECOND) if pod.name in self.names else None


def test_a_pod_that_is_being_deleted_while_it_waits_for_a_permit_leaves_its_room_at_once():
    world = World(plugin("Holds", Holds("held"), Point.PERMIT), executor=ManualExecutor())
    world.add("held")
    world.schedule()
    assert world.requested() == [1000, 0]
    going = pod("held")
    world.cluster.upsert({**going, "metadata": {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert (world.schedule(), world.reported, world.requested()) == ([], [("held", None)], [0, 0])


def test_a_pod_that_waits_for_a_permit_holds_up_nobody(workers, signal):
    world = World(plugin("Holds", Holds("held"), Point.PERMIT), executor=workers)
    world.add("held", "free")
    assert world.schedule() == [("held", "a", False), ("free", "a", True)]
    wait_for(signal)
    assert (world.schedule(), world.reported, world.api.bound) == ([], [("free", "a")], [("free", "a")])
    world.loop.scheduler.waiting.allow("shop/held", "Holds")
    world.schedule()
    wait_for(signal)
    assert (world.schedule(), world.reported[1:]) == ([], [("held", "a")])


class Waits:
    """Lets every pod wait for so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def permit(self, state, pod, snapshot, row):
        return Wait(self.seconds * SECOND)


@pytest.mark.parametrize(("allowed", "deadline", "refuses"), [
    ((), 10, "Middle"), (("Middle",), 20, "Last"), (("Last",), 10, "Middle"), (("Middle", "Last"), 30, "First"),
])
def test_a_pod_waits_until_the_first_timeout_of_the_plugins_that_have_not_allowed_it(allowed, deadline, refuses):
    names = {"First": 30, "Middle": 10, "Last": 20}
    verdicts = []
    world = World(*(plugin(name, Waits(seconds), Point.PERMIT) for name, seconds in names.items()), executor=None)
    world.loop = SchedulingLoop(world.cluster, world.live, clock=lambda: world.now, client=world.api,
                                concluded=verdicts.append)
    world.add("one")
    assert world.loop.schedule_one().waiting
    for name in allowed:
        world.loop.scheduler.waiting.allow("shop/one", name)
    assert world.loop.scheduler.next_time() == deadline * SECOND
    world.now = deadline * SECOND - 1
    world.loop.scheduler.process_bindings()
    assert verdicts == []
    world.now += 1
    world.loop.scheduler.process_bindings()
    assert [(each.node, each.refusal[:2], each.refusal[2].message) for each in verdicts] == [
        (None, (refuses, Point.PERMIT), "timeout after waiting for other pods")]


def test_a_pod_waits_for_a_permit_for_a_quarter_of_an_hour_at_most():
    world = World(plugin("Waits", Waits(3600), Point.PERMIT), executor=None)
    world.add("one")
    assert world.loop.schedule_one().waiting
    assert world.loop.scheduler.next_time() == 15 * 60 * SECOND


class HoldsOnce(Reserves):
    """Lets a pod wait for a permit at its second attempt, and notes what is reserved and bound."""

    attempts = 0

    def permit(self, state, pod, snapshot, row):
        self.attempts += 1
        return Wait(30 * SECOND) if self.attempts > 1 else None

    def post_bind(self, state, pod, node):
        self.log.append(f"bound {pod.name} to {node}")


def waiting_again():
    """A world whose pod waits for a permit, after the result of its first bind was given up."""
    log = []
    holds = HoldsOnce("holds", log)
    world = World(plugin("Holds", holds, Point.RESERVE, Point.PERMIT, Point.POST_BIND), executor=ManualExecutor(),
                  settings=Settings(binding_timeout=5 * SECOND), nodes=("a",))
    world.add("one")
    world.schedule()
    world.now = 5 * SECOND
    world.schedule()
    world.now += SECOND
    assert world.schedule() == [("one", "a", False)]
    log.clear()
    return world, log


@pytest.mark.parametrize("shown_by", ["the result", "a listing"])
def test_a_pod_that_waits_for_a_permit_on_the_node_to_which_it_turns_out_to_be_bound_waits_no_longer(shown_by):
    world, log = waiting_again()
    if shown_by == "the result":
        world.executor.finish()
    else:
        world.add("one", nodeName="a")
    assert (world.schedule(), world.schedule()) == ([], [])
    assert (world.reported, log) == ([("one", None), ("one", "a")], ["bound one to a"])
    assert (world.requested(), world.loop.scheduler.waiting.keys(), len(world.loop.queue)) == ([1000], (), 0)
    assert world.loop.scheduler.in_flight == ()


@pytest.mark.parametrize("ends", ["409", "timeout"])
def test_a_pod_that_turns_out_to_be_bound_while_it_is_bound_to_that_node_again_keeps_what_was_reserved(ends):
    world, log = waiting_again()
    world.loop.scheduler.waiting.allow("shop/one", "Holds")
    world.schedule()
    world.executor.finish()  # the first attempt, which had been given up
    world.schedule()
    if ends == "409":
        world.api.fail["one"] = OSError("409: pod one is already assigned to node a")
        world.executor.finish()
    else:
        world.now += 5 * SECOND
    assert world.schedule() == []
    assert (world.reported, log) == ([("one", None), ("one", "a")], ["bound one to a"])
    assert (world.requested(), len(world.loop.queue)) == ([1000], 0)


def test_a_pod_that_is_bound_between_its_permit_and_the_binding_cycle_is_not_bound_again():
    world, log = waiting_again()
    world.loop.scheduler.waiting.allow("shop/one", "Holds")
    world.add("one", nodeName="a")
    jobs = len(world.executor.jobs)
    assert world.schedule() == []
    assert (world.reported, log, len(world.executor.jobs)) == ([("one", None), ("one", "a")], ["bound one to a"], jobs)


def test_time_that_a_pod_waited_for_a_permit_does_not_count_as_binding():
    world = World(plugin("Holds", Holds("held"), Point.PERMIT), executor=ManualExecutor(),
                  settings=Settings(binding_timeout=20 * SECOND))
    world.add("held")
    world.schedule()
    world.now = 25 * SECOND
    world.loop.scheduler.waiting.allow("shop/held", "Holds")
    world.schedule()
    assert world.loop.next_time() == 45 * SECOND
    world.executor.finish()
    assert (world.schedule(), world.reported) == ([], [("held", "a")])


# What runs where


class Threads:
    """Writes down in which thread each point runs."""

    def __init__(self, log):
        self.log = log

    def note(self, what):
        self.log.append((what, threading.current_thread().name.partition("-")[0]))

    def pre_bind(self, state, pod, draft, node):
        self.note("pre_bind")
        draft["metadata"]["annotations"] = {"node": node}

    def apply_patch(self, state, original, modified):
        self.note(f"apply_patch {modified['metadata']['annotations']}")

    def bind(self, state, pod, node):
        self.note("bind")

    def post_bind(self, state, pod, node):
        self.note("post_bind")


class ThreadSafe(Threads):
    thread_safe = True


class Defers(Threads):
    def pre_bind(self, state, pod, draft, node):
        super().pre_bind(state, pod, draft, node)
        return Deferred(lambda: self.note("deferred pre_bind"))

    def bind(self, state, pod, node):
        return Deferred(lambda: self.note("deferred bind") or SKIP)


@pytest.mark.parametrize(("kind", "expected"), [
    (Threads, [("pre_bind", "here"), ("apply_patch {'node': 'a'}", "here"), ("bind", "here"), ("post_bind", "here")]),
    (ThreadSafe, [("pre_bind", "bind"), ("apply_patch {'node': 'a'}", "bind"), ("bind", "bind"),
                  ("post_bind", "here")]),
    (Defers, [("pre_bind", "here"), ("deferred pre_bind", "bind"), ("apply_patch {'node': 'a'}", "here"),
              ("deferred bind", "bind"), ("post_bind", "here")]),
])
def test_plugin_code_runs_where_decisions_are_made_unless_it_is_thread_safe_or_deferred(
    kind, expected, workers, signal, monkeypatch,
):
    monkeypatch.setattr(threading.current_thread(), "name", "here")
    log = []
    points = (Point.PRE_BIND, Point.BIND, Point.POST_BIND)
    world = World(plugin("P", kind(log), *points), executor=workers)
    world.add("one")
    world.schedule()
    while not log or log[-1][0] != "post_bind":
        wait_for(signal)
        world.schedule()
    assert log == expected


def test_a_pod_that_is_made_anew_while_the_one_before_is_bound_is_scheduled_by_itself():
    world = World(executor=ManualExecutor())
    world.add("one", uid="first")
    world.schedule()
    world.cluster.delete("Pod", "shop/one")
    world.add("one", uid="second")
    assert world.schedule() == [("one", "a", True)]
    world.api.fail["one"] = OSError("404: pod one with UID first not found")
    world.executor.finish(0)
    assert (world.schedule(), world.reported, world.requested()) == ([], [("one", None)], [1000, 0])
    del world.api.fail["one"]
    world.executor.finish(0)
    assert (world.schedule(), world.reported[1:], world.requested()) == ([], [("one", "a")], [1000, 0])


def test_workers_need_a_client(workers):
    with pytest.raises(ValueError, match="workers cannot write into the scheduler's own cluster: a client is needed"):
        Scheduler(Cluster([node("a")]), Live(Registry.of([], generation=1)), executor=workers)


def test_a_deferred_answer_without_a_function_is_the_plugins_failure():
    class Odd:
        def bind(self, state, pod, node):
            return Deferred("later")

    world = World(plugin("Odd", Odd(), Point.BIND), executor=ManualExecutor())
    world.add("one")
    verdict = world.loop.schedule_one()
    assert (verdict.node, verdict.refusal[0], verdict.refusal[2].code) == (None, "Odd", Code.ERROR)
    assert "the answer must be what the protocol of `bind` says" in verdict.refusal[2].message


# The same decisions


class Relay:
    """Binds pods one after the other: each lets the next one go."""

    name = "Relay"

    def __init__(self, handle):
        self.waiting = handle.waiting

    def permit(self, state, pod, snapshot, row):
        if pod.name == "second":
            self.waiting.allow("shop/first", self.name)
        return Wait(30 * SECOND)

    def post_bind(self, state, pod, node):
        self.waiting.allow("shop/second", self.name)


def test_a_pod_that_is_let_go_within_its_own_cycle_has_one_final_verdict():
    relay = Plugin("Relay", Framework.SCHEDULER, (Point.PERMIT, Point.POST_BIND), lambda args, handle: Relay(handle),
                   "here", "1")
    world = World(relay, executor=None)
    world.add("first", "second")
    assert [(each.pod.name, each.node, each.waiting) for each in world.loop.schedule_all()] == [
        ("first", "a", True), ("second", "a", False)]
    assert (world.reported, world.api.bound) == ([("first", "a")], [("first", "a"), ("second", "a")])


def test_a_pod_whose_bind_fails_within_its_own_cycle_waits_in_the_queue():
    relay = Plugin("Relay", Framework.SCHEDULER, (Point.PERMIT, Point.POST_BIND), lambda args, handle: Relay(handle),
                   "here", "1")
    world = World(relay, executor=None)
    world.api.fail["second"] = OSError("503")
    world.add("first", "second")
    assert world.schedule() == [("first", "a", False), ("second", None, False)]
    assert (world.requested(), world.loop.queue.counts()["backoff"]) == ([1000, 0], 1)


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_are_waited_for_after_each_pod_decide_as_no_workers_do(seed):
    def placements(executor):
        random = Random(seed)
        world = World(plugin("Reserves", Reserves("R", []), Point.RESERVE), executor=executor, nodes="abcd")
        world.api.fail |= {f"p{number}": OSError("503") for number in random.sample(range(40), 8)}
        found = []
        for number in range(40):
            world.add(f"p{number}", cpu=random.choice(["100m", "500m", "1", "3"]), priority=random.randrange(3))
            world.now += random.choice([0, SECOND, 3 * SECOND])
            while (verdict := world.loop.schedule_one()) is not None:
                while executor is not None and executor.jobs:
                    executor.finish()
                    world.loop.scheduler.process_bindings()
                found.append(verdict.pod.name)
        return found, world.api.bound, world.requested(), world.loop.queue.counts()

    assert placements(None) == placements(ManualExecutor())


# Waiting for objects


class Awaits:
    """Waits until an object of the cluster says so."""

    def __init__(self, handle, result=None):
        self._handle, self._result = handle, result
        self.calls = 0

    def pre_bind(self, state, pod, draft, node):
        return AwaitObjects(self._condition, frozenset({("ConfigMap", "shop/go")}), 10 * SECOND, "no go after 10 s")

    def _condition(self):
        self.calls += 1
        if self._result is not None:
            return self._result
        item = self._handle.snapshot().object("ConfigMap", "shop/go")
        return item is not None and item["data"]["go"] == "yes"


def awaiting(result=None, *plugins, **rest):
    made = []

    def make(args, handle):
        made.append(Awaits(handle, result))
        return made[-1]

    world = World(Plugin("Awaits", Framework.SCHEDULER, (Point.PRE_BIND,), make, "here", "Awaits"), *plugins,
                  executor=ManualExecutor(), **rest)
    world.plugin, = made
    return world


def go(value):
    return {"kind": "ConfigMap", "metadata": {"name": "go", "namespace": "shop"}, "data": {"go": value}}


def test_a_pod_waits_for_an_object_without_a_worker_and_is_bound_when_it_has_changed():
    world = awaiting()
    world.add("one")
    assert world.schedule() == [("one", "a", True)]
    scheduler = world.loop.scheduler
    assert [each.pod.name for each in scheduler.awaiting] == ["one"]
    assert (scheduler.in_flight, world.executor.jobs) == ((), [])
    world.cluster.upsert(go("no"))
    world.add("two")
    assert (world.schedule(), world.reported) == ([("two", "a", True)], [])
    world.cluster.upsert(go("yes"))
    assert (world.schedule(), [each.pod.name for each in scheduler.in_flight]) == ([], ["one", "two"])
    world.executor.finish()
    world.executor.finish()
    assert (world.schedule(), world.reported, scheduler.awaiting) == ([], [("one", "a"), ("two", "a")], ())


def test_the_condition_is_looked_at_only_after_changes_of_its_objects():
    world = awaiting()
    world.add("one")
    world.schedule()
    for number in range(5):
        world.cluster.upsert({**go("yes"), "metadata": {"name": f"other-{number}", "namespace": "shop"}})
        world.schedule()
    assert world.plugin.calls == 1


def test_a_wait_ends_with_an_error_after_its_timeout():
    world = awaiting(settings=Settings(binding_timeout=SECOND))
    world.add("one")
    world.schedule()
    assert world.loop.next_time() == 10 * SECOND
    world.now = 10 * SECOND - 1
    assert (world.schedule(), world.reported) == ([], [])
    world.now += 1
    assert (world.schedule(), world.reported, world.requested()) == ([], [("one", None)], [0, 0])
    assert world.loop.queue.counts()["backoff"] == 1


@pytest.mark.parametrize(("result", "message"), [
    (Refusal("never", "it never will", Code.ERROR), "it never will"),
    ("yes", "the answer must be what the protocol of `preBind` says, not 'yes'"),
    (None, None),
])
def test_a_condition_that_refuses_or_answers_oddly_ends_the_cycle(result, message):
    world = awaiting(result)
    world.add("one")
    verdict, = world.loop.schedule_all()
    assert (verdict.binding if result is None else verdict.refusal[2].message) == (
        True if result is None else message)


def test_the_end_of_the_pod_or_its_node_ends_the_wait():
    world = awaiting()
    world.add("deleted", "renewed", "going", "elsewhere", "bound", "left")
    world.schedule()
    world.cluster.delete("Pod", "shop/deleted")
    world.cluster.upsert(pod("renewed", uid="another"))
    going = pod("going")
    world.cluster.upsert({**going, "metadata": {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.cluster.upsert(pod("elsewhere", nodeName="b"))
    world.cluster.upsert(pod("bound", nodeName="b"))
    world.schedule()
    assert dict(world.reported) == {
        "deleted": None, "renewed": None, "going": None, "elsewhere": None, "bound": "b"}
    world.cluster.delete("Node", "b")
    world.cluster.delete("Node", "a")
    world.schedule()
    assert (dict(world.reported)["left"], world.loop.scheduler.awaiting) == (None, ())


def test_a_pod_that_waits_is_preempted_without_a_deletion():
    class Preempts:
        def post_filter(self, state, pod, snapshot, refused):
            return Nomination("a", tuple(snapshot.pods(0))) if pod.priority else None

    world = awaiting(None, plugin("Preempts", Preempts(), Point.POST_FILTER), nodes=("a",), cpu="1")
    world.add("weak")
    world.schedule()
    world.add("strong", priority=10)
    world.schedule()
    assert (world.reported, world.requested()) == ([("weak", None)], [0])
    world.now += SECOND
    world.schedule()
    assert world.requested() == [1000]
    assert [each.pod.name for each in world.loop.scheduler.awaiting] == ["strong"]


def test_l39_a_pod_that_is_being_deleted_while_it_is_bound_leaves_its_room_at_once():
    world = World(executor=ManualExecutor())
    world.add("one")
    world.schedule()
    assert world.requested() == [1000, 0]
    going = pod("one")
    world.cluster.upsert({**going, "metadata": {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.schedule()
    assert (world.requested(), world.reported, len(world.loop.scheduler.in_flight)) == ([0, 0], [], 1)
    world.api.fail["one"] = OSError("409: pod one is being deleted")
    world.executor.finish()
    world.schedule()
    assert (world.reported, world.requested()) == ([("one", None)], [0, 0])
    world.now += 20 * SECOND
    assert (world.schedule(), len(world.loop.queue)) == ([], 0)
