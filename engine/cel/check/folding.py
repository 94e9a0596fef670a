"""Calls with constant arguments, computed before an expression runs: by the checker, and by whoever looks for faults.

They are held to a budget as evaluations are: constants grow as fast as other values do (see `traversal`).
"""

from __future__ import annotations

from typing import Final

from ..scalar.budget import COST_LIMIT
from ..scalar.deadline import Deadline
from ..scalar.traversal import result_size
from ..scalar.values import EvaluationError
from .call_cost import call_cost
from .environment import Overload

FOLDED: Final = frozenset(
    ("int", "uint", "double", "string", "bytes", "bool", "timestamp", "duration", "type", "dyn"),
)
"""Conversions: of constants they are computed before an expression runs, and what fails then is a fault of the
expression, wherever it stands (Kubernetes' setting)."""
LIMIT: Final = 100_000
"""Units that the constants of one expression may take together, its variables included: about 10 ms."""


class Folding:
    """What may still be spent on the constants of one expression. Once it is spent, nothing more is computed."""

    __slots__ = ("_deadline", "left")

    def __init__(self, limit: int = LIMIT) -> None:
        self.left = limit
        self._deadline = Deadline.current()

    def evaluate(self, overload: Overload, arguments: tuple[object, ...]) -> object:
        """Return what a call gives; raise `EvaluationError`, of reason `CostLimit` where it would take too long.

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
        """Count units; raise where there are no more."""
        self.left -= units
        if self.left < 0 or (self._deadline is not None and self._deadline.passed):
            self.left = -1
            raise EvaluationError("operation cancelled: its constants take too long", reason=COST_LIMIT, final=True)
