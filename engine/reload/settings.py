"""The settings of reloading."""

from __future__ import annotations

from dataclasses import dataclass

from .source_state import ReloadUnit
from .startup import InvalidAtStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadSettings:
    """The settings of reloading; times are in seconds."""

    debounce: float = 0.05
    """The time without changes before a source is read."""
    interval: float = 1.0
    """The interval between observations of the sources."""
    rehash: float = 60.0
    """The interval after which all contents are hashed even if nothing seems to have changed."""
    unit: ReloadUnit = ReloadUnit.SOURCE
    invalid_at_start: InvalidAtStart = InvalidAtStart.REFUSE
    allow_empty: bool = True
    """If false, a source without policies is refused: at start, and later, when its active version stays."""
    max_error_rate: float | None = None
    """A generation is rolled back if a larger part (0 to 1) of its first decisions had failing expressions."""
    first_decisions: int = 100
