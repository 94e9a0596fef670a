from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.node_agent import NodeAgentSettings, _reads_of
from koordpolicy.engine.agent.states_informer.pods import pod_projection
from koordpolicy.engine.agent.states_informer.settings import StatesSettings
from koordpolicy.engine.cluster.kinds import Read, field_paths
from koordpolicy.engine.framework.registry import Plugin, Registry

VOLUMES = field_paths("spec.volumes.{name,persistentVolumeClaim,ephemeral.metadata,csi.driver}")


def registry(*reads: Read) -> Registry:
    more = dataclasses.replace(PLUGINS[0], name="more", reads=reads)
    return Registry.of([*PLUGINS, more], generation=1)


def test_built_in_strategies_need_no_whole_nodes_and_pods():
    found = _reads_of(Registry.of(PLUGINS, generation=1))
    assert found == {"Node": frozenset(), "Pod": VOLUMES}
    assert pod_projection(found).fields is not None


@pytest.mark.parametrize(("reads", "expected"), [
    ((), {"Node": None, "Pod": None}),
    ((Read("Pod", fields=field_paths("spec.schedulerName")),),
     {"Node": None, "Pod": field_paths("spec.schedulerName") | VOLUMES}),
    ((Read("Pod"), Read("Node", fields=frozenset())), {"Node": frozenset(), "Pod": None}),
])
def test_a_plugin_that_does_not_name_fields_gets_whole_objects(reads: tuple[Read, ...], expected: Any):
    assert _reads_of(registry(*reads)) == expected


def test_strategies_declare_nodes_and_pods():
    def named(plugin: Plugin) -> set[str]:
        return {read.kind for read in plugin.reads}

    assert all({"Node", "Pod"} <= named(each) for each in PLUGINS)


@pytest.mark.parametrize(("settings", "types"), [
    ({}, set()),
    ({"gates": {"Accelerators": True, "RDMADevices": False}}, {"gpu"}),
    ({"gates": {"RDMADevices": True}}, {"rdma"}),
    ({"collect": frozenset({"devices"})}, {"gpu", "rdma"}),
    ({"collect": frozenset({"devices"}), "reports": False}, set()),
])
def test_devices_are_reported_of_the_types_whose_gate_is_on_or_all_if_the_collector_is_named(
    settings: dict[str, Any], types: set[str],
):
    found = NodeAgentSettings(states=StatesSettings("n"), state_dir=Path("/none"), **settings)
    assert found.reported_devices == types
