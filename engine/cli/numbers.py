"""Numbers in options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(text: str, expected: str, allowed: Callable[[float], bool], *, suffix: str = "") -> float:
    """Read an option's value that is a number, with a suffix that may be left out.

    Raises:
        argparse.ArgumentTypeError: it is not a number, or none that is `allowed`; the message ends with `expected`.
    """
    try:
        value = float(text.removesuffix(suffix))
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"`{text}` is not a {expected}")
    return value


def percent(text: str) -> float:
    """Read an option's value that is a percentage from 0 to 100: 80 or 80%.

    A number between 0 and 1 needs its sign: most who write 0.8 mean 80 %.
    """
    value = number(text, "percentage from 0 to 100", lambda value: 0 <= value <= 100, suffix="%")
    if 0 < value < 1 and not text.endswith("%"):
        hint = f"write {value * 100:g}, or {text}% if that is meant"
        raise argparse.ArgumentTypeError(f"`{text}` is less than 1 %: {hint}")
    return value


def whole(text: str) -> int:
    """Read an option's value that is a whole number, also one below 0."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number") from None


def positive_seconds(text: str) -> float:
    """Read an option's value that is a number of seconds above 0."""
    return number(text, "number of seconds above 0", lambda value: 0 < value < math.inf)


def share(text: str) -> float:
    """Read an option's value that is a number from 0 to 1; raises `argparse.ArgumentTypeError` for any other."""
    return number(text, "number from 0 to 1", lambda value: 0 <= value <= 1)


def seconds_or_none(text: str) -> float:
    """Read an option's value of a second to a day, or 0; raises `argparse.ArgumentTypeError` for any other."""
    return number(text, "number of seconds from 1 to 86400, or 0", lambda value: value == 0 or 1 <= value <= 86_400)
