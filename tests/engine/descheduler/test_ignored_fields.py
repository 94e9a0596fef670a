"""A field that a configuration may have is read, or reported at its place: none is accepted and ignored in silence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler.custom_priority import args as custom_priority
from koordpolicy.builtin_plugins.descheduler.default_evictor.plugin import DefaultEvictor
from koordpolicy.builtin_plugins.descheduler.fragmentation_aware import args as fragmentation_aware
from koordpolicy.builtin_plugins.descheduler.low_node_load import plugin as low_node_load
from koordpolicy.builtin_plugins.descheduler.scale_down_bin_pack import args as scale_down_bin_pack
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler import ignored_fields as unbuilt
from koordpolicy.engine.descheduler.arguments import complete, read_low_node_load
from koordpolicy.engine.documents.validation import schema, validate_plain
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.source import Source

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
ARGS = HEAD + "profiles:\n- name: a\n  pluginConfig:\n  - name: MigrationController\n    args:\n"


def told(text: str) -> list[str]:
    return [f"{each.span}: {each.message}" for each in config.read(Source("d.yaml", text)).warnings]


def test_every_field_of_a_descheduler_configuration_is_built_or_reported() -> None:
    assert set(schema(config.KIND)["properties"]) - unbuilt.IGNORED.keys() == {
        "apiVersion", "kind", "dryRun", "deschedulingInterval", "nodeSelector", "profiles", "maxNoOfPodsToEvictPerNode",
        "maxNoOfPodsToEvictPerNamespace", "maxNoOfPodsToEvictPerOwner", "maxNoOfPodsToEvictPerWorkload",
        "maxNoOfPodsToEvictTotal",
    }
    assert unbuilt.IGNORED.keys() <= set(schema(config.KIND)["properties"])


def test_every_field_of_a_scheduler_configuration_is_built_or_reported() -> None:
    declared = schema(configuration.KIND)["properties"]
    assert set(declared) - configuration.IGNORED.keys() == {
        "apiVersion", "kind", "podInitialBackoffSeconds", "podMaxBackoffSeconds", "profiles",
    }
    assert configuration.IGNORED.keys() <= set(declared)
    assert set(declared["profiles"]["items"]["properties"]) - configuration.IGNORED.keys() == {
        "schedulerName", "plugins", "pluginConfig",
    }


class Recording(dict[str, Any]):
    """Arguments that note what is read of them, by path."""

    def __init__(self, given: Mapping[str, Any], prefix: str = "", read: set[str] | None = None) -> None:
        self.read: set[str] = set() if read is None else read
        super().__init__({key: Recording(value, f"{prefix}{key}.", self.read) if isinstance(value, Mapping) else value
                          for key, value in given.items()})
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(self._prefix + key)
        return super().get(key, default)


def test_every_argument_of_default_evictor_is_read() -> None:
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "u"}
    pod = {
        "metadata": {"name": "p", "namespace": "n", "ownerReferences": [owner]},
        "spec": {
            "containers": [{"name": "c"}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        },
    }
    cluster, read = Cluster(), set()
    cluster.upsert({"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1"}}})
    for given in ({}, {"nodeFit": True}, {"podProtections": {"extraEnabled": ["PodsWithPVC"], "config": {
                      "PodsWithPVC": {"protectedStorageClasses": []}}}},
                  {"priorityThreshold": {"value": None}}, {"minPodAge": "1s"}):
        evictor = DefaultEvictor(args := Recording(given))
        for method in (evictor.eviction_filter, evictor.pre_eviction_filter):
            method(PodInfo.of(pod), cluster.snapshot())
        read |= args.read
    assert read == set(nested_fields(schema("DefaultEvictorArgs"))) - {"apiVersion", "kind"}


def nested_fields(declared: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, of in declared.get("properties", {}).items():
        yield prefix + name
        if name not in ("labelSelector", "namespaceLabelSelector"):
            yield from nested_fields(of, f"{prefix}{name}.")


@pytest.mark.parametrize(("name", "value"), [
    ("maxConcurrentReconciles", "2"), ("objectLimiters", "{workload: {duration: 1m}}"), ("evictQPS", "5"),
    ("evictBurst", "5"), ("evictionPolicy", "Delete"), ("defaultJobTTL", "1m"),
    ("defaultDeleteOptions", "{gracePeriodSeconds: 5}"), ("arbitrationArgs", "{enabled: false}"),
])
def test_an_argument_that_is_not_built_is_reported_where_it_stands(name: str, value: str) -> None:
    why = unbuilt.IGNORED_ARGS["MigrationController"][name]
    assert told(f"{ARGS}      evictLocalStoragePods: true\n      {name}: {value}\n") == [
        f"d.yaml:9:7: profiles[0].pluginConfig[0].args.{name} has no effect: {why}"]


def test_every_field_of_the_arguments_of_low_node_load_decides_something() -> None:
    declared = set(schema("LowNodeLoadArgs")["properties"]) - {"apiVersion", "kind"}
    text = Path(low_node_load.__file__).read_text()
    beside: dict[str, Any] = {  # a low threshold needs a high one
        "lowThresholds": {"highThresholds": {"cpu": 9}}, "prodLowThresholds": {"prodHighThresholds": {"cpu": 9}}}
    changed = {
        "paused": True, "dryRun": True, "numberOfNodes": 7, "nodeMetricExpirationSeconds": 7, "nodeFit": False,
        "evictableNamespaces": {"include": ["a"]},
        "podSelectors": [{"name": "a", "selector": {"matchLabels": {"a": "b"}}}],
        "detectorCacheTimeout": "7s", "nodePools": [{"name": "a"}], "nodeSelector": {"matchLabels": {"a": "b"}},
        "useDeviationThresholds": True, "lowThresholds": {"cpu": 7}, "highThresholds": {"cpu": 7},
        "prodLowThresholds": {"cpu": 7}, "prodHighThresholds": {"cpu": 7}, "resourceWeights": {"cpu": 7},
        "anomalyCondition": {"consecutiveAbnormalities": 7, "consecutiveNormalities": 7, "timeout": "7s"},
    }
    assert changed.keys() == declared
    for name, value in changed.items():
        given = beside.get(name, {})
        before = dataclasses.asdict(read_low_node_load(complete("LowNodeLoad", given)))
        after = dataclasses.asdict(read_low_node_load(complete("LowNodeLoad", {**given, name: value})))
        assert [each for each in before if before[each] != after[each] and re.search(rf"args\.{each}\b", text)], name


CHANGED: Mapping[str, Mapping[str, Any]] = {
    "CustomPriority": {
        "paused": True, "dryRun": True, "nodeFit": False, "autoCordon": True, "mode": "DrainNode",
        "evictableNamespaces": {"include": ["a"]}, "nodeSelector": {"matchLabels": {"a": "b"}},
        "podSelectors": [{"name": "a", "selector": {"matchLabels": {"a": "b"}}}],
        "evictionOrder": [{"name": "a", "nodeSelector": {}}, {"name": "c", "nodeSelector": {}}],
    },
    "FragmentationAware": {
        "paused": True, "dryRun": True, "nodeFit": False, "evictableNamespaces": {"include": ["a"]},
        "nodeSelector": {"matchLabels": {"a": "b"}}, "podSelectors": [{"selector": {"matchLabels": {"a": "b"}}}],
        "resources": ["cpu"], "imbalanceThreshold": 0.5, "minImprovementThreshold": 0.5,
    },
    "ScaleDownBinPack": {
        "paused": True, "strategy": "EvictDirectly", "maxPodsToEvict": 5, "evictableNamespaces": {"include": ["a"]},
        "nodeSelector": {"matchLabels": {"a": "b"}},
        "podSelectors": [{"name": "a", "selector": {"matchLabels": {"a": "b"}}}], "resources": ["pods"],
        "resourceWeights": {"cpu": 2},
    },
}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "CustomPriority": {"evictionOrder": [{"name": "a", "nodeSelector": {}}, {"name": "b", "nodeSelector": {}}]},
    "FragmentationAware": {}, "ScaleDownBinPack": {"maxPodsToEvict": 1},
}
READ = {
    "CustomPriority": custom_priority, "FragmentationAware": fragmentation_aware,
    "ScaleDownBinPack": scale_down_bin_pack,
}


@pytest.mark.parametrize(("plugin", "name"), [(plugin, name) for plugin, names in CHANGED.items() for name in names])
def test_every_field_of_the_arguments_of_koordinators_other_plugins_decides_something(plugin: str, name: str) -> None:
    assert set(schema(f"{plugin}Args")["properties"]) - {"apiVersion", "kind"} == CHANGED[plugin].keys()
    read, needed = READ[plugin].read_args, NEEDED[plugin]
    changed = complete(plugin, {**needed, name: CHANGED[plugin][name]})
    assert read(complete(plugin, needed)) != read(changed)
    assert list(validate_plain(changed, f"{plugin}Args")) == []


def test_arguments_of_custom_priority_without_effect_are_reported_where_they_stand() -> None:
    levels = "[{name: a, nodeSelector: {}, keepThreshold: 5}, {name: b, nodeSelector: {}, rejectThreshold: 0}]"
    text = ARGS.replace("MigrationController", "CustomPriority")
    prefix, why = "profiles[0].pluginConfig[0].args.", unbuilt.IGNORED_OF_LEVELS["keepThreshold"]
    assert told(f"{text}      mode: Drain\n      evictionOrder: {levels}\n") == [
        f"d.yaml:9:51: {prefix}evictionOrder[0].keepThreshold has no effect: {why}",
        f"d.yaml:8:7: {prefix}mode: `Drain` is no mode, so it does what `BestEffort` does",
    ]


@pytest.mark.parametrize(("text", "wanted"), [
    (
        "metricsBindAddress: ':8080'",
        [f"d.yaml:3:1: metricsBindAddress has no effect: {unbuilt.IGNORED['metricsBindAddress']}"],
    ),
    (
        "leaderElection: {leaderElect: true}",
        ["d.yaml:3:1: leaderElection has no effect: one dry run holds no Lease"],
    ),
    ("leaderElection: {leaderElect: false}", []), ("enableProfiling: false", []), ("maxNoOfPodsToEvictTotal: 5", []),
])
def test_a_field_without_effect_is_reported_unless_it_turns_something_off(text: str, wanted: list[str]) -> None:
    assert told(f"{HEAD}{text}\n") == wanted


def test_a_live_descheduler_elects_a_leader_and_limits_its_requests() -> None:
    text = f"{HEAD}leaderElection: {{leaderElect: true}}\nclientConnection: {{qps: 20}}\nenableProfiling: true\n"
    found = config.read(Source("d.yaml", text), live=True).warnings
    assert [each.message for each in found] == ["enableProfiling has no effect: no profiles of the process are served"]
