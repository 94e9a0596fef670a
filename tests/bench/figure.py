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
    """Whether the bound is the least (throughput) or the most (time) that is meant."""

    @property
    def kept(self) -> bool:
        """Whether the bound is kept; true without one."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.more_is_better else self.value <= self.bound

    def to_json(self) -> dict[str, object]:
        """Return the figure as plain data."""
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "bound": self.bound,
            "moreIsBetter": self.more_is_better, "kept": self.kept,
        }
