"""Plans: evaluation of an expression for all rows of a frame at once.

An expression is split once, when its plan is made (`planner`):

- a part that reads no row variable is evaluated once per decision, by the scalar evaluators;
- a part of numeric columns is computed by numpy (`vectors`);
- any other part is evaluated once per *distinct input*: the paths that it reads are dictionary-encoded, the scalar
  evaluators run once per code, and the results are gathered by code (`dictionary`).

The result is exact in some rows. In all others the whole expression is evaluated by row. Columns are cached while their
dependencies are unchanged, and refreshed in the changed rows (`result_cache`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..check.analysis import is_pure, outermost, split_reads
from ..check.checked_ast import Checked, Path
from ..check.environment import Scope
from ..scalar.budget import ExhaustedError
from ..scalar.program import Program
from ..values.values import EvaluationError
from .bound_plan import BoundPlan, computed_vector
from .codegen import CannotFuse, Fused, Writing, operand_of
from .context import VectorContext
from .dictionary import UNEVALUATED
from .frame import Column, Frame, Rows
from .kinds import KINDS, dtype_of, filled, is_of_kind, letter_of
from .operators.base import Operator
from .operators.column import ColumnOperator
from .operators.decision import DecisionOperator
from .operators.distinct import DistinctOperator
from .operators.variable import VariableOperator
from .planner import Planner
from .result_cache import CachedColumn
from .scalar_fallback import ScalarFallback
from .some_rows import SomeRows
from .vectors import ErrorColumn, Mask, NotColumnar, Operand, Unknown, Vector

__all__ = ["ColumnPlan", "evaluate", "plan_of"]

_FEW_ROWS: Final = 24
"""Up to this many rows are evaluated faster by row than by column."""
_FEW_CHANGES: Final = 8
"""Up to this many changed rows of a cached column are refreshed by row."""
_MANY: Final = 4
"""If at most one row in this many is required, only these are evaluated."""


def evaluate(program: Program, frame: Frame, rows: Rows | None = None) -> Column:
    """Return the program's value for all rows of the frame, or for `rows` (ascending).

    The column has one element per required row; errors are by row of the frame. It is read-only, as it may be cached.
    """
    plan = program.column_plan or program.use_plan(plan_of(program.checked))
    return plan.column(frame, rows)


def plan_of(checked: Checked) -> ColumnPlan:
    """Return the plan of an expression, made at the first call."""
    plan = checked.plans.get(ColumnPlan)
    if not isinstance(plan, ColumnPlan):
        plan = checked.plans[ColumnPlan] = ColumnPlan(checked)
    return plan


class AdaptedFunction(NamedTuple):
    """A generated function, or None, and the kinds of values of unknown type that it was generated for."""

    fused: Fused | None
    inputs: list[tuple[Operator, str, bool]]
    doubles: bool


class ColumnPlan:
    """The plan of one expression: its operators. Made once per expression, without values."""

    __slots__ = (
        "__weakref__", "_adapted", "_checked", "_decision", "_declared", "_doubles", "_fallback", "_fused", "_inputs",
        "_pure", "_row_paths", "_whole", "kind", "numeric", "operator",
    )

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._fallback = ScalarFallback(checked, checked.root)
        self._row_paths, self._decision = split_reads(checked, checked.reads)
        self._declared = checked.environment.variables
        self._pure: bool | None = None
        self._whole: DistinctOperator | None = None
        self._inputs: list[tuple[Operator, str, bool]] | None = None
        self._fused: Fused | None = None
        self._doubles = False
        self._adapted: AdaptedFunction | None = None
        self.kind = KINDS.get(checked.type, "O")
        """numpy's letter of its values; `?` if they may be of several kinds, `O` if they are no numbers."""
        planner = Planner(checked, plan_of)
        self.numeric = planner.numeric
        """True if no part is evaluated once per distinct input; the cost is then proportional to the rows."""
        self.operator = planner.operator

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`; see `evaluate`."""
        if rows is not None and self._fused is not None and self._is_few(rows, frame) and frame.base is None:
            return self._of_some(frame, rows)
        base = frame.base
        if base is not None:
            return self._over(frame, *base, rows)
        size = frame.size
        count = size if rows is None else len(rows)
        pure = self._is_pure()
        if self._checked.scope is not Scope.ROW:
            return self._everywhere(frame, rows) if pure else self._row_by_row(frame, rows)
        few = pure and rows is not None and self._is_few(rows, frame)
        if not pure or (count <= _FEW_ROWS and not (few and self.is_fused())):
            return self._row_by_row(frame, rows)
        if rows is None:
            return self._of_all(frame, None)
        if few:
            return self._of_some(frame, rows)
        column = self._of_all(frame, rows)
        errors = {row: column.errors[row] for row in rows.tolist() if row in column.errors} if column.errors else {}
        return Column(column.values[rows], errors)

    def reads(self, frame: Frame) -> frozenset[Path]:
        """Return the ROW paths that the values depend on, given the values of the decision: a subset of the
        expression's.
        """
        return outermost(self.operator.reads(VectorContext(frame)))

    def bind(self, frame: Frame) -> BoundPlan | None:
        """Return the plan bound to this frame's CONSTANT and DECISION variables; None if it reads more than numbers.

        The bound plan does not reference the frame.
        """
        cache, key = frame.decision_cache, (BoundPlan, self)
        if key not in cache:
            cache[key] = self._bind(frame)
        return cache[key]  # type: ignore[return-value]

    def _bind(self, frame: Frame) -> BoundPlan | None:
        if not self.is_fused():
            return None
        assert self._fused is not None
        context = VectorContext(frame)
        given: list[Any] = []
        inputs: list[tuple[int, ColumnOperator | BoundPlan]] = []
        for part, kind, _ in self._inputs or ():
            column = part.bind(frame) if isinstance(part, VariableOperator) else part
            if isinstance(column, ColumnOperator | BoundPlan):
                inputs.append((len(given), column))
                given += (None, None, None)
                continue
            value = column.value(context) if isinstance(column, DecisionOperator) else None
            if not is_of_kind(value, kind):
                return None
            given += (operand_of(value), value, value)
        return BoundPlan(self._fused, self.kind, given, inputs, doubles=self._doubles)

    # Columns

    def _is_pure(self) -> bool:
        if self._pure is None:
            self._pure = is_pure(self._checked)
        return self._pure

    def _is_few(self, rows: Rows, frame: Frame) -> bool:
        """Return whether rows are so few that only these are evaluated."""
        return self.numeric and len(rows) * _MANY <= frame.size

    def _of_some(self, frame: Frame, rows: Rows) -> Column:
        """Return the column of these rows, evaluated without the others."""
        found, _ = self._fresh(VectorContext(SomeRows(frame, rows)))
        if not found.errors:
            return found
        return Column(found.values, {int(rows[place]): error for place, error in found.errors.items()})

    def _of_all(self, frame: Frame, rows: Rows | None) -> Column:
        """Return the column of all rows, which may be invalid in rows that are not required."""
        if rows is not None and len(rows) == frame.size:
            rows = None
        context = VectorContext(frame, rows)
        key = (self, context.decision_key(self._decision, self._declared)) if self._decision else self
        stamp = frame.stamp(self._row_paths)
        cached = context.results.get(key)
        if isinstance(cached, CachedColumn) and cached.covers(rows):
            column = self._refreshed(cached, frame, stamp, rows)
            if column is not None:
                return column
        column, cacheable = self._fresh(context)
        if cacheable and (not self._decision or context.results.seen_before(key)):
            holds: Mask | None = None
            if rows is not None and context.requested is not None and context.requested.partial:
                holds = np.zeros(frame.size, dtype=np.bool_)
                holds[rows] = True
            context.results.put(key, CachedColumn(column, stamp, holds), _bytes_of(column))
        return column

    def _everywhere(self, frame: Frame, rows: Rows | None) -> Column:
        """Return the column of an expression that reads no row."""
        value = frame.decision_cache.get(self, UNEVALUATED)
        if value is UNEVALUATED:
            value = frame.decision_cache[self] = self._fallback.once(frame)
        size = frame.size if rows is None else len(rows)
        if isinstance(value, EvaluationError):
            failed = range(size) if rows is None else rows.tolist()
            return Column(np.zeros(size, np.object_), dict.fromkeys(failed, value))
        return Column(filled(size, value).values)

    def is_fused(self) -> bool:
        """Return whether there is a generated function for the whole expression."""
        if self._inputs is None:
            writing = Writing()
            if self._is_pure():
                with contextlib.suppress(CannotFuse):
                    self._fused = writing.function(self.operator)
            self._inputs, self._doubles = writing.inputs, writing.doubles
        return self._fused is not None

    def _adapt(self, context: VectorContext) -> AdaptedFunction:
        """Return a generated function for the whole expression and the present kinds of values of unknown type."""

        def kind_of(part: Operator) -> str:
            try:
                operand = part.run(context)
            except NotColumnar:
                raise CannotFuse from None
            return operand.values.dtype.kind if isinstance(operand, Vector) else letter_of(operand)

        writing = Writing(kind_of)
        fused: Fused | None = None
        if self._is_pure():
            with contextlib.suppress(CannotFuse):
                fused = writing.function(self.operator)
        return AdaptedFunction(fused, writing.inputs, writing.doubles)

    def _computed(self, context: VectorContext) -> NDArray[Any] | None:
        """Return the values of all rows if each can be computed by generated code; else None."""
        fused, inputs, doubles = self._fused, self._inputs, self._doubles
        if fused is None and self.is_fused():
            fused, inputs, doubles = self._fused, self._inputs, self._doubles
        if fused is None:
            if self._adapted is None:
                self._adapted = self._adapt(context)
            fused, inputs, doubles = self._adapted
            if fused is None:
                return None
        arguments: list[Any] = []
        for part, kind, is_array in inputs or ():
            try:
                operand = part.run(context)
            except NotColumnar:
                return None
            if not is_array:
                if not is_of_kind(operand, kind):
                    return None
                arguments += (operand, operand, operand)
            elif isinstance(operand, Vector) and operand.valid is None and operand.values.dtype.kind == kind:
                arguments += (operand.values, operand.low, operand.high)
            else:
                return None
        if not doubles:
            return fused(*arguments)
        with np.errstate(all="ignore"):
            return fused(*arguments)

    def operand(self, context: VectorContext) -> Operand:
        """Return the operand of all rows, for expressions that read this one as a variable."""
        values = self._computed(context)
        return self.operator.run(context) if values is None else computed_vector(values, self.kind)

    def _fresh(self, context: VectorContext) -> tuple[Column, bool]:
        """Return the column, and whether it is valid in all required rows."""
        computed = self._computed(context)
        if computed is not None:
            return Column(computed), True
        size = context.size
        with np.errstate(all="ignore"):
            operand = self.operator.run(context)
        if isinstance(operand, Vector):
            vector = operand
        elif isinstance(operand, ErrorColumn | Unknown):
            vector = Vector(np.zeros(size, dtype=dtype_of(self._checked)), np.zeros(size, dtype=np.bool_))
            if isinstance(operand, ErrorColumn):
                failed = np.ones(size, dtype=np.bool_) if operand.rows is None else operand.rows
                vector = vector.failing(operand.error, failed)
        else:
            vector = filled(size, operand)
        values = vector.values.copy() if vector.borrowed else vector.values
        if vector.valid is None:
            return Column(values), True
        doubtful, column = ~vector.valid, Column(values)
        if vector.error is not None and vector.failed is not None:
            column = Column(values, dict.fromkeys(np.flatnonzero(vector.failed).tolist(), vector.error))
            doubtful &= ~vector.failed
        handed, requested = np.flatnonzero(doubtful), context.requested
        if requested is not None:
            due = np.intersect1d(handed, requested.rows, assume_unique=True)
            if len(due) < len(handed):
                requested.partial = True
            handed = due
        return self._with_fallback(context, column, handed) if len(handed) else (column, True)

    def _with_fallback(self, context: VectorContext, column: Column, rows: Rows) -> tuple[Column, bool]:
        """Return the column with these rows evaluated by row, and whether all of them were within the budget."""
        evaluate_row = self._fallback.reader(context.frame)
        if len(rows) > _FEW_ROWS:
            if self._whole is None:
                self._whole = DistinctOperator(self._checked, self._checked.root)
            results = self._whole.results(context)
            codes = results.inputs.codes[rows].tolist()
            values = results.extend()
            found = []
            for row, code in zip(rows.tolist(), codes, strict=True):
                value = values[code]
                if value is UNEVALUATED:
                    value = evaluate_row(row)
                    if value.__class__ is not ExhaustedError:
                        values[code] = value
                found.append(value)
        else:
            found = [evaluate_row(row) for row in rows.tolist()]
        return _with(column, rows.tolist(), rows.tolist(), found), not _some_exhausted(found)

    def _row_by_row(self, frame: Frame, rows: Rows | None) -> Column:
        evaluate_row = self._fallback.reader(frame)
        requested = range(frame.size) if rows is None else rows.tolist()
        results = [evaluate_row(row) for row in requested]
        dtype = dtype_of(self._checked)
        letter = np.dtype(dtype).kind
        if letter != "O" and all(letter_of(value) == letter for value in results):
            return Column(np.array(results, dtype))
        return _with(Column(np.zeros(len(results), dtype)), requested, range(len(results)), results)

    def _refreshed(self, cached: CachedColumn, frame: Frame, stamp: int, requested: Rows | None) -> Column | None:
        """Return the cached column with the changed rows evaluated; None if they are too many."""
        if cached.stamp == stamp:
            return cached.column
        changed = frame.changed(self._row_paths, cached.stamp)
        if changed is None or len(changed) > _FEW_CHANGES:
            return None
        if requested is not None and len(changed) and not self.numeric:
            # Anything but cheap arithmetic is evaluated in required rows only.
            holds = np.ones(frame.size, dtype=np.bool_) if cached.holds is None else cached.holds.copy()
            holds[changed] = False
            due = np.intersect1d(changed, requested, assume_unique=True)
            holds[due] = True
            kept_holds: Mask | None = None if holds.all() else holds
            changed = due
        else:
            kept_holds = cached.holds
        if len(changed):
            evaluate_row = self._fallback.reader(frame)
            rows = changed.tolist()
            found = [evaluate_row(row) for row in rows]
            column = _with(cached.column, rows, rows, found)
            if _some_exhausted(found):
                return column
            cached.column = column
        cached.holds = kept_holds
        cached.stamp = stamp
        return cached.column

    def _over(self, frame: Frame, base: Frame, overridden: Rows, rows: Rows | None) -> Column:
        """Return the column of an overlay: that of its base, with the overridden rows evaluated."""
        column = self.column(base, rows)
        places = overridden
        if rows is not None:
            overridden = np.intersect1d(overridden, rows, assume_unique=True)
            places = np.searchsorted(rows, overridden)
        evaluate_row = self._fallback.reader(frame)
        at = overridden.tolist()
        return _with(column, at, places.tolist(), [evaluate_row(row) for row in at])


def _some_exhausted(results: Sequence[object]) -> bool:
    return any(result.__class__ is ExhaustedError for result in results)


def _with(column: Column, rows: Sequence[int], places: Sequence[int], results: Sequence[object]) -> Column:
    """Return a copy of a column with other results, values or errors, in some rows, at these places."""
    values: NDArray[Any] = column.values
    errors = dict(column.errors)
    if not rows:
        return column
    letter = values.dtype.kind
    fits = letter == "O" or all(isinstance(each, EvaluationError) or letter_of(each) == letter for each in results)
    # A value of another kind than the rest (a dyn expression's, a number beyond 64 bits) makes it a column of objects.
    values = values.copy() if fits else values.astype(np.object_)
    for row, place, result in zip(rows, places, results, strict=True):
        if isinstance(result, EvaluationError):
            errors[row] = result
            continue
        errors.pop(row, None)
        values[place] = result
    return Column(values, errors)


def _bytes_of(column: Column) -> int:
    return 1_000 + column.values.nbytes + 100 * len(column.errors)
