"""A cycle yields the same with what is examined per template, and remembered between cycles, as pod by pod."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.framework.registry import Registry

from .conftest import NOW

_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_ARGS = {
    "PodLifeTime": {"maxPodLifeTimeSeconds": 86_400},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 10},
    "RemovePodsViolatingNodeTaints": {},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "RemovePodsViolatingInterPodAntiAffinity": {},
    "RemoveDuplicates": {},
    "RemovePodsViolatingTopologySpreadConstraint": {"constraints": ["DoNotSchedule"]},
    "LowNodeUtilization": {"thresholds": {"cpu": 30, "pods": 30}, "targetThresholds": {"cpu": 50, "pods": 50}},
}
_EVICTOR_ARGS = {"nodeFit": True, "minReplicas": 2, "priorityThreshold": {"value": 1000}}
_WORKLOADS = 4
_NODES = st.lists(st.fixed_dictionaries({
    "zone": st.sampled_from(["x", "y"]), "disk": st.sampled_from(["ssd", "hdd"]), "is_tainted": st.booleans(),
    "is_cordoned": st.booleans(),
}), min_size=2, max_size=5)
_SHAPES = st.lists(st.fixed_dictionaries({
    "cpu": st.sampled_from(["500m", "1"]), "kind": st.sampled_from(["ReplicaSet", "ReplicaSet", "DaemonSet"]),
    "priority": st.sampled_from([0, 0, 5000]), "needs_ssd": st.booleans(), "avoids": st.booleans(),
    "spreads": st.booleans(), "tolerates": st.booleans(),
}), min_size=_WORKLOADS, max_size=_WORKLOADS)
_POD = st.fixed_dictionaries({
    "workload": st.integers(0, _WORKLOADS - 1), "on": st.integers(0, 4), "is_old": st.booleans(),
    "restarts": st.sampled_from([0, 0, 20]), "is_leaving": st.sampled_from([False, False, False, True]),
    "asks": st.sampled_from([False, False, False, True]),
})
_PODS = st.lists(_POD, min_size=4, max_size=14)
_CHANGES = st.lists(st.tuples(st.integers(0, 13), _POD), max_size=3)


class PodByPod:
    """A filter that decides about single pods only, as the one that it wraps."""

    name = "DefaultEvictor"

    def __init__(self, of):
        self.eviction_filter = of.eviction_filter
        self.pre_eviction_filter = of.pre_eviction_filter
        self.evict = of.evict


def node(number, given):
    return {
        "kind": "Node", "metadata": {"name": f"n{number}", "labels": {
            _HOST: f"n{number}", _ZONE: given["zone"], "disk": given["disk"]}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}] if given["is_tainted"] else [],
                 "unschedulable": given["is_cordoned"]},
        "status": {"allocatable": {"cpu": "6", "memory": "8Gi", "pods": "8"}},
    }


def pod(number, given, shapes, nodes):
    shape, app = shapes[given["workload"]], f"app-{given['workload']}"
    spec = {"nodeName": f"n{given['on'] % nodes}", "priority": shape["priority"],
            "containers": [{"name": "c", "image": app, "resources": {"requests": {"cpu": shape["cpu"]}}}]}
    affinity, selector = {}, {"matchLabels": {"app": app}}
    if shape["needs_ssd"]:
        terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if shape["avoids"]:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": _HOST, "labelSelector": selector}]}
    if affinity:
        spec["affinity"] = affinity
    if shape["spreads"]:
        spec["topologySpreadConstraints"] = [{"topologyKey": _ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                                              "labelSelector": selector}]
    if shape["tolerates"]:
        spec["tolerations"] = [{"operator": "Exists"}]
    metadata = {"name": f"p{number}", "namespace": f"d{number % 2}", "uid": f"p{number}",
                "labels": {"app": app}, "ownerReferences": [{"kind": shape["kind"], "name": app, "uid": app}],
                "creationTimestamp": "2020-01-01T00:00:00Z" if given["is_old"] else "2026-01-01T11:00:00Z"}
    if given["is_leaving"]:
        metadata["deletionTimestamp"] = "2026-01-01T11:30:00Z"
    if given["asks"]:
        metadata["annotations"] = {"descheduler.alpha.kubernetes.io/evict": ""}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {
        "phase": "Running", "containerStatuses": [{"name": "c", "restartCount": given["restarts"]}]}}


def built():
    spec = DeschedulerProfileSpec("p", deschedule=tuple(_ARGS)[:5], balance=tuple(_ARGS)[5:],
                                  filter=("DefaultEvictor",), args={**_ARGS, "DefaultEvictor": _EVICTOR_ARGS})
    return build_profiles([spec], Registry.of(PLUGINS, generation=1), dry_run=True)


def pod_by_pod():
    profile, = built()
    filters = tuple(replace(each, instance=PodByPod(each.instance)) for each in profile.filters)
    return (replace(profile, filters=filters),)


@given(_NODES, _SHAPES, _PODS, _CHANGES)
@settings(max_examples=150, deadline=None)
def test_a_later_cycle_by_templates_yields_what_a_first_one_pod_by_pod_does(nodes, shapes, pods, changes):
    objects = [node(number, each) for number, each in enumerate(nodes)]
    items = [pod(number, each, shapes, len(nodes)) for number, each in enumerate(pods)]
    cluster, profiles = Cluster([*objects, *items]), built()
    assert not run_cycle(profiles, cluster.snapshot(NOW)).failures
    for number, change in changes:
        changed = pod(number % len(items), change, shapes, len(nodes))
        items[number % len(items)] = changed
        cluster.upsert(changed)
    later = run_cycle(profiles, cluster.snapshot(NOW)).to_json()
    order = [each.key for row in range(len(nodes)) for each in cluster.snapshot(NOW).pods(row)]
    by_key = {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in items}
    # On each node the pods have the order in which they came.
    placed = [by_key.pop(key) for key in order]
    fresh = Cluster([*objects, *placed, *by_key.values()])
    assert later == run_cycle(pod_by_pod(), fresh.snapshot(NOW)).to_json()
