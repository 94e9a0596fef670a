from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.migration import jobs
from koordpolicy.engine.descheduler.migration.arbitrator import arbitrate, sort_jobs
from koordpolicy.engine.descheduler.migration.filters import GATES, MigrationFilter
from koordpolicy.engine.descheduler.migration.job_index import JobIndex
from koordpolicy.engine.descheduler.migration.object_limiter import ObjectLimiter
from koordpolicy.engine.descheduler.migration.settings import SECOND, ObjectLimit
from koordpolicy.engine.descheduler.migration.settings import MigrationSettings as Settings
from koordpolicy.engine.descheduler.migration.workloads import SnapshotWorkloads, WorkloadState, workload_limit

from .fake_api import OWNER, START, pod

NAMED = st.tuples(st.integers(0, 5), st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]), st.booleans())


class Of:
    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def find(self, owner: Any, namespace: str) -> WorkloadState:
        return WorkloadState(self.replicas)


def job(number: int, phase: str = "", *, passed: bool = False) -> dict[str, Any]:
    made = jobs.new_job(pod(f"web-{number}", f"pod-{number}"), Settings(), name=f"job-{number}", reason="", trigger="")
    made["status"] = {"phase": phase}
    made["metadata"]["creationTimestamp"] = "2026-01-01T12:00:00Z"
    return jobs.with_annotations(made, **{jobs.PASSED_ANNOTATION: "true"}) if passed else made


def snapshot(*objects: Any, pods: int = 6) -> Any:
    items = [*(pod(f"web-{number}", f"pod-{number}", f"n{number % 2}") for number in range(pods)), *objects]
    return Cluster(items, kinds=frozenset(each["kind"] for each in items)).snapshot(START)


@pytest.mark.parametrize(("replicas", "value", "limit"), [
    (100, None, 10), (11, None, 1), (10, None, 2), (4, None, 2), (3, None, 1), (0, None, 0), (6, "10%", 1), (6, 0, 1),
    (6, "150%", 6), (6, -1, -1),
])
def test_a_limit_of_a_workload(replicas: int, value: int | str | None, limit: int) -> None:
    assert workload_limit(replicas, value) == limit


@pytest.mark.parametrize("value", ["", "10", "x%", "1.5%"])
def test_other_texts_are_no_limit(value: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a percentage"):
        workload_limit(10, value)


@given(st.lists(NAMED, max_size=8), st.booleans())
def test_the_index_counts_as_a_look_at_all_jobs_does(of: list[tuple[int, str, bool]], passed_only: bool) -> None:
    made = [(number, phase, passed, job(number, phase, passed=passed)) for number, phase, passed in of]
    latest = {each[0]: each for each in made}
    seen = snapshot()
    index = JobIndex((each[3] for each in made), seen)
    asked = pod("web-0", "pod-0", "n0")
    others = [
        number for number, phase, passed, _ in latest.values()
        if number != 0 and phase not in ("Succeeded", "Failed") and (not passed_only or passed or phase == "Running")
    ]
    assert index.others(asked, passed_only=passed_only) == len(others)
    assert index.others_of_namespace(asked, passed_only=passed_only) == len(others)
    assert index.others_of_node(asked, "n0", passed_only=passed_only) == sum(not number % 2 for number in others)
    assert index.others_of_workload(asked, "web-uid", passed_only=passed_only) == {f"shop/web-{n}" for n in others}
    assert index.has_job(asked) == (0 in latest and latest[0][1] not in ("Succeeded", "Failed"))


@pytest.mark.parametrize(("settings", "rule"), [
    ({"max_migrating_globally": 2}, "maxMigratingGlobally"), ({"max_migrating_per_node": 1}, "maxMigratingPerNode"),
    ({"max_migrating_per_namespace": 2}, "maxMigratingPerNamespace"),
    ({"max_migrating_per_workload": 2}, "maxMigratingPerWorkload"),
    ({"max_unavailable_per_workload": 2, "max_migrating_per_workload": 9}, "maxUnavailablePerWorkload"),
    ({"max_migrating_per_workload": "100%"}, "expectedReplicas"),
    ({"scheduler_names": ("other",)}, "schedulerName"),
])
def test_each_limit_refuses_and_its_gate_does_not(settings: dict[str, Any], rule: str) -> None:
    seen = snapshot(job(1), job(2))
    index = JobIndex.of(seen)
    asked = pod("web-0", "pod-0", "n0")
    refusal = MigrationFilter(Settings(**settings), index, Of(50)).refusal(asked)
    assert refusal is not None
    assert refusal.rule == rule
    gate = rule[0].upper() + rule[1:]
    if gate in GATES:
        both = {gate, "MaxUnavailablePerWorkload"} if rule == "expectedReplicas" else {gate}
        open_ = Settings(**settings, skipped_gates=frozenset(both))
        assert MigrationFilter(open_, index, Of(50)).refusal(asked) is None
    asked["metadata"]["annotations"] = {jobs.EVICT_ANNOTATION: ""}
    bypassed = MigrationFilter(Settings(**settings), index, Of(50)).refusal(asked)
    assert (bypassed is None) is (rule != "schedulerName")


def test_arbitration_lets_as_many_pass_as_the_limit_of_a_node_and_goes_on_after_a_restart() -> None:
    waiting = [job(number) for number in range(6)]
    seen = snapshot(*waiting)
    pods = {f"job-{number}": pod(f"web-{number}", f"pod-{number}", f"n{number % 2}") for number in range(6)}
    index = JobIndex.of(seen)
    checks = MigrationFilter(Settings(max_migrating_per_node=2), index, Of(100), arbitrating=True)
    ruled = arbitrate(sort_jobs(waiting, pods, index), pods, checks.non_retryable, checks.retryable, index.put)
    assert [jobs.name_of(each) for each in ruled.passed] == ["job-0", "job-1", "job-2", "job-3"]
    assert [jobs.name_of(each) for each in ruled.waiting] == ["job-4", "job-5"]
    again = JobIndex.of(snapshot(*ruled.passed, *ruled.waiting))
    checks = MigrationFilter(Settings(max_migrating_per_node=2), again, Of(100), arbitrating=True)
    assert arbitrate(ruled.waiting, pods, checks.non_retryable, checks.retryable, again.put).passed == ()


def test_a_job_that_ended_is_not_arbitrated_again() -> None:
    ended = job(1, "Succeeded")
    assert arbitrate([ended], {}, lambda _: None, lambda _: None).passed == ()


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 4))
def test_an_object_has_no_more_evictions_than_its_limit_and_its_burst(waits: list[int], burst: int) -> None:
    limiter = ObjectLimiter(Settings(object_limits=(("workload", ObjectLimit(10 * SECOND, 5, burst)),)))
    now, evicted = START, []
    for wait in waits:
        now += wait * SECOND // 10
        if not limiter.exceeded(pod(), now):
            limiter.track(pod(), Of(100), now)
            evicted.append(now)
    for first, start in enumerate(evicted):
        for last in range(first, len(evicted)):
            assert last - first + 1 <= burst + (evicted[last] - start) * 5 / (10 * SECOND)


def test_workloads_are_found_by_their_owner() -> None:
    metadata = {"name": "d", "namespace": "shop", "uid": "d"}
    deployment = {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 7}}
    above = {"kind": "Deployment", "name": "d", "uid": "d", "controller": True}
    sets = [{"kind": "ReplicaSet", "spec": {"replicas": 3}, "metadata": {
        "name": name, "namespace": "shop", "uid": name, "ownerReferences": [above]}} for name in ("r1", "r2")]
    pods = []
    for number, owner in enumerate(("r1", "r2")):
        item = pod(f"d-{number}", f"d-{number}")
        item["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
        pods.append(item)
    first = pods[0]["metadata"]["ownerReferences"][0]
    whole = SnapshotWorkloads(snapshot(deployment, *sets, *pods)).find(first, "shop")
    assert (whole.replicas, len(whole.pods)) == (7, 2)
    without = SnapshotWorkloads(snapshot(*sets, *pods)).find(first, "shop")
    assert (without.replicas, len(without.pods)) == (3, 1)
    other = SnapshotWorkloads(snapshot(*sets)).find({**first, "uid": "other"}, "shop")
    assert other == WorkloadState()
    assert SnapshotWorkloads(snapshot()).find(OWNER, "shop") is None
    assert SnapshotWorkloads(snapshot()).find({"kind": "Job", "name": "j", "uid": "j"}, "shop") == WorkloadState()
