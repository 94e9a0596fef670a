"""How much of its arguments an operation looks through, in steps; and how large values are through and through.

Kubernetes' units of cost take a list for as large as the number of its elements. An element may be a list that is part
of many others: `[x, x]` thirty levels deep is built in thirty steps and takes a billion to compare, print or search.
So every overload says how many *steps* a call takes (`Overload.walk`), evaluators count them before the call, and an
evaluation may take as many as it may spend units of cost.

A step is a scalar, a list, a map, an entry, or ten characters of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from .values import EvaluationError, Optional

Walk: TypeAlias = Callable[..., int]
"""Takes a call's arguments, receiver first, and returns how many steps it takes at most, beyond a constant."""

MOST: Final = 2**40
"""Where sizes saturate."""
_PER_STEP: Final = 10
"""Characters of a text."""
_SMALL: Final[frozenset[type]] = frozenset({type(None), bool, int, float})


def deep_size(value: object) -> int:
    """Return how many steps it takes to look through a value, at most `MOST`.

    What is part of the value more than once counts each time, and is measured once.
    """
    kind = value.__class__
    if kind is str or kind is bytes:
        return 1 + len(value) // _PER_STEP  # type: ignore[arg-type]
    if kind is list or kind is dict or kind is Optional or isinstance(value, Mapping):
        return _measured(value, {})
    return 1


def _measured(value: object, known: dict[int, int]) -> int:
    # The whole value holds on to its parts while it is measured, so that an id stands for one of them.
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
            total += _part(key, known) + _part(each, known)
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
    return 1


def _read(mapping: Mapping[object, object], known: dict[int, int]) -> int:
    """Return the size of a map of a class of its own, which may fail to give a value."""
    total = 0
    for key in mapping:
        try:
            # Its values may be made when they are read: what is not kept has no id.
            total += _part(key, known) + deep_size(mapping[key])
        except EvaluationError:
            total += 1
    return total


# --- what calls look through -----------------------------------------------------------------------------------------


def nothing(*_: object) -> int:
    """Return 0: a call looks at an argument's kind or size, or at one element, and hands on what it finds."""
    return 0


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
        return 0
    if not isinstance(right, list | Mapping | Optional):
        return 0
    return min(deep_size(left), deep_size(right))


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
    """Return the steps of `value in container`; a key of a map is found at once."""
    return search(container, value) if type(container) is list else 0


def pairs(items: list[object]) -> int:
    """Return the steps of comparing each element of a list with every other."""
    count = len(items)
    return count * (count + _within(items))


def product(left: list[object], right: list[object]) -> int:
    """Return the steps of comparing each element of a list with each of another."""
    one, other = len(left), len(right)
    return one * other + min(one * _within(right), other * _within(left))


def ordering(items: list[object]) -> int:
    """Return the steps of sorting a list by comparison, or of looking for its extremes."""
    return len(items).bit_length() * deep_size(items)


def elements(items: list[object], *_: object) -> int:
    """Return the number of elements: nothing within them is looked at."""
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
    """Return the size of a list beyond its elements' number: 0 for numbers and short texts."""
    return deep_size(items) - 1 - len(items)
