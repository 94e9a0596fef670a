from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Code, Refusal


@pytest.fixture
def cluster(kit):
    cluster = kit.cluster(kit.node("a"), kit.node("b"), kit.node("c"))
    cluster.assume(kit.pod("one", requests={"cpu": "3500m"}), "a")
    cluster.assume(kit.pod("two", requests={"memory": "8Gi"}), "b")
    return cluster


def test_what_a_pod_requests_must_be_free(kit, cluster):
    plugin = kit.make("NodeResourcesFit")
    assert kit.passed(plugin, kit.pod(requests={"cpu": "500m"}), cluster) == ["a", "b", "c"]
    assert kit.passed(plugin, kit.pod(requests={"cpu": "501m"}), cluster) == ["b", "c"]
    assert kit.passed(plugin, kit.pod(requests={"cpu": "501m", "memory": "1"}), cluster) == ["c"]


def test_a_refusal_says_what_was_requested_used_and_there(kit, cluster):
    pod = kit.pod(requests={"cpu": "1", "memory": "1Gi"})
    assert kit.refusal(kit.make("NodeResourcesFit"), pod, cluster, "a") == Refusal(
        "resources", "Insufficient cpu", values=(("cpu", {"requested": 1000, "used": 3500, "capacity": 4000}),))


def test_all_that_is_short_is_told_and_counted(kit, cluster):
    pod = kit.pod(requests={"cpu": "5", "memory": "1Gi", "example.com/fpga": "1"})
    plugin = kit.make("NodeResourcesFit")
    refusal = kit.refusal(plugin, pod, cluster, "b")
    assert (refusal.message, refusal.code) == (
        "Insufficient cpu, Insufficient memory, Insufficient example.com/fpga", Code.UNRESOLVABLE,
    )
    assert kit.reasons(plugin, pod, cluster) == {
        "Insufficient cpu": ["a", "b", "c"], "Insufficient memory": ["b"],
        "Insufficient example.com/fpga": ["a", "b", "c"],
    }


def test_ignored_extended_resources_are_not_looked_at(kit, cluster):
    pod = kit.pod(requests={"example.com/fpga": "1", "other.com/x": "1"})
    assert kit.passed(
        kit.make("NodeResourcesFit", ignoredResources=["other.com/x"], ignoredResourceGroups=["example.com"]), pod,
        cluster,
    ) == ["a", "b", "c"]
    assert kit.passed(kit.make("NodeResourcesFit", ignoredResources=["other.com/x"]), pod, cluster) == []


def test_a_node_takes_no_more_pods_than_it_says(kit, cluster):
    for name in ("three", "four"):
        cluster.assume(kit.pod(name), "a")
    plugin = kit.make("NodeResourcesFit")
    assert kit.refusal(plugin, kit.pod(), cluster, "a") == Refusal(
        "resources", "Too many pods", values=(("pods", {"requested": 1, "used": 3, "capacity": 3}),))
    assert kit.reasons(plugin, kit.pod(), cluster) == {"Too many pods": ["a"]}
