"""A check of what plugins say of their own answers (`plugins.Repeats`), against what they answer when asked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cel.frame import Rows
from ..cluster.pods import PodInfo
from ..cluster.snapshot import Snapshot
from ..plugins import CycleState
from ..points import Point, Question
from .kit import FakeFramework


def assert_question(plugin: Any, framework: FakeFramework, *steps: Mapping[str, Any]) -> None:
    """Check a plugin's `question` against its `filter` and `score`, step by step.

    A step is an object: a pod without a node is asked about, everything else changes the cluster. Of every question its
    `answer` must say what the plugin does; an answer that stands may have become another one only on nodes where
    something changed that the question names; and what lasts must be asked by all pods of a shape. Nodes that come or
    go begin everything anew.
    """
    check = _Check(plugin)
    for step in steps:
        size = framework.snapshot().size
        if step.get("kind") == "Pod" and not (step.get("spec") or {}).get("nodeName"):
            check.ask(PodInfo.of(step), framework.snapshot())
            continue
        framework.upsert(step)
        if framework.snapshot().size != size:
            check.forget()
    assert check.asked, "nobody asked a question: name pods that wait among the steps"


@dataclass(slots=True)
class _Known:
    """What was answered to a question, and when."""

    values: NDArray[Any]
    stamp: int
    epoch: Hashable


class _Check:
    """What a plugin asked and answered so far."""

    def __init__(self, plugin: Any) -> None:
        self.asked = 0
        self._plugin = plugin
        self._known: dict[tuple[Point, Hashable], _Known] = {}
        self._lasting: dict[tuple[Point, bytes | None], Hashable] = {}

    def forget(self) -> None:
        """Forget what was answered about nodes; what pods of a shape ask stays."""
        self._known.clear()

    def ask(self, pod: PodInfo, snapshot: Snapshot) -> None:
        """Check what is asked of a pod at the points that the plugin answers at."""
        for point in (Point.FILTER, Point.SCORE):
            if not callable(getattr(self._plugin, point.value, None)):
                continue
            question = self._plugin.question(point, pod, snapshot)
            assert question is None or isinstance(question, Question), f"{pod.key} asks no `Question`: {question!r}"
            if question is None:
                continue
            self.asked += 1
            about = f"the question of {pod.key} at `{point.value}`"
            if question.lasts:
                first = self._lasting.setdefault((point, pod.shape()), question.key)
                assert first == question.key, f"{about} does not last: {question.key!r} and {first!r} are of one shape"
            rows = np.arange(snapshot.size, dtype=np.intp)
            answer = getattr(self._plugin, point.value)(CycleState(), pod, snapshot, rows).spread(rows, snapshot.size)
            values: NDArray[Any] = answer.passed if point is Point.FILTER else answer.values
            said = None if question.answer is None else question.answer(snapshot, rows)
            if said is not None:
                kinds = [f"{each.dtype}{list(each.shape)}" for each in (said, values)]
                assert kinds[0] == kinds[1], f"the answer of {about} is {kinds[0]}, not {kinds[1]}"
                _same(f"the answer of {about}", snapshot.names, rows, (said, values))
            known = _Known(values, snapshot.cluster.stamp(question.paths),
                           None if question.epoch is None else question.epoch(snapshot))
            before = self._known.get((point, question.key))
            if before is not None and before.epoch == known.epoch:
                changed = snapshot.cluster.changed(question.paths, before.stamp)
                stands = rows[:0] if changed is None else np.setdiff1d(rows, changed)
                both = before.values[stands], values[stands]
                _same(f"what stands for {about}", snapshot.names, stands, both)
            self._known[point, question.key] = known


def _same(what: str, names: Sequence[str], rows: Rows, both: tuple[NDArray[Any], NDArray[Any]]) -> None:
    said, values = both
    others = np.flatnonzero(said != values)
    if len(others):
        at = int(others[0])
        more = f" (and so on {len(others) - 1} more nodes)" if len(others) > 1 else ""
        raise AssertionError(f"{what} is {said[at]} on {names[int(rows[at])]}, and the plugin says {values[at]}{more}")
