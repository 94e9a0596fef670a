"""The extender's watch of a live cluster: its start, its end, and policies that read more than before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import NOT_LISTED, Read, fields_read
from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
from koordpolicy.engine.source import PolicyError

from ...client.fake_api_server import refusal
from ...client.object_server import ObjectServer


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "1"}}}


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def applied_until(watched: WatchedCluster, condition: Callable[[], bool]) -> None:
    """Apply changes, as the deciding thread does, until the condition is true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        watched.apply(0.01)
        time.sleep(0.001)


def test_the_cluster_has_all_objects_when_it_has_started_and_then_each_change():
    with ObjectServer() as server:
        server.put(node("one"))
        watched = WatchedCluster(server.connection, Cluster(), [])
        watched.start()
        assert watched.cluster.names == ["one"]
        woken = threading.Event()
        watched.listen(woken.set)
        server.put(node("two"))
        while watched.cluster.names != ["one", "two"]:
            assert woken.wait(60)
            woken.clear()
            while watched.apply(0.01):
                pass
        assert {kind: (view.fault, view.stale) for kind, view in watched.views.items()} == {
            "Node": ("", False), "Pod": ("", False)}
        assert watched.heard_ago("Pod") < 60
        assert watched.heard_ago("Namespace") == float("inf")
        watched.close()


def test_a_comparison_heals_what_differs(caplog: pytest.LogCaptureFixture):
    with ObjectServer() as server:
        server.put(node("one"))
        server.put(node("two"))
        watched = WatchedCluster(server.connection, Cluster(), [])
        watched.start()
        watched.cluster.delete("Node", "one")
        watched.compare()
        applied_until(watched, lambda: watched.cluster.names == ["one", "two"])
        watched.close()
        assert watched.mismatches == {("Node", "missing"): 1}
    assert caplog.messages == ["Cache mismatch: missing Nodes one"]


def test_a_start_without_an_api_server_says_why():
    watched = WatchedCluster(Connection("http://127.0.0.1:1"), Cluster(), [])
    with pytest.raises(PolicyError) as refused:
        watched.start()
    assert [problem.message.split(":")[0] for problem in refused.value.problems] == [
        "the cluster's nodes cannot be listed", "the cluster's pods cannot be listed"]
    assert not watched.io.running


class SlowPods(ObjectServer):
    """A server that refuses all lists, those of pods only when nodes have been tried again."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api/v1/pods":
            while [path for _, path, _ in self.requests].count("/api/v1/nodes") < 2:
                await asyncio.sleep(0.01)
        self.requests.append((request.method, request.path, dict(request.query)))
        return web.json_response(refusal(403, "Forbidden"), status=403)


def test_a_start_that_is_refused_names_all_kinds_that_cannot_be_listed():
    with SlowPods() as server, pytest.raises(PolicyError) as refused:
        WatchedCluster(server.connection, Cluster(), []).start()
    assert [problem.message.split(":")[0] for problem in refused.value.problems] == [
        "the cluster's nodes cannot be listed", "the cluster's pods cannot be listed"]


def test_a_kind_that_the_server_does_not_have_is_left_out():
    with ObjectServer(absent=["NodeMetric"]) as server:
        server.put(node("one"))
        watched = WatchedCluster(server.connection, Cluster(), [Read("NodeMetric")])
        watched.start()
        assert (watched.cluster.names, watched.cluster.lacks("NodeMetric")) == (["one"], True)
        watched.close()


def test_what_new_policies_read_is_applied_before_they_become_active():
    with ObjectServer() as server:
        server.put(namespace("shop"))
        watched = WatchedCluster(server.connection, Cluster(), [])
        watched.start()
        assert dict(watched.cluster.objects("Namespace")) == {}
        seen: list[object] = []

        def reload() -> None:
            watched.cover([Read("Namespace")])
            seen.append(list(watched.cluster.objects("Namespace")))

        reloading = threading.Thread(target=reload)
        reloading.start()
        applied_until(watched, lambda: bool(seen))
        reloading.join()
        assert seen == [["shop"]]
        watched.close()


def test_a_reload_is_refused_while_objects_do_not_come_and_goes_on_when_they_do():
    with ObjectServer() as server:
        server.put(namespace("shop"))
        watched = WatchedCluster(server.connection, Cluster(), [])
        watched.start()
        for timeout in (0.05, 3600.0):  # it does not wait again for what has not come
            with pytest.raises(PolicyError) as refused:
                watched.cover([Read("Namespace")], timeout)  # nobody applies anything meanwhile
            assert [(each.message, each.code) for each in refused.value.problems] == [
                (f"the new policies read namespaces, which were not listed within {timeout:g} s", NOT_LISTED)]
        applied_until(watched, lambda: bool(watched.cluster.objects("Namespace")))
        applied_until(watched, lambda: watched._feed.has(fields_read([Read("Namespace")])))
        watched.cover([Read("Namespace")], 0.05)
        watched.close()


def test_what_the_active_policies_lack_is_no_reason_to_refuse_others():
    with ObjectServer() as server:
        watched = WatchedCluster(server.connection, Cluster(), [])
        watched.start()
        watched.cover([Read("Namespace")], 0.0, active=[Read("Namespace")])
        watched.close()
