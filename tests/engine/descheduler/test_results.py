"""The decisions of a cycle: which outcomes are made of them, in which order, and when."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler import results
from koordpolicy.engine.descheduler.evictor import CycleEvictor
from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, RunningPlugin
from koordpolicy.engine.descheduler.results import CycleRecord, CycleResult, Decision, EvictionOutcome
from koordpolicy.engine.framework.points import Enforcement, Refusal

from .conftest import NOW, node, pod

PODS = [PodInfo.of(pod(name, "a")) for name in ("x", "y", "z")]
X, Y, Z = PODS


def keeps(why: str, plugin: str = "one") -> Decision:
    return Decision("p", plugin, evicted=False, stopped_by=why)


def evicts(plugin: str = "one") -> Decision:
    return Decision("p", plugin, evicted=True)


def result_of(*decided: tuple[PodInfo, Decision]) -> CycleResult:
    """Return the result of decisions in their order; another plugin's begins another turn."""
    record = CycleRecord(dry_run=True)
    for each, decision in decided:
        record.turn_of("p", decision.plugin).put(each, decision)
    return CycleResult(1, True, 1, record.decisions)


def said(result: CycleResult) -> list[tuple[str, str, str]]:
    return [(pod, of.plugin, "evicted" if of.evicted else of.stopped_by) for pod, _, of in result.outcomes]


def test_the_last_decision_about_a_pod_counts_in_its_place_but_an_eviction_is_final():
    result = result_of((X, keeps("first")), (Y, evicts()), (Z, keeps("limits")), (X, keeps("second")), (Y, keeps("no")))
    assert said(result) == [("d/z", "one", "limits"), ("d/x", "one", "second"), ("d/y", "one", "evicted")]
    assert [each.pod for each in result.evicted] == ["d/y"]


def test_decisions_about_many_pods_are_those_about_each_of_them():
    record = CycleRecord(dry_run=True)
    turn = record.turn_of("p", "one")
    turn.put_all([Y, X], keeps("first"))
    turn.put(X, evicts())
    turn.put_all(iter([Z, X]), keeps("second"))
    turn.put_each({Y: keeps("third")})
    assert said(CycleResult(1, True, 1, record.decisions)) == [
        ("d/z", "one", "second"), ("d/x", "one", "evicted"), ("d/y", "one", "third")]


def test_the_decisions_of_a_plugin_with_two_turns_count_once():
    result = result_of((X, evicts()), (Y, keeps("a")), (X, keeps("b", "two")), (X, keeps("c")), (Y, keeps("d")))
    assert said(result) == [("d/x", "two", "b"), ("d/x", "one", "evicted"), ("d/y", "one", "d")]
    assert [(each.pod, each.decision.plugin) for each in result.evicted] == [("d/x", "one")]
    assert result.decisions.staying() == {("two", "b"): 1, ("one", "d"): 1}


@pytest.mark.parametrize("plugins", [("one", "two"), ("one", "two", "one")])
def test_kept_pods_are_counted_as_their_outcomes_say(plugins: tuple[str, ...]):
    result = result_of(*((each, keeps(f"why {number % 2}", plugin) if number else evicts(plugin))
                         for plugin in plugins for number, each in enumerate(PODS)))
    assert result.decisions.staying() == Counter(
        (each.decision.plugin, each.decision.stopped_by) for each in result.staying)
    assert len(result.outcomes) == 6


def test_only_the_outcomes_that_are_read_are_made(monkeypatch: pytest.MonkeyPatch):
    result, made = result_of((X, evicts()), (Y, keeps("a")), (Z, keeps("a"))), []
    monkeypatch.setattr(results, "EvictionOutcome", lambda *fields: made.append(fields[0]) or EvictionOutcome(*fields))
    assert (len(result.evicted), result.decisions.staying(), made) == (1, {("one", "a"): 2}, ["d/x"])
    assert (len(result.outcomes), made) == (3, ["d/x", "d/x", "d/y", "d/z"])


def test_parts_of_a_cycle_are_joined_in_their_order():
    first, second = result_of((X, evicts())), result_of((Y, keeps("a", "two")))
    assert said(CycleResult(1, True, 1, first.decisions + second.decisions)) == [*said(first), *said(second)]


class Refusing:
    """A filter that refuses a whole template, and counts how it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def passes_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> bool:
        self.calls.append("passes")
        return False

    def refuses_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> Refusal | None:
        self.calls.append("refuses")
        return Refusal("rule", "all of them stay")

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        self.calls.append(pod.name)
        return Refusal("rule", "all of them stay")


def evictor(instance: Any, enforcement: Enforcement = Enforcement.ENFORCE) -> tuple[CycleEvictor, CycleRecord]:
    record, snapshot = CycleRecord(dry_run=True), Cluster([node("a"), node("b")]).snapshot(NOW)
    profile = DeschedulerProfile("p", None, (), (), (RunningPlugin("f", instance, enforcement),), None)
    made = CycleEvictor(profile, snapshot, EvictionLimiter(CycleLimits()), record)
    return made.hand_to(RunningPlugin("one", None)), record


def test_a_filter_that_refuses_a_template_is_asked_once_and_stops_each_of_its_pods():
    refusing = Refusing()
    made, record = evictor(refusing)
    assert [made.filter(each) for each in PODS] == [Refusal("rule", "all of them stay")] * 3
    assert refusing.calls == ["passes", "refuses"]
    assert [(pod, of.stopped_by, of.stopped_rule, of.message) for pod, _, of in record.decisions.outcomes] == [
        (each.key, "f", "rule", "all of them stay") for each in PODS]


def test_a_filter_that_only_warns_is_called_for_each_pod_and_stops_none():
    refusing = Refusing()
    made, record = evictor(refusing, Enforcement.WARN)
    assert [made.filter(each) for each in PODS] == [None] * 3
    assert refusing.calls[-3:] == ["x", "y", "z"]
    assert ([(each.subject, each.audited) for each in record.failures], record.decisions.outcomes) == (
        [("d/x", True), ("d/y", True), ("d/z", True)], ())


def test_a_filter_that_fails_on_a_template_fails_on_each_of_its_pods():
    class Failing(Refusing):
        def refuses_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> Refusal | None:
            raise ValueError("no template")

        def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
            raise ValueError(f"not {pod.name}")

    made, record = evictor(Failing())
    assert [made.filter(each) for each in PODS] == [Refusal("error", f"not {each.name}") for each in PODS]
    assert [each.message for each in record.failures] == ["not x", "not y", "not z"]
