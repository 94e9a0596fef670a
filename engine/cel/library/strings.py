"""Functions of strings: cel-go's strings extension (cel-go `ext/strings.go`).

`STRINGS` is its newest version, which the conformance suites describe; `STRINGS_V2` is the one that Kubernetes has:
no `reverse`, an offset beyond the end of a string gives -1, and `format` writes nested values another way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Final

from ..check.environment import Cost, Function, InvalidLiteralError, Overload, UnknownArgument
from ..values.traversal import Walk, elements, nothing
from ..values.types import DURATION, DYN, ERROR, INT, STRING, TIMESTAMP, Type, list_of
from ..values.values import (
    INT64_MAX,
    BoolKey,
    Duration,
    EvaluationError,
    Uint,
    is_map,
    key_value,
    text_of_double,
    type_name,
    type_of_value,
)

_LARGEST: Final = 10_000_000
"""Most characters of a string that a function makes."""
_WHITE: Final = "".join(
    chr(each) for each in (*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                           0x205F, 0x3000)
)
_LOWER: Final = {each: each + 32 for each in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {each: each - 32 for each in range(ord("a"), ord("z") + 1)}
_WHOLE: Final = Cost(0, ((0, 0.1),))
_TEXTS: Final = list_of(STRING)


def _out_of_range(number: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {number}")


def _too_large() -> EvaluationError:
    return EvaluationError(f"the string would be longer than {_LARGEST} characters")


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


def _index_of(*, strict: bool) -> Callable[..., int]:
    def index_of(text: str, part: str, start: int = 0) -> int:
        if part == "" and not strict:
            return start  # wherever that is, as in Kubernetes
        if start < 0 or (strict and start > len(text)):
            raise _out_of_range(start)
        if part == "" and start <= len(text):
            return start
        return text.find(part, start) if start <= len(text) else -1

    return index_of


def _last_index_of(*, strict: bool) -> Callable[..., int]:
    def last_index_of(text: str, part: str, start: int | None = None) -> int:
        last = len(text) if start is None else start
        if part == "" and not strict:
            return last
        if last < 0 or (strict and last > len(text)):
            raise _out_of_range(last)
        if last > len(text):
            return -1
        if part == "":
            return last
        return text.rfind(part, 0, last + len(part))

    return last_index_of


def _whole_cost(text: str, *_: object) -> int:
    return math.ceil(len(text) * 0.1)


def _backwards(text: str, part: str, *_: object) -> int:
    """Return the steps of searching from the end: Python tries every position."""
    return len(text) * len(part) // 1_000


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if not 0 <= last <= len(text):
        raise _out_of_range(last)
    if start > last:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    places = text.count(old) if count < 0 else min(count, text.count(old))
    if len(text) + places * len(new) > _LARGEST:
        raise _too_large()
    return text.replace(old, new, max(count, -1))


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator == "":
        if count < 0 or count >= len(text):
            return list(text)
        return [*text[: count - 1], text[count - 1 :]]
    return text.split(separator, -1 if count < 0 else count - 1)


def _join(parts: list[object], separator: str = "") -> str:
    length = 0
    for part in parts:
        if type(part) is not str:
            raise EvaluationError("no such overload: only strings can be joined")
        length += len(part) + len(separator)
    if length > _LARGEST:
        raise _too_large()
    return separator.join(parts)  # type: ignore[arg-type]


def _join_cost(parts: list[object], separator: str = "") -> int:
    """Return the cost of joining: two tenths per character of the result."""
    size = sum(len(each) for each in parts if type(each) is str) + len(separator) * max(0, len(parts) - 1)
    return math.ceil(size * 0.2)


_ESCAPES: Final = {
    "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", '"': '\\"',
}
"""The escape sequences of characters, that of the backslash first, as the others have one."""


def quote(text: str) -> str:
    """Return a string as a literal in double quotes."""
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return f'"{text}"'


# --- format ----------------------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"(?:[^%]++|%%)*+")
"""All up to the next clause."""
_CLAUSE: Final = re.compile(r"(?>(\.[0-9]*)?)(.)?", re.DOTALL)
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b")
_LARGEST_PRECISION: Final = 1_000
_DIGITS: Final = 19
"""The digits of the largest int."""
_PRECISIONS: Final = 2**8
_WIDTHS: Final = 2**16
"""golang.org/x/text `internal/number` has an octet for the digits of a fraction, and two octets for a width."""
_MOST_FRACTION: Final = 1_074
"""The most digits of the fraction of a double."""
_LARGEST_VERB: Final = 10**6
"""The largest number to which golang.org/x/text `message` adds one more digit."""


def _name(value: object) -> str:
    return type_name(type_of_value(value))


_SPECIAL_TEXTS: Final = ("NaN", "Infinity", "-Infinity")
"""The strings that count as numbers in `%f` and `%e`, as in Kubernetes."""


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return None


def _is_whole(value: object) -> bool:
    return type(value) is int or type(value) is Uint


def _text_of_bytes(value: bytes, *, old: bool) -> str:
    try:
        return value.decode("utf-8", "strict" if old else "replace")
    except UnicodeDecodeError:
        raise EvaluationError(
            'error during formatting: could not convert argument "invalid UTF-8 in bytes, cannot convert to string" to'
            " string") from None


def _text(value: object, *, nested: bool, old: bool) -> str:
    kind = value.__class__
    if kind is str:
        return quote(value) if nested and old else value  # type: ignore[arg-type,return-value]
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        special = _special(value)  # type: ignore[arg-type]
        if special is not None:
            return special
        return f"{value:f}" if nested and old else _plain_double(value)  # type: ignore[arg-type]
    if kind is bytes:
        return _text_of_bytes(value, old=old)  # type: ignore[arg-type]
    if _is_whole(value):
        return str(int(value))  # type: ignore[call-overload]
    if kind is list:
        return f"[{', '.join(_text(each, nested=True, old=old) for each in value)}]"  # type: ignore[attr-defined]
    if is_map(value):
        return _map_text(value, old=old)  # type: ignore[arg-type]
    if kind is Type:
        return type_name(value)  # type: ignore[arg-type]
    if _name(value) in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
        text = value.in_seconds() if isinstance(value, Duration) else str(value)
        return f'{_name(value).rpartition(".")[2].lower()}("{text}")' if nested and old else text
    raise EvaluationError(
        "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists,"
        f" types, durations, and timestamps, was given {_name(value)}",
    )


def _plain_double(number: float) -> str:
    text = text_of_double(number)
    return text if "e" not in text else f"{number!r}".removesuffix(".0")


def _map_text(mapping: Mapping[object, object], *, old: bool) -> str:
    parts = []
    for key, value in mapping.items():
        held = key.value if isinstance(key, BoolKey) else key
        parts.append((_text(key_value(key), nested=False, old=old), held, _text(value, nested=True, old=old)))
    parts.sort(key=lambda part: part[0])
    if old:
        return "{" + ", ".join(f"{_text(held, nested=True, old=True)}:{value}" for _, held, value in parts) + "}"
    return "{" + ", ".join(f"{key}: {value}" for key, _, value in parts) + "}"


def _decimal(value: object) -> str:
    if _is_whole(value):
        return str(int(value))  # type: ignore[call-overload]
    if type(value) is float:
        special = _special(value)
        if special is not None:
            return special
    raise EvaluationError(
        f"error during formatting: decimal clause can only be used on integers, was given {_name(value)}",
    )


def _number(value: object, clause: str, *, old: bool) -> float:
    if type(value) is float or (_is_whole(value) and not old):
        return float(value)  # type: ignore[arg-type]
    if old and value in _SPECIAL_TEXTS:
        return float(value)
    raise EvaluationError(
        f"error during formatting: {clause} clause can only be used on doubles, was given {_name(value)}",
    )


def _fixed(value: object, precision: int, *, old: bool) -> str:
    number = _number(value, "fixed-point", old=old)
    special = _shown_special(number, old=old)
    if old:
        return _localized(special or _grouped(number or 0.0, precision), precision)
    return special or f"{number:.{precision}f}"


def _grouped(number: float, precision: int) -> str:
    """Return a number as golang.org/x/text prints it in English: in groups of three digits.

    It keeps the least number of fraction digits in an octet and the greatest in two, where a negative one is no limit.
    """
    least, most = precision % _PRECISIONS, (precision + _WIDTHS // 2) % _WIDTHS - _WIDTHS // 2
    if least == most:
        return f"{number:,.{least}f}"
    text = format(Decimal(repr(number)), ",f") if most < 0 else f"{number:,.{min(most, _MOST_FRACTION)}f}"
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0").ljust(least, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _localized(text: str, precision: int) -> str:
    """Return a number as golang.org/x/text prints it for a precision, which beyond a limit is no verb for it."""
    return text if precision // 10 <= _LARGEST_VERB else "%!(NOVERB)"


def _shown_special(number: float, *, old: bool) -> str | None:
    """Return the text of `%f` and `%e` for a number that is not finite; None for other numbers."""
    special = _special(number)
    return special.replace("Infinity", "\u221e") if special is not None and old else special


def _scientific(value: object, precision: int, *, old: bool) -> str:
    number = _number(value, "scientific", old=old)
    special = _shown_special(number, old=old)
    if not old:
        return special or f"{number:.{precision}e}"
    # In cel-go's version with locales the precision is the width, and there are always six digits.
    mantissa, _, exponent = f"{number or 0.0:.6e}".partition("e")
    text = special or f"{mantissa}\u00d710{exponent.removeprefix('+').translate(_SUPERSCRIPT)}"
    return _localized(text.rjust(precision % _WIDTHS), precision)


def _binary(value: object) -> str:
    if type(value) is bool:
        return "1" if value else "0"
    if _is_whole(value):
        return f"{value:b}"
    raise EvaluationError(
        "error during formatting: only integers and bools can be formatted as binary, was given " + _name(value),
    )


def _octal(value: object) -> str:
    if _is_whole(value):
        return f"{value:o}"
    raise EvaluationError(
        f"error during formatting: octal clause can only be used on integers, was given {_name(value)}",
    )


def _hex(value: object) -> str:
    if _is_whole(value):
        return f"{value:x}"
    if type(value) is str:
        return value.encode("utf-8").hex()
    if type(value) is bytes:
        return value.hex()
    raise EvaluationError(
        "error during formatting: only integers, byte buffers, and strings can be formatted as hex, was given "
        + _name(value),
    )


def _parts(template: str, count: float, *, old: bool) -> Iterator[str | tuple[str, int]]:
    """Yield the strings and clauses of a template for a number of values, a clause as its letter and precision.

    Errors are found in cel-go's order and have its messages.
    """
    position = used = 0
    while True:
        match = _PLAIN.match(template, position)
        assert match is not None  # it matches nothing as well
        yield match[0].replace("%%", "%")
        start = match.end()
        if start == len(template):
            return
        if start + 1 == len(template):
            raise EvaluationError("unexpected end of string")
        if used >= count:
            raise EvaluationError(f"index {used} out of range")
        match = _CLAUSE.match(template, start + 1)
        assert match is not None
        if match[2] is None:
            raise _bad_clause("error while parsing precision: could not find end of precision specifier")
        precision = 6 if match[1] is None else _precision(match[1][1:], old=old)
        if match[2] not in _KINDS:
            raise _bad_clause(f'unrecognized formatting clause "{match[2]}"')
        yield match[2], precision
        position, used = match.end(), used + 1


def _precision(digits: str, *, old: bool) -> int:
    if not digits:
        raise _bad_clause(
            'error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing "":'
            " invalid syntax",
        )
    if old:
        number = int(digits.lstrip("0")[: _DIGITS + 1] or 0)
        if number > INT64_MAX:
            raise _bad_clause(
                "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing"
                f' "{digits[:64]}": value out of range',
            )
        return number
    if len(digits) >= 5 or int(digits) > _LARGEST_PRECISION:
        raise _bad_clause(
            f"error while parsing precision: precision {digits[:20]} exceeds maximum allowed precision"
            f" {_LARGEST_PRECISION}",
        )
    return int(digits)


def _bad_clause(message: str) -> EvaluationError:
    return EvaluationError(f"could not parse formatting clause: {message}")


def _format(*, old: bool) -> Callable[[str, list[object]], str]:
    def format_(template: str, values: list[object]) -> str:
        rest = iter(values)
        texts: list[str] = []
        length = 0
        for part in _parts(template, len(values), old=old):
            texts.append(part if isinstance(part, str) else _clause(part[0], next(rest), part[1], old=old))
            length += len(texts[-1])
            if length > _LARGEST:
                raise _too_large()
        return "".join(texts)

    return format_


_ANYTHING: Final = frozenset({DYN, ERROR})
_ON_TEXTS: Final = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and"
    " timestamps"
)
_ON_INTEGERS: Final = "clause can only be used on integers"
_ON_DOUBLES: Final = "clause can only be used on doubles"
_AS_HEX: Final = "only integers, byte buffers, and strings can be formatted as hex"
_HEXADECIMAL: Final = frozenset({"int", "uint", "string", "bytes"})
_KINDS: Final[dict[str, tuple[str, frozenset[str]]]] = {
    "s": (
        _ON_TEXTS,
        frozenset({
            "string", "bool", "bytes", "int", "uint", "double", "list", "map", "type", "null_type", "null",
            TIMESTAMP.name, DURATION.name,
        }),
    ),
    "d": (f"decimal {_ON_INTEGERS}", frozenset({"int", "uint"})),
    # A string may be `NaN` or `Infinity`.
    "f": (f"fixed-point {_ON_DOUBLES}", frozenset({"double", "string"})),
    "e": (f"scientific {_ON_DOUBLES}", frozenset({"double", "string"})),
    "b": ("only integers and bools can be formatted as binary", frozenset({"int", "uint", "bool"})),
    "o": (f"octal {_ON_INTEGERS}", frozenset({"int", "uint"})),
    "x": (_AS_HEX, _HEXADECIMAL),
    "X": (_AS_HEX, _HEXADECIMAL),
}
"""The types that each clause accepts, in words and as names: stricter than at run time, as in Kubernetes."""


def _validate_format(arguments: tuple[object, ...]) -> None:
    """Validate a literal template against its arguments: their number, and their types as far as they are known."""
    template, values = arguments
    if not isinstance(template, str):
        return
    letters: list[str] = []
    try:
        for part in _parts(template, len(values) if isinstance(values, list) else math.inf, old=True):
            if not isinstance(part, str):
                if isinstance(values, list):
                    _validate_clause(part[0], values[len(letters)], len(letters))
                letters.append(part[0])
    except EvaluationError as error:
        raise InvalidLiteralError(error.message) from None
    if isinstance(values, list) and len(values) > len(letters):
        raise InvalidLiteralError(
            f"too many arguments supplied to string.format (expected {len(letters)}, got {len(values)})",
        )


def _validate_clause(letter: str, value: object, position: int) -> None:
    words, kinds = _KINDS[letter]
    kind = value.type if isinstance(value, UnknownArgument) else type_of_value(value)
    if isinstance(value, UnknownArgument) and (letter == "s" or kind in _ANYTHING or kind.variable):
        # An object is a map at run time, but not by its type: `%s` is checked at run time.
        return
    if kind.name not in kinds and type_name(kind) not in kinds:
        raise InvalidLiteralError(f"error during formatting: {words}, was given {type_name(kind)}", 1, position)


def _clause(letter: str, value: object, precision: int, *, old: bool) -> str:
    match letter:
        case "s":
            return _text(value, nested=False, old=old)
        case "d":
            return _decimal(value)
        case "f":
            return _fixed(value, precision, old=old)
        case "e":
            return _scientific(value, precision, old=old)
        case "b":
            return _binary(value)
        case "o":
            return _octal(value)
        case "x":
            return _hex(value)
        case _:
            return _hex(value).upper()


# --- the tables ------------------------------------------------------------------------------------------------------


def _member(
    id_: str, parameters: tuple[Type, ...], result: Type, evaluate: Callable[..., object], *,
    optional: int = 0, cost: Cost = _WHOLE, measure: Callable[..., int] | None = None, walk: Walk | None = None,
) -> tuple[Overload, ...]:
    """Return one overload per number of arguments; the last `optional` arguments may be omitted."""
    return tuple(
        Overload(
            f"string_{id_}_" + "_".join(str(each) for each in parameters[1:count]) if count > 1 else f"string_{id_}",
            parameters[:count], result, evaluate, member=True, cost=cost, measure=measure, walk=walk,
        )
        for count in range(len(parameters) - optional, len(parameters) + 1)
    )


def _strings(*, old: bool) -> tuple[Function, ...]:
    list_cost = Cost(0, ((0, 0.2),))
    functions = [
        Function(
            "charAt", _member("char_at", (STRING, INT), STRING, _char_at, cost=Cost(), walk=nothing),
            "The character at a position; empty at the end.", "'tacocat'.charAt(3) == 'o'",
        ),
        Function(
            "indexOf", _member("index_of", (STRING, STRING, INT), INT, _index_of(strict=not old), optional=1),
            "The first position of a string in another, from a position on; -1 if there is none.",
            "'tacocat'.indexOf('a') == 1",
        ),
        Function(
            "lastIndexOf",
            _member(
                "last_index_of", (STRING, STRING, INT), INT, _last_index_of(strict=not old), optional=1,
                measure=_whole_cost, walk=_backwards,
            ),
            "The last position of a string in another, up to a position; -1 if there is none.",
            "'tacocat'.lastIndexOf('a') == 5",
        ),
        Function(
            "lowerAscii", _member("lower_ascii", (STRING,), STRING, lambda a: a.translate(_LOWER)),
            "ASCII letters in lower case.", "'TacoCat'.lowerAscii() == 'tacocat'",
        ),
        Function(
            "upperAscii", _member("upper_ascii", (STRING,), STRING, lambda a: a.translate(_UPPER)),
            "ASCII letters in upper case.", "'TacoCat'.upperAscii() == 'TACOCAT'",
        ),
        Function(
            "substring", _member("substring", (STRING, INT, INT), STRING, _substring, optional=1),
            "The characters from a position up to another.", "'tacocat'.substring(4) == 'cat'",
        ),
        Function(
            "replace",
            _member("replace", (STRING, STRING, STRING, INT), STRING, _replace, optional=1, cost=list_cost),
            "A string with (at most n) occurrences of a part replaced.", "'hello'.replace('l', 'w') == 'hewwo'",
        ),
        Function(
            "split", _member("split", (STRING, STRING, INT), _TEXTS, _split, optional=1, cost=list_cost),
            "The parts between separators, at most n of them.", "'a,b'.split(',') == ['a', 'b']",
        ),
        Function(
            "join",
            (
                Overload(
                    "list_join", (_TEXTS,), STRING, _join, member=True, cost=list_cost, measure=_join_cost,
                    walk=elements,
                ),
                Overload(
                    "list_join_string", (_TEXTS, STRING), STRING, _join, member=True, cost=list_cost,
                    measure=_join_cost, walk=elements,
                ),
            ),
            "The concatenation of strings, with a separator between them.", "['a', 'b'].join('-') == 'a-b'",
        ),
        Function(
            "trim", _member("trim", (STRING,), STRING, lambda a: a.strip(_WHITE)),
            "A string without leading and trailing white space.", "'  a '.trim() == 'a'",
        ),
        Function(
            "format",
            (Overload("string_format", (STRING, list_of(DYN)), STRING, _format(old=old), member=True, cost=_WHOLE,
                      validate=_validate_format if old else None),),
            "A template with `%s %d %f %e %b %o %x %X` filled in.", "'%s: %d%%'.format(['cpu', 65]) == 'cpu: 65%'",
        ),
        Function(
            "strings.quote", (Overload("strings_quote", (STRING,), STRING, quote, cost=_WHOLE),),
            "A string as a literal.", "strings.quote('a\"b') == '\"a\\\\\"b\"'",
        ),
    ]
    if not old:
        functions.append(
            Function(
                "reverse", _member("reverse", (STRING,), STRING, lambda a: a[::-1]),
                "The characters in reverse order.", "'abc'.reverse() == 'cba'",
            ),
        )
    return tuple(functions)


STRINGS: Final = _strings(old=False)
STRINGS_V2: Final = _strings(old=True)
