"""Properties that must hold of every text."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.cost import check_cost
from koordpolicy.engine.cel.check.environment import Environment, Scope, Variable
from koordpolicy.engine.cel.library import BINDINGS, ENCODERS, LISTS, MATH, OPTIONALS, SETS, STANDARD, STRINGS, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import DYN, Type
from koordpolicy.engine.cel.values.values import BoolKey, EvaluationError, Optional, is_map, type_of_value
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import PolicyError, Source

PATIENCE_S: Final = 10
"""Longer than one step with a text may take on a busy machine: compiling it, or one evaluation."""
_LEAK: Final = re.compile(
    r"0x[0-9a-f]{6,}|<(?:class|function|module|built-in|bound method)|koordpolicy|Traceback| object at |__main__",
)


class Broken(AssertionError):
    """Something that must not happen, with what it happened to."""


class _Stuck(BaseException):
    """Time is up. No `Exception`: whatever runs now must not catch it."""


@dataclass(frozen=True)
class Case:
    """A text, where it stands, and rows for it; all as plain data, so that a case can be kept."""

    text: str
    place: str = "plain"
    rows: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] | None = None


@cache
def place(name: str) -> Environment:
    """Return an environment by name: `plain` with two untyped variables, or a slot's."""
    if name != "plain":
        return environment(Slot(name))
    functions = table(STANDARD, STRINGS, MATH, LISTS, SETS, OPTIONALS, ENCODERS, BINDINGS)
    return Environment(functions=functions).with_variables(
        Variable("a", DYN, Scope.ROW), Variable("b", DYN, Scope.DECISION),
    )


def examine(case: Case) -> str:
    """Return how far a case got (`refused`, `costly`, `answered`); raise `Broken`."""
    program = compiled(case.text, case.place)
    if program is None:
        return "refused"
    found = "answered" if _affordable(case.text, program) else "costly"
    values = dict(case.values or {})
    answers = []
    for number, row in enumerate(case.rows):
        bindings = {**values, **row}
        fast, exact = outcome(program.evaluate, bindings), outcome(lambda each: program.metered(each)[0], bindings)
        spent = exact[-1] == "CostLimit"
        if not spent:
            _equal(f"row {number}, emitted and exact", fast, exact)
        answers.append(fast)
        if spent or found == "costly":
            break  # the others would only take as long again
    rows = list(case.rows[: len(answers)])
    try:
        with _patience():
            column = evaluate(program, RowFrame(rows, values))
    except Exception as error:
        raise _broken("columns end with", error) from error
    for number, (value, wanted) in enumerate(zip(column.values.tolist(), answers, strict=True)):
        _equal(f"row {number}, by column and by row", _shown(column.errors.get(number, value)), wanted)
    return found


def _affordable(text: str, program: Program) -> bool:
    try:
        with _patience():
            check_cost(program.checked)
    except PolicyError as error:
        _look_at(text, error)
        return False
    except Exception as error:
        raise _broken("the estimate ends with", error) from error
    return True


def _broken(what: str, error: Exception) -> Broken:
    return error if isinstance(error, Broken) else Broken(f"{what} {error!r}")


def compiled(text: str, name: str) -> Program | None:
    """Return a program, None where the text is refused in an orderly way."""
    source = Source("case", text)
    around = place(name)
    try:
        with _patience():
            root = parse(source, limits=around.limits)
            return Program(check(source, root, around))
    except PolicyError as error:
        _look_at(text, error)
        return None
    except Exception as error:
        raise _broken("compiling ends with", error) from error


def outcome(function: Any, bindings: Mapping[str, Any]) -> tuple[object, ...]:
    """Return a value or an error in a form that can be compared."""
    try:
        with _patience():
            value = function(bindings)
    except EvaluationError as error:
        return _shown(error)
    except Exception as error:
        raise _broken("evaluation ends with", error) from error
    check_value(value)
    return _shown(value)


def check_value(value: object) -> None:
    """Raise `Broken` unless a value is one of CEL's through and through."""
    pending = [value]
    while pending:
        each = pending.pop()
        kind = each.__class__
        if kind is list:
            pending += each  # type: ignore[arg-type]
        elif is_map(each):
            pending += [key.value if isinstance(key, BoolKey) else key for key in each]  # type: ignore[attr-defined]
            pending += each.values()  # type: ignore[attr-defined]
        elif kind is Optional:
            pending.append(each.value)  # type: ignore[attr-defined]
        else:
            try:
                type_of_value(each)
            except EvaluationError:
                raise Broken(f"a value of Python's own: {each!r}") from None


def _shown(value: object) -> tuple[object, ...]:
    if isinstance(value, EvaluationError):
        if _LEAK.search(value.message):
            raise Broken(f"an error tells of Python: {value.message}")
        return "error", value.message, value.offset, value.reason
    return "value", _plain(value)


def _plain(value: object) -> object:
    """Return a value as something that compares with its class, NaN like any other."""
    if isinstance(value, float):
        return ("double", "nan") if math.isnan(value) else ("double", value, math.copysign(1, value))
    if value.__class__ is list:
        return "list", tuple(map(_plain, value))  # type: ignore[call-overload]
    if is_map(value):
        return "map", {key: _plain(each) for key, each in value.items()}  # type: ignore[attr-defined]
    if isinstance(value, Optional):
        return "optional", _plain(value.value), str(value)
    if isinstance(value, Type):
        return "type", value.name
    return value.__class__.__name__, value


def _equal(what: str, one: tuple[object, ...], other: tuple[object, ...]) -> None:
    if one != other:
        raise Broken(f"{what}: {_cut(one)} is not {_cut(other)}")


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."


def _look_at(text: str, error: PolicyError) -> None:
    if not error.problems:
        raise Broken("refused without a reason")
    for problem in error.problems:
        span = problem.span
        if span is not None and not 0 <= span.start <= span.end <= len(text) + 1:
            raise Broken(f"`{problem.message}` points at {span.start} to {span.end} of {len(text)} characters")
        said = problem.message.replace(text, "")
        if _LEAK.search(said) and not _LEAK.search(text):
            raise Broken(f"a message tells of Python: {problem.message}")
    str(error)


@contextmanager
def _patience() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise _Stuck

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, 1)  # again and again, for one may get lost
    try:
        yield
    except _Stuck:
        raise Broken(f"takes longer than {PATIENCE_S} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
