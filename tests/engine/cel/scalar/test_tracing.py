"""Programs that tell what they were asked."""

from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cel.check.environment import Environment, Scope, Variable
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.scalar.program import compile  # noqa: A004 - the name of our function
from koordpolicy.engine.cel.scalar.tracing import NO_ROW, ObservedProgram, observe
from koordpolicy.engine.cel.values.types import INT, list_of
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame

ENVIRONMENT = Environment(
    variables={"x": Variable("x", INT), "xs": Variable("xs", list_of(INT), Scope.DECISION)}, functions=table(STANDARD),
)


class Recorder:
    def __init__(self):
        self.all = []

    def evaluated(self, program, row, result, bindings):
        value = result.message if isinstance(result, EvaluationError) else result
        self.all.append((program.source.text, row, value, bindings["x"]))


def observed(text):
    recorder = Recorder()
    return ObservedProgram(compile(text, ENVIRONMENT).checked, recorder), recorder


def test_an_evaluation_with_given_variables_is_reported_with_its_result():
    program, recorder = observed("10 / x")
    assert program.evaluate({"x": 5}) == 2
    with pytest.raises(EvaluationError):
        program.evaluate({"x": 0})
    assert recorder.all == [("10 / x", NO_ROW, 2, 5), ("10 / x", NO_ROW, "division by zero", 0)]


def test_an_evaluation_of_rows_is_reported_row_by_row_with_the_same_results():
    program, recorder = observed("10 / x > xs[0]")
    frame = RowFrame([{"x": 5}, {"x": 0}, {"x": 1}], {"xs": [3]})
    column = evaluate(program, frame, np.array([0, 1]))
    assert (bool(column.values[0]), list(column.errors)) == (False, [1])
    assert recorder.all == [("10 / x > xs[0]", 0, False, 5), ("10 / x > xs[0]", 1, "division by zero", 0)]


def test_every_evaluated_node_is_reported_those_in_loops_in_each_iteration():
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


def test_a_chain_of_definitions_that_each_mention_the_one_before_twice_is_reported_once_each():
    environment = ENVIRONMENT.with_definition("v0", compile("x", ENVIRONMENT).checked)
    for number in range(1, 31):
        doubled = compile(f"variables.v{number - 1} % 7 + variables.v{number - 1} % 7", environment)
        environment = environment.with_definition(f"v{number}", doubled.checked)
    found = []
    observe(compile("variables.v30 > 0", environment).checked, {"x": 3}, lambda owner, node, value: found.append(
        (owner.source.text[node.start : node.end], value)))
    assert found[-1] == ("variables.v30 > 0", True)
    assert [text for text, _ in found].count("x") == 1
    assert len(found) == 1 + 30 * 7 + 3
