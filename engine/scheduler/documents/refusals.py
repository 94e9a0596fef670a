"""The refusals of rules: their messages, and the values of their sub-expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.snapshot import NodeFrame
from koordpolicy.engine.compile.programs import Rule
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.texts import beginning

from .context import bindings_of

_MOST_VALUES: Final = 12
_FEW: Final = 100
"""Messages of up to this many rows are computed row by row."""


def messages_of(rule: Rule, frame: NodeFrame, rows: Rows) -> dict[str, Rows]:
    """Return the messages of `refusal_of` for rows (at least one) that a rule refused without an error, in one pass."""
    if rule.message_program is None:
        return fixed_message(rule, frame, rows)
    groups: dict[str, list[int]] = {}
    column = None if len(rows) <= _FEW else evaluate(rule.message_program, frame, rows)
    for place, row in enumerate(rows.tolist()):
        if column is None:
            text = _written(rule.message_program, frame, row)
        else:
            text = "" if row in column.errors else str(column.values[place]).strip()
        groups.setdefault(text or message_of(rule), []).append(row)
    return {text: np.array(found, np.intp) for text, found in groups.items()}


def _written(program: Program, frame: NodeFrame, row: int | None) -> str:
    try:
        return str(program.evaluate(bindings_of(program, frame, row))).strip()
    except EvaluationError:
        return ""  # a failed message must not hide the refusal


def fixed_message(rule: Rule, _: NodeFrame, rows: Rows) -> dict[str, Rows]:
    """Return the message of a rule that computes none, as `messages_of` does."""
    return {message_of(rule): rows}


def message_of(rule: Rule) -> str:
    """Return a rule's message if none is computed."""
    return rule.message or f"`{one_line(rule.expression.text)}` is false"


def refusal_of(rule: Rule, frame: NodeFrame, row: int | None, error: EvaluationError | None = None) -> Refusal:
    """Return the refusal of a rule, with its message and the values of its sub-expressions."""
    if error is not None:
        return Refusal(rule.name, error.message, Code.ERROR, error, values_of(rule.program, frame, row))
    message = "" if rule.message_program is None else _written(rule.message_program, frame, row)
    return Refusal(rule.name, message or message_of(rule), rule.code, values=values_of(rule.program, frame, row),
                   brief=message_of(rule) if message else "")


def one_line(text: str) -> str:
    """Return a text on one line, with runs of blanks collapsed, cut to 200 characters."""
    return beginning(" ".join(text.split()), 200)


def values_of(program: Program, frame: NodeFrame, row: int | None) -> tuple[tuple[str, object], ...]:
    """Return the sub-expressions of a program that have a scalar value, with those values, in source order."""
    try:
        bindings = bindings_of(program, frame, row)
    except EvaluationError:
        return ()
    found: dict[str, object] = {}
    for node, text, value in explain(program, bindings):
        if node is program.checked.root or isinstance(value, Mapping | list | tuple):
            continue
        shown = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        found.setdefault(one_line(text), shown)
        if len(found) == _MOST_VALUES:
            break
    return tuple(found.items())
