"""Figures: the results of benchmarks."""

from __future__ import annotations

from dataclasses import dataclass


class Missing(Exception):
    """A benchmark cannot be run here; the text says what it needs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: its name (`openb: decisions`), value and unit, and the bound it is meant to keep."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    more_is_better: bool = False
    """True if the bound is a minimum (throughput), false if it is a maximum (time)."""

    @property
    def kept(self) -> bool:
        """True if the value is within the bound, or there is no bound."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.more_is_better else self.value <= self.bound

    def to_json(self) -> dict[str, object]:
        """Return the figure as plain data."""
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "bound": self.bound,
            "moreIsBetter": self.more_is_better, "kept": self.kept,
        }
