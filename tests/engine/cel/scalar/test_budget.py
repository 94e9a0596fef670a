from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import BINDINGS, LISTS, STANDARD, table
from koordpolicy.engine.cel.scalar.budget import EXACTLY
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.values.types import DYN, INT, STRING, list_of
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.source import Source

SCOPE = Environment(
    functions=table(STANDARD, LISTS), limits=ExpressionLimits(document_cost=20_000, decision_cost=40_000, cost=5_000),
).with_variables(
    Variable("xs", list_of(INT)), Variable("n", INT), Variable("d", DYN), Variable("ts", list_of(STRING)),
)
NUMBERS = list(range(30))
FEW = 15  # so few rows that the allowance per row is less than that of a document
ROWS = [{"n": row, "xs": NUMBERS, "d": NUMBERS, "ts": ["a" * 100] * 30} for row in range(FEW)] + [
    {"n": row, "xs": NUMBERS, "d": NUMBERS, "ts": []} for row in range(FEW, 2 * FEW)
]
BUDGET = 4 * max(20_000, 1_000 * len(ROWS))
ENDLESS = {
    "by row and by column": "xs.all(a, xs.all(b, xs.all(c, a + b + c + n >= 0)))",
    "of unknown types": "d.all(a, d.all(b, d.all(c, a + b + c + n >= 0)))",
    "with functions": "xs.all(a, xs.map(b, b + n).distinct().sort().size() > a - 100)",
    "that nobody emits": "xs.sortBy(a, xs.sortBy(b, xs.sortBy(c, a + b + c + n)[0])[0]).size() > 0",
}


def program(text: str, document: str = "a.yaml") -> Program:
    return compile_program(Source(document, text), SCOPE)


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_what_would_run_for_ever_stops_for_all_rows_together(text: str) -> None:
    endless = program(text)
    column = evaluate(endless, RowFrame(ROWS, {}))
    assert column.errors
    assert {error.reason for error in column.errors.values()} == {"CostLimit"}
    # The last evaluation may go on until its own limit.
    assert endless.meter.spent <= BUDGET + 2 * EXACTLY * SCOPE.limits.cost


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_what_would_run_for_ever_stops_in_one_row(text: str) -> None:
    endless = program(text)
    with pytest.raises(EvaluationError) as caught:
        endless.evaluate({**ROWS[0], "xs": list(range(300)), "d": list(range(300))})
    assert (caught.value.reason, caught.value.final) == ("CostLimit", True)
    assert endless.meter.spent <= 2 * EXACTLY * SCOPE.limits.cost + 100_000


COSTLY = "xs.all(a, xs.all(b, a + b + n >= 0)) && n < 100"


def test_rows_that_came_before_keep_their_answers() -> None:
    column = evaluate(program(COSTLY), RowFrame(ROWS, {}))
    failed = sorted(column.errors)
    assert 0 < failed[0] < len(ROWS) - 1
    assert failed == list(range(failed[0], len(ROWS)))
    assert column.values[: failed[0]].all()
    assert {error.message for error in column.errors.values()} == {
        "operation cancelled: all rows together exceed the cost limit",
    }


def test_the_next_decision_goes_on_where_the_last_one_stopped() -> None:
    costly, first = program(COSTLY), RowFrame(ROWS, {})
    before = evaluate(costly, first)
    left = []
    for _ in range(10):
        following = RowFrame(ROWS, {})
        following.cross_version_cache = first.cross_version_cache
        left.append(len(evaluate(costly, following).errors))
    assert len(before.errors) > left[0]
    assert left[-1] == 0


def test_other_documents_have_budgets_of_their_own_until_that_of_the_decision_is_spent() -> None:
    frame = RowFrame(ROWS, {})
    evaluate(program(ENDLESS["by row and by column"]), frame)
    same = evaluate(program("xs.exists(x, x + n == 5)"), frame)
    assert len(same.errors) >= len(ROWS) - 2, "what is asked for the first time shows what it costs"
    other = evaluate(program("xs.exists(x, x + n == 5)", "b.yaml"), frame)
    assert not other.errors
    for number in range(20):
        evaluate(program(ENDLESS["by row and by column"], f"{number}.yaml"), frame)
    last = evaluate(program("xs.exists(x, x + n == 5)", "c.yaml"), frame)
    assert len(last.errors) >= len(ROWS) - 2
    assert not evaluate(program("dyn(n) + 1 > 0", "a.yaml"), frame).errors, "what has no loops costs nothing"


def test_many_rows_have_an_allowance_each() -> None:
    rows = [{"n": row, "xs": NUMBERS, "d": [], "ts": []} for row in range(2_000)]
    assert not evaluate(program("xs.exists(x, x + n == -1)"), RowFrame(rows, {})).errors


def nested(first: str, step: str, levels: int) -> str:
    """A chain of binds, each of which makes something larger of the one before."""
    text = f"x{levels}.size() > 0"
    for level in range(levels, 0, -1):
        text = f"cel.bind(x{level}, {step.replace('Y', f'x{level - 1}' if level > 1 else first)}, {text})"
    return text


@pytest.mark.parametrize(
    ("first", "step"),
    [
        ("xs", "Y + Y"), ("d", "Y + Y"), ("xs", "Y.map(a, Y).flatten()"), ("ts", "Y + Y"), ("n", "[Y, Y]"),
        ("d", "[Y, Y].map(a, Y)"),
    ],
)
@pytest.mark.parametrize("given", [list(range(100)), "a" * 100], ids=["list", "text"])
def test_what_doubles_with_every_step_is_stopped_before_memory_is(first: str, step: str, given: object) -> None:
    scope = replace(SCOPE, functions=table(STANDARD, LISTS, BINDINGS), limits=ExpressionLimits(cost=100_000))
    doubling = compile_program(nested(first, step, 25), scope)
    values = {"xs": list(range(100)), "ts": ["a"] * 100, "d": given, "n": 1}
    try:
        found: object = doubling.evaluate(values)
    except EvaluationError as error:
        found = error.reason or error.message
    assert found in (True, "CostLimit", "the list would be longer than 100000 elements", "no such overload")
