"""Constant folding: calls with constant arguments, computed before an expression runs.

A budget bounds them as it bounds evaluations: constants grow as fast as other values (see `traversal`).
"""

from __future__ import annotations

from typing import Final

from ..values.deadline import Deadline
from ..values.traversal import result_size
from ..values.values import COST_LIMIT, EvaluationError
from .call_cost import call_cost
from .environment import Overload

FOLDED: Final = frozenset(
    ("int", "uint", "double", "string", "bytes", "bool", "timestamp", "duration", "type", "dyn"),
)
"""Conversions that are folded; one that fails is an error of the expression, in any branch (Kubernetes' setting)."""
LIMIT: Final = 100_000
"""Units that all constants of one expression may cost, its variables included: about 10 ms."""


class Folding:
    """The budget of the constants of one expression. Once it is spent, no more calls are folded."""

    __slots__ = ("_deadline", "left")

    def __init__(self, limit: int = LIMIT) -> None:
        self.left = limit
        self._deadline = Deadline.current()

    def evaluate(self, overload: Overload, arguments: tuple[object, ...]) -> object:
        """Return the value of a call; raise `EvaluationError`, of reason `CostLimit` if it would take too long.

        Arguments that do not fit the overload's parameters raise whatever its implementation raises.
        """
        units = call_cost(overload, arguments)
        if overload.walk is not None:
            units += overload.walk(*arguments)
        self.spend(units)
        value = overload.evaluate(*arguments)
        self.spend(result_size(value))
        return value

    def spend(self, units: int) -> None:
        """Spend units; raise if the budget is spent."""
        self.left -= units
        if self.left < 0 or (self._deadline is not None and self._deadline.passed):
            self.left = -1
            raise EvaluationError("operation cancelled: its constants take too long", reason=COST_LIMIT, final=True)
