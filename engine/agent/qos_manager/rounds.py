"""The arguments that built-in strategies have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

_SECOND: Final = 1_000_000_000


def read_interval(args: Mapping[str, Any], others: Collection[str] = (), *, default: float = 1) -> int:
    """Return `intervalSeconds` in nanoseconds; `default` is in seconds, and `others` are further known arguments.

    Raises:
        ValueError: an unknown argument, or an interval that is not above 0.
    """
    refuse_unknown(args, ("intervalSeconds", *others))
    return read_seconds(args, "intervalSeconds", default)


def refuse_unknown(args: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ValueError` if there is an argument that is not among the known ones."""
    unknown = sorted(set(args) - set(known))
    if unknown:
        raise ValueError(f"unknown argument `{unknown[0]}`: known are {', '.join(f'`{each}`' for each in known)}")


def read_seconds(args: Mapping[str, Any], name: str, default: float, *, zero: bool = False) -> int:
    """Return an argument in seconds as nanoseconds; `zero` permits 0.

    Raises:
        ValueError: no number, or one that is negative, infinite or below a nanosecond.
    """
    seconds = args.get(name, default)
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < float("inf")
    if not number or (int(seconds * _SECOND) == 0 and not (zero and seconds == 0)):
        raise ValueError(f"`{name}` must be a number {'of 0 or more' if zero else 'above 0'}, in seconds")
    return int(seconds * _SECOND)
