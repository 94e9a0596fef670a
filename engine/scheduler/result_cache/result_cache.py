"""The result cache: results of filters and scores per node, shared by all pods with equal cache keys.

The cost of a pod like an earlier one is proportional to the changes since, not to the size of the cluster. Each plugin
and cache key has a column of results, one per node. Each profile and set of cache keys has a combined result: which
filter refused each node first, or the weighted total. The change log says which rows to recompute: those of nodes where
something changed that the plugin reads. A plugin whose results cannot be cached (they depend on other nodes, or on more
than a cache key can name) is called for each pod, at its place among the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.change_log import NO_ROWS, Log, last_of
from koordpolicy.engine.cluster.derived import all_rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.points import HIGHEST_SCORE, CacheKey, Errors, Point
from koordpolicy.engine.framework.scheduler import CycleState

from ..observe.metrics_recorder import PluginTimer
from ..profiles.profile import Active, Profile
from .columns import ResultColumn
from .combined_result import CHEAP, NOTHING, CombinedResult, DependencyGroup, Divided, refused_first, total_of
from .plugin_results import checked, filtered, scored
from .store import ClusterStore, ProfileStore, ShapeKeys

_CACHE: Final = "result cache"
_MANY: Final = 4
"""If more than one row in this number changed, all rows are recomputed, which is not slower."""
_NOT_CACHED: Final = object()
_NO_ERRORS: Final[Errors] = {}
_MOST_SHAPES: Final = 2_048
"""The maximum number of pod shapes with cached keys, at each of two points."""
_LOGGED: Final[WeakKeyDictionary[Profile, set[tuple[str, Point, str]]]] = WeakKeyDictionary()
"""Faults of plugins that were logged; a reload makes new profiles, whose faults are logged again."""


class UncacheablePlugin(Exception):
    """The plugin at a place has no cacheable result for this pod."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class ResultCache:
    """The cached results about one pod, for one decision; see the module."""

    def __init__(
        self, profile: Profile, state: CycleState, pod: PodInfo, snapshot: Snapshot, timer: PluginTimer | None = None,
    ) -> None:
        """`snapshot` must not be an overlay; `timer` measures calls of plugins."""
        self._timer = timer
        self._profile = profile
        self._state = state
        self._pod = pod
        self._snapshot = snapshot
        self._cluster = cluster = snapshot.cluster
        store = cluster.cross_version_cache.get(_CACHE)
        if not isinstance(store, ClusterStore):
            store = cluster.cross_version_cache[_CACHE] = ClusterStore()
        self._store = store
        self._everything = all_rows(snapshot.size)
        self._shape = pod.shape()

    def is_about(self, pod: PodInfo, snapshot: Snapshot) -> bool:
        """Return whether these results are for that pod and that snapshot."""
        return pod is self._pod and snapshot is self._snapshot

    def combined_result(self, point: Point, skipped: frozenset[str], rows: Rows) -> CombinedResult:
        """Return the refreshed combined result of the plugins that are not skipped and have a cache key.

        Filters are evaluated for all nodes, scorers for `rows` only: the scores of other rows are undefined. The
        plugins in `uncached` must be called for this pod.
        """
        actives, stored = self._profile.without(point, skipped), self._store.of(self._profile)
        keys = self._shape_keys(stored, point, skipped, actives)
        held: list[ResultColumn] = []
        """Cache keys that plugins returned before one turned out to be uncacheable."""
        while True:
            try:
                group = stored.groups.find(keys.key)
                known = group is not None
                if group is None:
                    group = self._grouped(point, actives, keys.each, held)
                if point is Point.FILTER:
                    self._follow(group, keys)
                elif group.whole:
                    self._refresh_whole(group, keys, rows)
                else:
                    self._refresh(group, keys, rows)
                if not known:
                    stored.groups.add(keys.key, group)
            except UncacheablePlugin as failed:
                each = [None if place == failed.place else every for place, every in enumerate(keys.each)]
                keys = ShapeKeys(each, [], _key_of(point, skipped, each))
            else:
                return group

    def _shape_keys(
        self, stored: ProfileStore, point: Point, skipped: frozenset[str], actives: Sequence[Active],
    ) -> ShapeKeys:
        """Return the pod's cache keys; only keys that are not stable for the shape are requested again."""
        of_shape = point, skipped, self._shape
        known = stored.shape_keys.find(of_shape) if self._shape is not None else None
        if known is None:
            among = self._profile.repeating[point]
            each = [self._cache_key(point, active) if active.plugin.name in among else None for active in actives]
            passing = [place for place, (active, cache_key) in enumerate(zip(actives, each, strict=True))
                       if active.plugin.name in among and (cache_key is None or not cache_key.stable_for_shape)]
            known = ShapeKeys(each, passing, _key_of(point, skipped, each))
            for place in passing:
                self._note_stamp(known, place)
            if self._shape is not None:
                stored.shape_keys.keep(of_shape, known, _MOST_SHAPES)
            return known
        due = known.due()
        if due:
            for place in due:
                known.each[place] = self._cache_key(point, actives[place])
                self._note_stamp(known, place)
            known.update(_key_of(point, skipped, known.each))
        return known

    def _note_stamp(self, keys: ShapeKeys, place: int) -> None:
        """Record until which change a key that was just returned is stable."""
        cache_key = keys.each[place]
        if cache_key is None or cache_key.stable_until is None:
            keys.until.pop(place, None)
        else:
            logs = self._cluster.logs(cache_key.stable_until)
            keys.until[place] = logs, last_of(logs)

    def _cache_key(self, point: Point, active: Active) -> CacheKey | None:
        """Return a plugin's cache key; None if it has none: then it is called uncached."""
        try:
            cache_key = _checked_key(point, active.instance.cache_key(point, self._pod, self._snapshot))
            if cache_key is not None:
                cache_key = cache_key._replace(key=self._store.key_of(active.instance, point, cache_key.key))
                self._cluster.logs(cache_key.paths)
                if cache_key.stable_until is not None:
                    self._cluster.logs(cache_key.stable_until)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self._log_fault(active, point, "its cache key", error)
            return None
        return cache_key

    def _log_fault(self, active: Active, point: Point, what: str, error: BaseException) -> None:
        """Log, once, a fault of a plugin that only costs time: the plugin is called uncached."""
        logged, about = _LOGGED.setdefault(self._profile, set()), (active.name, point, what)
        if about not in logged:
            logged.add(about)
            logging.getLogger(f"koordpolicy.scheduler.{active.name}").warning(
                "the plugin `%s` at `%s`: %s is of no use: %s", active.name, point.value, what, describe(error),
            )

    def _grouped(
        self, point: Point, actives: Sequence[Active], keys: Sequence[CacheKey | None], held: list[ResultColumn],
    ) -> CombinedResult:
        cacheable = [(place, cache_key) for place, cache_key in enumerate(keys)
                     if cache_key is not None and cache_key.score is None]
        size = self._snapshot.size
        values = np.full(size, -1, np.int16) if point is Point.FILTER else np.zeros(size, np.int64)
        group = CombinedResult(values, [actives[place] for place, _ in cacheable], [place for place, _ in cacheable],
                      [(place, active) for place, active in enumerate(actives) if keys[place] is None])
        for place, (active, each) in enumerate(zip(actives, keys, strict=True)):
            if each is not None and each.score is not None:
                group.uniform.append((place, active, each.score))
                group.offset += each.score * active.weight
        parts: dict[tuple[Log, ...], DependencyGroup] = {}
        for number, ((_, cache_key), active) in enumerate(zip(cacheable, group.actives, strict=True)):
            group.cache_keys.append(cache_key)
            group.columns.append(self._store.column(active.instance, point, cache_key.key, size))
            held.append(group.columns[-1])
            logs = self._cluster.logs(cache_key.paths)
            part = parts.setdefault(logs, DependencyGroup(cache_key.paths, logs, []))
            part.numbers.append(number)
            part.vectorized = part.vectorized and cache_key.vectorized is not None
        group.parts = list(parts.values())
        group.whole = (point is Point.SCORE and bool(parts) and size < self._cluster.following_from
                       and all(part.vectorized for part in group.parts))
        return group

    def _epochs(self, point: Point, group: CombinedResult, keys: ShapeKeys) -> list[int | None]:
        """Return the current epochs of the columns' keys."""
        if not keys.has_epochs:
            return group.no_epochs
        return [None if each.epoch is None else self._epoch(point, group, number, each.epoch)
                for number, each in enumerate(keys.present)]

    def _refresh(self, group: CombinedResult, keys: ShapeKeys, rows: Rows) -> None:
        """Score the stale ones of the rows; mark other changed rows as stale."""
        cache_keys, epochs = keys.present, self._epochs(Point.SCORE, group, keys)
        stamps = [last_of(part.logs) for part in group.parts]
        columns = group.columns
        # What another combined result has scored for other rows alone is marked as stale in the column only.
        expanded = _expand(columns)
        changes = [NO_ROWS if part.stamp == stamp else self._changed_since(part, part.stamp)
                   for part, stamp in zip(group.parts, stamps, strict=True)]
        valid = epochs == group.epochs and not expanded
        for changed in changes:
            valid = valid and changed is not None
        # Of the rows of the last refresh only those changed since are stale, so no mark is read.
        follows = valid and group.covers(rows)
        if not valid:
            group.stale[:] = True
        divided: dict[int, Divided] = {}
        due: list[tuple[int, int, Divided | None]] = []
        """Columns by number, with the stamp that they include, and the changed rows; None if marks hold them."""
        for part, stamp, changed in zip(group.parts, stamps, changes, strict=True):
            if follows and stamp == part.stamp:
                continue  # nor has an epoch of its columns changed: numbers of epochs are not reused
            found = NOTHING if changed is not None else None
            if changed is not None and len(changed):
                found = divided.get(id(changed))
                if found is None:
                    found = divided[id(changed)] = group.divided(changed) if follows else Divided(NO_ROWS, changed)
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
        stale = _union([each.requested for each in divided.values()]) if follows else group.stale_among(rows)
        for number, stamp, known in due:
            column, cache_key = columns[number], cache_keys[number]
            if known is not None:
                self._score_changed(group, number, cache_key, known, stamp)
            else:
                of_column = stale
                if cache_key.vectorized is None or len(stale) > CHEAP:
                    marked = column.stale[stale]
                    of_column = stale if marked.all() else stale[marked]
                if len(of_column):
                    values, errors = self._results(Point.SCORE, group, number, cache_key, of_column)
                    column.write(of_column, values, errors, stamp)
                    column.stale[of_column] = False
            column.epoch, column.stamp = epochs[number], stamp
        if len(stale):
            group.update(stale, total_of(group, stale))
        # Set last: if a plugin fails before this, the combined result is not up to date.
        if not follows:
            group.stale[stale] = False
            group.cover(rows)
        for part, stamp in zip(group.parts, stamps, strict=True):
            part.stamp = stamp
        group.epochs = epochs

    def _refresh_whole(self, group: CombinedResult, keys: ShapeKeys, rows: Rows) -> None:
        """Score all of the rows in each column that does not have their current scores."""
        cache_keys, epochs = keys.present, self._epochs(Point.SCORE, group, keys)
        stamps = [last_of(part.logs) for part in group.parts]
        valid = group.covers(rows) and epochs == group.epochs
        for part, stamp in zip(group.parts, stamps, strict=True):
            valid = valid and part.stamp == stamp
            for number in part.numbers:
                column, epoch = group.columns[number], epochs[number]
                # Another combined result may have replaced the scores by those of other rows.
                known = column.scored is not None and column.scored[0] is rows
                if not known or column.stamp != stamp or column.epoch != epoch:
                    values, errors = self._results(Point.SCORE, group, number, cache_keys[number], rows)
                    column.replace_scores(rows, values, errors, stamp)
                    column.epoch, valid = epoch, False
        if not valid:
            group.replace_totals(rows)
            for part, stamp in zip(group.parts, stamps, strict=True):
                part.stamp = stamp
            group.epochs = epochs

    def _score_changed(
        self, group: CombinedResult, number: int, cache_key: CacheKey, rows: Divided, stamp: int,
    ) -> None:
        """Score changed rows, and mark the others as stale."""
        column, requested, others = group.columns[number], rows.requested, rows.others
        if len(others):
            # Filters were called for the same array, so the columns gathered for them are reused. An invalid score of a
            # row where the pod cannot run is not a fault.
            if cache_key.vectorized is not None and rows.changed is not None:
                results = self._vectorized_results(
                    Point.SCORE, group.actives[number], cache_key.vectorized, rows.changed)
                if results is not None:
                    column.write(rows.changed, results, _NO_ERRORS, stamp)
                    return
            column.stale[others] = True
        if len(requested):
            values, errors = self._results(Point.SCORE, group, number, cache_key, requested)
            column.write(requested, values, errors, stamp)

    def _changed_since(self, part: DependencyGroup, since: int) -> Rows | None:
        """Return the rows that changed since then; None if unknown, or if all are to be recomputed."""
        if since < 0 or (part.vectorized and self._snapshot.size < self._cluster.following_from):
            return None
        return self._cluster.changed(part.paths, since)

    def _follow(self, group: CombinedResult, keys: ShapeKeys) -> None:
        """Run filters on the changed rows, and refresh which filter refuses each row first."""
        point, columns = Point.FILTER, group.columns
        cache_keys, epochs = keys.present, self._epochs(point, group, keys)
        stamps = [last_of(part.logs) for part in group.parts]
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
                    due = self._everything if rows is None or column.epoch != epoch else rows
                    values, errors = self._results(point, group, number, cache_keys[number], due)
                    column.write(due, values, errors, stamp)
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
            group.update(combined, refused_first(group, combined))
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
            self._log_fault(group.actives[number], point, "the epoch of its cache key", error)
            raise UncacheablePlugin(group.places[number]) from error

    def _changed(self, part: DependencyGroup, since: int) -> Rows | None:
        """Return the rows that changed since then; None if unknown, or if so many did that all are recomputed."""
        rows = self._changed_since(part, since)
        return None if rows is None or len(rows) * _MANY > self._snapshot.size else rows

    def _results(
        self, point: Point, group: CombinedResult, number: int, cache_key: CacheKey, rows: Rows,
    ) -> tuple[NDArray[Any], Errors]:
        """Return a plugin's results for some rows."""
        if not len(rows):
            return group.columns[number].values[rows], {}
        active = group.actives[number]
        if cache_key.vectorized is not None:
            values = self._vectorized_results(point, active, cache_key.vectorized, rows)
            if values is not None:
                return values, _NO_ERRORS
        computed = filtered if point is Point.FILTER else scored
        if self._timer is not None:
            computed = self._timer.measured(active.name, point, computed)
        try:
            return computed(active.instance, self._state, self._pod, self._snapshot, rows)
        except BaseException as error:
            must_be_survived(error)
            raise UncacheablePlugin(group.places[number]) from error

    def _vectorized_results(
        self, point: Point, active: Active, answer: Callable[[Snapshot, Rows], NDArray[Any] | None], rows: Rows,
    ) -> NDArray[Any] | None:
        """Return the vectorized result of a cache key; None if the plugin must be called."""
        if self._timer is not None:
            answer = self._timer.measured(active.name, point, answer)
        try:
            values = answer(self._snapshot, rows)
            return None if values is None else checked(values, point, len(rows))
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self._log_fault(active, point, "its vectorized result", error)
            return None


def _expand(columns: Iterable[ResultColumn]) -> bool:
    """Expand columns; return whether any has changed."""
    expanded = [column for column in columns if column.scored is not None]
    for column in expanded:
        column.expand()
    return bool(expanded)


def _union(found: Sequence[Rows]) -> Rows:
    """Return the rows that are in one of some arrays of ascending rows."""
    if len(found) < 2:
        return found[0] if found else NO_ROWS
    return np.unique(np.concatenate(found))


def _checked_key(point: Point, returned: object) -> CacheKey | None:
    if returned is None:
        return None
    if not isinstance(returned, CacheKey):
        raise TypeError(f"it must be a `CacheKey` or None, not {type(returned).__name__}")
    score = returned.score
    if score is not None and (point is not Point.SCORE or type(score) is not int or not 0 <= score <= HIGHEST_SCORE):
        raise TypeError(f"its `score` must be None or, of scorers, an int of 0..{HIGHEST_SCORE}, not {score!r}")
    return returned


def _key_of(point: Point, skipped: frozenset[str], keys: Sequence[CacheKey | None]) -> Hashable:
    # Numbers of keys are not negative.
    return point, skipped, tuple([_NOT_CACHED if each is None else each.key if each.score is None else ~each.score
                                  for each in keys])
