"""The extender watches a real cluster, and kube-scheduler binds pods with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .control_plane import ControlPlane
from .scheduler_process import GRACE_S, until
from .test_control_plane import node

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: by-pool}
spec:
  filter:
  - name: pool
    expression: node.metadata.labels[?'pool'].orValue('') == 'taken'
    message: "'not in the pool'"
"""


@contextmanager
def extender(plane: ControlPlane, policies: Path, *options: str) -> Iterator[str]:
    """A running extender; yields its URL."""
    command = [sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", "127.0.0.1:0",
               "--cluster", "kube", "--policies", str(policies), *options]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert process.stdout.readline().startswith("ready: ")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(GRACE_S)
    assert ended == 0


def call(url: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code} {error.read()!r}") from None


def passing(url: str, names: Sequence[str]) -> list[str]:
    pod = {"metadata": {"name": "asking", "namespace": "default", "uid": "u"},
           "spec": {"containers": [{"name": "main"}]}}
    answer = call(url, "/filter", {"Pod": pod, "NodeNames": list(names)})
    found: list[str] = answer["NodeNames"]
    return found


def test_nodes_and_labels_are_known_as_soon_as_they_change(own_control_plane: ControlPlane, tmp_path: Path):
    plane, policies = own_control_plane, tmp_path / "policies"
    policies.mkdir()
    (policies / "policy.yaml").write_text(POLICY)
    plane.admin.create("/api/v1/nodes", node("one"))
    with extender(plane, policies) as url:
        assert passing(url, ["one"]) == []
        plane.admin.merge("/api/v1/nodes/one", {"metadata": {"labels": {"pool": "taken"}}})
        until(lambda: passing(url, ["one"]) == ["one"])
        two = node("two")
        two["metadata"] = {"name": "two", "labels": {"pool": "taken"}}
        plane.admin.create("/api/v1/nodes", two)
        until(lambda: passing(url, ["one", "two"]) == ["one", "two"])
        apiserver = plane.components["kube-apiserver"]
        apiserver.stop(kill=True)
        until(lambda: call(url, "/status")["cluster"]["stale"])
        assert passing(url, ["one", "two"]) == ["one", "two"]
        apiserver.start()
        plane.wait_until_ready()
        plane.admin.merge("/api/v1/nodes/two", {"metadata": {"labels": {"pool": "free"}}})
        until(lambda: passing(url, ["one", "two"]) == ["one"])
        until(lambda: not call(url, "/status")["cluster"]["stale"])


def test_a_policy_that_reads_another_kind_is_active_once_its_objects_are_there(
    own_control_plane: ControlPlane, tmp_path: Path,
):
    plane, policies = own_control_plane, tmp_path / "policies"
    policies.mkdir()
    (policies / "policy.yaml").write_text(POLICY)
    plane.admin.create("/api/v1/nodes", node("one"))
    plane.admin.merge("/api/v1/nodes/one", {"metadata": {"labels": {"pool": "taken"}}})
    plane.admin.merge("/api/v1/namespaces/default", {"metadata": {"labels": {"team": "shop"}}})
    with extender(plane, policies) as url:
        until(lambda: passing(url, ["one"]) == ["one"])
        assert "Namespace" not in call(url, "/status")["cluster"]["kinds"]
        selecting = POLICY.replace("spec:", "spec:\n  match: {pods: {namespaceSelector: {matchLabels: {team: shop}}}}")
        (policies / "new").write_text(selecting.replace("'taken'", "'other'"))
        (policies / "new").replace(policies / "policy.yaml")
        until(lambda: passing(url, ["one"]) == [])
        assert call(url, "/status")["cluster"]["kinds"]["Namespace"]["fault"] is None


def test_kube_scheduler_binds_pods_with_it_through_a_restart(own_control_plane: ControlPlane, tmp_path: Path):
    plane, policies = own_control_plane, tmp_path / "policies"
    policies.mkdir()
    (policies / "policy.yaml").write_text(POLICY)
    for number in range(10):
        plane.admin.create("/api/v1/nodes", node(f"node-{number}"))
        plane.admin.merge(f"/api/v1/nodes/node-{number}", {
            "spec": {"taints": None}, "metadata": {"labels": {"pool": "taken" if number % 2 else "free"}}})
    with extender(plane, policies) as url:
        port = url.rpartition(":")[2]
        kubeconfig = plane.kubeconfig("system:kube-scheduler")
        configuration = tmp_path / "configuration.json"
        configuration.write_text(json.dumps({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": False}, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1,
            "extenders": [{"urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1,
                           "nodeCacheCapable": True}]}))
        plane.start_kube_scheduler(f"--config={configuration}")
        _create(plane, range(100))
    # It is away in the middle: pods wait, and kube-scheduler tries them again.
    _create(plane, range(100, 200))
    with extender(plane, policies, "--bind", f"127.0.0.1:{port}"):
        until(lambda: len(_bound(plane)) == 200)
    assert set(_bound(plane).values()) == {f"node-{number}" for number in (1, 3, 5, 7, 9)}


def _create(plane: ControlPlane, numbers: range) -> None:
    for number in numbers:
        plane.admin.create("/api/v1/namespaces/default/pods", {
            "metadata": {"name": f"pod-{number}"}, "spec": {"containers": [{"name": "main", "image": "example/main"}]}})


def _bound(plane: ControlPlane) -> dict[str, str]:
    pods = plane.admin.get("/api/v1/namespaces/default/pods")["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
