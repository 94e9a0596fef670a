"""Counters of the evaluations of expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.cel.check.cost import estimate
from koordpolicy.engine.cel.scalar.program import Program


@dataclass(slots=True)
class Evaluations:
    """Counters of one expression since its plugin was made: evaluated and failed rows.

    Written by the scheduling thread; any thread may read.
    """

    point: str
    """The point's key in the document."""
    rule: str
    program: Program
    evaluated: int = 0
    failed: int = 0
    _cost: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `cost` is the upper bound of one evaluation, in Kubernetes' units."""
        if self._cost < 0:
            self._cost = estimate(self.program.checked).high
        return {"point": self.point, "rule": self.rule, "evaluations": self.evaluated, "errors": self.failed,
                "cost": self._cost}
