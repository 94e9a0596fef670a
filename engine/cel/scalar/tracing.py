"""Programs that tell an observer what they were asked and what they answered: for test runs, coverage, explanations.

Nothing of this is in the way of other evaluations: an observed program is another object in the place of the plain one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from ..check.checked_ast import Checked
from ..syntax.ast import Comprehension, Expr, Literal, children
from ..vector.frame import ByColumn, Column, Frame, Rows
from .evaluation import Evaluation, Step
from .interpreter import Interpreter
from .program import Program
from .values import EvaluationError

Note: TypeAlias = Callable[[Checked, Expr, object], None]
"""Takes in the value (or `EvaluationError`) of a node of an expression or of one of its definitions."""

NO_ROW = -1
"""The row of what was asked about given variables and not about a frame's row."""


class Observer(Protocol):
    """Who is told."""

    def asked(self, program: Program, row: int, answer: object, bindings: Mapping[str, object]) -> None:
        """Take in that a program was asked at a row (or `NO_ROW`), with its value or `EvaluationError`.

        `bindings` are its variables; reading one that has no value raises `KeyError` or `EvaluationError`.
        """
        ...


@dataclass(frozen=True, eq=False)
class ObservedProgram(Program):
    """A program that answers as the plain one does, and tells."""

    observer: Observer = field(repr=False)

    def evaluate(self, bindings: Mapping[str, object]) -> object:
        """Return the value; see `Program.evaluate`."""
        try:
            value = super().evaluate(bindings)
        except EvaluationError as error:
            self.observer.asked(self, NO_ROW, error, bindings)
            raise
        self.observer.asked(self, NO_ROW, value, bindings)
        return value

    def by_column(self, plan: ByColumn) -> ByColumn:
        """Return what answers by column as the plan does."""
        return _ObservedPlan(self, plan)


class _ObservedPlan:
    """Answers by column as the plain plan does, and tells row by row."""

    def __init__(self, program: ObservedProgram, plain: ByColumn) -> None:
        self._program = program
        self._plain = plain

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`."""
        column = self._plain.column(frame, rows)
        for place, row in enumerate(range(frame.size) if rows is None else rows.tolist()):
            answer = column.errors.get(row)
            if answer is None:
                value = column.values[place]
                answer = value.item() if hasattr(value, "item") else value
            self._program.observer.asked(self._program, row, answer, _Row(frame, row))
        return column


class _Row(Mapping[str, object]):
    """The variables of one row of a frame, each read when it is asked for."""

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


class _Noting(threading.local):
    """Who is told of the evaluation that runs in this thread."""

    note: Note | None = None


_NOTING: Final = _Noting()


def observe(checked: Checked, bindings: Mapping[str, object], note: Note) -> None:
    """Evaluate an expression exactly, once, and tell of every node that was evaluated, in loops and definitions too."""
    told: list[object] = []

    def noted(owner: Checked, node: Expr, value: object) -> None:
        if node is checked.root:
            told.append(value)
        note(owner, node, value)

    before, _NOTING.note = _NOTING.note, noted
    try:
        _telling(checked).evaluate(_Lazily(bindings), checked.environment.limits.cost)
    except EvaluationError as error:
        if not told:  # it failed as a whole: nested too deeply, or an input is no plain data
            note(checked, checked.root, error)
    finally:
        _NOTING.note = before


def explain(program: Program, bindings: Mapping[str, object]) -> tuple[tuple[Expr, str, object], ...]:
    """Return node, text and value (or `EvaluationError`) of the sub-expressions that were evaluated.

    They stand in source order, the whole expression first. Literals and what happens inside of loops are left out.
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
        # What a loop does in each of its turns has no one value.
        below = (node.range,) if isinstance(node, Comprehension) else children(node)
        pending.extend(reversed(below))
    return tuple(sorted(found, key=lambda each: (each[0].start, -each[0].end)))


def _telling(checked: Checked) -> Interpreter:
    """Return an evaluator that tells; kept, since building it takes longer than to evaluate."""
    found = checked.plans.get(_tell)
    if not isinstance(found, Interpreter):
        found = checked.plans[_tell] = Interpreter(checked, decorate=_tell)
    return found


def _tell(owner: Checked, node: Expr, step: Step) -> Step:
    def telling(evaluation: Evaluation) -> object:
        try:
            value = step(evaluation)
        except EvaluationError as error:
            if _NOTING.note is not None:
                _NOTING.note(owner, node, error)
            raise
        if _NOTING.note is not None:
            _NOTING.note(owner, node, value)
        return value

    return telling


class _Lazily(dict[str, object]):
    """Variables as the interpreter reads them: by `get`, one that has none is absent."""

    __slots__ = ("_bindings",)

    def __init__(self, bindings: Mapping[str, object]) -> None:
        super().__init__()
        self._bindings = bindings

    def get(self, key: str, default: object = None) -> object:
        """Return a variable's value; raise `EvaluationError` where reading it fails."""
        try:
            return self._bindings[key]
        except KeyError:
            return default
