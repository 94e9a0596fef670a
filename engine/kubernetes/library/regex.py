"""Matches of regular expressions: `find` and `findAll` (apiserver `pkg/cel/library/regex.go`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload, validator
from koordpolicy.engine.cel.library.regex import compile_pattern, program_size, searcher, steps
from koordpolicy.engine.cel.values.types import INT, STRING, Type, list_of

_COST: Final = Cost(0, ((0, 0.1), (1, 0.25)), product=True)


def _find(text: str, pattern: str) -> str:
    match: Any = searcher(pattern)(text)
    return "" if match is None else match[0]


def _find_all(text: str, pattern: str, count: int = -1) -> list[str]:
    steps(text, pattern)
    found: list[str] = []
    last_end = -1
    for match in compile_pattern(pattern).finditer(text):
        if 0 <= count <= len(found):
            break
        # As in Go, an empty match directly after another match is skipped.
        if match.end() == match.start() == last_end:
            continue
        last_end = match.end()
        found.append(match[0])
    return found


def _member(id_: str, parameters: tuple[Type, ...], result: Type, evaluate: Callable[..., object]) -> Overload:
    return Overload(
        id_, parameters, result, evaluate, member=True, cost=_COST, walk=steps, validate=validator(1, searcher),
        states=program_size,
    )


REGEX: Final = (
    Function(
        "find", (_member("string_find_string", (STRING, STRING), STRING, _find),),
        "The first match of a regular expression, or an empty text.", "'abc 123'.find('[0-9]+') == '123'",
    ),
    Function(
        "findAll",
        (
            _member("string_find_all_string", (STRING, STRING), list_of(STRING), _find_all),
            _member("string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), _find_all),
        ),
        "All matches of a regular expression, at most n.", "'1 2'.findAll('[0-9]') == ['1', '2']",
    ),
)
