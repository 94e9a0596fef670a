"""The functions that expressions may call, one tuple per library; an environment selects them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..check.environment import Function
from .bindings import BINDINGS
from .core import CORE
from .encoders import ENCODERS
from .lists import LISTS
from .math import MATH
from .optionals import OPTIONALS
from .regex import REGEX
from .sets import SETS
from .strings import STRINGS, STRINGS_V2
from .time import TIME

STANDARD: Final[tuple[Function, ...]] = (*CORE, *REGEX, *TIME)
"""The core language, which every environment has."""

__all__ = [
    "BINDINGS", "CORE", "ENCODERS", "LISTS", "MATH", "OPTIONALS", "REGEX", "SETS", "STANDARD", "STRINGS",
    "STRINGS_V2", "TIME", "table",
]


def table(*libraries: Iterable[Function]) -> dict[str, Function]:
    """Return the functions of some libraries by name; a name in several libraries has the overloads of all."""
    merged: dict[str, Function] = {}
    for library in libraries:
        for function in library:
            old = merged.get(function.name)
            if old is None:
                merged[function.name] = function
            else:
                merged[function.name] = replace(old, overloads=(*old.overloads, *function.overloads))
    return merged
