from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from koordpolicy.engine.cluster.sources.api import load
from koordpolicy.engine.source import PolicyError


class FakeCluster:
    """An API server with lists, pages, refusals and an expiring list; notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, list[dict]] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.raw: dict[str, bytes] = {}
        self.expire_once = False
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cluster.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.kubeconfig = folder / "kubeconfig"
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.kubeconfig.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
            "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        }))

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        self.asked.append(url.path)
        self.tokens.append(request.headers["Authorization"])
        query = parse_qs(url.query)
        start = int(query.get("continue", ["0"])[0])
        if url.path in self.refused:
            status, message = self.refused[url.path]
            return self.send(request, status, {"kind": "Status", "message": message})
        if url.path in self.raw:
            return self.send(request, 200, self.raw[url.path])
        if url.path not in self.objects:
            return self.send(request, 404, b"404 page not found")
        if start and self.expire_once:
            self.expire_once = False
            return self.send(request, 410, {"kind": "Status", "message": "expired"})
        items, limit = self.objects[url.path], int(query["limit"][0])
        more = {"continue": str(start + limit)} if start + limit < len(items) else {}
        return self.send(request, 200, {"kind": "XList", "metadata": more, "items": items[start : start + limit]})

    def send(self, request: BaseHTTPRequestHandler, status: int, body: dict | bytes) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)


def named(name: str) -> dict:
    return {"metadata": {"name": name}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(tmp_path)
    cluster.objects["/api/v1/nodes"] = [named("n1")]
    cluster.objects["/api/v1/pods"] = []
    yield cluster
    cluster.close()


def test_objects_are_listed_as_the_server_sends_them_with_their_kind(cluster: FakeCluster) -> None:
    node = {
        "metadata": {"name": "n", "managedFields": [{"manager": "kubelet"}]}, "status": {"allocatable": {"cpu": "4"}},
    }
    cluster.objects["/api/v1/nodes"] = [node]
    cluster.objects["/apis/slo.koordinator.sh/v1alpha1/nodemetrics"] = [named("n")]
    found = load(None, kinds=("Node", "NodeMetric"), configuration_file=cluster.kubeconfig, note=pytest.fail)
    assert found == (
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}},
        {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "n"}},
    )
    assert cluster.tokens == ["Bearer secret", "Bearer secret"]


def test_long_lists_come_in_pages(cluster: FakeCluster) -> None:
    cluster.objects["/api/v1/pods"] = [named(f"p{number}") for number in range(7)]
    found = load("here", kinds=("Pod",), configuration_file=cluster.kubeconfig, page=3)
    assert [each["metadata"]["name"] for each in found] == [f"p{number}" for number in range(7)]
    assert cluster.asked == ["/api/v1/pods"] * 3


def test_a_list_that_expires_between_pages_is_begun_again(cluster: FakeCluster) -> None:
    cluster.objects["/api/v1/pods"] = [named(f"p{number}") for number in range(5)]
    cluster.expire_once = True
    found = load(None, kinds=("Pod",), configuration_file=cluster.kubeconfig, page=2)
    assert [each["metadata"]["name"] for each in found] == [f"p{number}" for number in range(5)]


def test_kinds_that_are_absent_or_forbidden_are_left_out_with_a_note(cluster: FakeCluster) -> None:
    cluster.refused["/apis/slo.koordinator.sh/v1alpha1/nodemetrics"] = (403, "nodemetrics is forbidden: User `me`")
    notes: list[str] = []
    found = load(None, kinds=("Node", "NodeMetric", "Device"), configuration_file=cluster.kubeconfig, note=notes.append)
    assert [each["kind"] for each in found] == ["Node"]
    assert notes == [
        (
            "the cluster has no devices; nodemetrics may not be listed: nodemetrics is forbidden: User `me`; going on "
            "without"
        ),
    ]


def test_every_kind_that_the_engine_knows_is_asked_for(cluster: FakeCluster) -> None:
    load(None, configuration_file=cluster.kubeconfig, note=lambda text: None)
    assert cluster.asked == [
        "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/api/v1/services", "/api/v1/replicationcontrollers",
        "/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets", "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims", "/apis/storage.k8s.io/v1/storageclasses", "/apis/storage.k8s.io/v1/csinodes",
        "/apis/storage.k8s.io/v1/csidrivers", "/apis/storage.k8s.io/v1/csistoragecapacities",
        "/apis/policy/v1/poddisruptionbudgets", "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/slo.koordinator.sh/v1alpha1/nodemetrics", "/apis/slo.koordinator.sh/v1alpha1/nodeslos",
        "/apis/scheduling.koordinator.sh/v1alpha1/devices", "/apis/scheduling.koordinator.sh/v1alpha1/reservations",
        "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs",
        "/apis/scheduling.sigs.k8s.io/v1alpha1/podgroups", "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas",
        "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies",
        "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies",
    ]


def message_of(cluster: FakeCluster, context: str | None = None) -> str:
    with pytest.raises(PolicyError) as caught:
        load(context, kinds=("Node", "Pod"), configuration_file=cluster.kubeconfig, note=pytest.fail)
    return caught.value.problems[0].message


def test_nodes_that_may_not_be_listed_are_an_error(cluster: FakeCluster) -> None:
    cluster.refused["/api/v1/nodes"] = (403, "nodes is forbidden")
    assert message_of(cluster) == "nodes may not be listed: nodes is forbidden"


def test_a_server_that_is_no_api_server_is_told(cluster: FakeCluster) -> None:
    del cluster.objects["/api/v1/nodes"]
    assert message_of(cluster) == "the cluster has no nodes (v1)"
    cluster.raw["/api/v1/nodes"] = b"<html>"
    assert message_of(cluster) == f"the cluster at {cluster.url} answers with something else than a list of nodes"


def test_an_unknown_context_and_a_missing_or_wrong_file_are_told(cluster: FakeCluster, tmp_path: Path) -> None:
    assert message_of(cluster, "other").startswith("no way into the cluster `other`: ")
    cluster.kubeconfig.write_text("clusters: [")
    assert message_of(cluster).startswith("no way into the cluster: ")
    cluster.kubeconfig.unlink()
    assert message_of(cluster).startswith("no way into the cluster: ")


def test_a_server_that_is_not_there_is_told(cluster: FakeCluster) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    cluster.kubeconfig.write_text(yaml.safe_dump(config))
    assert message_of(cluster).startswith("the cluster at http://127.0.0.1:1 cannot be reached: ")
