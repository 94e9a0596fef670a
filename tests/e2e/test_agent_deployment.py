"""The node agent as the shipped DaemonSet runs it: its role, no capability, TLS, and readers that are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from aiohttp import web

from tests.engine.agent.states_informer.fake_kubelet import FakeKubelet, pod_list

from .control_plane import ControlPlane
from .custom_resources import NODE_METRIC, NODE_SLO, NODE_TOPOLOGY, define
from .nodes import add_node
from .roles import account_kubeconfig, create_roles, shipped_options
from .scheduler_process import until
from .test_agent import IDLE, POLICY, AgentProcess, Machine, machine
from .test_operations import Endpoint, token

__all__ = ["machine"]

RELIEVE = """\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: relieve}
spec:
  interval: 1s
  window: 5s
  forEach: node
  thresholds: [{name: pressed, expression: usage.memory > 0}]
  actions:
  - name: relieve
    when: thresholds.pressed
    evict:
      criteria:
      - {name: batch, expression: "pod.metadata.?labels[?'koordinator.sh/qosClass'].orValue('') == 'BE'"}
      release: {resource: memory, amount: "1"}
      coolDown: 60s
"""
NAME = "node-a"


@pytest.fixture
def running(own_control_plane: ControlPlane, machine: Machine, tmp_path: Path):
    """The agent with exactly the shipped role, options and capabilities, and its endpoints' URL."""
    admin = own_control_plane.admin
    issued = (authority := trustme.CA()).issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    create_roles(admin, "agent")
    for kind in (NODE_SLO, NODE_METRIC, NODE_TOPOLOGY):
        define(admin, kind)
    add_node(admin, NAME, cpu="8", memory="16Gi")
    for kind, spec in ((NODE_SLO, {}), (NODE_METRIC, {"metricCollectPolicy": {"reportIntervalSeconds": 1}})):
        admin.create(kind.path(), {
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": NAME}, "spec": spec})
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "policies.yaml").write_text(POLICY % NAME + RELIEVE)
    with FakeKubelet() as kubelet:
        kubelet.answer = lambda: pods_of(own_control_plane)
        options = shipped_options("agent", {
            "/etc/koord-policy/policies": str(tmp_path / "policies"), "/etc/koord-policy/tls": str(tmp_path),
            "/var/run/koord-policy": str(tmp_path / "state"), "/var/log/koord-policy": str(tmp_path / "audit"),
            "/host/": "/", "0.0.0.0:9316": "127.0.0.1:0"})
        process = AgentProcess(
            account_kubeconfig(own_control_plane, "koord-policy-agent", tmp_path), machine, NAME, tmp_path / "agent",
            *options, "--pods-from", "kubelet", "--kubelet-address", "127.0.0.1",
            "--kubelet-read-only-port", str(kubelet.port), wrapper=WITHOUT_CAPABILITIES)
        with process:
            url = process.out.read_text().splitlines()[0].removeprefix("listening on ")
            yield process, url


WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def pods_of(plane: ControlPlane) -> web.Response:
    items = plane.admin.get("/api/v1/pods")["items"]
    return pod_list(*(each for each in items if each["spec"].get("nodeName") == NAME))


def add_batch_pod(plane: ControlPlane, machine: Machine) -> str:
    path = "/api/v1/namespaces/default/pods"
    made = plane.admin.create(path, {
        "metadata": {"name": "batch", "labels": {"koordinator.sh/qosClass": "BE"}},
        "spec": {"nodeName": NAME, "containers": [
            {"name": "main", "image": "example/main", "resources": {"requests": {"cpu": "1"}}}]}})
    uid = str(made["metadata"]["uid"])
    machine.add_pod(uid, "c0ffee")
    plane.admin.merge(f"{path}/batch/status", {"status": {
        "phase": "Running", "qosClass": "Burstable", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "image": "example/main", "imageID": "", "ready": True, "restartCount": 0,
                               "containerID": "containerd://c0ffee", "state": {"running": {}}}]}})
    return uid


def test_l64_with_the_shipped_role_and_without_capabilities_the_agent_is_refused_nothing(
    own_control_plane: ControlPlane, machine: Machine, running, tmp_path: Path,
):
    process, url = running
    admin = own_control_plane.admin
    assert url.startswith("https://")
    capabilities = Path(f"/proc/{process.process.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in capabilities
    until(lambda: machine.quota == IDLE)
    add_batch_pod(own_control_plane, machine)
    until(lambda: [event["reason"] for event in admin.get(
        "/apis/events.k8s.io/v1/namespaces/default/events")["items"]])
    assert "deletionTimestamp" in admin.get("/api/v1/namespaces/default/pods/batch")["metadata"]
    until(lambda: admin.get(NODE_METRIC.path(name=NAME)).get("status"))
    until(lambda: admin.get(NODE_TOPOLOGY.path())["items"])
    reader = Endpoint(url, tmp_path / "ca.crt",
                      own_control_plane.client("admin")._headers["Authorization"].removeprefix("Bearer "))
    samples = reader.samples()
    requests = {labels: value for (sample, labels), value in samples.items() if sample == "rest_client_requests_total"}
    assert requests
    assert {labels for labels in requests if ("code", "403") in labels} == set()
    assert "forbidden" not in process.log.read_text().lower()
    assert process.stop() == 0
    assert machine.quota == "-1"


def test_metrics_and_audit_log_are_for_permitted_readers_and_probes_for_all(
    own_control_plane: ControlPlane, running, tmp_path: Path,
):
    _, url = running
    authority = tmp_path / "ca.crt"
    nobody = Endpoint(url, authority)
    assert [nobody(path)[0] for path in ("/healthz", "/livez", "/readyz", "/metrics", "/events")] == [
        200, 200, 200, 403, 403]
    assert Endpoint(url, authority, "wrong")("/metrics")[0] == 401
    stranger = token(own_control_plane, "default", "stranger")
    assert Endpoint(url, authority, stranger)("/metrics")[0] == 403
    name = {"metadata": {"name": "readers"}}
    base = "/apis/rbac.authorization.k8s.io/v1"
    own_control_plane.admin.create(f"{base}/clusterroles", name | {
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]})
    own_control_plane.admin.create(f"{base}/clusterrolebindings", name | {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]})
    reader = Endpoint(url, authority, token(own_control_plane, "default", "reader"))
    assert (reader("/metrics")[0], reader("/events")[0]) == (200, 403)


def test_the_driver_that_a_late_kubelet_names_is_used(
    own_control_plane: ControlPlane, machine: Machine, tmp_path: Path,
):
    add_node(own_control_plane.admin, NAME, cpu="8", memory="16Gi")
    (tmp_path / "proc").mkdir()
    for path in Path("/proc").iterdir():  # no kubelet of this machine
        if not path.name.isdigit():
            (tmp_path / "proc" / path.name).symlink_to(path)
    later = Machine()
    with FakeKubelet() as kubelet:
        kubelet.configuration = {"kubeletconfig": {"cgroupDriver": "cgroupfs"}}
        process = AgentProcess(
            own_control_plane.kubeconfig(), later, NAME, tmp_path / "agent", "--pods-from", "kubelet",
            "--kubelet-address", "127.0.0.1", "--kubelet-read-only-port", str(kubelet.port),
            "--proc-root", str(tmp_path / "proc"))
        try:
            until(lambda: "the agent begins anew with it" in process.log.read_text())
            with later:
                until(lambda: "control groups v1 (cgroupfs)" in process.out.read_text())
                assert process.stop() == 0
        finally:
            process.__exit__()
    assert process.log.read_text().count("the agent begins anew") == 1
