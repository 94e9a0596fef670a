from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.descheduler.default_evictor.plugin import (
    DefaultEvictor,
    EvictorFilter,
    check_default_evictor_args,
)
from koordpolicy.builtin_plugins.descheduler.default_evictor.protections import effective_protections
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.handle import Handle

NOW = 1_767_268_800_000_000_000
HANDLE = Handle("p", lambda: Cluster().snapshot(NOW), lambda: NOW, logging.getLogger("p"))
OWNER = [{"kind": "ReplicaSet", "name": "r", "uid": "r"}]


def pod(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "d", "ownerReferences": OWNER, **changes.pop("metadata", {})}
    status = changes.pop("status", {})
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}], **changes}, "status": status}


def rules(plugin: Any, item: dict[str, Any], *objects: dict[str, Any]) -> str | None:
    refusal = plugin.eviction_filter(PodInfo.of(item), Cluster([item, *objects]).snapshot(NOW))
    return None if refusal is None else refusal.rule


def annotated(key: str, value: str = "") -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]}
CLAIM = {
    "kind": "PersistentVolumeClaim", "metadata": {"name": "claim", "namespace": "d"},
    "spec": {"storageClassName": "fast"},
}
BUDGET = {"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "d"}, "spec": {"selector": {}}}
EXTRA = {"podProtections": {"extraEnabled": ["PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims"]}}


@pytest.mark.parametrize(("args", "item", "objects", "rule"), [
    ({}, pod(), (), None),
    ({}, pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), (), "terminating"),
    ({}, pod(**annotated("kubernetes.io/config.mirror")), (), "mirror"),
    ({}, pod(**annotated("kubernetes.io/config.source", "file")), (), "static"),
    ({}, pod(priority=2_000_000_000), (), "SystemCriticalPods"),
    ({"priorityThreshold": {"value": 10}}, pod(priority=10), (), "priorityThreshold"),
    ({"priorityThreshold": {"value": 10}}, pod(), (), None),
    ({"priorityThreshold": {"name": "c"}}, pod(priority=10),
     ({"kind": "PriorityClass", "metadata": {"name": "c"}, "value": 5},), "priorityThreshold"),
    ({}, pod(metadata={"ownerReferences": []}), (), "FailedBarePods"),
    ({"evictFailedBarePods": True}, pod(metadata={"ownerReferences": []}), (), "FailedBarePods"),
    ({"evictFailedBarePods": True}, pod(metadata={"ownerReferences": []}, status={"phase": "Failed"}), (), None),
    ({}, pod(volumes=[{"name": "v", "emptyDir": {}}]), (), "PodsWithLocalStorage"),
    (EXTRA, pod(**VOLUME), (), "PodsWithPVC"),
    (EXTRA, pod(), (), "PodsWithoutPDB"),
    (EXTRA, pod(), (BUDGET,), None),
    (EXTRA, pod(resourceClaims=[{"name": "x"}]), (BUDGET,), "PodsWithResourceClaims"),
    (
        {
            "podProtections": {
                "extraEnabled": ["PodsWithPVC"],
                "config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": "slow"}]}},
            },
        },
        pod(**VOLUME), (CLAIM,), None,
    ),
    ({"labelSelector": {"matchLabels": {"a": "b"}}}, pod(), (), "labelSelector"),
    ({"minReplicas": 2}, pod(), (), "minReplicas"),
    ({"minPodAge": "1h"}, pod(status={"startTime": "2026-01-01T11:30:00Z"}), (), "minPodAge"),
    ({"minPodAge": "10m"}, pod(status={"startTime": "2026-01-01T11:30:00Z"}), (), None),
    (
        {"noEvictionPolicy": "Mandatory"}, pod(**annotated("descheduler.alpha.kubernetes.io/prefer-no-eviction")), (),
        "noEvictionPolicy",
    ),
    ({}, pod(priority=2_000_000_000, **annotated("descheduler.alpha.kubernetes.io/evict")), (), None),
])
def test_the_default_evictor_keeps_pods_by_the_first_rule_that_applies(args, item, objects, rule):
    assert rules(DefaultEvictor(args), item, *objects) == rule


@pytest.mark.parametrize(("args", "item", "rule"), [
    ({}, pod(), None),
    ({}, pod(metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d"}]}), "daemonSet"),
    ({}, pod(metadata={"ownerReferences": []}), "barePods"),
    ({"evictAllBarePods": True}, pod(metadata={"ownerReferences": []}), None),
    ({}, pod(priority=2_000_000_001), "systemCritical"),
    ({"priorityThreshold": {"value": 10}}, pod(priority=11), "priorityThreshold"),
    ({"evictSystemCriticalPods": True, "priorityThreshold": {"value": 10}}, pod(priority=11), None),
    ({}, pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "localStorage"),
    ({"ignorePvcPods": True}, pod(**VOLUME), "volumeClaims"),
    ({"nodeFit": True}, pod(), "nodeFit"),
    ({"labelSelector": {"matchLabels": {"a": "b"}}}, pod(), "labelSelector"),
])
def test_koordinators_constraints_keep_pods(args, item, rule):
    assert rules(EvictorFilter(args), item) == rule


@pytest.mark.parametrize("plugin", [DefaultEvictor, EvictorFilter])
@pytest.mark.parametrize(("priority", "kept"), [(99, False), (100, True)])
def test_a_priority_class_names_the_priority_from_which_on_pods_are_kept(plugin, priority, kept):
    given = {"priorityThreshold": {"name": "high"}}
    named = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    item = pod(priority=priority)
    assert (rules(plugin(given), item, named) is not None) is kept


def test_anti_affinity_and_the_number_of_pods_keep_a_pod_off_a_node():
    term = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "host"}
    item = pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}, nodeName="one")
    other = {**pod(nodeName="two"), "metadata": {"name": "q", "namespace": "d", "labels": {"app": "a"}}}

    def fits(pods: str, *objects: dict[str, Any]) -> bool:
        nodes = [
            {
                "kind": "Node", "metadata": {"name": name, "labels": {"host": name}},
                "status": {"allocatable": {"pods": pods}},
            }
            for name in ("one", "two")
        ]
        snapshot = Cluster([*nodes, item, *objects]).snapshot(NOW)
        return DefaultEvictor({"nodeFit": True}).pre_eviction_filter(PodInfo.of(item), snapshot) is None

    assert (fits("5"), fits("5", other), fits("0")) == (True, False, False)


def test_protections_are_those_of_the_lists_or_else_of_the_flags():
    assert effective_protections({"evictDaemonSetPods": True, "ignorePvcPods": True}) == {
        "PodsWithLocalStorage", "SystemCriticalPods", "FailedBarePods", "PodsWithPVC",
    }
    assert effective_protections({"podProtections": {"defaultDisabled": ["DaemonSetPods", "FailedBarePods"]}}) == {
        "PodsWithLocalStorage", "SystemCriticalPods",
    }


def test_every_fault_of_the_arguments_is_told_at_once():
    with pytest.raises(
        ValueError, match=r"only one of priorityThreshold.*; .*noEvictionPolicy accepts only.*; nodeSelector: `a=b c`",
    ):
        check_default_evictor_args(
            {"priorityThreshold": {"value": 1, "name": "a"}, "noEvictionPolicy": "x", "nodeSelector": "a=b c"},
        )


@pytest.mark.parametrize(("args", "message"), [
    ({"evictEverything": True}, "'evictEverything' was unexpected"),
    ({"minPodAge": 3600}, "`minPodAge`: 3600 is not of type 'string'"),
    ({"minReplicas": -1}, "`minReplicas`: -1 is less than the minimum of 0"),
    ({"priorityThreshold": {"value": 2_000_000_001}}, "priority threshold can't be greater than 2000000000"),
    ({"podProtections": {"extraEnabled": ["DaemonSetPods"]}}, 'policy in ExtraEnabled: "DaemonSetPods". Valid options'),
    ({"podProtections": {"defaultDisabled": ["DaemonSetPods"] * 2}}, "DefaultDisabled contains duplicate entries"),
    ({"podProtections": {"config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": ""}]}}}},
     "ProtectedStorageClasses[0] name cannot be empty"),
    ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Bogus"}]}}, "Bogus"),
])
def test_a_fault_of_an_argument_is_told_with_its_path(args, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_default_evictor_args(args)


def test_all_rules_that_keep_a_pod_are_named_in_the_order_of_kubernetes():
    item = pod(
        metadata={"ownerReferences": [], "annotations": {"kubernetes.io/config.mirror": "x"},
                  "deletionTimestamp": "2026-01-01T00:00:00Z"},
        priority=2_000_000_000, volumes=[{"name": "v", "emptyDir": {}}],
    )
    refusal = DefaultEvictor({"minPodAge": "90m"}).eviction_filter(PodInfo.of(item), Cluster([item]).snapshot(NOW))
    assert (refusal.rule, refusal.message) == ("mirror", (
        "[pod is a mirror pod, pod is terminating, pod has system critical priority and is protected against eviction, "
        "pod does not have any ownerRefs, pod has local storage and is protected against eviction, "
        "pod age is not older than MinPodAge: 1h30m]"
    ))


def test_only_the_default_evictor_lets_a_request_outweigh_that_a_pod_terminates():
    item = pod(metadata={
        "annotations": {"descheduler.alpha.kubernetes.io/evict": ""}, "deletionTimestamp": "2026-01-01T00:00:00Z",
    })
    assert [rules(DefaultEvictor({}), item), rules(EvictorFilter({}), item)] == [None, "terminating"]


@pytest.mark.parametrize(("selector", "fits"), [
    ("", True), ("pool=a", True), ("pool in (b,c)", False), ("!pool", False),
])
def test_node_fit_looks_at_selected_nodes_other_than_the_pods_own(selector, fits):
    item = pod(nodeName="one")
    nodes = [
        {"kind": "Node", "metadata": {"name": name, "labels": {"pool": "a"}}, "status": {"allocatable": {"pods": "5"}}}
        for name in ("one", "two")
    ]
    evictor = DefaultEvictor({"nodeFit": True, "nodeSelector": selector})
    found = evictor.pre_eviction_filter(PodInfo.of(item), Cluster([*nodes, item]).snapshot(NOW))
    assert (found is None) is fits


NEEDED = {
    "CustomPriority": {"evictionOrder": [{"name": "a", "nodeSelector": {}}, {"name": "b", "nodeSelector": {}}]},
    "PodLifeTime": {"maxPodLifeTimeSeconds": 1}, "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]},
    "LowNodeUtilization": {"thresholds": {"cpu": 1}, "targetThresholds": {"cpu": 2}},
    "HighNodeUtilization": {"thresholds": {"cpu": 1}},
}


def test_every_plugin_of_the_table_can_be_made():
    made = []
    for plugin in PLUGINS:
        args = NEEDED.get(plugin.name, {})
        made.append(plugin.make(plugin.check_args(args) if plugin.check_args else args, HANDLE))
    assert [each.name for each in made] == [plugin.name for plugin in PLUGINS]


@pytest.mark.parametrize(("name", "args", "kinds"), [
    ("DefaultEvictor", {}, []),
    ("DefaultEvictor", {"priorityThreshold": {"name": "high"}}, ["PriorityClass"]),
    ("DefaultEvictor", {"priorityThreshold": {"value": 5}}, []),
    ("DefaultEvictor", {"namespaceLabelSelector": {"matchLabels": {"team": "a"}}}, ["Namespace"]),
    ("DefaultEvictor", {"podProtections": {"extraEnabled": ["PodsWithoutPDB"]}}, ["PodDisruptionBudget"]),
    ("DefaultEvictor", {"podProtections": {"extraEnabled": ["PodsWithPVC"], "config": {
        "PodsWithPVC": {"protectedStorageClasses": [{"name": "fast"}]}}}}, ["PersistentVolumeClaim"]),
    ("MigrationController", {"priorityThreshold": {"name": "high"}}, ["PriorityClass"]),
    ("MigrationController", {"priorityThreshold": {"name": "high"}, "skipEvictionGates": ["PriorityThreshold"]}, []),
])
def test_arguments_say_which_kinds_are_read(name, args, kinds):
    (plugin,) = (each for each in PLUGINS if each.name == name)
    assert [read.kind for read in plugin.reads_for(plugin.check_args(args))] == kinds
