"""LowNodeUtilization and HighNodeUtilization, with their common parts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler.low_node_utilization.plugin import LowNodeUtilization
from koordpolicy.builtin_plugins.descheduler.node_utilization.args import check_high_args, check_low_args
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.testing import FakeEvictor
from tests.builtin_plugins.descheduler.clusters import NOW, balance, node, pod

LOW = {"thresholds": {"cpu": 25}, "targetThresholds": {"cpu": 50}}
HIGH = {"thresholds": {"cpu": 25}}


def pods_on(name, count, *, cpu="1", prefix="p", **more):
    return [pod(f"{prefix}{index}", name, cpu=cpu, **more) for index in range(count)]


def low(*objects, args=LOW, **more):
    return balance("LowNodeUtilization", args, objects, **more)


def high(*objects, args=HIGH, **more):
    return balance("HighNodeUtilization", args, objects, **more)


def test_pods_leave_an_overutilized_node_until_it_is_not():
    result = low(node("full"), node("empty"), *pods_on("full", 4))
    assert result.evicted == dict.fromkeys(("shop/p0", "shop/p1"), "node `full`: cpu 100 %, memory 0 %, pods 40 %")
    assert result.kept == dict.fromkeys(("shop/p2", "shop/p3"), "node `full` is not above its thresholds any more")
    assert result.observed == {"full": "source", "empty": "target"}


def test_usage_at_a_threshold_is_below_it():
    result = low(node("half"), node("quarter"), *pods_on("half", 2), *pods_on("quarter", 1, prefix="q"))
    assert (result.evicted, result.observed) == ({}, {"quarter": "target"})


@pytest.mark.parametrize(("nodes", "args"), [
    ([node("full")], LOW), ([node("full"), node("empty")], {**LOW, "numberOfNodes": 1}),
    ([node("full"), node("empty", unschedulable=True)], LOW),
])
def test_without_enough_underutilized_nodes_all_pods_stay(nodes, args):
    assert low(*nodes, *pods_on("full", 4), args=args).evicted == {}


def test_the_least_important_pods_go_first():
    pods = [pod("high", "full", priority=9), pod("low", "full", priority=1), pod("none", "full"),
            pod("late", "full", priority=1,
                metadata={"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}})]
    assert list(low(node("full"), node("empty"), *pods).evicted) == ["shop/none", "shop/low"]


def test_all_destinations_together_must_have_room_for_every_resource():
    result = low(node("full", pods="100"), node("small", pods="1"), *pods_on("full", 4))
    assert list(result.evicted) == ["shop/p0"]
    assert result.kept["shop/p1"] == "no room for more pods on the nodes that could take it"


def test_a_pod_that_tolerates_fewer_taints_than_each_destination_has_stays():
    taints = [{"key": "a", "effect": "PreferNoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    everything = [{"operator": "Exists"}]
    nodes = [node("full"), node("empty", taints=taints)]
    assert low(*nodes, *pods_on("full", 4, tolerations=everything)).evicted == {}
    assert len(low(*nodes, *pods_on("full", 4, tolerations=everything * 2)).evicted) == 2


def test_excluded_namespaces_and_limits_keep_pods():
    nodes = [node("full"), node("empty")]
    result = low(*nodes, *pods_on("full", 4), args={**LOW, "evictableNamespaces": {"exclude": ["shop"]}})
    assert (result.evicted, result.kept["shop/p0"]) == ({}, "namespace `shop` is not evictable")
    result = low(*nodes, *pods_on("full", 4), args={**LOW, "evictionLimits": {"node": 1}})
    assert (list(result.evicted), result.kept["shop/p1"]) == (["shop/p0"], "at most 1 pod of one node")


def test_thresholds_may_be_distances_from_the_average():
    args = {"useDeviationThresholds": True, "thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 10}}
    nodes = [node("full"), node("half"), node("empty")]
    result = low(*nodes, *pods_on("full", 4), *pods_on("half", 2, prefix="h"), args=args)
    assert (result.observed, list(result.evicted)) == ({"full": "source", "empty": "target"}, ["shop/p0", "shop/p1"])


def test_a_node_does_not_give_up_pods_again_that_leave_already():
    evictor = FakeEvictor()
    evictor.evicted = dict.fromkeys(("shop/p0", "shop/p1"), "by another plugin")
    low(node("full"), node("empty"), *pods_on("full", 4), evictor=evictor)
    assert list(evictor.evicted) == ["shop/p0", "shop/p1"]


def test_no_more_nodes_are_looked_at_when_no_pod_at_all_may_go():
    evictor = FakeEvictor(limit=1)
    low(node("full"), node("full2"), node("empty"), *pods_on("full", 4), *pods_on("full2", 3, prefix="q"),
        evictor=evictor)
    assert (list(evictor.evicted), evictor.kept) == (["shop/p0"], {})


def metrics(name, cpu):
    return {"kind": "NodeMetrics", "metadata": {"name": name}, "usage": {"cpu": cpu, "memory": "1Gi"}}


def pod_metrics(name, cpu):
    return {"kind": "PodMetrics", "metadata": {"name": name, "namespace": "shop"},
            "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "1Mi"}}]}


MEASURED = {**LOW, "metricsUtilization": {"source": "KubernetesMetrics"}}


def test_measured_usage_counts_in_place_of_requests():
    measured = [metrics("full", "3"), metrics("empty", "10m"), pod_metrics("p1", "1500m"), pod_metrics("p2", "1")]
    result = low(node("full"), node("empty"), *pods_on("full", 3, cpu="1m"), *measured, args=MEASURED)
    assert list(result.evicted) == ["shop/p1"]
    assert result.kept["shop/p0"] == "there are no PodMetrics of shop/p0"


@pytest.mark.parametrize(("objects", "message"), [
    ([], "error initializing usage client: metrics client not initialized"),
    ([metrics("full", "1")], 'error getting node usage: unable to find node "empty" in the collected metrics'),
])
def test_a_node_that_is_not_measured_fails_the_plugin(objects, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        low(node("full"), node("empty"), *objects, args=MEASURED)


SAMPLED = {
    "thresholds": {"MetricResource": 30}, "targetThresholds": {"MetricResource": 50},
    "metricsUtilization": {"source": "Prometheus", "prometheus": {"query": "load"}},
}


@pytest.mark.parametrize(("limits", "evicted"), [
    ({}, ["shop/p0"]), ({"evictionLimits": {"node": 2}}, ["shop/p0", "shop/p1"]),
])
def test_by_samples_of_nodes_one_pod_goes_unless_a_limit_says_more(limits, evicted):
    queries = []

    def query(text):
        queries.append(text)
        return {"full": 0.9, "empty": 0.1}

    snapshot, evictor = Cluster([node("full"), node("empty"), *pods_on("full", 4)]).snapshot(NOW), FakeEvictor()
    args = check_low_args({**SAMPLED, **limits})
    LowNodeUtilization(args, query).balance(snapshot, [0, 1], evictor)
    assert (list(evictor.evicted), queries) == (evicted, ["load"])


@pytest.mark.parametrize(("answer", "message"), [
    ({"full": 1.5}, 'sample for "full" has value 1.5 outside of <0; 1> interval'),
    ({"full": 0.5}, "unable to find metric entry for empty"),
])
def test_a_bad_answer_to_the_query_fails_the_plugin(answer, message):
    snapshot = Cluster([node("full"), node("empty")]).snapshot(NOW)
    with pytest.raises(ValueError, match=re.escape(message)):
        LowNodeUtilization(check_low_args(SAMPLED), lambda _: answer).balance(snapshot, [0, 1], FakeEvictor())


@given(st.lists(st.integers(0, 8), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_no_node_gives_up_more_than_takes_it_below_its_target(counts):
    nodes = [node(f"n{index}") for index in range(len(counts))]
    pods = [each for index, count in enumerate(counts)
            for each in pods_on(f"n{index}", count, cpu="500m", prefix=f"n{index}-p")]
    gone = low(*nodes, *pods).evicted
    for index, count in enumerate(counts):
        left = count - sum(key.startswith(f"shop/n{index}-") for key in gone)
        assert left == count or (count > 4 and left >= 4)


def test_pods_leave_underutilized_nodes_the_emptiest_first():
    nodes = [node("some"), node("few"), node("busy")]
    pods = [*pods_on("some", 2, cpu="500m", prefix="s"), *pods_on("few", 1, cpu="100m", prefix="f"),
            *pods_on("busy", 3, prefix="b")]
    result = high(*nodes, *pods)
    assert list(result.evicted) == ["shop/f0", "shop/s0", "shop/s1"]
    assert result.observed == {"some": "source", "few": "source", "busy": "target"}


@pytest.mark.parametrize(("busy", "args"), [
    (node("busy", unschedulable=True), HIGH), (node("busy"), {**HIGH, "numberOfNodes": 1}),
    (node("busy", cpu="3"), HIGH),
])
def test_without_a_node_that_takes_them_the_pods_stay(busy, args):
    assert high(node("few"), busy, *pods_on("few", 1), *pods_on("busy", 3, prefix="b"), args=args).evicted == {}


def test_a_mode_leaves_pods_that_request_no_resource_of_the_thresholds():
    bare = {**pod("bare", "few"), "spec": {"nodeName": "few", "containers": [{"name": "c", "image": "i"}]}}
    nodes = [node("few"), node("busy")]
    pods = [bare, *pods_on("few", 1), *pods_on("busy", 3, prefix="b")]
    assert list(high(*nodes, *pods).evicted) == ["shop/bare", "shop/p0"]
    only = {**HIGH, "evictionModes": ["OnlyThresholdingResources"]}
    assert list(high(*nodes, *pods, args=only).evicted) == ["shop/p0"]


@pytest.mark.parametrize(("changes", "message"), [
    ({"threshold": {}}, "'threshold' was unexpected"),
    ({"thresholds": {"cpu": "20"}}, "`thresholds.cpu`: '20' is not of type 'number'"),
    ({"thresholds": {}}, "thresholds: thresholds config is not valid: no resource threshold is configured"),
    ({"targetThresholds": {"cpu": 101}}, "targetThresholds config is not valid: cpu threshold not in [0, 100] range"),
    ({"targetThresholds": {"memory": 50}}, "thresholds and targetThresholds configured different resources"),
    ({"thresholds": {"cpu": 60}}, "thresholds' cpu percentage is greater than targetThresholds'"),
    ({"evictableNamespaces": {"include": ["a"]}}, "only Exclude namespaces can be set, inclusion is not supported"),
    ({"metricsUtilization": {"source": "Prometheus"}}, "prometheus query is required"),
    ({"metricsUtilization": {"source": "KubernetesMetrics", "metricsServer": True}}, "not allowed to set both"),
    ({"metricsUtilization": {"source": "KubernetesMetrics", "prometheus": {}}},
     "prometheus configuration is not allowed"),
    ({"metricsUtilization": {"source": "Prometheus", "prometheus": {"query": "q"}}},
     'single instance of "MetricResource"'),
    ({"metricsUtilization": {"source": "Datadog"}}, "`Datadog` is not a source"),
    ({"metricsUtilization": {}}, "metrics source is empty"),
])
def test_faults_of_the_arguments_of_low_node_utilization_are_told(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_low_args({**LOW, **changes})


@pytest.mark.parametrize(("args", "message"), [
    ({}, "thresholds: no resource threshold is configured"), ({"thresholds": {"cpu": -1}}, "not in [0, 100] range"),
    ({**HIGH, "evictionModes": ["All"]}, "evictionModes[0]: invalid eviction mode All"),
])
def test_faults_of_the_arguments_of_high_node_utilization_are_told(args, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_high_args(args)


def test_distances_from_the_average_may_be_in_any_order():
    assert check_low_args({**LOW, "thresholds": {"cpu": 60}, "useDeviationThresholds": True})
