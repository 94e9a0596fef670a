"""The worker looks at a job when something that it waits for changed, for one policy at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler.migration_controller.args import check_args
from koordpolicy.builtin_plugins.descheduler.migration_controller.plugin import MigrationController
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.migration import jobs
from koordpolicy.engine.descheduler.migration.controller import RequestFailed
from koordpolicy.engine.descheduler.migration.settings import SECOND
from koordpolicy.engine.descheduler.migration.worker import MigrationFigures, MigrationWorker
from koordpolicy.engine.descheduler.migration.workloads import SnapshotWorkloads
from koordpolicy.engine.descheduler.migration.written_jobs import WrittenJobs
from koordpolicy.engine.framework.descheduler import EvictionChoice, EvictionMode, EvictionResult, EvictOptions
from koordpolicy.engine.framework.handle import EvictionRefusedError

from .fake_api import START, FakeApi, pod

MINUTE = 60 * SECOND
SET = {"kind": "StatefulSet", "metadata": {"name": "web", "namespace": "shop", "uid": "web-uid"},
       "spec": {"replicas": 9}}
OPTIONS = EvictOptions("it is hot", "koord-descheduler", "LowNodeLoad", choice=EvictionChoice(grace_period_s=5))


class Client:
    """Implements `MigratesPods` over the model of the API server."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.skew = 0
        self.migrations = MigrationWorker(self.api, clock=lambda: 0.0, ticks=lambda: self.api.now - self.skew)
        self.identity = "me"
        self.cluster = Cluster([pod(), SET])
        self.api.add_pod(pod())

    def snapshot(self) -> Any:
        return self.cluster.snapshot(self.api.now)

    def plugin(self, **args: Any) -> MigrationController:
        return MigrationController(
            check_args(args), client=self, snapshot=self.snapshot, new_name=lambda: "job")

    def show(self) -> None:
        for item in (*self.api.jobs(), *self.api.reservations()):
            self.cluster.upsert(dict(item))


def test_an_eviction_creates_one_job_which_counts_before_the_cluster_shows_it() -> None:
    client = Client()
    plugin = client.plugin()
    assert plugin.evict_with_options(PodInfo.of(pod()), OPTIONS) is EvictionResult.EVICTED
    (job,) = client.api.jobs()
    assert (job["spec"], job["metadata"]["annotations"]) == (
        {"paused": False, "mode": "ReservationFirst", "ttl": "5m0s", "deleteOptions": {"gracePeriodSeconds": 5},
         "podRef": {"namespace": "shop", "name": "web-0", "uid": "pod-1"}},
        {jobs.REASON_ANNOTATION: "it is hot", jobs.TRIGGER_ANNOTATION: "LowNodeLoad",
         jobs.CREATED_BY_ANNOTATION: "me"})
    with pytest.raises(EvictionRefusedError) as caught:
        plugin.evict_with_options(PodInfo.of(pod()), OPTIONS)
    assert caught.value.rule == "existingJob"


@pytest.mark.parametrize(("mode", "labels"), [
    (EvictionMode.MIGRATION_JOB, None), (EvictionMode.DELETE, {"koordinator.sh/evict-policy": "Delete"})])
def test_the_mode_that_a_filter_chose_is_that_of_the_jobs_eviction(mode: EvictionMode, labels: Any) -> None:
    client = Client()
    client.plugin().evict_with_options(PodInfo.of(pod()), replace(OPTIONS, choice=EvictionChoice(mode)))
    (job,) = client.api.jobs()
    assert job["metadata"].get("labels") == labels


def test_a_dry_run_of_the_controller_and_one_without_a_client_create_no_job() -> None:
    client = Client()
    assert client.plugin(dryRun=True).evict(PodInfo.of(pod()), "hot") is EvictionResult.EVICTED
    assert client.api.calls == []
    alone = MigrationController(check_args({}), snapshot=client.snapshot)
    with pytest.raises(OSError, match="nothing migrates pods here"):
        alone.evict(PodInfo.of(pod()), "hot")
    assert alone.background_step(client.snapshot()) is None


def test_a_job_is_looked_at_after_arbitration_and_when_its_reservation_changed() -> None:
    client = Client()
    plugin = client.plugin()
    plugin.evict(PodInfo.of(pod()), "hot")
    for _ in range(9):
        due = plugin.background_step(client.snapshot())
    assert client.api.calls == ["create job", "update job", "update job status", "create reservation", "update job",
                                "update job status"]
    assert client.migrations.figures == MigrationFigures(running=1, steps=2)
    assert due == START + 3 * SECOND
    (item,) = client.api.stored_reservations.values()
    item["status"] = {"phase": "Available", "nodeName": "n2", "conditions": [
        {"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}
    client.show()
    plugin.background_step(client.snapshot())
    assert client.api.calls[6:] == ["update job status", "evict", "update job status"]


def test_a_refused_eviction_is_tried_again_when_a_budget_changed() -> None:
    client = Client()
    plugin = client.plugin(defaultJobMode="EvictDirectly", evictBurst=9)
    client.api.blocked = True
    plugin.evict(PodInfo.of(pod()), "hot")
    for _ in range(9):
        plugin.background_step(client.snapshot())
    assert client.api.calls.count("evict") == 1
    client.api.blocked = False
    client.cluster.upsert({"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "shop"}})
    plugin.background_step(client.snapshot())
    assert (client.api.calls.count("evict"), dict(client.api.requested)) == (2, {"pod-1": 1})


def test_the_first_policy_governs_all_jobs_until_it_is_closed() -> None:
    client = Client()
    first, second = client.plugin(), client.plugin(defaultJobTTL="0s")
    assert first.background_step(client.snapshot()) == START + MINUTE
    second.evict(PodInfo.of(pod()), "hot")
    assert second.background_step(client.snapshot()) == START + MINUTE
    assert client.api.calls == ["create job"]
    first.close()
    second.background_step(client.snapshot())
    assert client.api.calls[:2] == ["create job", "update job"]


def test_a_clock_that_is_set_delays_no_arbitration_no_scavenging_and_no_limit() -> None:
    client = Client()
    plugin = client.plugin(objectLimiters={"workload": {"duration": "1m", "maxMigrating": 1}}, arbitrationArgs={
        "interval": "10s"}, defaultJobMode="EvictDirectly")
    assert plugin.background_step(client.snapshot()) == START + MINUTE
    plugin.limiter.track(pod(), SnapshotWorkloads(client.snapshot()), client.migrations.ticks())
    # The API server's clock is set back by an hour, while 70 s pass.
    client.skew = -60 * MINUTE
    client.api.now += client.skew + 70 * SECOND
    client.api.create_job(jobs.new_job(pod(), plugin.settings, name="old", reason="hot", trigger="LowNodeLoad"))
    client.api.stored_jobs["old"]["metadata"]["creationTimestamp"] = jobs.rfc3339(client.api.now - 60 * MINUTE)
    client.show()
    assert not plugin.limiter.exceeded(pod(), client.migrations.ticks())
    due = plugin.background_step(client.snapshot())
    assert client.api.calls[:4] == ["create job", "delete reservation", "delete job", "update job"]
    assert due is not None
    assert client.api.now <= due <= client.api.now + MINUTE


def test_a_job_that_another_replica_worked_off_unseen_is_forgotten() -> None:
    client = Client()
    plugin = client.plugin()
    plugin.evict(PodInfo.of(pod()), "hot")
    client.api.now += 10 * MINUTE - SECOND
    assert [jobs.name_of(each) for each in client.migrations.jobs(client.snapshot())] == ["job"]
    client.api.now += SECOND
    assert list(client.migrations.jobs(client.snapshot())) == []


def test_a_job_that_timed_out_is_counted_and_not_looked_at_again() -> None:
    client = Client()
    plugin = client.plugin()
    plugin.evict(PodInfo.of(pod()), "hot")
    plugin.background_step(client.snapshot())
    client.api.now += 5 * MINUTE
    for _ in range(3):
        due = plugin.background_step(client.snapshot())
    assert client.migrations.figures.ended == {("Failed", "Timeout"): 1}
    assert due == client.api.now + MINUTE


def test_a_job_that_cannot_be_ended_waits_and_holds_back_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    plugin = client.plugin()
    plugin.evict(PodInfo.of(pod()), "hot")
    plugin.background_step(client.snapshot())
    client.api.now += 5 * MINUTE

    def refuse(job: Any) -> Any:
        raise RequestFailed("it is forbidden", retry_after=7 * SECOND)

    monkeypatch.setattr(client.api, "update_job_status", refuse)
    assert [plugin.background_step(client.snapshot()) for _ in range(2)] == [client.api.now + 7 * SECOND] * 2


def test_what_was_written_counts_until_the_cluster_shows_it() -> None:
    def job(version: int, uid: str = "u") -> dict[str, Any]:
        return {"metadata": {"name": "job", "uid": uid, "resourceVersion": str(version)}}

    written = WrittenJobs()
    written.note(job(5))
    written.note(job(4))
    assert written.newest_of([]) == [job(5)]
    assert written.newest(job(3)) == job(5)
    assert (written.unseen(), written.unseen_job("job")) == ([], None)
    assert written.newest(job(5)) == job(5)
    assert written.newest_of([]) == []
    written.note(job(7))
    assert written.newest(job(6, uid="another")) == job(6, uid="another")
