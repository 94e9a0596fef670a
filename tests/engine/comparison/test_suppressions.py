from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.outcome import outcome

from .conftest import NOW, Policies, document, metric, node, pod


def test_best_effort_pods_are_held_back_where_a_metric_counts(policies: Policies):
    squeeze = document("squeeze", """
interval: 1s
forEach: node
window: 10s
thresholds: [{name: pressed, expression: usage.cpu * 2 > allocatable.cpu, for: 1m}]
actions: [{name: bound, when: thresholds.pressed, suppressCPU: {target: "1500.0", policy: CFSQuota}}]
""", kind="QoSPlugin")
    batch = pod("batch", "0", "hot", labels={"koordinator.sh/qosClass": "BE"})
    nodes = [node("cool"), node("hot"), node("stale")]
    for each in nodes:
        each["status"]["capacity"] = {"cpu": "4"}
    cluster = Cluster(
        [*nodes, metric("cool", "1"), metric("hot", "3"), metric("stale", "3", at="2026-01-02T11:00:00Z"), batch],
    )
    found = outcome(policies(squeeze), cluster, now=NOW)
    assert [(each.node, each.item, each.values["target"], each.best_effort) for each in found.suppressions] == [
        ("hot", "bound", 1500, 1),
    ]
    assert found.summary.suppressed == 1
