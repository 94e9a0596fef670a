from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from koordpolicy.engine.framework.points import Answer, CacheKey, Point, Refusal, Scores
from koordpolicy.plugin import SKIP
from koordpolicy.testing import FakeClock, FakeFramework, assert_cacheable, node, pod

PODS = frozenset({("nodeInfo", "pods")})


class Empty:
    """Lets pods onto empty nodes only, and likes those with few pods; `change` makes its cache key another one."""

    def __init__(self, **change):
        self.change = change

    def filter(self, state, pod, snapshot, rows):
        return Answer(snapshot.pod_count[rows] == 0, lambda row: Refusal("empty", "there is a pod"))

    def score(self, state, pod, snapshot, rows):
        return Scores(100 - snapshot.pod_count[rows])

    def cache_key(self, point, pod, snapshot):
        said = {
            Point.FILTER: lambda snapshot, rows: snapshot.pod_count[rows] == 0,
            Point.SCORE: lambda snapshot, rows: 100 - snapshot.pod_count[rows],
        }
        given = {"key": None, "paths": PODS, "vectorized": said[point], "stable_for_shape": True}
        changes = self.change if point is Point.FILTER else {}
        return CacheKey(**(given | {name: make() if name == "key" else make for name, make in changes.items()}))


STEPS = (pod("p"), pod("old", node="b"), pod("q"), node("c"), pod("r"))


def framework():
    return FakeFramework(node("a"), node("b"))


def test_a_cache_key_that_holds_passes():
    assert_cacheable(Empty(), framework(), *STEPS)
    assert_cacheable(Empty(vectorized=None, stable_for_shape=False), framework(), *STEPS)
    assert_cacheable(Empty(stable_for_shape=False, stable_until=PODS), framework(), *STEPS)
    assert_cacheable(Empty(vectorized=lambda snapshot, rows: None), framework(), *STEPS)
    assert_cacheable(Empty(refusal=Refusal("empty", "there is a pod")), framework(), *STEPS)


@pytest.mark.parametrize(("change", "message"), [
    (
        {"paths": frozenset()},
        "the cached result of the cache key of default/q at `filter` is True on b, and the plugin says False",
    ),
    (
        {"vectorized": lambda snapshot, rows: np.ones(len(rows), np.bool_)},
        "the vectorized result of the cache key of default/q at `filter` is True on b, and the plugin says False",
    ),
    (
        {"vectorized": lambda snapshot, rows: np.zeros(len(rows), np.bool_)},
        (
            r"the vectorized result of the cache key of default/p at `filter` is False on a, and the plugin says True "
            r"\(and so on "
            r"1 more nodes\)"
        ),
    ),
    (
        {"vectorized": lambda snapshot, rows: np.ones(1)},
        r"the vectorized result of the cache key of default/p at `filter` is float64\[1\], not bool\[2\]",
    ),
    (
        {"vectorized": lambda snapshot, rows: snapshot.pod_count[:len(rows)] == 0},
        "the vectorized result of the cache key of default/q at `filter` is True on b, and the plugin says False",
    ),
    (
        {"vectorized": lambda snapshot, rows: [True] * len(rows)},
        r"the vectorized result of the cache key of default/p at `filter` is list\[2\], not bool\[2\]",
    ),
    (
        {"refusal": Refusal("empty", "there are pods")},
        (
            r"the refusal of the cache key of default/q at `filter` is \('empty', 'there are pods', .*\), "
            r"and the plugin explains b by \('empty', 'there is a pod', .*\)"
        ),
    ),
    (
        {"key": count().__next__},
        ("the cache key of default/q at `filter` is not stable for the shape: it is 1, "
        "and was 0 for a pod of the same shape"),
    ),
])
def test_one_that_does_not_hold_is_told_with_the_node(change, message):
    with pytest.raises(AssertionError, match=message):
        assert_cacheable(Empty(**change), framework(), *STEPS)


class Buffered(Empty):
    """Answers in one and the same array every time, and names nothing that this depends on."""

    buffer = np.zeros(2, np.bool_)

    def filter(self, state, pod, snapshot, rows):
        self.buffer[:] = snapshot.pod_count == 0
        return Answer(self.buffer, lambda row: Refusal("empty", "there is a pod"))

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, frozenset()) if point is Point.FILTER else None


class Normalized(Empty):
    """Scores by what is the most among the nodes that are asked about."""

    def score(self, state, pod, snapshot, rows):
        counts = snapshot.pod_count[rows]
        return Scores(counts * 100 // max(1, int(counts.max())))

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, PODS) if point is Point.SCORE else None


class Uniform(Empty):
    """Says that it scores all nodes alike."""

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, frozenset(), score=100) if point is Point.SCORE else None


class Fickle(Empty):
    """Has another cache key for each pod, by its name."""

    def __init__(self, **keys):
        self.keys = keys

    def cache_key(self, point, pod, snapshot):
        return self.keys[pod.name] if point is Point.FILTER else None


@pytest.mark.parametrize(("plugin", "message"), [
    (Buffered(), "the cached result of the cache key of default/q at `filter` is True on a, and the plugin says False"),
    (Uniform(), "the score of the cache key of default/q at `score` is 100 on a, and the plugin says 99"),
    (Normalized(), "what the plugin says of some nodes, at the cache key of default/q at `score`, is "),
    (
        Fickle(p=CacheKey(None, PODS, stable_for_shape=True), q=None),
        "the cache key of default/q at `filter` is not stable for the shape: it is none, and was None",
    ),
    (
        Fickle(p=CacheKey(1, PODS, stable_for_shape=True), q=CacheKey(2, PODS)),
        "the cache key of default/q at `filter` is not stable for the shape: it is 2, and was 1",
    ),
    (
        Fickle(p=CacheKey(1, PODS, stable_until=frozenset()), q=CacheKey(2, PODS)),
        "the cache key of default/q at `filter` is not stable for the shape: it is 2, and was 1",
    ),
    (
        Fickle(p=CacheKey(1, PODS), q=CacheKey(1, frozenset())),
        "the cache key of default/q at `filter` names other paths than one before with the key 1",
    ),
])
def test_what_would_decide_wrongly_does_not_pass(plugin, message):
    steps = (pod("p"), pod("old", node="b"), pod("older", node="b"), pod("oldest", node="a"), pod("q"))
    with pytest.raises(AssertionError, match=message):
        assert_cacheable(plugin, framework(), *steps)


class Prepared(Empty):
    """Looks up what it may ask in the state; has nothing to do with the pod `skipped`."""

    def pre_filter(self, state, pod, snapshot):
        state["most"] = 0
        return SKIP if pod.name == "skipped" else None

    def filter(self, state, pod, snapshot, rows):
        return Answer(snapshot.pod_count[rows] <= state["most"], lambda row: Refusal("empty", "there is a pod"))


def test_what_comes_before_a_filter_has_been_asked_and_whom_it_skips_is_not():
    assert_cacheable(Prepared(), framework(), *STEPS, pod("skipped"))


def test_a_step_may_be_anything_that_changes_the_cluster_or_the_time():
    clock = FakeClock()
    it = FakeFramework(node("a"), node("b"), pod("old", node="b"), clock=clock)
    later = Empty(paths=frozenset(), epoch=lambda snapshot: snapshot.now)
    assert_cacheable(
        Empty(), it, pod("p"), lambda: it.delete("Pod", "default/old"), pod("q"), lambda: it.delete("Node", "a"),
        pod("r"),
    )
    assert_cacheable(later, it, pod("p"), lambda: clock.advance(1), pod("q"))


def test_another_epoch_begins_everything_anew():
    assert_cacheable(Empty(paths=frozenset(), epoch=lambda snapshot: snapshot.pod_count.tobytes()), framework(), *STEPS)


def test_what_is_asked_again_after_a_change_of_what_it_names_may_be_answered_otherwise():
    assert_cacheable(Empty(paths=frozenset({("nodeInfo", "pods"), ("allocatable",)})), framework(), *STEPS)


@pytest.mark.parametrize(("plugin", "steps", "message"), [
    (Empty(), [node("c")], "`cache_key` was never called: name pods that wait among the steps"),
    (
        type("Odd", (Empty,), {"cache_key": lambda self, point, pod, snapshot: "what?"})(), STEPS,
        "`cache_key` returned no `CacheKey` for default/p: 'what\\?'",
    ),
    (
        type("Silent", (Empty,), {"cache_key": lambda self, point, pod, snapshot: None})(), STEPS,
        "`cache_key` was never called",
    ),
])
def test_what_asks_nothing_is_no_success(plugin, steps, message):
    with pytest.raises(AssertionError, match=message):
        assert_cacheable(plugin, framework(), *steps)
