from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler.migration_controller.args import check_args, constraints_of, settings_of
from koordpolicy.builtin_plugins.descheduler.migration_controller.plugin import MigrationController
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.argument_faults import ArgumentError
from koordpolicy.engine.descheduler.evictor import CycleEvictor
from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter
from koordpolicy.engine.descheduler.migration.settings import SECOND, MigrationSettings, ObjectLimit
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, RunningPlugin
from koordpolicy.engine.descheduler.results import CycleRecord

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
SET = {"kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "d", "uid": "web"}, "spec": {"replicas": 50}}


def pod(name: str, *, node: str = "n1", **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": name, "ownerReferences": [OWNER], **metadata},
        "spec": {"nodeName": node, "schedulerName": "koord-scheduler", "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }


def node(name: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "9"}}}


def made(**args: Any) -> MigrationController:
    return MigrationController(check_args(args))


def rule(plugin: MigrationController, item: dict[str, Any], *objects: dict[str, Any]) -> str | None:
    snapshot = Cluster([SET, item, *objects]).snapshot()
    refusal = plugin.eviction_filter(PodInfo.of(item), snapshot)
    return None if refusal is None else refusal.rule


def test_arguments_have_koordinators_defaults() -> None:
    assert settings_of(check_args({})) == MigrationSettings(
        default_mode="ReservationFirst", default_ttl=300 * SECOND, scheduler_names=("koord-scheduler",),
        max_migrating_per_node=2, object_limits=(("workload", ObjectLimit(300 * SECOND)),),
        arbitration_interval=SECOND // 2, evict_per_second=10, evict_burst=1,
    )


def test_given_arguments_are_converted() -> None:
    assert settings_of(check_args({
        "maxMigratingPerNode": 0, "maxMigratingPerWorkload": "10%", "evictQPS": "2.5", "arbitrationArgs": {},
        "objectLimiters": {"namespace": {"duration": "1m", "maxMigrating": 3, "burst": 2}}, "defaultJobTTL": "0s",
        "skipEvictionGates": ["NodeFit"], "labelSelector": None,
    })) == MigrationSettings(
        default_ttl=0, max_migrating_per_node=0, max_migrating_per_workload="10%", evict_per_second=2.5,
        object_limits=(("namespace", ObjectLimit(60 * SECOND, 3, 2)),), skipped_gates=frozenset({"NodeFit"}),
    )


@pytest.mark.parametrize(("args", "fault"), [
    ({"maxMigratingPerNod": 1}, "maxMigratingPerNod"),
    ({"evictBurst": True}, "evictBurst"),
    ({"defaultJobTTL": "soon"}, "defaultJobTTL"),
    ({"kind": "LowNodeLoadArgs"}, "kind"),
    ({"evictQPS": "x"}, "evictQPS: evictQPS must be greater than 0"),
    ({"evictionPolicy": "Kill"}, "evictionPolicy: unsupported eviction policy, it must be one of Eviction, Delete"),
    ({"skipEvictionGates": ["BarePods", "Pvc"]}, "skipEvictionGates[1]: unknown eviction gate `Pvc`"),
    ({"objectLimiters": {"node": {}}}, "objectLimiters.node: there is no such limiter"),
    ({"maxUnavailablePerWorkload": "ten"}, "maxUnavailablePerWorkload is invalid, err: `ten` is neither"),
    ({"maxMigratingPerWorkload": -1}, "maxMigratingPerWorkload should be greater or equal 0"),
    ({"namespaces": {"include": ["a"], "exclude": ["b"]}}, "namespaces: only one of Include/Exclude"),
    ({"priorityThreshold": {"value": 1, "name": "a"}}, "priorityThreshold: only one of value and name can be set"),
    ({"arbitrationArgs": {"interval": "0s"}}, "arbitrationArgs.interval: interval must be greater than 0"),
])
def test_a_fault_of_the_arguments_names_its_field(args: dict[str, Any], fault: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_args(args)
    assert fault in str(caught.value)


def test_gates_that_are_skipped_open_the_constraints_on_pods() -> None:
    gates = ["SystemCritical", "LocalStorage", "BarePods", "PVC", "PriorityThreshold", "LabelSelector"]
    given = {"ignorePvcPods": True, "priorityThreshold": {"value": 1}, "labelSelector": {"matchLabels": {"a": "b"}}}
    assert constraints_of(check_args({**given, "skipEvictionGates": gates})) == {
        "evictFailedBarePods": False, "evictAllBarePods": True, "evictLocalStoragePods": True,
        "evictSystemCriticalPods": True, "ignorePvcPods": False,
    }


@pytest.mark.parametrize(("args", "item", "expected"), [
    ({}, pod("p"), None),
    ({}, pod("p", deletionTimestamp="2026-01-01T12:00:00Z"), "terminating"),
    ({"namespaces": {"exclude": ["d"]}}, pod("p"), "namespaces"),
    ({"namespaces": {"exclude": ["d"]}, "skipEvictionGates": ["Namespaces"]}, pod("p"), None),
    ({}, pod("p", annotations={"scheduling.koordinator.sh/eviction-cost": "2147483647"}), "evictionCost"),
    ({"schedulerNames": ["mine"]}, pod("p"), "schedulerName"),
    ({"schedulerNames": ["mine"], "defaultJobMode": "EvictDirectly"}, pod("p"), None),
    ({}, pod("p", ownerReferences=[{**OWNER, "uid": "other"}]), "expectedReplicas"),
    ({}, pod("p", ownerReferences=[]), "barePods"),
])
def test_the_filter_says_which_rule_keeps_a_pod(
    args: dict[str, Any], item: dict[str, Any], expected: str | None,
) -> None:
    assert rule(made(**args), item) == expected


def test_a_pod_with_a_job_is_kept_until_the_job_ends() -> None:
    job = {"kind": "PodMigrationJob", "metadata": {"name": "j"}, "spec": {"podRef": {"namespace": "d", "name": "p"}}}
    assert rule(made(), pod("p"), job) == "existingJob"
    assert rule(made(), pod("p"), {**job, "status": {"phase": "Failed"}}) is None


def test_another_node_must_take_the_pod_right_before_its_eviction_if_that_is_asked() -> None:
    snapshot = Cluster([node("n1"), SET, pod("p")]).snapshot()
    info = PodInfo.of(pod("p"))
    assert made().pre_eviction_filter(info, snapshot) is None
    refusal = made(nodeFit=True).pre_eviction_filter(info, snapshot)
    assert refusal is not None
    assert refusal.rule == "nodeFit"


@pytest.mark.parametrize(("args", "evicted"), [
    ({}, ["p0", "p1"]), ({"maxMigratingPerNode": 0, "maxMigratingGlobally": 3}, ["p0", "p1", "p2"]),
    ({"maxMigratingPerNode": 0, "maxUnavailablePerWorkload": 4, "maxMigratingPerWorkload": 1}, ["p0"]),
])
def test_a_dry_run_evicts_no_more_pods_than_may_migrate_at_once(args: dict[str, Any], evicted: list[str]) -> None:
    pods = [pod(f"p{number}") for number in range(5)]
    snapshot = Cluster([node("n1"), node("n2"), SET, *pods]).snapshot()
    running = RunningPlugin("MigrationController", made(**args))
    record = CycleRecord(dry_run=True)
    profile = DeschedulerProfile("p", None, (), (), (running,), running)
    evictor = CycleEvictor(profile, snapshot, EvictionLimiter(CycleLimits()), record).hand_to(RunningPlugin("x", None))
    for item in pods:
        evictor.evict(PodInfo.of(item), "hot")
    assert [pod for pod, _, of in record.decisions.outcomes if of.evicted] == [f"d/{name}" for name in evicted]
