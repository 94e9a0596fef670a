"""The shipped manifests are valid, and their roles are enough: the scheduler is refused nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
import yaml

from .control_plane import AdminClient, ApiError, ControlPlane
from .nodes import FakeKubelet, add_node, add_pod
from .roles import (
    NAMESPACE,
    PATHS,
    account_kubeconfig,
    create,
    create_roles,
    manifests,
    scheduler_kubeconfig,
    shipped_options,
)
from .scheduler_process import SchedulerProcess, until
from .test_operations import Endpoint


def test_the_api_server_accepts_all_manifests_strictly(own_control_plane: ControlPlane):
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    kinds = set()
    for folder in ("scheduler", "extender", "manager", "descheduler", "agent", "console", "monitoring"):
        for item in manifests(folder):
            if item["kind"] != "Namespace":
                create(admin, item, "?dryRun=All&fieldValidation=Strict")
                kinds.add(item["kind"])
    assert kinds == PATHS.keys() - {"Namespace"}


def test_l64_with_the_shipped_roles_the_scheduler_is_refused_nothing(
    own_control_plane: ControlPlane, tmp_path: Path,
):
    admin, name = own_control_plane.admin, "koord-policy"
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    admin.create("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    admin.create_priority_class("urgent", 1000)
    add_node(admin, "node-a", cpu="2")
    (tmp_path / "policies").mkdir()
    options = shipped_options("scheduler", {
        "/etc/koord-policy/policies": str(tmp_path / "policies"), "/etc/koord-policy/tls": str(tmp_path),
        "/var/lib/koord-policy": str(tmp_path / "state"), "0.0.0.0:10259": "127.0.0.1:0",
    }, without=("--cluster", "--scheduler-name"))  # `SchedulerProcess` has these
    with FakeKubelet(admin), SchedulerProcess(
            scheduler_kubeconfig(own_control_plane, tmp_path), tmp_path, *options, name=name,
            leader_elect=True) as process:
        process.until_ready()
        url = process.out.read_text().splitlines()[0].removeprefix("listening on ")
        add_pod(admin, "shop", "fits", cpu="1500m")
        until(lambda: admin.get("/api/v1/namespaces/shop/pods/fits")["spec"].get("nodeName"))
        add_pod(admin, "shop", "never", cpu="64")
        until(lambda: reason(admin, "never") == "Unschedulable")
        add_pod(admin, "shop", "urgent", cpu="1500m", priorityClassName="urgent")
        until(lambda: admin.get("/api/v1/namespaces/shop/pods/urgent")["spec"].get("nodeName"))
        until(lambda: {"Scheduled", "FailedScheduling", "Preempted"} <= {
            event["reason"] for event in admin.get("/apis/events.k8s.io/v1/namespaces/shop/events")["items"]})
        admin_token = own_control_plane.client("admin")._headers["Authorization"].removeprefix("Bearer ")
        samples = Endpoint(url, tmp_path / "ca.crt", admin_token).samples()
        refused = {labels: value for (sample, labels), value in samples.items()
                   if sample == "rest_client_requests_total" and ("code", "403") in labels}
        assert refused == {}
        assert process.stop() == 0
        assert "forbidden" not in process.log.read_text().lower()


def test_the_extender_may_watch_and_review_and_not_bind(
    own_control_plane: ControlPlane, tmp_path: Path,
):
    create_roles(own_control_plane.admin, "extender")
    account = yaml.safe_load(account_kubeconfig(own_control_plane, "koord-policy", tmp_path).read_text())
    token = account["users"][0]["user"]["token"]
    context = own_control_plane.admin._context
    client = AdminClient(own_control_plane.url, context, {"Authorization": f"Bearer {token}"})
    assert client.get("/api/v1/nodes")["items"] == []
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    assert client.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]["authenticated"] is True
    with pytest.raises(ApiError) as refused:
        client.create("/api/v1/namespaces/default/pods/p/binding", {"target": {"name": "n"}})
    assert refused.value.status == 403


def reason(admin: AdminClient, pod: str) -> str:
    conditions = admin.get(f"/api/v1/namespaces/shop/pods/{pod}")["status"].get("conditions") or ()
    return next((each.get("reason", "") for each in conditions if each["type"] == "PodScheduled"), "")
