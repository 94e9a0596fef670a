"""The requests of migrations find out what became of a write whose answer was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.descheduler.migration import jobs, reservations
from koordpolicy.engine.descheduler.migration.controller import AlreadyExists, RequestFailed, apply
from koordpolicy.engine.descheduler.migration.live_api import LiveMigrationApi
from koordpolicy.engine.descheduler.migration.migration_step import MigrationStep
from koordpolicy.engine.descheduler.migration.settings import MigrationSettings
from koordpolicy.engine.descheduler.migration.writes import (
    CreateReservation,
    DeleteJob,
    EvictPod,
    UpdateJob,
    UpdateJobStatus,
)
from koordpolicy.engine.framework.handle import EvictionRefusedError

from ...client.object_server import ObjectServer
from .fake_api import START, pod

NEW = jobs.new_job(pod(), MigrationSettings(instance="me"), name="job", reason="hot", trigger="LowNodeLoad")
JOB = {key: value for key, value in NEW.items() if key != "status"}


class Refusing:
    """Refuses evictions by a rule."""

    def __init__(self) -> None:
        self.rule = ""
        self.requests: list[Any] = []

    def evict(self, request: Any) -> Any:
        self.requests.append(request)
        if self.rule:
            raise EvictionRefusedError("it stays", self.rule)


class Live:
    def __init__(self, server: ObjectServer, io: IoThread) -> None:
        transport = Transport(server.connection, rate=0)
        io.on_close(transport.close)
        self.server = server
        self.evictions = Refusing()
        self.may_write = self.leads = True
        self.api = LiveMigrationApi(io, transport, EventRecorder(transport), self.evictions, looks_s=(0.0, 0.0),
                                    may_write=lambda: self.may_write, leads=lambda: self.leads)

    def writes(self) -> list[str]:
        return [method for method, _, _ in self.server.writes]

    def reservation(self, job: Any) -> Any:
        return reservations.new_reservation(job, pod(), START)


@pytest.fixture
def live() -> Iterator[Live]:
    with ObjectServer() as server, IoThread() as io:
        yield Live(server, io)


def test_a_job_is_stored_with_its_status_apart(live: Live) -> None:
    job = live.api.create_job(JOB)
    job = live.api.update_job(jobs.with_annotations(job, **{jobs.PASSED_ANNOTATION: "true"}))
    job = live.api.update_job_status(jobs.with_status(job, phase="Running"))
    assert live.server.objects(jobs.KIND)["job"] == job
    assert (jobs.has_passed(job), jobs.phase_of(job), live.writes()) == (True, "Running", ["POST", "PUT", "PUT"])
    live.api.delete_job("job", "another")
    assert live.api.job("job") == job
    live.api.delete_job("job", jobs.uid_of(job))
    assert live.api.job("job") is None
    live.api.delete_job("job", jobs.uid_of(job))


def test_a_write_that_was_carried_out_without_an_answer_succeeds(live: Live) -> None:
    live.server.lost = ["after"] * 9
    job = live.api.create_job(JOB)
    job = live.api.update_job_status(jobs.with_status(job, phase="Running"))
    assert live.server.objects(jobs.KIND)["job"] == job
    assert jobs.phase_of(job) == "Running"
    with pytest.raises(AlreadyExists):  # whose it is, is the caller's question
        live.api.create_reservation(live.reservation(job))
    live.api.delete_reservation(jobs.uid_of(job))
    live.api.delete_job("job", jobs.uid_of(job))
    assert (live.server.objects(jobs.KIND), live.server.objects(reservations.KIND)) == ({}, {})


def test_a_write_that_never_arrived_fails(live: Live) -> None:
    live.server.lost = ["before"]
    with pytest.raises(RequestFailed, match="cannot create the migration job job"):
        live.api.create_job(JOB)
    job = live.api.create_job(JOB)
    live.server.lost = ["before", "before"]
    with pytest.raises(RequestFailed, match="cannot change the migration job job"):
        live.api.update_job_status(jobs.with_status(job, phase="Running"))
    live.server.lost = ["before"]
    with pytest.raises(RequestFailed, match="cannot create the reservation"):
        live.api.create_reservation(live.reservation(job))
    assert live.server.objects(jobs.KIND)["job"] == job


def test_a_job_that_others_changed_is_not_overwritten(live: Live) -> None:
    job = live.api.create_job(JOB)
    live.server.put({**job, "spec": {**job["spec"], "paused": True}})
    with pytest.raises(RequestFailed, match="cannot change the migration job job"):
        live.api.update_job_status(jobs.with_status(job, phase="Running"))
    assert live.server.objects(jobs.KIND)["job"]["spec"]["paused"]


def test_another_job_of_the_name_is_not_taken_for_the_own_one(live: Live) -> None:
    live.server.put({**JOB, "spec": {"podRef": {"namespace": "shop", "name": "web-7"}}})
    live.server.refusals = [409]
    with pytest.raises(RequestFailed, match="cannot create the migration job job"):
        live.api.create_job(JOB)


@pytest.mark.parametrize(("rule", "stored", "refused"), [
    ("", pod(), False), ("pdb-blocked", pod(), True), ("unknown", pod(), True),
    ("leaving", pod(uid="successor"), False),
    ("gone", pod(uid="successor"), False),
    ("unknown", {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-01-01T12:00:00Z"}}, False),
])
def test_an_eviction_succeeds_if_the_pod_leaves(live: Live, rule: str, stored: Any, refused: bool) -> None:
    live.server.put(stored)
    live.evictions.rule = rule
    eviction = EvictPod(pod(), "Delete", "hot", "LowNodeLoad", {"gracePeriodSeconds": 3})
    if refused:
        with pytest.raises(RequestFailed, match="cannot evict shop/web-0: it stays"):
            live.api.evict(eviction)
    else:
        live.api.evict(eviction)
    (request,) = live.evictions.requests
    assert (request.pod, request.mode, request.strategy, request.action, request.note, request.delete_options) == (
        pod(), "Delete", "LowNodeLoad", "Migrating", 'Pod evicted from node "n1" by the reason "hot"',
        {"gracePeriodSeconds": 3})


def test_a_process_that_does_not_lead_and_has_no_shard_writes_nothing(live: Live) -> None:
    live.leads = live.may_write = False
    with pytest.raises(RequestFailed, match="does not lead"):
        live.api.create_job(JOB)
    assert live.writes() == []


def test_a_step_ends_where_leadership_is_lost_even_if_the_process_has_a_shard(live: Live) -> None:
    job = live.api.create_job(JOB)
    passed = jobs.with_annotations(job, **{jobs.PASSED_ANNOTATION: "true"})

    def lose(_: object) -> None:
        live.leads = False

    eviction = EvictPod(pod(), "Eviction", "hot", "LowNodeLoad")
    for last in (UpdateJobStatus(jobs.with_status(passed, phase="Running")), eviction, DeleteJob("job", "uid"),
                 CreateReservation(live.reservation(job))):
        live.leads = True
        del live.server.writes[:]
        applied = apply(MigrationStep(passed, (UpdateJob(passed), last)), live.api, stored_as=lose)
        assert (applied.failed, applied.error, applied.evicted) == (
            last, "this process does not lead any more", False)
        assert (live.writes(), live.evictions.requests) == (["PUT"], [])
        passed = applied.job


def test_a_replica_with_a_shard_creates_jobs_that_the_leader_works_off(live: Live) -> None:
    live.leads = False
    assert live.api.create_job(JOB) == live.server.objects(jobs.KIND)["job"]
