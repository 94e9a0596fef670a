"""Programs that tell what they were asked."""

from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cel.check.environment import Environment, Scope, Variable
from koordpolicy.engine.cel.check.types import INT, list_of
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.scalar.program import compile  # noqa: A004
from koordpolicy.engine.cel.scalar.tracing import NO_ROW, ObservedProgram, observe
from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame

ENVIRONMENT = Environment(
    variables={"x": Variable("x", INT), "xs": Variable("xs", list_of(INT), Scope.DECISION)}, functions=table(STANDARD),
)


class Told:
    def __init__(self):
        self.all = []

    def asked(self, program, row, answer, bindings):
        value = answer.message if isinstance(answer, EvaluationError) else answer
        self.all.append((program.source.text, row, value, bindings["x"]))


def observed(text):
    told = Told()
    return ObservedProgram(compile(text, ENVIRONMENT).checked, told), told


def test_a_question_about_given_variables_is_told_with_its_answer():
    program, told = observed("10 / x")
    assert program.evaluate({"x": 5}) == 2
    with pytest.raises(EvaluationError):
        program.evaluate({"x": 0})
    assert told.all == [("10 / x", NO_ROW, 2, 5), ("10 / x", NO_ROW, "division by zero", 0)]


def test_a_question_about_rows_is_told_row_by_row_and_answered_as_ever():
    program, told = observed("10 / x > xs[0]")
    frame = RowFrame([{"x": 5}, {"x": 0}, {"x": 1}], {"xs": [3]})
    column = evaluate(program, frame, np.array([0, 1]))
    assert (bool(column.values[0]), list(column.errors)) == (False, [1])
    assert told.all == [("10 / x > xs[0]", 0, False, 5), ("10 / x > xs[0]", 1, "division by zero", 0)]


def test_every_node_that_was_evaluated_is_told_of_those_in_loops_in_each_turn():
    checked = compile("x > 1 && xs.exists(y, y == x) || x == 0", ENVIRONMENT).checked
    found = []
    observe(checked, {"x": 2, "xs": [1, 2]}, lambda owner, node, value: found.append(
        (owner.source.text[node.start : node.end], value),
    ))
    assert found == [
        ("x", 2), ("1", 1), ("x > 1", True), ("xs", [1, 2]),
        ("y", 1), ("x", 2), ("y == x", False), ("y", 2), ("x", 2), ("y == x", True),
        ("xs.exists(y, y == x)", True), ("x > 1 && xs.exists(y, y == x)", True),
        ("x > 1 && xs.exists(y, y == x) || x == 0", True),
    ]
