"""Pods whose claims are bound by a real volume controller after the scheduler has chosen their volumes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .control_plane import AdminClient, ControlPlane
from .nodes import add_node, add_pod
from .roles import scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until
from .volumes import add_claim, add_class, add_volume, claiming, give_up, is_bound, provision, selected_node

LOCAL = "kubernetes.io/no-provisioner"
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: koord-policy
- schedulerName: in-a-hurry
  pluginConfig:
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 5}
"""


@pytest.fixture
def admin(own_control_plane: ControlPlane) -> AdminClient:
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    add_class(admin, "late")
    add_class(admin, "local", provisioner=LOCAL)
    for name in ("one", "two"):
        add_node(admin, name, cpu="2")
    own_control_plane.start_controller_manager("persistentvolume-binder-controller")
    return admin


@pytest.fixture
def scheduler(admin: AdminClient, own_control_plane: ControlPlane, tmp_path: Path) -> Iterator[SchedulerProcess]:
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG)
    kubeconfig = scheduler_kubeconfig(own_control_plane, tmp_path)
    with SchedulerProcess(kubeconfig, tmp_path, "--config", str(config)) as running:
        running.until_ready()
        yield running


def pod_of(admin: AdminClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/api/v1/namespaces/apps/pods/{name}")
    return found


def node_of(admin: AdminClient, name: str) -> str:
    return str(pod_of(admin, name)["spec"].get("nodeName") or "")


def message_of(admin: AdminClient, name: str) -> str:
    """The message of the condition that the pod is not scheduled."""
    conditions = pod_of(admin, name).get("status", {}).get("conditions") or ()
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


@pytest.mark.usefixtures("scheduler")
def test_l40_a_pod_is_bound_after_its_claim_which_is_provisioned_for_its_node(admin: AdminClient):
    add_claim(admin, "apps", "data", "late")
    add_pod(admin, "apps", "web", **claiming("data"))
    node = until(lambda: selected_node(admin, "apps", "data"))
    add_pod(admin, "apps", "plain")  # others go on meanwhile
    until(lambda: node_of(admin, "plain"))
    assert (node_of(admin, "web"), is_bound(admin, "apps", "data")) == ("", False)

    assert until(lambda: pod_of(admin, "web")["status"].get("nominatedNodeName")) == node

    give_up(admin, "apps", "data")
    until(lambda: "binding volumes: provisioning failed for PVC" in message_of(admin, "web"))
    # The pod is back in the queue: its next attempt chooses a node again.
    until(lambda: selected_node(admin, "apps", "data"))
    assert node_of(admin, "web") == ""

    provision(admin, "apps", "data")
    bound = until(lambda: node_of(admin, "web"))
    assert (bound, is_bound(admin, "apps", "data")) == (selected_node(admin, "apps", "data"), True)
    assert "nominatedNodeName" not in pod_of(admin, "web")["status"]
    assert node in {"one", "two"}


@pytest.mark.usefixtures("scheduler")
def test_l40_an_existing_volume_is_bound_before_the_pod_on_the_node_that_reaches_it(admin: AdminClient):
    add_volume(admin, "disk", "two", "local")
    until(lambda: admin.get("/api/v1/persistentvolumes/disk")["status"]["phase"] == "Available")
    add_claim(admin, "apps", "data", "local")
    add_pod(admin, "apps", "web", **claiming("data"))
    assert until(lambda: node_of(admin, "web")) == "two"
    volume = admin.get("/api/v1/persistentvolumes/disk")
    assert (volume["spec"]["claimRef"]["name"], volume["status"]["phase"]) == ("data", "Bound")
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"
    assert is_bound(admin, "apps", "data")


@pytest.mark.usefixtures("scheduler")
def test_l41_a_claim_that_is_never_bound_fails_the_binding_after_its_timeout(admin: AdminClient):
    add_claim(admin, "apps", "data", "late")
    start = time.monotonic()
    add_pod(admin, "apps", "web", scheduler="in-a-hurry", **claiming("data"))
    message = until(lambda: message_of(admin, "web"))
    assert time.monotonic() - start >= 5
    assert 'binding volumes: PVC "data" is not bound after 5 s' in message
    # It is tried again, and the volume that comes late is used.
    provision(admin, "apps", "data")
    until(lambda: node_of(admin, "web"))


def test_l39_a_pod_that_is_deleted_while_its_volumes_are_bound_frees_its_room_before_they_are(
    admin: AdminClient, scheduler: SchedulerProcess,
):
    add_claim(admin, "apps", "data", "late")
    for name in ("one", "two"):
        add_pod(admin, "apps", f"on-{name}", cpu="1", nodeSelector={"kubernetes.io/hostname": name})
        until(lambda name=name: node_of(admin, f"on-{name}"))
    add_pod(admin, "apps", "web", cpu="1", nodeSelector={"kubernetes.io/hostname": "one"}, **claiming("data"))
    until(lambda: selected_node(admin, "apps", "data"))
    add_pod(admin, "apps", "next", cpu="1", nodeSelector={"kubernetes.io/hostname": "one"})
    until(lambda: "Insufficient cpu" in message_of(admin, "next"))
    admin.delete("/api/v1/namespaces/apps/pods/web")
    until(lambda: node_of(admin, "next"))  # within much less than the 10 minutes after which the binding gives up
    assert scheduler.stop() == 0, scheduler.log.read_text()
