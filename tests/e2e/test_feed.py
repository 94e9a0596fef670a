"""The feed brings a cluster to the state of a real API server, through a list of 5,000 pods and a change of leaders."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import FieldSets, Read, field_paths, fields_read
from koordpolicy.engine.cluster.sources.feed import Feed

from .control_plane import AdminClient, ApiError, ControlPlane, NamedCluster
from .nodes import add_node, add_pod
from .roles import scheduler_kubeconfig
from .scheduler_process import until

READS: FieldSets = fields_read(read for plugin in PLUGINS if plugin.enabled for read in plugin.reads)
MANY = 5_000


class Fed:
    """A cluster that follows the API server, in the test's thread."""

    def __init__(self, io: IoThread, kubeconfig: Path, *, streaming: bool) -> None:
        self.woken = threading.Event()
        transport = Transport(load_connection(configuration_file=kubeconfig), rate=0)
        io.on_close(transport.close)
        self.feed = Feed(io, transport, READS, wake=self.woken.set, streaming=streaming)
        self.cluster = Cluster()
        self.feed.start()

    def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it does not come about"
            self.woken.clear()
            if not self.feed.apply(self.cluster, 0.005):
                self.woken.wait(0.05)

    def await_list(self, kind: str) -> None:
        """Wait until the kind's first list has arrived, and apply nothing meanwhile."""
        until(lambda: (read := self.feed._followed.get(kind)) is not None and read.informer.view.lists == 1)

    def pods_of(self, namespace: str) -> list[str]:
        return [key for key in self.cluster.objects("Pod") if key.startswith(f"{namespace}/")]


@contextmanager
def fed(
    cluster: ControlPlane | NamedCluster, *, streaming: bool = True, kubeconfig: Path | None = None,
) -> Iterator[Fed]:
    with unsynced(cluster, streaming=streaming, kubeconfig=kubeconfig) as made:
        made.until(lambda: made.feed.synced)
        yield made


@contextmanager
def unsynced(
    cluster: ControlPlane | NamedCluster, *, streaming: bool, kubeconfig: Path | None = None,
) -> Iterator[Fed]:
    with IoThread() as io:
        yield Fed(io, kubeconfig or cluster.kubeconfig(), streaming=streaming)


@pytest.fixture
def node(admin: AdminClient) -> Iterator[str]:
    name = f"e2e-{secrets.token_hex(4)}"
    add_node(admin, name, cpu="1000", pods=10_000)
    yield name
    with contextlib.suppress(ApiError):
        admin.delete(f"/api/v1/nodes/{name}")


def create(admin: AdminClient, namespace: str, node: str, name: str, **more: object) -> None:
    add_pod(admin, namespace, name, nodeName=node, **more)  # type: ignore[arg-type]


def test_l12_a_pod_that_ends_leaves_the_cluster_and_its_room_is_free(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, node: str,
):
    with fed(cluster) as live:
        create(admin, namespace, node, "ends", cpu="2")
        key = f"{namespace}/ends"
        live.until(lambda: live.cluster.pod(key))
        row = live.cluster.rows[live.cluster.index[node]]
        assert row.requested["cpu"] == 2000
        admin.merge(f"/api/v1/namespaces/{namespace}/pods/ends/status", {"status": {"phase": "Succeeded"}})
        live.until(lambda: not live.cluster.pod(key))
        assert row.requested["cpu"] == 0
        assert admin.get(f"/api/v1/namespaces/{namespace}/pods/ends")["status"]["phase"] == "Succeeded"


def test_l42_a_ghost_and_missing_objects_are_found_and_healed_with_the_shipped_role(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, node: str, tmp_path: Path,
):
    create(admin, namespace, node, "there")
    with fed(cluster, kubeconfig=scheduler_kubeconfig(cluster, tmp_path)) as live:
        live.feed.compare()
        live.until(lambda: live.feed.view.comparisons == len(READS))
        assert live.feed.view.mismatches == {}
        there = live.cluster.object("Pod", f"{namespace}/there")
        assert there is not None
        live.cluster.upsert({**there, "metadata": {**there["metadata"], "name": "ghost", "uid": "ghost"}})
        live.cluster.delete("Pod", f"{namespace}/there")
        live.cluster.delete("Node", node)
        live.feed.compare()
        live.until(lambda: live.pods_of(namespace) == [f"{namespace}/there"] and node in live.cluster.names)
        assert live.feed.view.mismatches == {
            ("Node", "missing"): 1, ("Pod", "missing"): 1, ("Pod", "redundant"): 1}
        assert live.cluster.rows[live.cluster.index[node]].requested["cpu"] == 100


def test_l44_after_a_barrier_all_that_was_accepted_before_is_applied_without_a_list(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, node: str,
):
    with fed(cluster) as live:
        for number in range(5):
            create(admin, namespace, node, f"pod-{number}")
            barrier = live.feed.barrier()
            live.until(lambda b=barrier: b.passed)  # type: ignore[misc]
            assert barrier.complete
            assert len(live.pods_of(namespace)) == number + 1
        assert live.feed._followed["Pod"].informer.view.lists == 1


def test_a_wider_projection_comes_while_the_cluster_goes_on(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, node: str,
):
    create(admin, namespace, node, "one")
    wider = fields_read([*(Read(kind, fields=read) for kind, read in READS.items()),
                         Read("Pod", fields=field_paths("spec.containers.terminationMessagePath"))])
    with fed(cluster) as live:
        key = f"{namespace}/one"
        before = live.cluster.object("Pod", key)
        assert before is not None
        assert "terminationMessagePath" not in before["spec"]["containers"][0]
        live.feed.require(wider)
        live.until(lambda: live.feed.has(wider))
        after = live.cluster.object("Pod", key)
        assert after is not None
        assert after["spec"]["containers"][0]["terminationMessagePath"] == "/dev/termination-log"
        assert live.cluster.rows[live.cluster.index[node]].requested["cpu"] == 100


@pytest.mark.parametrize("streaming", [True, False])
def test_a_list_of_5000_pods_is_applied_in_slices_and_so_is_a_relist(
    cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, node: str, streaming: bool,
):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(create, admin, namespace, node), [f"pod-{number}" for number in range(MANY)]))
    with unsynced(cluster, streaming=streaming) as live:
        live.await_list("Node")
        live.await_list("Pod")
        while not live.pods_of(namespace):
            assert live.feed.apply(live.cluster, 0.0001)
        assert len(live.pods_of(namespace)) < MANY
        live.until(lambda: live.feed.synced)
        assert len(live.pods_of(namespace)) == MANY
        row = live.cluster.rows[live.cluster.index[node]]
        assert row.requested["cpu"] == 100 * MANY
        admin.delete(f"/api/v1/namespaces/{namespace}/pods/pod-7?gracePeriodSeconds=0")
        live.feed._io.call_soon(live.feed._followed["Pod"].informer.relist)
        live.until(lambda: live.feed._followed["Pod"].informer.view.lists == 2 and len(live.pods_of(namespace)) < MANY)
        assert row.requested["cpu"] == 100 * (MANY - 1)
        live.feed.compare()
        live.until(lambda: live.feed.view.comparisons == len(READS))
        assert live.feed.view.mismatches == {}
