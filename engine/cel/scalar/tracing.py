"""Tracing: programs that report their evaluations to an observer, and the values of all nodes of one evaluation.

For test runs, coverage and explanations. Other evaluations do not pay for it: an observed program is another object in
place of the plain one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ..check.checked_ast import Checked
from ..syntax.ast import Comprehension, Expr, Literal, children
from ..values.values import EvaluationError
from .evaluation import Evaluation, LazyBindings, Step
from .interpreter.interpreter import interpreter_of
from .program import Program

if TYPE_CHECKING:
    from ..vector.frame import ByColumn, Column, Frame, Rows

Note: TypeAlias = Callable[[Checked, Expr, object], None]
"""A callback for the value (or `EvaluationError`) of a node of an expression or of one of its definitions."""

NO_ROW = -1
"""The row of an evaluation with given variables, of no frame."""


class EvaluationObserver(Protocol):
    """Receiver of the evaluations of observed programs."""

    def evaluated(self, program: Program, row: int, result: object, bindings: Mapping[str, object]) -> None:
        """Receive the value or `EvaluationError` of a program at a row (or `NO_ROW`).

        `bindings` are its variables; reading one that has no value raises `KeyError` or `EvaluationError`.
        """
        ...


@dataclass(frozen=True, eq=False)
class ObservedProgram(Program):
    """A program that reports every evaluation to an observer."""

    observer: EvaluationObserver = field(repr=False)

    def evaluate(self, bindings: Mapping[str, object]) -> object:
        """Return the value; see `Program.evaluate`."""
        try:
            value = super().evaluate(bindings)
        except EvaluationError as error:
            self.observer.evaluated(self, NO_ROW, error, bindings)
            raise
        self.observer.evaluated(self, NO_ROW, value, bindings)
        return value

    def by_column(self, plan: ByColumn) -> ByColumn:
        """Return the plan with an observer."""
        return _ObservedPlan(self, plan)


class _ObservedPlan:
    """A plan that reports every row to an observer."""

    def __init__(self, program: ObservedProgram, plain: ByColumn) -> None:
        self._program = program
        self._plain = plain

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`."""
        column = self._plain.column(frame, rows)
        for place, row in enumerate(range(frame.size) if rows is None else rows.tolist()):
            result = column.errors.get(row)
            if result is None:
                value = column.values[place]
                result = value.item() if hasattr(value, "item") else value
            self._program.observer.evaluated(self._program, row, result, _Row(frame, row))
        return column


class _Row(Mapping[str, object]):
    """The variables of one row of a frame, each read when it is looked up."""

    __slots__ = ("_frame", "_row")

    def __init__(self, frame: Frame, row: int) -> None:
        self._frame = frame
        self._row = row

    def __getitem__(self, name: str) -> object:
        try:
            return self._frame.value(name)
        except KeyError:
            return self._frame.row_value(name, self._row)

    def __iter__(self) -> None:  # type: ignore[override]
        raise TypeError("a frame does not list its variables")

    def __len__(self) -> int:
        raise TypeError("a frame does not count its variables")


class _Current(threading.local):
    """The receiver of the nodes of the current evaluation of this thread."""

    note: Note | None = None


_CURRENT: Final = _Current()


def observe(checked: Checked, bindings: Mapping[str, object], note: Note) -> None:
    """Evaluate an expression once, by the interpreter; report every evaluated node, also of loops and definitions."""
    values: list[object] = []

    def record(owner: Checked, node: Expr, value: object) -> None:
        if node is checked.root:
            values.append(value)
        note(owner, node, value)

    before, _CURRENT.note = _CURRENT.note, record
    try:
        interpreter_of(checked, _traced).evaluate(LazyBindings(bindings), checked.environment.limits.cost)
    except EvaluationError as error:
        if not values:  # the whole failed: nested too deeply, or an input is not plain data
            note(checked, checked.root, error)
    finally:
        _CURRENT.note = before


def explain(program: Program, bindings: Mapping[str, object]) -> tuple[tuple[Expr, str, object], ...]:
    """Return node, text and value (or `EvaluationError`) of the sub-expressions that were evaluated.

    In source order, the whole expression first, without literals and the bodies of loops.
    """
    trace: dict[int, object] = {}

    def note(owner: Checked, node: Expr, value: object) -> None:
        if owner is program.checked:
            trace[node.id] = value

    observe(program.checked, bindings, note)
    found: list[tuple[Expr, str, object]] = []
    pending: list[Expr] = [program.checked.root]
    while pending:
        node = pending.pop()
        if node.id in trace and not isinstance(node, Literal):
            found.append((node, program.source.text[node.start : node.end], trace[node.id]))
        # The body of a loop has a value per iteration.
        below = (node.range,) if isinstance(node, Comprehension) else children(node)
        pending.extend(reversed(below))
    return tuple(sorted(found, key=lambda each: (each[0].start, -each[0].end)))


def _traced(owner: Checked, node: Expr, step: Step) -> Step:
    def traced(evaluation: Evaluation) -> object:
        try:
            value = step(evaluation)
        except EvaluationError as error:
            if _CURRENT.note is not None:
                _CURRENT.note(owner, node, error)
            raise
        if _CURRENT.note is not None:
            _CURRENT.note(owner, node, value)
        return value

    return traced
