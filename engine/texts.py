"""Texts and lists of others in messages and views, at bounded length; and names in camel case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def beginning(text: str, longest: int = 60) -> str:
    """Return the first `longest` characters of a text, with dots if there are more."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def quoted_list(names: Collection[Any], shown_as: Callable[[Any], str] = str, *, most: int = 30) -> str:
    """Return names in backquotes, long ones shortened, and how many there are beyond the first `most`."""
    shown = ", ".join(f"`{beginning(shown_as(name), 64)}`" for name in itertools.islice(names, most))
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def first_of(items: Sequence[T], most: int) -> tuple[Sequence[T], int]:
    """Return the first `most` items, and the number of the others."""
    return items[:most], max(len(items) - most, 0)


def camel(name: str) -> str:
    """Return a name with underscores in camel case: `max_hint_nodes` as `maxHintNodes`."""
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
