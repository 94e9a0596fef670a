"""Both evaluators of one expression, which must agree."""

from __future__ import annotations

from collections.abc import Mapping

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError


def agreed(program: Program, variables: Mapping[str, object]) -> object:
    """Return the value, or the message of the error, which generated code and the interpreter agree on."""
    found: list[object] = []
    for run in (lambda: program.evaluate(variables), lambda: program.metered(variables)[0]):
        try:
            found.append(run())
        except EvaluationError as error:
            found.append(f"error: {error.message}")
    assert found[0] == found[1] or found[0] != found[0]
    return found[0]
