"""Programs that measure themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.scalar.program import compile  # noqa: A004 - the name of our function
from koordpolicy.engine.cel.scalar.timing import TimedProgram, TimeSpent
from koordpolicy.engine.cel.values.types import INT
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame

ENVIRONMENT = Environment(variables={"x": Variable("x", INT)}, functions=table(STANDARD))


def timed(text):
    """Each look at the clock is a second later."""
    return TimedProgram(compile(text, ENVIRONMENT).checked, itertools.count().__next__)


def test_an_evaluation_that_fails_costs_too():
    program = timed("10 / x")
    assert program.evaluate({"x": 5}) == 2
    with pytest.raises(EvaluationError):
        program.evaluate({"x": 0})
    assert program.spent == TimeSpent(calls=2, rows=2, seconds=2)


def test_a_column_is_one_call_about_the_rows_that_are_asked_for():
    program, frame = timed("x * 2"), RowFrame([{"x": number} for number in range(5)], {})
    assert evaluate(program, frame).values.tolist() == [0, 2, 4, 6, 8]
    evaluate(program, frame, np.array([1, 3], np.intp))
    assert program.spent == TimeSpent(calls=2, rows=7, seconds=2)


def test_programs_have_an_account_each():
    first, second = timed("x"), timed("x")
    first.evaluate({"x": 1})
    assert (first.spent.calls, second.spent.calls) == (1, 0)
