"""`koord-policy manager` on a real control plane: NodeSLOs, NodeMetrics, resources of nodes, and webhooks."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

from koordpolicy.engine.kubernetes.quantity import Quantity

from .build import binary
from .control_plane import AdminClient, ApiError, ControlPlane
from .custom_resources import ALL, COLOCATION_PROFILE, ELASTIC_QUOTA, NODE_METRIC, NODE_SLO, define
from .nodes import add_node
from .roles import NAMESPACE, account_kubeconfig, create_optional_roles, create_roles
from .scheduler_process import GRACE_S, until

CONFIG = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
BATCH = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")


class ManagerProcess:
    """One process; use as a context manager."""

    def __init__(self, kubeconfig: Path, directory: Path, *options: str, leader_elect: bool = False) -> None:
        self.log = directory / f"manager-{time.monotonic_ns()}.log"
        self.out = self.log.with_suffix(".out")
        lease = ("--leader-elect-resource-namespace", NAMESPACE) if leader_elect else ("--leader-elect=false",)
        self._command = [sys.executable, "-m", "koordpolicy", "manager", "--cluster", "kube", "--sync-period", "500ms",
                         *lease, *options]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self.log.open("ab") as log, self.out.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment)
        until(self._is_ready)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if not any(_exception):
            log = self.log.read_text()
            assert " is forbidden: " not in log, log[-3000:]
            assert "Traceback" not in log, log[-3000:]

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return "ready: " in self.out.read_text()

    def urls(self) -> list[str]:
        return [line.removeprefix("listening on ") for line in self.out.read_text().splitlines() if "listening" in line]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GRACE_S)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if os.environ.get("KOORD_POLICY_E2E_KUBECONFIG"):
        pytest.skip("writes into all nodes of a cluster")
    with ControlPlane(binary(), tmp_path_factory.mktemp("manager-plane")) as running:
        define(running.admin, *ALL, COLOCATION_PROFILE)
        create_roles(running.admin, "manager")
        yield running


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[AdminClient]:
    yield plane.admin
    for path in ("/api/v1/nodes", NODE_SLO.path(), NODE_METRIC.path(), COLOCATION_PROFILE.path()):
        plane.admin.delete(path)
    plane.admin.delete(CONFIG)


@pytest.fixture
def kubeconfig(plane: ControlPlane, tmp_path: Path) -> Path:
    return account_kubeconfig(plane, "koord-policy-manager", tmp_path)


def configure(admin: AdminClient, **values: Any) -> None:
    data = {key.replace("_", "-"): each if isinstance(each, str) else json.dumps(each) for key, each in values.items()}
    item = {"metadata": {"name": "slo-controller-config"}, "data": data}
    if find(admin, f"{CONFIG}/slo-controller-config") is None:
        admin.create(CONFIG, item)
    else:
        admin.request("PUT", f"{CONFIG}/slo-controller-config", item)


def find(admin: AdminClient, path: str) -> Any:
    try:
        return admin.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def slo(admin: AdminClient, node: str) -> Any:
    return find(admin, NODE_SLO.path("", node))


def threshold(admin: AdminClient, node: str) -> int | None:
    found = slo(admin, node)
    return found and found["spec"]["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"]


def test_l58_a_changed_config_map_changes_the_node_slos_that_it_matches_only(
    admin: AdminClient, kubeconfig: Path, tmp_path: Path,
):
    add_node(admin, "a-1", labels={"pool": "a"})
    add_node(admin, "b-1", labels={"pool": "b"})
    with ManagerProcess(kubeconfig, tmp_path):
        until(lambda: (threshold(admin, "a-1"), threshold(admin, "b-1")) == (65, 65))
        version = slo(admin, "b-1")["metadata"]["resourceVersion"]
        entry = {"name": "pool-a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuSuppressThresholdPercent": 50}
        configure(admin, resource_threshold_config={"nodeStrategies": [entry]})
        until(lambda: threshold(admin, "a-1") == 50)
        configure(admin, resource_threshold_config="{broken",
                  cpu_burst_config={"nodeStrategies": [{**entry, "policy": "auto", "cpuSuppressThresholdPercent": 1}]})
        until(lambda: slo(admin, "a-1")["spec"]["cpuBurstStrategy"]["policy"] == "auto")
        assert threshold(admin, "a-1") == 50
        assert slo(admin, "b-1")["metadata"]["resourceVersion"] == version
        event = until(lambda: next((
            each for each in admin.get(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
            if each["reason"] == "SLOCfgUnmarshalFailed"), None))
        assert (event["regarding"]["name"], event["note"].partition(":")[0]) == (
            "slo-controller-config", "`resource-threshold-config` is not JSON")
        admin.delete("/api/v1/nodes/a-1")
        until(lambda: slo(admin, "a-1") is None and find(admin, NODE_METRIC.path("", "a-1")) is None)
        assert slo(admin, "b-1") is not None


def report(admin: AdminClient, node: str, cpu: str, *, age: timedelta = timedelta()) -> None:
    """Writes a NodeMetric's status, as the node's agent does."""
    at = (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    admin.merge(f"{NODE_METRIC.path('', node)}/status", {"status": {
        "updateTime": at, "nodeMetric": {"nodeUsage": usage, "systemUsage": usage}}})


def batch(admin: AdminClient, node: str) -> tuple[Any, ...]:
    status = admin.get(f"/api/v1/nodes/{node}")["status"]
    found = (status[field].get(name) for field in ("capacity", "allocatable") for name in BATCH)
    return tuple(None if amount is None else Quantity.parse(amount).value for amount in found)


def test_l59_stale_measurements_remove_batch_resources_and_small_changes_are_not_written(
    admin: AdminClient, kubeconfig: Path, tmp_path: Path,
):
    add_node(admin, "node-a", cpu="10", memory="8Gi")
    configure(admin, colocation_config={"enable": True, "cpuReclaimThresholdPercent": 100,
                                        "memoryReclaimThresholdPercent": 100})
    memory = 7 << 30
    with ManagerProcess(kubeconfig, tmp_path):
        metric = until(lambda: find(admin, NODE_METRIC.path("", "node-a")))
        assert metric["spec"]["metricCollectPolicy"] == {
            "aggregateDurationSeconds": 300, "reportIntervalSeconds": 60,
            "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
            "nodeMemoryCollectPolicy": "usageWithoutPageCache"}
        report(admin, "node-a", "2")
        until(lambda: batch(admin, "node-a") == (8000, memory, 8000, memory))
        report(admin, "node-a", "2400m")  # 5 % less
        time.sleep(2)  # four rounds
        assert batch(admin, "node-a")[0] == 8000
        report(admin, "node-a", "3200m")  # 15 % less
        until(lambda: batch(admin, "node-a") == (6800, memory, 6800, memory))
        report(admin, "node-a", "3200m", age=timedelta(minutes=16))
        until(lambda: batch(admin, "node-a") == (None,) * 4)
        report(admin, "node-a", "2")
        until(lambda: batch(admin, "node-a") == (8000, memory, 8000, memory))
        assert admin.get("/api/v1/nodes/node-a")["status"]["capacity"]["cpu"] == "10"
        configure(admin, colocation_config={"enable": False})
        until(lambda: batch(admin, "node-a") == (None,) * 4)


@pytest.fixture
def hooked(admin: AdminClient, kubeconfig: Path, tmp_path: Path) -> Iterator[ManagerProcess]:
    """A manager whose webhooks the API server calls."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    registration = "/apis/admissionregistration.k8s.io/v1"
    with ManagerProcess(kubeconfig, tmp_path, "--webhook-bind", "127.0.0.1:0", "--tls-cert", str(tmp_path / "tls.crt"),
                        "--tls-key", str(tmp_path / "tls.key")) as process:
        url = process.urls()[0]

        def hook(path: str, group: str, resource: str, *operations: str) -> dict[str, Any]:
            return {"name": f"{path[1:]}.koordinator.sh", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Fail", "timeoutSeconds": 10,
                    "clientConfig": {"url": url + path, "caBundle": bundle},
                    "namespaceSelector": {"matchExpressions": [{
                        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE]}]},
                    "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource],
                               "operations": list(operations)}]}

        admin.create(f"{registration}/mutatingwebhookconfigurations", {
            "metadata": {"name": "manager"}, "webhooks": [hook("/mutate-pod", "", "pods", "CREATE")]})
        admin.create(f"{registration}/validatingwebhookconfigurations", {
            "metadata": {"name": "manager"}, "webhooks": [
                hook("/validate-pod", "", "pods", "CREATE", "UPDATE"),
                hook("/validate-elasticquota", ELASTIC_QUOTA.group, "elasticquotas", "CREATE", "UPDATE", "DELETE")]})
        try:
            yield process
        finally:
            for kind in ("mutating", "validating"):
                admin.delete(f"{registration}/{kind}webhookconfigurations/manager")


def registration(name: str, url: str, path: str, resource: str) -> dict[str, Any]:
    """A webhook of the namespace of the test, without an authority."""
    return {"metadata": {"name": name}, "webhooks": [{
        "name": f"{path[1:]}.koordinator.sh", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail", "timeoutSeconds": 10, "clientConfig": {"url": url + path},
        "namespaceSelector": {"matchLabels": {"hooked": "true"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["*"], "resources": [resource],
                   "operations": ["CREATE"]}]}]}


def test_the_api_server_trusts_certificates_that_managers_make_and_renew(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    create_optional_roles(admin, "manager", selfMadeCertificates=True)
    admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"hooked": "true"}}})
    kinds = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/koord-policy-manager-tls"
    options = ("--webhook-bind", "127.0.0.1:0", "--webhook-certificates", "koord-policy-manager-tls",
               "--webhook-name", "127.0.0.1", "--health-bind", "127.0.0.1:0")
    pods = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"

    def answers() -> bool:
        try:
            admin.create(pods, pod("web", {}, requests={"cpu": "1"}))
        except ApiError as error:
            if "failed calling webhook" not in error.body:
                raise
            return False
        return True

    def call(url: str) -> None:
        """Let the API server call the webhooks there."""
        for kind, path in (("mutating", "/mutate-pod"), ("validating", "/validate-pod")):
            webhooks = [{"name": f"{path[1:]}.koordinator.sh", "clientConfig": {"url": url + path}}]
            admin.request("PATCH", f"{kinds.format(kind)}/koord-policy-manager", {"webhooks": webhooks},
                          content_type="application/strategic-merge-patch+json")

    with ManagerProcess(kubeconfig, tmp_path, *options, leader_elect=True) as leader:
        url, health = leader.urls()
        for kind, path in (("mutating", "/mutate-pod"), ("validating", "/validate-pod")):
            admin.create(kinds.format(kind), registration("koord-policy-manager", url, path, "pods"))
        until(answers)
        assert urllib.request.urlopen(f"{health}/readyz").status == 200
        first = admin.get(secret)["data"]
        authority = {key: first[key] for key in ("ca.crt", "ca.key")}
        # Another replica serves the same; the API server calls it from now on.
        with ManagerProcess(kubeconfig, tmp_path, *options, leader_elect=True) as standby:
            url, health = standby.urls()
            until(lambda: ready(health))
            call(url)
            until(answers)
            assert admin.get(secret)["data"] == first
        # A certificate for other names is made anew by the same authority, at the next start of a leader.
        assert leader.stop() == 0
    with ManagerProcess(kubeconfig, tmp_path, *options, "--webhook-name", "localhost", leader_elect=True) as other:
        url, _ = other.urls()
        call(url.replace("127.0.0.1", "localhost"))
        until(answers)
        later = admin.get(secret)["data"]
        assert later["tls.crt"] != first["tls.crt"]
        assert {key: later[key] for key in authority} == authority
    for kind in ("mutating", "validating"):
        admin.delete(f"{kinds.format(kind)}/koord-policy-manager")


def ready(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/readyz").status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def pod(name: str, labels: dict[str, str], **resources: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [
        {"name": "main", "image": "example/main", "resources": resources}]}}


def test_l61_a_profile_rewrites_the_resources_of_pods_and_its_classes_do_not_change_afterwards(
    admin: AdminClient, namespace: str, hooked: ManagerProcess,
):
    admin.create_priority_class("koord-batch", 5000)
    admin.create(COLOCATION_PROFILE.path(), {
        "apiVersion": COLOCATION_PROFILE.api_version, "kind": "ClusterColocationProfile",
        "metadata": {"name": "batch"}, "spec": {
            "selector": {"matchLabels": {"tier": "batch"}}, "qosClass": "BE", "priorityClassName": "koord-batch",
            "labels": {"team": "data"}, "koordinatorPriority": 10}})
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def mutated() -> Any:  # until the manager has seen profile and class
        found = admin.create(f"{pods}?dryRun=All", pod("web", {"tier": "batch"}, limits={"cpu": "500m"}))
        return found["metadata"]["labels"].get("koordinator.sh/qosClass")

    until(mutated)
    created = admin.create(pods, pod("web", {"tier": "batch"}, limits={"cpu": "500m", "memory": "1Gi"}))
    amounts = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
    assert created["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert (created["spec"]["priorityClassName"], created["spec"]["priority"]) == ("koord-batch", 5000)
    assert created["metadata"]["labels"] == {
        "tier": "batch", "team": "data", "koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "10"}
    assert json.loads(created["metadata"]["annotations"]["node.koordinator.sh/extended-resource-spec"]) == {
        "containers": {"main": {"requests": amounts, "limits": amounts}}}
    with pytest.raises(ApiError, match="field is immutable") as caught:
        admin.merge(f"{pods}/web", {"metadata": {"labels": {"koordinator.sh/qosClass": "LS"}}})
    assert caught.value.status == 400
    with pytest.raises(ApiError, match="must specify koordinator QoS BE"):
        admin.create(pods, pod("wrong", {}, limits=amounts, requests=amounts))
    other = admin.create(pods, pod("other", {}, requests={"cpu": "500m"}))
    assert other["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "500m"}}


def test_l62_a_quota_with_pods_is_not_deleted(admin: AdminClient, namespace: str, hooked: ManagerProcess):
    quotas, pods = ELASTIC_QUOTA.path(namespace), f"/api/v1/namespaces/{namespace}/pods"
    admin.create(quotas, {"apiVersion": ELASTIC_QUOTA.api_version, "kind": "ElasticQuota",
                          "metadata": {"name": "team"}, "spec": {"min": {"cpu": "1"}, "max": {"cpu": "4"}}})
    with pytest.raises(ApiError, match="in dimensions"):
        admin.create(quotas, {"apiVersion": ELASTIC_QUOTA.api_version, "kind": "ElasticQuota",
                              "metadata": {"name": "odd"}, "spec": {"min": {"cpu": "5"}, "max": {"cpu": "4"}}})
    for name in ("c", "a", "b"):
        admin.create(pods, pod(name, {"quota.scheduling.koordinator.sh/name": "team"}, requests={"cpu": "1"}))

    def refused() -> str:
        try:
            admin.delete(f"{quotas}/team?dryRun=All")
        except ApiError as error:
            return error.body
        return ""

    message = "delete quota failed, quota team has 3 child pods: a, b and 1 more"
    until(lambda: message in refused())
    for name in ("a", "b", "c"):
        admin.delete(f"{pods}/{name}?gracePeriodSeconds=0")
    until(lambda: not refused())
    admin.delete(f"{quotas}/team")


def test_a_manager_that_loses_its_lease_ends(admin: AdminClient, kubeconfig: Path, tmp_path: Path):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/koord-policy-manager"
    if find(admin, path) is not None:
        admin.delete(path)  # of an earlier process, whose identity is another one
    with ManagerProcess(kubeconfig, tmp_path, leader_elect=True) as process:
        until(lambda: (find(admin, path) or {}).get("spec", {}).get("holderIdentity"))
        admin.merge(path, {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 1}})
        until(lambda: process.process.poll() is not None)
        assert process.process.returncode == 1
        assert "the Lease was lost" in process.log.read_text()
    admin.delete(path)


def test_l63_l64_sigterm_releases_the_lease_and_ends_the_process_soon_and_nothing_was_refused(
    admin: AdminClient, kubeconfig: Path, tmp_path: Path,
):
    add_node(admin, "node-a")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/koord-policy-manager"
    with ManagerProcess(kubeconfig, tmp_path, leader_elect=True) as first:
        until(lambda: slo(admin, "node-a"))
        with ManagerProcess(kubeconfig, tmp_path, leader_elect=True):
            assert first.stop() == 0
            admin.delete(NODE_SLO.path("", "node-a"))
            until(lambda: slo(admin, "node-a"))  # the other one leads
            assert admin.get(lease)["spec"]["leaseTransitions"] >= 1
