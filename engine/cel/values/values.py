"""Run-time values of expressions, their equality and order.

Values are plain Python values as JSON gives them, unconverted: None, bool, int, float, str, list, dict; and bytes.
The kinds that JSON does not have are small classes: `Uint`, `Timestamp`, `Duration`, `Optional`. A type as a
value is a `types.Type`. Values of libraries (quantities, IP addresses) are instances of classes with a class attribute
`cel_type`; they have neither `get` nor `__getitem__`, by which generated code reads fields.

A dict's keys are str, int, `Uint`, `BoolKey` and `DoubleKey` (Python finds a `True` and a `1.0` where it looks for a
`1`, so those are wrapped). Keys of JSON objects are str and need no wrapping.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import ClassVar, Final
from zoneinfo import ZoneInfo

from .types import BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT, Type

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
_SECOND: Final = 1_000_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY: Final = 86_400

LIST: Final = Type("list")
MAP: Final = Type("map")
TYPE: Final = Type("type")
OPTIONAL: Final = Type("optional_type")


COST_LIMIT: Final = "CostLimit"
"""Reason of the error of an evaluation, a document or a decision beyond its cost limit."""


class EvaluationError(Exception):
    """An error of an evaluation, in place of a value.

    `offset` is the position of the failing node in the expression's text, or -1 if it is unknown.
    `reason` is a CamelCase word for callers that distinguish errors (`NoMetric`, `CostLimit`), else empty.
    `final` errors are not absorbed by `||`, `&&` (a spent budget).
    """

    def __init__(self, message: str, *, offset: int = -1, reason: str = "", final: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.reason = reason
        self.final = final

    def at(self, offset: int) -> EvaluationError:
        """Return the same error at a place, unless it has one already; a new object, as errors may be shared."""
        place = self.offset if self.offset >= 0 else offset
        return self.__class__(self.message, offset=place, reason=self.reason, final=self.final)


def no_overload() -> EvaluationError:
    """Return the error of an operation that is not defined for the kinds of its operands."""
    return EvaluationError("no such overload")


class Uint(int):
    """An unsigned 64-bit integer. Equal to an int of the same value, as in CEL."""

    __slots__ = ()

    cel_type: ClassVar[Type] = UINT


@dataclass(frozen=True, slots=True)
class BoolKey:
    """A bool as the key of a dict."""

    value: bool

    def __repr__(self) -> str:
        return "true" if self.value else "false"


@dataclass(frozen=True, slots=True, eq=False)
class DoubleKey:
    """A double as the key of a dict: another key than the int of the same value, as in cel-go."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoubleKey) and self.value == other.value  # so that NaN is no key that is found

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return text_of_double(self.value)


TRUE_KEY: Final = BoolKey(value=True)
FALSE_KEY: Final = BoolKey(value=False)


@dataclass(frozen=True, slots=True, eq=False)
class Timestamp:
    """An instant: nanoseconds since 1970-01-01T00:00:00Z, between the years 1 and 9999.

    `offset_s` is the distance from UTC that it was written with: accessors ignore it, strings keep it.
    """

    cel_type: ClassVar[Type] = TIMESTAMP

    ns: int
    offset_s: int = 0

    def __eq__(self, other: object) -> bool:
        return self.ns == other.ns if isinstance(other, Timestamp) else NotImplemented

    def __hash__(self) -> int:
        return hash(("timestamp", self.ns))

    @staticmethod
    def of(ns: int, offset_s: int = 0) -> Timestamp:
        """Return the instant; raise if it is outside the years 1 to 9999."""
        if not _FIRST_NS <= ns <= _LAST_NS:
            raise EvaluationError("timestamp overflow")
        return Timestamp(ns, offset_s)

    @staticmethod
    def parse(text: str) -> Timestamp:
        """Return the instant of an RFC 3339 string (any number of fraction digits, cut after nine)."""
        return _known_timestamp(text) if len(text) <= _LONGEST_CACHED else _parse_timestamp(text)

    def __str__(self) -> str:
        seconds, ns = divmod(self.ns + self.offset_s * _SECOND, _SECOND)
        days, second = divmod(seconds, _DAY)
        try:
            day = date.fromordinal(days + _EPOCH_DAY).isoformat()
        except (ValueError, OverflowError):  # the local date of the first or last hours may be of no year 1 to 9999
            return str(Timestamp(self.ns))
        fraction = f".{ns:09d}".rstrip("0") if ns else ""
        zone = "Z"
        if self.offset_s:
            hours, minutes = divmod(abs(self.offset_s) // 60, 60)
            zone = f"{'-' if self.offset_s < 0 else '+'}{hours:02d}:{minutes:02d}"
        return f"{day}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{fraction}{zone}"

    def in_zone(self, zone: str) -> tuple[datetime, int]:
        """Return the wall clock in a zone: an IANA name, empty for UTC, or `[+-]hh:mm`. Microseconds are cut.

        The second value is a number of years to add, a multiple of 400, after which the calendar repeats: the local
        year of an instant may be one that `datetime` does not have.
        """
        shift = _fixed_offset(zone)
        microseconds, years = self.ns // 1000, 0
        if not _LOCAL_MIN < microseconds < _LOCAL_MAX:
            years = 400 if microseconds > 0 else -400
            microseconds -= years // 400 * _ERA
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        return (moment + timedelta(seconds=shift) if shift is not None else moment.astimezone(_zone(zone))), years


@dataclass(frozen=True, slots=True, eq=False)
class Duration:
    """A signed span of time in nanoseconds, within 64 bits."""

    cel_type: ClassVar[Type] = DURATION

    ns: int

    def __eq__(self, other: object) -> bool:
        return self.ns == other.ns if isinstance(other, Duration) else NotImplemented

    def __hash__(self) -> int:
        return hash(("duration", self.ns))

    @staticmethod
    def of(ns: int) -> Duration:
        """Return the span; raise if it does not fit into 64 bits (about 292 years)."""
        if not INT64_MIN <= ns <= INT64_MAX:
            raise EvaluationError("integer overflow")
        return Duration(ns)

    @staticmethod
    def parse(text: str) -> Duration:
        """Return the span of a Go duration string (`1h30m`, `-1.5s`, `0`)."""
        return _known_duration(text) if len(text) <= _LONGEST_CACHED else _parse_duration(text)

    def in_seconds(self) -> str:
        """Return the span as cel-go prints it: a double of seconds, whose last digits are rounded in long spans."""
        seconds, ns = divmod(abs(self.ns), _SECOND)
        rounded = format(Decimal(repr(seconds + ns / 1e9)), "f").removesuffix(".0")
        return f"{'-' if self.ns < 0 else ''}{rounded}s"

    def __str__(self) -> str:
        seconds, ns = divmod(abs(self.ns), _SECOND)
        fraction = f".{ns:09d}".rstrip("0") if ns else ""
        return f"{'-' if self.ns < 0 else ''}{seconds}{fraction}s"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Optional:
    """An optional value; the absent one is `NONE`."""

    cel_type: ClassVar[Type] = OPTIONAL

    value: object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optional):
            return NotImplemented
        if self is NONE or other is NONE:
            return self is other
        return equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(("optional", self is NONE))

    def __repr__(self) -> str:
        return text_of(self)

    def get(self) -> object:
        """Return the value, or raise if there is none."""
        if self is NONE:
            raise EvaluationError("optional.none() dereference")
        return self.value


NONE: Final = Optional(None)


# --- kinds -----------------------------------------------------------------------------------------------------------

_TYPES: Final[dict[type, Type]] = {
    type(None): NULL, bool: BOOL, int: INT, float: DOUBLE, str: STRING, bytes: BYTES, list: LIST, dict: MAP, Type: TYPE,
}
_NUMBERS: Final = frozenset({int, Uint, float})


def type_of_value(value: object) -> Type:
    """Return the type of a value, without parameters (`list`, not `list(int)`)."""
    found = _TYPES.get(value.__class__)
    if found is not None:
        return found
    declared = getattr(value.__class__, "cel_type", None)
    if isinstance(declared, Type):
        return declared
    if isinstance(value, Mapping):
        return MAP
    raise EvaluationError(f"a value of no known kind: {value.__class__.__name__}")


def is_map(value: object) -> bool:
    """Return whether a value is a map (a dict, or another mapping of the caller)."""
    return type(value) is dict or isinstance(value, Mapping)


def key_of(value: object, *, doubles: bool = False) -> object:
    """Return a value as a dict's key; raise for kinds that cannot be one. `doubles`: whether a double can."""
    kind = value.__class__
    if kind is str or kind is int or kind is Uint:
        return value
    if kind is bool:
        return TRUE_KEY if value else FALSE_KEY
    if doubles and kind is float:
        return DoubleKey(value)  # type: ignore[arg-type]
    raise EvaluationError(f"unsupported key type: {type_of_value(value)}")


def key_value(key: object) -> object:
    """Return the value of a dict's key."""
    return key.value if type(key) is BoolKey or type(key) is DoubleKey else key


_MISSING: Final = object()


def find(mapping: Mapping[object, object], key: object, default: object) -> object:
    """Return the entry of a map under a value, or the default. Numbers of all kinds are equal keys."""
    kind = key.__class__
    if kind is bool:
        key = TRUE_KEY if key else FALSE_KEY
    elif kind is float:
        found = mapping.get(DoubleKey(key), default)  # type: ignore[arg-type]
        if found is not default or not key.is_integer():  # type: ignore[attr-defined]
            return found
        key = int(key)  # type: ignore[call-overload]
    elif kind is not str and kind is not int and kind is not Uint:
        return default
    return mapping.get(key, default)


def has_key(mapping: Mapping[object, object], key: object) -> bool:
    """Return whether a map has an entry under a value."""
    return find(mapping, key, _MISSING) is not _MISSING


def index(container: object, key: object) -> object:
    """Return `container[key]` for values of any kind."""
    if type(container) is list:
        return index_list(container, key)
    if is_map(container):
        value = find(container, key, _MISSING)  # type: ignore[arg-type]
        if value is _MISSING:
            raise EvaluationError(f"no such key: {text_of(key)}")
        return value
    raise EvaluationError(f"no such key: {text_of(key)}")


def index_list(items: list[object], key: object) -> object:
    """Return an element; a number of any kind may be the index if it is whole and in range."""
    number = place_in_list(key)
    if not 0 <= number < len(items):
        raise EvaluationError(f"index out of bounds: {number}")
    return items[number]


def place_in_list(key: object) -> int:
    """Return an index of a list as an int; raises `EvaluationError` for a key that can be none."""
    if key.__class__ not in _NUMBERS:
        raise EvaluationError(f"unsupported index type '{type_of_value(key)}' in list")
    number = whole(key)
    if number is None or not INT64_MIN <= number <= INT64_MAX or (number == INT64_MIN and type(key) is float):
        # Go converts no double to the least int.
        raise EvaluationError(f"unsupported index value {text_of(key)} in list")
    return number


def whole(number: object) -> int | None:
    """Return a number of any kind as an int if it is whole."""
    if type(number) is float:
        return int(number) if number.is_integer() else None
    return int(number)  # type: ignore[call-overload,no-any-return]


# --- equality and order ----------------------------------------------------------------------------------------------


_OF_THE_LANGUAGE: Final = frozenset({Uint, Timestamp, Duration, Optional})


def equal_or_raise(left: object, right: object) -> bool:
    """Return the result of `==`: `equal`, but a library's value (a quantity, an address) has no `==` with other kinds.

    As in Kubernetes only if it is the left operand itself, and the right one is not null, or if the left operand is an
    optional that holds it, and the right one holds anything; not if it is a part of a list or map.
    """
    if left.__class__ is not right.__class__ and right is not None and is_opaque(left):
        raise no_overload()
    if left.__class__ is Optional and right.__class__ is Optional and _differ_in_kind(left, right):
        raise no_overload()
    return equal(left, right)


def _differ_in_kind(left: object, right: object) -> bool:
    """Return whether the left one of two optionals holds a library's value, and the right one another kind."""
    while isinstance(left, Optional) and isinstance(right, Optional):
        if left is NONE or right is NONE:
            return False
        left, right = left.value, right.value
    return left.__class__ is not right.__class__ and is_opaque(left)


def is_opaque(value: object) -> bool:
    """Return whether a value is of a kind that a library defines."""
    return hasattr(value.__class__, "cel_type") and value.__class__ not in _OF_THE_LANGUAGE


def _may_be_equal(left: object, right: object) -> bool:
    """Return whether two parts of lists or maps are equal; in Kubernetes a pair without an overload of `==` is."""
    kind = left.__class__
    if kind is right.__class__ and (kind is dict or kind is list):
        return equal_maps(left, right) if kind is dict else equal_lists(left, right)  # type: ignore[arg-type]
    if left.__class__ is not right.__class__ and left is not None and right is not None and is_opaque(left):
        return True
    if left.__class__ is Optional and right.__class__ is Optional and _differ_in_kind(left, right):
        return True
    return equal(left, right)


def equal(left: object, right: object) -> bool:
    """Return whether two values are equal: numbers of any kinds by value, other values only of one kind.

    cel-spec `doc/langdef.md`, "Equality".
    """
    kind, other = left.__class__, right.__class__
    if kind in _NUMBERS:
        if other not in _NUMBERS:
            return False
        if kind is float or other is float:
            return float(left) == float(right)  # type: ignore[arg-type]
        return left == right
    if kind is str or kind is bool or kind is bytes:
        return kind is other and left == right
    if left is None or right is None:
        return left is right
    if kind is list:
        return other is list and equal_lists(left, right)  # type: ignore[arg-type]
    if is_map(left):
        return is_map(right) and equal_maps(left, right)  # type: ignore[arg-type]
    if kind is Type:
        return other is Type and left.name == right.name  # type: ignore[attr-defined]
    return kind is other and bool(left == right)


_PLAINLY_EQUAL: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})
"""Kinds of which two values are equal where Python says so."""


def equal_lists(left: list[object], right: list[object]) -> bool:
    """Return whether two lists are of one length and pairwise equal."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if a.__class__ in _PLAINLY_EQUAL and a.__class__ is b.__class__:
            if a != b:
                return False
        elif not _may_be_equal(a, b):
            return False
    return True


def equal_maps(left: Mapping[object, object], right: Mapping[object, object]) -> bool:
    """Return whether two maps have the same keys with equal values; order does not matter."""
    if len(left) != len(right):
        return False
    for key, value in left.items():
        other = right.get(key, _MISSING)
        if isinstance(key, DoubleKey) and key != DoubleKey(key.value):
            return False  # NaN, which a dict finds by its identity
        if value.__class__ in _PLAINLY_EQUAL and value.__class__ is other.__class__:
            if value != other:
                return False
        elif other is _MISSING or not _may_be_equal(value, other):
            return False
    return True


_ORDERED: Final = frozenset({bool, str, bytes})


def compare(left: object, right: object) -> int:
    """Return -1, 0 or 1; raise for kinds that have no order and for NaN (cel-spec `doc/langdef.md`, "Ordering")."""
    kind, other = left.__class__, right.__class__
    if kind in _NUMBERS and other in _NUMBERS:
        a, b = left, right
        if kind is float or other is float:
            # An int is rounded to double first, as cel-go does; Python would compare exactly.
            a, b = float(left), float(right)  # type: ignore[arg-type]
            if a != a or b != b:  # noqa: PLR0124 - NaN
                raise EvaluationError("NaN values cannot be ordered")
        return (a > b) - (a < b)  # type: ignore[operator,no-any-return]
    if kind is not other:
        raise no_overload()
    if kind in _ORDERED:
        return (left > right) - (left < right)  # type: ignore[operator,no-any-return]
    if kind is Timestamp or kind is Duration:
        return (left.ns > right.ns) - (left.ns < right.ns)  # type: ignore[attr-defined,no-any-return]
    raise no_overload()


# --- texts -----------------------------------------------------------------------------------------------------------


def text_of_double(number: float) -> str:
    """Return a double as `string()` writes it: the shortest digits, an exponent if it is < -4 or >= 6."""
    if number != number:  # noqa: PLR0124 - NaN
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    mantissa, _, exponent_text = f"{abs(number)!r}".partition("e")
    whole_part, _, fraction = mantissa.partition(".")
    digits = (whole_part + fraction).lstrip("0")
    if not digits:
        return f"{sign}0"
    # The value is 0.DIGITS x 10^point.
    leading = len(whole_part + fraction) - len(digits)
    point = len(whole_part) - leading + int(exponent_text or 0)
    digits = digits.rstrip("0")
    exponent = point - 1
    if exponent < -4 or exponent >= 6:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


_SHOWN: Final = 200
"""Most characters of a value in a message; about as many of its parts are read."""


def text_of(value: object) -> str:
    """Return a short text of a value for messages; `...` replaces parts that do not fit."""
    pieces: list[str] = []
    left = _SHOWN
    for piece in _pieces(value):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            return f"{''.join(pieces)[:_SHOWN]}..."
    return "".join(pieces)


def _pieces(value: object) -> Iterator[str]:
    kind = value.__class__
    if kind is str:
        yield value if len(value) <= _SHOWN else value[: _SHOWN + 1]  # type: ignore[arg-type,index,misc]
    elif kind is bool:
        yield "true" if value else "false"
    elif kind is float:
        yield text_of_double(value)  # type: ignore[arg-type]
    elif value is None:
        yield "null"
    elif kind is Type:
        yield type_name(value)  # type: ignore[arg-type]
    elif kind is list:
        yield "["
        for number, each in enumerate(value):  # type: ignore[arg-type,var-annotated]
            yield ", " if number else ""
            yield from _pieces(each)
        yield "]"
    elif is_map(value):
        yield "{"
        for number, (key, each) in enumerate(value.items()):  # type: ignore[attr-defined]
            yield ", " if number else ""
            yield from _pieces(key_value(key))
            yield ": "
            yield from _pieces(each)
        yield "}"
    elif kind is Optional:
        yield "optional.none()" if value is NONE else "optional.of("
        if value is not NONE:
            yield from _pieces(value.value)  # type: ignore[attr-defined]
            yield ")"
    else:
        yield str(value)


def type_name(of: Type) -> str:
    """Return a type's name as CEL writes it (`null_type`)."""
    return "null_type" if of == NULL else of.name


# --- time ------------------------------------------------------------------------------------------------------------

_FIRST_NS: Final = (date.min.toordinal() - _EPOCH_DAY) * _DAY * _SECOND
_LAST_NS: Final = (date.max.toordinal() - _EPOCH_DAY + 1) * _DAY * _SECOND - 1

_ERA: Final = 146_097 * _DAY * 1_000_000
_LOCAL_MIN, _LOCAL_MAX = _FIRST_NS // 1000 + _ERA // 2, _LAST_NS // 1000 - _ERA // 2

_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))",
)
_DURATION_PART: Final = re.compile(r"([0-9]*+)(?:\.([0-9]*+))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_UNITS: Final = {
    "ns": 1, "us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000, "ms": 1_000_000, "s": _SECOND, "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_FIXED_OFFSET: Final = re.compile(r"([+-]?[0-9]{1,6}):([+-]?[0-9]{1,6})")


def _parse_timestamp(text: str) -> Timestamp:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise EvaluationError(f"`{text[:64]}` is not a timestamp: write it as 2006-01-02T15:04:05Z")
    year, month, day, hour, minute, second = (int(each) for each in match.groups()[:6])
    offset_s = 0
    if match[8] is None:
        hours, minutes = int(match[10]), int(match[11])
        if hours > 24 or minutes > 60:  # Go permits the limits themselves
            raise EvaluationError(f"`{text[:64]}` is not a timestamp: its offset is out of range")
        offset_s = (hours * 60 + minutes) * 60 * (-1 if match[9] == "-" else 1)
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        days = None
    if days is None or hour > 23 or minute > 59 or second > 59:
        raise EvaluationError(f"`{text[:64]}` is not a timestamp: no such date or time")
    ns = int(f"{match[7] or '0':0<9.9}")
    seconds = days * _DAY + hour * 3600 + minute * 60 + second - offset_s
    return Timestamp.of(seconds * _SECOND + ns, offset_s)


def _parse_duration(text: str) -> Duration:
    rest = text[1:] if text[:1] in {"-", "+"} else text
    if rest == "0":
        return Duration(0)
    total, position = 0, 0
    while position < len(rest):
        part = _DURATION_PART.match(rest, position)
        if part is None or not (part[1] or part[2]) or len(part[1]) > 20:
            break
        unit = _UNITS[part[3]]
        fraction = (part[2] or "")[:20]
        total += int(part[1] or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        position = part.end()
    if not rest or position < len(rest):
        raise EvaluationError(f"`{text[:64]}` is not a duration: write it as 1h30m, 1.5s or 250ms (a day is 24h)")
    try:
        return Duration.of(-total if text[:1] == "-" else total)
    except EvaluationError:
        raise EvaluationError(
            f"`{text[:64]}` is too long for a duration: at most 292 years, written as 1h30m, 1.5s or 250ms") from None


_LONGEST_CACHED: Final = 64
"""Characters of the longest string whose timestamp or duration is cached: strings of any length may be one."""
_known_timestamp: Final = lru_cache(maxsize=4096)(_parse_timestamp)
_known_duration: Final = lru_cache(maxsize=4096)(_parse_duration)


def _fixed_offset(zone: str) -> int | None:
    """Return the seconds east of UTC of a numeric zone, None for a name."""
    # Go's "Local" depends on the host; here it is UTC, as on control planes.
    if zone in {"", "UTC", "Local"}:
        return 0
    match = _FIXED_OFFSET.fullmatch(zone)
    if match is None:
        return None
    hours, minutes = int(match[1]), int(match[2])  # beyond 23:59 too: cel-go only adds them up
    return hours * 3600 + minutes * 60 * (-1 if zone.startswith("-") else 1)


def is_fixed_zone(zone: str) -> bool:
    """Return whether a zone is UTC or a numeric offset, and no name."""
    return _fixed_offset(zone) is not None


def _zone(name: str) -> ZoneInfo:
    found = _known_zone(name) if len(name) <= 64 else None
    if found is None:
        raise EvaluationError(f"unknown time zone {name[:64]}")
    return found


@lru_cache(maxsize=1024)
def _known_zone(name: str) -> ZoneInfo | None:
    """Return the zone of a name, None for any other string; both are cached, as files are read for either."""
    with suppress(ValueError, OSError, KeyError):
        return ZoneInfo(name)
    return None
