"""Description of the plan of an expression: the strategy of each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..check.analysis import is_pure, split_reads, sub_expression
from ..check.checked_ast import Checked, DefinitionReference, Path, reads_of
from ..check.cost import Estimate, estimate
from ..check.environment import Scope
from ..scalar.program import Program
from ..syntax.ast import Expr, Literal
from ..vector.operators.base import Operator, RowStrategy
from ..vector.plan import plan_of
from ..vector.planner import Planner


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of an expression: its text, strategy, paths and cost.

    `depth` is 0 for the whole expression. `rows` are the paths of ROW variables that it reads, `decision` those of all
    other variables. `cached` describes its cached results between decisions. `cost` is that of one evaluation by row.
    """

    depth: int
    text: str
    strategy: RowStrategy
    rows: tuple[str, ...]
    decision: tuple[str, ...]
    cached: str
    cost: Estimate


def describe(program: Program) -> tuple[PlannedPart, ...]:
    """Return the parts of an expression in source order, the whole first; literals are omitted."""
    checked = program.checked
    if not is_pure(checked) and checked.scope is Scope.ROW:
        # Nothing is cached, and every row is evaluated.
        return (_planned(checked, checked.root, RowStrategy.ROW, 0),)
    return tuple(
        _planned(checked, node, strategy, depth) for depth, node, strategy in _Recorder(checked).parts
        if not isinstance(node, Literal)
    )


def shown(path: Path) -> str:
    """Return a path as it is written in an expression: `node.metadata.labels["zone"]`."""
    return path[0] + "".join(f".{step}" if step.isidentifier() else f'["{step}"]' for step in path[1:])


class _Recorder:
    """Plans an expression and records the strategy of each node."""

    def __init__(self, checked: Checked) -> None:
        self._depth = 0
        self.parts: list[tuple[int, Expr, RowStrategy]] = []
        Planner(checked, plan_of, self._record)

    def _record(self, node: Expr, plan: Callable[[], Operator]) -> Operator:
        place = len(self.parts)
        self.parts.append((self._depth, node, RowStrategy.ROW))
        self._depth += 1
        operator = plan()
        self._depth -= 1
        self.parts[place] = (self._depth, node, operator.strategy)
        return operator


def _planned(checked: Checked, node: Expr, strategy: RowStrategy, depth: int) -> PlannedPart:
    text = " ".join(checked.source.text[node.start : node.end].split())
    rows, decision = split_reads(checked, reads_of(checked, node))
    if strategy is RowStrategy.DECISION and checked.scopes[node.id] is Scope.CONSTANT:
        strategy = RowStrategy.CONSTANT
    if isinstance(checked.references.get(node.id), DefinitionReference) and strategy is not RowStrategy.VARIABLE:
        text = f"{text} (a variable)"
    row_texts, decision_texts = _texts(rows), _texts(decision)
    return PlannedPart(
        depth, text, strategy, row_texts, decision_texts, _cached(strategy, depth, row_texts, decision_texts),
        estimate(sub_expression(checked, node)),
    )


def _texts(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted(map(shown, paths)))


def _cached(strategy: RowStrategy, depth: int, rows: tuple[str, ...], decision: tuple[str, ...]) -> str:
    """Return how the values of a part are cached between decisions."""
    condition = f" for each {' and '.join(decision)}" if decision else ""
    if strategy is RowStrategy.DISTINCT and depth:
        return f"one result per distinct {', '.join(rows)}{condition}"
    if strategy is RowStrategy.NUMBERS:
        return "the column, in the snapshot"
    if strategy in (RowStrategy.CONSTANT, RowStrategy.DECISION):
        return "nothing: one evaluation per decision"
    if depth == 0 and strategy is not RowStrategy.ROW:
        again = ", from their second use on" if decision else ""
        return f"the column{condition}{again}; changed rows are evaluated again"
    return "nothing"
