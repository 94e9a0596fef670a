"""Frees large results part by part, so that other threads have their turn in between.

Freeing an object frees what only it refers to, and no other thread has its turn meanwhile: 4 ms for a compiled document
of 1,000 rules. So what its large containers contain is referred to until each part is freed by itself.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any, Final

_LARGE: Final = 64
"""A container with as many items is freed item by item."""
_MOST_VISITED: Final = 2_000
_MOST_REFERENCES: Final = 12
"""An object with more references is shared, and not freed."""
_SHARED: Final = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)
_CONTAINERS: Final = (tuple, list, dict, set, frozenset)


def release(owned: list[Any], pause: Callable[[], None]) -> None:
    """Free the content of a list, which should hold the last references to it; `pause` is called after each part."""
    parts = _parts(owned)
    owned.clear()
    while parts:
        parts.pop()
        pause()
    pause()


def _parts(owned: list[Any]) -> list[Any]:
    """Return the items of the large containers that are near the top."""
    parts: list[Any] = []
    visited, found = {id(owned)}, list(owned)
    for number, each in enumerate(found):  # which grows meanwhile
        if number == _MOST_VISITED:
            break
        if isinstance(each, _SHARED) or id(each) in visited:
            continue
        visited.add(id(each))
        below: list[Any] = [*(each.__closure__ or ())] if isinstance(each, types.FunctionType) else (
            gc.get_referents(each))
        below = [one for one in below if sys.getrefcount(one) <= _MOST_REFERENCES]
        (parts if isinstance(each, _CONTAINERS) and len(each) >= _LARGE else found).extend(below)
    return parts
