"""Message and help for a call that no overload, or no function, accepts.

The help is a table of (predicate, text); the first rule whose predicate holds applies. A text that quotes the
expression is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from koordpolicy.engine.source import did_you_mean

from ..syntax.ast import Call, Expr, Select
from ..values.types import BOOL, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT, Type
from .environment import Function
from .signatures import SYMBOLS, show, show_signature

__all__ = ["ELSEWHERE", "MOST_SHOWN", "FailedCall", "no_function", "no_overload"]

MOST_SHOWN: Final = 8
"""Names or signatures that a help lists at most."""
ELSEWHERE: Final = {
    "not": "did you mean `!(...)`?", "len": "did you mean `size`?", "length": "did you mean `size`?",
    "max": "did you mean `math.greatest`?", "min": "did you mean `math.least`?",
    "math.max": "did you mean `math.greatest`?", "math.min": "did you mean `math.least`?",
    "str": "did you mean `string`?", "float": "did you mean `double`?", "lower": "did you mean `x.lowerAscii()`?",
    "upper": "did you mean `x.upperAscii()`?",
}  # fmt: skip
"""Functions of other languages, and their names in CEL."""

_NUMBERS: Final = frozenset((INT, UINT, DOUBLE))
_QUANTITY: Final = Type("kubernetes.Quantity")
_AMOUNTS: Final = frozenset(("allocatable", "capacity", "requests", "limits"))
_AMOUNT_HELP: Final = (
    "API objects hold amounts as strings; `allocatable.cpu`, `requests.memory` and the like are numbers, and "
    "`quantity(x).asApproximateFloat()` makes one"
)
_EQUALITY: Final = frozenset(("_==_", "_!=_"))
_ORDER: Final = frozenset(("_<_", "_<=_", "_>_", "_>=_"))
_SUMS: Final = frozenset(("_+_", "_-_"))
_MACROS: Final = {
    "all": "list.all(x, x > 0)", "exists": "list.exists(x, x > 0)", "exists_one": "list.exists_one(x, x > 0)",
    "existsOne": "list.existsOne(x, x > 0)", "map": "list.map(x, x + 1)", "filter": "list.filter(x, x > 0)",
    "transformList": "list.transformList(i, x, x + i)", "transformMap": "map.transformMap(k, v, v + 1)",
    "transformMapEntry": "map.transformMapEntry(k, v, {v: k})", "sortBy": "list.sortBy(x, x.name)",
    "optMap": "optional.optMap(x, x + 1)", "optFlatMap": "optional.optFlatMap(x, x.?name)", "has": "has(x.name)",
}  # fmt: skip


@dataclass(frozen=True)
class FailedCall:
    """A call of a known function with argument types that none of its overloads accepts."""

    node: Call
    function: Function
    types: Sequence[Type]
    """The types of the arguments, the receiver first, with bound type variables replaced."""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def symbol(self) -> str:
        """The operator as it is written; empty for functions that are no operators."""
        return SYMBOLS.get(self.function.name, "")

    @cached_property
    def shown(self) -> list[str]:
        """The types as messages spell them."""
        return [show(each) for each in self.types]

    @property
    def is_binary(self) -> bool:
        """True if it is an operator between two values."""
        return bool(self.symbol) and self.symbol != "[]" and len(self.types) > 1

    @property
    def has_number(self) -> bool:
        """True if some argument is a number."""
        return not _NUMBERS.isdisjoint(self.types)


_Rule: TypeAlias = tuple[Callable[[FailedCall], bool], str | Callable[[FailedCall], str]]


def no_overload(call: FailedCall) -> tuple[str, str]:
    """Return the message and the help for a call that no overload accepts."""
    for applies, text in _HELP:
        if applies(call):
            return _message(call), text if isinstance(text, str) else text(call)
    return _message(call), _signatures(call)


def no_function(
    node: Call, name: str, functions: Iterable[str], variables: Container[str],
) -> tuple[str, str]:
    """Return the message and the help for a call of an unknown name; `functions` and `variables` are the known ones."""
    macro = _MACROS.get(node.function)
    if macro is not None:
        count = len(node.args)
        return f"`{node.function}` does not take {count} argument{'s' * (count != 1)}", f"as in `{macro}`"
    known = [each for each in functions if each[0].isalpha()]
    hint = ELSEWHERE.get(name, "") or did_you_mean(name, known)
    if not hint:
        namesakes = sorted(each for each in known if each.rpartition(".")[2] == node.function)
        hint = f"did you mean `{namesakes[0]}`?" if namesakes else ""
    if not hint and name in variables:
        hint = f"`{name}` is a variable, not a function"
    return f"no function `{name}`", hint


def _message(call: FailedCall) -> str:
    shown = call.shown
    if call.symbol == "[]":
        return f"`{shown[0]}` cannot be indexed with `{shown[1]}`"
    if call.symbol:
        return f"`{call.symbol}` does not take " + " and ".join(f"`{each}`" for each in shown)
    if call.node.target is not None and len(shown) == len(call.node.args) + 1:
        return f"no overload of `{call.name}` takes `{shown[0]}`.({', '.join(shown[1:])})"
    return f"no overload of `{call.name}` takes ({', '.join(shown)})"


def _signatures(call: FailedCall) -> str:
    """Return the signatures of the function."""
    signatures = [show_signature(call.name, each) for each in call.function.overloads if not each.dynamic]
    more = len(signatures) - MOST_SHOWN
    shown = ", ".join(f"`{each}`" for each in signatures[:MOST_SHOWN])
    return f"there is {shown}" + (f" and {more} more" if more > 0 else "")


def _is_amount(node: Expr) -> bool:
    """Return whether this reads one resource of a map such as `node.status.allocatable`, by its name."""
    operand = node.operand if isinstance(node, Select) else (
        node.args[0] if isinstance(node, Call) and node.function == "_[_]" else None)
    return isinstance(operand, Select) and operand.field in _AMOUNTS


_HELP: Final[tuple[_Rule, ...]] = (
    (lambda call: call.name == "!_", "it negates a bool; a comparison needs parentheses: `!(x == y)`"),
    (
        lambda call: call.is_binary and call.types[0] != call.types[1] and _NUMBERS.issuperset(call.types),
        lambda call: f"convert one side, as in `{call.shown[1]}(x) {call.symbol} y`",
    ),
    (
        lambda call: call.is_binary and call.has_number and _QUANTITY in call.types,
        "`.asInteger()` or `.asApproximateFloat()` makes a number of an amount",
    ),
    (
        lambda call: call.is_binary and call.has_number and any(map(_is_amount, call.node.args)),
        _AMOUNT_HELP,
    ),
    (
        lambda call: call.name == "_+_" and call.has_number and STRING in call.types,
        "a string is not a number: `string(x)` and `int(x)` convert",
    ),
    (
        lambda call: call.is_binary and call.has_number and STRING in call.types,
        "a string is not a number: `int(x)` reads digits, and `quantity(x).asInteger()` an amount such as `4Gi`",
    ),
    (
        lambda call: call.is_binary and STRING in call.types and TIMESTAMP in call.types,
        "a string is not a timestamp: `timestamp('2026-01-31T12:00:00Z')` converts one",
    ),
    (
        lambda call: call.is_binary and STRING in call.types and DURATION in call.types,
        "a string is not a duration: `duration('1h30m')` converts one",
    ),
    (
        lambda call: call.has_number and (
            (call.name in _SUMS and TIMESTAMP in call.types)
            or (call.name in _SUMS | _ORDER | _EQUALITY and DURATION in call.types)),
        "a number is not a duration: `duration('1h30m')` reads one",
    ),
    (
        lambda call: call.name in _ORDER | _EQUALITY and call.has_number and TIMESTAMP in call.types,
        "a number is not a timestamp: `timestamp('2026-01-31T12:00:00Z')` reads one",
    ),
    (
        lambda call: call.is_binary and call.name in _ORDER and call.types[0] == BOOL and call.types[1] != BOOL,
        lambda call: f"comparisons do not chain: write `a {call.symbol} b && b {call.symbol} c`",
    ),
    (
        lambda call: call.name in _EQUALITY and NULL in call.types,
        "that is never null; `has(x.y)` tests whether a field is there",
    ),
    (
        lambda call: call.node.target is None and bool(call.types) and call.name in ELSEWHERE,
        lambda call: ELSEWHERE[call.name],
    ),
    (lambda call: call.name in _EQUALITY, "both sides must have one type; `dyn(x)` leaves it to run time"),
)
