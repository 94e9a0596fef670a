"""Interface of operators, which evaluate a part of an expression for all rows at once."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import ClassVar, Final, Protocol

from ...check.checked_ast import Path
from ..codegen import Term, Writing
from ..context import VectorContext
from ..vectors import Operand


class RowStrategy(enum.Enum):
    """The strategy by which a part of an expression is evaluated for all rows."""

    CONSTANT = "constant"
    DECISION = "once per decision"
    NUMBERS = "numeric column"
    COLUMN = "by column"
    DISTINCT = "once per distinct input"
    VARIABLE = "variable"
    ROW = "row by row"


class Rank(enum.IntEnum):
    """Relative cost of operators: in a chain of `&&` or `||` the cheaper ones run first."""

    CONSTANT = 0
    DECISION = 1
    """One evaluation per decision, without reading a row."""
    COLUMN = 2
    DISTINCT = 3


class Operator(Protocol):
    """A part of an expression that is evaluated for all rows at once."""

    strategy: ClassVar[RowStrategy]
    rank: ClassVar[Rank]

    def run(self, context: VectorContext, /) -> Operand:
        """Return one value for all rows, a vector, or `UNKNOWN`; raise `NotColumnar`."""
        ...

    def fuse(self, writing: Writing, /) -> Term:
        """Generate the part for rows in which nothing fails; raise `CannotFuse` (see `codegen`)."""
        ...

    def reads(self, context: VectorContext, /) -> frozenset[Path]:
        """Return the ROW paths that the values depend on, given the values of the decision."""
        ...


NO_PATHS: Final[frozenset[Path]] = frozenset()


def union_of_reads(operators: Iterable[Operator], context: VectorContext) -> frozenset[Path]:
    """Return the union of the reads of several operators."""
    return NO_PATHS.union(*(each.reads(context) for each in operators))
