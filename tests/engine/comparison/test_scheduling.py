from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.outcome import outcome
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

from .conftest import NOW, Policies, node, pod


def test_pods_land_one_after_the_other_and_the_cluster_is_left_as_it_was(policies: Policies, cluster: Cluster):
    before = [(row.name, list(row.pods), dict(row.requested)) for row in cluster.rows]
    found = outcome(policies(), cluster, now=NOW)
    assert {name: each.node for name, each in found.placements.items()} == {
        "shop/huge": None, "shop/new-1": "cool", "shop/new-2": "hot", "shop/new-3": None,
    }
    assert found.placements["shop/new-3"].reasons == {"Insufficient cpu": 3}
    assert [(row.name, list(row.pods), dict(row.requested)) for row in cluster.rows] == before
    assert [pod.key for pod in cluster.pending] == ["shop/huge", "shop/new-1", "shop/new-2", "shop/new-3"]


def test_whoever_a_pod_of_higher_priority_would_drive_out_is_told_and_stays(policies: Policies):
    cluster = Cluster([node("a", cpu="1"), pod("low", "1", "a"), pod("high", "1", priority=1000)])
    settings = Settings((ProfileSpec(enabled=(PluginChoice("DefaultPreemption"),)),))
    found = outcome(policies(), cluster, now=NOW, settings=settings)
    assert [(each.pod, each.node, each.framework, each.plugin) for each in found.evictions] == [
        ("shop/low", "a", "scheduler", "preemption"),
    ]
    assert (found.placements["shop/high"].node, cluster.pod("shop/low") is not None) == (None, True)
