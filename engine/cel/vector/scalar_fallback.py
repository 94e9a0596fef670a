"""Scalar fallback: a part of an expression, evaluated row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..check.analysis import sub_expression
from ..check.checked_ast import Checked
from ..check.environment import Scope
from ..scalar.budget import Budget, exhausted
from ..scalar.program import Program
from ..syntax.ast import Expr
from ..values.values import EvaluationError
from .frame import Frame


class ScalarFallback:
    """A part of an expression, evaluated row by row; its program is made for the first row."""

    __slots__ = ("_call", "_checked", "_node", "_program", "_scopes")

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._checked = checked
        self._node = node
        self._program: Program | None = None
        self._call: Callable[..., object] | None = None
        self._scopes: list[tuple[str, bool]] = []

    @property
    def program(self) -> Program:
        """The program of the part as a separate expression."""
        if self._program is None:
            self._program = Program.of(sub_expression(self._checked, self._node))
        return self._program

    def _prepare(self) -> Callable[..., object]:
        declared = self._checked.environment.variables
        self._scopes = [(name, declared[name].scope is Scope.ROW) for name in self.program.variables]
        self._call = self.program.call
        return self._call

    def once(self, frame: Frame) -> object:
        """Return the value, or the `EvaluationError`, of a part that reads no row variable."""
        call = self._call or self._prepare()
        meter = self.program.meter
        spent = meter.spent
        if spent:
            return self.reader(frame)(-1)
        try:
            value = call(*[frame.value(name) for name, _ in self._scopes])
        except EvaluationError as error:
            value = error
        except KeyError:  # a missing variable may not be read
            return self.reader(frame)(-1)
        if meter.spent != spent:
            Budget.of(frame, self._checked).spend(meter.spent)
        return value

    def reader(self, frame: Frame) -> Callable[[int], object]:
        """Return a function of a row of this frame that returns the value or the `EvaluationError`."""
        call = self._call or self._prepare()
        program = self.program
        arguments: list[object] = []
        per_row: list[tuple[int, str]] = []
        incomplete = False
        for position, (name, is_row) in enumerate(self._scopes):
            if is_row:
                per_row.append((position, name))
                arguments.append(None)
                continue
            try:
                arguments.append(frame.value(name))
            except KeyError:
                incomplete = True
        row_value = frame.row_value
        meter, seen = program.meter, program.meter.spent
        budget: Budget | None = None
        spent_out = False
        if seen:
            budget = Budget.of(frame, self._checked)
            spent_out = budget.exhausted

        def evaluate_row(row: int) -> object:
            nonlocal budget, seen, spent_out
            # An expression that spends no units runs even if the budget is spent.
            if spent_out and meter.spent:
                return exhausted(self._checked)
            complete = not incomplete
            if complete:
                try:
                    for position, name in per_row:
                        arguments[position] = row_value(name, row)
                except (EvaluationError, KeyError):
                    # A variable without a value is an error only where it is read.
                    complete = False
            value: object
            try:
                value = call(*arguments) if complete else program.metered(_RowBindings(frame, row))[0]
            except EvaluationError as error:
                value = error
            if meter.spent != seen:
                budget = budget or Budget.of(frame, self._checked)
                budget.spend(meter.spent - seen)
                seen, spent_out = meter.spent, budget.exhausted
            return value

        return evaluate_row


class _RowBindings(dict[str, object]):
    """The variables of one row, each read when it is looked up."""

    __slots__ = ("_frame", "_row")

    def __init__(self, frame: Frame, row: int) -> None:
        super().__init__()
        self._frame = frame
        self._row = row

    def get(self, key: str, default: Any = None) -> Any:
        """Return a variable's value; raise `EvaluationError` if it has none in this row."""
        try:
            return self._frame.value(key)
        except KeyError:
            pass
        try:
            return self._frame.row_value(key, self._row)
        except KeyError:
            return default
