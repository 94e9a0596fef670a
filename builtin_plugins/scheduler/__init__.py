"""The table of the scheduler's built-in plugins.

Kubernetes' default plugins are active by default, the others only where a profile names them. Modules are imported
when a plugin is instantiated. Plugins run in the table's order and, by their `order`, before documents without one:
cheap plugins that refuse many nodes come first, and the first refusal of a node is the one that is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import Json, Read, field_paths
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.kubernetes.vocabulary import POD_GROUP_LABEL, QUOTA_NAME_LABEL


def _with_volume(*kinds: str) -> Callable[[Json], bool]:
    """Return a predicate: whether a pod has a volume of one of these kinds."""

    def has(pod: Json) -> bool:
        return any(each.get(kind) for each in pod["spec"].get("volumes") or () for kind in kinds)

    return has


def _labelled(*names: str) -> Callable[[Json], bool]:
    """Return a predicate: whether a pod has one of these labels."""

    def has(pod: Json) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return any(labels.get(name) for name in names)

    return has


def _requesting(*prefixes: str) -> Callable[[Json], bool]:
    """Return a predicate: whether a container of a pod requests a resource with one of these prefixes."""

    def has(pod: Json) -> bool:
        return any(name.startswith(prefixes) for container in pod["spec"]["containers"]
                   for name in (container.get("resources") or {}).get("requests") or ())

    return has


def _selects_namespaces(pod: Json) -> bool:
    affinity = pod["spec"].get("affinity") or {}
    holders = [affinity.get("podAffinity") or {}, affinity.get("podAntiAffinity") or {}]
    terms = (term for holder in holders for which in holder.values() for term in which or ())
    return any((term.get("podAffinityTerm") or term).get("namespaceSelector") for term in terms)


_CLAIMS: Final = _with_volume("persistentVolumeClaim", "ephemeral")
_GPUS: Final = _requesting("koordinator.sh/gpu", "koordinator.sh/rdma", "koordinator.sh/fpga", "nvidia.com/gpu")
_POD_CLAIMS: Final = Read("Pod", fields=field_paths("spec.volumes.{name,persistentVolumeClaim,ephemeral}"))
_VOLUMES: Final = (
    _POD_CLAIMS, *(Read(kind, _CLAIMS) for kind in ("PersistentVolumeClaim", "PersistentVolume", "StorageClass")))
_REPORTED: Final = tuple(replace(each, refines=True) for each in _VOLUMES)
"""The same for plugins that go with VolumeBinding, which reports the lack of a kind for all of them."""
_SELECTORS: Final = field_paths("spec.selector")
_PORTS: Final = Read("Pod", fields=field_paths("spec.containers.ports", "spec.initContainers.ports"))
READS: Final[Mapping[str, tuple[Read, ...]]] = {
    "NodePorts": (_PORTS,),
    "ResourceClaims": (Read("Pod", fields=field_paths("spec.resourceClaims")),),
    "VolumeRestrictions": (
        *_REPORTED, Read("Pod", fields=field_paths("spec.volumes.{gcePersistentDisk,awsElasticBlockStore,iscsi,rbd}")),
    ),
    "NodeVolumeLimits": (Read("CSINode", _CLAIMS), *_VOLUMES),
    "VolumeBinding": (*_VOLUMES, *(
        Read(kind, _CLAIMS, refines=True) for kind in ("CSINode", "CSIDriver", "CSIStorageCapacity"))),
    "VolumeZone": _REPORTED,
    "PodTopologySpread": tuple(
        Read(kind, fields=_SELECTORS, refines=True)
        for kind in ("Service", "ReplicationController", "ReplicaSet", "StatefulSet")),
    "InterPodAffinity": (Read("Namespace", _selects_namespaces, fields=field_paths("metadata.labels")),),
    "ImageLocality": (
        Read("Node", fields=field_paths("status.images")),
        Read("Pod", fields=field_paths("spec.containers.image", "spec.initContainers.image", "spec.volumes.image")),
    ),
    "DefaultPreemption": (
        Read("PodDisruptionBudget", fields=field_paths("spec.selector", "status.{disruptionsAllowed,disruptedPods}"),
             refines=True),
    ),
    "LoadAwareScheduling": (Read("NodeMetric", fields=field_paths("status.prodReclaimableMetric")),),
    "DeviceShare": (Read("Device", _GPUS),),
    "ElasticQuota": (Read("ElasticQuota", _labelled(QUOTA_NAME_LABEL)),),
    "Coscheduling": (
        Read("PodGroup", _labelled(POD_GROUP_LABEL)), Read("ClusterNetworkTopology", refines=True),
    ),
    # The pod of a Reservation is made from its template, whatever that has; a consumer's ports are compared with it.
    "Reservation": (Read("Reservation", refines=True), _PORTS),
    "NodeNUMAResource": (Read("NodeResourceTopology", refines=True),),
}
"""The objects that a plugin reads beside the fields of nodes and pods in `CLUSTER_READS`, and for which pods."""
_FILTER: Final = (Point.FILTER,)
_SCORE: Final = (Point.SCORE,)


def _plugin(name: str, module: str, points: tuple[Point, ...], description: str) -> Plugin:
    def load(attribute: str) -> Any:
        return getattr(import_module(f".{module}", __name__), attribute)

    def make(args: Mapping[str, Any], handle: Any) -> Any:
        return load(name)(args, handle)

    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]] = load(name).check_args
        return check(args)

    def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
        find: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = getattr(load(name), "ignored_args", None)
        return find(args) if find is not None else {}

    return Plugin(name, Framework.SCHEDULER, points, make, origin="built-in", digest=f"built-in/{name}/1",
                  description=description, check_args=check_args, ignored_args=ignored_args)


_TABLE: Final[tuple[Plugin, ...]] = (
    _plugin("NodeUnschedulable", "kubernetes.node_unschedulable", _FILTER,
            "Keeps pods off nodes that are cordoned, unless they tolerate that."),
    _plugin("NodeName", "kubernetes.node_name", _FILTER, "Lets a pod that names its node run there only."),
    _plugin("TaintToleration", "kubernetes.taint_toleration", (Point.FILTER, Point.SCORE),
            "Keeps pods off nodes with taints that they do not tolerate; prefers nodes with fewer soft ones."),
    _plugin("NodeAffinity", "kubernetes.node_affinity", (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
            "Node selector and required node affinity; prefers what the preferred affinity names."),
    _plugin("NodePorts", "kubernetes.node_ports", (Point.PRE_FILTER, Point.FILTER),
            "The host ports that a pod wants are free on the node."),
    _plugin("NodeResourcesFit", "kubernetes.node_resources_fit", (Point.FILTER, Point.SCORE),
            "Free resources and pod count of the node suffice; scores by how full it would be."),
    _plugin("VolumeRestrictions", "kubernetes.volume_restrictions", (Point.PRE_FILTER, Point.FILTER),
            "A disk is mounted by one pod of a node, and a claim used by one pod, where only one may."),
    _plugin("NodeVolumeLimits", "kubernetes.node_volume_limits", (Point.PRE_FILTER, Point.FILTER),
            "A node holds no more volumes of a CSI driver than it may."),
    _plugin("VolumeBinding", "kubernetes.volume_binding.plugin",
            (Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PRE_BIND),
            "A pod runs where its volumes can be reached, or will be, and is bound after them."),
    _plugin("VolumeZone", "kubernetes.volume_zone", (Point.PRE_FILTER, Point.FILTER),
            "A pod runs in the zones that its volumes' labels name."),
    _plugin("PodTopologySpread", "kubernetes.pod_topology_spread.plugin",
            (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
            "Spreads pods of one kind over zones, nodes and the like."),
    _plugin("InterPodAffinity", "kubernetes.inter_pod_affinity",
            (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE),
            "Pods that want others near them, or want to keep apart."),
    _plugin("LoadAwareScheduling", "load_aware_scheduling.plugin", (Point.FILTER, Point.SCORE, Point.RESERVE),
            "Keeps pods off nodes whose measured load, with what is expected to come, is high."),
    # Before GpuShare, which allocates devices only if no other plugin has.
    _plugin("FragmentationGradient", "fragmentation_gradient.plugin", (Point.SCORE, Point.RESERVE),
            "Pods go where they leave the least GPU that the workload's typical pods could not use."),
    # Before GpuShare too, for the same reason.
    _plugin("DeviceShare", "device_share.plugin",
            (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE, Point.PRE_BIND),
            "Hands out the GPUs, RDMA and FPGA devices that Device objects tell of."),
    _plugin("GpuShare", "gpu_share.plugin", (Point.FILTER, Point.RESERVE),
            "Whole and fractional GPUs: the node has them free, and the pod gets the ones that fit tightest."),
    _plugin("GpuClustering", "gpu_clustering.plugin", _SCORE,
            "Nodes that hold GPU pods of the same kind come first, then the fuller ones."),
    _plugin("NodeResourcesFitPlus", "node_resources_fit_plus.plugin", _SCORE,
            "Packs or spreads each resource by a strategy and a weight of its own."),
    _plugin("ScarceResourceAvoidance", "scarce_resource_avoidance.plugin", _SCORE,
            "Keeps nodes with scarce resources for the pods that request them."),
    _plugin("RandomScore", "random_score.plugin", _SCORE, "One of the nodes, drawn with equal chance."),
    _plugin("NodeResourcesBalancedAllocation", "kubernetes.node_resources_balanced_allocation",
            (Point.PRE_SCORE, Point.SCORE),
            "Nodes whose resources would be used in like shares come first."),
    _plugin("ImageLocality", "kubernetes.image_locality", _SCORE, "Nodes that have a pod's images come first."),
    _plugin("PrioritySort", "kubernetes.priority_sort", (Point.QUEUE_SORT,),
            "Pods of higher priority come first, then those that have waited longest."),
    _plugin("ResourceClaims", "kubernetes.resource_claims", (Point.PRE_ENQUEUE,),
            "A pod with resource claims is left to another scheduler."),
    _plugin("SchedulingGates", "kubernetes.scheduling_gates", (Point.PRE_ENQUEUE,),
            "A pod waits until its scheduling gates are gone."),
    _plugin("DefaultPreemption", "kubernetes.default_preemption", (Point.POST_FILTER,),
            "Pods of lower priority go where a pod finds no node."),
    _plugin("DefaultBinder", "kubernetes.default_binder", (Point.BIND,), "Tells the API server where a pod runs."),
    _plugin("DefaultPreBind", "kubernetes.default_pre_bind", (Point.PRE_BIND,),
            "Sends what other plugins changed of a pod or a Reservation before it is bound, in one patch."),
    _plugin("ElasticQuota", "elastic_quota.plugin", (Point.PRE_FILTER, Point.POST_FILTER, Point.RESERVE),
            "Keeps pods within the quota that they belong to; quotas lend what they do not use."),
    # Before Coscheduling's and Reservation's PostFilter, as in koord-scheduler: the first nomination wins.
    _plugin("SchedulingHint", "scheduling_hint.plugin", (Point.PRE_FILTER,),
            "Looks only at the nodes that a hint on the pod names, or at some of them first."),
    _plugin("Reservation", "reservation.plugin",
            (Point.PRE_FILTER, Point.FILTER, Point.POST_FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE,
             Point.PRE_BIND, Point.BIND),
            "Pods use what was reserved for them, and others do not see it."),
    _plugin("Coscheduling", "coscheduling.plugin",
            (Point.PRE_ENQUEUE, Point.PRE_FILTER, Point.POST_FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE,
             Point.PERMIT, Point.PRE_BIND, Point.POST_BIND),
            "Gangs of pods run together or not at all."),
    _plugin("NodeNUMAResource", "node_numa_resource.plugin",
            (Point.PRE_FILTER, Point.FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE, Point.PRE_BIND),
            "Gives pods cpus of their own, and resources of NUMA nodes that lie together; amplifies cpu."),
)

Enabled = tuple[tuple[str, int], ...]
"""Plugins with their weights, in order; a weight counts at `score` only."""

_FILTERS: Final = (
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
)
_PRE_FILTERS: Final = (
    "NodeAffinity", "NodePorts", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
    "PodTopologySpread", "InterPodAffinity",
)


def _weightless(*names: str) -> Enabled:
    return tuple((name, 1) for name in names)


DEFAULT_PLUGINS: Final[Mapping[Point, Enabled]] = {
    Point.PRE_ENQUEUE: _weightless("SchedulingGates", "ResourceClaims"),
    Point.QUEUE_SORT: _weightless("PrioritySort"),
    Point.PRE_FILTER: _weightless(*_PRE_FILTERS),
    Point.FILTER: _weightless(*_FILTERS),
    Point.POST_FILTER: _weightless("DefaultPreemption"),
    Point.PRE_SCORE: _weightless(
        "NodeAffinity", "PodTopologySpread", "InterPodAffinity", "NodeResourcesBalancedAllocation",
    ),
    Point.SCORE: (
        ("TaintToleration", 3), ("NodeAffinity", 2), ("NodeResourcesFit", 1), ("PodTopologySpread", 2),
        ("InterPodAffinity", 2), ("NodeResourcesBalancedAllocation", 1), ("ImageLocality", 1),
    ),
    Point.RESERVE: _weightless("VolumeBinding"),
    Point.PRE_BIND: _weightless("VolumeBinding"),
    Point.BIND: _weightless("DefaultBinder"),
}
"""The plugins enabled by default, with weights and in order: kube-scheduler's default plugins (v1).

Its DynamicResources is not among the built-ins: ResourceClaims takes its place at preEnqueue.
"""

_KOORDINATOR: Final[Mapping[Point, Enabled]] = {
    Point.PRE_ENQUEUE: _weightless("Coscheduling"),
    Point.PRE_FILTER: _weightless(
        "SchedulingHint", "Reservation", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota",
    ),
    Point.FILTER: _weightless("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
    Point.PRE_SCORE: _weightless("Reservation", "Coscheduling"),
    Point.SCORE: (
        ("LoadAwareScheduling", 1), ("NodeNUMAResource", 1), ("DeviceShare", 1), ("Reservation", 5000),
        ("Coscheduling", 1),
    ),
    Point.RESERVE: _weightless(
        "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "ElasticQuota",
    ),
    Point.PERMIT: _weightless("Coscheduling"),
    Point.PRE_BIND: _weightless("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    Point.POST_BIND: _weightless("Coscheduling"),
}
_INSTEAD: Final[Mapping[Point, Enabled]] = {
    Point.QUEUE_SORT: _weightless("PrioritySort"),
    Point.POST_FILTER: _weightless("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"),
    Point.BIND: _weightless("Reservation", "DefaultBinder"),
}

KOORDINATOR_PLUGINS: Final[Mapping[Point, Enabled]] = {
    point: _INSTEAD.get(point, DEFAULT_PLUGINS.get(point, ()) + _KOORDINATOR.get(point, ()))
    for point in Point if point in {*DEFAULT_PLUGINS, *_KOORDINATOR, *_INSTEAD}
}
"""The plugins of koord-scheduler's shipped profile: Kubernetes' defaults without the disabled ones, then Koordinator's.
It names all plugins, including those that are not among the built-ins.
"""

_WEIGHTS: Final[Mapping[str, int]] = {
    name: 1 for enabled in DEFAULT_PLUGINS.values() for name, _ in enabled
} | dict(DEFAULT_PLUGINS[Point.SCORE])

_NO_MORE: Final = (Read("Node", fields=frozenset()), Read("Pod", fields=frozenset()))
"""Plugins that declare no fields of nodes or pods read all; these read those that are named above."""
PLUGINS: Final[tuple[Plugin, ...]] = tuple(
    replace(plugin, order=place - len(_TABLE), enabled=weight is not None, default_weight=weight,
            reads=(*_NO_MORE, *READS.get(plugin.name, ())))
    for place, plugin in enumerate(_TABLE) for weight in (_WEIGHTS.get(plugin.name),)
)
