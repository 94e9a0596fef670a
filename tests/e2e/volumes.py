"""Claims and volumes on a real control plane, whose controller binds them, and what an external provisioner does."""

from __future__ import annotations

from typing import Any

from .control_plane import AdminClient
from .scheduler_process import until

PROVISIONER = "disks.example.com"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"


def add_class(admin: AdminClient, name: str, *, provisioner: str = PROVISIONER) -> None:
    """Creates a class whose claims wait for their first consumer."""
    admin.create(_CLASSES, {"metadata": {"name": name}, "provisioner": provisioner,
                            "volumeBindingMode": "WaitForFirstConsumer"})


def claim_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"


def add_claim(admin: AdminClient, namespace: str, name: str, of_class: str) -> Any:
    return admin.create(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {
        "metadata": {"name": name},
        "spec": {"storageClassName": of_class, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}}})


def add_volume(admin: AdminClient, name: str, node: str, of_class: str, **spec: Any) -> None:
    """Creates a volume that one node reaches."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    admin.create(_VOLUMES, {
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": of_class,
                 "persistentVolumeReclaimPolicy": "Retain",
                 "csi": {"driver": PROVISIONER, "volumeHandle": name},
                 "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}, **spec}})


def claiming(*claims: str) -> dict[str, Any]:
    """The fields of a pod that uses claims."""
    return {"volumes": [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]}


def selected_node(admin: AdminClient, namespace: str, name: str) -> str:
    annotations = admin.get(claim_path(namespace, name))["metadata"].get("annotations") or {}
    return str(annotations.get(SELECTED_NODE) or "")


def is_bound(admin: AdminClient, namespace: str, name: str) -> bool:
    annotations = admin.get(claim_path(namespace, name))["metadata"].get("annotations") or {}
    return "pv.kubernetes.io/bind-completed" in annotations


def provision(admin: AdminClient, namespace: str, name: str) -> None:
    """Creates the volume of a claim for its selected node, as an external provisioner does once it is asked to."""
    node = until(lambda: selected_node(admin, namespace, name))
    claim = admin.get(claim_path(namespace, name))
    add_volume(admin, f"pvc-{claim['metadata']['uid']}", node, claim["spec"]["storageClassName"], claimRef={
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
        "uid": claim["metadata"]["uid"], "resourceVersion": claim["metadata"]["resourceVersion"]})


def give_up(admin: AdminClient, namespace: str, name: str) -> None:
    """Takes the selected node back, as a provisioner does that cannot make the volume there."""
    admin.merge(claim_path(namespace, name), {"metadata": {"annotations": {SELECTED_NODE: None}}})
