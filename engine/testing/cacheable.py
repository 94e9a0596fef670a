"""A check of a plugin's cache keys (`Cacheable`) against its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, CacheKey, Point, Refusal
from koordpolicy.engine.framework.scheduler import CycleState, Skip

from .kit import FakeFramework

Step: TypeAlias = "Mapping[str, Any] | Callable[[], object]"

_BEFORE = {Point.FILTER: "pre_filter", Point.SCORE: "pre_score"}


def assert_cacheable(plugin: Any, framework: FakeFramework, *steps: Step) -> None:
    """Check a plugin's `cache_key` against its `filter` and `score`, step by step.

    A step is an object, or a function without arguments. A pod without a node is filtered and scored; any other object,
    and a function (`lambda: framework.delete("Pod", "default/old")`, `lambda: clock.advance(60)`), changes the cluster
    or the time. For every cache key

    - `vectorized` must return the plugin's results, for all nodes and for some of them;
    - `refusal` must be that of each refused node, and `score` that of each node;
    - a cached result may have changed only on nodes where something changed that the key names;
    - a key that is stable for the shape must be that of all pods of the shape, `stable_until` a node changes.

    The plugin's preFilter or preScore runs before, with the same state; nodes that it skips are not compared.
    """
    check = _Check(plugin)
    for step in steps:
        names = tuple(framework.snapshot().names)
        if callable(step):
            step()
        elif step.get("kind") == "Pod" and not (step.get("spec") or {}).get("nodeName"):
            check.ask(PodInfo.of(step), framework.snapshot())
        else:
            framework.upsert(step)
        if tuple(framework.snapshot().names) != names:
            check.forget()
    assert check.checks, "`cache_key` was never called: name pods that wait among the steps"


@dataclass(slots=True)
class _Known:
    """The cached result of a key, with its time."""

    values: NDArray[Any]
    paths: frozenset[Path]
    stamp: int
    epoch: Hashable


class _Check:
    """The cache keys and results of a plugin so far."""

    def __init__(self, plugin: Any) -> None:
        self.checks = 0
        self._plugin = plugin
        self._known: dict[tuple[Point, Hashable], _Known] = {}
        self._lasting: dict[tuple[Point, bytes], tuple[CacheKey, int | None]] = {}
        """The keys of shapes, with the stamp of the paths of `stable_until`."""

    def forget(self) -> None:
        """Drop the results of nodes; the cache keys of shapes stay."""
        self._known.clear()
        self._lasting = {key: checks for key, checks in self._lasting.items() if checks[0].stable_for_shape}

    def ask(self, pod: PodInfo, snapshot: Snapshot) -> None:
        """Check a pod's cache keys at the points that the plugin implements."""
        rows, state = np.arange(snapshot.size, dtype=np.intp), CycleState()
        for point in (Point.FILTER, Point.SCORE):
            if not callable(getattr(self._plugin, point.value, None)):
                continue
            before = getattr(self._plugin, _BEFORE[point], None)
            if before is not None:
                early = before(state, pod, snapshot) if point is Point.FILTER else before(state, pod, snapshot, rows)
                if isinstance(early, Refusal | Skip):
                    continue
            cache_key = self._plugin.cache_key(point, pod, snapshot)
            about = f"the cache key of {pod.key} at `{point.value}`"
            assert cache_key is None or isinstance(cache_key, CacheKey), (
                f"`cache_key` returned no `CacheKey` for {pod.key}: {cache_key!r}")
            self._check_lasting(about, point, pod, cache_key, snapshot)
            if cache_key is not None:
                self.checks += 1
                checks = _checks_of(self._plugin, point, state, pod, snapshot)
                self._check_answers(about, point, cache_key, snapshot, checks)
                if point is Point.FILTER and cache_key.refusal is not None:
                    answer = self._plugin.filter(state, pod, snapshot, rows).spread(rows, snapshot.size)
                    _check_refusal(about, cache_key.refusal, snapshot.names, answer)

    def _check_lasting(
        self, about: str, point: Point, pod: PodInfo, cache_key: CacheKey | None, snapshot: Snapshot,
    ) -> None:
        shape = pod.shape()
        if shape is None:
            return
        first, stamp = self._lasting.get((point, shape), (None, None))
        if first is None or (stamp is not None and stamp != _stamp_of(first, snapshot)):
            if cache_key is not None and (cache_key.stable_for_shape or cache_key.stable_until is not None):
                self._lasting[point, shape] = cache_key, _stamp_of(cache_key, snapshot)
            return
        same = cache_key is not None and (cache_key.key, cache_key.paths) == (first.key, first.paths)
        now = "none" if cache_key is None else repr(cache_key.key)
        assert same, (
            f"{about} is not stable for the shape: it is {now}, and was {first.key!r} for a pod of the same shape"
        )

    def _check_answers(
        self, about: str, point: Point, cache_key: CacheKey, snapshot: Snapshot,
        checks: Callable[[Rows], NDArray[Any]],
    ) -> None:
        names = snapshot.names
        rows = np.arange(snapshot.size, dtype=np.intp)
        values = checks(rows)
        if point is Point.SCORE and len(values):
            assert 0 <= values.min() <= values.max() <= HIGHEST_SCORE, f"{about} has scores beyond 0..{HIGHEST_SCORE}"
        # Results are requested for changed nodes: any number of them, at any rows.
        for some in (rows, rows[::2], rows[1::2], rows[-1:]):
            _same(f"what the plugin says of some nodes, at {about},", names, some, (checks(some), values[some]))
            if cache_key.score is not None:
                uniform = np.full(len(some), cache_key.score, np.int64)
                _same(f"the score of {about}", names, some, (uniform, values[some]))
            vectorized = None if cache_key.vectorized is None else cache_key.vectorized(snapshot, some)
            if vectorized is not None:
                kinds = [f"{getattr(each, 'dtype', type(each).__name__)}{list(np.shape(each))}" for each in
                         (vectorized, values[some])]
                assert kinds[0] == kinds[1], f"the vectorized result of {about} is {kinds[0]}, not {kinds[1]}"
                _same(f"the vectorized result of {about}", names, some, (vectorized, values[some]))
        known = _Known(values, cache_key.paths, snapshot.cluster.stamp(cache_key.paths),
                       None if cache_key.epoch is None else cache_key.epoch(snapshot))
        before = self._known.get((point, cache_key.key))
        self._known[point, cache_key.key] = known
        if before is None or before.epoch != known.epoch:
            return
        assert before.paths == known.paths, f"{about} names other paths than one before with the key {cache_key.key!r}"
        changed = snapshot.cluster.changed(cache_key.paths, before.stamp)
        stands = rows[:0] if changed is None else np.setdiff1d(rows, changed)
        _same(f"the cached result of {about}", names, stands, (before.values[stands], values[stands]))


def _stamp_of(cache_key: CacheKey, snapshot: Snapshot) -> int | None:
    """Return the stamp of the paths of `stable_until`; None without such paths."""
    if cache_key.stable_for_shape or cache_key.stable_until is None:
        return None
    return snapshot.cluster.stamp(cache_key.stable_until)


def _checks_of(
    plugin: Any, point: Point, state: CycleState, pod: PodInfo, snapshot: Snapshot,
) -> Callable[[Rows], NDArray[Any]]:
    """Return a function that calls the plugin for rows; its result is a new array."""

    def checks(rows: Rows) -> NDArray[Any]:
        answer = getattr(plugin, point.value)(state, pod, snapshot, rows)
        values = np.array(answer.passed if point is Point.FILTER else answer.values)
        return values if len(values) == len(rows) else values[rows]

    return checks


def _check_refusal(about: str, refusal: Refusal, names: Sequence[str], answer: Answer) -> None:
    """Check that each node that was refused without an error is refused for this reason."""
    failed = {row for rows in answer.errors.values() for row in rows}
    for row in np.flatnonzero(~answer.passed).tolist():
        explained = answer.explain(row)
        both = [(each.rule, each.message, each.code) for each in (refusal, explained)]
        assert row in failed or both[0] == both[1], (
            f"the refusal of {about} is {both[0]}, and the plugin explains {names[row]} by {both[1]}")


def _same(what: str, names: Sequence[str], rows: Rows, both: tuple[NDArray[Any], NDArray[Any]]) -> None:
    vectorized, values = both
    others = np.flatnonzero(vectorized != values)
    if len(others):
        at = int(others[0])
        more = f" (and so on {len(others) - 1} more nodes)" if len(others) > 1 else ""
        node = names[int(rows[at])]
        raise AssertionError(f"{what} is {vectorized[at]} on {node}, and the plugin says {values[at]}{more}")
