"""The amounts of expressions over generations."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from koordpolicy.engine.scheduler.documents.evaluations import Evaluations
from koordpolicy.engine.scheduler.observe import policy_metrics
from koordpolicy.engine.scheduler.observe.policy_metrics import ExpressionTotals


class Servers:
    """Active documents, as plugins and their counters."""

    def __init__(self, monkeypatch: Any) -> None:
        self.active: list[tuple[str, Evaluations]] = []
        monkeypatch.setattr(policy_metrics, "evaluations_of", lambda _: (("p", *each) for each in self.active))
        self.totals = ExpressionTotals()

    def read(self) -> dict[tuple[str, str, str], tuple[int, ...]]:
        return {key: tuple(amounts) for key, amounts in self.totals.read(()).items()}


def test_amounts_go_on_over_generations_also_those_between_the_last_reading_and_a_promotion(monkeypatch):
    servers, first, second = Servers(monkeypatch), Evaluations("filter", "r"), Evaluations("filter", "r")
    servers.active = [("a", first)]
    first.evaluated = 10
    assert servers.read() == {("a", "filter", "r"): (10, 0, 0)}
    first.evaluated, first.refused, first.failed = 82, 3, 1
    servers.active = [("a", second)]
    assert servers.read() == {("a", "filter", "r"): (82, 3, 1)}
    second.evaluated = 5
    assert servers.read() == servers.read() == {("a", "filter", "r"): (87, 3, 1)}
    servers.active = []
    assert servers.read() == servers.read() == {("a", "filter", "r"): (87, 3, 1)}


def test_profiles_with_the_same_document_add_up(monkeypatch):
    servers = Servers(monkeypatch)
    servers.active = [("a", Evaluations("filter", "r", 1)), ("a", Evaluations("filter", "r", 2))]
    assert servers.read() == {("a", "filter", "r"): (3, 0, 0)}


def test_rules_that_are_gone_are_bounded_in_number_and_the_first_ones_are_forgotten(monkeypatch):
    servers = Servers(monkeypatch)
    for number in range(1200):
        servers.active = [("a", Evaluations("filter", str(number), 1)), ("b", Evaluations("filter", "stays", 1))]
        found = servers.read()
    assert len(found) == 1000 + 2
    assert ("a", "filter", "100") not in found
    assert found["b", "filter", "stays"] == (1200, 0, 0)
    assert found["a", "filter", "1198"] == (1, 0, 0)


def test_amounts_do_not_hold_the_programs_of_replaced_documents(monkeypatch):
    class Program:
        pass

    program: Any = Program()
    servers, gone = Servers(monkeypatch), weakref.ref(program)
    servers.active = [("a", Evaluations.of("filter", "r", program))]
    servers.read()
    servers.active = []
    del program
    gc.collect()
    assert gone() is None


def test_refusals_are_of_rules_only(monkeypatch):
    servers = Servers(monkeypatch)
    servers.active = [("a", Evaluations("filter", "r", 9, 2)), ("a", Evaluations("score", "s", 5)),
                      ("a", Evaluations("matchConditions", "m", 1))]
    evaluations, refusals = servers.totals.collect(())
    assert dict(refusals.series) == {("a", "filter", "r"): 2}
    assert len(list(evaluations.series)) == 3
