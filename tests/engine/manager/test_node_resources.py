"""Batch and mid resources of nodes: the formulas, and their inputs from objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.manager.node_resources import (
    MeasuredPod,
    NodeMeasurements,
    add,
    batch_resources,
    is_stale,
    largest,
    measurements,
    mid_resources,
    reserved_amounts,
    zone_measurements,
)
from koordpolicy.engine.slo import defaults

BANDS = ["koord-prod", "koord-mid", "koord-batch", "koord-free"]
GI = 1 << 30
AMOUNTS = st.fixed_dictionaries({"cpu": st.integers(0, 64_000), "memory": st.integers(0, 256 * GI)})
PODS = st.builds(MeasuredPod, st.sampled_from(BANDS), st.sampled_from(["LS", "LSR", "LSE", "BE"]), AMOUNTS,
                 st.none() | AMOUNTS, st.booleans(), st.lists(st.integers(0, 1), max_size=2, unique=True).map(tuple))
NODES = st.builds(
    NodeMeasurements, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.lists(PODS, max_size=4),
    st.lists(st.tuples(st.sampled_from(BANDS), AMOUNTS), max_size=2),
    st.lists(st.tuples(st.sampled_from(["", *BANDS]), AMOUNTS), max_size=2), AMOUNTS)
STRATEGIES = st.fixed_dictionaries({
    "cpuReclaimThresholdPercent": st.integers(0, 100), "memoryReclaimThresholdPercent": st.integers(0, 100),
    "cpuCalculatePolicy": st.sampled_from(["usage", "maxUsageRequest"]),
    "memoryCalculatePolicy": st.sampled_from(["usage", "request", "maxUsageRequest"]),
    "midUnallocatedPercent": st.integers(0, 100), "midCPUThresholdPercent": st.integers(0, 100),
    "midMemoryThresholdPercent": st.integers(0, 100)})


def amounts(cpu: int, gi: int) -> dict[str, int]:
    return {"cpu": cpu, "memory": gi * GI}


def strategy(**settings: Any) -> dict[str, Any]:
    return {**defaults.colocation(), "cpuReclaimThresholdPercent": 60, "memoryReclaimThresholdPercent": 70, **settings}


NODE = NodeMeasurements(
    amounts(100_000, 100), amounts(7_000, 10), amounts(5_000, 12), amounts(40_000, 50), [
        MeasuredPod("koord-prod", "LS", amounts(20_000, 20), amounts(10_000, 10)),
        MeasuredPod("koord-prod", "LSE", amounts(8_000, 8), amounts(2_000, 4)),
        MeasuredPod("koord-mid", "LS", amounts(0, 0), amounts(3_000, 1)),
        MeasuredPod("koord-prod", "LS", amounts(4_000, 2)),
        MeasuredPod("koord-batch", "BE", amounts(0, 0), amounts(9_000, 9)),
        MeasuredPod("koord-prod", "LS", amounts(50_000, 50), amounts(1, 1), active=False)],
    dangling=[("koord-prod", amounts(1_000, 1)), ("koord-batch", amounts(500, 5))],
    applications=[("koord-prod", amounts(1_000, 1)), ("koord-batch", amounts(9_000, 9))],
    reclaimable=amounts(12_000, 60))


@pytest.mark.parametrize(("settings", "cpu", "memory"), [
    # system: max(5 + 1, 7) cores and max(12 + 1, 10) Gi; used: 10 + 8 + 3 + 4 + 1 cores and 10 + 4 + 1 + 2 + 1 Gi
    ({}, 60_000 - 7_000 - 26_000, 70 - 13 - 18),
    # requested: 20 + 8 + 2 Gi; kubelet's reservation instead of the system's usage
    ({"memoryCalculatePolicy": "request", "cpuCalculatePolicy": "request"}, 27_000, 70 - 10 - 30),
    # the maximum of both: 20 + 8 + 3 + 4 + 1 cores and 20 + 8 + 1 + 2 + 1 Gi
    ({"memoryCalculatePolicy": "maxUsageRequest", "cpuCalculatePolicy": "maxUsageRequest"}, 60_000 - 7_000 - 36_000,
     70 - 13 - 32),
    ({"batchCPUThresholdPercent": 20, "batchMemoryThresholdPercent": 99}, 20_000, 39),
    ({"cpuReclaimThresholdPercent": 10, "memoryReclaimThresholdPercent": 10}, 0, 0),
])
def test_batch_resources_are_what_high_priority_pods_leave(settings: dict[str, Any], cpu: int, memory: int):
    assert batch_resources(NODE, strategy(**settings)) == amounts(cpu, memory)


def test_for_parity_pods_without_a_report_do_not_count_in_the_maximum():
    settings = strategy(cpuCalculatePolicy="maxUsageRequest")
    counted, parity = (batch_resources(NODE, settings, parity=parity)["cpu"] for parity in (False, True))
    assert parity - counted == 4_000


@pytest.mark.parametrize(("settings", "cpu", "memory"), [
    ({}, 12_000, 50),  # of memory only 50 Gi are not used
    ({"midUnallocatedPercent": 10}, 12_000 + (100_000 - 7_000 - 32_000) // 10, 50 + (100 - 13 - 30) // 10),
    ({"midCPUThresholdPercent": 5, "midMemoryThresholdPercent": 5}, 5_000, 5),
    ({"midReclaimMode": "static", "midStaticCPUReservedPercent": 30, "midStaticMemoryReservedPercent": 10}, 30_000, 10),
])
def test_mid_resources_are_what_prod_pods_are_predicted_to_leave(settings: dict[str, Any], cpu: int, memory: int):
    found = mid_resources(NODE, strategy(**settings))
    assert (found["cpu"], found["memory"] // GI) == (cpu, memory)


@given(NODES, STRATEGIES)
def test_what_is_promised_is_never_negative_nor_more_than_there_is(node: NodeMeasurements, settings: dict[str, Any]):
    for found in (batch_resources(node, settings), mid_resources(node, settings)):
        assert all(0 <= found[name] <= node.capacity[name] for name in ("cpu", "memory"))


@given(NODES, STRATEGIES, PODS)
def test_one_more_pod_never_adds_batch_resources(node: NodeMeasurements, settings: dict[str, Any], pod: MeasuredPod):
    more = NodeMeasurements(node.capacity, node.reserved, node.system, node.used, [*node.pods, pod], node.dangling,
                            node.applications, node.reclaimable)
    before, after = batch_resources(node, settings), batch_resources(more, settings)
    assert all(after[name] <= before[name] for name in before)
    if not pod.high:
        assert after == before


@given(NODES, STRATEGIES)
def test_zones_together_promise_no_more_than_the_node(node: NodeMeasurements, settings: dict[str, Any]):
    # Without the bound at 0, which a full zone hides from the others.
    capacity = {name: node.capacity[name] // 2 for name in ("cpu", "memory")}
    zones = zone_measurements(node, {0: capacity, 1: capacity})
    used = [add(*(pod.used for pod in zone.pods if pod.high)) for zone in zones.values()]
    total = add(*(pod.used for pod in node.pods if pod.high))
    assert all(total[name] <= used[0][name] + used[1][name] for name in total)
    assert all(pod.usage is None or pod.usage["cpu"] >= 0 for zone in zones.values() for pod in zone.pods)


def test_a_pod_with_an_allocation_counts_in_its_zone_only():
    node = NodeMeasurements(amounts(8_000, 8), system=amounts(1_000, 0), pods=[
        MeasuredPod("koord-prod", "LSR", amounts(2_000, 2), amounts(2_000, 2), zones=(1,)),
        MeasuredPod("koord-prod", "LS", amounts(1_000, 2), amounts(1_000, 2))])
    settings = strategy(cpuReclaimThresholdPercent=100, memoryReclaimThresholdPercent=100)
    zones = zone_measurements(node, {0: amounts(4_000, 4), 1: amounts(4_000, 4)})
    assert {number: batch_resources(zone, settings) for number, zone in zones.items()} == {
        0: amounts(3_000, 3), 1: amounts(1_000, 1)}


# -- from objects


@pytest.mark.parametrize(("status", "stale"), [
    (None, True), ({}, True), ({"updateTime": "soon"}, True), ({"updateTime": "2026-01-01T00:00:00Z"}, True),
    ({"updateTime": "2026-01-01T00:05:00Z"}, False), ({"updateTime": "2026-01-01T00:30:00Z"}, False),
])
def test_a_report_is_stale_after_the_degrade_time(status: dict[str, Any] | None, stale: bool):
    now = 1_767_226_800 * 10**9  # 2026-01-01T00:20:00Z
    metric = None if status is None else {"status": status}
    assert is_stale(metric, {"degradeTimeMinutes": 15}, now) is stale


@pytest.mark.parametrize(("annotation", "reserved"), [
    (None, amounts(1_000, 1)), ("{", amounts(1_000, 1)), ("[]", amounts(1_000, 1)),
    ('{"resources": {"cpu": "500m", "memory": "2Gi"}}', amounts(1_000, 2)),
    ('{"resources": {"cpu": "1"}, "reservedCPUs": "0-2,8"}', amounts(4_000, 1)),
    ('{"reservedCPUs": "0-999999999999"}', amounts(1_000, 1)),
])
def test_the_larger_reservation_counts(annotation: str | None, reserved: dict[str, int]):
    node = {"metadata": {"annotations": {"node.koordinator.sh/reservation": annotation}} if annotation else {},
            "status": {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "7", "memory": "15Gi"}}}
    assert reserved_amounts(node) == reserved


def pod(name: str, *, phase: str = "Running", **metadata: Any) -> PodInfo:
    return PodInfo.of({
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "spec": {"priority": 9500, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]},
        "status": {"phase": phase}})


def test_measurements_join_pods_with_their_reports_and_find_unknown_ones():
    def usage(cpu: str) -> dict[str, Any]:
        return {"resources": {"cpu": cpu, "memory": "1Gi"}}

    metric = {"status": {
        "nodeMetric": {"nodeUsage": usage("4"), "systemUsage": usage("1")},
        "podsMetric": [{"namespace": "shop", "name": name, "priority": "koord-prod", "podUsage": usage("500m")}
                       for name in ("web", "done", "gone")],
        "hostApplicationMetric": [{"name": "nginx", "priority": "koord-mid", "usage": usage("300m")}],
        "prodReclaimableMetric": {"resource": usage("2")}}}
    placed = {"scheduling.koordinator.sh/resource-status": '{"numaNodeResources": [{"node": 1}]}'}
    found = measurements({"status": {"capacity": {"cpu": "8", "memory": "16Gi"}}}, metric, [
        pod("web", annotations=placed), pod("new", phase="Pending"), pod("done", phase="Succeeded")])
    assert found == NodeMeasurements(
        amounts(8_000, 16), amounts(8_000, 16), amounts(1_000, 1), amounts(4_000, 1),
        [MeasuredPod("koord-prod", "LS", amounts(2_000, 1), amounts(500, 1), zones=(1,)),
         MeasuredPod("koord-prod", "LS", amounts(2_000, 1))],
        [("koord-prod", amounts(500, 1))] * 2, [("koord-mid", amounts(300, 1))], amounts(2_000, 1))


def test_the_largest_amounts_are_taken_one_by_one():
    assert largest({"cpu": 1, "memory": 5}, {"cpu": 3}) == {"cpu": 3, "memory": 5}
