"""The shipped manifests are valid, and their roles are enough: the scheduler is refused nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from .control_plane import AdminClient, ApiError, ControlPlane
from .nodes import FakeKubelet, add_node, add_pod
from .scheduler_process import SchedulerProcess, until
from .test_operations import Endpoint

PROJECT = Path(__file__).parents[2]
NAMESPACE = "koordinator-system"
PATHS = {
    "Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services", "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
"""Where the kinds of the manifests are created."""


def manifests(folder: str) -> list[dict[str, Any]]:
    """The objects of a folder, but those of kinds of the Prometheus operator."""
    found: list[dict[str, Any]] = []
    for path in sorted((PROJECT / "deploy" / folder).glob("*.yaml")):
        found += [each for each in yaml.safe_load_all(path.read_text()) if each and each["kind"] in PATHS]
    return found


def create(admin: AdminClient, item: dict[str, Any], query: str = "") -> None:
    admin.create(PATHS[item["kind"]].format(NAMESPACE) + query, item)


@pytest.fixture
def deployed(own_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with the namespace, accounts and roles of both servers."""
    admin = own_control_plane.admin
    create(admin, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}})
    for folder in ("scheduler", "extender"):
        for item in manifests(folder):
            if item["kind"].startswith(("ServiceAccount", "Role", "ClusterRole")):
                create(admin, item)
    return own_control_plane


def kubeconfig_of(plane: ControlPlane, account: str, directory: Path) -> Path:
    """A kubeconfig of a service account."""
    made = plane.admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
                              {"spec": {"expirationSeconds": 3600}})
    config = json.loads(plane.kubeconfig().read_text())
    config["users"][0]["user"] = {"token": made["status"]["token"]}
    path = directory / f"{account}.json"
    path.write_text(json.dumps(config))
    return path


def test_the_api_server_accepts_all_manifests_strictly(own_control_plane: ControlPlane):
    admin = own_control_plane.admin
    create(admin, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}})
    kinds = set()
    for folder in ("scheduler", "extender", "monitoring"):
        for item in manifests(folder):
            if item["kind"] != "Namespace":
                create(admin, item, "?dryRun=All&fieldValidation=Strict")
                kinds.add(item["kind"])
    assert kinds == PATHS.keys() - {"Namespace"}


def test_l64_with_the_shipped_roles_the_scheduler_is_refused_nothing(
    deployed: ControlPlane, tmp_path: Path,
):
    admin, name = deployed.admin, "koord-policy"
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    admin.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000})
    add_node(admin, "node-a", cpu="2")
    options = ("--bind", "127.0.0.1:0", "--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"),
               "--leader-elect-resource-namespace", NAMESPACE)
    with FakeKubelet(admin), SchedulerProcess(
            kubeconfig_of(deployed, "koord-policy-scheduler", tmp_path), tmp_path, *options, name=name,
            leader_elect=True) as process:
        process.until_ready()
        url = process.out.read_text().splitlines()[0].removeprefix("listening on ")
        add_pod(admin, "shop", "fits", cpu="1500m")
        until(lambda: admin.get("/api/v1/namespaces/shop/pods/fits")["spec"].get("nodeName"))
        add_pod(admin, "shop", "never", cpu="64")
        until(lambda: reason(admin, "never") == "Unschedulable")
        add_pod(admin, "shop", "urgent", cpu="1500m", priorityClassName="urgent")
        until(lambda: admin.get("/api/v1/namespaces/shop/pods/urgent")["spec"].get("nodeName"), 60)
        until(lambda: {"Scheduled", "FailedScheduling", "Preempted"} <= {
            event["reason"] for event in admin.get("/apis/events.k8s.io/v1/namespaces/shop/events")["items"]})
        admin_token = deployed.client("admin")._headers["Authorization"].removeprefix("Bearer ")
        samples = Endpoint(url, tmp_path / "ca.crt", admin_token).samples()
        refused = {labels: value for (sample, labels), value in samples.items()
                   if sample == "rest_client_requests_total" and ("code", "403") in labels}
        assert refused == {}
        assert process.stop()[0] == 0
        assert "forbidden" not in process.log.read_text().lower()


def test_the_extender_may_list_and_review_and_nothing_else(deployed: ControlPlane, tmp_path: Path):
    account = json.loads(kubeconfig_of(deployed, "koord-policy", tmp_path).read_text())
    token = account["users"][0]["user"]["token"]
    context = deployed.admin._context
    client = AdminClient(deployed.url, context, {"Authorization": f"Bearer {token}"})
    assert client.get("/api/v1/nodes")["items"] == []
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    assert client.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]["authenticated"] is True
    with pytest.raises(ApiError) as refused:
        client.create("/api/v1/namespaces/default/pods/p/binding", {"target": {"name": "n"}})
    assert refused.value.status == 403


def reason(admin: AdminClient, pod: str) -> str:
    conditions = admin.get(f"/api/v1/namespaces/shop/pods/{pod}")["status"].get("conditions") or ()
    return next((each.get("reason", "") for each in conditions if each["type"] == "PodScheduled"), "")
