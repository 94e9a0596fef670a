"""Programs that are timed: calls, rows and time.

As in `tracing`, a timed program is another object in place of the plain one, which reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..vector.frame import ByColumn, Column, Frame, Rows
from .program import Program


@dataclass(slots=True)
class TimeSpent:
    """The calls, rows and time of one program. `rows` are the required rows, also if one evaluation served many."""

    calls: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        self.rows += rows
        self.seconds += seconds


@dataclass(frozen=True, eq=False)
class TimedProgram(Program):
    """A program that measures its evaluations; for one thread."""

    timer: Callable[[], float] = field(repr=False)
    spent: TimeSpent = field(default_factory=TimeSpent, repr=False)

    def evaluate(self, bindings: Mapping[str, object]) -> object:
        """Return the value; see `Program.evaluate`."""
        begun = self.timer()
        try:
            return super().evaluate(bindings)
        finally:
            self.spent.add(1, self.timer() - begun)

    def by_column(self, plan: ByColumn) -> ByColumn:
        """Return the plan with timing."""
        return _TimedPlan(self, plan)


class _TimedPlan:
    def __init__(self, program: TimedProgram, plain: ByColumn) -> None:
        self._program = program
        self._plain = plain

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`."""
        program = self._program
        begun = program.timer()
        column = self._plain.column(frame, rows)
        program.spent.add(frame.size if rows is None else len(rows), program.timer() - begun)
        return column
