"""Collections stay short, and what lives only in cycles does not gather for ever."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.serving.garbage_collection import ShortCollections


@pytest.fixture(autouse=True)
def thawed():
    thresholds = gc.get_threshold()
    gc.collect()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.collect()


class Cycle:
    def __init__(self):
        self.self = self


def test_what_lives_is_not_looked_through_again():
    collections = ShortCollections()
    held = [[] for _ in range(50_000)]
    collections.settle()
    assert len(gc.get_objects(generation=2)) < 1000
    assert gc.get_freeze_count() > len(held)


def test_what_is_freed_by_counting_leaves_also_where_it_is_out_of_sight():
    collections = ShortCollections()
    held = Cycle()
    held.self = None
    gone = weakref.ref(held)
    collections.settle()
    del held
    assert gone() is None


def test_young_cycles_are_collected_at_once():
    collections = ShortCollections()
    gone = weakref.ref(Cycle())
    collections.settle()
    assert gone() is None


def test_old_cycles_are_collected_once_too_many_have_gathered():
    collections = ShortCollections(growth=1.0, slack=5_000, look_every=1)
    collections.settle()
    highest = lowest = gc.get_freeze_count()
    for _ in range(20):
        cycles = [Cycle() for _ in range(1_000)]
        collections.settle()
        del cycles  # they are out of sight by now
        highest = max(highest, gc.get_freeze_count())
    assert collections.full >= 2
    assert highest - lowest < 10_000


def test_the_collector_is_given_back_as_it_was():
    thresholds = gc.get_threshold()
    collections = ShortCollections()
    collections.settle()
    collections.settle()
    assert gc.get_threshold() != thresholds
    collections.close()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)
    collections.settle()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_the_collector_is_given_back_as_it_was_whenever_something_is_compiled():
    thresholds = gc.get_threshold()
    gently, collections = LowLatencyGc(), ShortCollections()
    with gently:
        collections.settle()
    settled = gc.get_threshold()
    with gently:
        pass
    assert (gc.get_threshold(), settled == thresholds) == (settled, False)
    with gently:
        assert gc.get_threshold() != settled
        collections.close()
    assert gc.get_threshold() == thresholds


def test_a_server_gives_the_collector_back_at_its_end():
    thresholds = gc.get_threshold()
    collections = ShortCollections()

    def load():
        collections.settle()
        raise ValueError("nothing to load")

    with pytest.raises(ValueError, match="nothing to load"):
        asyncio.run(Server(load, collections=collections).run("127.0.0.1", 0, asyncio.Event()))
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_what_a_reload_adds_is_no_reason_for_a_full_collection():
    blocks = 1_000
    collections = ShortCollections(growth=1.0, slack=100, look_every=1, count_blocks=lambda: blocks)
    collections.settle()
    blocks += 5_000
    collections.settle(explained=5_000)
    assert collections.full == 0
    blocks += 101
    collections.settle()
    assert collections.full == 1
