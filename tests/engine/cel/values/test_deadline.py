from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from koordpolicy.engine.cel.check.environment import Environment, Scope, Variable
from koordpolicy.engine.cel.library import LISTS, STANDARD, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.values.deadline import DEADLINE, Deadline
from koordpolicy.engine.cel.values.types import INT, STRING, list_of
from koordpolicy.engine.cel.values.values import COST_LIMIT, EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.kubernetes.library import FUNCTIONS
from koordpolicy.engine.source import PolicyError, Source

ENDLESS = ExpressionLimits(cost=10**12, document_cost=10**15, decision_cost=10**15)
SCOPE = Environment(functions=table(STANDARD, LISTS), limits=ENDLESS).with_variables(
    Variable("xs", list_of(INT), Scope.DECISION), Variable("n", INT, Scope.ROW),
)
LOOPS = {
    "loops": "xs.all(a, xs.all(b, xs.all(c, a + b + c + n >= 0)))",
    "loops that cost nothing": "xs.filter(a, xs.filter(b, xs.filter(c, a + b + c + n < 0).size() > 0).size() > "
                               "0).size() == 0",
    "what is absorbed": "xs.all(a, xs.all(b, xs.all(c, a + b + c + n >= 0))) || true",
}


def program(text: str) -> Program:
    return compile_program(Source("a.yaml", text), SCOPE)


def ticking(seconds: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += seconds


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_an_evaluation_stops_at_its_deadline(text: str) -> None:
    clock = ticking(0.1)
    deadline = Deadline(1.0, lambda: next(clock))
    with deadline, pytest.raises(EvaluationError) as caught:
        program(text).evaluate({"xs": list(range(2_000)), "n": 1})
    assert (caught.value.reason, caught.value.final) == (DEADLINE, True)
    assert deadline.stopped is not None
    assert deadline.stopped.name == "a.yaml"


def test_an_evaluation_stops_when_another_thread_cancels_it() -> None:
    deadline, begun, found = Deadline(), threading.Event(), []

    def run() -> None:
        with deadline:
            begun.set()
            try:
                program(LOOPS["loops"]).evaluate({"xs": list(range(2_000)), "n": 1})
            except EvaluationError as error:
                found.append(error.reason)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    deadline.cancel()
    thread.join(timeout=60)
    assert found == [DEADLINE]


def test_rows_after_the_deadline_are_errors_that_are_not_cached() -> None:
    costly = program("xs.all(x, x + n >= 0)")
    rows = [{"n": row} for row in range(100)]
    frame = RowFrame(rows, {"xs": list(range(100))})
    evaluate(costly, RowFrame(rows[:1], {"xs": [1]}))
    deadline = Deadline()
    deadline.cancel()
    with deadline:
        stopped = evaluate(costly, frame)
    assert {error.reason for error in stopped.errors.values()} == {DEADLINE}
    again = evaluate(costly, frame.with_values({"xs": list(range(100))}))
    assert not again.errors
    assert again.values.all()


def test_what_spends_nothing_goes_on() -> None:
    cheap, deadline = program("n > 1"), Deadline()
    deadline.cancel()
    with deadline:
        column = evaluate(cheap, RowFrame([{"n": row} for row in range(100)], {}))
    assert not column.errors


def test_an_expression_is_not_checked_after_the_deadline() -> None:
    deadline = Deadline()
    deadline.cancel()
    with deadline, pytest.raises(PolicyError) as caught:
        program("n > 1")
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == ("cel-deadline", "was not checked before its deadline")
    assert deadline.stopped is not None


def test_of_nested_deadlines_the_earlier_holds_and_the_outer_comes_back() -> None:
    outer, inner = Deadline(), Deadline()
    with outer:
        with inner:
            outer.cancel()
            assert inner.passed
            assert Deadline.current() is inner
        assert Deadline.current() is outer
        assert not inner.passed
    assert Deadline.current() is None


PATTERNS = Environment(functions=FUNCTIONS).with_variables(Variable("t", STRING, Scope.ROW))


@pytest.mark.parametrize("function", ["matches", "find", "findAll"])
def test_rows_that_each_compile_a_large_pattern_of_their_own_are_stopped(function: str) -> None:
    text = rf"dyn('é'.{function}('\\pL{{20}}' + t)) == dyn(true)"
    clock = ticking(1.0)
    with Deadline(10, clock=lambda: next(clock)):
        column = evaluate(
            compile_program(text, PATTERNS), RowFrame([{"t": f"{function}{row}"} for row in range(200)], {}),
        )
    assert {error.reason for error in column.errors.values()} == {DEADLINE}
    assert 100 < len(column.errors) < 200


def test_a_loop_pays_for_the_large_patterns_that_it_makes() -> None:
    text = r"lists.range(100).exists(i, 'é'.matches('\\pL{40}' + t + string(i)))"
    with pytest.raises(EvaluationError) as caught:
        compile_program(text, replace(PATTERNS, limits=ExpressionLimits(cost=20_000))).evaluate({"t": "a"})
    assert caught.value.reason == COST_LIMIT
