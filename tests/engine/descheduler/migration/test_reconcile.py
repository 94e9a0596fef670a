from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.descheduler.migration import jobs, reservations
from koordpolicy.engine.descheduler.migration.controller import MigrationJobController
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.reconcile import REQUEUE, MigrationStep, reconcile_step
from koordpolicy.engine.descheduler.migration.scavenger import orphans, stale_jobs
from koordpolicy.engine.descheduler.migration.settings import EVICT_DIRECTLY, SECOND
from koordpolicy.engine.descheduler.migration.settings import MigrationSettings as Settings
from koordpolicy.engine.descheduler.migration.workloads import WorkloadState
from koordpolicy.engine.descheduler.migration.writes import DeleteJob, DeleteReservation, EvictPod, UpdateJob

from .fake_api import START, FakeApi, pod

SETTINGS = Settings(arbitration=False, instance="me")


class Large:
    def find(self, owner: Any, namespace: str) -> WorkloadState:
        return WorkloadState(100)


def made(api: FakeApi, settings: Settings = SETTINGS, **spec: Any) -> dict[str, Any]:
    job = jobs.new_job(pod(), settings, name="job", reason="hot", trigger="LowNodeLoad")
    return dict(api.create_job({**job, "spec": {**job["spec"], **spec}}))


def controller(api: FakeApi, settings: Settings = SETTINGS) -> MigrationJobController:
    return MigrationJobController(api, settings, ObjectLimiter(settings))


def world(*pods: dict[str, Any]) -> FakeApi:
    api = FakeApi()
    for each in pods:
        api.add_pod(each)
    return api


def test_the_requests_of_one_migration_are_in_this_order() -> None:
    api = world(pod())
    made(api)
    api.calls.clear()
    works = controller(api)

    def step() -> int | None:
        return works.reconcile(api.jobs()[0], api, Large())

    assert step() == 0
    assert step() == REQUEUE
    api.stored_reservations["uid-of-job"]["status"] = {
        "phase": "Available", "nodeName": "n2",
        "conditions": [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}],
    }
    assert step() == REQUEUE
    assert step() == REQUEUE
    del api.pods["shop/web-0"]
    assert step() == REQUEUE
    api.add_pod(pod(uid="pod-2", node="n2", conditions=[{"type": "Ready", "status": "False"}]))
    api.stored_reservations["uid-of-job"]["status"]["currentOwners"] = [
        {"namespace": "shop", "name": "web-0", "uid": "pod-2"}]
    assert step() == REQUEUE
    api.add_pod(pod(uid="pod-2", node="n2"))
    assert step() is None
    assert api.calls == [
        "update job status", "create reservation", "update job",  # running, reserved
        "update job status",  # ReservationCreated
        "update job status", "evict", "update job status",  # scheduled and about to evict, evicting
        "update job status",  # evicted, waiting for a pod
        "update job status",  # bound, waiting for it to be ready
        "update job status",  # ready, bound, succeeded
    ]
    assert [reason for reason, _ in api.events] == [
        "ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "WaitForPodBindReservation",
        "PodBoundReservation", "WaitForBoundPodReady", "Complete",
    ]
    status = api.jobs()[0]["status"]
    assert (status["phase"], status["status"], status["nodeName"], status["podRef"]["uid"], status["message"]) == (
        "Succeeded", "Complete", "n2", "pod-2", 'Bind Pod "shop/web-0" in Reservation "uid-of-job"')
    assert {each["type"]: each["status"] for each in status["conditions"]} == dict.fromkeys((
        "ReservationCreated", "ReservationScheduled", "Eviction", "PodBoundReservation", "ReservationBound",
        "BoundPodReady"), "True")


def test_a_step_that_is_repeated_without_a_change_writes_nothing() -> None:
    api = world(pod())
    made(api)
    works = controller(api)
    for _ in range(3):
        works.reconcile(api.jobs()[0], api, Large())
    api.calls.clear()
    works.reconcile(api.jobs()[0], api, Large())
    assert api.calls == []


def test_an_eviction_that_a_budget_refuses_is_tried_again_later_and_later() -> None:
    api = world(pod())
    api.blocked = True
    settings = Settings(arbitration=False, default_mode=EVICT_DIRECTLY, evict_burst=9)
    made(api, settings)
    works = controller(api, settings)
    delays = []
    for _ in range(4):
        delays.append(works.reconcile(api.jobs()[0], api, Large()))
        api.now += delays[-1] or 0
    assert delays == [5_000_000, 10_000_000, 20_000_000, 40_000_000]
    assert api.events == [("Evicting", True)] * 4
    api.blocked = False
    works.reconcile(api.jobs()[0], api, Large())
    assert api.requested == {"pod-1": 1}


def test_too_many_evictions_in_a_second_wait() -> None:
    settings = Settings(arbitration=False, default_mode=EVICT_DIRECTLY, evict_per_second=1)
    api = world(*(pod(f"web-{number}", f"pod-{number}") for number in range(2)))
    for number in range(2):
        api.create_job(jobs.new_job(
            pod(f"web-{number}", f"pod-{number}"), settings, name=f"job-{number}", reason="", trigger=""))
    works = controller(api, settings)
    for job in api.jobs():
        works.reconcile(job, api, Large())
    assert dict(api.requested) == {"pod-0": 1}
    api.now += SECOND
    for job in api.jobs():
        works.reconcile(job, api, Large())
    assert dict(api.requested) == {"pod-0": 1, "pod-1": 1}


@pytest.mark.parametrize(("job", "pods", "phase", "reason"), [
    ({"podRef": {"namespace": "shop"}}, [], "Failed", "InvalidPodRef"),
    ({}, [], "Failed", "MissingPod"),
    ({"ttl": "5s"}, [pod()], "Failed", "Timeout"),
    ({"reservationOptions": {"reservationRef": {"name": "mine"}}}, [pod()], "Failed", "MissingReservation"),
    ({"paused": True}, [], "Pending", None),
])
def test_a_job_fails_with_a_reason(job: dict[str, Any], pods: list[Any], phase: str, reason: str | None) -> None:
    api = world(*pods)
    found = made(api, **job)
    api.now += 6 * SECOND
    step = reconcile_step(found, api, SETTINGS)
    assert (jobs.phase_of(step.job), (step.job.get("status") or {}).get("reason")) == (phase, reason)


def test_a_timeout_ends_the_reservation_that_a_user_gave_too() -> None:
    api = world(pod())
    found = made(api, reservationOptions={"reservationRef": {"name": "mine"}})
    api.now += 301 * SECOND
    step = reconcile_step(found, api, SETTINGS)
    assert step.writes[:2] == (DeleteReservation("mine"), DeleteReservation("uid-of-job"))


def test_a_job_of_a_former_instance_is_adopted() -> None:
    api = world(pod())
    found = made(api, Settings(instance="former"))
    step = reconcile_step(found, api, SETTINGS)
    assert isinstance(step.writes[0], UpdateJob)
    assert jobs.annotations_of(step.job)[jobs.CREATED_BY_ANNOTATION] == "me"
    assert jobs.phase_of(step.job) == "Running"


def test_a_job_that_waits_for_arbitration_is_not_begun() -> None:
    api = world(pod())
    found = made(api)
    assert reconcile_step(found, api, Settings()) == MigrationStep(found)
    passed = jobs.with_annotations(found, **{jobs.PASSED_ANNOTATION: "true"})
    assert jobs.phase_of(reconcile_step(passed, api, Settings(instance="me")).job) == "Running"


def test_a_pod_of_the_same_name_is_not_evicted_in_the_place_of_one_that_is_gone() -> None:
    api = world(pod(uid="pod-2"))
    running = {**made(api, mode=EVICT_DIRECTLY), "status": {"phase": "Running"}}
    step = reconcile_step(running, api, SETTINGS)
    assert not any(isinstance(write, EvictPod) for write in step.writes)
    assert step.job["status"]["reason"] == "MissingPod"


def test_a_foreign_reservation_of_the_wanted_name_is_left_alone() -> None:
    api = world(pod())
    found = made(api, reservationOptions={"template": {"metadata": {"name": "taken"}}})
    api.stored_reservations["taken"] = {"metadata": {"name": "taken"}}
    controller(api).reconcile(found, api, Large())
    status = api.jobs()[0]["status"]
    assert (status["phase"], jobs.condition(api.jobs()[0], "ReservationCreated")["reason"]) == (  # type: ignore[index]
        "Running", "FailedCreateReservation")
    assert list(api.stored_reservations) == ["taken"]


def test_a_reservation_is_for_the_pods_controller_on_another_node() -> None:
    api = world(pod())
    found = made(api)
    old = pod()
    old["metadata"]["annotations"] = {"mine": "1", "scheduling.koordinator.sh/resource-status": "{}"}
    item = reservations.new_reservation(found, old, START)
    assert item["metadata"]["name"] == "uid-of-job"
    assert item["metadata"]["labels"] == {
        "app.kubernetes.io/created-by": "koord-descheduler",
        "scheduling.koordinator.sh/reservation-order": "1800000000000",
    }
    assert item["metadata"]["ownerReferences"][0]["uid"] == "uid-of-job"
    assert item["spec"]["owners"][0]["controller"]["uid"] == "web-uid"
    assert (item["spec"]["allocateOnce"], item["spec"]["ttl"]) == (True, "5m0s")
    assert item["spec"]["template"]["metadata"] == {"namespace": "shop", "annotations": {"mine": "1"}}
    spec = item["spec"]["template"]["spec"]
    assert "nodeName" not in spec
    assert spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]}


def test_a_pending_pod_is_the_owner_of_its_reservation_itself() -> None:
    item = pod(conditions=[{"type": "PodScheduled", "status": "False"}])
    found = reservations.new_reservation(made(FakeApi()), item, START)
    assert found["spec"]["owners"] == [{"object": {
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "pod-1"}}]
    assert reservations.waits_for_pending_pod(found)


def test_the_scavenger_deletes_stale_jobs_and_reservations_without_a_job() -> None:
    api = FakeApi()
    young, old = made(api), made(api, ttl="10s")
    old = {**old, "metadata": {**old["metadata"], "name": "old", "uid": "old-uid"}}

    def reservation(name: str, owner: str, **status: Any) -> dict[str, Any]:
        metadata = {"name": name, "ownerReferences": [{"kind": "PodMigrationJob", "uid": owner}]}
        return {"metadata": metadata, "status": status}

    of = [
        reservation("young", "uid-of-job"), reservation("lost", "gone"), {"metadata": {"name": "users"}},
        reservation("taken", "gone", currentOwners=[{"name": "p"}]),
    ]
    assert stale_jobs([young, old], START + 310 * SECOND) == [
        DeleteReservation("old-uid"), DeleteJob("old", "old-uid")]
    assert [jobs.name_of(each) for each in orphans([young, old], of)] == ["lost"]
