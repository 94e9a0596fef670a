"""What evaluations may cost together: all rows of a document's expressions, and all expressions, in one decision.

`Limits.cost` bounds one evaluation. A decision evaluates an expression for thousands of rows, and must not wait for
each of them to reach that bound: what evaluations spend is counted by a `Meter` per program and taken off a `Budget`
per document and one per decision. What comes after either is spent is an error of reason `CostLimit` in the rows that
are left, of that expression alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .deadline import DEADLINE, Deadline
from .values import EvaluationError

if TYPE_CHECKING:
    from ..check.checked_ast import Checked
    from ..vector.frame import Frame

COST_LIMIT: Final = "CostLimit"
EXACTLY: Final = 16
"""What a meter counts for a unit of the interpreter, which takes so much longer than a part of a generated loop."""
_SCALE: Final = 4
"""What a meter counts in the time that Kubernetes supposes for a unit (0.1 us)."""
_PER_ROW: Final = 1_000
"""Units per row that a document may spend in any case, however many rows there are."""


@dataclass(slots=True)
class Meter:
    """What one program has spent in all its evaluations so far, by the time it takes; only the difference says much.

    Emitted functions count the turns of loops by the size of what is done in each, and calls whose cost depends on how
    large their arguments are; all else takes about as long as looking at it does. `inner` is what such calls took in
    the evaluation that is running.
    """

    spent: int = 0
    inner: int = 0


class ExhaustedError(EvaluationError):
    """The budget of a document or of a decision is spent. It says nothing of the row, so it is never kept."""


class Budget:
    """What is left for the evaluations of one decision, or of one document in it."""

    __slots__ = ("_deadline", "_within", "left")

    def __init__(self, units: int, within: Budget | None = None) -> None:
        self.left = units
        self._within = within
        self._deadline: Deadline | None = Deadline.current() if within is None else within._deadline  # noqa: SLF001

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left, or the deadline of the decision has passed."""
        return (
            self.left <= 0
            or (self._within is not None and self._within.left <= 0)
            or (self._deadline is not None and self._deadline.passed)
        )

    def spend(self, units: int) -> None:
        """Take off what was spent."""
        self.left -= units
        if self._within is not None:
            self._within.left -= units

    @staticmethod
    def of(frame: Frame, checked: Checked) -> Budget:
        """Return the budget of the document that an expression is part of, in the decision that a frame stands for."""
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
    """Return the error of the rows that come after a budget is spent or a deadline has passed."""
    deadline = Deadline.current()
    if deadline is not None and deadline.passed:
        return stopped(checked, deadline)
    return ExhaustedError(
        "operation cancelled: all rows together exceed the cost limit", offset=checked.root.position,
        reason=COST_LIMIT, final=True,
    )


def stopped(checked: Checked, deadline: Deadline) -> ExhaustedError:
    """Return the error of an evaluation that a deadline ends, and note at the deadline what was stopped."""
    deadline.stop(checked.source)
    return ExhaustedError(
        "operation cancelled: it took longer than its deadline", offset=checked.root.position, reason=DEADLINE,
        final=True,
    )
