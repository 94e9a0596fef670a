from __future__ import annotations

import gc

from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
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


def test_sets_of_policies_that_were_replaced_leave_nothing_behind():
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
