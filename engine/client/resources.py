"""The kinds that the engine reads and writes, and where the API serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec


@dataclass(frozen=True, slots=True)
class ApiResource:
    """The API resource of a kind; `group` is empty for the core ones."""

    kind: str
    group: str
    version: str
    plural: str
    required: bool = False
    """True if decisions require it: if not, it is omitted if the cluster does not have or list it."""
    poll_s: float = 0.0
    """Of a kind that cannot be watched, the seconds from one list to the next; 0 for any other."""

    @property
    def reading(self) -> tuple[str, ...]:
        """The verbs that are needed to follow its objects."""
        return ("list",) if self.poll_s else ("list", "watch")

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of all objects, those of a namespace, one object, or a subresource of one."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


RESOURCES: Final = (
    ApiResource("Node", "", "v1", "nodes", required=True),
    ApiResource("Pod", "", "v1", "pods", required=True),
    ApiResource("Namespace", "", "v1", "namespaces"),
    ApiResource("Service", "", "v1", "services"),
    ApiResource("ReplicationController", "", "v1", "replicationcontrollers"),
    ApiResource("ReplicaSet", "apps", "v1", "replicasets"),
    ApiResource("StatefulSet", "apps", "v1", "statefulsets"),
    ApiResource("PersistentVolume", "", "v1", "persistentvolumes"),
    ApiResource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    ApiResource("StorageClass", "storage.k8s.io", "v1", "storageclasses"),
    ApiResource("CSINode", "storage.k8s.io", "v1", "csinodes"),
    ApiResource("CSIDriver", "storage.k8s.io", "v1", "csidrivers"),
    ApiResource("CSIStorageCapacity", "storage.k8s.io", "v1", "csistoragecapacities"),
    ApiResource("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    ApiResource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses"),
    ApiResource("NodeMetric", "slo.koordinator.sh", "v1alpha1", "nodemetrics"),
    ApiResource("NodeSLO", "slo.koordinator.sh", "v1alpha1", "nodeslos"),
    ApiResource("Device", "scheduling.koordinator.sh", "v1alpha1", "devices"),
    ApiResource("Reservation", "scheduling.koordinator.sh", "v1alpha1", "reservations"),
    ApiResource("PodMigrationJob", "scheduling.koordinator.sh", "v1alpha1", "podmigrationjobs"),
    ApiResource("PodGroup", "scheduling.sigs.k8s.io", "v1alpha1", "podgroups"),
    ApiResource("ElasticQuota", "scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas"),
    ApiResource("ClusterNetworkTopology", "scheduling.koordinator.sh", "v1alpha1", "clusternetworktopologies"),
    ApiResource("NodeResourceTopology", "topology.node.k8s.io", "v1alpha1", "noderesourcetopologies"),
)
WORKLOADS: Final = (
    ApiResource("Deployment", "apps", "v1", "deployments"),
    ApiResource("CloneSet", "apps.kruise.io", "v1alpha1", "clonesets"),
)
"""Kinds that only a descheduler reads: how many pods a workload should have."""
MEASUREMENTS: Final = (
    ApiResource("NodeMetrics", "metrics.k8s.io", "v1beta1", "nodes", poll_s=15.0),
    ApiResource("PodMetrics", "metrics.k8s.io", "v1beta1", "pods", poll_s=15.0),
)
"""Kinds that only a descheduler reads: the usage that a metrics server measures, every 15 s by default."""
_BUILT_IN: Final = (*RESOURCES, *WORKLOADS, *MEASUREMENTS)
_KNOWN: Final = {resource.kind: resource for resource in _BUILT_IN}
BY_KIND: Final[Mapping[str, ApiResource]] = MappingProxyType(_KNOWN)
"""The resources by kind, with those that plugins have declared."""


def declare(resource: ApiResource) -> None:
    """Add the resource of a kind that a plugin brings, for the rest of the process.

    Raises:
        ValueError: the kind is that of another resource.
    """
    known = _KNOWN.setdefault(resource.kind, resource)
    if (known.api_version, known.plural) != (resource.api_version, resource.plural):
        raise ValueError(f"the kind `{resource.kind}` is {known.plural} of `{known.api_version}`, and cannot be "
                         f"{resource.plural} of `{resource.api_version}` too")


def declared_kinds() -> tuple[str, ...]:
    """Return the kinds that plugins have declared."""
    return tuple(_KNOWN)[len(_BUILT_IN):]


class HeadMetadata(msgspec.Struct, gc=False):
    """The identity of an object, and its version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - as in the JSON


class _Head(msgspec.Struct, gc=False):
    metadata: HeadMetadata = msgspec.field(default_factory=HeadMetadata)


HEADS: Final = msgspec.json.Decoder(_Head)
"""Decodes of an object what identifies it, and nothing else."""


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """One object on the API server. With a UID it means that object only, not a later one of its name."""

    resource: ApiResource
    namespace: str
    """Empty for a kind without namespaces."""
    name: str
    uid: str = ""

    def path(self, subresource: str | None = None) -> str:
        """Return the URL path of the object, or of its subresource."""
        return self.resource.path(self.namespace, self.name, subresource)

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields (`extra`) of a line of the log about the object: `pod`, its namespace and name, if it is one."""
        return {"pod": f"{self.namespace}/{self.name}"} if self.resource.kind == "Pod" else {}


def pod_reference(namespace: str, name: str, uid: str) -> ObjectReference:
    """Return the reference to a pod."""
    return ObjectReference(BY_KIND["Pod"], namespace, name, uid)
