"""Candidates, amounts and tasks of evictions, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.qos_manager.evictions import (
    ChosenEviction,
    EvictionCandidate,
    EvictionMemory,
    EvictionTask,
    ExecutionResult,
    PriorityOrder,
    ReleaseTarget,
    band_request,
    batch_cpu_of,
    eviction_allowed,
    execute_tasks,
    request_of,
    usage_release,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Evictions
from koordpolicy.testing import FakeReadings

USAGE, REQUESTS = ReleaseTarget.USAGE, ReleaseTarget.REQUESTS


def pod(name: str, *, priority: int | None = 100, labels: Any = None, annotations: Any = None, phase: str = "Running",
        **spec: Any) -> PodInfo:
    marked = {"koordinator.sh/qosClass": "BE", "koordinator.sh/eviction-enabled": "true", **(labels or {})}
    return PodInfo.of({
        "metadata": {"namespace": "d", "name": name, "uid": f"uid-{name}", "labels": marked,
                     "annotations": annotations or {}},
        "spec": {"priority": priority, "containers": [{"name": "c"}], **spec}, "status": {"phase": phase}})


def candidates(**used: int) -> tuple[EvictionCandidate, ...]:
    return tuple(EvictionCandidate(pod(name), amount) for name, amount in used.items())


def task(of: tuple[EvictionCandidate, ...], amount: int, *, target: ReleaseTarget = USAGE, reason: str = "r",
         factor: int = 1) -> EvictionTask:
    return EvictionTask(reason, of, {"memory": amount}, target, lambda each: {"memory": each.used * factor})


def names(result: ExecutionResult) -> list[str]:
    return [each.candidate.pod.name for each in result.evictions]


def everyone(_task: EvictionTask, _candidate: EvictionCandidate) -> bool:
    return True


def nobody(_pod: PodInfo) -> bool:
    return False


def test_candidates_go_in_order_until_enough_is_released():
    of = candidates(a=3, b=4, c=5)
    wanted = task(of, 6)
    assert execute_tasks([wanted], nobody, everyone) == ExecutionResult(
        (ChosenEviction(wanted, of[0], {"memory": 3}), ChosenEviction(wanted, of[1], {"memory": 4})),
        {USAGE: {"memory": 7}})


def test_a_candidate_that_contributes_nothing_goes_when_its_turn_comes():
    assert names(execute_tasks([task(candidates(a=0, b=4), 3)], nobody, everyone)) == ["a", "b"]


def test_a_pod_that_is_leaving_counts_in_its_turn_and_is_not_evicted():
    result = execute_tasks([task(candidates(a=3, b=4), 3)], lambda each: each.name == "a", everyone)
    assert result == ExecutionResult((), {USAGE: {"memory": 3}})


def test_where_an_eviction_fails_the_next_candidate_goes():
    result = execute_tasks([task(candidates(a=3, b=4), 3)], nobody, lambda _, each: each.pod.name != "a")
    assert (names(result), result.released) == (["b"], {USAGE: {"memory": 4}})


def test_the_amounts_of_one_task_count_for_the_next_one_of_the_same_target_only():
    of = candidates(a=5, b=5)
    same = execute_tasks([task(of, 5), task(of[::-1], 5)], nobody, everyone)
    other = execute_tasks([task(of, 5), task(of[::-1], 5, target=REQUESTS)], nobody, everyone)
    # The eviction of `a` counts for requests too, so that the second task is covered.
    assert (names(same), names(other)) == (["a"], ["a"])
    assert other.released == {USAGE: {"memory": 5}, REQUESTS: {"memory": 5}}


def test_of_several_tasks_with_one_target_the_largest_contribution_of_a_pod_counts_not_the_sum():
    of = candidates(a=5, b=5, c=5)
    result = execute_tasks([task(of, 5), task(of, 11, factor=2)], nobody, everyone)
    assert (names(result), result.released) == (["a", "b"], {USAGE: {"memory": 20}})


def test_a_task_that_releases_nothing_evicts_nobody():
    assert execute_tasks([task(candidates(a=5), 0)], nobody, everyone) == ExecutionResult()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 40), st.sets(st.integers(0, 8)),
       st.sets(st.integers(0, 8)))
def test_no_pod_goes_once_enough_is_released(used, amount, leaving, failing):
    of = candidates(**{f"p{number}": each for number, each in enumerate(used)})
    result = execute_tasks(
        [task(of, amount)], lambda each: int(each.name[1:]) in leaving,
        lambda _, each: int(each.pod.name[1:]) not in failing)
    gone = [f"p{number}" for number in range(len(used)) if number in leaving or number not in failing]
    sums = [sum(used[int(each[1:])] for each in gone[:length]) for length in range(len(gone) + 1)]
    needed = next((length for length, total in enumerate(sums) if total >= amount), len(gone))
    assert names(result) == [each for each in gone[:needed] if int(each[1:]) not in leaving]
    assert result.released == ({USAGE: {"memory": sums[needed]}} if needed else {USAGE: {}})


@pytest.mark.parametrize(("text", "allowed"), [
    (None, True), ('["MemoryEvict"]', True), ('["CPUEvict", "MemoryEvict"]', True), ('["CPUEvict"]', False),
    ("", False), ('"MemoryEvict"', False), ("[]", False), ("{", False),
    ('["MemoryEvict", 7]', False), ("[" * 100_000, False), (7, False),
])
def test_a_policy_allows_what_it_names(text, allowed):
    annotations = {} if text is None else {"koordinator.sh/eviction-policy": text}
    assert eviction_allowed({"metadata": {"annotations": annotations}}, "MemoryEvict") is allowed


def test_requests_are_those_of_the_band():
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"kubernetes.io/batch-cpu": "300"}}}
    init = {"name": "i", "resources": {"requests": {"kubernetes.io/batch-cpu": "9000"}}}
    containers = [{"name": name, "resources": {"requests": {"kubernetes.io/batch-cpu": amount, "cpu": "2"}}}
                  for name, amount in (("a", "600"), ("b", "400"))]
    batch = pod("batch", priority=5500, containers=containers, initContainers=[sidecar, init])
    prod = pod("prod", priority=9500, containers=containers, initContainers=[sidecar, init])
    assert request_of(batch, "cpu") == ("kubernetes.io/batch-cpu", 1300)
    assert request_of(prod, "cpu") == ("cpu", 4000)
    assert batch_cpu_of(prod) == 1300
    odd = {"spec": {"containers": [{"resources": {"requests": {"kubernetes.io/mid-memory": amount}}}
                                   for amount in ("1k", "-5k")]}}
    assert band_request(odd, "koord-mid", "memory") == ("kubernetes.io/mid-memory", 1000)


def ordered(*pods: PodInfo, ties: ReleaseTarget = USAGE, used: Any = None, threshold: int = 5999) -> list[str]:
    amounts = {each.key: {"cpu": "1"} for each in pods} if used is None else {f"d/{name}": {"cpu": each}
                                                                               for name, each in used.items()}
    readings: Any = FakeReadings({}, pods=[each.object for each in pods], pod_usage=amounts)
    return [each.pod.name for each in PriorityOrder("CPUEvict", "cpu", threshold, ties).candidates(readings)]


def test_candidates_by_priority_are_active_enabled_measured_and_allowed():
    assert ordered(
        pod("ended", phase="Succeeded"), pod("pending", phase="Pending"), pod("above", priority=6000),
        pod("disabled", labels={"koordinator.sh/eviction-enabled": "True"}),
        pod("kept", annotations={"koordinator.sh/eviction-policy": '["MemoryEvict"]'}), pod("default", priority=None),
        pod("zero", priority=0), pod("prod", priority=None, labels={"koordinator.sh/qosClass": "LS"}),
        pod("unmeasured"),
        used=dict.fromkeys(("ended", "pending", "above", "disabled", "kept", "default", "zero", "prod"), "1"),
    ) == ["pending", "default", "zero"]


def test_the_order_is_by_eviction_priority_priority_sub_priority_and_usage():
    first = {"koordinator.sh/eviction-priority": "-1"}
    pods = (
        pod("large", labels={"koordinator.sh/priority": "5"}), pod("small", labels={"koordinator.sh/priority": "5"}),
        pod("odd", labels={"koordinator.sh/priority": "1_0"}, annotations={"koordinator.sh/eviction-priority": "1e3"}),
        pod("low", priority=99), pod("first", priority=5000, annotations=first),
        pod("beyond", annotations={"koordinator.sh/eviction-priority": "2147483648"}),
    )
    used = {"large": "3", "small": "1", "odd": "1", "low": "1", "first": "1", "beyond": "2"}
    assert ordered(*pods, used=used) == ["first", "low", "large", "small", "beyond", "odd"]


def test_ties_of_requests_are_by_request():
    def asks(name: str, cpu: str) -> PodInfo:
        return pod(name, containers=[{"name": "c", "resources": {"requests": {"kubernetes.io/batch-cpu": cpu}}}])

    pods = (asks("small", "1000"), asks("large", "2000"))
    assert ordered(*pods, ties=REQUESTS, used={"small": "2", "large": "1"}) == ["large", "small"]
    assert ordered(*pods, ties=USAGE, used={"small": "2", "large": "1"}) == ["small", "large"]


@pytest.mark.parametrize(("used", "release"), [(79.9, 0), (80, 300), (80.9, 300), (83.2, 600), (120, 4300)])
def test_usage_is_compared_in_whole_percent(used, release):
    assert usage_release(used * 100, 10_000, 80, 77) == release


def test_evictions_are_remembered_for_two_minutes():
    memory = EvictionMemory()
    memory.note(["a"], 0)
    memory.note(["b"], 60 * 10**9)
    assert memory.view(119 * 10**9) == Evictions(frozenset("ab"))
    assert memory.view(120 * 10**9) == Evictions(frozenset("b"))
