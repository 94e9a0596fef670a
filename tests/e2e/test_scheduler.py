"""The live scheduler on a real API server: it binds pods, and says why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .control_plane import AdminClient, ControlPlane
from .nodes import add_node, add_pod
from .scheduler_process import SchedulerProcess, until


@pytest.fixture
def plane(own_control_plane: ControlPlane) -> ControlPlane:
    own_control_plane.admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    return own_control_plane


@pytest.fixture
def admin(plane: ControlPlane) -> AdminClient:
    return plane.admin


@pytest.fixture
def scheduler(plane: ControlPlane, tmp_path: Path) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(plane.kubeconfig(), tmp_path) as running:
        running.until_ready()
        yield running


def pod_of(admin: AdminClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/api/v1/namespaces/apps/pods/{name}")
    return found


def node_of(admin: AdminClient, name: str) -> str:
    return str(pod_of(admin, name)["spec"].get("nodeName") or "")


def events_of(admin: AdminClient, name: str, reason: str) -> list[dict[str, Any]]:
    events = admin.get("/apis/events.k8s.io/v1/namespaces/apps/events")["items"]
    return [event for event in events if event["regarding"]["name"] == name and event["reason"] == reason]


def test_l22_a_pod_is_bound_and_its_event_names_the_scheduler(admin: AdminClient, scheduler: SchedulerProcess):
    add_node(admin, "one")
    add_pod(admin, "apps", "a")
    assert until(lambda: node_of(admin, "a")) == "one"
    (event,) = until(lambda: events_of(admin, "a", "Scheduled"))
    assert (event["type"], event["action"], event["note"], event["reportingController"]) == (
        "Normal", "Binding", "Successfully assigned apps/a to one", "koord-policy")
    code, seconds = scheduler.stop()
    assert (code, seconds < 10) == (0, True), scheduler.log.read_text()
