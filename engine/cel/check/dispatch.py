"""Dynamic dispatch: the overload of a function by the values of its arguments."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from ..values.types import BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT, Type
from ..values.values import Duration, Optional, Timestamp, Uint, is_map, no_overload
from .environment import Overload

__all__ = ["choose", "fits"]

_CLASSES: Final[dict[str, type]] = {
    INT.name: int, UINT.name: Uint, DOUBLE.name: float, BOOL.name: bool, STRING.name: str, BYTES.name: bytes,
    "list": list, NULL.name: type(None), "type": Type, "optional_type": Optional, TIMESTAMP.name: Timestamp,
    DURATION.name: Duration,
}


def fits(value: object, parameter: Type, objects: Container[str] = ()) -> bool:
    """Return whether a value may be passed for a parameter, whatever the elements of lists and maps are.

    `objects` are the names of the object types: their values are maps.
    """
    if parameter.variable or parameter.name == "dyn":
        return True
    kind = _CLASSES.get(parameter.name)
    if kind is not None:
        return type(value) is kind
    if parameter.name == "map" or parameter.name in objects:
        return is_map(value)
    declared = getattr(value.__class__, "cel_type", None)
    return isinstance(declared, Type) and declared.name == parameter.name


def choose(
    overloads: Iterable[Overload], arguments: tuple[object, ...], objects: Container[str] = (),
) -> Overload:
    """Return the first overload whose parameters fit the arguments; `objects` as in `fits`."""
    count = len(arguments)
    for overload in overloads:
        if len(overload.parameters) != count:
            continue
        for value, parameter in zip(arguments, overload.parameters, strict=True):
            kind = _CLASSES.get(parameter.name)
            if value.__class__ is not kind and (kind is not None or not fits(value, parameter, objects)):
                break
        else:
            return overload
    raise no_overload()
