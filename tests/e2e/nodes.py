"""Nodes without machines, and the part of a kubelet that the tests need: it runs pods and ends deleted ones."""

from __future__ import annotations

import contextlib
from typing import Any

from .control_plane import AdminClient, ApiError
from .periodic import Periodic


def add_node(admin: AdminClient, name: str, *, cpu: str = "4", memory: str = "8Gi", pods: int = 110,
             labels: dict[str, str] | None = None) -> None:
    """Creates a ready node without taints."""
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi"}
    admin.create("/api/v1/nodes", {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}})
    # The admission plugin TaintNodesByCondition has tainted it.
    admin.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    set_capacity(admin, name, capacity)


def set_capacity(admin: AdminClient, name: str, capacity: dict[str, str]) -> None:
    admin.merge(f"/api/v1/nodes/{name}/status", {"status": {
        "capacity": capacity, "allocatable": capacity,
        "conditions": [{"type": "Ready", "status": "True", "reason": "FakeKubelet", "message": ""}]}})


def add_pod(admin: AdminClient, namespace: str, name: str, *, scheduler: str = "koord-policy", cpu: str = "100m",
            annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Any:
    """Creates a pod that requests CPU; returns it."""
    return admin.create(f"/api/v1/namespaces/{namespace}/pods", {
        "metadata": {"name": name, "labels": labels or {"app": "web"}, "annotations": annotations or {}},
        "spec": {"schedulerName": scheduler, "containers": [
            {"name": "main", "image": "example/main", "resources": {"requests": {"cpu": cpu}}}], **spec}})


class FakeKubelet(Periodic):
    """Reports the pods of all nodes as running, and removes those that are deleted; use as a context manager."""

    def __init__(self, admin: AdminClient, *, period: float = 0.1, ends_pods: bool = True) -> None:
        self.ends_pods = ends_pods
        self._admin = admin
        super().__init__(self._look_at_all, period)

    def _look_at_all(self) -> None:
        with contextlib.suppress(ApiError, OSError):
            for pod in self._admin.get("/api/v1/pods")["items"]:
                if pod["spec"].get("nodeName"):
                    self._look(pod)

    def _look(self, pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        with contextlib.suppress(ApiError):
            if pod["metadata"].get("deletionTimestamp"):
                if self.ends_pods:
                    self._admin.delete(f"{path}?gracePeriodSeconds=0")
            elif pod["status"].get("phase") == "Pending":
                self._admin.merge(f"{path}/status", {"status": {"phase": "Running"}})
