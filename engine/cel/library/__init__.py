"""The functions that expressions may call, one tuple per library; an environment picks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..environment import Function
from .core import CORE
from .regex import REGEX
from .time import TIME

STANDARD: Final[tuple[Function, ...]] = (*CORE, *REGEX, *TIME)
"""The core language, which every environment has."""


def table(*libraries: Iterable[Function]) -> dict[str, Function]:
    """Return the functions of some libraries by name; overloads of a name that several have are joined."""
    merged: dict[str, Function] = {}
    for library in libraries:
        for function in library:
            old = merged.get(function.name)
            overloads = function.overloads if old is None else (*old.overloads, *function.overloads)
            merged[function.name] = Function(
                function.name, overloads, (old or function).doc, (old or function).example,
            )
    return merged
