from __future__ import annotations

import gc
import tracemalloc

from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.registry import Live
from koordpolicy.engine.scheduler.cycle import Scheduler
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
DOCUMENTS = 60
A_DOCUMENT = 30_000
"""About what one compiled document takes, in bytes: to keep a single one of each set would show."""


def test_sets_of_policies_that_were_replaced_leave_nothing_behind():
    live = Live()
    scheduler = Scheduler(Cluster([node("a"), node("b")]), live)

    def publish(publication):
        sources = [Source(f"{number}.yaml", DOCUMENT.format(number=number, publication=publication)) for number in range(DOCUMENTS)]
        problems = Problems()
        compiled = compile_documents(load(sources).documents, problems)
        problems.raise_errors()
        live.replace(lambda: compiled, scheduler.prepare)
        assert scheduler.decide(PodInfo.of(pod(f"p{publication}"))).node == "a"

    def taken():
        live.replace(tuple, scheduler.prepare)
        scheduler.decide(PodInfo.of(pod("nothing-in-force")))
        gc.collect()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        for publication in (1, 2):  # what is found out once for all is known by then
            publish(publication)
        before = taken()
        for publication in range(3, 7):
            publish(publication)
        assert taken() - before < A_DOCUMENT
    finally:
        tracemalloc.stop()
