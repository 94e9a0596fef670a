"""Steps that operations take through their arguments, and deep sizes of values.

In Kubernetes' units of cost the size of a list is the number of its elements. An element may be a list that is part of
many others: `[x, x]` thirty levels deep is made in thirty steps and takes a billion to compare, print or search.
Therefore every overload has a function for the *steps* of a call (`Overload.walk`), evaluators count them before the
call, and an evaluation may take as many steps as its limit of cost.

A step is a scalar, a list, a map, an entry, or ten characters of a string. A value of a library that is larger than a
scalar has the property `traversal_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from .values import EvaluationError, Optional

Walk: TypeAlias = Callable[..., int]
"""Takes a call's arguments, receiver first, and returns the most steps of the call, up to a constant."""

MOST: Final = 2**40
"""Largest size: greater ones are cut to it."""
_PER_STEP: Final = 10
"""Characters of a string per step."""
_SMALL: Final[frozenset[type]] = frozenset({type(None), bool, int, float})


def deep_size(value: object) -> int:
    """Return the steps of traversing a value, at most `MOST`.

    A part that the value contains more than once counts each time, and is measured once.
    """
    kind = value.__class__
    if kind is str or kind is bytes:
        return 1 + len(value) // _PER_STEP  # type: ignore[arg-type]
    if kind is list or kind is dict or kind is Optional or isinstance(value, Mapping):
        return _measured(value, {})
    return getattr(value, "traversal_size", 1)


def _measured(value: object, known: dict[int, int]) -> int:
    # The whole value references its parts while it is measured, so that ids are unique.
    found = known.get(id(value))
    if found is not None:
        return found
    total = 1
    if type(value) is list:
        if _SMALL.issuperset(map(type, value)):
            total += len(value)
        else:
            for each in value:
                total += _part(each, known)
    elif type(value) is dict:
        for key, each in value.items():
            total += 1 if key.__class__ in _SMALL else _part(key, known)
            total += 1 if each.__class__ in _SMALL else _part(each, known)
    elif type(value) is Optional:
        total += _part(value.value, known)
    else:
        total += _read(value, known)  # type: ignore[arg-type]
    known[id(value)] = total = min(total, MOST)
    return total


def _part(value: object, known: dict[int, int]) -> int:
    kind = value.__class__
    if kind in _SMALL:
        return 1
    if kind is str or kind is bytes:
        return 1 + len(value) // _PER_STEP  # type: ignore[arg-type]
    if kind is list or kind is dict or kind is Optional or isinstance(value, Mapping):
        return _measured(value, known)
    return getattr(value, "traversal_size", 1)


def _read(mapping: Mapping[object, object], known: dict[int, int]) -> int:
    """Return the size of a mapping of another class, whose values may raise."""
    total = 0
    for key in mapping:
        try:
            # Its values may be made when they are read, so their ids are not unique.
            total += _part(key, known) + deep_size(mapping[key])
        except EvaluationError:
            total += 1
    return total


# --- what calls traverse -----------------------------------------------------------------------------------------


def nothing(*_: object) -> int:
    """Return 0: the call reads the kind or size of an argument, or one element, without traversal."""
    return 0


def texts(*arguments: object) -> int:
    """Return the steps through the strings and bytes among some arguments."""
    steps = 0
    for each in arguments:
        if isinstance(each, str | bytes):
            steps += len(each) // _PER_STEP
    return steps


def everything(*arguments: object) -> int:
    """Return the steps through all arguments."""
    return sum(map(deep_size, arguments))


def comparison(left: object, right: object) -> int:
    """Return the steps of `==` on two values: no more than the smaller one has, and few if they differ in size."""
    kind, other = left.__class__, right.__class__
    if kind is str or kind is bytes:
        return min(len(left), len(right)) // _PER_STEP if kind is other else 0  # type: ignore[arg-type]
    if kind is list or kind is dict:
        if kind is other and len(left) != len(right):  # type: ignore[arg-type]
            return 1
    elif kind is not Optional and not isinstance(left, Mapping):
        return min(getattr(left, "traversal_size", 0), deep_size(right)) if kind is other else 0
    if not isinstance(right, list | Mapping | Optional):
        return 0
    size = deep_size(left)
    return size if left is right else min(size, deep_size(right))


def search(items: list[object], value: object) -> int:
    """Return the steps of comparing each element of a list with a value."""
    count = len(items)
    kind = value.__class__
    if kind in _SMALL:
        return count
    if kind is str or kind is bytes:
        return count * (1 + len(value) // _PER_STEP)  # type: ignore[arg-type]
    return count + min(deep_size(items), count * deep_size(value))


def membership(value: object, container: object) -> int:
    """Return the steps of `value in container`; a key of a map takes none."""
    return search(container, value) if type(container) is list else 0


def pairs(items: list[object]) -> int:
    """Return the steps of comparing each element of a list with every other."""
    count = len(items)
    return count * (count + _within(items))


def product(left: list[object], right: list[object]) -> int:
    """Return the steps of comparing each element of a list with each of another."""
    one, other = len(left), len(right)
    return one + other + one * other + min(one * _within(right), other * _within(left))


def ordering(items: list[object]) -> int:
    """Return the steps of sorting a list by comparison, or of finding its extremes."""
    return len(items).bit_length() * deep_size(items)


def elements(items: list[object], *_: object) -> int:
    """Return the number of elements, which are not traversed."""
    return len(items)


def levels(items: list[object], depth: int = 1) -> int:
    """Return the elements of a list and of the lists in it, some levels deep."""
    return min(_levels(items, depth, {}), MOST)


def _levels(items: list[object], depth: int, known: dict[tuple[int, int], int]) -> int:
    found = known.get((id(items), depth))
    if found is None:
        found = len(items)
        if depth > 0:
            found += sum(_levels(each, depth - 1, known) for each in items if type(each) is list)
        found = known[id(items), depth] = min(found, MOST)
    return found


def result_size(value: object) -> int:
    """Return the steps of making a result: elements or entries, or tens of characters."""
    kind = value.__class__
    if kind is str or kind is bytes:
        return len(value) // _PER_STEP  # type: ignore[arg-type]
    return len(value) if kind is list or kind is dict else 0  # type: ignore[arg-type]


def _within(items: list[object]) -> int:
    """Return the size of a list less the number of its elements: 0 for numbers and short strings."""
    return deep_size(items) - 1 - len(items)
