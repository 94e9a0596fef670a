"""Cost budgets of many evaluations: of a document's expressions for all rows, and of all expressions of a decision.

`Limits.cost` bounds one evaluation. A decision evaluates an expression for thousands of rows, and must not wait for
each of them to reach that bound: a `Meter` per program counts units, which are subtracted from a `Budget` per document
and one per decision. Once either is spent, the remaining rows have an error of reason `CostLimit`, of that expression
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..values.deadline import DEADLINE, Deadline
from ..values.values import COST_LIMIT, EvaluationError

if TYPE_CHECKING:
    from ..check.checked_ast import Checked
    from ..vector.frame import Frame

OVERDUE: Final = "operation cancelled: it took longer than its deadline"
"""The message of the error of an evaluation that a deadline ended."""
EXACTLY: Final = 16
"""Units of a meter per unit of the interpreter, which takes that much longer than a node of a generated loop."""
_SCALE: Final = 4
"""Units of a meter in the time that Kubernetes assumes for one of its units (0.1 us)."""
_PER_ROW: Final = 1_000
"""Units that a document may always spend per row."""


@dataclass(slots=True)
class Meter:
    """The units that a program has spent in all its evaluations, in proportion to time; only differences mean anything.

    Generated functions count iterations of loops, weighted by the number of nodes in the body, and calls whose cost
    depends on the size of their arguments; other nodes take constant time. `inner` are the units of such calls in the
    current evaluation.
    """

    spent: int = 0
    inner: int = 0


class ExhaustedError(EvaluationError):
    """The budget of a document or of a decision is spent. It does not depend on the row, so it is never cached."""


class Budget:
    """The remaining units of one decision, or of one document in it."""

    __slots__ = ("_deadline", "_within", "left")

    def __init__(self, units: int, within: Budget | None = None) -> None:
        self.left = units
        self._within = within
        self._deadline: Deadline | None = Deadline.current() if within is None else within._deadline  # noqa: SLF001 - of its own class

    @property
    def exhausted(self) -> bool:
        """True if no units are left, or the deadline of the decision has passed."""
        return (
            self.left <= 0
            or (self._within is not None and self._within.left <= 0)
            or (self._deadline is not None and self._deadline.passed)
        )

    def spend(self, units: int) -> None:
        """Subtract units."""
        self.left -= units
        if self._within is not None:
            self._within.left -= units

    @staticmethod
    def of(frame: Frame, checked: Checked) -> Budget:
        """Return the budget of the document that an expression is part of, in the decision of a frame."""
        source = checked.source.parent or checked.source
        key = (Budget, source.name)
        cache = frame.decision_cache
        found = cache.get(key)
        if not isinstance(found, Budget):
            limits, rows = checked.environment.limits, frame.size
            whole = cache.get(Budget)
            if not isinstance(whole, Budget):
                whole = cache[Budget] = Budget(_SCALE * max(limits.decision_cost, _PER_ROW * rows * 10))
            found = cache[key] = Budget(_SCALE * max(limits.document_cost, _PER_ROW * rows), whole)
        return found


def exhausted(checked: Checked) -> ExhaustedError:
    """Return the error of the remaining rows, once a budget is spent or a deadline has passed."""
    deadline = Deadline.current()
    if deadline is not None and deadline.passed:
        return stopped(checked, deadline)
    return ExhaustedError(
        "operation cancelled: all rows together exceed the cost limit", offset=checked.root.position,
        reason=COST_LIMIT, final=True,
    )


def stopped(checked: Checked, deadline: Deadline) -> ExhaustedError:
    """Return the error of an evaluation that a deadline ends, and record the stopped expression at the deadline."""
    deadline.stop(checked.source)
    return ExhaustedError(OVERDUE, offset=checked.root.position, reason=DEADLINE, final=True)
