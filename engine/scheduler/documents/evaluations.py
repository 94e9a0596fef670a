"""Counters of the evaluations of expressions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

from koordpolicy.engine.cel.check.cost import estimate
from koordpolicy.engine.cel.scalar.program import Program


@dataclass(slots=True, eq=False)
class Evaluations:
    """Counters of one expression since its plugin was made: evaluated, false and failed rows.

    Written by the scheduling thread; any thread may read. The program belongs to the plugin: who has read the counters
    of a plugin that was replaced does not hold its programs.
    """

    point: str
    """The point's key in the document."""
    rule: str
    evaluated: int = 0
    refused: int = 0
    """The rows that a rule refused as it was false there, without those on which it failed."""
    failed: int = 0
    _program: ReferenceType[Program] | None = field(default=None, repr=False)
    _cost: int = -1

    @staticmethod
    def of(point: str, rule: str, program: Program) -> Evaluations:
        """Return the counters of an expression, which begin at 0."""
        return Evaluations(point, rule, _program=ref(program))

    @property
    def program(self) -> Program | None:
        """The program, as long as the plugin exists."""
        return None if self._program is None else self._program()

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `cost` is the upper bound of one evaluation, in Kubernetes' units."""
        program = self.program
        if self._cost < 0 and program is not None:
            self._cost = estimate(program.checked).high
        return {"point": self.point, "rule": self.rule, "evaluations": self.evaluated, "errors": self.failed,
                "cost": max(self._cost, 0)}
