"""Regular expressions in RE2's syntax: linear in the length of the text (cel-spec, "Regular Expressions")."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..check.environment import Cost, Function, Overload, validator
from ..values.types import BOOL, STRING
from ..values.values import COST_LIMIT, EvaluationError

if TYPE_CHECKING:
    from collections.abc import Callable

_PER_TEXT: Final = 0.1
_LONGEST_PATTERN: Final = 10_000
_MOST_STATES: Final = 50_000_000
"""Limit of characters times states of a pattern for one search: about 0.1 s. `(.{0,900}b){3}` has 8,000 states."""
_STATES_PER_STEP: Final = 500
_SHORT: Final = 256
"""Characters of the longest text whose results are cached."""
_MOST_RESULTS: Final = 16_384
_QUICKLY_COMPILED: Final = 2_000
"""Limit of the states of a pattern: compiled within about 2 ms."""
_STATES_COMPILED_PER_STEP: Final = 10


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern; raise where RE2 does not know its syntax.

    Bounded by a cache of 1,024 patterns and RE2's own memory limit per pattern.
    """
    # Importing re2 takes 10 ms: only for expressions that match patterns.
    import re2  # noqa: PLC0415

    if len(pattern) > _LONGEST_PATTERN:
        raise EvaluationError(f"error parsing regexp: a pattern of {len(pattern)} characters is too long")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown syntax"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise EvaluationError(f"error parsing regexp: {text}: `{pattern[:100]}`") from None


@lru_cache(maxsize=1024)
def searcher(pattern: str) -> Callable[[str], object]:
    """Return the function that searches a text for a pattern and returns the match or None."""
    compiled = compile_pattern(pattern)
    search: Callable[[str], object] = compiled.search
    longest = _MOST_STATES // max(1, compiled.programsize)

    def bounded(text: str) -> object:
        if len(text) > longest:
            raise too_long()
        return search(text)

    return bounded


def too_long() -> EvaluationError:
    """Return the error of a text that is too long for a pattern."""
    return EvaluationError("operation cancelled: actual cost limit exceeded", reason=COST_LIMIT, final=True)


def program_size(pattern: str) -> int:
    """Return the number of states of a compiled pattern; compiling takes about a microsecond per state."""
    states: int = compile_pattern(pattern).programsize
    return states


def steps(text: str, pattern: str, *_: object) -> int:
    """Return the steps of searching: linear in the text, times the states of the pattern.

    Compiling a large pattern counts, too, whether it is in the cache or not: patterns may be made by the expression.
    """
    states = program_size(pattern)
    if len(text) * states > _MOST_STATES:
        raise too_long()
    compiling = states // _STATES_COMPILED_PER_STEP if states > _QUICKLY_COMPILED else 0
    return compiling + len(text) * states // _STATES_PER_STEP


class _Results:
    """Results of searches in short texts by pattern and text; all are dropped when they are too many."""

    __slots__ = ("by_pattern", "count")

    def __init__(self) -> None:
        self.by_pattern: dict[str, dict[str, bool]] = {}
        self.count = 0

    def add(self, text: str, pattern: str, found: bool) -> None:
        """Store a result."""
        if self.count >= _MOST_RESULTS:
            self.by_pattern.clear()
            self.count = 0
        self.by_pattern.setdefault(pattern, {})[text] = found
        self.count += 1


_RESULTS: Final = _Results()
_BY_PATTERN: Final = _RESULTS.by_pattern


def matches(text: str, pattern: str) -> bool:
    """Return whether a pattern is found anywhere in a text."""
    # A call of RE2 through its wrapper takes some microseconds: results are cached, as names and images repeat.
    try:
        return _BY_PATTERN[pattern][text]
    except KeyError:
        pass
    found = searcher(pattern)(text) is not None
    if len(text) <= _SHORT:
        _RESULTS.add(text, pattern, found)
    return found


_COST: Final = Cost(0, ((0, _PER_TEXT),))

REGEX: Final = (
    Function(
        "matches",
        (
            Overload(
                "matches", (STRING, STRING), BOOL, matches, cost=_COST, walk=steps, validate=validator(1, searcher),
            ),
            Overload(
                "matches_string", (STRING, STRING), BOOL, matches, member=True, cost=_COST, walk=steps,
                validate=validator(1, searcher),
            ),
        ),
        "True if a regular expression (RE2) is found anywhere in a text.", "'web-12'.matches('^web-[0-9]+$')",
    ),
)
