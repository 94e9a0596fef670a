"""Functions of numbers: cel-go's math extension (cel-go `ext/math.go`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.traversal import elements, nothing
from ..values.types import BOOL, DOUBLE, DYN, INT, UINT, Type, list_of
from ..values.values import EvaluationError, Uint, compare, no_overload
from .core import checked_int

_NUMBERS: Final = (INT, UINT, DOUBLE)
_MOST_ARGUMENTS: Final = 12
"""Most arguments of greatest and least; a longer list of numbers is passed as one argument."""
_CLASSES: Final = frozenset({int, Uint, float})
_BITS: Final = 64


def _extreme(sign: int, name: str) -> Callable[..., object]:
    def pick(*values: object) -> object:
        best = values[0]
        for each in values:
            if each.__class__ not in _CLASSES:
                raise no_overload()
            if sign * compare(each, best) > 0:
                best = each
        return best

    def evaluate(*values: object) -> object:
        if len(values) == 1 and type(values[0]) is list:
            if not values[0]:
                raise EvaluationError(f"math.{name}() argument must not be empty")
            return pick(*values[0])
        return pick(*values)

    return evaluate


def _extremes(name: str, sign: int) -> tuple[Overload, ...]:
    evaluate = _extreme(sign, name)
    short = "max" if sign > 0 else "min"
    overloads = [Overload(f"math_{short}_{each}", (each,), each, evaluate) for each in _NUMBERS]
    overloads += [Overload(f"math_{short}_{each}_{each}", (each, each), each, evaluate) for each in _NUMBERS]
    overloads += [
        Overload(f"math_{short}_{left}_{right}", (left, right), DYN, evaluate)
        for left, right in itertools.permutations(_NUMBERS, 2)
    ]
    overloads += [
        Overload(
            f"math_{short}_list_{each}", (list_of(each),), each, evaluate, cost=Cost(1, ((0, 1.0),)), walk=elements,
        )
        for each in _NUMBERS
    ]
    overloads += [
        Overload(f"math_{short}_{each}_{count}", (each,) * count, each, evaluate, cost=Cost(count))
        for each in _NUMBERS for count in range(3, _MOST_ARGUMENTS + 1)
    ]
    overloads += [
        Overload(f"math_{short}_mixed_{count}", (DYN,) * count, DYN, evaluate, cost=Cost(count), walk=nothing)
        for count in range(3, _MOST_ARGUMENTS + 1)
    ]
    return tuple(overloads)


def _round_half_away(number: float) -> float:
    if not math.isfinite(number) or abs(number) >= 2.0**52:
        return number
    rounded = math.floor(abs(number))
    if abs(number) - rounded >= 0.5:
        rounded += 1
    return math.copysign(rounded, number)


def _whole(function: Callable[[float], float]) -> Callable[[float], float]:
    def evaluate(number: float) -> float:
        return math.copysign(function(number), number) if math.isfinite(number) else number

    return evaluate


def _sign_of_double(number: float) -> float:
    return number if math.isnan(number) or number == 0 else math.copysign(1.0, number)


def _shift(left: bool, kind: Type) -> Callable[[int, int], int]:
    def evaluate(number: int, by: int) -> int:
        if by < 0:
            raise EvaluationError(f"math.bitShift{'Left' if left else 'Right'}() negative offset: {by}")
        if by >= _BITS:
            return _as(0, kind)
        bits = int(number) % (1 << _BITS)
        return _as(bits << by if left else bits >> by, kind)

    return evaluate


def _as(bits: int, kind: Type) -> int:
    """Return 64 bits as a number of a kind."""
    bits %= 1 << _BITS
    if kind == UINT:
        return Uint(bits)
    return bits - (1 << _BITS) if bits >= 1 << (_BITS - 1) else bits


def _bits(name: str, operation: Callable[[int, int], int], doc: str, example: str) -> Function:
    def overload(kind: Type) -> Overload:
        word = "int" if kind == INT else "uint"
        return Overload(
            f"math_{name}_{word}_{word}", (kind, kind), kind, lambda a, b: _as(operation(int(a), int(b)), kind),
        )

    return Function(f"math.{name}", (overload(INT), overload(UINT)), doc, example)


def _of_double(name: str, evaluate: Callable[[float], object], result: Type, doc: str, example: str) -> Function:
    return Function(f"math.{name}", (Overload(f"math_{name}_double", (DOUBLE,), result, evaluate),), doc, example)


def _root(number: float) -> float:
    return math.sqrt(number) if number >= 0 else math.nan


MATH: Final = (
    Function(
        "math.greatest", _extremes("greatest", 1), "The greatest of some numbers or of a list of them.",
        "math.greatest(1, 3, 2) == 3",
    ),
    Function(
        "math.least", _extremes("least", -1), "The least of some numbers or of a list of them.",
        "math.least([2.0, 1.5]) == 1.5",
    ),
    _of_double("ceil", _whole(math.ceil), DOUBLE, "The next whole number above.", "math.ceil(1.2) == 2.0"),
    _of_double("floor", _whole(math.floor), DOUBLE, "The next whole number below.", "math.floor(1.8) == 1.0"),
    _of_double(
        "round", _round_half_away, DOUBLE, "The nearest whole number, halves away from 0.", "math.round(1.5) == 2.0",
    ),
    _of_double("trunc", _whole(math.trunc), DOUBLE, "The number without its fraction.", "math.trunc(-1.8) == -1.0"),
    _of_double("isNaN", math.isnan, BOOL, "True if the value is NaN.", "math.isNaN(0.0 / 0.0)"),
    _of_double("isInf", math.isinf, BOOL, "True if the number is infinite.", "math.isInf(1.0 / 0.0)"),
    _of_double("isFinite", math.isfinite, BOOL, "True if the number is finite.", "math.isFinite(1.0)"),
    Function(
        "math.sqrt",
        (
            Overload("math_sqrt_double", (DOUBLE,), DOUBLE, _root),
            Overload("math_sqrt_int", (INT,), DOUBLE, lambda a: _root(float(a))),
            Overload("math_sqrt_uint", (UINT,), DOUBLE, lambda a: _root(float(a))),
        ),
        "The square root; NaN for negative numbers.", "math.sqrt(9) == 3.0",
    ),
    Function(
        "math.abs",
        (
            Overload("math_abs_double", (DOUBLE,), DOUBLE, abs),
            Overload("math_abs_int", (INT,), INT, lambda a: checked_int(abs(a))),
            Overload("math_abs_uint", (UINT,), UINT, lambda a: a),
        ),
        "The number without its sign.", "math.abs(-3) == 3",
    ),
    Function(
        "math.sign",
        (
            Overload("math_sign_double", (DOUBLE,), DOUBLE, _sign_of_double),
            Overload("math_sign_int", (INT,), INT, lambda a: (a > 0) - (a < 0)),
            Overload("math_sign_uint", (UINT,), UINT, lambda a: Uint(a > 0)),
        ),
        "-1, 0 or 1.", "math.sign(-3) == -1",
    ),
    _bits("bitAnd", lambda a, b: a & b, "Bits that both have.", "math.bitAnd(3, 5) == 1"),
    _bits("bitOr", lambda a, b: a | b, "Bits that one has.", "math.bitOr(1, 2) == 3"),
    _bits("bitXor", lambda a, b: a ^ b, "Bits that one has and the other has not.", "math.bitXor(3, 5) == 6"),
    Function(
        "math.bitNot",
        (
            Overload("math_bitNot_int_int", (INT,), INT, lambda a: _as(~int(a), INT)),
            Overload("math_bitNot_uint_uint", (UINT,), UINT, lambda a: _as(~int(a), UINT)),
        ),
        "Bits that it has not.", "math.bitNot(0) == -1",
    ),
    *(
        Function(
            f"math.bitShift{word}",
            (
                Overload(f"math_bitShift{word}_int_int", (INT, INT), INT, _shift(left, INT)),
                Overload(f"math_bitShift{word}_uint_int", (UINT, INT), UINT, _shift(left, UINT)),
            ),
            f"Bits moved to the {word.lower()}, zeros moved in.", example,
        )
        for word, left, example in (
            ("Left", True, "math.bitShiftLeft(1, 3) == 8"), ("Right", False, "math.bitShiftRight(8, 3) == 1"),
        )
    ),
)
