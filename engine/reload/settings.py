"""How reloading is set up."""

from __future__ import annotations

from dataclasses import dataclass

from .select import ReloadUnit
from .startup import InvalidAtStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadSettings:
    """What a server may choose about reloading; times are seconds."""

    debounce: float = 0.05
    """How long a source must be quiet before it is read."""
    interval: float = 1.0
    """How often the sources are observed."""
    rehash: float = 60.0
    """How often all contents are hashed though nothing seems to have changed."""
    unit: ReloadUnit = ReloadUnit.SOURCE
    invalid_at_start: InvalidAtStart = InvalidAtStart.REFUSE
    allow_empty: bool = True
    """Without it, a source that holds no policy is refused: at start, and later, when its active version stays."""
    max_error_rate: float | None = None
    """A generation is rolled back if a larger part (0 to 1) of its first decisions had failing expressions."""
    first_decisions: int = 100
