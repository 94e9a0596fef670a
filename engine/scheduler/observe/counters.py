"""Counters that plugins maintain through their handle."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.scheduler.documents.evaluations import Evaluations
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler

from ..profiles.profile import Profile

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
TOTAL: Final = "_total"
"""The end of the names of counters."""


class Counters:
    """Adds up the plugins' counters (implements `framework.handle.Count`); may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts: dict[str, dict[Labels, float]] = {}

    def __call__(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add `amount` to a counter; a `_total` at the end of its name is dropped, since all names end with it.

        Raises `ValueError` for values that Prometheus rejects: names that are not identifiers, labels that begin
        with `__`, an amount that is negative or NaN.
        """
        if not amount >= 0:
            raise ValueError(f"the counter `{name}` cannot go down: {amount}")
        for text in (name, *labels):
            if not _NAME.fullmatch(text) or text.startswith("__"):
                raise ValueError(f"`{text}` cannot name a counter or a label: write letters, digits and `_`")
        key = tuple(sorted((label, str(value)) for label, value in labels.items()))
        with self._lock:
            amounts = self._amounts.setdefault(name.removesuffix(TOTAL), {})
            amounts[key] = amounts.get(key, 0) + amount

    def read(self) -> Mapping[str, Mapping[Labels, float]]:
        """Return the current amounts by counter and labels."""
        with self._lock:
            return {name: dict(amounts) for name, amounts in sorted(self._amounts.items())}


def evaluations_of(profiles: Iterable[Profile]) -> Iterator[tuple[str, str, Evaluations]]:
    """Yield profile, plugin and counters of each expression of the active documents."""
    seen: set[int] = set()  # of the profiles' own objects, which exist for as long as they do
    for profile in profiles:
        for point in (Point.PRE_ENQUEUE, Point.PRE_FILTER, Point.FILTER, Point.SCORE):
            for active in profile.at.get(point, ()):
                if isinstance(active.instance, DocumentScheduler):
                    for each in active.instance.evaluations.values():
                        if id(each) not in seen:
                            seen.add(id(each))
                            yield profile.name, active.name, each


def expressions_of(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """Return plain data about the expressions of the active documents, for `/status`."""
    return [{"profile": profile, "plugin": plugin} | each.to_json()
            for profile, plugin, each in evaluations_of(profiles)]
