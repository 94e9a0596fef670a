"""Counters of an agent, without a library of metrics: they are turned into its metrics when these are read."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AgentCounts:
    """Amounts by name and labels; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts: dict[str, dict[tuple[str, ...], float]] = {}

    def add(self, name: str, *labels: str, amount: float = 1) -> None:
        """Add to the counter `name` under these labels."""
        with self._lock:
            series = self._amounts.setdefault(name, {})
            series[labels] = series.get(labels, 0) + amount

    def set(self, name: str, *labels: str, amount: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._amounts.setdefault(name, {})[labels] = amount

    def keep(self, name: str, chosen: Callable[[tuple[str, ...]], bool]) -> None:
        """Drop the series of `name` whose labels are not chosen."""
        with self._lock:
            series = self._amounts.get(name, {})
            self._amounts[name] = {labels: amount for labels, amount in series.items() if chosen(labels)}

    def read(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the amounts of `name` by labels."""
        with self._lock:
            return dict(self._amounts.get(name, {}))
