"""The custom resources of Koordinator that the scheduler reads and writes, as definitions of ours without schemas."""

from __future__ import annotations

from typing import Final, NamedTuple

from .control_plane import AdminClient
from .scheduler_process import until

_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Custom(NamedTuple):
    """A kind; `status` says whether it has the subresource, as in Koordinator's own definitions."""

    kind: str
    plural: str
    group: str
    version: str
    namespaced: bool
    status: bool

    def path(self, namespace: str = "", name: str = "") -> str:
        """The URL path of all objects, of those of a namespace, or of one."""
        parts = ["/apis", self.group, self.version, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*parts, *((name,) if name else ())])

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


_KOORDINATOR: Final = "scheduling.koordinator.sh"
_SIG: Final = "scheduling.sigs.k8s.io"
_SLO: Final = "slo.koordinator.sh"
RESERVATION: Final = Custom("Reservation", "reservations", _KOORDINATOR, "v1alpha1", namespaced=False, status=True)
DEVICE: Final = Custom("Device", "devices", _KOORDINATOR, "v1alpha1", namespaced=False, status=False)
MIGRATION_JOB: Final = Custom("PodMigrationJob", "podmigrationjobs", _KOORDINATOR, "v1alpha1", namespaced=False,
                              status=True)
POD_GROUP: Final = Custom("PodGroup", "podgroups", _SIG, "v1alpha1", namespaced=True, status=False)
ELASTIC_QUOTA: Final = Custom("ElasticQuota", "elasticquotas", _SIG, "v1alpha1", namespaced=True, status=False)
QUOTA_PROFILE: Final = Custom("ElasticQuotaProfile", "elasticquotaprofiles", "quota.koordinator.sh", "v1alpha1",
                              namespaced=True, status=False)
NODE_METRIC: Final = Custom("NodeMetric", "nodemetrics", _SLO, "v1alpha1", namespaced=False, status=True)
NODE_SLO: Final = Custom("NodeSLO", "nodeslos", _SLO, "v1alpha1", namespaced=False, status=True)
NODE_TOPOLOGY: Final = Custom("NodeResourceTopology", "noderesourcetopologies", "topology.node.k8s.io", "v1alpha1",
                              namespaced=False, status=False)
COLOCATION_PROFILE: Final = Custom("ClusterColocationProfile", "clustercolocationprofiles", "config.koordinator.sh",
                                   "v1alpha1", namespaced=False, status=False)
ALL: Final = (RESERVATION, DEVICE, MIGRATION_JOB, POD_GROUP, ELASTIC_QUOTA, QUOTA_PROFILE, NODE_METRIC, NODE_SLO,
              NODE_TOPOLOGY)


def define(admin: AdminClient, *kinds: Custom) -> None:
    """Defines kinds, and waits until the API server serves them."""
    for kind in kinds:
        admin.create(_DEFINITIONS, {
            # Groups below k8s.io need it.
            "metadata": {"name": f"{kind.plural}.{kind.group}", "annotations": {
                "api-approved.kubernetes.io": "unapproved, for tests"}},
            "spec": {
                "group": kind.group, "scope": "Namespaced" if kind.namespaced else "Cluster",
                "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower(),
                          "listKind": f"{kind.kind}List"},
                "versions": [{
                    "name": kind.version, "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    **({"subresources": {"status": {}}} if kind.status else {})}]}})
    await_kinds(admin, *kinds)


def await_kinds(admin: AdminClient, *kinds: Custom) -> None:
    """Waits until the API server serves kinds."""
    for kind in kinds:
        until(lambda kind=kind: _is_established(admin, kind))  # type: ignore[misc]


def _is_established(admin: AdminClient, kind: Custom) -> bool:
    conditions = admin.get(f"{_DEFINITIONS}/{kind.plural}.{kind.group}").get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
