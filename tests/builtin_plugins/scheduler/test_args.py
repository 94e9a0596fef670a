"""An argument that a plugin takes changes how it decides, or is reported where it stands: none is ignored silently."""

from __future__ import annotations

import ast
import dataclasses
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordpolicy.builtin_plugins import scheduler
from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.documents.nodes import read as read_nodes
from koordpolicy.engine.documents.nodes import to_plain
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.source import Source
from koordpolicy.plugin import Handle

BY_NAME = {plugin.name: plugin for plugin in PLUGINS}
TERM = {
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
}
RATIO = {"type": "RequestedToCapacityRatio", "resources": [{"name": "cpu", "weight": 3}],
         "requestedToCapacityRatio": {"shape": [{"utilization": 7, "score": 0}, {"utilization": 90, "score": 9}]}}
ALLOCATION = {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 3}]}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "NodeAffinity": {"addedAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": TERM}],
    }},
    "NodeResourcesFit": {
        "ignoredResources": ["a.example/b"], "ignoredResourceGroups": ["a.example"], "scoringStrategy": RATIO,
    },
    "VolumeBinding": {"bindTimeoutSeconds": 5, "shape": [{"utilization": 1, "score": 2}]},
    "PodTopologySpread": {"defaultingType": "List", "defaultConstraints": [{
        "maxSkew": 3, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
        "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["a"],
    }]},
    "InterPodAffinity": {"hardPodAffinityWeight": 7, "ignorePreferredTermsOfExistingPods": True},
    "LoadAwareScheduling": {
        "filterExpiredNodeMetrics": False, "enableScheduleWhenNodeMetricsExpired": True,
        "nodeMetricExpirationSeconds": 7,
        "resourceWeights": {"cpu": 7}, "dominantResourceWeight": 7, "usageThresholds": {"cpu": 7},
        "prodUsageThresholds": {"cpu": 7},
        "prodUsageIncludeSys": True, "scoreAccordingProdUsage": True, "estimatedScalingFactors": {"cpu": 7},
        "estimatedSecondsAfterPodScheduled": 7, "estimatedSecondsAfterInitialized": 7, "allowCustomizeEstimation": True,
        "aggregated": {"usageThresholds": {"cpu": 7}, "usageAggregationType": "p95", "usageAggregatedDuration": "7s",
                       "scoreAggregationType": "p99", "scoreAggregatedDuration": "7s"},
        "supportedResources": ["a.example/b"], "estimator": "defaultEstimator",
    },
    "FragmentationGradient": {
        "typicalPods": [{"cpuMilli": 7, "gpuMilli": 7, "gpus": 7, "models": ["a"], "probability": 0.7}],
    },
    "DeviceShare": {
        "allocator": "a", "scoringStrategy": ALLOCATION, "disableDeviceNUMATopologyAlignment": True,
        "gpuSharedResourceTemplatesConfig": {
            "configMapNamespace": "a", "configMapName": "b", "matchedResources": ["c"],
        },
        "gpuShareUnsupportedModels": [{"vendor": "a", "model": "b"}],
    },
    "GpuShare": {"select": "random"},
    "NodeResourcesFitPlus": {"resources": {"cpu": {"type": "MostAllocated", "weight": 7}}},
    "ScarceResourceAvoidance": {"resources": ["cpu"]},
    "RandomScore": {"seed": 7},
    "NodeResourcesBalancedAllocation": {"resources": [{"name": "cpu", "weight": 1}]},
    "ImageLocality": {"sizes": "EachNode"},
    "DefaultPreemption": {"minCandidateNodesPercentage": 7, "minCandidateNodesAbsolute": 7},
    "ElasticQuota": {
        "delayEvictTime": "7s", "revokePodInterval": "7s", "defaultQuotaGroupMax": {"cpu": "7"},
        "systemQuotaGroupMax": {"cpu": "7"},
        "quotaGroupNamespace": "a", "monitorAllQuotas": True, "enableCheckParentQuota": True,
        "enableRuntimeQuota": False,
        "enableMinQuotaScale": False, "disableDefaultQuotaPreemption": False, "enableQueueHint": True,
        "quotaSnapshotUpdateInterval": "7s", "hookPlugins": [{"key": "a", "factoryKey": "b", "factoryArgs": "c"}],
    },
    "SchedulingHint": {"maxHintNodes": 7},
    "Reservation": {
        "enablePreemption": True, "minCandidateNodesPercentage": 7, "minCandidateNodesAbsolute": 7,
        "controllerWorkers": 7,
        "gcDurationSeconds": 7, "gcIntervalSeconds": 7, "resyncIntervalSeconds": 7, "disableGarbageCollection": True,
        "preAllocationConfig": {"enableClusterMode": True, "clusterLabelKey": "a", "clusterPriorityAnnotationKey": "b",
                                "preferNoPreAllocatedPods": True},
        "ignoredResources": ["a.example/b"], "ignoredResourceGroups": ["a.example"],
        "reservationSelectorIndex": {"enabled": True, "keyPrefixes": ["a"], "keys": ["b"]},
    },
    "Coscheduling": {
        "defaultTimeout": "7s", "controllerWorkers": 7, "enablePreemption": True, "awareNetworkTopology": True,
        "defaultMatchPolicy": "only-waiting", "skipCheckScheduleCycle": True,
    },
    "NodeNUMAResource": {
        "defaultCPUBindPolicy": "SpreadByPCPUs", "scoringStrategy": ALLOCATION,
        "numaScoringStrategy": {"type": "MostAllocated", "resources": [{"name": "memory", "weight": 7}]},
    },
}
"""Arguments in which each field of each plugin says something other than its default."""

CHECKED_ONLY = {("LoadAwareScheduling", "estimator"), ("NodeResourcesBalancedAllocation", "resources.weight")}
"""Fields that have one value, which names what is done anyway."""
REFUSED = ("PodTopologySpread", ("defaultConstraints", "labelSelector"))
"""A field that is never accepted."""

NO_SUCH_FIELD = "_"
_KNOWN = re.compile("the fields are (.*)$")


def fields(
    check: Callable[[Mapping[str, Any]], object], wrap: Callable[[Any], Any] = lambda value: value,
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all fields that arguments may have: a complaint about an unknown field names them all."""
    try:
        check(wrap({NO_SUCH_FIELD: 1}))
    except ValueError as error:
        found = _KNOWN.search(str(error))
    else:
        found = None
    for name in re.findall("`([^`]+)`", found[1]) if found else ():
        if name in ("apiVersion", "kind"):
            continue
        below: set[tuple[str, ...]] = set()
        for inner in (lambda value, name=name: wrap({name: value}), lambda value, name=name: wrap({name: [value]})):
            below |= {path for path in fields(check, inner) if path}
        yield from ((name, *path) for path in sorted(below) or [()])


def paths_of(plugin: Plugin) -> list[tuple[str, ...]]:
    assert plugin.check_args is not None
    return sorted(fields(plugin.check_args))


ALL = [(plugin.name, path) for plugin in PLUGINS for path in paths_of(plugin) if (plugin.name, path) != REFUSED]


def pruned(value: Any, path: tuple[str, ...]) -> Any:
    """Return arguments without the field at a path."""
    if isinstance(value, (list, tuple)):
        return [pruned(each, path) for each in value]
    if len(path) == 1:
        return {key: each for key, each in value.items() if key != path[0]}
    return {key: pruned(each, path[1:]) if key == path[0] else each for key, each in value.items()}


def holds(value: Any, path: tuple[str, ...]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(holds(each, path) for each in value)
    return not path or (path[0] in value and holds(value[path[0]], path[1:]))


def state(value: Any) -> Any:
    """Return the settings of a plugin as plain data that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: state(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): state(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [state(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, partial):
        return [state(value.func), state(value.args), state(value.keywords)]
    if callable(value) and getattr(value, "__closure__", None):
        return [value.__code__.co_code, [state(cell.cell_contents) for cell in value.__closure__]]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def made(plugin: Plugin, args: Mapping[str, Any]) -> dict[str, Any]:
    assert plugin.check_args is not None
    handle = Handle("p", Cluster().snapshot, lambda: 0, logging.getLogger("p"), seed=1)
    instance = plugin.make(plugin.check_args(args), handle)
    return {name: state(value) for name, value in vars(instance).items() if not isinstance(value, Handle)}


def attributes_read() -> frozenset[tuple[str, str]]:
    """Return (owner, name) of all attributes that plugins read outside of converting and checking arguments."""
    found = set()
    for file in Path(scheduler.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        skipped = {
            node
            for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name in ("convert", "validate")
            for node in ast.walk(each)
        } if file.name.endswith("_args.py") else set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in skipped:
                owner = node.value
                found.add(
                    (
                        owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name)
                        else "",
                        node.attr,
                    ),
                )
    return frozenset(found)


READ = attributes_read()


def is_read(name: str, before: Any, after: Any) -> bool:
    """Return whether what differs in an attribute of a plugin is read: of its arguments, field by field."""
    if name != "_args":
        return ("self", name) in READ
    return any(
        (owner, each) in READ
        for each in before if before[each] != after.get(each)
        for owner in ("_args", "args", "self")
    )


def test_the_examples_have_every_argument_of_every_plugin() -> None:
    assert [(name, path) for name, path in ALL if not holds(EXAMPLES[name], path)] == []
    assert {name for name, _ in ALL} == EXAMPLES.keys()


@pytest.mark.parametrize(("name", "path"), ALL, ids=[f"{name}-{'.'.join(path)}" for name, path in ALL])
def test_an_argument_has_an_effect_or_is_reported(
    name: str, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin, args = BY_NAME[name], EXAMPLES[name]
    if name == "ElasticQuota":  # its hooks are made by factories that others bring
        monkeypatch.setattr("koordpolicy.builtin_plugins.scheduler.elastic_quota.plugin.ElasticQuota._hook",
                            lambda *_: lambda given: given)
    ignored = plugin.ignored_args(args) if plugin.ignored_args is not None else {}
    names = {re.sub(r"\[\d+\]", "", each) for each in ignored}
    reported = any(".".join(path[:length]) in names for length in range(1, len(path) + 1))
    if reported or (name, ".".join(path)) in CHECKED_ONLY:
        return
    with_it = made(plugin, args)
    try:
        without = made(plugin, pruned(args, path))
    except (ValueError, KeyError):
        return  # the plugin cannot do without the field
    assert [each for each in with_it if with_it[each] != without[each] and is_read(each, with_it[each], without[each])]


@pytest.mark.parametrize(("name", "path"), [
    ("VolumeBinding", "shape"), ("DeviceShare", "allocator"),
    ("ElasticQuota", "quotaGroupNamespace"), ("ElasticQuota", "quotaSnapshotUpdateInterval"),
    ("Reservation", "controllerWorkers"),
    ("Reservation", "reservationSelectorIndex"), ("Coscheduling", "controllerWorkers"),
    ("Coscheduling", "skipCheckScheduleCycle"),
    ("NodeNUMAResource", "numaScoringStrategy.resources"),
])
def test_an_argument_without_effect_is_reported_where_it_stands(name: str, path: str) -> None:
    plugin = BY_NAME[name]
    assert plugin.ignored_args is not None
    value: Any = EXAMPLES[name]
    for step in path.split("."):
        value = value[step]
    for step in reversed(path.split(".")):
        value = {step: value} if step != "numaScoringStrategy" else {step: {**value, "type": "MostAllocated"}}
    assert told(name, value) == [
        (path.rsplit(".", 1)[-1], f"pluginConfig[0].args.{path} has no effect: {plugin.ignored_args(value)[path]}"),
    ]


@pytest.mark.parametrize(("name", "args"), [
    ("VolumeBinding", {"bindTimeoutSeconds": 600}),
    ("Reservation", {"controllerWorkers": 1, "reservationSelectorIndex": {"enabled": False}}),
    ("Coscheduling", {"controllerWorkers": 1, "skipCheckScheduleCycle": False}),
    ("NodeNUMAResource", {"numaScoringStrategy": ALLOCATION, "scoringStrategy": ALLOCATION}),
    ("ElasticQuota", {"quotaGroupNamespace": "koordinator-system", "quotaSnapshotUpdateInterval": "120s"}),
    ("NodeResourcesFit", {"scoringStrategy": RATIO}),
])
def test_an_argument_that_says_what_is_done_anyway_is_not_reported(name: str, args: Mapping[str, Any]) -> None:
    assert told(name, args) == []


def test_a_shape_that_another_strategy_does_not_read_is_reported() -> None:
    assert told("NodeResourcesFit", {"scoringStrategy": {**RATIO, "type": "MostAllocated"}}) == [
        (
            "requestedToCapacityRatio",
            (
                "pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio has no effect: `scoringStrategy.type` "
                "is `MostAllocated`, not `RequestedToCapacityRatio`"
            ),
        ),
    ]


@pytest.mark.parametrize(("point", "name", "wanted"), [
    (
        "filter", "NodeAffinity",
        [("weight", "plugins.filter.enabled: the weight of `NodeAffinity` has no effect: nothing is scored there")],
    ),
    (
        "multiPoint", "NodeName",
        [("weight", "plugins.multiPoint.enabled: the weight of `NodeName` has no effect: nothing is scored there")],
    ),
    ("multiPoint", "NodeAffinity", []), ("score", "NodeAffinity", []),
])
def test_a_weight_where_nothing_is_scored_is_reported(point: str, name: str, wanted: list[tuple[str, str]]) -> None:
    assert told_of({"plugins": {point: {"enabled": [{"name": name, "weight": 7}]}}}, about="weight") == wanted


def told(name: str, args: Mapping[str, Any]) -> list[tuple[str, str]]:
    return told_of({"pluginConfig": [{"name": name, "args": args}]}, about="pluginConfig")


def told_of(profile: Mapping[str, Any], about: str) -> list[tuple[str, str]]:
    """Return the key that each warning points at, with its message."""
    head = {"apiVersion": configuration.API_VERSION, "kind": configuration.KIND}
    source = Source("s.yaml", repr({**head, "profiles": [profile]}).replace("True", "true").replace("False", "false"))
    assert to_plain(read_nodes(source)[0])["profiles"] == [profile]
    found = configuration.read(source, Registry.of(PLUGINS, generation=1)).warnings
    return [
        (source.text[each.span.start:each.span.end].strip("'"), each.message)
        for each in found if each.span and about in each.message
    ]
