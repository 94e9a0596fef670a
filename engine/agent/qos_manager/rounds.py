"""The interval argument that all built-in strategies have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

_SECOND: Final = 1_000_000_000


def read_interval(args: Mapping[str, Any], others: Collection[str] = ()) -> int:
    """Return `intervalSeconds` in nanoseconds, a second without it; `others` are further known arguments.

    Raises:
        ValueError: an unknown argument, or an interval that is not above 0.
    """
    known = ("intervalSeconds", *others)
    unknown = sorted(set(args) - set(known))
    if unknown:
        raise ValueError(f"unknown argument `{unknown[0]}`: known are {', '.join(f'`{each}`' for each in known)}")
    seconds = args.get("intervalSeconds", 1)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ValueError("`intervalSeconds` must be a number above 0")
    return int(seconds * _SECOND)
