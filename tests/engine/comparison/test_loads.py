from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.outcome import outcome

from .conftest import NOW, Policies


def test_numbers_sum_up_load_and_spread_after_placement(policies: Policies, cluster: Cluster):
    summary = outcome(policies(), cluster, now=NOW).summary
    assert summary.to_json() == {
        "nodes": 3, "measured": 2, "running": 3, "asked": 4, "placed": 2, "pending": 2, "misfits": 0, "evictions": 0,
        "unproved": 0, "suppressed": 0, "hot": 2,
        # cool 3 of 4, hot 3.1 of 4, small 0 of 1
        "requested": {"cpu": {"mean": 50.83, "deviation": 35.96}, "memory": {"mean": 0.0, "deviation": 0.0}},
        # cool 1 + 0.85 (web-1) + 1.7 (new-1), hot 3 + 1.7 (new-2) + 0.085 (the agent, which no metric shows)
        "usage": {"cpu": {"mean": 104.19, "deviation": 15.44}}, "faults": 0,
    }
