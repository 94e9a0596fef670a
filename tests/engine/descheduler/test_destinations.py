"""The nodes that a pod may move to are those that take it one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.pods import NodeFit, PlacementGroups, priority_order

_AVOIDING = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "pool", "labelSelector": {"matchLabels": {"app": "a"}}, "namespaces": ["d", "e"]}]}}
_NODES = st.lists(st.fixed_dictionaries({
    "cpu": st.sampled_from(["1", "2"]), "pods": st.sampled_from(["1", "3"]), "pool": st.sampled_from(["x", "y"]),
    "tainted": st.booleans(), "cordoned": st.booleans(),
}), min_size=1, max_size=4)
_PODS = st.lists(st.fixed_dictionaries({
    "on": st.integers(0, 3), "cpu": st.sampled_from(["0", "500m", "1"]), "pool": st.sampled_from([None, "x"]),
    "tolerates": st.booleans(), "avoids": st.booleans(), "app": st.sampled_from(["a", "b"]),
}), min_size=1, max_size=6)


def node(index, given):
    taints = [{"key": "k", "effect": "NoSchedule"}] if given["tainted"] else []
    return {
        "kind": "Node", "metadata": {"name": f"n{index}", "labels": {"pool": given["pool"]}},
        "spec": {"taints": taints, "unschedulable": given["cordoned"]},
        "status": {"allocatable": {"cpu": given["cpu"], "pods": given["pods"]}},
    }


def pod(index, given, nodes):
    spec = {"nodeName": f"n{given['on'] % nodes}", "containers": [
        {"name": "c", "resources": {"requests": {"cpu": given["cpu"]}}}]}
    if given["pool"]:
        spec["nodeSelector"] = {"pool": given["pool"]}
    if given["tolerates"]:
        spec["tolerations"] = [{"operator": "Exists"}]
    if given["avoids"]:
        spec["affinity"] = _AVOIDING
    # Two pods of one name in two namespaces are no conflict.
    return {"kind": "Pod", "spec": spec, "metadata": {
        "name": f"p{index // 2}", "namespace": "de"[index % 2], "labels": {"app": given["app"]}}}


@given(_NODES, _PODS)
@settings(max_examples=150, deadline=None)
def test_a_pod_has_a_destination_if_another_node_takes_it(nodes, pods):
    objects = [node(index, each) for index, each in enumerate(nodes)]
    items = [pod(index, each, len(nodes)) for index, each in enumerate(pods)]
    snapshot = Cluster([*objects, *items]).snapshot(0)
    fit, rows = NodeFit(snapshot), np.arange(snapshot.size, dtype=np.intp)
    destinations = fit.destinations(rows)
    for item in items:
        info = PodInfo.of(item)
        others = [row for row in rows.tolist() if snapshot.names[row] != info.node_name]
        assert destinations.take(info) is any(fit.fits_strictly(info, row) for row in others)


def test_pods_with_equal_constraints_share_their_feasible_nodes():
    nodes = [node(index, {"cpu": "1", "pods": "3", "pool": pool, "tainted": tainted, "cordoned": True})
             for index, (pool, tainted) in enumerate([("x", False), ("y", False), ("x", True)])]
    given = {"on": 0, "cpu": "1", "pool": None, "tolerates": False, "avoids": False, "app": "a"}
    free, bound = (PodInfo.of(pod(0, {**given, **changes}, 3)) for changes in ({}, {"pool": "x"}))
    groups = PlacementGroups(Cluster(nodes).snapshot(0), [0, 1, 2])
    assert (groups.rows(free).tolist(), groups.rows(bound).tolist()) == ([0, 1], [0])
    assert (groups.feasible([free, bound]), groups.feasible([bound])) == (2, 0)


def test_pods_without_a_priority_go_before_others_and_those_that_prefer_to_stay_last():
    def of(name, priority=None, **annotations):
        spec = {"containers": [{"name": "c"}], **({} if priority is None else {"priority": priority})}
        metadata = {"name": name, "annotations": {
            f"descheduler.alpha.kubernetes.io/{key.replace('_', '-')}": value for key, value in annotations.items()}}
        return PodInfo.of({"metadata": metadata, "spec": spec})

    pods = [of("zero", 0), of("stays", -1, prefer_no_eviction=""), of("low", -1), of("none")]
    assert [each.name for each in sorted(pods, key=priority_order)] == ["none", "low", "stays", "zero"]
