"""TaintToleration: refuses nodes with untolerated taints, and prefers those without soft ones (PreferNoSchedule)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.edits import Edit, toleration_edit, uncordon_edit, untaint_edit
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, CacheKey, Code, Point, Refusal, Scores
from koordpolicy.engine.kubernetes.selectors import tolerates, untolerated
from koordpolicy.engine.scheduler.cycle.normalize import normalize_by_max
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Event, Handle

from ..allocation.requeue_hints import is_of, node_came_or_changed

_PATHS: Final = frozenset({("node", "spec", "taints")})
_MOST_CACHED: Final = 64
_REASON: Final = "node(s) had untolerated taint(s)"
_PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
_OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Taints by conditions of a node: they are removed with the condition."""
_CORDONED: Final = f"{_OF_KUBERNETES}unschedulable"


class TaintToleration:
    """Filter and score (kube-scheduler's plugin of that name)."""

    name = "TaintToleration"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._tolerated = Derived(_PATHS, np.bool_, distinct=True)
        self._soft = Derived(_PATHS, np.int64, distinct=True)
        self._has_soft = Derived(_PATHS, np.bool_, lambda view, row: bool(_soft_taints(view, row)), distinct=True)
        self._normalized: dict[int, tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]] = {}
        self._any_soft, self._any_untolerated = _AnyOf(), _AnyOf()

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes with a NoSchedule or NoExecute taint that the pod does not tolerate."""
        passed = self._tolerated.of(
            snapshot, _key_of(pod), lambda view, row: untolerated(pod.object, view.node(row)) is None,
        )

        def explain(row: int) -> Refusal:
            taint = untolerated(pod.object, snapshot.node(row)) or {}
            return Refusal("taints", _REASON, Code.UNRESOLVABLE, values=(("taint", dict(taint)),))

        return Answer(passed, explain, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes with few PreferNoSchedule taints that the pod does not tolerate: 100 for none."""
        counts = self._counts(pod, snapshot)
        return Scores(self._normalize(counts, rows), raw={"": counts})

    def _normalize(self, counts: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
        """Return the result of `normalize_by_max`, cached while the counts are the same array."""
        most = int((counts if len(rows) == len(counts) else counts[rows]).max(initial=0))
        cached = self._normalized.get(id(counts))
        if cached is None or cached[0] is not counts:
            if len(self._normalized) >= _MOST_CACHED:
                self._normalized.clear()
            cached = self._normalized[id(counts)] = (counts, {})
        found = cached[1].get(most)
        if found is None:
            found = cached[1][most] = normalize_by_max(counts, rows, HIGHEST_SCORE, reverse=True)
        return found

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return the dependencies: the tolerations; None for scores that are normalized over several nodes."""
        if point is Point.SCORE and self._any_soft(self._has_soft.of(snapshot)) and (
            self._any_untolerated(self._counts(pod, snapshot))
        ):
            return None
        if point is Point.FILTER:
            return CacheKey(_key_of(pod), _PATHS, stable_for_shape=True)
        return CacheKey(_key_of(pod), _PATHS, stable_until=_PATHS, score=HIGHEST_SCORE)

    def _counts(self, pod: PodInfo, snapshot: Snapshot) -> NDArray[np.int64]:
        """Return the number of untolerated soft taints of each node."""
        tolerations = [
            each for each in (pod.object.get("spec") or {}).get("tolerations") or ()
            if each.get("effect") in (None, "", _PREFER_NO_SCHEDULE)
        ]

        def count(view: Snapshot, row: int) -> int:
            soft = _soft_taints(view, row)
            return sum(1 for taint in soft if not any(tolerates(each, taint) for each in tolerations))

        return self._soft.of(snapshot, _key_of(pod), count)

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield the toleration that the pod could have, and the taint that users could remove."""
        node = snapshot.node(row)
        taint = untolerated(pod.object, node)
        if taint is None:
            return
        yield toleration_edit(pod, taint)
        if taint.get("key") == _CORDONED:
            yield uncordon_edit(node)
        elif not str(taint.get("key", "")).startswith(_OF_KUBERNETES):
            yield untaint_edit(node, taint)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node came or changed."""
        return node_came_or_changed(event) or is_of(event, pod)


class _AnyOf:
    """True if any value of a column is true; cached until the column is another array."""

    def __init__(self) -> None:
        self._last: tuple[object, bool] = (None, False)

    def __call__(self, values: NDArray[Any]) -> bool:
        if self._last[0] is not values:
            self._last = values, bool(values.any())
        return self._last[1]


def _soft_taints(snapshot: Snapshot, row: int) -> list[Mapping[str, Any]]:
    taints = (snapshot.node(row).get("spec") or {}).get("taints") or ()
    return [taint for taint in taints if taint.get("effect") == _PREFER_NO_SCHEDULE]


@lru_cache(maxsize=64)
def _key_of(pod: PodInfo) -> str:
    tolerations = (pod.object.get("spec") or {}).get("tolerations")
    return repr(tolerations) if tolerations else ""
