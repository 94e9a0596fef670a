from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.evictions import PredictedEviction
from koordpolicy.engine.comparison.outcome import outcome

from .conftest import NOW, Policies, document


def test_a_node_is_drained_as_if_it_had_been_hot_for_long(policies: Policies, cluster: Cluster):
    drain = document("drain", """
type: Balance
nodes:
  source: usage.cpu * 100 / allocatable.cpu > 65
  target: usage.cpu * 100 / allocatable.cpu < 45
  anomaly: {consecutive: 50, timeout: 5m}
criteria: [{name: movable, expression: podUsage.cpu > 0, message: it runs hot}]
until: usage.cpu * 100 / allocatable.cpu <= 65
""", kind="DeschedulerPlugin")
    found = outcome(policies(drain), cluster, now=NOW)
    assert found.evictions == (
        PredictedEviction("shop/web-2", "hot", "descheduler", "drain", "movable", "it runs hot"),
    )
    assert (found.summary.evictions, found.summary.hot, outcome(policies(), cluster, now=NOW).summary.hot) == (1, 1, 2)
