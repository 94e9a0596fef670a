"""The live feed brings a cluster to the state of the API server, whatever happens in between."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.client import pacing
from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.kinds import FieldSets, Read, field_paths, fields_read
from koordpolicy.engine.cluster.sources.feed import Feed
from koordpolicy.engine.cluster.sources.inbox import ChangedObject, ChangedObjects, KnownVersions, ReadObject

from ...client.object_server import ObjectServer

READS: FieldSets = fields_read([])
METRICS: FieldSets = fields_read([Read("NodeMetric", fields=frozenset())])


def node(name: str, cpu: str = "8", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}}, **more}


def pod(name: str, on: str = "", cpu: str = "1", uid: str | None = None, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "env": [{"name": "A", "value": "1"}], "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", **({"uid": uid} if uid else {}), **metadata},
            "spec": {"containers": [container], **({"nodeName": on} if on else {})}}


def metric(name: str, cpu: str = "1") -> dict[str, Any]:
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
            "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}}}}


class Fed:
    """A cluster that a feed follows, owned by the test's thread."""

    def __init__(self, feed: Feed, cluster: Cluster, woken: threading.Event) -> None:
        self.feed, self.cluster, self.woken = feed, cluster, woken
        self.events: list[Event] = []
        cluster.listen(self.events.append)

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Apply changes until the condition is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it does not come about"
            self.woken.clear()
            if not self.feed.apply(self.cluster, 0.01):
                self.woken.wait(0.01)

    def until_equal_to(self, server: ObjectServer, *kinds: str) -> None:
        def versions(objects: Any) -> dict[str, tuple[str, str]]:
            return {key: (item["metadata"]["uid"], item["metadata"]["resourceVersion"])
                    for key, item in objects.items()}

        self.until(lambda: all(
            versions(self.cluster.objects(kind)) == versions(server.objects(kind)) for kind in kinds))


@contextmanager
def fed(server: ObjectServer, reads: FieldSets = READS, **more: Any) -> Iterator[Fed]:
    woken = threading.Event()
    with IoThread("feed-test") as io:
        transport = Transport(server.connection, rate=0)
        io.on_close(transport.close)
        feed = Feed(io, transport, reads, wake=woken.set, **more)
        feed.start()
        try:
            yield Fed(feed, Cluster(), woken)
        finally:
            assert io.close(60)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_cluster_becomes_that_of_the_server_and_follows_it(streaming: bool):
    with ObjectServer(streaming=streaming, page=2) as server:
        for item in (node("a"), node("b"), pod("one", "a"), pod("two", "b", cpu="2"), pod("three")):
            server.put(item)
        with fed(server) as live:
            assert not live.feed.synced
            live.until(lambda: live.feed.synced)
            live.until_equal_to(server, "Node", "Pod")
            assert [row.requested["cpu"] for row in live.cluster.rows] == [1000, 2000]
            assert [each.key for each in live.cluster.pending] == ["default/three"]
            server.put(pod("three", "b"))
            server.put(node("c"))
            server.delete("Pod", "default/one")
            server.delete("Node", "a")
            live.until_equal_to(server, "Node", "Pod")
            assert [(row.name, row.requested["cpu"]) for row in live.cluster.rows] == [("b", 3000), ("c", 0)]
            assert live.cluster.kinds == {"Node", "Pod"}


def test_fields_that_nobody_reads_are_not_in_the_cluster():
    with ObjectServer() as server:
        server.put(node("a") | {"spec": {"podCIDR": "10.0.0.0/24", "taints": []}})
        server.put(pod("one", "a", managedFields=[{"manager": "m"}], labels={"a": "b"}))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            item = live.cluster.object("Pod", "default/one")
            assert item == {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "one", "namespace": "default", "uid": "uid-3", "resourceVersion": "3",
                             "labels": {"a": "b"}},
                "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
            known = live.cluster.object("Node", "a")
            assert known is not None
            assert known["spec"] == {"taints": []}


def test_kinds_that_nobody_reads_are_never_requested():
    with ObjectServer() as server, fed(server) as live:
        live.until(lambda: live.feed.synced)
        assert {path for _, path, _ in server.requests} == {"/api/v1/nodes", "/api/v1/pods"}


def test_l12_the_pods_that_ended_are_left_out_by_a_field_selector():
    with ObjectServer() as server, fed(server) as live:
        live.until(lambda: live.feed.synced)
        assert {query.get("fieldSelector") for query in server.requested("Pod", watch=True)} == {
            "status.phase!=Succeeded,status.phase!=Failed"}


def test_a_wider_projection_comes_by_a_list_while_the_objects_stay_in_the_cluster():
    more = Read("Pod", fields=field_paths("spec.containers.env"))
    wider = fields_read([more, Read("NodeMetric", fields=frozenset())])
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(pod("one", "a"))
        server.put(metric("a"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            assert (live.feed.has(READS), live.feed.has(wider)) == (True, False)
            live.events.clear()
            live.feed.require(wider)
            live.until(lambda: live.feed.has(wider))
            assert live.feed.has(READS)
            [one] = live.cluster.objects("Pod").values()
            assert one["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
            assert [(event.kind, event.old is None, event.new is None) for event in live.events] == [
                ("Pod", False, False), ("NodeMetric", True, False)] or live.events[0].kind == "NodeMetric"
            assert not [event for event in live.events if event.new is None]
            assert live.cluster.rows[0].metric is not None


def test_a_kind_that_nobody_reads_any_more_is_taken_out_of_the_cluster():
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(metric("a"))
        with fed(server, METRICS) as live:
            live.until(lambda: live.feed.synced)
            assert live.cluster.rows[0].metric is not None
            live.feed.require(READS)
            live.feed.require(READS)
            live.until(lambda: not live.cluster.objects("NodeMetric"))
            assert live.cluster.rows[0].metric is None
            assert live.cluster.kinds == {"Node", "Pod"}


def test_a_kind_that_the_server_does_not_have_is_said_once_and_followed_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr("koordpolicy.engine.cluster.sources.feed.ABSENT_S", 0.02)
    with caplog.at_level(logging.INFO), ObjectServer(absent=["NodeMetric"]) as server:
        server.put(node("a"))
        with fed(server, METRICS) as live:
            live.until(lambda: live.feed.synced)
            assert (live.cluster.kinds, live.feed.view.absent) == ({"Node", "Pod"}, ("NodeMetric",))
            live.until(lambda: len(server.requested("NodeMetric", watch=False)) > 3)
            server.put(metric("a"))
            server.absent.clear()
            live.until(lambda: not live.feed.view.absent)
            assert live.cluster.kinds == {"Node", "Pod", "NodeMetric"}
            assert live.cluster.rows[0].metric is not None
    assert [record.getMessage() for record in caplog.records if record.name.endswith(".feed")] == [
        "the cluster has no nodemetrics (slo.koordinator.sh/v1alpha1); going on without, until it has",
        "the cluster has nodemetrics now"]


def test_a_pod_that_was_deleted_and_created_again_is_one_deletion_and_one_addition():
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(pod("one", "a", uid="first"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            live.events.clear()
            server.break_watches(compact=True)
            server.delete("Pod", "default/one")
            server.put(pod("one", uid="second"))
            live.until_equal_to(server, "Pod")
            changes = [(event.old_pod and event.old_pod.uid, event.new_pod and event.new_pod.uid)
                       for event in live.events if event.kind == "Pod"]
            assert changes == [("first", None), (None, "second")]
            assert live.cluster.rows[0].requested["cpu"] == 0


def test_an_object_that_cannot_be_read_or_applied_costs_itself(caplog: pytest.LogCaptureFixture):
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(node("odd", cpu="twelve"))
        server.put(pod("odd", "a") | {"spec": {"containers": [[]]}})
        server.put(pod("one", "a", cpu="1x"))
        server.put(pod("two", "a"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            assert (live.cluster.names, list(live.cluster.objects("Pod"))) == (["a"], ["default/two"])
            assert live.feed.view.faulty == 3
            server.put(node("odd", cpu="12"))
            server.put(pod("odd", "a"))
            server.put(pod("one", "a"))
            live.until_equal_to(server, "Node", "Pod")
            assert live.feed.view.faulty == 0
    told = [record.getMessage().partition("`:")[0] for record in caplog.records]
    assert sorted(told) == ["Node `odd", "Pod `default/odd", "Pod `default/one"]


def test_pods_wait_for_the_first_nodes_so_that_rows_are_numbered_a_few_times_only():
    with ObjectServer() as server:
        for number in range(300):
            server.put(pod(f"p{number}", f"n{number}"))
            server.put(node(f"n{number}"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            assert {row.requested["cpu"] for row in live.cluster.rows} == {1000}
            kinds = [event.kind for event in live.events]
            assert kinds == ["Node"] * 300 + ["Pod"] * 300


def test_the_room_of_a_deleted_pod_is_free_although_it_is_still_assumed():
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(pod("one"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            [one] = live.cluster.pending
            live.cluster.assume(one, "a")
            server.put(pod("one", labels={"a": "b"}))
            live.until_equal_to(server, "Pod")
            assert live.cluster.rows[0].requested["cpu"] == 1000
            server.put(pod("one", deletionTimestamp="2026-01-01T00:00:00Z"))
            live.until_equal_to(server, "Pod")
            assert live.cluster.rows[0].requested["cpu"] == 0


def test_l42_a_comparison_finds_and_heals_what_differs(caplog: pytest.LogCaptureFixture):
    with ObjectServer() as server:
        for item in (node("a"), pod("missing", "a"), pod("outdated", "a"), pod("fine", "a")):
            server.put(item)
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            live.feed.compare()
            live.until(lambda: live.feed.view.comparisons == 2)
            assert live.feed.view.mismatches == {}
            ghost = pod("ghost", "a", uid="ghost")
            ghost["metadata"]["resourceVersion"] = "1"
            live.cluster.upsert(ghost)
            live.cluster.upsert(pod("of-a-reservation", "a", uid="own"))
            live.cluster.delete("Pod", "default/missing")
            old = live.cluster.object("Pod", "default/outdated")
            assert old is not None
            live.cluster.upsert({**old, "metadata": {**old["metadata"], "resourceVersion": "1"}})
            live.feed.compare()
            live.until(lambda: live.feed.view.comparisons == 4)
            live.until(lambda: live.cluster.object("Pod", "default/missing"))
            live.until(lambda: live.cluster.object("Pod", "default/outdated") == old)
            assert sorted(live.cluster.objects("Pod")) == [
                "default/fine", "default/missing", "default/of-a-reservation", "default/outdated"]
            assert live.feed.view.mismatches == {
                ("Pod", "missing"): 1, ("Pod", "outdated"): 1, ("Pod", "redundant"): 1}
    [message] = [record.getMessage() for record in caplog.records]
    assert message == ("Cache mismatch: missing Pods default/missing; outdated Pods default/outdated; "
                       "redundant Pods default/ghost")


def test_l44_a_barrier_is_passed_when_what_was_accepted_before_is_applied():
    with ObjectServer() as server:
        server.put(node("a"))
        server.put(pod("one"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            server.delay_s = 0.3
            server.put(pod("one", "a"))
            barrier = live.feed.barrier()
            assert not barrier.passed
            live.until(lambda: barrier.passed)
            assert barrier.complete
            assert live.cluster.rows[0].requested["cpu"] == 1000
            _list, newest = server.requested("Pod", watch=False)
            assert newest == {"limit": "1"}


def test_a_barrier_does_not_wait_for_a_kind_that_the_server_does_not_have(caplog: pytest.LogCaptureFixture):
    with ObjectServer(absent=["Reservation"]) as server:
        server.put(node("a"))
        with fed(server, fields_read([Read("Reservation", fields=frozenset())])) as live:
            live.until(lambda: live.feed.synced)
            barrier = live.feed.barrier(3600.0)
            live.until(lambda: barrier.complete)
            live.until(lambda: len(server.requested("Reservation", watch=False)) > 0 and not live.feed.view.waiting)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_more_fields_of_a_kind_that_the_server_does_not_have_are_there_at_once():
    wider = fields_read([Read("NodeMetric", fields=field_paths("spec.more"))])
    with ObjectServer(absent=["NodeMetric"]) as server:
        server.put(node("a"))
        with fed(server, METRICS) as live:
            live.until(lambda: live.feed.synced)
            live.feed.require(wider)
            live.until(lambda: live.feed.has(wider))


def test_an_object_that_was_read_by_itself_is_not_replaced_by_an_older_version_nor_replaces_a_later_one():
    feed, cluster = Feed(IoThread(), Transport(Connection("http://127.0.0.1:1")), READS), Cluster([node("a")])
    key = "Pod", "default/one"

    def version(number: int, uid: str = "u") -> ChangedObject:
        return ChangedObject(key, uid, pod("one", uid=uid, resourceVersion=str(number)))

    def apply(*entries: Any) -> list[Any]:
        found = []
        for entry in entries:
            list(feed._steps(cluster, entry))
            known = cluster.object(*key)
            found.append(known and (known["metadata"]["uid"], known["metadata"]["resourceVersion"]))
        return found

    older = ChangedObjects(0.0, [version(3)]), ChangedObjects(0.0, [version(2, "before")])
    assert apply(ReadObject(version(5)), *older) == [("u", "5")] * 3
    assert apply(ChangedObjects(0.0, [version(7)]), ReadObject(version(6)), ChangedObjects(0.0, [version(8)])) == [
        ("u", "7"), ("u", "7"), ("u", "8")]
    assert apply(ReadObject(version(9)), KnownVersions("Pod", {("default", "one"): ("u", "9")})) == [("u", "9")] * 2
    assert feed._healed == {}


def test_a_barrier_that_is_not_reached_is_passed_after_its_time(caplog: pytest.LogCaptureFixture):
    with ObjectServer() as server:
        server.put(node("a"))
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            server.bookmarks = False
            server.put(node("b"))
            barrier = live.feed.barrier(0.2)
            live.until(lambda: barrier.passed)
            assert not barrier.complete
            live.until(lambda: caplog.records)
    assert [record.getMessage() for record in caplog.records] == [
        "the newest pods were not seen in time: going on with those that were"]


def test_the_age_is_that_of_the_kind_of_which_nothing_was_heard_for_longest():
    now = [1000.0]
    with ObjectServer(absent=["NodeMetric"]) as server:
        server.put(node("a"))
        with fed(server, METRICS, now=lambda: now[0]) as live:
            live.until(lambda: live.feed.synced)
            now[0] += 7
            assert live.feed.oldest_view_age() == 7
            server.put(node("b"))
            live.until(lambda: live.feed.views["Node"].listed == 1007)
            assert live.feed.oldest_view_age() == 7
            assert {kind: view.listed for kind, view in live.feed.views.items()} == {
                "Node": 1007, "Pod": 1000, "NodeMetric": 0}
            server.put(pod("one"))
            live.until(lambda: live.feed.oldest_view_age() == 0)


def test_a_change_that_waits_in_the_inbox_is_the_lag():
    clock = [50.0]

    def ticking() -> float:
        clock[0] += 1e-6
        return clock[0]

    with ObjectServer() as server:
        server.put(node("a"))
        with fed(server, clock=ticking) as live:
            live.until(lambda: live.feed.synced)
            assert (live.feed.lag_s, sum(live.feed.lags)) == (0.0, 0)
            live.woken.clear()
            server.put(pod("one"))
            assert live.woken.wait(60)
            clock[0] += 3
            assert live.feed.lag_s == pytest.approx(3, abs=0.01)
            live.until_equal_to(server, "Pod")
            assert live.feed.lag_s == 0
            assert live.feed.lags[-3:] == [1, 0, 0]
            assert live.feed.lag_sum_s == pytest.approx(3, abs=0.01)


def test_the_clock_is_that_of_the_servers_date():
    with ObjectServer() as server:
        server.date = formatdate(time.time() - 7200, usegmt=True)
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            assert time.time_ns() - live.feed.now() == pytest.approx(7200e9, abs=600e9)


def test_a_list_of_nodes_that_has_arrived_is_applied_in_slices():
    with ObjectServer() as server:
        for number in range(2000):
            server.put(node(f"n{number}"))
        with fed(server) as live:
            deadline = time.monotonic() + 60
            while (followed := live.feed._followed.get("Node")) is None or not followed.informer.view.synced:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            while not live.cluster.names:
                assert live.feed.apply(live.cluster, 0.0001)
            assert len(live.cluster.names) < 2000
            live.until(lambda: live.feed.synced)
            assert len(live.cluster.names) == 2000


NODES, PODS = ("a", "b", "c"), ("p", "q", "r", "s")
STEPS = st.lists(st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(["4", "8"])),
    st.tuples(st.just("pod"), st.sampled_from(PODS), st.sampled_from(["", *NODES])),
    st.tuples(st.just("metric"), st.sampled_from(NODES), st.sampled_from(["1", "2"])),
    st.tuples(st.just("delete"), st.sampled_from([("Node", name) for name in NODES] + [
        ("Pod", f"default/{name}") for name in PODS] + [("NodeMetric", name) for name in NODES])),
    st.tuples(st.just("recreate"), st.sampled_from(PODS), st.sampled_from(["", *NODES])),
    st.tuples(st.just("assume"), st.integers(0, 3), st.sampled_from(NODES)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("break"), st.booleans()), st.tuples(st.just("relist")), st.tuples(st.just("compare")),
    st.tuples(st.just("apply"), st.integers(0, 5)),
), max_size=25)


class Course:
    """Steps of the server, the scheduler and the network, in any order."""

    def __init__(self, server: ObjectServer, live: Fed) -> None:
        self.server, self.live = server, live
        self.assumed: dict[str, tuple[str, str]] = {}
        """UID and node of assumed pods, by key."""

    def node(self, name: str, cpu: str) -> None:
        self.server.put(node(name, cpu))

    def metric(self, name: str, cpu: str) -> None:
        self.server.put(metric(name, cpu))

    def pod(self, name: str, on: str) -> None:
        known = self.server.objects("Pod").get(f"default/{name}")
        # The node of a pod never changes; the API server refuses another one.
        bound = "" if known is None else known["spec"].get("nodeName", "")
        self.server.put(pod(name, bound or on, uid=known["metadata"]["uid"] if known else None))

    def delete(self, which: tuple[str, str]) -> None:
        if which[1] in self.server.objects(which[0]):
            self.server.delete(*which)

    def recreate(self, name: str, on: str) -> None:
        self.delete(("Pod", f"default/{name}"))
        self.pod(name, on)

    def assume(self, number: int, on: str) -> None:
        pending = self.live.cluster.pending
        if pending and on in self.live.cluster.index:
            chosen = pending[number % len(pending)]
            self.live.cluster.assume(chosen, on)
            self.assumed[chosen.key] = chosen.uid, on

    def forget(self, number: int) -> None:
        if self.assumed:
            key = list(self.assumed)[number % len(self.assumed)]
            self.end(key)

    def end(self, key: str) -> None:
        """Bind an assumed pod on the server, or forget it if that is refused."""
        uid, on = self.assumed.pop(key)
        known = self.server.objects("Pod").get(key)
        if known is not None and known["metadata"]["uid"] == uid and not known["spec"].get("nodeName"):
            self.server.put(pod(key.partition("/")[2], on, uid=uid))
            return
        current = self.live.cluster.pod(key)
        shown = self.live.cluster.object("Pod", key)
        if current is not None and current.uid == uid and shown is not None and not shown["spec"].get("nodeName"):
            self.live.cluster.forget(key)

    def break_(self, compact: bool) -> None:
        self.server.break_watches(compact=compact)

    def relist(self) -> None:
        for followed in tuple(self.live.feed._followed.values()):
            self.live.feed._io.call_soon(followed.informer.relist)

    def compare(self) -> None:
        self.live.feed.compare()

    def apply(self, slices: int) -> None:
        for _ in range(slices):
            self.live.feed.apply(self.live.cluster, 0.0005)
            time.sleep(0.001)


def state_of(cluster: Cluster) -> Any:
    rows = {row.name: (row.allocatable["cpu"], row.requested["cpu"], sorted(row.pods),
                       None if row.metric is None else row.metric.usage["cpu"]) for row in cluster.rows}
    return rows, sorted(each.key for each in cluster.pending)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.booleans())
def test_after_any_course_the_cluster_is_a_fresh_one_of_the_servers_objects(steps: list[Any], streaming: bool):
    with pytest.MonkeyPatch.context() as patch, ObjectServer(streaming=streaming, page=2) as server:
        patch.setattr(pacing, "_FIRST_S", 0.01)  # four failures in a row would pause for up to 12 s otherwise
        patch.setattr(pacing, "_LONGEST_S", 0.05)
        server.put(node("a"))
        server.put(pod("p"))
        with fed(server, METRICS, streaming=streaming) as live:
            live.until(lambda: live.feed.synced)
            course = Course(server, live)
            for name, *arguments in steps:
                getattr(course, "break_" if name == "break" else name)(*arguments)
            for key in tuple(course.assumed):
                course.end(key)
            live.until_equal_to(server, "Node", "Pod", "NodeMetric")
            fresh = Cluster(item for kind in ("Node", "Pod", "NodeMetric") for item in server.objects(kind).values())
            live.until(lambda: state_of(live.cluster) == state_of(fresh))
            assert live.feed.view.mismatches == {}


GANGS: FieldSets = fields_read([Read("PodGroup", fields=frozenset())])


def member(name: str, phase: str, **more: Any) -> dict[str, Any]:
    return pod(name, "a", labels={"pod-group.scheduling.sigs.k8s.io": "g"}, **more) | {"status": {"phase": phase}}


def phases(live: Fed) -> dict[str, str]:
    return {name: item["status"]["phase"] for name, item in live.cluster.objects("Pod").items()}


@pytest.mark.parametrize("streaming", [True, False])
def test_finished_members_of_pod_groups_are_followed_until_they_are_deleted(streaming: bool):
    with ObjectServer(streaming=streaming) as server:
        for item in (node("a"), member("early", "Failed"), member("one", "Running"), member("two", "Running"),
                     pod("other", "a") | {"status": {"phase": "Succeeded"}}):
            server.put(item)
        with fed(server, GANGS, streaming=streaming) as live:
            live.until(lambda: live.feed.synced)
            assert phases(live) == {"default/early": "Failed", "default/one": "Running", "default/two": "Running"}
            assert (sorted(live.cluster.rows[0].pods), live.cluster.kinds) == (
                ["default/one", "default/two"], {"Node", "Pod", "PodGroup"})
            server.put(member("one", "Succeeded"))
            live.until(lambda: phases(live).get("default/one") == "Succeeded")
            assert [row.requested["cpu"] for row in live.cluster.rows] == [1000]
            live.feed.compare()
            live.until(lambda: live.feed.view.comparisons == 4)
            assert live.feed.view.mismatches == {}
            server.delete("Pod", "default/one")
            server.delete("Pod", "default/early")
            live.until(lambda: phases(live) == {"default/two": "Running"})
            server.put(member("one", "Running", uid="another"))
            live.until(lambda: "default/one" in phases(live))
            assert sorted(live.cluster.rows[0].pods) == ["default/one", "default/two"]


def test_finished_members_are_followed_only_while_pod_groups_are():
    with ObjectServer() as server:
        for item in (node("a"), member("one", "Running"), member("two", "Succeeded")):
            server.put(item)
        with fed(server) as live:
            live.until(lambda: live.feed.synced)
            assert phases(live) == {"default/one": "Running"}
            live.feed.require(GANGS)
            live.until(lambda: live.feed.has(GANGS))
            assert phases(live) == {"default/one": "Running", "default/two": "Succeeded"}
            for _ in range(2):
                live.feed.require(READS)
            live.until(lambda: phases(live) == {"default/one": "Running"})


@pytest.mark.parametrize("late", [
    ChangedObject(("Pod", "default/one"), "u", member("one", "Running", uid="u", resourceVersion="2")),
    ChangedObject(("Pod", "default/one"), "u", None),
])
def test_a_finished_member_stays_when_the_watch_of_the_other_pods_lags_behind(late: ChangedObject):
    feed, cluster = Feed(IoThread(), Transport(Connection("http://127.0.0.1:1")), GANGS), Cluster([node("a")])
    ended = member("one", "Succeeded", uid="u", resourceVersion="3")
    list(feed._steps(cluster, ChangedObjects(0.0, [ChangedObject(("Pod", "default/one"), "u", ended, finished=True)])))
    list(feed._steps(cluster, ChangedObjects(0.0, [late])))
    assert cluster.object("Pod", "default/one") == ended
    list(feed._steps(cluster, ChangedObjects(0.0, [ChangedObject(("Pod", "default/one"), "u", None, finished=True)])))
    assert cluster.object("Pod", "default/one") is None
