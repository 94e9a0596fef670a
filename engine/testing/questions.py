"""A check of what plugins say of their own answers (`plugins.Repeats`), against what they answer when asked."""

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
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Point, Question, Refusal
from koordpolicy.engine.framework.scheduler import CycleState, Skip

from .kit import FakeFramework

Step: TypeAlias = "Mapping[str, Any] | Callable[[], object]"

_BEFORE = {Point.FILTER: "pre_filter", Point.SCORE: "pre_score"}


def assert_question(plugin: Any, framework: FakeFramework, *steps: Step) -> None:
    """Check a plugin's `question` against its `filter` and `score`, step by step.

    A step is an object, or a function without arguments. A pod without a node is asked about, any other object and all
    that a function does (`lambda: framework.delete("Pod", "default/old")`, `lambda: clock.advance(60)`) changes the
    cluster or the time. For every question

    - its `answer` must say what the plugin does, about all nodes and about some of them alike;
    - an answer that stands may have become another one only on nodes where something changed that the question names;
    - what lasts must be asked by all pods of a shape.

    What the plugin keeps in the state before its filter or its score is there; whom it skips is not asked about.
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
    assert check.asked, "nobody asked a question: name pods that wait among the steps"


@dataclass(slots=True)
class _Known:
    """What was answered to a question, and when."""

    values: NDArray[Any]
    paths: frozenset[Path]
    stamp: int
    epoch: Hashable


class _Check:
    """What a plugin asked and answered so far."""

    def __init__(self, plugin: Any) -> None:
        self.asked = 0
        self._plugin = plugin
        self._known: dict[tuple[Point, Hashable], _Known] = {}
        self._lasting: dict[tuple[Point, bytes], Question] = {}

    def forget(self) -> None:
        """Forget what was answered about nodes; what pods of a shape ask stays."""
        self._known.clear()

    def ask(self, pod: PodInfo, snapshot: Snapshot) -> None:
        """Check what is asked of a pod at the points that the plugin answers at."""
        rows, state = np.arange(snapshot.size, dtype=np.intp), CycleState()
        for point in (Point.FILTER, Point.SCORE):
            if not callable(getattr(self._plugin, point.value, None)):
                continue
            before = getattr(self._plugin, _BEFORE[point], None)
            if before is not None:
                told = before(state, pod, snapshot) if point is Point.FILTER else before(state, pod, snapshot, rows)
                if isinstance(told, Refusal | Skip):
                    continue
            question = self._plugin.question(point, pod, snapshot)
            about = f"the question of {pod.key} at `{point.value}`"
            assert question is None or isinstance(question, Question), f"{pod.key} asks no `Question`: {question!r}"
            self._check_lasting(about, point, pod, question)
            if question is not None:
                self.asked += 1
                asked = _asking(self._plugin, point, state, pod, snapshot)
                self._check_answers(about, point, question, snapshot, asked)

    def _check_lasting(self, about: str, point: Point, pod: PodInfo, question: Question | None) -> None:
        shape = pod.shape()
        if shape is None:
            return
        first = self._lasting.get((point, shape))
        if first is None:
            if question is not None and question.lasts:
                self._lasting[point, shape] = question
            return
        same = question is not None and (question.key, question.paths) == (first.key, first.paths)
        now = "none" if question is None else repr(question.key)
        assert same, f"{about} does not last: it is {now}, and was {first.key!r} for a pod of the same shape"

    def _check_answers(
        self, about: str, point: Point, question: Question, snapshot: Snapshot,
        asked: Callable[[Rows], NDArray[Any]],
    ) -> None:
        names = snapshot.names
        rows = np.arange(snapshot.size, dtype=np.intp)
        values = asked(rows)
        if point is Point.SCORE and len(values):
            assert 0 <= values.min() <= values.max() <= HIGHEST_SCORE, f"{about} has scores beyond 0..{HIGHEST_SCORE}"
        # Some nodes are asked about as they changed: in any number, from any place.
        for some in (rows, rows[::2], rows[1::2], rows[-1:]):
            _same(f"what the plugin says of some nodes, at {about},", names, some, (asked(some), values[some]))
            said = None if question.answer is None else question.answer(snapshot, some)
            if said is not None:
                kinds = [f"{getattr(each, 'dtype', type(each).__name__)}{list(np.shape(each))}" for each in
                         (said, values[some])]
                assert kinds[0] == kinds[1], f"the answer of {about} is {kinds[0]}, not {kinds[1]}"
                _same(f"the answer of {about}", names, some, (said, values[some]))
        known = _Known(values, question.paths, snapshot.cluster.stamp(question.paths),
                       None if question.epoch is None else question.epoch(snapshot))
        before = self._known.get((point, question.key))
        self._known[point, question.key] = known
        if before is None or before.epoch != known.epoch:
            return
        assert before.paths == known.paths, f"{about} names other paths than one before with the key {question.key!r}"
        changed = snapshot.cluster.changed(question.paths, before.stamp)
        stands = rows[:0] if changed is None else np.setdiff1d(rows, changed)
        _same(f"what stands for {about}", names, stands, (before.values[stands], values[stands]))


def _asking(
    plugin: Any, point: Point, state: CycleState, pod: PodInfo, snapshot: Snapshot,
) -> Callable[[Rows], NDArray[Any]]:
    """Return what asks the plugin about rows; what it returns is nobody else's."""

    def asked(rows: Rows) -> NDArray[Any]:
        answer = getattr(plugin, point.value)(state, pod, snapshot, rows)
        values = np.array(answer.passed if point is Point.FILTER else answer.values)
        return values if len(values) == len(rows) else values[rows]

    return asked


def _same(what: str, names: Sequence[str], rows: Rows, both: tuple[NDArray[Any], NDArray[Any]]) -> None:
    said, values = both
    others = np.flatnonzero(said != values)
    if len(others):
        at = int(others[0])
        more = f" (and so on {len(others) - 1} more nodes)" if len(others) > 1 else ""
        raise AssertionError(f"{what} is {said[at]} on {names[int(rows[at])]}, and the plugin says {values[at]}{more}")
