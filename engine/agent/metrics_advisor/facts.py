"""Collectors of facts: what rarely changes, and is no series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from .collector import MetricCollector, Sources

F = TypeVar("F")


class FactCollector(MetricCollector, Generic[F]):
    """Reads a fact of the machine again and again; the last one that could be read stays."""

    def __init__(
        self, name: str, sources: Sources, interval: int, read: Callable[[], F], *, enabled: bool = True,
    ) -> None:
        """`read` raises `OSError` or `ValueError` if the fact cannot be read now."""
        self.name = name
        super().__init__(sources, interval, enabled=enabled)
        self._read = read
        self.value: F | None = None
        """The last fact; None before the first one."""
        self.successes = 0

    def collect(self, now: int) -> None:  # noqa: ARG002 - the parameter of all collectors
        """Read."""
        try:
            found = self._read()
        except (OSError, ValueError):
            self.failures += 1
            raise
        # An equal value stays the same object: what is derived from it need not be computed again.
        if self.value is None or found != self.value:
            self.value = found
        self.successes += 1
        self.started = True
