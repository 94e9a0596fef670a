"""CPUBurst and the reconcilers on this machine's kernel: it takes each of their writes, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from koordpolicy.builtin_plugins.qos.batch_resource.plugin import BatchResource
from koordpolicy.builtin_plugins.qos.cpu_burst.plugin import CPUBurst
from koordpolicy.builtin_plugins.qos.cpuset_allocator.plugin import CPUSetAllocator
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment
from tests.builtin_plugins.qos.readings import SECOND, PlainReadings, slo
from tests.e2e.test_kernel_executor import ID, MAIN, POD, REASON, Node, node

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
__all__ = ("node",)


def pod(qos: str, resources: dict[str, Any], **annotations: str) -> PodInfo:
    return PodInfo.of({
        "metadata": {"name": "p", "namespace": "n", "uid": "u-1", "annotations": annotations,
                     "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"containers": [{"name": "c1", "resources": resources}]},
        "status": {"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [
            {"name": "c1", "containerID": f"docker://{ID}", "state": {"running": {}}},
        ]},
    })


def apply(node: Node, given: PlainReadings, adjustments: Sequence[Adjustment]) -> list[str]:
    """Write adjustments to the kernel; return the status of each write."""
    results = node.executor.apply(adjustments, given.now)
    given.files = cast("dict[str, str]", node.executor.tree.view())
    return [each.status.value for result in results for each in result.writes]


def readings(node: Node, of: PodInfo, **given: Any) -> PlainReadings:
    return PlainReadings(pods=(of,), files=cast("dict[str, str]", node.executor.tree.view()), **given)


def test_quotas_burst_and_fall_back_on_the_kernel(node: Node) -> None:
    for directory in (POD, MAIN):
        assert node.write((f"{directory}/cpu.cfs_quota_us", "200000")) == [("written", "")]
    strategy = CPUBurst({})
    given = readings(
        node, pod("LS", {"limits": {"cpu": "2"}}), usage=1000.0, throttled={"n/p/c1": 0.5},
        objects=slo(cpuBurstStrategy={"policy": "auto", "cpuBurstPercent": 100}),
    )
    for second in range(8):
        given.now = second * SECOND
        assert set(apply(node, given, strategy.adjust(given))) <= {"written"}
    assert [node.logical(f"{each}/cpu.cfs_quota_us") for each in (POD, MAIN)] == ["600000", "600000"]
    if node.path(f"{MAIN}/cpu.cfs_burst_us").exists():
        assert node.value(f"{MAIN}/cpu.cfs_burst_us") == "200000"
    given.usage = 12_000.0
    for second in range(8, 16):
        given.now = second * SECOND
        assert set(apply(node, given, strategy.adjust(given))) <= {"written"}
    assert [node.logical(f"{each}/cpu.cfs_quota_us") for each in (POD, MAIN)] == ["200000", "200000"]
    assert set(apply(node, given, strategy.recover(given))) <= {"written"}
    assert strategy.recover(given) == []


def test_batch_resources_reach_the_kernel_and_are_given_back(node: Node) -> None:
    amounts = {"kubernetes.io/batch-cpu": 1500, "kubernetes.io/batch-memory": 2**28}
    strategy = BatchResource({})
    given = readings(node, pod("BE", {"requests": amounts, "limits": amounts}), objects=slo())
    files = ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes")
    before = [node.value(f"{MAIN}/{name}") for name in files]
    granted = ["59", "150000 100000", str(2**28)] if node.is_v2 else ["1536", "150000", str(2**28)]
    assert set(apply(node, given, strategy.adjust(given))) == {"written"}
    for directory in (POD, MAIN):
        assert [node.value(f"{directory}/{name}") for name in files] == granted
    given.now = SECOND
    assert strategy.adjust(given) == ()
    assert set(apply(node, given, strategy.recover(given))) == {"written"}
    assert [node.value(f"{MAIN}/{name}") for name in files] == before


def test_allocated_cpus_reach_the_kernel_and_are_given_back(node: Node) -> None:
    before = node.value(f"{MAIN}/cpuset.cpus")
    cpus = json.dumps({"cpuset": node.logical(f"{MAIN}/cpuset.cpus").partition(",")[0].partition("-")[0]})
    strategy = CPUSetAllocator({})
    given = readings(node, pod("LSR", {}, **{"scheduling.koordinator.sh/resource-status": cpus}))
    assert set(apply(node, given, strategy.adjust(given))) <= {"written"}
    assert node.value(f"{MAIN}/cpuset.cpus") == json.loads(cpus)["cpuset"]
    assert node.logical(f"{MAIN}/cpu.cfs_quota_us") == "-1"
    given.now = SECOND
    assert strategy.adjust(given) == ()
    assert set(apply(node, given, strategy.recover(given))) <= {"written"}
    assert node.value(f"{MAIN}/cpuset.cpus") == before
