"""Chains of `&&` and `||`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ...check.checked_ast import Path
from ...values.values import EvaluationError
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import ErrorColumn, Mask, Operand, Vector, and_masks, decided
from .base import NO_PATHS, Operator, Rank, RowStrategy, union_of_reads


class LogicOperator:
    """A chain of `&&` or `||`; cheap terms run first, until all rows are decided."""

    __slots__ = ("_conjunction", "_parts")
    strategy: ClassVar[RowStrategy] = RowStrategy.COLUMN
    rank: ClassVar[Rank] = Rank.COLUMN

    def __init__(self, parts: Sequence[Operator], *, conjunction: bool) -> None:
        self._parts = sorted(enumerate(parts), key=lambda each: each[1].rank)
        self._conjunction = conjunction

    def run(self, context: VectorContext) -> Operand:
        conjunction = self._conjunction
        stop = not conjunction
        stopped: Mask | None = None
        """Rows that one operand decides alone (None: none)."""
        known: Mask | None = None
        """Rows in which all operands so far are known (None: all)."""
        failures: list[tuple[int, EvaluationError, Mask | None]] = []
        for position, part in self._parts:
            operand = part.run(context)
            if operand is stop:
                return stop
            if operand is conjunction:
                continue
            if isinstance(operand, Vector) and operand.values.dtype.kind == "b":
                true, false = decided(operand)
                hits = false if conjunction else true
                stopped = hits if stopped is None else stopped | hits
                if operand.valid is not None:
                    sure = operand.valid
                    if operand.error is not None and operand.failed is not None:
                        failures.append((position, operand.error, operand.failed))
                        sure = sure | operand.failed
                    known = and_masks(known, sure)
                if stopped.all():
                    return stop
            elif isinstance(operand, ErrorColumn):
                failures.append((position, operand.error, operand.rows))
                known = and_masks(known, operand.rows)
            else:
                known = np.zeros(context.size, dtype=np.bool_)
        if stopped is None and known is None and not failures:
            return conjunction
        return self._result(context.size, stopped, known, failures)

    def fuse(self, writing: Writing) -> Term:
        return writing.logic([part for _, part in self._parts], conjunction=self._conjunction)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        stop = not self._conjunction
        parts = [part for _, part in self._parts]
        if any(part.run(context) is stop for part in parts if part.rank <= Rank.DECISION):
            return NO_PATHS  # this operand decides alone
        return union_of_reads(parts, context)

    def _result(
        self, size: int, stopped: Mask | None, known: Mask | None,
        failures: Sequence[tuple[int, EvaluationError, Mask | None]],
    ) -> Operand:
        if stopped is None:
            stopped = np.zeros(size, dtype=np.bool_)
        values = ~stopped if self._conjunction else stopped
        if known is None and not failures:
            return Vector(values)
        if known is None:
            known = np.ones(size, dtype=np.bool_)
        neutral = known & ~stopped
        if not failures:
            return Vector(values, stopped | neutral)
        # Of several errors the leftmost is the result.
        _, error, rows = min(failures, key=lambda each: each[0])
        failed = neutral if rows is None else neutral & rows
        for _, _, more in failures:
            neutral = np.zeros(size, dtype=np.bool_) if more is None else neutral & ~more
        return Vector(values, stopped | neutral).failing(error, failed)
