"""The claims of a pod's volumes, and their objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import Json

CLAIM: Final = "PersistentVolumeClaim"
VOLUME: Final = "PersistentVolume"
STORAGE_CLASS: Final = "StorageClass"
CSI_NODE: Final = "CSINode"
CSI_DRIVER: Final = "CSIDriver"
CSI_STORAGE_CAPACITY: Final = "CSIStorageCapacity"

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""The annotation of a claim with the node for which its volume is provisioned."""
_WAITS: Final = "WaitForFirstConsumer"


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A claim of a pod: its name, and whether its object is made for the pod (an ephemeral volume)."""

    name: str
    ephemeral: bool


def claims_of(pod: PodInfo) -> Iterator[VolumeClaim]:
    """Yield the claims of a pod's volumes, in their order."""
    for volume in (pod.object.get("spec") or {}).get("volumes") or ():
        claimed: Any = volume.get("persistentVolumeClaim")
        if claimed:
            yield VolumeClaim(str(claimed.get("claimName") or ""), ephemeral=False)
        elif volume.get("ephemeral") is not None:
            yield VolumeClaim(f"{pod.name}-{volume.get('name')}", ephemeral=True)


def claim_object(snapshot: Snapshot, namespace: str, claim: VolumeClaim) -> Json | None:
    """Return the claim's object, or None."""
    return snapshot.object(CLAIM, f"{namespace}/{claim.name}")


def is_bound(claim: Json) -> bool:
    """Return whether a claim is completely bound: it names a volume, and the volume controller has finished."""
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    named = bool((claim.get("spec") or {}).get("volumeName"))
    return named and (_BIND_COMPLETED in annotations or (claim.get("status") or {}).get("phase") == "Bound")


def is_owned_by(claim: Json, pod: PodInfo) -> bool:
    """Return whether the pod is the controller that owns a claim."""
    owners = (claim.get("metadata") or {}).get("ownerReferences") or ()
    return any(each.get("controller") and each.get("uid") == pod.uid for each in owners)


def class_of(item: Json) -> str:
    """Return the name of the storage class of a claim or a volume, or an empty string."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(_CLASS_ANNOTATION) or (item.get("spec") or {}).get("storageClassName") or "")


def waits_for_consumer(storage_class: Json) -> bool:
    """Return whether claims of a class are bound only when a pod that uses them has a node."""
    return storage_class.get("volumeBindingMode") == _WAITS


def selected_node(claim: Json) -> str:
    """Return the node that a scheduler chose for a claim that is not bound yet, or an empty string."""
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(SELECTED_NODE) or "")


def refers_to(reference: Json, metadata: Json) -> bool:
    """Return whether a volume's `claimRef` means the claim with this metadata; without a UID any claim of its name."""
    same = (reference.get("name"), reference.get("namespace") or "default") == (
        metadata["name"], metadata.get("namespace") or "default")
    return same and reference.get("uid") in (None, "", metadata.get("uid"))


def key_of(item: Json) -> str:
    """Return the key of a claim or a volume in the cluster."""
    metadata = item["metadata"]
    return str(metadata["name"]) if item.get("kind") == VOLUME else (
        f"{metadata.get('namespace') or 'default'}/{metadata['name']}")
