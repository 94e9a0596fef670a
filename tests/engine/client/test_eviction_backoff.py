"""Answers to evictions hold back a pod, the pods of a budget, or all pods."""

from __future__ import annotations

import pytest

from koordpolicy.engine.client.eviction_backoff import Evictee, EvictionBackoff, EvictionEffect
from koordpolicy.engine.client.writes import WriteResult, WriteStatus

ONE, TWO = Evictee("1", "rs", "shop", frozenset({"web"})), Evictee("2", "rs", "shop", frozenset({"web"}))
OTHER = Evictee("3", "other", "shop", frozenset())
UNKNOWN_BUDGETS = Evictee("4", "rs", "shop")


def blocked(status: WriteStatus = WriteStatus.PDB_BLOCKED, budget: str = "web", **more: float) -> WriteResult:
    return WriteResult(status, "it would violate the budget", budget=budget, **more)  # type: ignore[arg-type]


def held(backoff: EvictionBackoff, *pods: Evictee, at: float) -> list[bool]:
    backoff.forget(at)
    return [backoff.hold(pod, at) is not None for pod in pods]


def seconds_held(backoff: EvictionBackoff, pod: Evictee, begun: float) -> float:
    hold = backoff.hold(pod, begun)
    assert hold is not None
    return hold.until - begun


def test_a_budget_holds_all_its_pods_and_no_others_for_ever_longer():
    backoff, now, lengths = EvictionBackoff(), 0.0, []
    for _ in range(7):
        assert backoff.note(ONE, blocked(), now) is EvictionEffect.PROTECTED
        assert held(backoff, ONE, TWO, OTHER, UNKNOWN_BUDGETS, at=now) == [True, True, False, True]
        assert list(backoff.budgets(now)) == ["shop/web"]
        lengths.append(seconds_held(backoff, TWO, now))
        now += lengths[-1]
        assert held(backoff, ONE, TWO, at=now) == [False, False]
    assert lengths == [10, 20, 40, 80, 160, 300, 300]
    backoff.forget(now + 301)
    backoff.note(ONE, blocked(), now + 301)
    assert seconds_held(backoff, ONE, now + 301) == 10  # long after, it begins anew


def test_a_pod_of_the_workload_that_another_budget_selects_is_not_held():
    backoff = EvictionBackoff()
    backoff.note(ONE, blocked(), 0.0)
    assert held(backoff, Evictee("9", "rs", "shop", frozenset({"new"})), at=1.0) == [False]


@pytest.mark.parametrize(("result", "seconds"), [
    (blocked(WriteStatus.PDB_STALE, retry_after=7.0), 7), (blocked(WriteStatus.PDB_STALE), 10),
    (blocked(WriteStatus.MULTI_PDB, ""), 300),
])
def test_a_budget_that_is_behind_is_held_as_the_server_says_and_several_for_five_minutes(
    result: WriteResult, seconds: float,
):
    backoff = EvictionBackoff()
    for now in (0.0, seconds):
        assert backoff.note(ONE, result, now) is EvictionEffect.PROTECTED
        assert seconds_held(backoff, ONE, now) == seconds


@pytest.mark.parametrize(("result", "lengths"), [
    (WriteResult(WriteStatus.THROTTLED, "too many requests"), [1, 2, 4]),
    (WriteResult(WriteStatus.THROTTLED, "too many requests", retry_after=9.0), [9, 9, 9]),
    (WriteResult(WriteStatus.UNREACHABLE, "nobody listens there"), [1, 2, 4]),
    (WriteResult(WriteStatus.FORBIDDEN, 'cannot create resource "pods/eviction"'), [30, 30, 30]),
])
def test_a_server_that_takes_no_eviction_holds_back_all_pods(result: WriteResult, lengths: list[float]):
    backoff, now, found = EvictionBackoff(), 0.0, []
    for _ in lengths:
        assert backoff.note(ONE, result, now) is EvictionEffect.PAUSED
        found.append(seconds_held(backoff, OTHER, now))
        now += found[-1]
    assert found == lengths
    backoff.note(OTHER, WriteResult(WriteStatus.DONE), now)
    assert backoff.pause(now) is None


@pytest.mark.parametrize("result", [
    WriteResult(WriteStatus.REFUSED, "invalid grace period"), WriteResult(WriteStatus.CONFLICT, "changed"),
    WriteResult(WriteStatus.FORBIDDEN, "a webhook denied the request"),
    WriteResult(WriteStatus.THROTTLED, 'admission webhook "vm" denied the request: later'),
])
def test_any_other_refusal_holds_back_one_pod_for_ever_longer(result: WriteResult):
    backoff, now, lengths = EvictionBackoff(), 0.0, []
    for _ in range(10):
        assert backoff.note(ONE, result, now) is EvictionEffect.REFUSED
        assert held(backoff, TWO, at=now) == [False]
        lengths.append(seconds_held(backoff, ONE, now))
        now += lengths[-1]
    assert lengths == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]


@pytest.mark.parametrize(("status", "effect", "until"), [
    (WriteStatus.DONE, EvictionEffect.LEFT, 120.0), (WriteStatus.GONE, EvictionEffect.LEFT, 120.0),
    (WriteStatus.REPLACED, EvictionEffect.LEFT, 120.0), (WriteStatus.UNKNOWN, EvictionEffect.UNKNOWN, 15.0),
])
def test_a_pod_counts_as_leaving_while_its_answer_is_awaited_and_after_it(
    status: WriteStatus, effect: EvictionEffect, until: float,
):
    backoff = EvictionBackoff()
    backoff.begin("1", 0.0)
    assert backoff.is_leaving("1")
    assert backoff.note(ONE, WriteResult(status), 0.0) is effect
    for now, leaving in ((until - 0.1, {"1"}), (until, set())):
        backoff.forget(now)
        assert backoff.leaving == leaving


def test_a_pod_says_its_workload_by_its_controller():
    owners = [{"uid": "a"}, {"uid": "b", "controller": True}]
    metadata = {"name": "web-1", "namespace": "shop", "uid": "1"}
    assert Evictee.of({"metadata": {**metadata, "ownerReferences": owners}}, ["x"]) == Evictee(
        "1", "b", "shop", frozenset({"x"}))
    assert Evictee.of({"metadata": metadata}) == Evictee("1", "1", "shop", None)
