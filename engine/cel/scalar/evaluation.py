"""State of one evaluation by the interpreter: inputs, locals, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..check.checked_ast import Checked
from ..values.deadline import POLL_UNITS, Deadline
from ..values.values import COST_LIMIT, EvaluationError
from .budget import stopped


class LazyBindings(dict[str, object]):
    """Bindings of any kind as the interpreter reads variables: by `get`, and only if they are read."""

    __slots__ = ("_bindings",)

    def __init__(self, bindings: Mapping[str, object]) -> None:
        super().__init__()
        self._bindings = bindings

    def get(self, key: str, default: object = None) -> object:
        """Return a variable's value, or `default` for one that is absent; raise `EvaluationError` if its read fails."""
        try:
            return self._bindings[key]
        except KeyError:
            return default


class Evaluation:
    """One evaluation: its inputs, the variables of its loops, its cost so far."""

    __slots__ = (
        "_deadline", "_next_cost", "_next_turns", "bindings", "checked", "cost", "definitions", "limit", "locals",
        "turns",
    )

    def __init__(self, bindings: Mapping[str, object], limit: float, slots: int, checked: Checked) -> None:
        self.bindings = bindings
        self.limit = limit
        self.checked = checked
        self.cost = 0
        self.turns = 0
        self.locals: list[object] = [None] * slots
        self.definitions: dict[Checked, object] = {}
        """Values and errors of the definitions that were read so far."""
        self._deadline = Deadline.current()
        # At the limit, or where the deadline is polled next.
        self._next_cost = self._next_turns = limit if self._deadline is None else min(limit, POLL_UNITS)

    def charge(self, units: int) -> None:
        """Spend units; raise if the limit is exceeded or the deadline has passed."""
        self.cost += units
        if self.cost > self._next_cost:
            self._next_cost = self._poll(self.cost)

    def turn(self, steps: int = 1) -> None:
        """Count steps that cost nothing in Kubernetes' units, or too little, as they must be bounded too."""
        self.turns += steps
        if self.turns > self._next_turns:
            self._next_turns = self._poll(self.turns)

    def _poll(self, spent: int) -> float:
        """Return the cost at which to poll next."""
        if spent > self.limit:
            raise _spent()
        if self._deadline is not None and self._deadline.passed:
            raise stopped(self.checked, self._deadline)
        return min(self.limit, spent + POLL_UNITS)


def _spent() -> EvaluationError:
    return EvaluationError("operation cancelled: actual cost limit exceeded", reason=COST_LIMIT, final=True)


Step: TypeAlias = Callable[[Evaluation], object]
"""A node as a function of an evaluation; raises `EvaluationError`."""
