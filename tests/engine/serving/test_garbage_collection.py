"""Collections stay short, and what lives only in cycles does not gather for ever."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref

import pytest

from koordpolicy.engine.reload import low_latency_gc
from koordpolicy.engine.reload.build import Builder
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.serving.garbage_collection import ShortCollections
from koordpolicy.engine.source import Source

DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: d{0}}}
spec:
  filter: [{{name: cpu, expression: requests.cpu < {0}, message: too much}}]
"""


@pytest.fixture(autouse=True)
def frozen(small_heap):
    """Return how many objects of other tests are frozen; the collector is given back afterwards."""
    thresholds = gc.get_threshold()
    yield gc.get_freeze_count()
    gc.set_threshold(*thresholds)


class Cycle:
    def __init__(self):
        self.self = self


def test_what_lives_is_not_looked_through_again(frozen):
    collections = ShortCollections()
    held = [[] for _ in range(50_000)]
    collections.freeze()
    assert len(gc.get_objects(generation=2)) < 1000
    assert gc.get_freeze_count() - frozen > len(held)


def test_what_is_freed_by_counting_leaves_also_where_it_is_out_of_sight():
    collections = ShortCollections()
    held = Cycle()
    held.self = None
    gone = weakref.ref(held)
    collections.freeze()
    del held
    assert gone() is None


def test_young_cycles_are_collected_at_once():
    collections = ShortCollections()
    gone = weakref.ref(Cycle())
    collections.freeze()
    assert gone() is None


def test_old_cycles_are_collected_once_too_many_have_gathered():
    collections = ShortCollections(growth=1.0, slack=30_000, look_every=1)
    collections.freeze()
    highest = lowest = gc.get_freeze_count()
    for _ in range(20):
        cycles = [Cycle() for _ in range(3_000)]
        collections.freeze()
        del cycles  # they are out of sight by now
        highest = max(highest, gc.get_freeze_count())
    assert collections.full >= 2
    assert highest - lowest < 40_000


def test_the_collector_is_given_back_as_it_was():
    thresholds = gc.get_threshold()
    collections = ShortCollections()
    collections.freeze()
    collections.freeze()
    assert gc.get_threshold() != thresholds
    collections.close()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)
    collections.freeze()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_the_collector_is_given_back_as_it_was_whenever_something_is_compiled():
    thresholds = gc.get_threshold()
    low_latency, collections = LowLatencyGc(), ShortCollections()
    with low_latency:
        collections.freeze()
    settled = gc.get_threshold()
    with low_latency:
        pass
    assert (gc.get_threshold(), settled == thresholds) == (settled, False)
    with low_latency:
        assert gc.get_threshold() != settled
        collections.close()
    assert gc.get_threshold() == thresholds


def test_turns_stay_short_when_a_compilation_ends_that_began_before():
    interval, low_latency, seen = sys.getswitchinterval(), LowLatencyGc(), []
    try:
        with low_latency:
            seen.append(sys.getswitchinterval())
        seen.append(sys.getswitchinterval())
        with low_latency:
            low_latency.keep_turns_short()
        seen.append(sys.getswitchinterval())
        sys.setswitchinterval(interval)
        low_latency.keep_turns_short()
        seen.append(sys.getswitchinterval())
    finally:
        sys.setswitchinterval(interval)
    assert seen == pytest.approx([0.0001, interval, 0.0001, 0.0001])


def test_a_server_gives_the_collector_back_at_its_end():
    thresholds = gc.get_threshold()
    collections = ShortCollections()

    def load():
        collections.freeze()
        raise ValueError("nothing to load")

    with pytest.raises(ValueError, match="nothing to load"):
        asyncio.run(Server(load, collections=collections).run("127.0.0.1", 0, asyncio.Event()))
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_a_server_freezes_what_exists_and_collects_it_again_at_its_end(freeze_of_servers):
    low_latency, held = LowLatencyGc(), [[] for _ in range(1_000)]
    freeze_of_servers(low_latency)
    assert gc.get_freeze_count() > len(held)
    assert not any(each is held for each in gc.get_objects())
    low_latency.unfreeze()
    assert (gc.get_freeze_count(), any(each is held for each in gc.get_objects())) == (0, True)


def test_what_a_reload_adds_is_no_reason_for_a_full_collection():
    blocks = 1_000
    collections = ShortCollections(growth=1.0, slack=100, look_every=1, count_blocks=lambda: blocks)
    collections.freeze()
    blocks += 5_000
    collections.freeze(explained=5_000)
    assert collections.full == 0
    blocks += 101
    collections.freeze()
    assert collections.full == 1


def test_no_collection_visits_many_objects_while_many_documents_are_read_and_compiled(monkeypatch):
    monkeypatch.setattr(low_latency_gc, "_LEAST_WORK_S", 0.0)
    visited = []

    def collected(phase, info):
        if phase == "start":
            visited.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    low_latency = LowLatencyGc()
    files = [Source(f"{file}.yaml", "---\n".join(DOCUMENT.format(1000 * file + number) for number in range(600)))
             for file in range(2)]
    with low_latency:
        gc.callbacks.append(collected)
        try:
            plugins = Builder(pause=low_latency.pause)(files)
        finally:
            gc.callbacks.remove(collected)
    assert len(plugins) == 1200
    assert max(visited) < 5_000, "little more than one document makes, however many there are"
