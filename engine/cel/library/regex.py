"""Regular expressions in RE2's syntax: linear in the length of the string (cel-spec, "Regular Expressions")."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final

from ..check.environment import Cost, Function, Overload, validator
from ..check.patterns import MOST_STATES_TOGETHER
from ..values.types import BOOL, STRING
from ..values.values import COST_LIMIT, EvaluationError

if TYPE_CHECKING:
    from collections.abc import Callable

_PER_TEXT: Final = 0.1
_LONGEST_PATTERN: Final = 10_000
_MOST_STATES: Final = 50_000_000
"""Limit of characters times states of a pattern for one search: about 0.1 s. `(.{0,900}b){3}` has 8,000 states."""
STATES_PER_STEP: Final = 500
"""Characters times states of a pattern that one step of a search goes through."""
_SHORT: Final = 256
"""Characters of the longest string whose results are cached."""
_MOST_RESULTS: Final = 16_384
_QUICKLY_COMPILED: Final = 2_000
"""Limit of the states of a pattern: compiled within about 2 ms."""
_STATES_COMPILED_PER_STEP: Final = 10
_MOST_CACHED: Final = 1024


class _Pattern:
    """A compiled pattern, and its search of strings of bounded length."""

    __slots__ = ("compiled", "longest", "states", "used")

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.states: int = compiled.programsize
        self.longest = _MOST_STATES // max(1, self.states)
        self.used = False
        """True if it was used again since it was added, or since it was last spared."""

    def search(self, text: str) -> object:
        """Return the match in a string, or None; raise where the string is too long."""
        if len(text) > self.longest:
            raise too_long()
        return self.compiled.search(text)


class _Patterns:
    """Patterns that were used lately, bounded in number and in states together. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, _Pattern] = {}
        self.states = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, text: str) -> _Pattern:
        """Return a pattern; raise where RE2 does not know its syntax."""
        # Without the lock, and without a move to the end: this is called for each row.
        found = self._found.get(text)
        if found is None:
            return self._add(text, _Pattern(_compile(text)))
        found.used = True
        return found

    def _add(self, text: str, made: _Pattern) -> _Pattern:
        with self._lock:
            if text not in self._found:
                self._found[text] = made
                self.states += made.states
                while len(self._found) > _MOST_CACHED or (self.states > MOST_STATES_TOGETHER and len(self._found) > 1):
                    self._remove_oldest()
        return made

    def _remove_oldest(self) -> None:
        """Remove the pattern that was added first; one that was used since then is spared once."""
        text = next(iter(self._found))
        oldest = self._found.pop(text)
        if oldest.used:
            oldest.used = False
            self._found[text] = oldest
        else:
            self.states -= oldest.states


PATTERNS: Final = _Patterns()
_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|(\\.)", re.DOTALL)
"""Escape sequences, and quoted texts without any. Go's RE2 does not know `\\C`, which matches part of a character."""


def _compile(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - 10 ms, only for expressions that match patterns

    if len(pattern) > _LONGEST_PATTERN:
        raise EvaluationError(f"error parsing regexp: a pattern of {len(pattern)} characters is too long")
    if any(each[1] == "\\C" for each in _ESCAPES.finditer(pattern)):
        raise EvaluationError(f"error parsing regexp: invalid escape sequence: `\\C`: `{pattern[:100]}`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown syntax"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise EvaluationError(f"error parsing regexp: {text}: `{pattern[:100]}`") from None


def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern; raise where RE2 does not know its syntax.

    Those that are cached are bounded in number and in states together, and each by RE2's own memory limit.
    """
    return PATTERNS.get(pattern).compiled


def searcher(pattern: str) -> Callable[[str], object]:
    """Return the function that searches a string for a pattern and returns the match or None."""
    return PATTERNS.get(pattern).search


def too_long() -> EvaluationError:
    """Return the error of a string that is too long for a pattern."""
    return EvaluationError("operation cancelled: actual cost limit exceeded", reason=COST_LIMIT, final=True)


def program_size(pattern: str) -> int:
    """Return the number of states of a compiled pattern; compiling takes about a microsecond per state."""
    return PATTERNS.get(pattern).states


def steps(text: str, pattern: str, *_: object) -> int:
    """Return the steps of searching: linear in the string, times the states of the pattern.

    Compiling a large pattern counts, too, whether it is in the cache or not: patterns may be made by the expression.
    """
    states = program_size(pattern)
    if len(text) * states > _MOST_STATES:
        raise too_long()
    compiling = states // _STATES_COMPILED_PER_STEP if states > _QUICKLY_COMPILED else 0
    return compiling + len(text) * states // STATES_PER_STEP


class _Results:
    """Results of searches in short strings by pattern and string; all are dropped when they are too many."""

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
    """Return whether a pattern is found anywhere in a string."""
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
                states=program_size,
            ),
            Overload(
                "matches_string", (STRING, STRING), BOOL, matches, member=True, cost=_COST, walk=steps,
                validate=validator(1, searcher),
                states=program_size,
            ),
        ),
        "True if a regular expression (RE2) is found anywhere in a string.", "'web-12'.matches('^web-[0-9]+$')",
    ),
)
