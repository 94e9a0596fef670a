"""The deciding thread of a live scheduler, with a feed and an API server that a test plays."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.handle import StalePodError
from koordpolicy.engine.framework.points import Answer, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.framework.scheduler import Nomination
from koordpolicy.engine.scheduler.cycle.measuring import measure
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.live.client import Preemption
from koordpolicy.engine.scheduler.live.owner import LiveScheduler
from koordpolicy.engine.scheduler.observe.counters import Counters
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.testing import node, pod

SECOND = 1_000_000_000
NAME = "koord-policy"


class Feed:
    """Delivers what a test puts into it."""

    def __init__(self):
        self.synced, self.compared, self.barriers, self.rounds = False, 0, [], 0
        self.passes = True
        self._inbox = []

    def put(self, *items):
        self._inbox += items

    def delete(self, kind, key):
        self._inbox.append((kind, key))

    def apply(self, cluster, budget):
        self.rounds += 1
        while self._inbox:
            item = self._inbox.pop(0)
            cluster.delete(*item) if isinstance(item, tuple) else cluster.upsert(item)
        self.synced = True
        return False

    def barrier(self):
        self.barriers.append(self)
        return self

    @property
    def passed(self):
        return self.passes

    def compare(self):
        self.compared += 1


class Client:
    """Binds as a test says; records what is reported."""

    def __init__(self):
        self.bound, self.reports, self.preempted, self.cleared, self.looks = [], [], [], [], []
        self.refusals, self.nodes, self.failed = {}, {}, []
        self.hold = None
        self.recorder = self.statuses = self

    def own(self, cluster):
        self.cluster = cluster

    async def bind_async(self, pod, node, annotations):
        self.bound.append((pod.name, node))
        if self.hold is not None:
            await self.hold.wait()
        if refusals := self.refusals.get(pod.name):
            raise refusals.pop(0)

    async def read_node(self, reference):
        self.looks.append(reference.name)
        found = self.nodes[reference.name]
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def preempt(self, pod, preemptor, node):
        marked = {**pod.object, "metadata": {**pod.object["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        self.cluster.upsert(marked)
        self.preempted.append(Preemption(preemptor, node, pod, marked))

    def clear_nomination(self, pod):
        self.cleared.append(pod.name)

    def take_failed_preemptions(self):
        found, self.failed = self.failed, []
        return found

    def record(self, regarding, *, type, reason, action, note, controller):  # noqa: A002 - as the protocol calls it
        self.reports.append((regarding.name, reason, note))

    def write(self, pod, *, condition=None, nominated_node=None):
        said = None if condition is None else condition.reason
        self.reports.append((pod.name, said, nominated_node))


def plugin(name, instance, point):
    return Plugin(name, Framework.SCHEDULER, (point,), lambda args, handle: instance, name, name)


class Scene:
    """A live scheduler on a thread of its own, with a clock that a test moves."""

    def __init__(self, io, *plugins, **more):
        self.now = 1_800_000_000 * SECOND
        self.feed, self.client, self.cluster = Feed(), Client(), Cluster()
        self.leading, self.gave_up = True, False
        settings = Settings((ProfileSpec(NAME),), foreign_pods=False)
        self.live = LiveScheduler(
            self.cluster, Live(Registry.of(plugins, generation=1)), settings, feed=self.feed, client=self.client, io=io,
            leads=lambda: self.leading, gave_up=lambda: self.gave_up, clock=lambda: self.now, **more)
        self.ended = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.ended = self.live.run()

    def start(self, *items):
        self.feed.put(*items)
        self._thread.start()
        return self

    def put(self, *items):
        self.feed.put(*items)
        self.live.wake()

    def pass_time(self, seconds):
        self.now += int(seconds * SECOND)
        self.live.wake()

    def until(self, condition):
        deadline = time.monotonic() + 60  # of a machine that does a lot else; it is 10 ms otherwise
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def look_again(self):
        """Wait until the deciding thread has looked for work twice: at least once from the start to the end."""
        before = self.feed.rounds
        self.until(lambda: self.feed.rounds > before + 1 or self.live.wake())

    def stop(self):
        self.live.stop()
        self._thread.join(60)
        return self.ended


@pytest.fixture
def scene():
    with IoThread("test") as io:
        made = []

        def make(*plugins, **more):
            made.append(Scene(io, *plugins, **more))
            return made[-1]

        yield make
        for each in made:
            each.stop()


def waiting(name, scheduler=NAME, **spec):
    return pod(name, schedulerName=scheduler, **spec)


def on(name, node, **spec):
    return waiting(name, nodeName=node, **spec)


def test_pods_of_its_profiles_are_bound_and_others_only_counted(scene):
    made = scene().start(node("one"), waiting("a"), waiting("foreign", "somebody-else"), on("b", "one"))
    made.until(lambda: made.client.bound)
    made.put(waiting("c"))
    made.until(lambda: len(made.client.bound) == 2)
    assert (made.client.bound, made.client.reports) == ([("a", "one"), ("c", "one")], [])


def test_nothing_is_decided_before_the_barrier_of_a_new_leadership_is_passed(scene):
    made = scene()
    made.feed.passes = False
    made.start(node("one"), waiting("a"))
    made.until(lambda: made.feed.barriers)
    made.look_again()
    assert made.client.bound == []
    made.feed.passes = True
    made.live.wake()
    made.until(lambda: made.client.bound)
    made.leading = False
    made.put(waiting("b"))
    made.look_again()
    made.leading = True
    made.live.wake()
    made.until(lambda: len(made.client.bound) == 2)
    assert len(made.feed.barriers) == 2


def test_a_lost_lease_ends_it_and_a_stop_waits_for_bindings(scene):
    made = scene().start(node("one"))
    made.until(lambda: made.live.view.synced)
    made.gave_up = True
    made.live.wake()
    made.until(lambda: made.ended)
    assert made.ended is Ended.LOST_LEASE
    other = scene()
    other.client.hold = asyncio.Event()
    other.start(node("one"), waiting("a"))
    other.until(lambda: other.client.bound)
    other.live.stop()
    time.sleep(0.05)
    assert other.ended is None
    other.live._executor._io.call_soon(other.client.hold.set)
    other.until(lambda: other.ended)
    assert other.ended is Ended.STOPPED


def test_a_refused_binding_is_reported_as_an_error_and_tried_again_after_its_back_off(scene):
    made = scene()
    made.client.refusals["a"] = [OSError("etcd is gone")]
    made.start(node("one"), waiting("a"))
    made.until(lambda: len(made.client.reports) == 2)
    assert made.client.reports == [
        ("a", "FailedScheduling", 'running Bind plugin "bind": OSError: etcd is gone'), ("a", "SchedulerError", "")]
    assert made.live.loop.queue.counts()["backoff"] == 1
    made.pass_time(1.1)
    made.until(lambda: len(made.client.bound) == 2)


def test_a_process_that_does_not_lead_does_not_wake_up_for_pods_that_are_due(scene):
    made = scene()
    made.client.refusals["a"] = [OSError("etcd is gone")]
    made.start(node("one"), waiting("a"), waiting("b"))
    made.until(lambda: len(made.client.reports) == 2 and len(made.client.bound) == 2)
    made.client.nodes["b"] = OSError("down")
    made.leading = False
    made.pass_time(61.5)  # one is due after its back-off, the other one to be read
    before = made.feed.rounds
    time.sleep(0.1)
    assert made.feed.rounds - before < 20


def test_a_stale_pod_is_neither_reported_nor_tried_again_until_a_watchdog_finds_it(scene):
    made = scene()
    made.client.refusals["a"] = [StalePodError("it is already assigned")]
    made.start(node("one"), waiting("a"))
    made.until(lambda: made.client.bound and not made.live.loop.scheduler.in_flight)
    made.pass_time(30)
    made.look_again()
    assert (len(made.client.bound), made.client.reports, len(made.live.loop.queue)) == (1, [], 0)
    made.until(lambda: len(made.client.bound) > 1 or made.pass_time(1))
    made.until(lambda: made.live.view.lost_pods == 1 or made.pass_time(1))


def test_l28_a_plugin_that_raises_is_an_error_of_the_scheduler(scene):
    class Broken:
        def pre_filter(self, state, pod, snapshot):
            raise RuntimeError("out of ideas")

    made = scene(plugin("Broken", Broken(), Point.PRE_FILTER)).start(node("one"), waiting("a"))
    made.until(lambda: len(made.client.reports) == 2)
    assert made.client.reports == [
        ("a", "FailedScheduling", 'running PreFilter plugin "Broken": RuntimeError: out of ideas'),
        ("a", "SchedulerError", "")]
    assert made.live.loop.queue.counts()["backoff"] == 1


def test_l33_a_parked_pod_is_tried_again_after_five_minutes_without_an_event(scene):
    class Closed:
        """Refuses all nodes until a test opens it, which no event shows."""

        opened, calls = False, 0

        def filter(self, state, pod, snapshot, rows):
            self.calls += 1
            return Answer(np.full(snapshot.size, self.opened), lambda row: Refusal("closed", "is closed"))

        def depends_on(self, rules):
            return frozenset({("node", "metadata", "labels", "open")})

    closed, measured = Closed(), []
    made = scene(plugin("Closed", closed, Point.FILTER),
                 ready=lambda live: measured.append(measure(live.loop, clock=lambda: made.now)))
    made.start(node("one"), waiting("a"))
    made.until(lambda: len(made.client.reports) == 2)
    closed.opened = True

    def flushed():
        line = next(line for line in measured[0].registry.text().decode().splitlines()
                    if line.startswith("scheduler_pod_scheduled_after_flush_total"))
        return float(line.split()[-1])

    made.pass_time(299)
    made.look_again()
    assert (closed.calls, made.client.bound, flushed()) == (1, [], 0)
    made.pass_time(31)  # after 5.5 minutes at the latest
    made.until(lambda: made.client.bound)
    made.until(lambda: flushed() == 1)
    assert (closed.calls, made.client.bound) == (2, [("a", "one")])


class Full:
    """Refuses all nodes with pods of lower priority, which it preempts."""

    def filter(self, state, pod, snapshot, rows):
        full = [any(each.priority < pod.priority for each in snapshot.pods(row)) for row in range(snapshot.size)]
        return Answer(~np.array(full), lambda row: Refusal("full", "is full"))

    def post_filter(self, state, pod, snapshot, refused):
        return Nomination(snapshot.names[0], tuple(
            each for each in snapshot.pods(0) if each.priority < pod.priority))


def preempting(scene):
    both = Plugin("Full", Framework.SCHEDULER, (Point.FILTER, Point.POST_FILTER), lambda args, handle: Full(), "f", "f")
    return scene(both)


def test_a_preemptor_is_nominated_and_its_victims_deleted_once(scene):
    made = preempting(scene).start(node("one"), on("low", "one", priority=1), waiting("high", priority=9))
    made.until(lambda: len(made.client.reports) == 2)
    assert made.client.reports == [
        ("high", "FailedScheduling", "0/1 nodes are available: 1 is full."), ("high", "Unschedulable", "one")]
    assert [(each.victim.name, each.node) for each in made.client.preempted] == [("low", "one")]
    made.feed.delete("Pod", "default/low")
    made.pass_time(2)
    made.until(lambda: made.client.bound == [("high", "one")])


def test_a_victim_that_cannot_be_deleted_is_there_again_and_the_preemptor_is_tried_at_once(scene):
    made = preempting(scene).start(node("one"), on("low", "one", priority=1), waiting("high", priority=9))
    made.until(lambda: made.client.preempted)
    made.client.failed = made.client.preempted[:1]
    made.live.wake()
    made.until(lambda: len(made.client.preempted) == 2)
    made.until(lambda: len(made.client.reports) == 4)
    assert [each.victim.object["metadata"].get("deletionTimestamp") for each in made.client.preempted] == [None, None]


def test_l37_a_preemptor_clears_the_nominations_of_lower_pods_for_its_node(scene):
    nominated = {**waiting("middle", priority=5), "status": {"nominatedNodeName": "one"}}
    elsewhere = {**waiting("elsewhere", priority=5), "status": {"nominatedNodeName": "two"}}
    made = preempting(scene).start(
        node("one"), node("two"), on("low", "one", priority=1), on("also-low", "two", priority=1), nominated, elsewhere,
        waiting("high", priority=9))
    made.until(lambda: made.client.cleared)
    assert made.client.cleared == ["middle"]


@pytest.mark.parametrize(("found", "bound", "on_node"), [
    ("one", [("a", "one")], "one"), ("two", [("a", "one")], "two"), ("", [("a", "one"), ("a", "one")], "one"),
    ([OSError("down"), "one"], [("a", "one")], "one"),
], ids=["there", "elsewhere", "nowhere", "after-an-outage"])
def test_a_bound_pod_that_no_watch_confirms_is_read_and_the_server_is_right(scene, monkeypatch, found, bound, on_node):
    monkeypatch.setattr("koordpolicy.engine.scheduler.live.watchdogs._LOOK_S", 0.01)
    made = scene()
    made.client.nodes["a"] = found
    made.start(node("one"), waiting("a"))
    made.until(lambda: made.live._unconfirmed.next_time() is not None)
    made.pass_time(61)
    moved = on_node != "one" or len(bound) == 2

    def corrected():
        if made.live._unconfirmed._read:
            made.pass_time(1)  # what was read is applied with the next look, one second later
        return (made.client.looks and made.cluster.pod("default/a").node_name == on_node
                and made.client.bound == bound and made.live.view.corrected_bindings == int(moved))

    made.until(corrected)


def test_a_binding_that_the_watch_confirms_is_not_read(scene):
    made = scene().start(node("one"), waiting("a"))
    made.until(lambda: made.live._unconfirmed.next_time() is not None)
    made.put(on("a", "one"))
    made.pass_time(61)
    made.until(lambda: made.live.view.looked_at and made.live._unconfirmed.next_time() is None)
    assert made.client.looks == []


def test_at_most_so_many_pods_are_bound_at_once(scene):
    made = scene(most_binding=2)
    made.client.hold = asyncio.Event()
    made.start(node("one"), *(waiting(f"p{number}") for number in range(5)))
    made.until(lambda: len(made.client.bound) == 2)
    made.look_again()
    assert len(made.client.bound) == 2
    made.live._executor._io.call_soon(made.client.hold.set)
    made.until(lambda: len(made.client.bound) == 5)


def test_the_view_counts_pods_and_the_age_of_the_oldest(scene):
    old = waiting("a", nodeSelector={"x": "y"})
    old["metadata"]["creationTimestamp"] = "2027-01-15T07:59:00Z"

    class Nowhere:
        def pre_filter(self, state, pod, snapshot):
            return Refusal("nowhere", "nowhere")

    made = scene(plugin("Nowhere", Nowhere(), Point.PRE_FILTER)).start(node("one"), old, on("b", "one"))
    made.until(lambda: len(made.client.reports) == 2)
    made.pass_time(1.5)
    made.until(lambda: made.live.view.queue.get("active") == 0 and sum(made.live.view.queue.values()) == 1)
    view = made.live.view
    assert (view.synced, view.leading, view.nodes, view.pods, view.binding, view.oldest_unscheduled_s) == (
        True, True, 1, 2, 0, 61.5)


def test_a_dump_compares_the_cluster_and_logs_it(scene, caplog):
    caplog.set_level("INFO")
    made = scene().start(node("one"), on("b", "one"))
    made.until(lambda: made.live.view.synced)
    made.live.request_dump()
    made.pass_time(1.1)
    made.until(lambda: made.feed.compared)
    made.until(lambda: "Dump of scheduling queue" in caplog.text)
    assert "default/b" in caplog.text


def test_an_attempt_that_takes_long_is_logged_and_counted_while_it_runs(scene, caplog):
    began, go_on, times, counters = threading.Event(), threading.Event(), {"now": 1000.0}, Counters()

    class Slow:
        def pre_filter(self, state, pod, snapshot):
            if pod.name == "slow":
                times["now"] += 31
                began.set()
                go_on.wait(60)

    made = scene(plugin("Slow", Slow(), Point.PRE_FILTER), count=counters, timer=lambda: times["now"], monitor_s=0.01)
    made.start(node("one"), waiting("slow"), waiting("z-fast"))
    try:
        assert began.wait(60)
        made.until(counters.read)
        assert made.client.bound == []
    finally:
        go_on.set()
    made.until(lambda: len(made.client.bound) == 2)
    assert counters.read() == {"scheduler_scheduling_timeout": {(("profile", NAME),): 1}}
    assert [(record.getMessage(), record.pod) for record in caplog.records] == [
        ("the decision about default/slow takes 31.0 s, more than 30.0 s", "default/slow")]
    assert made.stop() is Ended.STOPPED
    assert made.live._monitoring.cancelled()
