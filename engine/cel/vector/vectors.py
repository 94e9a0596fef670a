"""Arithmetic, comparison and logic on columns; every result has the rows in which it is exact.

A row is exact if the result is CEL's: all inputs are present, nothing overflows, nothing is divided by zero, no NaN is
ordered. Other rows are evaluated by row. Int columns have bounds, so that most overflows are excluded by arithmetic on
two numbers instead of on all rows.

No error is made here. But an error of the scalar evaluator for an *input* (a field that the pod does not have, a metric
that half of the nodes lack) is passed on to the rows in which it is certain to be the result: an error of all rows is
not evaluated in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..values.values import EvaluationError
from .frame import Numbers

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_SAFE_PRODUCT: Final = float(2**62)
_SAFE_DOUBLE: Final = 2.0**63
_EXACT_DOUBLE: Final = 2**53

Values: TypeAlias = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_]


class NotColumnar(Exception):  # not an error: another strategy applies
    """The values are of kinds without arithmetic on columns."""


class Vector:
    """One value per row, of dtype bool, int64, float64 or object, and its exact rows (None: all).

    `low` and `high` bound all values of an int column, those of other rows included. `borrowed`: the array belongs to
    a frame, which may write to it after the decision. If there is an `error`, it is the result in the rows `failed`,
    none of which is exact.
    """

    __slots__ = ("borrowed", "error", "failed", "high", "low", "valid", "values")

    def __init__(self, values: Values, valid: Mask | None = None, low: int = _LOWEST, high: int = _HIGHEST) -> None:
        self.values = values
        self.valid = valid
        self.low = low
        self.high = high
        self.borrowed = False
        self.error: EvaluationError | None = None
        self.failed: Mask | None = None

    def failing(self, error: EvaluationError | None, rows: Mask | None) -> Vector:
        """Return this column with an error in some rows that are not exact."""
        vector = Vector(self.values, self.valid, self.low, self.high)
        vector.borrowed, vector.error, vector.failed = self.borrowed, error, rows
        return vector

    @staticmethod
    def of(numbers: Numbers) -> Vector:
        """Return a frame's numeric column."""
        vector = Vector(numbers.values, numbers.present, *(numbers.bounds or (_LOWEST, _HIGHEST)))
        vector.borrowed = True
        return vector

    @staticmethod
    def full(size: int, value: Any) -> Vector:
        """Return a column with one value in all rows."""
        if value.__class__ is bool or value.__class__ is float:
            return Vector(np.full(size, value))
        if value.__class__ is int and _LOWEST <= value <= _HIGHEST:
            return Vector(np.full(size, value, dtype=np.int64), None, value, value)
        raise NotColumnar


class ErrorColumn:
    """A column without values: an error in some rows (None: in all), the others unknown."""

    __slots__ = ("error", "rows")

    def __init__(self, error: EvaluationError, rows: Mask | None = None) -> None:
        self.error = error
        self.rows = rows


class Unknown:
    """A column without exact rows."""

    __slots__ = ()


UNKNOWN: Final = Unknown()
Operand: TypeAlias = "Vector | ErrorColumn | Unknown | bool | int | float"


def kind_of(operand: Operand) -> str:
    """Return numpy's letter of a kind: b, i or f."""
    if isinstance(operand, Vector):
        kind: str = operand.values.dtype.kind
        if kind == "O":
            raise NotColumnar
        return kind
    letter = _LETTERS.get(operand.__class__)
    if letter is None or (letter == "i" and not _LOWEST <= operand <= _HIGHEST):  # type: ignore[operator]
        raise NotColumnar
    return letter


_LETTERS: Final[dict[type, str]] = {bool: "b", int: "i", float: "f"}


def _values(operand: Operand) -> Any:
    return operand.values if isinstance(operand, Vector) else operand


def _valid(operand: Operand) -> Mask | None:
    return operand.valid if isinstance(operand, Vector) else None


def _bounds(operand: Operand) -> tuple[int, int]:
    if isinstance(operand, Vector):
        return operand.low, operand.high
    return operand, operand  # type: ignore[return-value]


def and_masks(first: Mask | None, second: Mask | None) -> Mask | None:
    """Return the rows of both; None: all."""
    if first is None:
        return second
    return first if second is None else first & second


def _doubles(operand: Operand) -> Any:
    values = _values(operand)
    return values.astype(np.float64) if isinstance(operand, Vector) else float(values)


def _numbers(a: Operand, b: Operand) -> str:
    """Return the one kind of both operands of an arithmetic operator."""
    kind = kind_of(a)
    if kind == "b" or kind_of(b) != kind:
        raise NotColumnar
    return kind


def add(a: Operand, b: Operand) -> Operand:
    """Return `a + b`."""
    kind = _numbers(a, b)
    x, y = _values(a), _values(b)
    valid = and_masks(_valid(a), _valid(b))
    if kind == "f":
        return Vector(x + y, valid)
    (low, high), (low2, high2) = _bounds(a), _bounds(b)
    if low + low2 >= _LOWEST and high + high2 <= _HIGHEST:
        return Vector(x + y, valid, low + low2, high + high2)
    total = x + y
    return Vector(total, and_masks(valid, ((x ^ total) & (y ^ total)) >= 0))


def subtract(a: Operand, b: Operand) -> Operand:
    """Return `a - b`."""
    kind = _numbers(a, b)
    x, y = _values(a), _values(b)
    valid = and_masks(_valid(a), _valid(b))
    if kind == "f":
        return Vector(x - y, valid)
    (low, high), (low2, high2) = _bounds(a), _bounds(b)
    if low - high2 >= _LOWEST and high - low2 <= _HIGHEST:
        return Vector(x - y, valid, low - high2, high - low2)
    difference = x - y
    return Vector(difference, and_masks(valid, ((x ^ y) & (x ^ difference)) >= 0))


def multiply(a: Operand, b: Operand) -> Operand:
    """Return `a * b`."""
    kind = _numbers(a, b)
    x, y = _values(a), _values(b)
    valid = and_masks(_valid(a), _valid(b))
    if kind == "f":
        return Vector(x * y, valid)
    (low, high), (low2, high2) = _bounds(a), _bounds(b)
    corners = (low * low2, low * high2, high * low2, high * high2)
    least, most = min(corners), max(corners)
    if least >= _LOWEST and most <= _HIGHEST:
        return Vector(x * y, valid, least, most)
    return Vector(x * y, and_masks(valid, np.abs(_doubles(a) * _doubles(b)) < _SAFE_PRODUCT))


def _divisor(a: Operand, b: Operand) -> tuple[Any, Any, Mask | None]:
    """Return dividend and divisor of two int operands, the divisor without zeros, and the exact rows."""
    x, y = _values(a), _values(b)
    valid = and_masks(_valid(a), _valid(b))
    low, high = _bounds(b)
    if low <= 0 <= high:
        if not isinstance(b, Vector):
            raise NotColumnar  # every row fails
        fine = y != 0
        valid = and_masks(valid, fine)
        y = np.where(fine, y, 1)
    if low <= -1 <= high and _bounds(a)[0] == _LOWEST:
        fine = (x != _LOWEST) | (y != -1)
        valid = and_masks(valid, fine)
        y = np.where(fine, y, 1)
    return x, y, valid


def divide(a: Operand, b: Operand) -> Operand:
    """Return `a / b`: ints truncate toward zero."""
    if _numbers(a, b) == "f":
        x, y = _values(a), _values(b)
        return Vector(np.divide(x, y), and_masks(_valid(a), _valid(b)))
    x, y, valid = _divisor(a, b)
    (low, high), (low2, high2) = _bounds(a), _bounds(b)
    if low >= 0 and low2 >= 0:
        return Vector(_quotient(x, y, high), valid, low // max(high2, 1), high // max(low2, 1))
    most = max(abs(low), abs(high))
    if most < _EXACT_DOUBLE:
        return Vector(_quotient_of_doubles(x, y), valid, -most, most)
    rest = np.fmod(x, y)
    return Vector((x - rest) // y, valid, max(-most, _LOWEST), min(most, _HIGHEST))


def _quotient_of_doubles(x: Any, y: Any) -> Values:
    # A dividend below 2^53 is an exact double, and its rounded quotient never reaches the next integer, whatever
    # the divisor: dividing doubles takes a third of the time of dividing ints.
    result: Values = np.divide(x, y).astype(np.int64)
    return result


def _quotient(x: Any, y: Any, high: int) -> Values:
    if high < _EXACT_DOUBLE and y.__class__ is np.ndarray:
        return _quotient_of_doubles(x, y)
    quotient: Values = np.floor_divide(x, y)
    return quotient


def modulo(a: Operand, b: Operand) -> Operand:
    """Return `a % b` of ints, with the sign of the dividend."""
    if _numbers(a, b) == "f":
        raise NotColumnar
    x, y, valid = _divisor(a, b)
    low, high = _bounds(a)
    return Vector(np.fmod(x, y), valid, min(low, 0), max(high, 0))


def negate(a: Operand) -> Operand:
    """Return `-a`."""
    kind = kind_of(a)
    if kind == "b":
        raise NotColumnar
    values, valid = _values(a), _valid(a)
    if kind == "f":
        return Vector(-values, valid)
    low, high = _bounds(a)
    if low == _LOWEST:
        valid = and_masks(valid, values != _LOWEST)
    return Vector(-values, valid, max(-high, _LOWEST), min(-low, _HIGHEST))


def _comparison(function: Callable[[Any, Any], Any], *, ordered: bool) -> Callable[[Operand, Operand], Operand]:
    def compare(a: Operand, b: Operand) -> Operand:
        first, second = kind_of(a), kind_of(b)
        valid = and_masks(_valid(a), _valid(b))
        if first == second != "f":
            return Vector(function(_values(a), _values(b)), valid)
        if "b" in (first, second):
            raise NotColumnar
        x, y = _doubles(a), _doubles(b)
        if ordered:
            nan = np.isnan(x) | np.isnan(y)
            if np.any(nan):
                valid = and_masks(valid, np.broadcast_to(~nan, np.broadcast(x, y).shape))
        return Vector(function(x, y), valid)

    return compare


def _extreme(function: Callable[[Any, Any], Any], *, greatest: bool) -> Callable[..., Operand]:
    def extreme(*operands: Operand) -> Operand:
        if len(operands) < 2:
            raise NotColumnar
        result = operands[0]
        for operand in operands[1:]:
            if _numbers(result, operand) == "f":
                x, y = _values(result), _values(operand)
                fine = ~(np.isnan(x) | np.isnan(y))
                valid = and_masks(and_masks(_valid(result), _valid(operand)), fine)
                result = Vector(function(x, y), valid)
                continue
            (low, high), (low2, high2) = _bounds(result), _bounds(operand)
            choose = max if greatest else min
            result = Vector(
                function(_values(result), _values(operand)), and_masks(_valid(result), _valid(operand)),
                choose(low, low2), choose(high, high2),
            )
        return result

    return extreme


def absolute(a: Operand) -> Operand:
    """Return `math.abs(a)`."""
    kind = kind_of(a)
    if kind == "b":
        raise NotColumnar
    if kind == "f":
        return Vector(np.abs(_values(a)), _valid(a))
    low, high = _bounds(a)
    valid = _valid(a)
    if low == _LOWEST:
        valid = and_masks(valid, _values(a) != _LOWEST)
    least = 0 if low <= 0 <= high else min(abs(low), abs(high))
    return Vector(np.abs(_values(a)), valid, least, min(max(abs(low), abs(high)), _HIGHEST))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Operand], Operand]:
    def rounded(a: Operand) -> Operand:
        if kind_of(a) != "f":
            raise NotColumnar
        return Vector(function(_values(a)), _valid(a))

    return rounded


def _round_half_away(values: Any) -> Any:
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1.0, values), whole)


def to_int(a: Operand) -> Operand:
    """Return `int(a)`: doubles truncate toward zero."""
    kind = kind_of(a)
    if kind == "b":
        raise NotColumnar
    if kind == "i":
        return a
    values = _values(a)
    fine = np.abs(values) < _SAFE_DOUBLE  # false for NaN
    return Vector(np.where(fine, values, 0.0).astype(np.int64), and_masks(_valid(a), fine))


def to_double(a: Operand) -> Operand:
    """Return `double(a)`."""
    kind = kind_of(a)
    if kind == "b":
        raise NotColumnar
    return a if kind == "f" else Vector(_doubles(a), _valid(a))


def within(a: Operand, numbers: Sequence[int]) -> Operand:
    """Return `a in [...]` for a list of constant ints."""
    if kind_of(a) != "i" or not isinstance(a, Vector):
        raise NotColumnar
    values = _values(a)
    found = np.zeros(len(values), dtype=np.bool_)
    for number in numbers:
        found |= values == number
    return Vector(found, _valid(a))


def alike(first: EvaluationError, second: EvaluationError) -> bool:
    """Return whether two errors are indistinguishable."""
    return first is second or (
        first.message == second.message and first.offset == second.offset and first.reason == second.reason
    )


def choose(condition: Vector, a: Operand, b: Operand) -> Operand:
    """Return `condition ? a : b`, with operands of both branches for all rows."""
    true, false = decided(condition)
    failures = [(condition.error, condition.failed)]
    for branch, taken in ((a, true), (b, false)):
        if isinstance(branch, ErrorColumn):
            failures.append((branch.error, and_masks(taken, branch.rows)))
        elif isinstance(branch, Vector) and branch.error is not None:
            failures.append((branch.error, and_masks(taken, branch.failed)))
    error, failed = _largest(failures)
    sides = ((a, true), (b, false))
    known = [(branch, taken) for branch, taken in sides if not isinstance(branch, ErrorColumn | Unknown)]
    if not known:
        return UNKNOWN if error is None else ErrorColumn(error, failed)
    if len(known) == 1:
        [(branch, taken)] = known
        kind = kind_of(branch)
        values = branch.values if isinstance(branch, Vector) else np.full(len(true), branch)
        valid = and_masks(taken, _valid(branch))
        bounds = _bounds(branch) if kind == "i" else (_LOWEST, _HIGHEST)
        return Vector(values, valid, *bounds).failing(error, failed)
    kind = kind_of(a)
    if kind != kind_of(b):
        raise NotColumnar
    values = np.where(condition.values, _values(a), _values(b))
    valid = condition.valid
    first, second = _valid(a), _valid(b)
    if first is not None or second is not None:
        branches = np.where(condition.values, True if first is None else first, True if second is None else second)
        valid = and_masks(valid, branches)
    if kind == "i":
        (low, high), (low2, high2) = _bounds(a), _bounds(b)
        return Vector(values, valid, min(low, low2), max(high, high2)).failing(error, failed)
    return Vector(values, valid).failing(error, failed)


def _largest(
    failures: Sequence[tuple[EvaluationError | None, Mask | None]],
) -> tuple[EvaluationError | None, Mask | None]:
    """Return the failure of the most rows, joined with equal ones; the others are dropped."""
    best: tuple[EvaluationError | None, Mask | None] = (None, None)
    most = -1
    for error, rows in failures:
        if error is not None and rows is not None:
            count = int(np.count_nonzero(rows))
            if count > most:
                best, most = (error, rows), count
    error, rows = best
    if error is not None:
        for other, more in failures:
            if other is not None and more is not None and more is not rows and alike(error, other):
                rows = more if rows is None else rows | more
    return error, rows


def decided(operand: Vector) -> tuple[Mask, Mask]:
    """Return the rows that are known to be true and those that are known to be false."""
    values = operand.values
    if values.dtype.kind != "b":
        raise NotColumnar
    if operand.valid is None:
        return values, ~values
    true = values & operand.valid
    return true, operand.valid & ~values


def invert(a: Operand) -> Operand:
    """Return `!a`."""
    if kind_of(a) != "b" or not isinstance(a, Vector):
        raise NotColumnar
    return Vector(~a.values, a.valid)


def vectorized(function: Callable[..., tuple[Any, Any]], kinds: str) -> Callable[..., Operand]:
    """Return the operation of a function of plain arrays (`environment.Overload.by_column`) on columns.

    `kinds` are numpy's letters of the parameters, and after them of the result.
    """
    parameters, result = kinds[:-1], kinds[-1]

    def compute(*operands: Operand) -> Operand:
        valid: Mask | None = None
        for operand, kind in zip(operands, parameters, strict=True):
            if kind_of(operand) != kind:
                raise NotColumnar
            valid = and_masks(valid, _valid(operand))
        size = next(len(operand.values) for operand in operands if isinstance(operand, Vector))
        try:
            values, sure = function(*map(_values, operands))
        except Exception as error:  # foreign code: the scalar function reports the error
            raise NotColumnar from error
        if values.__class__ is not np.ndarray or values.dtype.kind != result or values.shape != (size,):
            raise NotColumnar
        return Vector(values, and_masks(valid, sure))

    return compute


OPERATORS: Final[dict[str, Callable[..., Operand]]] = {
    "_+_": add, "_-_": subtract, "_*_": multiply, "_/_": divide, "_%_": modulo, "-_": negate, "!_": invert,
    "_==_": _comparison(np.equal, ordered=False), "_!=_": _comparison(np.not_equal, ordered=False),
    "_<_": _comparison(np.less, ordered=True), "_<=_": _comparison(np.less_equal, ordered=True),
    "_>_": _comparison(np.greater, ordered=True), "_>=_": _comparison(np.greater_equal, ordered=True),
    "math.greatest": _extreme(np.maximum, greatest=True), "math.least": _extreme(np.minimum, greatest=False),
    "math.abs": absolute, "math.ceil": _rounding(np.ceil), "math.floor": _rounding(np.floor),
    "math.trunc": _rounding(np.trunc), "math.round": _rounding(_round_half_away),
    "int": to_int, "double": to_double,
}
"""The vector implementations by function name. The functions have their standard meaning in every environment."""
