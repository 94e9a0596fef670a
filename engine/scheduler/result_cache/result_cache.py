"""The result cache: results of filters and scores per node, shared by all pods with equal cache keys.

The cost of a pod like an earlier one is proportional to the changes since, not to the size of the cluster. Each plugin
and cache key has a column of results, one per node. Each profile and set of cache keys has a combined result: which
filter refused each node first, or the weighted total. The change log says which rows to recompute: those of nodes where
something changed that the plugin reads. A plugin whose results cannot be cached (they depend on other nodes, or on more
than a cache key can name) is called for each pod, at its place among the others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.change_log import NO_ROWS, Log
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Errors, Point, Refusal, Scores, are_scores
from koordpolicy.engine.framework.scheduler import CycleState

from ..cycle.rowwise import describe
from ..cycle.verdict import Filtered
from ..profiles.profile import Active, Profile

_CACHE: Final = "result cache"
_MOST_BYTES: Final = 256 * 1024 * 1024
"""The maximum memory of all combined results of a profile."""
_FEWEST: Final = 16
_MANY: Final = 4
"""If more than one row in this number changed, all rows are recomputed, which is not slower."""

_CHEAP: Final = 256
"""Up to this number of rows a function of arrays takes about the same time as for one."""

_BOOLEAN: Final = np.dtype(np.bool_)
_INTEGER: Final = np.dtype(np.int64)
_Booleans = NDArray[np.bool_]
_Kept = TypeVar("_Kept")
_Group = TypeVar("_Group", bound=Hashable)
_NOT_CACHED: Final = object()
_NO_ERRORS: Final[Errors] = {}
_MOST_SHAPES: Final = 2_048
"""The maximum number of pod shapes with cached keys, at each of two points."""
_MOST_KEYS: Final = 4_096
_TOLD: Final[WeakKeyDictionary[Profile, set[tuple[str, Point, str]]]] = WeakKeyDictionary()
"""Faults of plugins that were logged; a reload makes new profiles, whose faults are logged again."""


@lru_cache(maxsize=8)
def all_rows(size: int) -> Rows:
    """Return the rows of `size` nodes, read-only."""
    rows = np.arange(size, dtype=np.intp)
    rows.flags.writeable = False
    return rows


class Uncacheable(Exception):
    """A plugin's result breaks its protocol: the plugin is called uncached, which reports it."""


class UncacheablePlugin(Exception):
    """The plugin at a place has no cacheable result for this pod."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class CopyOnWriteArray:
    """An array that is written in place and shared with verdicts: a shared one is copied before the next write."""

    __slots__ = ("_shared", "values")

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        """Read-only; valid until the next decision, see `share`."""
        self._shared = False

    def share(self) -> NDArray[Any]:
        """Return the current values, read-only; later writes do not change the returned array."""
        self._shared = True
        return self.values

    def write_rows(self, rows: Rows, values: NDArray[Any]) -> None:
        """Write some rows, or all of them."""
        if len(rows) == len(self.values):
            self.values, self._shared = values.astype(self.values.dtype), False
            return
        if self._shared:
            self.values, self._shared = self.values.copy(), False
        self.values[rows] = values


class CachedColumn(CopyOnWriteArray):
    """One plugin's results for one cache key, a row per node, with all changes up to `stamp`."""

    __slots__ = ("__weakref__", "_refuses", "altered", "epoch", "errors", "last_epoch", "stale", "stamp")

    def __init__(self, size: int, dtype: type[np.generic]) -> None:
        super().__init__(np.zeros(size, dtype))
        self._refuses: bool | None = None
        self.stale: _Booleans = np.ones(0 if dtype is np.bool_ else size, np.bool_)
        """Of scores: the rows that changed since the plugin scored them. Filters have none."""
        self.stamp = -1
        """All changes up to this stamp are included; -1 before the first result."""
        self.altered = -1
        """The stamp of the last change of a value."""
        self.epoch: int | None = None
        """The number of the epoch of the values."""
        self.last_epoch: tuple[Hashable, int] = (None, 0)
        """The last epoch of the cache key, and its number."""
        self.errors: dict[str, dict[int, EvaluationError]] = {}

    @property
    def bytes(self) -> int:
        """The approximate memory of the column."""
        return self.values.nbytes + self.stale.nbytes

    def epoch_of(self, said: Hashable) -> int:
        """Return the number of an epoch; a changed epoch has a new number. Comparing epochs may raise."""
        before, number = self.last_epoch
        if number == 0 or before != said:
            number += 1
            self.last_epoch = said, number
        return number

    def write(self, rows: Rows, values: NDArray[Any], errors: Errors, stamp: int) -> None:
        """Write the results of some rows."""
        if self.errors or errors:
            self._take_over(rows, errors)
        self.stamp = stamp
        # Recomputed scores mostly differ; unchanged results of a filter need not be combined again.
        if values.dtype.kind == "b":
            before = self.values if len(rows) == len(self.values) else self.values[rows]
            if before.tobytes() == values.tobytes():
                return
        self.write_rows(rows, values)
        self._refuses = None
        self.altered = stamp

    def refuses(self) -> bool:
        """Return whether the filter refuses any node; computed once per change."""
        found = self._refuses
        if found is None:
            found = self._refuses = np.count_nonzero(self.values) != len(self.values)
        return found

    def _take_over(self, rows: Rows, errors: Errors) -> None:
        gone = rows.tolist()  # only the written rows: the errors may be of thousands
        for rule, found in list(self.errors.items()):
            for row in gone:
                found.pop(row, None)
            if not found:
                del self.errors[rule]
        for rule, added in errors.items():
            if added:
                self.errors.setdefault(rule, {}).update(added)


@dataclass(slots=True)
class DependencyGroup:
    """Columns that depend on the same paths, and the stamp up to which the combined result includes them."""

    paths: frozenset[Path]
    logs: tuple[Log, ...]
    numbers: list[int]
    stamp: int = -1
    vectorized: bool = True
    """True if all its keys are `vectorized`: then many rows take hardly longer than a few."""

    def last(self) -> int:
        """Return the stamp of the last change in one of the logs."""
        logs = self.logs
        return logs[0].last if len(logs) == 1 else max([log.last for log in logs], default=0)


class _Divided(NamedTuple):
    """Changed rows: those to be scored, and the others."""

    asked: Rows
    others: Rows
    changed: Rows | None = None
    """All changed rows, if scoring them costs no more than leaving the others out."""


_NOTHING: Final = _Divided(NO_ROWS, NO_ROWS)


class CombinedResult(CopyOnWriteArray):
    """The columns of all plugins of one point for a pod's cache keys, and their combination, refreshed together.

    For filters the combination is the index of the first filter that refuses the node (-1 if none does), for scorers
    the weighted total.
    """

    __slots__ = (
        "_covered",
        "_inside",
        "_left",
        "actives",
        "columns",
        "epochs",
        "no_epochs",
        "parts",
        "places",
        "questions",
        "stale",
        "uncached",
        "weights",
    )

    def __init__(
        self, values: NDArray[Any], actives: list[Active], places: list[int], uncached: list[tuple[int, Active]],
    ) -> None:
        super().__init__(values)
        self.actives = actives
        """The plugins whose results are cached."""
        self.places = places
        """The index of each among all plugins of the point."""
        self.uncached = uncached
        """The plugins whose results are not cached, each with its index."""
        self.weights = np.array([active.weight for active in actives], np.int64)
        self.questions: list[CacheKey] = []
        """The cache keys of the columns."""
        self.columns: list[CachedColumn] = []
        self.epochs: list[int | None] = []
        self.no_epochs: list[int | None] = [None] * len(actives)
        """The epochs of keys that have none."""
        self.parts: list[DependencyGroup] = []
        self.stale: _Booleans = np.ones(len(values) if values.dtype == np.int64 else 0, np.bool_)
        """Of scores: the rows whose total is out of date. Scores of nodes that no pod can take are not computed."""
        self._covered: Rows | None = None
        self._inside: _Booleans | None = None
        """The covered rows as bools; computed when they are read."""
        self._left: dict[int, Rows] = {}

    def covers(self, rows: Rows) -> bool:
        """Return whether these rows (the same array) are those whose totals were refreshed last."""
        return rows is self._covered

    def cover(self, rows: Rows) -> None:
        """Record that the totals of these rows are up to date."""
        self._covered, self._inside = rows, None

    def divided(self, rows: Rows) -> _Divided:
        """Divide changed rows by whether they are covered."""
        covered = self._covered
        assert covered is not None
        if len(covered) == len(self.values):
            return _Divided(rows, NO_ROWS)
        if self._inside is None:
            self._inside = np.zeros(len(self.values), np.bool_)
            self._inside[covered] = True
        inside = self._inside[rows]
        asked = rows[inside]
        if len(asked) == len(rows):
            return _Divided(rows, NO_ROWS)
        others = rows[~inside]
        return _Divided(asked, others, rows if len(rows) <= _CHEAP or len(others) <= len(asked) else None)

    def stale_among(self, rows: Rows) -> Rows:
        """Return which of the rows have a total that is out of date."""
        return rows[self.stale[rows]]

    def left_before(self, place: int) -> Rows:
        """Return the rows that no cached filter before the index `place` refuses, read-only."""
        rows = self._left.get(place)
        if rows is None:
            # As an unsigned number -1, which stands for no filter, is larger than any index.
            rows = (self.values.view(np.uint16) > place).nonzero()[0]
            if len(rows) == len(self.values):
                rows = all_rows(len(rows))
            self._left[place] = rows
        return rows

    def update(self, rows: Rows, values: NDArray[Any]) -> None:
        """Write the combination of some rows."""
        self.write_rows(rows, values)
        self._left.clear()

    def errors(self, rows: Rows) -> dict[int, dict[str, Mapping[int, EvaluationError]]]:
        """Return the errors at some rows, by place."""
        return {place: among(column.errors, rows) for place, column in zip(self.places, self.columns, strict=True)
                if column.errors}

    @property
    def bytes(self) -> int:
        """The approximate memory, without the columns."""
        return self.values.nbytes + 2 * self.stale.nbytes


@dataclass(slots=True)
class _ShapeKeys:
    """The cache keys of pods of one shape, by plugin of a point; None for a plugin without one, or that failed."""

    each: list[CacheKey | None]
    passing: list[int]
    """The places of keys that are not stable for the shape."""
    key: Hashable
    """The key of their combined result."""
    stamps: dict[int, int] = field(default_factory=dict)
    """By place, the stamp at which a plugin returned a key that is stable until a node changes."""
    asks: list[CacheKey] = field(init=False)
    """The keys of the plugins that have one."""
    has_epochs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.update(self.key)

    def update(self, key: Hashable) -> None:
        """Take over what follows from changed keys."""
        self.key = key
        self.asks = [each for each in self.each if each is not None]
        self.has_epochs = any([each.epoch is not None for each in self.asks])


class _Latest(OrderedDict[Hashable, _Kept]):
    """A bounded map: the least recently used entries are dropped."""

    def find(self, key: Hashable) -> _Kept | None:
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: Hashable, value: _Kept, most: int) -> None:
        while len(self) >= most:
            self.popitem(last=False)
        self[key] = value


class _Groups(_Latest[CombinedResult]):
    """Combined results, bounded by memory, least recently used dropped; a shared column counts once."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self._sharing: dict[CachedColumn, int] = {}

    def add(self, key: Hashable, group: CombinedResult) -> None:
        """Add a combined result, and drop the least recently used."""
        self[key] = group
        self._bytes += group.bytes
        for column in group.columns:
            sharing = self._sharing.get(column, 0)
            self._sharing[column] = sharing + 1
            if not sharing:
                self._bytes += column.bytes
        while self._bytes > _MOST_BYTES and len(self) > _FEWEST:
            self._forget(self.popitem(last=False)[1])

    def _forget(self, group: CombinedResult) -> None:
        self._bytes -= group.bytes
        for column in group.columns:
            self._sharing[column] -= 1
            if not self._sharing[column]:
                del self._sharing[column]
                self._bytes -= column.bytes


class _OfProfile:
    """The cache of one profile: combined results and the cache keys of shapes, least recently used dropped."""

    def __init__(self) -> None:
        self.groups = _Groups()
        self.questions = _Latest[_ShapeKeys]()
        """By point, the plugins that are skipped, and shape."""


class _ClusterCache:
    """The cache of one cluster.

    A column lives as long as a combined result uses it; equal cache keys share a column.
    """

    def __init__(self) -> None:
        self._profiles: WeakKeyDictionary[Any, _OfProfile] = WeakKeyDictionary()
        self._columns: WeakKeyDictionary[Any, WeakValueDictionary[Hashable, CachedColumn]] = WeakKeyDictionary()
        self._keys: WeakKeyDictionary[Any, dict[Hashable, int]] = WeakKeyDictionary()
        self._numbers = count()

    def of(self, profile: object) -> _OfProfile:
        """Return the cache of a profile."""
        found = self._profiles.get(profile)
        if found is None:
            found = self._profiles[profile] = _OfProfile()
        return found

    def key_of(self, ask: Any, point: Point, key: Hashable) -> int:
        """Return the number of a key: plugins' own keys are compared here and nowhere else. Comparing may raise."""
        known = self._keys.setdefault(ask, {})
        number = known.get((point, key))
        if number is None:
            if len(known) >= _MOST_KEYS:
                known.clear()  # no number comes again
            number = known[point, key] = next(self._numbers)
        return number

    def column(self, ask: Any, point: Point, key: Hashable, size: int) -> CachedColumn:
        """Return a plugin's column for a cache key, a new one if there is none."""
        columns = self._columns.setdefault(ask, WeakValueDictionary())
        column = columns.get((point, key))
        if column is None:
            column = columns[point, key] = CachedColumn(size, np.bool_ if point is Point.FILTER else np.int8)
        return column


class ResultCache:
    """The cached results about one pod, for one decision; see the module."""

    def __init__(self, profile: Profile, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> None:
        """`snapshot` must not be an overlay."""
        self._profile = profile
        self._state = state
        self._pod = pod
        self._snapshot = snapshot
        self._cluster = cluster = snapshot.cluster
        store = cluster.cross_version_cache.get(_CACHE)
        if not isinstance(store, _ClusterCache):
            store = cluster.cross_version_cache[_CACHE] = _ClusterCache()
        self._store = store
        self._everything = all_rows(snapshot.size)
        self._shape = pod.shape()

    def is_about(self, pod: PodInfo, snapshot: Snapshot) -> bool:
        """Return whether these results are for that pod and that snapshot."""
        return pod is self._pod and snapshot is self._snapshot

    def answers(self, point: Point, skipped: frozenset[str], rows: Rows) -> CombinedResult:
        """Return the refreshed combined result of the plugins that are not skipped and have a cache key.

        Filters are evaluated for all nodes, scorers for `rows` only: the scores of other rows are undefined. The
        plugins in `uncached` must be called for this pod.
        """
        actives, kept = self._profile.without(point, skipped), self._store.of(self._profile)
        questions = self._questions(kept, point, skipped, actives)
        held: list[CachedColumn] = []
        """Cache keys that plugins returned before one turned out to be uncacheable."""
        while True:
            try:
                group = kept.groups.find(questions.key)
                known = group is not None
                if group is None:
                    group = self._grouped(point, actives, questions.each, held)
                if point is Point.FILTER:
                    self._follow(group, questions)
                else:
                    self._refresh(group, questions, rows)
                if not known:
                    kept.groups.add(questions.key, group)
            except UncacheablePlugin as failed:
                each = [None if place == failed.place else every for place, every in enumerate(questions.each)]
                questions = _ShapeKeys(each, [], _key_of(point, skipped, each))
            else:
                return group

    def _questions(
        self, kept: _OfProfile, point: Point, skipped: frozenset[str], actives: Sequence[Active],
    ) -> _ShapeKeys:
        """Return the pod's cache keys; only keys that are not stable for the shape are requested again."""
        of_shape = point, skipped, self._shape
        known = kept.questions.find(of_shape) if self._shape is not None else None
        if known is None:
            among = self._profile.repeating[point]
            each = [self._question(point, active) if active.plugin.name in among else None for active in actives]
            passing = [place for place, (active, cache_key) in enumerate(zip(actives, each, strict=True))
                       if active.plugin.name in among and (cache_key is None or not cache_key.stable_for_shape)]
            known = _ShapeKeys(each, passing, _key_of(point, skipped, each))
            for place in passing:
                self._note_stamp(known, place)
            if self._shape is not None:
                kept.questions.keep(of_shape, known, _MOST_SHAPES)
            return known
        due = [place for place in known.passing if not self._is_stable(known, place)]
        if due:
            for place in due:
                known.each[place] = self._question(point, actives[place])
                self._note_stamp(known, place)
            known.update(_key_of(point, skipped, known.each))
        return known

    def _note_stamp(self, keys: _ShapeKeys, place: int) -> None:
        cache_key = keys.each[place]
        if cache_key is not None and cache_key.stable_until is not None:
            keys.stamps[place] = self._cluster.stamp(cache_key.stable_until)

    def _is_stable(self, keys: _ShapeKeys, place: int) -> bool:
        """Return whether no node has changed at the paths of `stable_until` since the key was returned."""
        cache_key = keys.each[place]
        return (cache_key is not None and cache_key.stable_until is not None
                and self._cluster.stamp(cache_key.stable_until) == keys.stamps[place])

    def _question(self, point: Point, active: Active) -> CacheKey | None:
        """Return a plugin's cache key; None if it has none: then it is called uncached."""
        try:
            cache_key = _question_of(active.ask.cache_key(point, self._pod, self._snapshot))
            if cache_key is not None:
                cache_key = cache_key._replace(key=self._store.key_of(active.ask, point, cache_key.key))
                self._cluster.logs(cache_key.paths)
                if cache_key.stable_until is not None:
                    self._cluster.logs(cache_key.stable_until)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self._tell(active, point, "its question", error)
            return None
        return cache_key

    def _tell(self, active: Active, point: Point, what: str, error: BaseException) -> None:
        """Log, once, a fault of a plugin that only costs time: the plugin is called uncached."""
        told, about = _TOLD.setdefault(self._profile, set()), (active.name, point, what)
        if about not in told:
            told.add(about)
            logging.getLogger(f"koordpolicy.scheduler.{active.name}").warning(
                "the plugin `%s` at `%s`: %s is of no use: %s", active.name, point.value, what, describe(error),
            )

    def _grouped(
        self, point: Point, actives: Sequence[Active], questions: Sequence[CacheKey | None], held: list[CachedColumn],
    ) -> CombinedResult:
        asked = [(place, cache_key) for place, cache_key in enumerate(questions) if cache_key is not None]
        size = self._snapshot.size
        values = np.full(size, -1, np.int16) if point is Point.FILTER else np.zeros(size, np.int64)
        group = CombinedResult(values, [actives[place] for place, _ in asked], [place for place, _ in asked],
                      [(place, active) for place, active in enumerate(actives) if questions[place] is None])
        parts: dict[tuple[Log, ...], DependencyGroup] = {}
        for number, ((_, cache_key), active) in enumerate(zip(asked, group.actives, strict=True)):
            group.questions.append(cache_key)
            group.columns.append(self._store.column(active.ask, point, cache_key.key, size))
            held.append(group.columns[-1])
            logs = self._cluster.logs(cache_key.paths)
            part = parts.setdefault(logs, DependencyGroup(cache_key.paths, logs, []))
            part.numbers.append(number)
            part.vectorized = part.vectorized and cache_key.vectorized is not None
        group.parts = list(parts.values())
        return group

    def _epochs(self, point: Point, group: CombinedResult, questions: _ShapeKeys) -> list[int | None]:
        """Return the current epochs of the columns' keys."""
        if not questions.has_epochs:
            return group.no_epochs
        return [None if each.epoch is None else self._epoch(point, group, number, each.epoch)
                for number, each in enumerate(questions.asks)]

    def _refresh(self, group: CombinedResult, questions: _ShapeKeys, rows: Rows) -> None:
        """Score the stale ones of the rows; mark other changed rows as stale."""
        asks, epochs = questions.asks, self._epochs(Point.SCORE, group, questions)
        stamps = [part.last() for part in group.parts]
        columns = group.columns
        changes = [NO_ROWS if part.stamp == stamp else self._changed_since(part, part.stamp)
                   for part, stamp in zip(group.parts, stamps, strict=True)]
        valid = epochs == group.epochs
        for changed in changes:
            valid = valid and changed is not None
        # Of the rows of the last refresh only those changed since are stale, so no mark is read.
        follows = valid and group.covers(rows)
        if not valid:
            group.stale[:] = True
        divided: dict[int, _Divided] = {}
        due: list[tuple[int, int, _Divided | None]] = []
        """Columns by number, with the stamp that they include, and the changed rows; None if marks hold them."""
        for part, stamp, changed in zip(group.parts, stamps, changes, strict=True):
            if follows and stamp == part.stamp:
                continue  # nor has an epoch of its columns changed: numbers of epochs are not reused
            found = _NOTHING if changed is not None else None
            if changed is not None and len(changed):
                found = divided.get(id(changed))
                if found is None:
                    found = divided[id(changed)] = group.divided(changed) if follows else _Divided(NO_ROWS, changed)
                    if len(found.others):
                        group.stale[found.others] = True
            for number in part.numbers:
                column, known = columns[number], None
                if column.epoch != epochs[number]:
                    column.stale[:] = True
                elif column.stamp == part.stamp and found is not None:
                    if follows:
                        known = found
                    else:
                        column.stale[changed] = True
                elif column.stamp != stamp:
                    missed = self._changed_since(part, column.stamp)
                    column.stale[slice(None) if missed is None else missed] = True
                due.append((number, stamp, known))
        stale = _union([each.asked for each in divided.values()]) if follows else group.stale_among(rows)
        for number, stamp, known in due:
            column, cache_key = columns[number], asks[number]
            if known is not None:
                self._score_changed(group, number, cache_key, known, stamp)
            else:
                of_column = stale
                if cache_key.vectorized is None or len(stale) > _CHEAP:
                    marked = column.stale[stale]
                    of_column = stale if marked.all() else stale[marked]
                if len(of_column):
                    values, errors = self._asked(Point.SCORE, group, number, cache_key, of_column)
                    column.write(of_column, values, errors, stamp)
                    column.stale[of_column] = False
            column.epoch, column.stamp = epochs[number], stamp
        if len(stale):
            group.update(stale, _total(group, stale))
        # Set last: if a plugin fails before this, the combined result is not up to date.
        if not follows:
            group.stale[stale] = False
            group.cover(rows)
        for part, stamp in zip(group.parts, stamps, strict=True):
            part.stamp = stamp
        group.epochs = epochs

    def _score_changed(
        self, group: CombinedResult, number: int, cache_key: CacheKey, rows: _Divided, stamp: int,
    ) -> None:
        """Score changed rows, and mark the others as stale."""
        column, asked, others = group.columns[number], rows.asked, rows.others
        if len(others):
            # Filters were called for the same array, so the columns gathered for them are reused. An invalid score of a
            # row where the pod cannot run is no fault.
            if cache_key.vectorized is not None and rows.changed is not None:
                said = self._said(Point.SCORE, group.actives[number], cache_key.vectorized, rows.changed)
                if said is not None:
                    column.write(rows.changed, said, _NO_ERRORS, stamp)
                    return
            column.stale[others] = True
        if len(asked):
            values, errors = self._asked(Point.SCORE, group, number, cache_key, asked)
            column.write(asked, values, errors, stamp)

    def _changed_since(self, part: DependencyGroup, since: int) -> Rows | None:
        """Return the rows that changed since then; None if unknown, or if all are to be recomputed."""
        if since < 0 or (part.vectorized and self._snapshot.size < self._cluster.following_from):
            return None
        return self._cluster.changed(part.paths, since)

    def _follow(self, group: CombinedResult, questions: _ShapeKeys) -> None:
        """Run filters on the changed rows, and refresh which filter refuses each row first."""
        point, columns = Point.FILTER, group.columns
        asks, epochs = questions.asks, self._epochs(point, group, questions)
        stamps = [part.last() for part in group.parts]
        of_columns = [column.epoch for column in columns]
        behind: dict[int, Rows] = {}
        refreshed, same = epochs != group.epochs, epochs == of_columns
        for part, stamp in zip(group.parts, stamps, strict=True):
            since, altered = part.stamp, False
            # Another combined result may have refreshed the column to another epoch.
            if stamp == since and (same or all(epochs[number] == of_columns[number] for number in part.numbers)):
                continue
            refreshed = refreshed or since < 0
            before, rows = since, self._changed(part, since)
            for number in part.numbers:
                column, epoch = columns[number], epochs[number]
                if column.stamp != stamp or column.epoch != epoch:
                    if column.stamp != before:
                        before, rows = column.stamp, self._changed(part, column.stamp)
                    asked = self._everything if rows is None or column.epoch != epoch else rows
                    values, errors = self._asked(point, group, number, asks[number], asked)
                    column.write(asked, values, errors, stamp)
                    column.epoch = epoch
                altered = altered or column.altered > since
            if altered:
                if before != since:
                    rows = self._changed(part, since)
                if rows is None:
                    refreshed = True
                else:
                    behind[id(rows)] = rows
        combined = self._everything if refreshed else _union(list(behind.values()))
        if len(combined):
            group.update(combined, _refused_first(group, combined))
        # Set last: if a plugin fails before this, nothing is up to date.
        for part, stamp in zip(group.parts, stamps, strict=True):
            part.stamp = stamp
        group.epochs = epochs

    def _epoch(
        self, point: Point, group: CombinedResult, number: int, epoch: Callable[[Snapshot], Hashable],
    ) -> int:
        try:
            return group.columns[number].epoch_of(epoch(self._snapshot))
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self._tell(group.actives[number], point, "the epoch of its question", error)
            raise UncacheablePlugin(group.places[number]) from error

    def _changed(self, part: DependencyGroup, since: int) -> Rows | None:
        """Return the rows that changed since then; None if unknown, or if so many did that all are recomputed."""
        rows = self._changed_since(part, since)
        return None if rows is None or len(rows) * _MANY > self._snapshot.size else rows

    def _asked(
        self, point: Point, group: CombinedResult, number: int, cache_key: CacheKey, rows: Rows,
    ) -> tuple[NDArray[Any], Errors]:
        """Return a plugin's results for some rows."""
        if not len(rows):
            return group.columns[number].values[rows], {}
        active = group.actives[number]
        if cache_key.vectorized is not None:
            values = self._said(point, active, cache_key.vectorized, rows)
            if values is not None:
                return values, _NO_ERRORS
        answered = _filtered if point is Point.FILTER else _scored
        try:
            return answered(active.ask, self._state, self._pod, self._snapshot, rows)
        except BaseException as error:
            must_be_survived(error)
            raise UncacheablePlugin(group.places[number]) from error

    def _said(
        self, point: Point, active: Active, answer: Callable[[Snapshot, Rows], NDArray[Any] | None], rows: Rows,
    ) -> NDArray[Any] | None:
        """Return the vectorized result of a cache key; None if the plugin must be called."""
        try:
            values = answer(self._snapshot, rows)
            return None if values is None else _sound(values, point, len(rows))
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self._tell(active, point, "the answer of its question", error)
            return None


def _union(found: Sequence[Rows]) -> Rows:
    """Return the rows that are in one of some arrays of ascending rows."""
    if len(found) < 2:
        return found[0] if found else NO_ROWS
    return np.unique(np.concatenate(found))


def _question_of(said: object) -> CacheKey | None:
    if said is None or isinstance(said, CacheKey):
        return said
    raise TypeError(f"it must be a `CacheKey` or None, not {type(said).__name__}")


def _key_of(point: Point, skipped: frozenset[str], questions: Sequence[CacheKey | None]) -> Hashable:
    return point, skipped, tuple([_NOT_CACHED if each is None else each.key for each in questions])


def _filtered(
    ask: Any, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
) -> tuple[NDArray[np.bool_], Errors]:
    """Return which of the rows pass, and the errors."""
    answer: Answer = ask.filter(state, pod, snapshot, rows)
    return _of_rows(answer.passed, np.bool_, rows, snapshot), answer.errors


def _scored(
    ask: Any, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
) -> tuple[NDArray[np.int64], Errors]:
    """Return the scores of the rows, and the errors."""
    scores: Scores = ask.score(state, pod, snapshot, rows)
    chosen = _of_rows(scores.values, np.int64, rows, snapshot)
    if not are_scores(chosen):
        raise Uncacheable
    return chosen, scores.errors


def _sound(values: NDArray[Any], point: Point, size: int) -> NDArray[Any] | None:
    """Return a validated vectorized result; None for scores out of range: the plugin is then called for its errors."""
    wanted = _BOOLEAN if point is Point.FILTER else _INTEGER
    if values.dtype != wanted or values.shape != (size,):
        raise TypeError(f"it must be {size} values of {wanted}, not {values.dtype} of shape {values.shape}")
    return values if point is Point.FILTER or not len(values) or are_scores(values) else None


def _of_rows(values: NDArray[Any], wanted: type[np.generic], rows: Rows, snapshot: Snapshot) -> NDArray[Any]:
    """Return a plugin's results for these rows, of a result that may have more."""
    if values.dtype != wanted or values.ndim != 1:
        raise Uncacheable
    if len(values) == len(rows):
        return values
    if len(values) != snapshot.size:
        raise Uncacheable
    return values[rows]


def _refused_first(group: CombinedResult, rows: Rows) -> NDArray[np.int16]:
    first = np.full(len(rows), -1, np.int16)
    everywhere = len(rows) == len(group.values)
    for place, column in zip(reversed(group.places), reversed(group.columns), strict=True):
        if column.refuses():
            np.putmask(first, ~(column.values if everywhere else column.values[rows]), place)
    return first


def _total(group: CombinedResult, rows: Rows) -> NDArray[np.int64]:
    if len(rows) <= _CHEAP and group.columns:
        # One product: a sum per column costs more than the amounts of a few rows.
        few: NDArray[np.int64] = group.weights @ np.array([column.values[rows] for column in group.columns])
        return few
    total = np.zeros(len(rows), np.int64)
    for active, column in zip(group.actives, group.columns, strict=True):
        scores = column.values[rows]
        total += scores if active.weight == 1 else scores * np.int64(active.weight)
    return total


def recomputed(
    active: Active, cache_key: CacheKey, state: CycleState, pod: PodInfo, snapshot: Snapshot, *, refused: Rows,
) -> Answer:
    """Return a filter's answer with the `refused` nodes; the filter is called for reasons when they are read.

    The `refusal` of the cache key, if it has one, is that of all of them.
    """
    known: list[Answer] = []

    def real() -> Answer:
        if not known:
            # The pod's own cycle state may be of another version of the cluster.
            answer = active.ask.filter(CycleState(state), pod, snapshot, refused)
            known.append(answer.spread(refused, snapshot.size))
        return known[0]

    def explain(row: int) -> Refusal:
        answer = real()
        if answer.passed[row]:
            if snapshot.version == snapshot.cluster.version:
                return Refusal("", "refused by a cached result, and not by the plugin now: its `cache_key` does not "
                               "name all that its results depend on, or its `vectorized` result differs")
            return Refusal("", "refused at the time of the decision; the cluster has changed since")
        return answer.explain(row)

    def worded(row: int) -> str:
        refusal = explain(row)
        return refusal.message or refusal.rule

    def still(rows: Rows) -> bool:
        return not real().passed[rows].any()

    def said(rows: Rows) -> Mapping[str, Rows] | None:
        """Return the reasons of the cache key, if it still refuses all of these rows."""
        if cache_key.reasons is None or cache_key.vectorized is None or snapshot.version != snapshot.cluster.version:
            return None
        passed = cache_key.vectorized(snapshot, rows)
        return None if passed is None or passed.any() else cache_key.reasons(snapshot, rows)

    def reasons(rows: Rows) -> Mapping[str, Rows]:
        found = said(rows)
        if found is not None:
            return found
        answer = real()
        if answer.reasons is not None and still(rows):
            return answer.reasons(rows)
        return _by(rows, worded)

    def codes(rows: Rows) -> Mapping[Code, Rows]:
        answer = real()
        if answer.codes is not None and still(rows):
            return answer.codes(rows)
        return _by(rows, lambda row: explain(row).code)

    def rules(rows: Rows) -> frozenset[str]:
        answer = real()
        if answer.rules is not None and still(rows):
            return answer.rules(rows)
        return frozenset(_by(rows, lambda row: explain(row).rule))

    def brief(rows: Rows) -> Mapping[str, Rows]:
        if cache_key.reasons is not None:
            return reasons(rows)
        answer = real()
        return answer.brief(rows) if answer.brief is not None and still(rows) else reasons(rows)

    passed: _Booleans = np.ones(snapshot.size, np.bool_)
    passed[refused] = False
    same = cache_key.refusal
    if same is not None:
        return Answer(passed, explain, {}, lambda rows: {same.message: rows} if len(rows) else {},
                      lambda rows: {same.code: rows} if len(rows) else {},
                      lambda rows: frozenset({same.rule} if len(rows) else ()))
    return Answer(passed, explain, {}, reasons, codes, rules, brief)


def _by(rows: Rows, group: Callable[[int], _Group]) -> dict[_Group, Rows]:
    found: dict[_Group, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(group(row), []).append(row)
    return {name: np.array(each, np.intp) for name, each in found.items()}


def among(errors: Errors, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
    """Return the errors of these rows."""
    if not errors:
        return {}
    wanted = set(rows.tolist())
    found = {rule: {row: error for row, error in failed.items() if row in wanted} for rule, failed in errors.items()}
    return {rule: failed for rule, failed in found.items() if failed}


def step_of(active: Active, answer: Answer, errors: Errors, asked: Rows, refused: Rows) -> Filtered:
    """Return one filter's step of the verdict, with its errors."""
    plugin = active.plugin
    return Filtered(plugin.name, plugin.origin, replace(answer, errors=errors), asked, refused, plugin.enforcement)
