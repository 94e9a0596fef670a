"""Random expressions with random values, evaluated by Kubernetes' own CEL library and by ours.

Values, errors and costs have to be the same. Texts of errors are not compared: ours say what to write instead.
KOORD_POLICY_E2E_EXPRESSIONS=SEED:NUMBER evaluates other expressions, and as many as one likes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.check.folding import FOLDED
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import DURATION, TIMESTAMP, Type
from koordpolicy.engine.cel.values.values import Duration, EvaluationError, key_of
from koordpolicy.engine.kubernetes.library import FUNCTIONS
from koordpolicy.engine.source import PolicyError
from tests.golden import cel_values

from .build import expressions_binary
from .random_expressions import VARIABLES, RandomExpressions

SEED, NUMBER = map(int, os.environ.get("KOORD_POLICY_E2E_EXPRESSIONS", "20:6000").split(":"))
PER_VALUES: Final = 20
"""The number of expressions that have the same values of variables."""
MOST_NAMED: Final = 0.01
"""The part of all expressions that may differ for one reason of `REASONS`."""

MOST_OF_AN_ARGUMENT: Final = 60
"""The largest cost of an argument in these expressions: a list of a few elements of its own, each with a conversion."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An engine's answer: `refused` before it runs, `failed`, or `value`."""

    kind: str
    value: Any = None
    cost: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """An expression about which the engines disagree."""

    text: str
    ours: Outcome
    theirs: Outcome


def _theirs_says(pattern: str) -> Callable[[Difference], bool]:
    return lambda it: re.search(pattern, it.theirs.message) is not None


def _ours_says(pattern: str) -> Callable[[Difference], bool]:
    return lambda it: re.search(pattern, it.ours.message) is not None


REASONS: Final[Mapping[str, Callable[[Difference], bool]]] = {
    # deliberate: docs/language.md, "Differences"
    "a duplicate key is an error, as in the specification": _ours_says("already exists"),
    "only bools, numbers and strings are keys, as in the specification": lambda it: (
        "unsupported key type" in it.ours.message or "unhashable type" in it.theirs.message
        or (re.search(r"[{]\s*(?:[{\[]|b['\"])", it.text) is not None and "no such overload" in it.ours.message)),
    "the least int is subtracted from a quantity without wrapping around": lambda it: (
        re.search(r"[)][.]sub[(]", it.text) is not None and "'-92233720368547758" in str(it.theirs.value)
        and "'quantity': '92233720368547758" in str(it.ours.value)),
    "double() takes no underscores": lambda it: "_0" in it.text and "type conversion error" in it.ours.message,
    "a list with NaN has no order": lambda it: "sort()" in it.text and "NaN" in it.ours.message,
    "nothing is in an empty list, and what it is is not evaluated": lambda it: " in [])" in it.text,
    "a constant of a kind that is no key is refused in branches that are not taken":
        _theirs_says("invalid qualifier type"),
    "a value that is not what its type says is an error": _ours_says("no such overload: expected"),
    "x[?key] of what is unknown is an optional": lambda it: (
        "[?" in it.text and it.ours.kind == "refused" and re.search(
            r"expected `|does not take|optional_type[(]dyn[)]", it.ours.message) is not None),
    "null has no elements, not even when it compiles": _ours_says("`null` cannot be indexed"),
    "the entries of a map have no order": lambda it: (
        re.search(r"[}][.]map[(].*isSorted[(]", it.text) is not None and it.ours.cost == it.theirs.cost),
    # what cel-go does not carry through
    "a sum of quantities is equal to another quantity on either side": lambda it: (
        re.search(r"[)]\.(add|sub)[(]", it.text) is not None and it.theirs.message.startswith("no such overload")),
    "an optional in ?: or optMap loses the type of its value": lambda it: (
        "unsupported conversion to ref.Val" in f"{it.theirs.message}{it.theirs.value}" or (
            it.ours.kind == it.theirs.kind and set(it.ours.value) == {"type"} and set(it.theirs.value) == {"string"})),
    "an optional of an optional is unwrapped twice": _theirs_says(r"no such overload: unwrapOpt"),
    "the name of a loop's variable that holds a type is taken for that of a type": _theirs_says(
        "reference to undefined type"),
    "a call of an unknown type takes the overload that the checker left": lambda it: (
        "dyn" in it.text or "[]" in it.text or "{}" in it.text) and re.search(
        "no such overload|no matching overload|expected type|type conversion error", it.theirs.message) is not None,
    "and charges the cost of that overload": lambda it: (
        "dyn(" in it.text and re.search(r"[.](sort|isSorted)[(][)]", it.text) is not None and it.theirs.kind == "value"
        and it.ours.value == it.theirs.value),
    "has() of what is no field of a variable costs one unit more or less": lambda it: (
        "has(" in it.text and it.ours.value == it.theirs.value and it.ours.cost is not None
        and it.theirs.cost is not None and abs(it.ours.cost - it.theirs.cost) <= 2),
    "an error that is absorbed costs a few units more or less, as cel-go evaluates the arguments beside the one that "
    "fails": lambda it: (
        re.search(r"&&|\|\||exists|all\(|\?", it.text) is not None and it.ours.value == it.theirs.value
        and it.ours.cost is not None and it.theirs.cost is not None
        and -3 <= it.theirs.cost - it.ours.cost <= MOST_OF_AN_ARGUMENT),
}
"""The reasons of differences, each with a test whether a difference is of that class."""


class Ours:
    """This engine, with and without its refusal of literals that always fail, of which Kubernetes has fewer."""

    def __init__(self) -> None:
        variables = [Variable(name, each) for name, each in VARIABLES.items()]
        self._strict = Environment(functions=FUNCTIONS).with_variables(*variables)
        unfolded = {name: replace(function, overloads=tuple(
            replace(each, validate=None, pure=each.pure and name in FOLDED) for each in function.overloads))
            for name, function in FUNCTIONS.items()}
        self._lenient = Environment(functions=unfolded).with_variables(*variables)

    def evaluate(self, text: str, values: Mapping[str, object], *, strict: bool = True) -> Outcome:
        """Return the outcome that both evaluators agree on."""
        try:
            program = compile_program(text, self._strict if strict else self._lenient)
        except PolicyError as error:
            return Outcome("refused", message=error.problems[0].message)
        found: list[Outcome] = []
        for run in (lambda: (program.evaluate(values), None), lambda: program.metered(values)):
            try:
                value, cost = run()
                found.append(Outcome("value", cel_values.show(value), cost))
            except EvaluationError as error:
                found.append(Outcome("failed", message=error.message))
        assert replace(found[1], cost=None) == replace(found[0], cost=None), text
        return found[1]


def theirs(requests: list[Json]) -> list[Outcome]:
    """Return the outcomes of expressions with values in Kubernetes' library."""
    lines = [{name: _declared(each) for name, each in VARIABLES.items()}, *requests]
    finished = subprocess.run(
        [expressions_binary()], input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return [_read_answer(json.loads(line)) for line in finished.stdout.split("\n") if line]


def _declared(type_: Type) -> Any:
    name = {TIMESTAMP.name: "timestamp", DURATION.name: "duration"}.get(type_.name, type_.name)
    return [name, *map(_declared, type_.parameters)] if type_.parameters else name


def _read_answer(answer: Json) -> Outcome:
    match answer.get("stage"):
        case None:
            return Outcome("value", _shown(answer["value"]), answer.get("cost", 0))
        case "evaluation" | "panic":
            return Outcome("failed", message=answer["error"])
        case _:
            return Outcome("refused", message=answer["error"])


def _shown(value: Json) -> Any:
    """A value of theirs in the form of `cel_values.show`."""
    ((kind, held),) = value.items()
    match kind:
        case "duration":
            return {"duration": int(held)}
        case "timestamp":
            seconds, nanoseconds = held.split(".")
            return {"timestamp": int(seconds) * 10**9 + int(nanoseconds)}
        case "optional":
            return {"optional": None if held is None else _shown(held)}
        case "list":
            return {"list": [_shown(each) for each in held]}
        case "map":
            return {"map": sorted(((_shown(key), _shown(each)) for key, each in held), key=str)}
        case _:
            return cel_values.show_wanted(value)


def _read(value: Json) -> object:
    ((kind, held),) = value.items()
    match kind:
        case "duration":
            return Duration(int(held))
        case "list":
            return [_read(each) for each in held]
        case "map":
            return {key_of(_read(key)): _read(each) for key, each in held}
        case _:
            return cel_values.read(value)


def _agree(ours: Outcome, other: Outcome) -> bool:
    if ours.kind == other.kind == "value":
        return (ours.value, ours.cost) == (other.value, other.cost)
    # An error that Kubernetes finds when it makes the program may be one of the evaluation, and the other way round.
    return ours.kind != "value" and other.kind != "value"


def differences() -> tuple[Counter[str], list[Difference]]:
    """Return the number of their outcomes by kind, and all differences."""
    made = RandomExpressions(SEED)
    requests: list[Json] = []
    for number in range(NUMBER):
        values = made.values() if number % PER_VALUES == 0 else requests[-1]["variables"]
        requests.append({"expression": made.expression(), "variables": values})
    ours, found, kinds, given = Ours(), [], Counter[str](), {}
    for number, (request, other) in enumerate(zip(requests, theirs(requests), strict=True)):
        if number % PER_VALUES == 0:
            given = {name: _read(each) for name, each in request["variables"].items()}
        kinds[other.kind] += 1
        text = request["expression"]
        mine = ours.evaluate(text, given)
        if other.kind == "value" and mine.kind == "refused":
            mine = ours.evaluate(text, given, strict=False)
        if not _agree(mine, other):
            found.append(Difference(text, mine, other))
    return kinds, found


def test_random_expressions_have_the_values_errors_and_costs_of_kubernetes() -> None:
    kinds, found = differences()
    # Most expressions compile, and many of these have a value: nothing else would compare much.
    assert kinds["value"] > NUMBER * 0.35
    assert [each for each in found if not any(is_so(each) for is_so in REASONS.values())] == []
    named = Counter(next((reason for reason, is_so in REASONS.items() if is_so(each)), "") for each in found)
    assert {reason: count for reason, count in named.items() if count > NUMBER * MOST_NAMED} == {}
