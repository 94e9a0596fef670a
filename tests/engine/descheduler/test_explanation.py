from __future__ import annotations

import json

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.explanation import ExplainEvictionRequest, explain_eviction
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source
from tests.output_schemas import check_part

NOW = 1_767_355_200_000_000_000


def node(name, labels=None, ready=True, **spec):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": str(ready)}]}}


def pod(name, on, phase="Running", **labels):
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": labels,
                                        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r"}]},
            "spec": {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase}}


def metric(name, cpu):
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": {
        "updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}},
        "podsMetric": [{"namespace": "shop", "name": "web", "podUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}],
    }}


OBJECTS = [
    node("hot"), node("cool"), metric("hot", "3600m"), metric("cool", "400m"), pod("web", "hot"), pod("other", "cool"),
]
SPEC = {
    "type": "Balance", "params": {"high": 80},
    "nodes": {"source": "usage.cpu * 100 / allocatable.cpu > params.high", "target": "usage.cpu < 1000"},
    "criteria": [{"name": "small", "expression": "podUsage.cpu <= 2000"}],
}


def told(
    objects=OBJECTS, name="shop/web", cycles=1, limits=None, selector=None, profile=None, args=None, documents=(),
    **changes,
):
    """Return whether the pod is evicted, and the lines about the one profile's plugins and filters."""
    texts = [("drain", {**SPEC, **changes}), *documents]
    plugins = compile_documents(load([Source(f"{each}.yaml", json.dumps({
        "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "DeschedulerPlugin", "metadata": {"name": each},
        "spec": spec,
    })) for each, spec in texts]))
    cluster = Cluster(objects)
    snapshot = cluster.snapshot(NOW)
    profiles = build_profiles(
        [profile or DeschedulerProfileSpec("p")], Registry.of((*builtins(), *plugins), generation=1), dry_run=True,
        snapshot=lambda: snapshot, memory=SourceStreaks(),
    )
    evicted, found = explain_eviction(
        ExplainEvictionRequest(cluster.pod(name), profiles, snapshot, limits or CycleLimits(), selector, cycles),
    )
    check_part("explain", "finding", json.loads(json.dumps(found.to_json())))
    return evicted, found.as_text().splitlines()


def test_the_planned_migration_of_the_dry_run_is_no_reason_to_stay():
    owned = pod("web", "hot")
    owned["metadata"]["uid"] = "web"
    profile = DeschedulerProfileSpec(
        "p", evict=("MigrationController",), filter=("MigrationController",),
        args={"MigrationController": {"defaultJobMode": "EvictDirectly"}})
    for cycles in (1, 3):
        evicted, lines = told([*OBJECTS[:4], owned], profile=profile, cycles=cycles)
        assert evicted, lines
        assert lines[-2:] == ["who may veto it", "  allows      MigrationController"]


def test_a_pod_that_goes_says_by_whom_and_why():
    evicted, lines = told()
    assert evicted
    assert lines == [
        "shop/web  koord-prod LS  on hot",
        "it would be evicted by drain: small",
        "",
        "profile p",
        "  evicts      drain: small",
    ]


def test_a_node_that_is_no_source_says_how_far_it_is():
    evicted, lines = told([*OBJECTS[:2], metric("hot", "2"), *OBJECTS[3:]])
    assert not evicted
    assert lines[1:] == [
        "it stays",
        "",
        "profile p",
        "  not source  drain: hot is none",
        "              usage.cpu * 100 / allocatable.cpu 50 %, must be above 80 % (params.high): short by 30 %",
        "                from allocatable.cpu 4 cores, usage.cpu 2 cores",
    ]


def test_a_criterion_that_is_false_says_its_values():
    _, lines = told(criteria=[{"name": "tiny", "expression": "podUsage.cpu < 500 && podInfo.qosClass == 'BE'"}])
    assert lines[4:] == [
        "  not chosen  drain: criterion tiny is false",
        "              podUsage.cpu 1 core, must be below 0.5 cores: over by 0.5 cores",
        "              podInfo.qosClass is 'LS', must be 'BE'",
    ]


def test_an_anomaly_says_how_often_it_must_be_seen():
    spec = {"nodes": {**SPEC["nodes"], "anomaly": {"consecutive": 3, "timeout": "5m"}}}
    _, lines = told(**spec)
    assert lines[4].startswith("  waits       drain: hot is a source in 1 of 3 cycles in a row")
    assert told(**spec, cycles=3)[0]


def test_limits_targets_and_until_are_told():
    assert told(limits=CycleLimits(total=0))[1][
        4
    ] == "  limit       drain: chosen by small, but at most 0 pods per cycle (limits)"
    nowhere = told(nodes={"source": SPEC["nodes"]["source"], "target": "false"})[1]
    assert nowhere[4] == "  stays       drain: chosen by small, but no target node takes it"
    done = told(until="true")[1]
    assert done[4] == "  stays       drain: chosen by small, but node `hot` needs to give up no more pods"


def test_a_room_of_the_targets_that_is_used_up_is_told():
    evicted, lines = told([*OBJECTS, pod("first", "hot")], nodes={
        **SPEC["nodes"],
        "room": {"ofTarget": "{'cpu': 3000 - usage.cpu, 'pods': 2 - nodeInfo.pods}", "ofPod": "{'cpu': 0, 'pods': 1}"},
    }, criteria=[{"name": "any", "expression": "true"}], sort=[{"expression": "podInfo.name"}])
    assert not evicted
    assert lines[4] == (
        "  stays       drain: chosen by any, but the targets have no room for more `pods`: pods took 1 of 1"
    )


def test_a_source_without_a_place_in_the_order_says_so():
    evicted, lines = told(nodes={**SPEC["nodes"], "sort": [{"expression": "1 / (usage.cpu - 3600)"}]})
    assert not evicted
    assert lines[4] == "  not source  drain: hot has no place in the order of sources"
    assert "failed      nodes.sort: division by zero" in [each.strip() for each in lines]


def test_a_veto_says_its_rule_and_its_values():
    veto = ("keep-web", {"type": "EvictionFilter", "criteria": [
        {"name": "no-web", "expression": "!('app' in pod.metadata.labels)", "message": "web pods stay"}]})
    objects = [each for each in OBJECTS if each["metadata"]["name"] != "web"] + [pod("web", "hot", app="web")]
    evicted, lines = told(objects, documents=[veto])
    assert not evicted
    assert lines[4:] == [
        "  stays       drain: web pods stay (keep-web: no-web)",
        "",
        "who may veto it",
        "  vetoes      keep-web: web pods stay",
        "              `'app' in pod.metadata.labels` is true",
    ]


def test_nodes_that_no_cycle_looks_at_are_told():
    down = [node("hot", ready=False), node("third"), *OBJECTS[1:]]
    assert told(down)[1][4] == "  not seen    its node hot is not ready"
    selected = DeschedulerProfileSpec("p", node_selector={"matchLabels": {"pool": "a"}})
    assert told(profile=selected)[1][4] == "  not seen    the node selector of profile p leaves its node out"
    assert told(
        match={"nodes": {"names": ["cool"]}},
    )[1][4] == "  not source  drain: `match.nodes` does not take its node"


def test_an_audited_document_says_what_it_would_do():
    evicted, lines = told(enforcement="Audit")
    assert not evicted
    assert lines[4] == (
        "  watched     drain [audit only]: chosen by small, but would be evicted: small (enforcement: Audit)"
    )


def test_what_failed_is_told_and_nothing_is_evicted():
    evicted, lines = told(criteria=[{"name": "labelled", "expression": "pod.metadata.labels.team == 'a'"}])
    assert not evicted
    assert lines[4].startswith("  stays       drain: `labelled` failed: no such key: team")


def test_low_node_load_says_what_is_used_beside_its_thresholds():
    args = {"highThresholds": {"cpu": 95}, "lowThresholds": {"cpu": 20}}
    profile = DeschedulerProfileSpec(
        "p", balance=("LowNodeLoad",), disabled=frozenset({"*"}), args={"LowNodeLoad": args},
    )
    _, lines = told(profile=profile)
    assert lines[4:] == [
        "  not source  LowNodeLoad: hot is none that pods leave",
        "              the node uses 25 % of its cpu, pods leave above 95 %: short by 70 %",
        "              2 of 2 nodes have a low load, so none is relieved (`numberOfNodes` is 0)",
    ]


def test_what_fails_in_one_document_is_not_told_of_another():
    failing = {**SPEC, "criteria": [{"name": "labelled", "expression": "pod.metadata.labels.team == 'a'"}]}
    _, lines = told(documents=[("failing", failing)], criteria=[{"name": "none", "expression": "podUsage.cpu > 9000"}])
    assert lines[4:] == [
        "  not chosen  drain: criterion none is false",
        "              podUsage.cpu 1 core, must be above 9 cores: short by 8 cores",
        "  stays       failing: `labelled` failed: no such key: team",
    ]


def test_a_pod_whose_like_went_first_says_so():
    objects = [*OBJECTS, pod("also", "hot")]
    objects[2] = {**metric("hot", "3600m"), "status": {**metric("hot", "3600m")["status"], "podsMetric": [
        {"namespace": "shop", "name": name, "podUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}
        for name in ("web", "also")
    ]}}
    lines = [
        told(objects, name, until="usage.cpu * 100 / allocatable.cpu <= 80")[1][4] for name in ("shop/web", "shop/also")
    ]
    assert sorted(lines) == [
        "  evicts      drain: small",
        "  stays       drain: chosen by small, but node `hot` needs to give up no more pods",
    ]
