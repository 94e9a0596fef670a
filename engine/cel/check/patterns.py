"""Sizes of the constant patterns of a set of documents, in expressions and in the schemas of params.

RE2 compiles each to states. A state takes about ten bytes and a microsecond to compile. One pattern is bounded by RE2
(about 360,000 states), and the patterns of a set by `MOST_STATES_TOGETHER`: `PatternBudget` adds them up while
documents are read and checked in a thread, so that patterns beyond the bound are not compiled.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from koordpolicy.engine.source import Problem, Span

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

MOST_STATES_TOGETHER: Final = 10_000_000
"""The maximal number of states of all constant patterns of a set of documents: about 100 MB."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class SizedPattern:
    """A constant pattern with its number of states and its place."""

    text: str
    states: int
    span: Span | None


class TooManyStatesError(Exception):
    """The patterns of a set have too many states together: no further one is compiled."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Current(threading.local):
    budget: PatternBudget | None = None


_CURRENT: Final = _Current()


class PatternBudget:
    """Adds up the states of distinct patterns; a context manager that makes it the thread's current one.

    Where it ends, its patterns are added to the budget around it, if there is one.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = MOST_STATES_TOGETHER if most is None else most
        self._patterns: dict[str, SizedPattern] = {}
        self._states = 0
        self._before: PatternBudget | None = None

    @property
    def patterns(self) -> tuple[SizedPattern, ...]:
        """The distinct patterns, in order."""
        return tuple(self._patterns.values())

    def add(self, patterns: Iterable[SizedPattern]) -> None:
        """Add patterns.

        Raises:
            TooManyStatesError: they are too large together with those before.
        """
        for each in patterns:
            if each.text not in self._patterns:
                self._patterns[each.text] = each
                self._states += each.states
                if self._states > self._most:
                    raise TooManyStatesError(self._problem(each))

    def _problem(self, last: SizedPattern) -> Problem:
        biggest = sorted(self._patterns.values(), key=lambda each: -each.states)[:_NAMED]
        shown = ", ".join(f"{each.states:,} at {each.span or 'a schema'}" for each in biggest)
        return Problem(
            f"the patterns up to this one have {self._states:,} states together, and all patterns of a set may have "
            f"{self._most:,}; the biggest: {shown}",
            last.span, "repeat less in them: `{0,300}` of a class such as `\\pL` is large", code="patterns-too-large",
        )

    def __enter__(self) -> Self:
        self._before, _CURRENT.budget = _CURRENT.budget, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        _CURRENT.budget = self._before
        if self._before is not None and kind is None:
            self._before.add(self.patterns)


def charge(text: str, states: int, span: Span | None = None) -> None:
    """Add a pattern to the thread's current budget, if there is one; raises as `PatternBudget.add` does."""
    budget = _CURRENT.budget
    if budget is not None:
        budget.add((SizedPattern(text, states, span),))
