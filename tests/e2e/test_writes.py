"""Writes to a real API server: bindings, patches, deletions and evictions, and what refuses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter, PodCondition, WriteResult, WriteStatus

from .control_plane import AdminClient, ControlPlane


def write(kubeconfig: Path, *writes: Callable[[ClusterWriter], Awaitable[WriteResult]]) -> list[WriteResult]:
    async def run() -> list[WriteResult]:
        async with Transport(load_connection(configuration_file=kubeconfig)) as transport:
            return [await each(ClusterWriter(transport)) for each in writes]

    return asyncio.run(run())


def pod(admin: AdminClient, namespace: str, name: str, **spec: Any) -> ObjectReference:
    made = admin.create(f"/api/v1/namespaces/{namespace}/pods", {
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "example/main"}], "schedulerName": "nobody", **spec}})
    return pod_reference(namespace, name, made["metadata"]["uid"])


def other(reference: ObjectReference) -> ObjectReference:
    """The reference to a former pod of the same name."""
    return pod_reference(reference.namespace, reference.name, "00000000-0000-0000-0000-000000000000")


def statuses(results: list[WriteResult]) -> list[WriteStatus]:
    return [result.status for result in results]


def test_l22_a_binding_assigns_a_pod_once_with_its_annotations(
    cluster: ControlPlane, admin: AdminClient, namespace: str,
):
    free = pod(admin, namespace, "free")
    gated = pod(admin, namespace, "gated", schedulingGates=[{"name": "example.com/gate"}])
    results = write(
        cluster.kubeconfig(),
        lambda writer: writer.patch_pod_status(free, nominated_node="one"),
        lambda writer: writer.bind(other(free), "one"),
        lambda writer: writer.bind(free, "one", annotations={"example.com/a": "b"}),
        lambda writer: writer.bind(free, "two"),
        lambda writer: writer.bind(gated, "one"),
        lambda writer: writer.delete(free),
        lambda writer: writer.bind(pod_reference(namespace, "absent", "uid"), "one"))
    assert statuses(results) == [
        WriteStatus.DONE, WriteStatus.REPLACED, WriteStatus.DONE, WriteStatus.ALREADY_ASSIGNED, WriteStatus.GATED,
        WriteStatus.DONE, WriteStatus.GONE]
    assert results[3].node == "one"
    bound = admin.get(free.path())
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"], bound["status"].get("nominatedNodeName")) == (
        "one", {"example.com/a": "b"}, None if admin.clears_nominations() else "one")
    (terminating,) = write(cluster.kubeconfig(), lambda writer: writer.bind(free, "one"))
    assert terminating.status is WriteStatus.TERMINATING


def test_a_status_patch_merges_conditions_and_is_refused_for_a_pod_that_was_replaced(
    cluster: ControlPlane, admin: AdminClient, namespace: str,
):
    target = pod(admin, namespace, "a")
    condition = PodCondition("PodScheduled", "False", "Unschedulable", "x" * 3000)
    victim = PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", "for another")
    results = write(
        cluster.kubeconfig(),
        lambda writer: writer.patch_pod_status(target, condition=victim),
        lambda writer: writer.patch_pod_status(target, condition=condition, nominated_node="one"),
        lambda writer: writer.patch_pod_status(other(target), condition=condition))
    assert [(result.status, result.attempts) for result in results] == [
        (WriteStatus.DONE, 1), (WriteStatus.DONE, 1), (WriteStatus.REPLACED, 1)]
    current = admin.get(target.path())["status"]
    assert {each["type"]: each["reason"] for each in current["conditions"]} == {
        "DisruptionTarget": "PreemptionByScheduler", "PodScheduled": "Unschedulable"}
    assert (len(current["conditions"][-1]["message"]) == 3000 or len(current["conditions"][0]["message"]) == 3000)
    assert current["nominatedNodeName"] == "one"
    results = write(
        cluster.kubeconfig(),
        lambda writer: writer.patch_pod_status(target, condition=condition, nominated_node="one", current=current),
        lambda writer: writer.patch_pod_status(target, nominated_node="", current=current))
    assert statuses(results) == [WriteStatus.UNCHANGED, WriteStatus.DONE]
    assert "nominatedNodeName" not in admin.get(target.path())["status"]


def test_merge_patches_and_deletions_are_of_one_object(cluster: ControlPlane, admin: AdminClient, namespace: str):
    target = pod(admin, namespace, "a")
    version = admin.get(target.path())["metadata"]["resourceVersion"]
    note = {"metadata": {"annotations": {"example.com/a": "b"}}}
    results = write(
        cluster.kubeconfig(),
        lambda writer: writer.merge_patch(other(target), note),
        lambda writer: writer.merge_patch(target, note, resource_version=version),
        lambda writer: writer.merge_patch(target, note | {"spec": {}}, resource_version=version),
        lambda writer: writer.merge_patch(target, {"spec": {"nodeName": 7}}),
        lambda writer: writer.merge_patch(ObjectReference(BY_KIND["NodeMetric"], "", "absent"), {}),
        lambda writer: writer.delete(other(target)),
        lambda writer: writer.delete(target, dry_run=True),
        lambda writer: writer.delete(target, grace_s=0),
        lambda writer: writer.delete(target))
    assert [(result.status, result.attempts) for result in results] == [
        (WriteStatus.REPLACED, 1), (WriteStatus.DONE, 1), (WriteStatus.CONFLICT, 1), (WriteStatus.REFUSED, 1),
        (WriteStatus.GONE, 1), (WriteStatus.REPLACED, 1), (WriteStatus.DONE, 1), (WriteStatus.DONE, 1),
        (WriteStatus.GONE, 1)]


def running(admin: AdminClient, namespace: str, name: str) -> ObjectReference:
    reference = pod(admin, namespace, name, nodeName="one")
    admin.merge(reference.path("status"), {"status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"}]}})
    return reference


def test_an_eviction_without_a_budget_is_of_one_pod(cluster: ControlPlane, admin: AdminClient, namespace: str):
    first = running(admin, namespace, "first")
    results = write(
        cluster.kubeconfig(),
        lambda writer: writer.evict(other(first)),
        lambda writer: writer.evict(first, dry_run=True),
        lambda writer: writer.evict(pod_reference(namespace, "absent", "uid")))
    assert statuses(results) == [WriteStatus.REPLACED, WriteStatus.DONE, WriteStatus.GONE]
    assert "deletionTimestamp" not in admin.get(first.path())["metadata"]
    assert statuses(write(cluster.kubeconfig(), lambda writer: writer.evict(first))) == [WriteStatus.DONE]
    evicted = admin.get(first.path())
    assert "deletionTimestamp" in evicted["metadata"]
    assert {each.get("reason") for each in evicted["status"]["conditions"]} >= {"EvictionByEvictionAPI"}


def test_l49_l50_l51_l52_an_eviction_says_how_a_budget_refuses_it(own_control_plane: ControlPlane):
    plane, admin = own_control_plane, own_control_plane.admin
    manager = plane.start_controller_manager("disruption-controller")
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "web"}}
    first, second = (running(admin, "default", name) for name in ("first", "second"))
    pending = pod(admin, "default", "pending")
    admin.create(budgets, {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}})
    deadline = time.monotonic() + 120
    while admin.get(f"{budgets}/web").get("status", {}).get("disruptionsAllowed") != 1:
        assert time.monotonic() < deadline
        manager.check()
        time.sleep(0.1)

    forbidden, done, blocked = (
        write(plane.kubeconfig(user), lambda writer, target=target: writer.evict(target))[0]  # type: ignore[misc]
        for user, target in (("system:kube-scheduler", first), ("admin", first), ("admin", second)))
    assert statuses([forbidden, done, blocked]) == [
        WriteStatus.FORBIDDEN, WriteStatus.DONE, WriteStatus.PDB_BLOCKED]
    assert (blocked.budget, blocked.retry_after) == ("web", None)
    assert statuses(write(plane.kubeconfig(), lambda writer: writer.evict(pending))) == [WriteStatus.DONE]

    manager.stop()
    admin.merge(f"{budgets}/web", {"spec": {"minAvailable": 0}})
    (stale,) = write(plane.kubeconfig(), lambda writer: writer.evict(second))
    assert (stale.status, stale.budget, stale.retry_after) == (WriteStatus.PDB_STALE, "web", 10.0)

    admin.create(budgets, {"metadata": {"name": "other"}, "spec": {"minAvailable": 0, "selector": selector}})
    (several,) = write(plane.kubeconfig(), lambda writer: writer.evict(second))
    assert several.status is WriteStatus.MULTI_PDB
    assert "deletionTimestamp" not in admin.get(second.path())["metadata"]
