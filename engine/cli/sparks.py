"""Figures over time in a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_HOUR: Final = 3600
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], highest: float) -> str:
    """Return a line of blocks, one per value from 0 to `highest`; only 0 is blank."""
    if highest <= 0:
        return " " * len(values)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, math.ceil(value / highest * (len(_BLOCKS) - 1)))] for value in values)


def time_of(seconds: float) -> str:
    """Return a duration in its two largest units of days, hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = [(whole // 86_400, "d"), (whole // _HOUR % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next(place for place, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[first : first + 2] if amount)
