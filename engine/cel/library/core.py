"""The core of the language: operators, sizes, conversions, types.

The functions of cel-spec `doc/langdef.md`, "List of Standard Definitions". `&&`, `||`, `?:`, `has`, selection, optional
selection and the macros are no functions: checker and evaluators implement them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.traversal import comparison, membership, nothing
from ..values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    list_of,
    map_of,
    type_of,
    variable,
)
from ..values.values import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    Duration,
    EvaluationError,
    Timestamp,
    Uint,
    compare,
    equal,
    equal_or_raise,
    has_key,
    index,
    index_list,
    text_of_double,
    type_of_value,
)

A: Final = variable("A")
B: Final = variable("B")
_PER_CHARACTER: Final = 0.1
_SECOND: Final = 1_000_000_000


# --- arithmetic ------------------------------------------------------------------------------------------------------


def checked_int(number: int) -> int:
    """Return a result that fits into int64."""
    if INT64_MIN <= number <= INT64_MAX:
        return number
    raise EvaluationError("integer overflow")


def checked_uint(number: int) -> Uint:
    """Return a result that fits into uint64."""
    if 0 <= number <= UINT64_MAX:
        return Uint(number)
    raise EvaluationError("unsigned integer overflow")


def add_int(a: int, b: int) -> int:
    """Return `a + b` in int64."""
    return checked_int(a + b)


def subtract_int(a: int, b: int) -> int:
    """Return `a - b` in int64."""
    return checked_int(a - b)


def multiply_int(a: int, b: int) -> int:
    """Return `a * b` in int64."""
    return checked_int(a * b)


def divide_int(a: int, b: int) -> int:
    """Return `a / b` in int64, truncated toward zero."""
    if b == 0:
        raise EvaluationError("division by zero")
    quotient = abs(a) // abs(b)
    return checked_int(quotient if (a < 0) == (b < 0) else -quotient)


def modulo_int(a: int, b: int) -> int:
    """Return `a % b` in int64, with the sign of the dividend."""
    if b == 0:
        raise EvaluationError("modulus by zero")
    if a == INT64_MIN and b == -1:
        raise EvaluationError("integer overflow")
    rest = abs(a) % abs(b)
    return rest if a >= 0 else -rest


def divide_double(a: float, b: float) -> float:
    """Return `a / b` by IEEE 754: division by zero gives an infinity or NaN."""
    if b != 0.0:
        return a / b
    if a == 0.0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def multiply_double(a: float, b: float) -> float:
    """Return `a * b` by IEEE 754 (Python's float product never raises)."""
    return a * b


def _divide_uint(a: int, b: int) -> Uint:
    if b == 0:
        raise EvaluationError("division by zero")
    return Uint(int(a) // int(b))


def _modulo_uint(a: int, b: int) -> Uint:
    if b == 0:
        raise EvaluationError("modulus by zero")
    return Uint(int(a) % int(b))


_BOTH: Final = Cost(0, ((0, _PER_CHARACTER), (1, _PER_CHARACTER)))

_ADD: Final = (
    Overload("add_int64", (INT, INT), INT, add_int),
    Overload("add_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(a + b)),
    Overload("add_double", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a + b),
    Overload("add_string", (STRING, STRING), STRING, lambda a, b: a + b, cost=_BOTH),
    Overload("add_bytes", (BYTES, BYTES), BYTES, lambda a, b: a + b, cost=_BOTH),
    Overload("add_list", (list_of(A), list_of(A)), list_of(A), lambda a, b: a + b, walk=nothing),
    Overload("add_duration_duration", (DURATION, DURATION), DURATION, lambda a, b: Duration.of(a.ns + b.ns)),
    Overload(
        "add_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP,
        lambda a, b: Timestamp.of(a.ns + b.ns, a.offset_s),
    ),
    Overload(
        "add_duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP,
        lambda a, b: Timestamp.of(a.ns + b.ns, b.offset_s),
    ),
)
_SUBTRACT: Final = (
    Overload("subtract_int64", (INT, INT), INT, subtract_int),
    Overload("subtract_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(a - b)),
    Overload("subtract_double", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: a - b),
    Overload("subtract_duration_duration", (DURATION, DURATION), DURATION, lambda a, b: Duration.of(a.ns - b.ns)),
    Overload(
        "subtract_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP,
        lambda a, b: Timestamp.of(a.ns + Duration.of(-b.ns).ns, a.offset_s),  # the negation may overflow, as in cel-go
    ),
    Overload("subtract_timestamp_timestamp", (TIMESTAMP, TIMESTAMP), DURATION, lambda a, b: Duration.of(a.ns - b.ns)),
)
_MULTIPLY: Final = (
    Overload("multiply_int64", (INT, INT), INT, multiply_int),
    Overload("multiply_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(a * b)),
    Overload("multiply_double", (DOUBLE, DOUBLE), DOUBLE, multiply_double),
)
_DIVIDE: Final = (
    Overload("divide_int64", (INT, INT), INT, divide_int),
    Overload("divide_uint64", (UINT, UINT), UINT, _divide_uint),
    Overload("divide_double", (DOUBLE, DOUBLE), DOUBLE, divide_double),
)
_MODULO: Final = (
    Overload("modulo_int64", (INT, INT), INT, modulo_int),
    Overload("modulo_uint64", (UINT, UINT), UINT, _modulo_uint),
)
_NEGATE: Final = (
    Overload("negate_int64", (INT,), INT, lambda a: checked_int(-a)),
    Overload("negate_double", (DOUBLE,), DOUBLE, lambda a: -a),
    Overload("negate_duration", (DURATION,), DURATION, lambda a: Duration.of(-a.ns), dynamic=True),
)


# --- order and equality ----------------------------------------------------------------------------------------------

_SHORTER: Final = Cost(0, ((0, _PER_CHARACTER), (1, _PER_CHARACTER)))
_KINDS: Final = {
    BOOL: "bool", INT: "int64", UINT: "uint64", DOUBLE: "double", STRING: "string", BYTES: "bytes",
    TIMESTAMP: "timestamp", DURATION: "duration",
}


def _relation(name: str, holds: Callable[[int], bool]) -> tuple[Overload, ...]:
    def evaluate(left: object, right: object) -> bool:
        return holds(compare(left, right))

    overloads = []
    for kind, word in _KINDS.items():
        cost = _SHORTER if kind in {STRING, BYTES} else Cost()
        overloads.append(Overload(f"{name}_{word}", (kind, kind), BOOL, evaluate, cost=cost))
    numbers = (INT, UINT, DOUBLE)
    for left in numbers:
        overloads += [
            Overload(f"{name}_{_KINDS[left]}_{_KINDS[right]}", (left, right), BOOL, evaluate)
            for right in numbers if right is not left
        ]
    return tuple(overloads)


def _in_list(value: object, items: list[object]) -> bool:
    return any(equal(value, each) for each in items)


def _in_map(key: object, mapping: Mapping[object, object]) -> bool:
    return has_key(mapping, key)


def _not_strictly_false(value: object) -> bool:
    return value is not False


OPERATORS: Final = (
    Function("_+_", _ADD, "The sum, or the concatenation of strings or lists.", "1 + 2 == 3 && 'a' + 'b' == 'ab'"),
    Function("_-_", _SUBTRACT, "Difference.", "3 - 2 == 1"),
    Function("_*_", _MULTIPLY, "Product.", "3 * 2 == 6"),
    Function("_/_", _DIVIDE, "Quotient; of integers truncated toward zero.", "-7 / 2 == -3"),
    Function("_%_", _MODULO, "Remainder, with the sign of the dividend.", "-7 % 2 == -1"),
    Function("-_", _NEGATE, "Negation.", "-(1 + 1) == -2"),
    Function("!_", (Overload("logical_not", (BOOL,), BOOL, lambda a: not a),), "Not.", "!false"),
    Function(
        "_==_", (Overload("equals", (A, A), BOOL, equal_or_raise, walk=comparison),), "Equal.", "[1, 2] == [1, 2]",
    ),
    Function(
        "_!=_", (Overload("not_equals", (A, A), BOOL, lambda a, b: not equal(a, b), walk=comparison),), "Not equal.",
        "'a' != 'b'",
    ),
    Function("_<_", _relation("less", lambda order: order < 0), "Less.", "1 < 2"),
    Function("_<=_", _relation("less_equals", lambda order: order <= 0), "Less or equal.", "1.5 <= 2.0"),
    Function("_>_", _relation("greater", lambda order: order > 0), "Greater.", "'b' > 'a'"),
    Function("_>=_", _relation("greater_equals", lambda order: order >= 0), "Greater or equal.", "2 >= 2"),
    Function(
        "@in",
        (
            Overload("in_list", (A, list_of(A)), BOOL, _in_list, cost=Cost(0, ((1, 1.0),)), walk=membership),
            Overload("in_map", (A, map_of(A, B)), BOOL, _in_map, walk=nothing),
        ),
        "True if a list contains an equal element, or a map the key.", "2 in [1, 2] && 'a' in {'a': 1}",
    ),
    Function(
        "_[_]",
        (
            Overload("index_list", (list_of(A), INT), A, index_list, walk=nothing),
            Overload("index_map", (map_of(A, B), A), B, index, walk=nothing),
        ),
        "The element at an index from 0, or the entry under a key.", "['a', 'b'][1] == 'b' && {'a': 1}['a'] == 1",
    ),
    Function(
        "@not_strictly_false", (Overload("not_strictly_false", (BOOL,), BOOL, _not_strictly_false, cost=Cost(0)),),
    ),
)


# --- conversions -----------------------------------------------------------------------------------------------------

_INT_TEXT: Final = re.compile(r"[+-]?[0-9]+")
_UINT_TEXT: Final = re.compile(r"[0-9]+")
_DOUBLE_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX_DOUBLE_TEXT: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_SPECIAL_DOUBLE_TEXT: Final = re.compile(r"[+-]?(?:inf|infinity)|nan", re.IGNORECASE | re.ASCII)
_BOOL_TEXTS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_LONGEST_BOOL: Final = max(map(len, _BOOL_TEXTS))
_LONGEST_NUMBER: Final = 1_000


def _conversion_error(text: object, to: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{type_of_value(text).name}' to '{to}'")


def _int_of_string(text: str) -> int:
    if len(text) > _LONGEST_NUMBER or not _INT_TEXT.fullmatch(text) or not INT64_MIN <= int(text) <= INT64_MAX:
        raise _conversion_error(text, "int")
    return int(text)


def _int_of_double(number: float) -> int:
    # -2^63 itself is refused too, as cel-go does.
    if not -(2.0**63) < number < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(number)


def _uint_of_string(text: str) -> Uint:
    if len(text) > _LONGEST_NUMBER or not _UINT_TEXT.fullmatch(text) or int(text) > UINT64_MAX:
        raise _conversion_error(text, "uint")
    return Uint(text)


def _uint_of_double(number: float) -> Uint:
    if not 0.0 <= number < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return Uint(number)


def double_of_string(text: str) -> float:
    """Return the double that Go's ParseFloat reads (without its underscores)."""
    if len(text) <= _LONGEST_NUMBER:
        if _DOUBLE_TEXT.fullmatch(text):
            number = float(text)
            if not math.isinf(number):
                return number
        elif _SPECIAL_DOUBLE_TEXT.fullmatch(text):
            return float(text)
        elif _HEX_DOUBLE_TEXT.fullmatch(text):
            try:
                return float.fromhex(text)
            except OverflowError:
                pass
    raise _conversion_error(text, "double")


def _string_of_bytes(octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def _bytes_of_string(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _conversion_error(text, "bytes") from None


def _bool_of_string(text: str) -> bool:
    value = _BOOL_TEXTS.get(text) if len(text) <= _LONGEST_BOOL else None
    if value is None:
        raise _conversion_error(text, "bool")
    return value


def _same(value: object) -> object:
    return value


def _steps_of_duration(text: str) -> int:
    """Return the steps of reading a duration: each part of it, of two characters or more, takes one."""
    return len(text) // 2


_WHOLE_TEXT: Final = Cost(0, ((0, _PER_CHARACTER),))

CONVERSIONS: Final = (
    Function(
        "int",
        (
            Overload("int64_to_int64", (INT,), INT, _same),
            Overload("uint64_to_int64", (UINT,), INT, lambda a: checked_int(int(a))),
            Overload("double_to_int64", (DOUBLE,), INT, _int_of_double),
            Overload("string_to_int64", (STRING,), INT, _int_of_string, walk=nothing),
            Overload("timestamp_to_int64", (TIMESTAMP,), INT, lambda a: a.ns // _SECOND),
            Overload("duration_to_int64", (DURATION,), INT, lambda a: a.ns),
        ),
        "An int of a number (truncated), a string, a timestamp (seconds) or a duration (nanoseconds).",
        "int('42') == 42 && int(-1.9) == -1",
    ),
    Function(
        "uint",
        (
            Overload("uint64_to_uint64", (UINT,), UINT, _same),
            Overload("int64_to_uint64", (INT,), UINT, checked_uint),
            Overload("double_to_uint64", (DOUBLE,), UINT, _uint_of_double),
            Overload("string_to_uint64", (STRING,), UINT, _uint_of_string, walk=nothing),
        ),
        "An unsigned int of a number or a string.", "uint(3) == 3u",
    ),
    Function(
        "double",
        (
            Overload("double_to_double", (DOUBLE,), DOUBLE, _same),
            Overload("int64_to_double", (INT,), DOUBLE, float),
            Overload("uint64_to_double", (UINT,), DOUBLE, float),
            Overload("string_to_double", (STRING,), DOUBLE, double_of_string, walk=nothing),
        ),
        "A double of a number or a string.", "double('1.5') == 1.5",
    ),
    Function(
        "string",
        (
            Overload("string_to_string", (STRING,), STRING, _same, walk=nothing),
            Overload("bool_to_string", (BOOL,), STRING, lambda a: "true" if a else "false"),
            Overload("int64_to_string", (INT,), STRING, str),
            Overload("uint64_to_string", (UINT,), STRING, lambda a: str(int(a))),
            Overload("double_to_string", (DOUBLE,), STRING, text_of_double),
            Overload("bytes_to_string", (BYTES,), STRING, _string_of_bytes, cost=_WHOLE_TEXT),
            Overload("timestamp_to_string", (TIMESTAMP,), STRING, str),
            Overload("duration_to_string", (DURATION,), STRING, Duration.in_seconds),
        ),
        "A value as a string.", "string(1.5) == '1.5' && string(duration('90m')) == '5400s'",
    ),
    Function(
        "bytes",
        (
            Overload("bytes_to_bytes", (BYTES,), BYTES, _same, walk=nothing),
            Overload("string_to_bytes", (STRING,), BYTES, _bytes_of_string, cost=_WHOLE_TEXT),
        ),
        "A string as UTF-8.", r"bytes('a') == b'a'",
    ),
    Function(
        "bool",
        (
            Overload("bool_to_bool", (BOOL,), BOOL, _same),
            Overload("string_to_bool", (STRING,), BOOL, _bool_of_string, walk=nothing),
        ),
        "A bool of a string (`true`, `T`, `1`, ...).", "bool('true')",
    ),
    Function(
        "timestamp",
        (
            Overload("timestamp_to_timestamp", (TIMESTAMP,), TIMESTAMP, _same),
            Overload("string_to_timestamp", (STRING,), TIMESTAMP, Timestamp.parse),
            Overload("int64_to_timestamp", (INT,), TIMESTAMP, lambda a: Timestamp.of(a * _SECOND)),
        ),
        "The instant of an RFC 3339 string or of seconds since 1970.",
        "timestamp('1970-01-01T00:01:00Z') == timestamp(60)",
    ),
    Function(
        "duration",
        (
            Overload("duration_to_duration", (DURATION,), DURATION, _same),
            Overload("string_to_duration", (STRING,), DURATION, Duration.parse, walk=_steps_of_duration),
        ),
        "The span of a string such as `1h30m`.",
        "duration('1h30m') == duration('90m')",
    ),
    Function(
        "type", (Overload("type", (A,), type_of(A), type_of_value, walk=nothing),), "The type of a value.",
        "type(1) == int",
    ),
    Function(
        "dyn", (Overload("to_dyn", (A,), DYN, _same, walk=nothing),), "The value, its type hidden.", "dyn(1) == 1.0",
    ),
)


# --- strings ---------------------------------------------------------------------------------------------------------

SIZE: Final = Function(
    "size",
    tuple(
        Overload(f"{prefix}size_{word}", (kind,), INT, len, member=bool(prefix), walk=nothing)
        for prefix in ("", "member_")
        for kind, word in ((STRING, "string"), (BYTES, "bytes"), (list_of(A), "list"), (map_of(A, B), "map"))
    ),
    "The number of code points, octets, elements or entries.", "size('abc') == 3 && [1, 2].size() == 2",
)

TEXTS: Final = (
    Function(
        "contains",
        (
            Overload(
                "contains_string", (STRING, STRING), BOOL, lambda a, b: b in a, member=True,
                cost=Cost(0, ((0, _PER_CHARACTER), (1, _PER_CHARACTER)), product=True),
            ),
        ),
        "True if a string contains another.", "'kube-system'.contains('sys')",
    ),
    Function(
        "startsWith",
        (
            Overload(
                "starts_with_string", (STRING, STRING), BOOL, lambda a, b: a.startswith(b), member=True,
                cost=Cost(0, ((0, _PER_CHARACTER),)),
            ),
        ),
        "True if a string begins with another.", "'kube-system'.startsWith('kube-')",
    ),
    Function(
        "endsWith",
        (
            Overload(
                "ends_with_string", (STRING, STRING), BOOL, lambda a, b: a.endswith(b), member=True,
                cost=Cost(0, ((0, _PER_CHARACTER),)),
            ),
        ),
        "True if a string ends with another.", "'kube-system'.endsWith('system')",
    ),
)

CORE: Final = (*OPERATORS, *CONVERSIONS, SIZE, *TEXTS)
