from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import (
    BECPUSuppress,
    UsageSplit,
    check_args,
    reserved_milli,
    split_usage,
    suppress_amount,
)
from koordpolicy.engine.agent.recording import RecordedReadings, load
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load_paths
from koordpolicy.engine.framework.registry import Registry

PROJECT = Path(__file__).parents[4]
EXAMPLE = PROJECT / "examples" / "09-qos-replay" / "metrics.yaml"


def test_what_neither_pods_nor_applications_used_is_the_systems():
    assert split_usage(10, 1, [(4, True), (2, False)], [(1, True)]) == UsageSplit(4, 1, 3)
    assert split_usage(5, 1, [(4, True), (2, False)], []) == UsageSplit(4, 0, 1)


def test_the_amount_has_a_floor_only_where_one_is_set():
    busy = UsageSplit(8, 0, 1)
    assert (suppress_amount(10_000, 65, busy), suppress_amount(10_000, 65, busy, 10)) == (-2500, 1000)


@pytest.mark.parametrize(("annotation", "milli"), [
    (None, 1000), ({"resources": {"cpu": "1500m"}}, 1500), ({"resources": {"cpu": "4"}, "reservedCPUs": "0-1"}, 2000),
])
def test_what_is_reserved_is_the_larger_of_capacity_less_allocatable_and_the_annotation(annotation, milli):
    node = {"metadata": {}, "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"}}}
    if annotation is not None:
        node["metadata"]["annotations"] = {"node.koordinator.sh/reservation": json.dumps(annotation)}
    assert reserved_milli(node) == milli


@pytest.fixture
def recording():
    return load(EXAMPLE)


def readings(recording, second: int, files: dict[str, str]) -> RecordedReadings:
    return RecordedReadings(recording, "worker-1", recording.start + second * 10**9, files)


def test_the_quota_is_set_and_the_cpu_set_given_back_where_the_node_slo_asks_for_it(recording):
    slo = recording.objects["NodeSLO", "worker-1"]
    slo["spec"]["resourceUsedThresholdWithBE"]["cpuSuppressPolicy"] = "cfsQuota"
    files = {**recording.files["worker-1"], "besteffort/cpuset.cpus": "0-3"}
    plugin = BECPUSuppress({})
    found = plugin.adjust(readings(recording, 0, files))
    assert [(each.recovers, each.writes) for each in found] == [
        (False, (("besteffort/cpu.cfs_quota_us", "810100"),)), (True, (("besteffort/cpuset.cpus", "0-15"),)),
    ]
    assert plugin.status == {("worker-1", "cfsQuota"): "using", ("worker-1", "cpuset"): "recovered"}


def test_a_disabled_strategy_gives_everything_back_once(recording):
    recording.objects["NodeSLO", "worker-1"]["spec"]["resourceUsedThresholdWithBE"]["enable"] = False
    files = {"besteffort/cpuset.cpus": "0-3", "besteffort/cpu.cfs_quota_us": "200000"}
    plugin = BECPUSuppress({})
    found = plugin.adjust(readings(recording, 0, files))
    for each in found:
        files.update(each.writes)
    assert files == {"besteffort/cpuset.cpus": "0-15", "besteffort/cpu.cfs_quota_us": "-1"}
    assert plugin.adjust(readings(recording, 1, files)) == ()


def test_with_the_gate_of_another_cpu_manager_only_limits_are_recovered(recording):
    handle = SimpleNamespace(feature_gates=frozenset(("BECPUSuppress", "BECPUManager")))
    files = {"besteffort/cpuset.cpus": "0-3", "besteffort/cpu.cfs_quota_us": "200000"}
    found = BECPUSuppress({}, handle).adjust(readings(recording, 0, files))
    assert dict(write for each in found for write in each.writes) == {
        "besteffort/cpuset.cpus": "0-15", "besteffort/cpu.cfs_quota_us": "-1",
    }


def test_the_document_and_the_built_in_arrive_at_the_same_cpus_on_the_example(recording):
    def cpus(registry: Registry, *enable: str) -> list[str]:
        rounds = replay(recording, registry, enable=enable)
        last = [adjustment.writes[-1][1] for each in rounds for adjustment in each.adjustments]
        return [text for text in last if text][:3]

    documents = Registry.of(compile_documents(load_paths([PROJECT / "policies" / "qos"])), generation=1)
    assert cpus(documents)[:2] == cpus(Registry.of(PLUGINS, generation=1), "BECPUSuppress")[:2]


@pytest.mark.parametrize(("args", "message"), [
    ({"interval": 1}, "unknown argument `interval`"), ({"intervalSeconds": 0}, "must be a number above 0"),
    ({"cpuManager": "no"}, "`cpuManager`: `no` is not true or false"),
])
def test_arguments_that_are_none_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        check_args(args)
