"""Koordinator's reservations, gangs and quotas on a real API server: the statuses that the scheduler writes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .control_plane import AdminClient, ControlPlane
from .custom_resources import ALL, ELASTIC_QUOTA, POD_GROUP, RESERVATION, Custom, define
from .nodes import FakeKubelet, add_node, add_pod
from .roles import scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until

CONFIG = Path(__file__).parents[2] / "examples" / "14-koord-scheduler" / "scheduler.yaml"
NAME = "koord-scheduler"
GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
QUOTA = "quota.scheduling.koordinator.sh/"


@pytest.fixture
def admin(own_control_plane: ControlPlane) -> AdminClient:
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    define(admin, *ALL)
    add_node(admin, "one", cpu="8")
    return admin


@pytest.fixture
def scheduler(admin: AdminClient, own_control_plane: ControlPlane, tmp_path: Path) -> Iterator[SchedulerProcess]:
    kubeconfig = scheduler_kubeconfig(own_control_plane, tmp_path)
    with SchedulerProcess(kubeconfig, tmp_path, "--config", str(CONFIG)) as running:
        running.until_ready()
        yield running


def create(admin: AdminClient, kind: Custom, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, **fields.pop("metadata", {})}
    made: dict[str, Any] = admin.create(kind.path(namespace), {
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields})
    return made


def status_of(admin: AdminClient, kind: Custom, name: str, namespace: str = "") -> dict[str, Any]:
    found: dict[str, Any] = admin.get(kind.path(namespace, name)).get("status") or {}
    return found


def pod_of(admin: AdminClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/api/v1/namespaces/apps/pods/{name}")
    return found


def node_of(admin: AdminClient, name: str) -> str:
    return str(pod_of(admin, name)["spec"].get("nodeName") or "")


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status.get("conditions") or ()}


def versions(admin: AdminClient, path: str, since: str, seconds: int = 2) -> list[dict[str, Any]]:
    """All versions of the objects of a kind since a resource version, in their order."""
    text = admin.request("GET", f"{path}?watch=1&resourceVersion={since}&timeoutSeconds={seconds}")
    lines = text.splitlines() if isinstance(text, str) else [json.dumps(text)]
    return [json.loads(line)["object"] for line in lines if line.strip()]


def patches(admin: AdminClient, kind: Custom) -> int:
    """The number of patches of a kind that the API server has answered."""
    found = re.findall(
        rf'(?m)^apiserver_request_total{{[^}}]*resource="{kind.plural}"[^}}]*verb="PATCH"[^}}]*}} (\d+)',
        admin.get("/metrics"))
    return sum(map(int, found))


def reservation(admin: AdminClient, name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"schedulerName": NAME, "containers": [
        {"name": "main", "image": "example/main", "resources": {"requests": {"cpu": cpu}}}]}}
    return create(admin, RESERVATION, name, spec={
        "template": template, "owners": [{"labelSelector": {"matchLabels": {"app": name}}}], "ttl": "24h",
        "allocateOnce": False, **spec})


@pytest.mark.usefixtures("scheduler")
def test_l46_a_reservation_becomes_available_and_its_consumer_says_so_in_one_binding(admin: AdminClient):
    made = reservation(admin, "kept", "6")
    status = until(lambda: (found := status_of(admin, RESERVATION, "kept")).get("phase") == "Available" and found)
    assert (status["nodeName"], status["allocatable"]) == ("one", {"cpu": "6"})
    assert conditions(status) == {"Scheduled": ("True", "Scheduled"), "Ready": ("True", "Available")}

    # The room is the owners' now.
    add_pod(admin, "apps", "stranger", scheduler=NAME, cpu="4")
    consumer = add_pod(admin, "apps", "consumer", scheduler=NAME, cpu="4", labels={"app": "kept"})
    until(lambda: node_of(admin, "consumer"))
    allocated = {"name": "kept", "uid": made["metadata"]["uid"]}
    seen = [
        (bool(each["spec"].get("nodeName")), json.loads(text) if (text := each["metadata"].get(
            "annotations", {}).get(ALLOCATED)) else None)
        for each in versions(admin, "/api/v1/namespaces/apps/pods", consumer["metadata"]["resourceVersion"])
        if each["metadata"]["name"] == "consumer"]
    # Never one without the other: the annotation is in the binding itself.
    assert set(map(str, seen)) <= {str((False, None)), str((True, allocated))}
    assert seen[-1] == (True, allocated)
    status = until(lambda: (found := status_of(admin, RESERVATION, "kept")).get("currentOwners") and found)
    assert ([each["name"] for each in status["currentOwners"]], status["allocated"]) == (["consumer"], {"cpu": "4"})
    assert node_of(admin, "stranger") == ""


@pytest.mark.usefixtures("scheduler")
def test_l46_a_reservation_without_room_says_why_and_one_that_is_over_expires(admin: AdminClient):
    reservation(admin, "large", "80")
    status = until(lambda: (found := status_of(admin, RESERVATION, "large")).get("conditions") and found)
    assert conditions(status) == {"Scheduled": ("False", "Unschedulable")}
    assert "Insufficient cpu" in status["conditions"][0]["message"]

    reservation(admin, "short", "1", ttl="5s")
    until(lambda: status_of(admin, RESERVATION, "short").get("phase") == "Available")
    status = until(lambda: (found := status_of(admin, RESERVATION, "short")).get("phase") == "Failed" and found)
    assert conditions(status)["Ready"] == ("False", "Expired")


@pytest.mark.usefixtures("scheduler")
def test_l47_a_pod_group_is_pending_until_it_has_all_its_members(admin: AdminClient):
    create(admin, POD_GROUP, "gang", "apps", spec={"minMember": 3, "scheduleTimeoutSeconds": 60})
    for name in ("a", "b"):
        add_pod(admin, "apps", name, scheduler=NAME, labels={GROUP_LABEL: "gang"})
    until(lambda: status_of(admin, POD_GROUP, "gang", "apps").get("phase") == "Pending")

    def messages() -> list[str]:
        found = (conditions_of(admin, name) for name in ("a", "b"))
        return [each.get("PodScheduled", ("", ""))[1] for each in found]

    texts = until(lambda: all(messages()) and messages())
    assert ["child pod not collect enough" in text for text in texts] == [True, True]
    assert [node_of(admin, name) for name in ("a", "b")] == ["", ""]

    add_pod(admin, "apps", "c", scheduler=NAME, labels={GROUP_LABEL: "gang"})
    until(lambda: all(node_of(admin, name) for name in "abc"))
    status = until(lambda: (found := status_of(admin, POD_GROUP, "gang", "apps")).get("phase") == "Scheduled" and found)
    assert (status["scheduled"], status["running"]) == (3, 0)
    with FakeKubelet(admin):
        until(lambda: status_of(admin, POD_GROUP, "gang", "apps").get("phase") == "Running")
    status = status_of(admin, POD_GROUP, "gang", "apps")
    assert (status["scheduled"], status["running"]) == (3, 3)


def test_l47_a_pod_group_finishes_or_fails_also_if_its_pods_end_while_no_scheduler_runs(
    admin: AdminClient, scheduler: SchedulerProcess,
):
    for name in ("job", "broken"):
        create(admin, POD_GROUP, name, "apps", spec={"minMember": 2})
        for each in (f"{name}-0", f"{name}-1"):
            add_pod(admin, "apps", each, scheduler=NAME, labels={GROUP_LABEL: name})
    with FakeKubelet(admin):
        for name in ("job", "broken"):
            until(lambda name=name: status_of(admin, POD_GROUP, name, "apps").get("phase") == "Running")  # type: ignore[misc]
    end(admin, "job-0", "Succeeded")
    until(lambda: status_of(admin, POD_GROUP, "job", "apps").get("succeeded") == 1)
    assert status_of(admin, POD_GROUP, "job", "apps")["phase"] == "Running"

    assert scheduler.stop() == 0
    end(admin, "job-1", "Succeeded")
    end(admin, "broken-0", "Failed")
    scheduler.start()
    until(lambda: status_of(admin, POD_GROUP, "job", "apps").get("phase") == "Finished")
    until(lambda: status_of(admin, POD_GROUP, "broken", "apps").get("phase") == "Failed")
    found = {name: status_of(admin, POD_GROUP, name, "apps") for name in ("job", "broken")}
    assert {name: (each["scheduled"], each["running"], each["succeeded"], each["failed"])
            for name, each in found.items()} == {"job": (2, 0, 2, 0), "broken": (2, 1, 0, 1)}
    admin.delete("/api/v1/namespaces/apps/pods/job-0?gracePeriodSeconds=0")
    time.sleep(2)
    assert status_of(admin, POD_GROUP, "job", "apps")["phase"] == "Finished"


def end(admin: AdminClient, name: str, phase: str) -> None:
    """Reports the end of a pod, as a kubelet does."""
    admin.merge(f"/api/v1/namespaces/apps/pods/{name}/status", {"status": {"phase": phase}})


def conditions_of(admin: AdminClient, name: str) -> dict[str, tuple[str, str]]:
    found = pod_of(admin, name)["status"].get("conditions") or ()
    return {each["type"]: (each["status"], each.get("message", "")) for each in found}


@pytest.mark.usefixtures("scheduler")
def test_l48_the_status_of_a_quota_follows_and_is_quiet_otherwise(admin: AdminClient):
    create(admin, ELASTIC_QUOTA, "team", "apps", metadata={"labels": {QUOTA + "name": "team"}},
           spec={"min": {"cpu": "2"}, "max": {"cpu": "4"}})
    time.sleep(2)  # amounts of 0 are not written, so nothing shows that the scheduler knows the quota
    add_pod(admin, "apps", "first", scheduler=NAME, cpu="1", labels={QUOTA + "name": "team"})
    until(lambda: node_of(admin, "first"))
    until(lambda: status_of(admin, ELASTIC_QUOTA, "team", "apps").get("used") == {"cpu": "1"})

    def annotated() -> dict[str, Any]:
        annotations = admin.get(ELASTIC_QUOTA.path("apps", "team"))["metadata"]["annotations"]
        return {name: json.loads(annotations.get(QUOTA + name, "null")) for name in (
            "runtime", "request", "child-request")}

    until(lambda: annotated() == {
        "runtime": {"cpu": "1"}, "request": {"cpu": "1"}, "child-request": {"cpu": "1"}})

    time.sleep(2)  # what was under way has arrived
    before = {kind.kind: patches(admin, kind) for kind in (ELASTIC_QUOTA, POD_GROUP, RESERVATION)}
    time.sleep(60)
    assert {kind.kind: patches(admin, kind) for kind in (ELASTIC_QUOTA, POD_GROUP, RESERVATION)} == before
    assert before["ElasticQuota"] > 0

    admin.delete("/api/v1/namespaces/apps/pods/first?gracePeriodSeconds=0")
    until(lambda: status_of(admin, ELASTIC_QUOTA, "team", "apps").get("used") in ({}, {"cpu": "0"}))
