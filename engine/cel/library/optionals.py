"""Optional values (cel-go `cel/library.go`, OptionalTypes).

`.?`, `[?]`, `optMap` and `optFlatMap` are syntax, not functions.
"""

from __future__ import annotations

from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.traversal import elements, nothing
from ..values.types import BOOL, list_of, optional_of, variable
from ..values.values import NONE, Duration, Optional, Timestamp, is_map, no_overload

_T: Final = variable("T")
_OPTIONAL: Final = optional_of(_T)
_FREE: Final = Cost(1)
_ZERO_TIME: Final = Timestamp.parse("0001-01-01T00:00:00Z")


def _of_non_zero_value(value: object) -> Optional:
    """Return none for null, false, zero numbers and spans, Go's zero time, and empty strings, lists and maps."""
    if value is None or value is False:
        return NONE
    if type(value) is Duration:
        return Optional(value) if value.ns else NONE
    if type(value) is Timestamp:
        return NONE if value == _ZERO_TIME else Optional(value)
    if isinstance(value, int | float | str | bytes | list) or is_map(value):
        return Optional(value) if value else NONE
    return Optional(value)


def _unwrap(items: list[object]) -> list[object]:
    result = []
    for each in items:
        if type(each) is not Optional:
            raise no_overload()
        if each is not NONE:
            result.append(each.value)
    return result


OPTIONALS: Final = (
    Function(
        "optional.of", (Overload("optional_of", (_T,), _OPTIONAL, Optional, cost=_FREE, walk=nothing),),
        "An optional with a value.", "optional.of(1).hasValue()",
    ),
    Function(
        "optional.none", (Overload("optional_none", (), _OPTIONAL, lambda: NONE, cost=_FREE),),
        "An optional without a value.", "!optional.none().hasValue()",
    ),
    Function(
        "optional.ofNonZeroValue",
        (Overload("optional_ofNonZeroValue", (_T,), _OPTIONAL, _of_non_zero_value, cost=_FREE, walk=nothing),),
        "The value, unless it is null, false, zero or empty.", "!optional.ofNonZeroValue('').hasValue()",
    ),
    Function(
        "hasValue", (
            Overload(
                "optional_hasValue", (_OPTIONAL,), BOOL, lambda a: a is not NONE, member=True, walk=nothing,
            ),
        ),
        "True if the optional has a value.", "{'a': 1}.?a.hasValue()",
    ),
    Function(
        "value", (Overload("optional_value", (_OPTIONAL,), _T, lambda a: a.get(), member=True, walk=nothing),),
        "The value; an error if there is none.", "optional.of(1).value() == 1",
    ),
    Function(
        "orValue",
        (
            Overload(
                "optional_orValue_value", (_OPTIONAL, _T), _T, lambda a, b: b if a is NONE else a.value, member=True,
                walk=nothing,
            ),
        ),
        "The value, or a default if there is none; the default is evaluated only then.", "{'a': 1}.?b.orValue(0) == 0",
    ),
    Function(
        "or",
        (
            Overload(
                "optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL, lambda a, b: b if a is NONE else a,
                member=True, walk=nothing,
            ),
        ),
        "The first of two optionals that has a value.", "optional.none().or(optional.of(2)).value() == 2",
    ),
    Function(
        "optional.unwrap",
        (Overload("optional_unwrap", (list_of(_OPTIONAL),), list_of(_T), _unwrap, cost=_FREE, walk=elements),),
        "The values of the optionals that have one.", "optional.unwrap([optional.of(1), optional.none()]) == [1]",
    ),
    Function(
        "unwrapOpt",
        (
            Overload(
                "optional_unwrapOpt", (list_of(_OPTIONAL),), list_of(_T), _unwrap, member=True,
                cost=_FREE, walk=elements,
            ),
        ),
        "The values of the optionals that have one.", "[optional.of(1), optional.none()].unwrapOpt() == [1]",
    ),
)
