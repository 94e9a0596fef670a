from __future__ import annotations

import gc
import itertools
from collections import Counter

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.trace import TraceNode, TracePod, Workload
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.experiments.replays import SHIPPED
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extensions.fragmentation import TypicalPod
from koordpolicy.engine.scheduler.result_cache import result_cache, store
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.source import Problems, Source
from koordpolicy.testing import node, pod

DOCUMENT = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: policy-{number}}}
spec:
  params: {{publication: {publication}}}
  variables: [{{name: free, expression: allocatable.cpu - requested.cpu}}]
  filter: [{{name: room, expression: variables.free >= requests.cpu && params.publication > {number} - 1000}}]
  score: [{{name: free-first, expression: variables.free * 100 / (allocatable.cpu + {publication})}}]
"""
DOCUMENTS = 20
NAME = "replaced"


def test_sets_of_policies_that_were_replaced_leave_nothing_behind(small_heap):
    live = Live()
    scheduler = Scheduler(Cluster([node("a"), node("b")]), live)

    def publish(publication):
        sources = [
            Source(f"{NAME}-{number}.yaml", DOCUMENT.format(number=number, publication=publication))
            for number in range(DOCUMENTS)
        ]
        problems = Problems()
        compiled = compile_documents(load(sources).documents, problems)
        problems.raise_errors()
        live.replace(lambda: compiled, scheduler.hot_swap.stage)
        assert scheduler.decide(PodInfo.of(pod(f"p{publication}"))).node == "a"

    def expressions_in_memory():
        live.replace(tuple, scheduler.hot_swap.stage)
        scheduler.decide(PodInfo.of(pod("nothing-in-force")))
        gc.collect()
        gc.collect()
        return sum(isinstance(each, Checked) and NAME in each.source.name for each in gc.get_objects())

    for publication in range(4):
        publish(publication)
    assert expressions_in_memory() == 0


@pytest.fixture
def cyclic_garbage(monkeypatch, small_heap):
    """Return the objects that only the garbage collector frees, which runs in tests that call this alone."""
    monkeypatch.setattr(store, "_MOST_RESULTS", 8)  # results are dropped too
    monkeypatch.setattr(result_cache, "_MOST_SHAPES", 8)

    def found():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        classes = Counter(type(each).__qualname__ for each in gc.garbage)
        gc.garbage.clear()
        gc.collect()
        return classes

    gc.disable()
    yield found
    gc.enable()


def test_decisions_leave_nothing_to_the_garbage_collector(cyclic_garbage):
    documents = load([Source("one.yaml", DOCUMENT.format(number=1, publication=0))]).documents
    compiled = compile_documents(documents, Problems())
    cluster = Cluster((node(f"n{number:03}") for number in range(100)), cache_results_from=0)
    scheduler = Scheduler(cluster, Live(Registry.of([*PLUGINS, *compiled], generation=1)))

    def schedule(numbers):
        for number in numbers:
            large = number % 7 == 0
            verdict = scheduler.schedule(PodInfo.of(pod(f"p{number}", cpu="99" if large else f"{number}m")))
            assert (verdict.node is None) == large
            assert bool(verdict.reasons()) == large

    schedule(range(1, 20))  # what is made once, as classes and functions, may leave something
    cyclic_garbage()
    schedule(range(20, 60))
    assert not cyclic_garbage()


def test_a_replay_leaves_nothing_to_the_garbage_collector(cyclic_garbage):
    sources = [Source(str(path), path.read_text()) for path in sorted((SHIPPED / "best-fit").glob("*.yaml"))]
    live = Live(Registry.of([*PLUGINS, *compile_documents(load(sources).documents, Problems())], generation=1))
    nodes = tuple(TraceNode(f"n{number:03}", 10_000, 10_000, 2, "T4") for number in range(600))
    found = []

    def look(number):
        found.append(cyclic_garbage())

    pods = [TracePod(f"p{number}", 100 * (number % 30), 100, 0 if number % 9 else 9, 1000) for number in range(400)]
    result = simulate(Workload(nodes, pods), live, clock=itertools.count().__next__, progress=look,
                      typical=[TypicalPod(1000, 500, 1, frozenset(), 1.0)])
    assert (result.failed, len(found)) == (45, 4)
    assert not any(found[1:])
