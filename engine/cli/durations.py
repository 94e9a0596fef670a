"""Durations in options."""

from __future__ import annotations

import argparse
import re
from typing import Final

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Read an option's value that is a time such as 60s, 5m or 0."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", text)
    if not found or len(text) > 12:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time such as 60s or 5m")
    return float(found[1]) * _UNITS[found[2] or ""]


def positive_seconds(text: str) -> float:
    """Read an option's value that is a time above 0, such as 60s or 5m."""
    found = seconds(text)
    if found == 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time above 0, such as 60s")
    return found
