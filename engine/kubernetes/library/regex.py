"""Matches of regular expressions: `find` and `findAll` (apiserver `pkg/cel/library/regex.go`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload, validator
from koordpolicy.engine.cel.library.regex import (
    STATES_PER_STEP,
    compile_pattern,
    program_size,
    searcher,
    steps,
    too_long,
)
from koordpolicy.engine.cel.values.types import INT, STRING, Type, list_of

_COST: Final = Cost(0, ((0, 0.1), (1, 0.25)), product=True)
_STEPS_PER_MATCH: Final = 25
_MOST_STEPS: Final = 1_000_000
"""Limit of the steps of all searches of one `findAll`: about 0.1 s."""


def _find(text: str, pattern: str) -> str:
    match: Any = searcher(pattern)(text)
    return "" if match is None else match[0]


def _find_all(text: str, pattern: str, count: int = -1) -> list[str]:
    steps(text, pattern)
    found: list[str] = []
    last_end = -1
    # Each match is a search of its own, which may look through all that is left of the string.
    left, states = _MOST_STEPS * STATES_PER_STEP, program_size(pattern)
    for match in compile_pattern(pattern).finditer(text):
        if 0 <= count <= len(found):
            break
        left -= (len(text) - match.start()) * states
        if left < 0:
            raise too_long()
        # As in Go, an empty match directly after another match is skipped.
        if match.end() == match.start() == last_end:
            continue
        last_end = match.end()
        found.append(match[0])
    return found


def _steps_of_matches(found: list[str], text: str, pattern: str, _: int = -1) -> int:
    """Return the steps of finding matches, each of which may have been searched in half of the string and more."""
    return len(found) * (_STEPS_PER_MATCH + len(text) * program_size(pattern) // (2 * STATES_PER_STEP))


def _member(
    id_: str, parameters: tuple[Type, ...], result: Type, evaluate: Callable[..., object],
    result_steps: Callable[..., int] | None = None,
) -> Overload:
    return Overload(
        id_, parameters, result, evaluate, member=True, cost=_COST, walk=steps, validate=validator(1, searcher),
        states=program_size, result_steps=result_steps,
    )


REGEX: Final = (
    Function(
        "find", (_member("string_find_string", (STRING, STRING), STRING, _find),),
        "The first match of a regular expression, or an empty string.", "'abc 123'.find('[0-9]+') == '123'",
    ),
    Function(
        "findAll",
        (
            _member("string_find_all_string", (STRING, STRING), list_of(STRING), _find_all, _steps_of_matches),
            _member("string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), _find_all, _steps_of_matches),
        ),
        "All matches of a regular expression, at most n.", "'1 2'.findAll('[0-9]') == ['1', '2']",
    ),
)
