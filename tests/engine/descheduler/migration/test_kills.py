"""A controller that is killed at any request, and started again, evicts no pod twice and leaves no reservation.

It sees the cluster through informers that lag behind, each on its own.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster as Shown
from koordpolicy.engine.descheduler.migration import jobs, reservations
from koordpolicy.engine.descheduler.migration.filters import MigrationFilter
from koordpolicy.engine.descheduler.migration.job_index import JobIndex
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.settings import EVICT_DIRECTLY, RESERVATION_FIRST, SECOND
from koordpolicy.engine.descheduler.migration.settings import MigrationSettings as Settings
from koordpolicy.engine.descheduler.migration.worker import MigrationWorker
from koordpolicy.engine.descheduler.migration.workloads import WorkloadState
from tests.killed import Killed

from .fake_api import FakeApi, pod

KINDS = ("Pod", jobs.KIND, reservations.KIND)


class Large:
    def find(self, owner: Any, namespace: str) -> WorkloadState:
        return WorkloadState(100)


class Policy:
    """Lets every pod migrate."""

    def __init__(self, mode: str, instance: str) -> None:
        self.settings = Settings(default_mode=mode, arbitration_interval=1, instance=instance)
        self.limiter = ObjectLimiter(self.settings)

    def arbitration(self, snapshot: Any, of: Any) -> tuple[JobIndex, MigrationFilter]:
        index = JobIndex(of, snapshot)
        return index, MigrationFilter(self.settings, index, Large(), arbitrating=True)


class Cluster:
    """The model with its controller, which may be killed, and with the others who act."""

    def __init__(self, mode: str) -> None:
        self.api = FakeApi()
        self.mode = mode
        self.starts = 0
        self.pods = 1
        self.api.add_pod(pod())
        self.start()
        self.api.create_job(jobs.new_job(
            pod(), self.policy.settings, name="job", reason="hot", trigger="LowNodeLoad"))

    @property
    def job(self) -> Any:
        return self.api.stored_jobs.get("job")

    def start(self) -> None:
        self.starts += 1
        self.policy = Policy(self.mode, f"instance-{self.starts}")
        self.worker = MigrationWorker(self.api, clock=lambda: 0.0, ticks=lambda: self.api.now)
        self.shown = Shown()
        self.show()

    def show(self, *kinds: str) -> None:
        """Let the informers of these kinds, or all, catch up."""
        for kind in kinds or KINDS:
            tables = {"Pod": self.api.pods, jobs.KIND: self.api.stored_jobs,
                      reservations.KIND: self.api.stored_reservations}
            known = self.shown.snapshot().objects(kind)
            for key in known.keys() - tables[kind].keys():
                self.shown.delete(kind, key)
            for key, item in tables[kind].items():
                if known.get(key) != item:
                    self.shown.upsert(copy.deepcopy(item))

    def guarded(self, call: Any) -> None:
        try:
            call()
        except Killed:
            self.start()

    def reconcile(self) -> None:
        self.guarded(lambda: self.worker.work(self.policy, self.shown.snapshot(self.api.now)))

    def act(self, what: str, number: int) -> None:
        getattr(self, what)(number)

    # The controller

    def step(self, number: int) -> None:
        self.reconcile()

    def step_and_die(self, number: int) -> None:
        self.api.kill_in, self.api.kill_after = number % 6 + 1, number % 2 == 0
        self.reconcile()
        self.api.kill_in = None

    def catch_up(self, number: int) -> None:
        self.show(*KINDS[:number] if number in (1, 2) else KINDS[-1:] if number == 0 else KINDS)

    # The others

    def schedule(self, number: int) -> None:
        for item in self.api.stored_reservations.values():
            if not reservations.node_of(item):
                node = "n1" if number == 0 else "n2"
                item["status"] = {"phase": "Available", "nodeName": node, "conditions": [
                    {"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}

    def find_no_node(self, number: int) -> None:
        for item in self.api.stored_reservations.values():
            if not reservations.node_of(item):
                item["status"] = {"phase": "Pending" if number % 2 else "Failed", "conditions": [
                    {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]}

    def end_pod(self, number: int) -> None:
        found = self.api.pods.get("shop/web-0")
        if found is not None and (found["metadata"].get("deletionTimestamp") or number == 0):
            del self.api.pods["shop/web-0"]

    def replace_pod(self, number: int) -> None:
        if "shop/web-0" in self.api.pods:
            return
        self.pods += 1
        new = pod(uid=f"pod-{self.pods}", node="n2")
        self.api.add_pod(new)
        for item in self.api.stored_reservations.values():
            if reservations.phase_of(item) == "Available":
                ref = {"namespace": "shop", "name": "web-0", "uid": jobs.uid_of(new)}
                item["status"] = {**item["status"], "phase": "Succeeded", "currentOwners": [ref]}

    def block(self, number: int) -> None:
        self.api.blocked = not self.api.blocked

    def wait(self, number: int) -> None:
        self.api.now += (number + 1) * 20 * SECOND

    def delete_job(self, number: int) -> None:
        if number == 0 and self.job is not None:
            del self.api.stored_jobs["job"]

    def settle(self) -> None:
        self.api.kill_in = None
        for _ in range(16):
            self.api.now += 50 * SECOND
            self.show()
            self.reconcile()


ACTS = ("step", "step", "step_and_die", "step_and_die", "catch_up", "catch_up", "schedule", "find_no_node", "end_pod",
        "replace_pod", "block", "wait", "delete_job")
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 11)), max_size=40)


@pytest.mark.parametrize("mode", [RESERVATION_FIRST, EVICT_DIRECTLY])
@given(history=HISTORIES)
@settings(max_examples=50, deadline=None)
def test_no_pod_is_evicted_twice_and_no_reservation_is_left(mode: str, history: list[tuple[str, int]]) -> None:
    cluster = Cluster(mode)
    for what, number in history:
        cluster.act(what, number)
        assert set(cluster.api.requested) <= {"pod-1"}
        assert cluster.api.requested["pod-1"] <= 1
        assert len(cluster.api.stored_reservations) <= 1
    cluster.settle()
    assert cluster.api.requested["pod-1"] <= 1
    assert cluster.job is None
    assert [item for item in cluster.api.stored_reservations.values() if reservations.bound_pod(item) is None] == []


@pytest.mark.parametrize("mode", [RESERVATION_FIRST, EVICT_DIRECTLY])
@given(kills=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=12))
@settings(max_examples=30, deadline=None)
def test_a_migration_succeeds_however_often_its_controller_is_killed(
    mode: str, kills: list[tuple[int, bool]],
) -> None:
    cluster = Cluster(mode)
    for round_ in range(40):
        if round_ < len(kills):
            cluster.api.kill_in, cluster.api.kill_after = kills[round_]
        cluster.reconcile()
        cluster.api.kill_in = None
        cluster.show(*KINDS[round_ % 3:])
        cluster.schedule(1)
        cluster.end_pod(1)
        cluster.replace_pod(1)
        cluster.api.now += SECOND
    assert (jobs.phase_of(cluster.job), dict(cluster.api.requested)) == ("Succeeded", {"pod-1": 1})


def test_a_failed_migration_takes_its_reservation_along() -> None:
    cluster = Cluster(RESERVATION_FIRST)
    for _ in range(5):
        cluster.show()
        cluster.reconcile()
    assert list(cluster.api.stored_reservations) == ["uid-of-job"]
    cluster.find_no_node(0)
    cluster.show()
    cluster.reconcile()
    assert (jobs.phase_of(cluster.job), cluster.job["status"]["reason"]) == ("Failed", "Unschedulable")
    assert cluster.api.stored_reservations == {}


def test_a_reservation_made_just_before_the_end_of_a_process_goes_when_the_job_times_out() -> None:
    cluster = Cluster(RESERVATION_FIRST)
    cluster.show()
    cluster.api.kill_in, cluster.api.kill_after = 3, True
    cluster.reconcile()
    assert (list(cluster.api.stored_reservations), jobs.reservation_ref(cluster.job)) == (["uid-of-job"], "")
    cluster.api.now += 301 * SECOND
    cluster.reconcile()
    assert (cluster.job["status"]["reason"], cluster.api.stored_reservations) == ("Timeout", {})
