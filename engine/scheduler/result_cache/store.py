"""Storage of the result cache of a cluster, and its bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from koordpolicy.engine.cluster.change_log import Log, last_of
from koordpolicy.engine.framework.points import CacheKey, Point

from .columns import ResultColumn
from .combined_result import CombinedResult

_MOST_BYTES: Final = 256 * 1024 * 1024
"""The maximum memory of all combined results of a profile."""
_FEWEST: Final = 16
_MOST_RESULTS: Final = 2_048
"""The maximum number of combined results of a profile, as of shapes: without it, young objects of results that are not
found again would survive in each decision until the memory is used up, and the garbage collector would visit them."""
_MOST_KEYS: Final = 4_096
_Value = TypeVar("_Value")


@dataclass(slots=True)
class ShapeKeys:
    """The cache keys of pods of one shape, by plugin of a point; None for a plugin without one, or that failed."""

    each: list[CacheKey | None]
    passing: list[int]
    """The places of keys that are not stable for the shape."""
    key: Hashable
    """The key of their combined result."""
    until: dict[int, tuple[tuple[Log, ...], int]] = field(default_factory=dict)
    """By place, the logs of the changes until which a plugin's key is stable, and their stamp when it returned it."""
    present: list[CacheKey] = field(init=False)
    """The keys of the plugins that have one, without those that score all nodes alike."""
    has_epochs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.update(self.key)

    def due(self) -> list[int]:
        """Return the places of keys that may have changed: not of those that are stable until a node changes."""
        due = []
        for place in self.passing:
            until = self.until.get(place)
            if until is None or last_of(until[0]) != until[1]:
                due.append(place)
        return due

    def update(self, key: Hashable) -> None:
        """Take over what follows from changed keys."""
        self.key = key
        self.present = [each for each in self.each if each is not None and each.score is None]
        self.has_epochs = any([each.epoch is not None for each in self.present])  # noqa: C419 - a list is faster


class Latest(OrderedDict[Hashable, _Value]):
    """A bounded map: the least recently used entries are dropped."""

    def find(self, key: Hashable) -> _Value | None:
        """Return the entry of a key, which is used now, or None."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: Hashable, value: _Value, most: int) -> None:
        """Add an entry; at most `most` stay."""
        while len(self) >= most:
            self.popitem(last=False)
        self[key] = value


class CombinedResults(Latest[CombinedResult]):
    """Combined results, bounded in number and memory, least recently used dropped; a shared column counts once."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self._sharing: dict[ResultColumn, int] = {}

    def add(self, key: Hashable, group: CombinedResult) -> None:
        """Add a combined result, and drop the least recently used."""
        self[key] = group
        self._bytes += group.bytes
        for column in group.columns:
            sharing = self._sharing.get(column, 0)
            self._sharing[column] = sharing + 1
            if not sharing:
                self._bytes += column.bytes
        while len(self) > _MOST_RESULTS or (self._bytes > _MOST_BYTES and len(self) > _FEWEST):
            self._forget(self.popitem(last=False)[1])

    def _forget(self, group: CombinedResult) -> None:
        self._bytes -= group.bytes
        for column in group.columns:
            self._sharing[column] -= 1
            if not self._sharing[column]:
                del self._sharing[column]
                self._bytes -= column.bytes


class ProfileStore:
    """The cache of one profile: combined results and the cache keys of shapes, least recently used dropped."""

    def __init__(self) -> None:
        self.groups = CombinedResults()
        self.shape_keys = Latest[ShapeKeys]()
        """By point, the plugins that are skipped, and shape."""


class ClusterStore:
    """The cache of one cluster.

    A column lives as long as a combined result uses it; equal cache keys share a column.
    """

    def __init__(self) -> None:
        self._profiles: WeakKeyDictionary[Any, ProfileStore] = WeakKeyDictionary()
        self._columns: WeakKeyDictionary[Any, WeakValueDictionary[Hashable, ResultColumn]] = WeakKeyDictionary()
        self._keys: WeakKeyDictionary[Any, dict[Hashable, int]] = WeakKeyDictionary()
        self._numbers = count()

    def of(self, profile: object) -> ProfileStore:
        """Return the cache of a profile."""
        found = self._profiles.get(profile)
        if found is None:
            found = self._profiles[profile] = ProfileStore()
        return found

    def key_of(self, plugin: Any, point: Point, key: Hashable) -> int:
        """Return the number of a key: plugins' own keys are compared here and nowhere else. Comparing may raise."""
        known = self._keys.setdefault(plugin, {})
        number = known.get((point, key))
        if number is None:
            if len(known) >= _MOST_KEYS:
                known.clear()  # no number comes again
            number = known[point, key] = next(self._numbers)
        return number

    def column(self, plugin: Any, point: Point, key: Hashable, size: int) -> ResultColumn:
        """Return a plugin's column for a cache key, a new one if there is none."""
        columns = self._columns.setdefault(plugin, WeakValueDictionary())
        column = columns.get((point, key))
        if column is None:
            column = columns[point, key] = ResultColumn(size, np.bool_ if point is Point.FILTER else np.int8)
        return column
