"""The reconciliation of a node: what is written, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from koordpolicy.engine.client.writes import WriteResult, WriteStatus
from koordpolicy.engine.manager.objects import ManagedObjects
from koordpolicy.engine.manager.reconciler import HASH_ANNOTATION, NodeReconciler, WriteRefused, spec_hash

NOW = 1_767_226_800 * 10**9  # 2026-01-01T00:20:00Z
COLOCATION = {"colocation-config": '{"enable": true, "cpuReclaimThresholdPercent": 100, '
              '"memoryReclaimThresholdPercent": 100}'}


class Cluster:
    """Objects as the API server has them; fulfils what the reconciler uses of `ClusterWriter`."""

    def __init__(self, **options: Any) -> None:
        self.objects = ManagedObjects()
        self.writes: list[tuple[Any, ...]] = []
        self.results: list[WriteResult] = []
        self.clock = 1000.0
        self.leads = True
        self.reconciler = NodeReconciler(
            self.objects, self, now=lambda: NOW, may_write=lambda: self.leads,  # type: ignore[arg-type]
            clock=lambda: self.clock, jitter=lambda: 0.5, **options)
        self._version = 1

    def put(self, kind: str, name: str, **content: Any) -> bytes:
        self._version += 1
        raw = json.dumps({"kind": kind, **content, "metadata": {
            **content.get("metadata", {}), "name": name, "uid": f"uid-{name}", "resourceVersion": str(self._version)},
        }).encode()
        self.objects.put(kind, name, raw)
        return raw

    def node(self, **annotations: str) -> None:
        self.put("Node", "n", metadata={"annotations": annotations}, status={
            field: {"cpu": "10", "memory": "8Gi"} for field in ("capacity", "allocatable")})

    def report(self, cpu: str, at: str = "00:19:00") -> None:
        usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
        known = self.objects.object("NodeMetric", "n") or {}
        self.put("NodeMetric", "n", spec=known.get("spec") or {}, status={
            "updateTime": f"2026-01-01T{at}Z", "nodeMetric": {"systemUsage": usage, "nodeUsage": usage}})

    def reconcile(self) -> list[tuple[Any, ...]]:
        """Reconcile the node; return the writes of that."""
        self.writes = []
        asyncio.run(self.reconciler.reconcile("n"))
        return self.writes

    async def create(self, resource: Any, item: dict[str, Any], *, namespace: str = "") -> WriteResult:
        self.writes.append(("create", resource.kind, item))
        return self._answered(resource.kind, item["metadata"]["name"], item)

    async def merge_patch(self, target: Any, patch: dict[str, Any], **options: Any) -> WriteResult:
        self.writes.append(("patch", target.resource.kind, patch, *options.values()))
        known = self.objects.object(target.resource.kind, target.name)
        return self._answered(target.resource.kind, target.name, _merged(known, patch))

    def _answered(self, kind: str, name: str, item: dict[str, Any]) -> WriteResult:
        if self.results:
            return self.results.pop(0)
        content = {key: value for key, value in item.items() if key != "kind"}
        return WriteResult(WriteStatus.DONE, answer=self.put(kind, name, **content))

    async def delete(self, target: Any) -> WriteResult:
        self.writes.append(("delete", target.resource.kind, target.name, target.uid))
        return WriteResult(WriteStatus.DONE)


def _merged(item: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(item, dict):
        return patch
    found = {key: value for key, value in item.items() if patch.get(key, 0) is not None}
    return found | {key: _merged(item.get(key), value) for key, value in patch.items() if value is not None}


def kinds(writes: list[tuple[Any, ...]]) -> list[tuple[str, str]]:
    return [(each[0], each[1]) for each in writes]


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.reconciler.configure(COLOCATION)
    found.node()
    return found


def test_a_new_node_gets_its_objects_once(cluster: Cluster):
    created = cluster.reconcile()
    assert kinds(created) == [("create", "NodeSLO"), ("create", "NodeMetric")]
    slo = created[0][2]
    assert slo["metadata"] == {"name": "n", "annotations": {HASH_ANNOTATION: spec_hash(slo["spec"])}}
    assert slo["spec"]["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"] == 65
    assert cluster.reconcile() == []


def test_only_the_changed_part_of_a_node_slo_is_patched_and_foreign_sections_stay(cluster: Cluster):
    cluster.reconcile()
    known = cluster.objects.object("NodeSLO", "n")
    assert known is not None
    cluster.put("NodeSLO", "n", spec={**known["spec"], "extensions": {"other": 1}})
    assert cluster.reconcile() == []
    cluster.reconciler.configure({**COLOCATION, "cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}'})
    (patch,) = cluster.reconcile()
    assert patch[2]["spec"] == {"cpuBurstStrategy": {"policy": "auto"}}
    assert (cluster.objects.object("NodeSLO", "n") or {})["spec"]["extensions"] == {"other": 1}


def test_a_server_that_stores_another_spec_is_not_written_to_again(cluster: Cluster):
    cluster.reconcile()
    cluster.reconciler.configure({**COLOCATION, "cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}'})
    stored = cluster.put("NodeSLO", "n", spec={"pruned": True})
    cluster.results = [WriteResult(WriteStatus.DONE, answer=stored)]
    assert kinds(cluster.reconcile()) == [("patch", "NodeSLO")]
    assert cluster.reconcile() == []


def test_a_node_that_is_gone_takes_its_objects_along(cluster: Cluster):
    cluster.reconcile()
    cluster.objects._remove("Node", "n")
    assert cluster.reconcile() == [("delete", "NodeSLO", "n", "uid-n"), ("delete", "NodeMetric", "n", "uid-n")]


def test_a_broken_configuration_leaves_the_spec_of_node_metrics_and_a_missing_one_has_the_defaults():
    cluster = Cluster()
    cluster.node()
    assert kinds(cluster.reconcile()) == [("create", "NodeSLO")]  # no valid configuration was seen
    cluster.reconciler.configure(None)
    assert kinds(cluster.reconcile()) == [("create", "NodeMetric")]
    cluster.reconciler.configure({"colocation-config": '{"metricReportIntervalSeconds": 20}'})
    assert [each[2] for each in cluster.reconcile()] == [
        {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 20}}}]
    cluster.reconciler.configure({"colocation-config": "{"})
    cluster.put("NodeMetric", "n", spec={"metricCollectPolicy": {"reportIntervalSeconds": 1}})
    assert cluster.reconcile() == []


def test_the_deletion_of_the_config_map_leaves_node_slos():
    cluster = Cluster()
    cluster.node()
    cluster.reconciler.configure({"cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}'})
    cluster.reconcile()
    cluster.reconciler.configure(None, deleted=True)
    assert cluster.reconcile() == []
    assert cluster.reconciler.slo.configs["cpu-burst-config"]["clusterStrategy"]["policy"] == "auto"


def statuses(writes: list[tuple[Any, ...]]) -> list[Any]:
    return [each[2]["status"]["allocatable"] for each in writes if each[1] == "Node" and "status" in each[2]]


def test_resources_are_published_again_only_after_a_large_change_or_a_long_time(cluster: Cluster):
    cluster.reconcile()
    cluster.report("2")
    memory = str(7 << 30)
    assert statuses(cluster.reconcile()) == [{
        "kubernetes.io/batch-cpu": "8000", "kubernetes.io/batch-memory": memory, "kubernetes.io/mid-cpu": "0",
        "kubernetes.io/mid-memory": "0"}]
    cluster.report("2400m")
    assert statuses(cluster.reconcile()) == []
    cluster.clock += 299
    assert statuses(cluster.reconcile()) == []
    cluster.clock += 2
    assert statuses(cluster.reconcile()) == [{"kubernetes.io/batch-cpu": "7600"}]
    cluster.clock += 301
    assert cluster.reconcile() == []  # no blind write
    cluster.report("3200m")
    assert statuses(cluster.reconcile()) == [{"kubernetes.io/batch-cpu": "6800"}]


def test_a_restart_does_not_write_small_differences_at_once(cluster: Cluster):
    cluster.reconcile()
    cluster.report("2")
    cluster.put("Node", "n", status={field: {
        "cpu": "10", "memory": "8Gi", "kubernetes.io/batch-cpu": "7900", "kubernetes.io/batch-memory": str(7 << 30),
        "kubernetes.io/mid-cpu": "0", "kubernetes.io/mid-memory": "0"} for field in ("capacity", "allocatable")})
    assert statuses(cluster.reconcile()) == []
    cluster.clock += 151  # half of the time, as the jitter says
    assert statuses(cluster.reconcile()) == [{"kubernetes.io/batch-cpu": "8000"}]


def test_resources_go_when_measurements_are_stale_or_colocation_is_off(cluster: Cluster):
    cluster.reconcile()
    cluster.report("2")
    cluster.reconcile()
    gone = dict.fromkeys(["kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", "kubernetes.io/mid-cpu",
                          "kubernetes.io/mid-memory"])
    cluster.report("2", "00:04:59")
    assert statuses(cluster.reconcile()) == [gone]
    assert cluster.reconciler.figures.degraded == 1
    cluster.report("2")
    cluster.reconcile()
    cluster.reconciler.configure({"colocation-config": '{"enable": false}'})
    assert statuses(cluster.reconcile()) == [gone]
    assert cluster.reconciler.figures.degraded == 0


@pytest.mark.parametrize("status", [
    {"nodeMetric": {"systemUsage": {"resources": {"cpu": "fast"}}}}, {"podsMetric": [5]}, {"nodeMetric": []},
    {"hostApplicationMetric": {"a": 1}},
])
def test_measurements_that_cannot_be_read_are_as_bad_as_stale_ones(
    cluster: Cluster, status: dict[str, Any], caplog: Any,
):
    cluster.reconcile()
    cluster.report("2")
    cluster.reconcile()
    known = cluster.objects.object("NodeMetric", "n") or {}
    cluster.put("NodeMetric", "n", spec=known["spec"], status={"updateTime": "2026-01-01T00:19:00Z", **status})
    (gone,) = statuses(cluster.reconcile())
    assert set(gone.values()) == {None}
    assert cluster.reconciler.figures.degraded == 1
    assert "node n: its measurements cannot be read" in caplog.text


def test_an_invalid_strategy_of_a_node_leaves_the_default_of_its_report(cluster: Cluster):
    cluster.node(**{"node.koordinator.sh/colocation-strategy": '{"metricReportIntervalSeconds": -1}'})
    metric = next(each[2] for each in cluster.reconcile() if each[1] == "NodeMetric")
    assert metric["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] == 60


def test_zones_are_written_with_the_version_that_was_read(cluster: Cluster):
    cluster.reconcile()
    cluster.put("NodeResourceTopology", "n", zones=[
        {"name": "node-0", "resources": [{"name": "cpu", "capacity": "10"}, {"name": "memory", "capacity": "8Gi"}]}])
    version = (cluster.objects.object("NodeResourceTopology", "n") or {})["metadata"]["resourceVersion"]
    cluster.report("2")
    (patch,) = (each for each in cluster.reconcile() if each[1] == "NodeResourceTopology")
    assert patch[3] == version
    assert [each["name"] for each in patch[2]["zones"][0]["resources"]] == [
        "cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"]


@pytest.mark.parametrize(("status", "raised"), [
    (WriteStatus.CONFLICT, True), (WriteStatus.UNREACHABLE, True), (WriteStatus.FORBIDDEN, True),
    (WriteStatus.GONE, False), (WriteStatus.REPLACED, False),
])
def test_a_failed_write_is_raised_unless_the_object_is_gone(cluster: Cluster, status: WriteStatus, raised: bool):
    cluster.results = [WriteResult(status, "because")]
    if raised:
        with pytest.raises(WriteRefused, match="cannot create NodeSLO n: because"):
            cluster.reconcile()
    else:
        cluster.reconcile()
    assert cluster.reconciler.figures.failed == raised


def test_nothing_is_written_without_the_lease(cluster: Cluster):
    cluster.leads = False
    with pytest.raises(WriteRefused, match="does not lead"):
        cluster.reconcile()
    assert cluster.writes == []
