"""The control plane that the live tests run on is a real one."""

from __future__ import annotations

import time

import pytest

from .build import chosen
from .control_plane import ControlPlane, ForeignPods, NamedCluster


def node(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]}}


def test_it_is_of_the_release_of_the_recorded_cases(own_control_plane: ControlPlane) -> None:
    assert own_control_plane.admin.get("/version")["gitVersion"] == f"v{chosen()[0]}"


def test_kube_scheduler_binds_a_pod_on_it(own_control_plane: ControlPlane) -> None:
    admin = own_control_plane.admin
    own_control_plane.start_kube_scheduler()
    admin.create("/api/v1/nodes", node("one"))
    # The taint is set by admission; the controller that removes it does not run.
    admin.merge("/api/v1/nodes/one", {"spec": {"taints": None}})
    admin.create("/api/v1/namespaces/default/pods", {
        "metadata": {"name": "pod"}, "spec": {"containers": [{"name": "main", "image": "example/main"}]}})
    deadline = time.monotonic() + 120
    while "nodeName" not in (spec := admin.get("/api/v1/namespaces/default/pods/pod")["spec"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert spec["nodeName"] == "one"


def test_a_named_cluster_with_other_pods_is_refused(own_control_plane: ControlPlane) -> None:
    kubeconfig = own_control_plane.kubeconfig()
    assert NamedCluster(kubeconfig).admin.get("/readyz") == "ok"
    own_control_plane.admin.create("/api/v1/namespaces/default/pods", {
        "metadata": {"name": "foreign"}, "spec": {"containers": [{"name": "main", "image": "example/main"}]}})
    with pytest.raises(ForeignPods, match="has 1 pods outside of the namespaces kube-\\*, default/foreign first"):
        NamedCluster(kubeconfig)
