from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.failures import FailureCount
from koordpolicy.engine.comparison.outcome import outcome

from .conftest import COLD, NOW, Policies, refusals


def test_an_expired_metric_is_an_error_that_is_counted_and_refuses(policies: Policies, cluster: Cluster):
    found = outcome(policies(COLD), cluster, now=NOW)
    assert found.faults[0] == FailureCount(
        "cold", "filter", "below", "no metric of the node, or an expired one", 1, "shop/web-1 on small",
    )
    assert refusals(found)["shop/web-1"] == {"hot": "below", "small": "below"}
