"""Runtime of generated functions: operations on ordinary values, which raise for all others, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import Final, NoReturn

from ...check.call_cost import call_cost
from ...check.dispatch import choose
from ...check.environment import Overload
from ...library.core import divide_double, divide_int, modulo_int
from ...values.traversal import comparison, everything, nothing, result_size, search
from ...values.values import Uint, equal, equal_or_raise, has_key, index, index_list, is_map, key_value
from ..budget import Meter
from ..reading import read_double, read_duration, read_timestamp

LOOP_LIMIT: Final = 100_000
"""Most units of the loops of one call, iterations times nodes of the body; beyond, the interpreter evaluates."""
_FREE_SIZE: Final = 64
"""Characters and elements of a call's arguments that are not counted."""
_TEXT_LIMIT: Final = 4_096
"""Most characters of a string that a loop makes; beyond, the interpreter evaluates."""
_PER_UNIT: Final = 10
"""Characters that are joined in the time of one unit."""


class Extraordinary(Exception):
    """A value that is not ordinary: the interpreter must evaluate."""


def give_up(*_: object) -> NoReturn:
    """Leave the evaluation to the interpreter."""
    raise Extraordinary


def as_map(value: object) -> object:
    """Return a map; raise for anything else."""
    if is_map(value):
        return value
    raise Extraordinary


def items_of(value: object) -> Collection[object]:
    """Return the items of a loop over a value of unknown kind: the elements of a list, or the keys of a map."""
    if type(value) is list:
        return value
    if type(value) is not dict and not isinstance(value, Mapping):
        raise Extraordinary
    for key in value:
        if key.__class__ is not str:
            return [key_value(each) for each in value]
    return value


_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, Uint})


class MeteredCalls:
    """Metered operations; long ones are left to the interpreter."""

    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def spend(self, units: int) -> None:
        """Count the units of an operation; raise if all operations of a call take too long.

        A function that resets `Meter.inner` when it is called bounds each call; one that does not falls back to the
        interpreter once per that many units, which bounds it as well.
        """
        meter = self._meter
        meter.inner += units
        if meter.inner > LOOP_LIMIT:
            meter.inner = 0
            raise Extraordinary
        meter.spent += units

    def equal(self, left: object, right: object) -> bool:
        """Return `left == right` for values of any kinds."""
        if left.__class__ not in _ATOMS:
            steps = comparison(left, right)
            if steps > _FREE_SIZE:
                self.spend(steps)
            return equal_or_raise(left, right)
        return equal(left, right)

    def in_list(self, value: object, items: list[object]) -> bool:
        """Return `value in items`."""
        if value.__class__ not in _ATOMS:
            self.spend(search(items, value))
        return any(equal(value, each) for each in items)

    def concatenated(self, left: object, right: object) -> object:
        """Return `left + right` for strings and lists."""
        size = len(left) + len(right)  # type: ignore[arg-type]
        if size > _TEXT_LIMIT:
            raise Extraordinary
        self.spend(size // _PER_UNIT)
        return left + right  # type: ignore[operator]

    def call(
        self, evaluate: Callable[..., object], overloads: tuple[Overload, ...], *, holds: bool, walks: bool = False,
    ) -> Callable[..., object]:
        """Return a function that leaves large arguments and results to the interpreter, and counts all others.

        `holds`: it traverses arguments that may be lists or maps. `walks`: strings of any length may take long.
        """
        overload = overloads[0] if len(overloads) == 1 else None
        measured = overload is not None and overload.measure is not None
        result_steps = None if overload is None else overload.result_steps
        walk = None if overload is None else overload.walk
        spend = self.spend

        def bounded(*arguments: object) -> object:
            size = 0
            for each in arguments:
                if each.__class__ not in _UNSIZED and isinstance(each, _SIZED):
                    size += len(each)
            if size > _TEXT_LIMIT:
                raise Extraordinary
            units = 0
            if size > _FREE_SIZE or measured:
                # An unknown cost is that of comparing all parts with each other.
                units = size * size if overload is None else call_cost(overload, arguments)
            if holds or walks or size > _FREE_SIZE:
                if overload is None:
                    steps = max(size, 1) * everything(*arguments) if holds else 0
                else:
                    steps = 0 if walk is None or walk is nothing else walk(*arguments)
                if steps > _FREE_SIZE:
                    units = max(units, steps)
            if units:
                spend(units)
            value = evaluate(*arguments)
            if result_size(value) > _TEXT_LIMIT // _PER_UNIT and len(value) > _TEXT_LIMIT:  # type: ignore[arg-type]
                raise Extraordinary
            if result_steps is not None:
                spend(result_steps(value, *arguments))
            return value

        return bounded


_SIZED: Final = (list, str, dict, bytes)
_UNSIZED: Final[frozenset[type]] = frozenset({int, float, bool, type(None)})
MISSING: Final = object()


def descend(value: object, keys: tuple[object, ...], null_is_absent: tuple[bool, ...]) -> object:
    """Return the value at a chain of optional fields and elements, or `MISSING`.

    Of each step are given its name, key or index, and whether a null counts as absent there.
    """
    for key, no_null in zip(keys, null_is_absent, strict=True):
        if type(value) is dict and type(key) is str:
            value = value.get(key, MISSING)
            if value is MISSING or (value is None and no_null):
                return MISSING
        elif type(value) is list and type(key) is int:
            if not 0 <= key < len(value):
                return MISSING
            value = value[key]
        else:
            raise Extraordinary
    return value


def in_map(key: object, mapping: Mapping[object, object]) -> bool:
    """Return `key in mapping`."""
    return has_key(mapping, key)


def dispatcher(overloads: tuple[Overload, ...], objects: Container[str] = ()) -> Callable[..., object]:
    """Return a function that calls the overload for the classes of its arguments."""
    chosen: dict[tuple[type, ...], Callable[..., object]] = {}

    def dispatch(*arguments: object) -> object:
        kinds = tuple([each.__class__ for each in arguments])
        evaluate = chosen.get(kinds)
        if evaluate is None:
            evaluate = choose(overloads, arguments, objects).evaluate
            if len(chosen) < 256:
                chosen[kinds] = evaluate
        return evaluate(*arguments)

    return dispatch


GLOBALS: Final[dict[str, object]] = {
    "__builtins__": {}, "Exception": Exception, "int": int, "str": str, "bool": bool, "list": list, "dict": dict,
    "float": float, "len": len, "enumerate": enumerate, "give_up": give_up, "as_map": as_map, "items": items_of,
    "in_map": in_map,
    "index": index, "index_list": index_list, "divide_int": divide_int, "modulo_int": modulo_int,
    "divide_double": divide_double, "read_double": read_double, "read_timestamp": read_timestamp,
    "read_duration": read_duration, "descend": descend, "MISSING": MISSING,
}
