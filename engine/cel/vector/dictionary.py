"""Dictionary-encoded evaluation: rows with equal inputs of a part share one code and one result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..check.checked_ast import Path
from ..scalar.budget import ExhaustedError
from ..values.values import EvaluationError
from .frame import Frame, Rows
from .kinds import DTYPES, letter_of
from .vectors import Vector, alike

UNEVALUATED: Final = object()
"""Placeholder of a result that is not computed yet."""


class EncodedRows:
    """Rows encoded by all paths that a part reads of them: equal codes, equal results."""

    __slots__ = ("_columns", "_paths", "_table", "codes", "count", "stamp")

    def __init__(self, frame: Frame, paths: tuple[Path, ...], stamp: int) -> None:
        self._paths = paths
        self.stamp = stamp
        self._columns = [frame.codes(path).values for path in paths]
        self._table: dict[Hashable, int] = {}
        if len(paths) == 1:
            keys: Iterator[Hashable] = iter(self._columns[0].tolist())
        else:
            keys = zip(*(column.tolist() for column in self._columns), strict=True)
        table = self._table
        codes = [table.setdefault(key, len(table)) for key in keys]
        self.codes: NDArray[np.int32] = np.array(codes, dtype=np.int32)
        self.count = len(table)

    def refresh(self, frame: Frame, stamp: int, rows: Rows) -> bool:
        """Encode the changed rows; return False if all rows must be encoded again."""
        for path, column in zip(self._paths, self._columns, strict=True):
            if frame.codes(path).values is not column:
                return False
        table, columns = self._table, self._columns
        for row in rows.tolist():
            key: Hashable = int(columns[0][row]) if len(columns) == 1 else tuple(int(each[row]) for each in columns)
            code = table.get(key)
            if code is None:
                code = table[key] = len(table)
            self.codes[row] = code
        self.count = len(table)
        self.stamp = stamp
        return self.count <= 2 * len(self.codes) + 64


class DistinctResults:
    """The results of the scalar evaluator by code, computed as required; errors are results too."""

    __slots__ = (
        "_by_code",
        "_complete_at",
        "_error",
        "_evaluated",
        "_fails",
        "_kind",
        "_valid",
        "_vector",
        "_vector_stamp",
        "inputs",
        "values",
    )

    def __init__(self, inputs: EncodedRows, kind: str) -> None:
        self.inputs = inputs
        self.values: list[object] = []
        self._kind = kind
        self._by_code: NDArray[Any] = np.empty(0, dtype=DTYPES.get(kind, np.object_))
        self._valid: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether there is a result that is a value of the kind."""
        self._error: EvaluationError | None = None
        self._fails: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether the result is `_error`, the first error."""
        self._evaluated: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether the arrays have a result, a value or an error."""
        self._complete_at = -1
        """The stamp of the inputs at which every row had a result."""
        self._vector: Vector | None = None
        self._vector_stamp = -1

    def extend(self) -> list[object]:
        """Grow to the codes; return the results by code, `UNEVALUATED` for missing ones."""
        known, count = len(self.values), self.inputs.count
        if count > known:
            self.values.extend([UNEVALUATED] * (count - known))
            if count > len(self._valid):
                # Twice as many as needed: not every new input must cost a copy.
                self._by_code = np.concatenate((self._by_code, np.zeros(2 * count, dtype=self._by_code.dtype)))
                self._valid = np.concatenate((self._valid, np.zeros(2 * count, dtype=np.bool_)))
                self._fails = np.concatenate((self._fails, np.zeros(2 * count, dtype=np.bool_)))
                self._evaluated = np.concatenate((self._evaluated, np.zeros(2 * count, dtype=np.bool_)))
        return self.values

    def complete(self, evaluate: Callable[[int], object], rows: Rows | None = None) -> bool:
        """Evaluate the codes of all rows, or of these rows, that have no result yet.

        `evaluate` returns the result of a row. Return whether every row has a result then.
        """
        inputs = self.inputs
        if self._complete_at == inputs.stamp:
            return True
        values, codes = self.extend(), inputs.codes
        open_rows = ~self._evaluated[codes]
        if rows is not None:
            due = np.zeros(len(codes), dtype=np.bool_)
            due[rows] = True
            due &= open_rows
        else:
            due = open_rows
        found = np.flatnonzero(due)
        everywhere = len(found) == np.count_nonzero(open_rows)
        evaluated: list[int] = []
        for code, row in dict(zip(codes[found].tolist(), found.tolist(), strict=True)).items():
            value = values[code]
            if value is UNEVALUATED:
                value = evaluate(row)
                if value.__class__ is ExhaustedError:
                    everywhere = False  # the next decision may evaluate it
                    continue
                values[code] = value
            evaluated.append(code)
        if evaluated:
            self._evaluated[evaluated] = True
            self._take_over(evaluated)
            self._vector = None
        if everywhere:
            self._complete_at = inputs.stamp
        return everywhere

    def _take_over(self, codes: Sequence[int]) -> None:
        """Write results into the arrays."""
        values = self.values
        for code in codes:
            value = values[code]
            if isinstance(value, EvaluationError) and not value.final:
                if self._error is None:
                    self._error = value
                self._fails[code] = alike(self._error, value)
        if self._kind == "?":
            kinds = {letter_of(values[code]) for code in codes if not isinstance(values[code], EvaluationError)}
            if not kinds:
                return
            kind = kinds.pop() if len(kinds) == 1 else "O"
            if self._valid.any() and self._by_code.dtype.kind != kind:
                kind = "O"
            self._by_code = self._by_code.astype(DTYPES.get(kind, np.object_))
        kind = self._by_code.dtype.kind
        for code in codes:
            value = values[code]
            if not isinstance(value, EvaluationError) and (kind == "O" or letter_of(value) == kind):
                self._by_code[code] = value
                self._valid[code] = True

    def gathered(self, rows: Rows | None = None) -> Vector:
        """Return the results of all rows; if all of `rows` have a value, those of other rows are arbitrary."""
        inputs = self.inputs
        if rows is not None and self._complete_at != inputs.stamp:
            codes = inputs.codes
            if self._valid[codes[rows]].all():
                values = self._by_code[codes]
                if values.dtype.kind == "i":
                    return Vector(values, None, int(values.min(initial=0)), int(values.max(initial=0)))
                return Vector(values)
        if self._vector is None or self._vector_stamp != inputs.stamp:
            codes = inputs.codes
            valid = self._valid[codes]
            values = self._by_code[codes]
            mask = None if valid.all() else valid
            if values.dtype.kind == "i":
                self._vector = Vector(values, mask, int(values.min(initial=0)), int(values.max(initial=0)))
            else:
                self._vector = Vector(values, mask)
            if mask is not None and self._error is not None:
                self._vector = self._vector.failing(self._error, self._fails[codes])
            self._vector_stamp = inputs.stamp
        return self._vector

    @property
    def bytes(self) -> int:
        """Approximate size in memory."""
        return 500 + 100 * self.inputs.count + 9 * len(self.inputs.codes)
