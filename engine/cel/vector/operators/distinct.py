"""Dictionary-encoded evaluation of parts that no other operator supports."""

from __future__ import annotations

from typing import ClassVar

from ...check.analysis import split_reads
from ...check.checked_ast import Checked, Path, reads_of
from ...syntax.ast import Expr
from ..codegen import CannotFuse, Term, Writing
from ..context import VectorContext
from ..dictionary import DistinctResults
from ..kinds import KINDS
from ..scalar_fallback import ScalarFallback
from ..vectors import Operand
from .base import Rank, RowStrategy


class DistinctOperator:
    """Dictionary-encoded evaluation: the scalar fallback runs once per distinct input."""

    __slots__ = ("_decision", "_declared", "_fallback", "_kind", "_paths", "_paths_set")
    strategy: ClassVar[RowStrategy] = RowStrategy.DISTINCT
    rank: ClassVar[Rank] = Rank.DISTINCT

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._kind = KINDS.get(checked.types[node.id], "O")
        rows, decision = split_reads(checked, reads_of(checked, node))
        self._paths = tuple(sorted(rows))
        self._paths_set = rows
        self._decision = decision
        self._declared = checked.environment.variables

    def run(self, context: VectorContext) -> Operand:
        operands, requested = context.operands, context.requested
        known = operands.get(self)
        if known is not None:
            return known  # type: ignore[return-value]
        results = self.results(context)
        rows = None if requested is None else requested.rows
        everywhere = results.complete(self._fallback.reader(context.frame), rows)
        if requested is not None and not everywhere:
            requested.partial = True
        vector = operands[self] = results.gathered(rows)
        return vector

    def fuse(self, _: Writing) -> Term:
        raise CannotFuse

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return self._paths_set

    def results(self, context: VectorContext) -> DistinctResults:
        """Return the cached results."""
        key = (self, context.decision_key(self._decision, self._declared)) if self._decision else self
        inputs = context.results.encoded(context.frame, self._paths, self._paths_set)
        results = context.results.get(key)
        if not isinstance(results, DistinctResults) or results.inputs is not inputs:
            results = DistinctResults(inputs, self._kind)
            context.results.put(key, results, results.bytes)
        return results
