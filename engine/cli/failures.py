"""The JSON that a command prints with `--output json` if it ends with an error."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

from koordpolicy.engine.source import PolicyError, Problem, Severity

from .exits import Exit, Stop

_CODES: Final = {
    Exit.UNEXPECTED: "unexpected", Exit.USAGE: "usage", Exit.INVALID: "invalid", Exit.FAILED: "failed",
    Exit.IMPOSSIBLE: "impossible", Exit.EXCEEDED: "exceeded",
}
_HELP: Final = "help"
_LEFT_OUT: Final = frozenset(("severity", _HELP))


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error that ended a command as plain data: `errors`, and `warnings` where there are any."""
    if isinstance(error, PolicyError):
        warnings = [each for each in error.problems if each.severity is not Severity.ERROR]
        errors = [each for each in error.problems if each.severity is Severity.ERROR]
        return {"errors": _all(errors or warnings), **({"warnings": _all(warnings)} if errors and warnings else {})}
    if isinstance(error, Stop):
        return usage(str(error), error.exit)
    if isinstance(error, OSError):
        file = {"file": str(error.filename)} if error.filename else {}
        return {"errors": [{"code": "file", "message": error.strerror or str(error), **file}]}
    return {"errors": [{"code": "internal", "message": f"{type(error).__name__}: {error}"}]}


def usage(message: str, exit: Exit = Exit.USAGE) -> dict[str, Any]:  # noqa: A002 - as in `Stop`
    """Return a message without a place as `failure` does."""
    return {"errors": [{"code": _CODES[exit], "message": message}]}


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line, which may be wrong otherwise, asks for JSON."""
    pairs = itertools.pairwise(arguments)
    return any(first in ("-o", "--output") and second == "json" for first, second in pairs) or any(
        each in ("--output=json", "-ojson") for each in arguments)


def _all(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    return [_one(each) for each in problems]


def _one(problem: Problem) -> dict[str, Any]:
    plain = problem.to_json()
    fix = {"fix": plain[_HELP]} if _HELP in plain else {}
    return {**{key: value for key, value in plain.items() if key not in _LEFT_OUT}, **fix}
