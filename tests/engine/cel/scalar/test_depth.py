"""All stages recurse into an expression: what the limit lets through must not exhaust Python's stack in any of them."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import STANDARD, STRINGS, table
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.values.types import DYN, INT

ENVIRONMENT = Environment(functions=table(STANDARD, STRINGS)).with_variables(Variable("pod", DYN), Variable("n", INT))
DEEPEST = ExpressionLimits().depth


@pytest.mark.parametrize("text", [
    "n" + " + 1" * (DEEPEST - 1),
    "pod.name" + ".lowerAscii()" * (DEEPEST - 2),
    "[" * (DEEPEST - 1) + "n" + "]" * (DEEPEST - 1),
    "int(" * (DEEPEST - 1) + "n" + ")" * (DEEPEST - 1),
    "n == 1 ? 1 : (" * (DEEPEST // 2) + "n" + ")" * (DEEPEST // 2),
])
def test_what_nests_as_deep_as_is_allowed_can_be_checked_run_and_explained(text: str) -> None:
    program = compile_program(text, ENVIRONMENT)
    bindings = {"pod": {"name": "web"}, "n": 2}
    assert explain(program, bindings)
    assert program.evaluate(bindings) == program.call(*(bindings[name] for name in program.variables))
