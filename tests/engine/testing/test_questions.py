from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from koordpolicy.engine.points import Answer, Point, Question, Refusal, Scores
from koordpolicy.testing import FakeFramework, assert_question, node, pod

PODS = frozenset({("nodeInfo", "pods")})


class Empty:
    """Lets pods onto empty nodes only, and likes those with few pods; `change` makes its question another one."""

    def __init__(self, **change):
        self.change = change

    def filter(self, state, pod, snapshot, rows):
        return Answer(snapshot.pod_count[rows] == 0, lambda row: Refusal("empty", "there is a pod"))

    def score(self, state, pod, snapshot, rows):
        return Scores(100 - snapshot.pod_count[rows])

    def question(self, point, pod, snapshot):
        said = {Point.FILTER: lambda snapshot, rows: snapshot.pod_count[rows] == 0, Point.SCORE: lambda snapshot, rows: 100 - snapshot.pod_count[rows]}
        given = {"key": None, "paths": PODS, "answer": said[point], "lasts": True}
        changes = self.change if point is Point.FILTER else {}
        return Question(**(given | {name: make() if name == "key" else make for name, make in changes.items()}))


STEPS = (pod("p"), pod("old", node="b"), pod("q"), node("c"), pod("r"))


def framework():
    return FakeFramework(node("a"), node("b"))


def test_a_question_that_holds_passes():
    assert_question(Empty(), framework(), *STEPS)
    assert_question(Empty(answer=None, lasts=False), framework(), *STEPS)
    assert_question(Empty(answer=lambda snapshot, rows: None), framework(), *STEPS)


@pytest.mark.parametrize(("change", "message"), [
    ({"paths": frozenset()}, "what stands for the question of default/q at `filter` is True on b, and the plugin says False"),
    ({"answer": lambda snapshot, rows: np.ones(len(rows), np.bool_)}, "the answer of the question of default/q at `filter` is True on b, and the plugin says False"),
    ({"answer": lambda snapshot, rows: np.zeros(len(rows), np.bool_)}, r"the answer of the question of default/p at `filter` is False on a, and the plugin says True \(and so on 1 more nodes\)"),
    ({"answer": lambda snapshot, rows: np.ones(1)}, r"the answer of the question of default/p at `filter` is float64\[1\], not bool\[2\]"),
    ({"key": count().__next__}, "the question of default/q at `filter` does not last: 1 and 0 are of one shape"),
])
def test_one_that_does_not_hold_is_told_with_the_node(change, message):
    with pytest.raises(AssertionError, match=message):
        assert_question(Empty(**change), framework(), *STEPS)


def test_another_epoch_begins_everything_anew():
    assert_question(Empty(paths=frozenset(), epoch=lambda snapshot: snapshot.pod_count.tobytes()), framework(), *STEPS)


def test_what_is_asked_again_after_a_change_of_what_it_names_may_be_answered_otherwise():
    assert_question(Empty(paths=frozenset({("nodeInfo", "pods"), ("allocatable",)})), framework(), *STEPS)


@pytest.mark.parametrize(("plugin", "steps", "message"), [
    (Empty(), [node("c")], "nobody asked a question: name pods that wait among the steps"),
    (type("Odd", (Empty,), {"question": lambda self, point, pod, snapshot: "what?"})(), STEPS, "default/p asks no `Question`: 'what\\?'"),
    (type("Silent", (Empty,), {"question": lambda self, point, pod, snapshot: None})(), STEPS, "nobody asked a question"),
])
def test_what_asks_nothing_is_no_success(plugin, steps, message):
    with pytest.raises(AssertionError, match=message):
        assert_question(plugin, framework(), *steps)
