"""The room that the targets of a document share: amounts by name, which evictions use up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError

Amounts = Mapping[str, float]


class TargetsRoom:
    """The amounts that all targets of a cycle may still take together."""

    def __init__(self, of_targets: Iterable[Amounts]) -> None:
        """Sum the amounts of the targets, in their order; a name that a target lacks counts as 0."""
        self._total: dict[str, float] = {}
        for amounts in of_targets:
            for name, amount in amounts.items():
                self._total[name] = self._total.get(name, 0) + amount
        self._left = dict(self._total)

    def refusal(self) -> str:
        """Return why no more pods may leave: nothing is left of a name; empty if there is room."""
        for name, left in self._left.items():
            if not left > 0:
                total = self._total[name]
                if total > 0:
                    return f"the targets have no room for more `{name}`: pods took {total - left:g} of {total:g}"
                return f"the targets have no room for `{name}`: they add up to {total:g}"
        return ""

    def take(self, amounts: Amounts) -> None:
        """Subtract the amounts of an evicted pod."""
        for name, amount in amounts.items():
            self._left[name] -= amount

    def amounts_of_pod(self, program: Program, bindings: Mapping[str, object]) -> dict[str, float]:
        """Return the amounts that a pod takes, by name; 0 for names that its map lacks.

        Raises:
            EvaluationError: the expression failed, or an amount is not finite, or less than 0.
        """
        amounts = program.evaluate(bindings)
        assert isinstance(amounts, Mapping)
        found = {name: finite(amounts.get(name, 0), name) for name in self._left}
        for name, amount in found.items():
            if amount < 0:
                raise EvaluationError(f"a pod takes {amount:g} of `{name}`: return 0 or more")
        return found


def amounts_of_target(program: Program, bindings: Mapping[str, object]) -> dict[str, float]:
    """Return the amounts that a target adds to the room, by name.

    Raises:
        EvaluationError: the expression failed, or an amount is not finite.
    """
    added = program.evaluate(bindings)
    assert isinstance(added, Mapping)
    return {name: finite(amount, name) for name, amount in added.items()}


def finite(value: object, name: str) -> float:
    """Return a finite number as it is; raise `EvaluationError` for any other value of that name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(f"`{name}` is no number: return a map of numbers")
    if not math.isfinite(value):
        raise EvaluationError(f"`{name}` is {value}: return a finite number")
    return value
