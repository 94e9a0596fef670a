"""The shipped document overutilized-nodes evicts the pods that LowNodeUtilization evicts, in the same order."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

TEXT = (Path(__file__).parents[2] / "policies" / "descheduler" / "overutilized-nodes.yaml").read_text()
DOCUMENT, PLUGIN = "overutilized-nodes", "LowNodeUtilization"
NOW = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z
YOUNG, OLD = "2026-01-01T11:59:00Z", "2026-01-01T10:00:00Z"
SAID = {
    "thresholds", "targetThresholds", "useDeviationThresholds", "numberOfNodes", "evictableNamespaces",
    "evictionLimits",
}
"""The arguments that the document has as params, or as its limits."""
OLD_PODS_GO = {"PodLifeTime": {"maxPodLifeTimeSeconds": 3600}}


BY_USAGE = (("requested[each]", "usage[each]"), ("requests[each]", "podUsage[each]"))
"""The changes that make the document go by measured usage."""


@functools.cache
def registry(per_node, *, by_usage=False):
    text = TEXT if per_node is None else f"{TEXT}  limits: {{perNode: {per_node}}}\n"
    for requested, used in BY_USAGE if by_usage else ():
        assert text.count(requested) == 1
        text = text.replace(requested, used)
    return Registry.of([*PLUGINS, *compile_documents(load([Source("overutilized-nodes.yaml", text)]))], generation=1)


def cycle(objects, name, args, *, before=None, filters=(), more=None, total=None):
    """One cycle with the plugin or the document, after the Deschedule plugins `before` with their arguments."""
    per_node = (args.get("evictionLimits") or {}).get("node")
    given_args = args if name == PLUGIN else {
        "thresholds": args["thresholds"], "targetThresholds": args["targetThresholds"],
        "useDeviationThresholds": args.get("useDeviationThresholds") or False,
        "numberOfNodes": args.get("numberOfNodes") or 0,
        "excludedNamespaces": (args.get("evictableNamespaces") or {}).get("exclude") or [],
    }
    spec = DeschedulerProfileSpec(
        "documents", deschedule=tuple(before or ()), balance=(name,) if name == PLUGIN else (), filter=filters,
        disabled=frozenset({DOCUMENT} - {name}), args={name: given_args, **(before or {}), **(more or {})},
    )
    made = registry(per_node, by_usage="metricsUtilization" in args)
    result = run_cycle(build_profiles([spec], made, dry_run=True), Cluster(objects).snapshot(NOW),
                       limits=CycleLimits(total=total))
    assert result.failures == ()
    return result


def evictions(objects, name, args, **how):
    return [(each.node, each.pod) for each in cycle(objects, name, args, **how).evicted]


def node(name, *, cordoned=False, taints=(), **allocatable):
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts},
            "spec": {"unschedulable": cordoned, "taints": list(taints)}}


def pod(name, on, cpu="1", *, created=YOUNG, namespace="d", annotations=None, limits=None, **spec):
    requests = {"cpu": cpu, **spec.pop("requests", {})}
    container = {"name": "c", "resources": {"requests": requests, **({"limits": limits} if limits else {})}}
    return {
        "kind": "Pod", "status": {"phase": "Running"}, "spec": {"nodeName": on, "containers": [container], **spec},
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created, "uid": name,
                     "annotations": annotations or {},
                     "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r"}]},
    }


CPU = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}
FULL = [node("a-full"), node("b-fuller"), node("c-empty"), *(pod(f"a{each}", "a-full") for each in range(3)),
        *(pod(f"b{each}", "b-fuller") for each in range(4))]


def test_the_fullest_node_gives_up_pods_first_until_the_empty_ones_together_are_full():
    result = cycle(FULL, DOCUMENT, CPU)
    assert [(each.node, each.pod) for each in result.evicted] == [("b-fuller", "d/b0"), ("b-fuller", "d/b1")]
    assert [(each.pod, each.decision.stopped_rule, each.decision.message) for each in result.staying] == [
        ("d/b2", "until", "node `b-fuller` needs to give up no more pods"),
        ("d/b3", "until", "node `b-fuller` needs to give up no more pods"),
        *((f"d/a{each}", "nodes.room", "the targets have no room for more `cpu`: pods took 2000 of 2000")
          for each in range(3)),
    ]
    assert evictions(FULL, PLUGIN, CPU) == [(each.node, each.pod) for each in result.evicted]


def test_its_own_params_evict_what_the_plugin_evicts_with_these_arguments():
    args = {"thresholds": dict.fromkeys(("cpu", "memory", "pods"), 20),
            "targetThresholds": dict.fromkeys(("cpu", "memory", "pods"), 50)}
    spec = DeschedulerProfileSpec("documents")
    result = run_cycle(build_profiles([spec], registry(None), dry_run=True), Cluster(FULL).snapshot(NOW))
    assert [(each.node, each.pod) for each in result.evicted] == evictions(FULL, PLUGIN, args) != []


def test_pods_that_others_evict_in_the_cycle_are_on_neither_source_nor_target():
    # By requests alone `c` is no target; without the pod that leaves it is, and has room for two.
    objects = [node("a"), node("c"), *(pod(f"a{each}", "a") for each in range(4)), pod("old", "c", created=OLD)]
    how = {"before": OLD_PODS_GO}
    assert evictions(objects, DOCUMENT, CPU, **how) == evictions(objects, PLUGIN, CPU, **how) == [
        ("c", "d/old"), ("a", "d/a0"), ("a", "d/a1"),
    ]


# Random clusters

GPU, PERCENT = "nvidia.com/gpu", st.sampled_from([10, 25, 33.3, 50, 0])
TAINTS = st.lists(st.fixed_dictionaries({
    "key": st.sampled_from(["a", "b"]), "effect": st.sampled_from(["NoSchedule", "PreferNoSchedule"]),
}), max_size=2)
TOLERATIONS = st.lists(st.sampled_from([{"operator": "Exists"}, {"key": "a", "operator": "Exists"}]), max_size=2)
NODES = st.lists(st.builds(
    lambda cpu, memory, pods, gpus, **more: {"cpu": cpu, "memory": memory, "pods": pods, GPU: gpus, **more},
    cpu=st.sampled_from(["2", "4", "6500m"]), memory=st.sampled_from(["4Gi", "8Gi"]),
    pods=st.sampled_from(["4", "10"]), gpus=st.sampled_from(["0", "4"]),
    cordoned=st.sampled_from([False, False, True]), taints=st.one_of(st.just([]), TAINTS),
), min_size=2, max_size=5)
# Most pods are on the first nodes, so that some nodes are full and others empty.
PODS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 1, 1, 2]), st.fixed_dictionaries({
    "cpu": st.sampled_from(["300m", "1", "1500m", "0"]),
    "requests": st.fixed_dictionaries({}, optional={
        "memory": st.sampled_from(["1Gi", "1500Mi"]), GPU: st.sampled_from(["1", "2"]),
    }),
    "created": st.sampled_from([YOUNG, YOUNG, OLD]), "namespace": st.sampled_from(["d", "d", "d", "e"]),
    "tolerations": TOLERATIONS,
}, optional={
    "priority": st.sampled_from([-1, 0, 5000]), "limits": st.just({"cpu": "1", "memory": "1Gi"}),
    "annotations": st.just({"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}),
})), min_size=4, max_size=16)


@st.composite
def arguments(draw):
    names = draw(st.lists(st.sampled_from(["cpu", "memory", "pods", GPU]), min_size=1, max_size=3, unique=True))
    low = {name: draw(PERCENT) for name in names}
    return {
        "thresholds": low,
        "targetThresholds": {name: draw(st.sampled_from([least, least + 15, 60])) for name, least in low.items()},
        "useDeviationThresholds": draw(st.booleans()), "numberOfNodes": draw(st.sampled_from([0, 0, 0, 1])),
        "evictableNamespaces": draw(st.sampled_from([None, None, {"exclude": ["e"]}])),
        "evictionLimits": draw(st.sampled_from([None, None, {"node": 2}, {"node": 1}])),
    }


@settings(max_examples=250)
@given(NODES, PODS, arguments(), st.booleans(), st.sampled_from([None, None, None, 2]))
def test_the_document_evicts_what_the_plugin_evicts(nodes, pods, args, after_others, total):
    objects = [node(f"n{number}", **each) for number, each in enumerate(nodes)]
    objects += [pod(f"p{number:02}", f"n{on}", **each) for number, (on, each) in enumerate(pods)]
    how = {"before": OLD_PODS_GO if after_others else None, "total": total}
    document, plugin = (evictions(objects, name, args, **how) for name in (DOCUMENT, PLUGIN))
    assert document == plugin
    event("balanced" if len(plugin) > sum(each["created"] == OLD for _, each in pods) * after_others else "as before")


def measurements(nodes, pods):
    """Yield the measurements of nodes, each with its system's usage, and pods: as NodeMetrics of both APIs."""
    def amounts(*of):
        cpu, memory = (sum(each) for each in zip(*of, strict=True))
        return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}

    for number, (name, own) in enumerate(nodes.items()):
        on = {each: used for each, (row, used) in pods.items() if row == number}
        total = amounts(own, *on.values())
        yield {"kind": "NodeMetrics", "metadata": {"name": name}, "usage": total}
        yield {"kind": "NodeMetric", "metadata": {"name": name}, "status": {
            "updateTime": "2026-01-01T11:59:30Z", "nodeMetric": {"nodeUsage": {"resources": total}},
            "podsMetric": [
                {"namespace": "d", "name": each, "podUsage": {"resources": amounts(used)}} for each, used in on.items()
            ]}}
        for each, used in on.items():
            yield {"kind": "PodMetrics", "metadata": {"namespace": "d", "name": each}, "containers": [
                {"name": "c", "usage": amounts(used)}]}


USED = st.tuples(st.sampled_from([0, 200, 900, 1600]), st.sampled_from([0, 300, 1500, 3000]))


@st.composite
def measured_arguments(draw):
    names = draw(st.lists(st.sampled_from(["cpu", "memory", "pods"]), min_size=1, max_size=3, unique=True))
    low = {name: draw(PERCENT) for name in names}
    return {
        "thresholds": low, "metricsUtilization": {"source": "KubernetesMetrics"},
        "targetThresholds": {name: draw(st.sampled_from([least, least + 15, 60])) for name, least in low.items()},
        "useDeviationThresholds": draw(st.booleans()),
    }


@settings(max_examples=150)
@given(NODES, st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2]), USED), min_size=4, max_size=14), st.data(),
       measured_arguments())
def test_with_usage_in_place_of_requests_it_evicts_what_the_plugin_evicts_by_metrics(nodes, pods, data, args):
    of_nodes = {f"n{number}": data.draw(USED) for number in range(len(nodes))}
    of_pods = {f"p{number:02}": (min(on, len(nodes) - 1), used) for number, (on, used) in enumerate(pods)}
    objects = [
        *(node(f"n{number}", **each) for number, each in enumerate(nodes)),
        *(pod(name, f"n{on}") for name, (on, _) in of_pods.items()), *measurements(of_nodes, of_pods),
    ]
    document, plugin = (evictions(objects, name, args) for name in (DOCUMENT, PLUGIN))
    assert document == plugin
    event("balanced" if plugin else "as before")


def golden_cases():
    for path in sorted(Path(os.environ.get("KOORD_POLICY_CASES", "nowhere")).glob("descheduler*.json")):
        for case in json.loads(path.read_bytes()):
            if case["plugin"] == PLUGIN and case["point"] == "balance" and case["args"].keys() <= SAID:
                yield pytest.param(case, id=case["id"])


@pytest.mark.parametrize("case", list(golden_cases()))
def test_the_document_evicts_what_the_plugin_evicts_in_a_golden_case(case):
    objects = [{"kind": kind, **each} for kind, field in (("Node", "nodes"), ("Pod", "pods")) for each in case[field]]
    how = {"filters": ("DefaultEvictor",), "more": {"DefaultEvictor": case["evictor"].get("args") or {}}}
    assert evictions(objects, DOCUMENT, case["args"], **how) == evictions(objects, PLUGIN, case["args"], **how)
