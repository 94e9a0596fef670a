from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.args import check_args, convert
from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.estimates import (
    PodAssignCache,
    Query,
    estimate_node,
    estimate_pod,
)
from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.plugin import refused_from
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import CycleState

NOW = nanoseconds("2026-01-01T00:10:00Z", "")
SECOND = 1_000_000_000
GIB = 1024**3


def node(name="a", *, annotations=None):
    allocatable = {"cpu": "100", "memory": "100Gi", "pods": "100"}
    return {
        "kind": "Node", "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"allocatable": allocatable},
    }


def metric(name="a", *, cpu="10", memory="10Gi", at="2026-01-01T00:10:00Z", pods=(), **fields):
    usage = {"nodeUsage": {"resources": {"cpu": cpu, "memory": memory}}, **fields}
    return {
        "kind": "NodeMetric", "metadata": {"name": name},
        "status": {"updateTime": at, "nodeMetric": usage, "podsMetric": list(pods)},
    }


def reported(name, cpu, priority="koord-prod"):
    return {
        "namespace": "default", "name": name, "podUsage": {"resources": {"cpu": cpu, "memory": "0"}},
        "priority": priority,
    }


def pod(
    name="p", *, cpu="10", memory="10Gi", since=None, on=None, annotations=None, priority=9500, owners=(),
    initialized=None,
):
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": time}
                  for kind, time in (("PodScheduled", since), ("Initialized", initialized)) if time]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, "ownerReferences": list(owners)},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
                 "priority": priority, **({"nodeName": on} if on else {})},
        "status": {"conditions": conditions},
    }


class Asked:
    """One plugin over one cluster."""

    def __init__(self, kit, *objects, now=NOW, **args):
        self.kit, self.cluster, self.now = kit, Cluster(objects), now
        self.plugin = kit.make("LoadAwareScheduling", **args)

    def reasons(self, item=None, snapshot=None):
        snapshot = snapshot or self.cluster.snapshot(self.now)
        info = PodInfo.of(item or pod())
        answer = self.plugin.filter(CycleState(), info, snapshot, self.kit.rows(snapshot))
        return {
            name: "" if answer.passed[row] else answer.explain(row).message for row, name in enumerate(snapshot.names)
        }

    def scores(self, item=None, snapshot=None):
        snapshot = snapshot or self.cluster.snapshot(self.now)
        values = self.plugin.score(CycleState(), PodInfo.of(item or pod()), snapshot, self.kit.rows(snapshot)).values
        return dict(zip(snapshot.names, values.tolist(), strict=True))


def test_a_threshold_is_exceeded_above_it_and_not_at_it(kit):
    # The pod adds 8.5 cores: 56.99 and 8.5 are 65.49, which rounds to 65; 57 and 8.5 are 65.5.
    nodes = [node("a"), metric("a", cpu="56990m"), node("b"), metric("b", cpu="57")]
    assert Asked(kit, *nodes).reasons() == {"a": "", "b": "node(s) cpu usage exceed threshold"}


@given(st.integers(1, 1000), st.one_of(st.integers(1, 10**6), st.integers(2**40, 2**60)))
@example(65, 0)
def test_the_least_refused_usage_is_where_its_percent_reaches_the_bound(threshold, capacity):
    bound, least = threshold + 0.5, refused_from(threshold + 0.5, capacity)
    usages = np.array([0, max(0, least - 1), min(least, 2**62)])
    percents = usages / np.maximum(np.array([capacity] * 3), 1) * 100
    assert (percents >= (bound if capacity else np.inf)).tolist() == [False, False, capacity > 0 and least <= 2**62]


def test_reasons_are_told_by_the_first_resource_in_order_and_grouped(kit):
    asked = Asked(
        kit, node("a"), metric("a", cpu="90", memory="99Gi"), node("b"), metric("b", memory="99Gi"), node("c"),
        metric("c", at="2026-01-01T00:00:00Z"),
    )
    snapshot = asked.cluster.snapshot(NOW)
    answer = asked.plugin.filter(CycleState(), PodInfo.of(pod()), snapshot, kit.rows(snapshot))
    refused = kit.rows(snapshot)[~answer.passed]
    assert {reason: rows.tolist() for reason, rows in answer.reasons(refused).items()} == {
        "node(s) nodeMetric expired": [2], "node(s) cpu usage exceed threshold": [0],
        "node(s) memory usage exceed threshold": [1],
    }
    assert answer.explain(0).values == (("cpu", {"percent": 99, "threshold": 65}),)


def test_a_metric_expires_at_its_age_and_what_then_happens_is_configured(kit):
    old = (node(), metric(cpu="90", at="2026-01-01T00:07:00Z"))
    assert Asked(kit, *old).reasons() == {"a": "node(s) nodeMetric expired"}
    assert Asked(kit, *old, enableScheduleWhenNodeMetricsExpired=True).reasons() == {"a": ""}
    assert Asked(kit, *old, filterExpiredNodeMetrics=False).reasons() == {"a": "node(s) cpu usage exceed threshold"}
    assert Asked(kit, *old, filterExpiredNodeMetrics=False).scores() == {"a": 0}
    assert Asked(kit, *old, now=NOW - 1).reasons() == {"a": "node(s) cpu usage exceed threshold"}


def test_thresholds_of_zero_ask_nothing_not_even_the_age(kit):
    asked = Asked(kit, node(), metric(cpu="99", at="2026-01-01T00:00:00Z"), usageThresholds={"cpu": 0, "memory": 0})
    assert asked.reasons() == {"a": ""}


def test_nodes_without_a_metric_and_pods_of_daemon_sets_pass(kit):
    asked = Asked(kit, node("a"), node("b"), metric("b", cpu="99"))
    assert asked.reasons() == {"a": "", "b": "node(s) cpu usage exceed threshold"}
    assert asked.reasons(pod(owners=[{"kind": "DaemonSet", "name": "d"}])) == {"a": "", "b": ""}


def test_a_pod_is_expected_to_use_its_estimate_until_the_metric_shows_it(kit):
    asked = Asked(kit, node(), metric(cpu="50"))
    assert asked.reasons() == {"a": ""}
    asked.cluster.upsert(pod("new", on="a", since="2026-01-01T00:09:30Z"))
    assert asked.reasons() == {"a": "node(s) cpu usage exceed threshold"}
    asked.cluster.upsert(metric(cpu="50", pods=[reported("new", "5")]))
    # Within the report interval what it uses is part of the usage; the rest of its estimate comes on top.
    assert asked.reasons() == {"a": ""}
    assert asked.reasons(pod(cpu="15")) == {"a": "node(s) cpu usage exceed threshold"}
    asked.cluster.upsert(pod("new", on="a", since="2026-01-01T00:08:59Z"))
    assert asked.reasons(pod(cpu="15")) == {"a": ""}


def test_a_pod_without_a_condition_counts_from_when_it_was_first_seen(kit):
    asked = Asked(kit, node(), metric(cpu="50", pods=[reported("new", "1")]), pod("new", on="a"))
    assert asked.reasons() == {"a": "node(s) cpu usage exceed threshold"}
    later = metric(cpu="50", at="2026-01-01T00:12:00Z", pods=[reported("new", "1")])
    asked.cluster.upsert(later)
    asked.now = nanoseconds("2026-01-01T00:12:00Z", "")
    assert asked.reasons() == {"a": ""}


def test_a_reserved_pod_counts_from_its_reservation_unless_that_is_undone(kit):
    asked = Asked(kit, node(), metric(cpu="50", pods=[reported("new", "1")]))
    snapshot, info = asked.cluster.snapshot(NOW - 300 * SECOND), PodInfo.of(pod("new"))
    assert asked.plugin.reserve(CycleState(), info, snapshot, 0) is None
    asked.cluster.assume(info, "a")
    assert asked.reasons() == {"a": ""}
    asked.cluster.forget("default/new")
    asked.plugin.unreserve(CycleState(), info, snapshot, 0)
    asked.cluster.assume(info, "a")
    assert asked.reasons() == {"a": "node(s) cpu usage exceed threshold"}


@pytest.mark.parametrize(("args", "annotations", "expected"), [
    ({"estimatedSecondsAfterPodScheduled": 301}, {}, "node(s) cpu usage exceed threshold"),
    ({"estimatedSecondsAfterPodScheduled": 300}, {}, ""),
    ({"estimatedSecondsAfterPodScheduled": 999, "estimatedSecondsAfterInitialized": 200}, {}, ""),
    ({"estimatedSecondsAfterInitialized": 241}, {}, "node(s) cpu usage exceed threshold"),
    (
        {"allowCustomizeEstimation": True}, {"load-estimated-seconds-after-pod-scheduled": "301"},
        "node(s) cpu usage exceed threshold",
    ),
    ({}, {"load-estimated-seconds-after-pod-scheduled": "301"}, ""),
])
def test_an_estimate_may_count_longer_than_until_it_is_measured(kit, args, annotations, expected):
    texts = {f"scheduling.koordinator.sh/{key}": value for key, value in annotations.items()}
    running = pod("old", on="a", since="2026-01-01T00:05:00Z", initialized="2026-01-01T00:06:00Z", annotations=texts)
    assert Asked(
        kit, node(), metric(cpu="50", pods=[reported("old", "1")]), running, **args,
    ).reasons() == {"a": expected}


def test_prod_thresholds_bound_the_usage_of_prod_pods_for_prod_pods(kit):
    objects = (node(), metric(cpu="90", pods=[reported("old", "30")], systemUsage={"resources": {"cpu": "5"}}),
               pod("old", on="a", since="2026-01-01T00:00:00Z"))
    thresholds = {"usageThresholds": {"cpu": 100}, "prodUsageThresholds": {"cpu": 40}}
    assert Asked(kit, *objects, **thresholds).reasons() == {"a": ""}
    assert Asked(kit, *objects, **thresholds, prodUsageIncludeSys=True).reasons() == {
        "a": "node(s) cpu usage exceed threshold",
    }
    assert Asked(kit, *objects, **thresholds).reasons(pod(cpu="20")) == {"a": "node(s) cpu usage exceed threshold"}
    assert Asked(kit, *objects, **thresholds).reasons(pod(cpu="20", priority=5500)) == {"a": ""}


def test_a_prod_pod_that_is_reported_as_another_kind_counts_by_its_estimate(kit):
    objects = (
        node(), metric(cpu="90", pods=[reported("old", "30", "koord-batch")]),
        pod("old", on="a", since="2026-01-01T00:00:00Z"),
    )
    thresholds = {"usageThresholds": {"cpu": 100}, "prodUsageThresholds": {"cpu": 17}}
    assert Asked(kit, *objects, **thresholds).reasons() == {"a": ""}
    assert Asked(kit, *objects, **thresholds).reasons(pod(cpu="11")) == {"a": "node(s) cpu usage exceed threshold"}


def test_percentiles_are_those_of_the_duration_or_the_longest_and_else_all_estimates(kit):
    usages = [{"duration": "5m0s", "usage": {"p95": {"resources": {"cpu": "90", "memory": "1Gi"}}}},
              {"duration": "10m0s", "usage": {"p95": {"resources": {"cpu": "10", "memory": "1Gi"}}}}]
    objects = (node(), metric(cpu="99", aggregatedNodeUsages=usages), pod("old", on="a", since="2026-01-01T00:00:00Z"))

    def reasons(duration):
        aggregated = {
            "usageThresholds": {"cpu": 20}, "usageAggregationType": "p95", "usageAggregatedDuration": duration,
        }
        return Asked(kit, *objects, aggregated=aggregated).reasons()["a"]

    assert reasons("5m") == "node(s) cpu aggregated usage exceed threshold"
    assert reasons("0") == "node(s) cpu aggregated usage exceed threshold"  # 10, what is not measured yet, and the pod
    assert reasons("7m") == ""  # twice 8.5


def test_a_nodes_annotation_overrides_thresholds_unless_it_cannot_be_read(kit):
    def annotated(name, text):
        return node(name, annotations={"scheduling.koordinator.sh/usage-thresholds": text})

    aggregated = {"usageThresholds": {"cpu": 30}, "usageAggregationType": "p95"}
    texts = {
        "a": json.dumps({"usageThresholds": {"cpu": 30}}),
        "b": json.dumps({"usageThresholds": {}, "aggregatedUsage": aggregated}),
        "c": json.dumps({"usageThresholds": {"cpu": 30}, "aggregatedUsage": 5}), "d": "{",
        "e": json.dumps({"usageThresholds": {"x": 1}}),
    }
    objects = [annotated(name, text) for name, text in texts.items()] + [metric(name, cpu="40") for name in texts]
    asked = Asked(kit, *objects)
    assert asked.reasons() == {
        "a": "node(s) cpu usage exceed threshold", "b": "node(s) cpu aggregated usage exceed threshold", "c": "",
        "d": "", "e": "",
    }
    asked.cluster.upsert(annotated("a", texts["d"]))
    assert asked.reasons()["a"] == ""


def test_the_score_is_the_weighted_mean_of_what_is_left(kit):
    # cpu: 10 and 8.5 of 100 are used; memory: 10 and 7 GiB of 100.
    assert Asked(kit, node(), metric()).scores() == {"a": (81 + 83) // 2}
    assert Asked(kit, node(), metric(), resourceWeights={"cpu": 3, "memory": 1}).scores() == {"a": (3 * 81 + 83) // 4}


def test_the_dominant_resource_is_looked_for_among_all_resources(kit):
    args = {"resourceWeights": {"cpu": 1}, "dominantResourceWeight": 1}
    assert Asked(kit, node(), metric(memory="60Gi"), **args).scores() == {"a": (81 + 33) // 2}


def test_usage_above_the_capacity_gives_nothing_for_that_resource(kit):
    assert Asked(kit, node(), metric(cpu="99")).scores() == {"a": 83 // 2}


def test_derived_columns_answer_as_fresh_ones_do_after_every_kind_of_change(kit):
    asked = Asked(kit, node("a"), metric("a"), node("b"), metric("b", cpu="20"))
    changes = [
        pod("x", on="b", since="2026-01-01T00:09:00Z"), metric("b", cpu="30", pods=[reported("x", "1")]),
        node("a", annotations={"node.koordinator.sh/raw-allocatable": '{"cpu": "50"}'}), node("c"), metric("c"),
    ]
    for change in changes:
        asked.cluster.upsert(change)
        fresh = kit.make("LoadAwareScheduling")
        snapshot = asked.cluster.snapshot(NOW)
        expected = fresh.score(CycleState(), PodInfo.of(pod()), snapshot, kit.rows(snapshot)).values.tolist()
        assert list(asked.scores().values()) == expected


def test_an_overlay_is_answered_by_its_own_pods_and_leaves_no_trace(kit):
    asked = Asked(kit, node(), metric(cpu="50"))
    before = asked.scores()
    overlay = asked.cluster.snapshot(NOW).overlay({"a": NodeChange(add=[PodInfo.of(pod("x"))])})
    assert asked.reasons(snapshot=overlay) == {"a": "node(s) cpu usage exceed threshold"}
    assert asked.reasons() == {"a": ""}
    assert asked.scores() == before


def estimate(item, **args):
    return estimate_pod(PodInfo.of(item), convert(check_args(args)))


def test_estimates_follow_the_band_of_the_pod():
    assert estimate(pod()) == {"cpu": 8500, "memory": 7 * GIB}
    assert estimate(pod(cpu="0", memory="0")) == {"cpu": 250, "memory": 200 * 1024 * 1024}
    assert estimate(pod(priority=7500)) == {"cpu": 0, "memory": 0}
    assert estimate(pod(priority=3500)) == {"cpu": 0, "memory": 0}
    assert estimate(pod(priority=5500)) == {"cpu": 250, "memory": 200 * 1024 * 1024}


def test_other_resources_are_estimated_for_prod_pods_only():
    factors = {"estimatedScalingFactors": {"nvidia.com/gpu": 50}}
    item = pod()
    item["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "3"
    assert estimate(item, **factors)["nvidia.com/gpu"] == 2  # 1.5, rounded away from zero
    item["spec"]["priority"] = 5500
    assert estimate(item, **factors)["nvidia.com/gpu"] == 0


def test_an_estimate_is_never_above_the_limit():
    item = pod()
    item["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2"}
    item["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
    assert estimate(item, estimatedScalingFactors={"cpu": 100})["cpu"] == 2000


@pytest.mark.parametrize(
    ("text", "cpu"), [('{"cpu": 50}', 5000), ("{}", 8500), ("{", 8500), ('{"cpu": 0.5}', 8500), ("[]", 8500)],
)
def test_a_pod_may_say_its_own_factors_where_that_is_allowed(text, cpu):
    item = pod(annotations={"scheduling.koordinator.sh/load-estimated-scaling-factors": text})
    assert estimate(item, allowCustomizeEstimation=True) == {"cpu": cpu, "memory": 7 * GIB}
    assert estimate(item) == {"cpu": 8500, "memory": 7 * GIB}


@pytest.mark.parametrize(("text", "cpu"), [('{"cpu": "50"}', 50_000), ("{", 100_000), ('{"cpu": "many"}', 100_000)])
def test_a_node_counts_by_its_allocatable_before_amplification(text, cpu):
    amplified = node(annotations={"node.koordinator.sh/raw-allocatable": text})
    assert estimate_node(amplified, ResourceList(cpu=100_000, memory=5)) == {"cpu": cpu, "memory": 5}


def test_a_profile_that_names_it_fills_nodes_up_to_the_threshold_and_no_further():
    args = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "LoadAwareSchedulingArgs",
            "usageThresholds": {"cpu": 30}, "resourceWeights": {"cpu": 1}}
    spec = ProfileSpec(
        enabled=(PluginChoice("LoadAwareScheduling", args=args),), disabled={Point.SCORE: frozenset("*")},
    )
    cluster = Cluster([node("a"), metric("a", cpu="10"), node("b"), metric("b", cpu="20")])
    scheduler = Scheduler(cluster, Live(Registry.of(PLUGINS, generation=1)), Settings((spec,)), clock=lambda: NOW)
    verdicts = [scheduler.schedule(PodInfo.of(pod(f"p{number}")), explained=True) for number in range(4)]
    # 8.5 cores each: a takes two (10, 18.5, 27), b takes one (20, 28.5).
    assert [verdict.node for verdict in verdicts] == ["a", "a", "b", None]
    assert [(each.reason, list(each.nodes)) for each in verdicts[-1].refusals()] == [
        ("node(s) cpu usage exceed threshold", ["a", "b"]),
    ]


def test_a_view_in_which_a_node_is_no_more_like_the_others_is_answered_by_what_it_shows(kit):
    asked = Asked(kit, node("a"), metric("a", cpu="10"), node("b"), metric("b", cpu="10"), usageThresholds={"cpu": 50})
    assert asked.reasons() == {"a": "", "b": ""}
    own = node(
        "b", annotations={"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 5}})},
    )
    view = asked.cluster.snapshot(NOW).overlay({"b": NodeChange(node=own)})
    assert asked.reasons(snapshot=view) == {"a": "", "b": "node(s) cpu usage exceed threshold"}


def test_thresholds_that_a_node_gets_later_count(kit):
    asked = Asked(
        kit, *(each for name in "ab" for each in (node(name), metric(name, cpu="10"))), usageThresholds={"cpu": 50},
    )
    assert asked.reasons() == {"a": "", "b": ""}
    asked.cluster.upsert(
        node(
            "b",
            annotations={"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 5}})},
        ),
    )
    assert asked.reasons() == {"a": "", "b": "node(s) cpu usage exceed threshold"}


def test_a_pod_that_is_placed_again_is_expected_anew(kit):
    args = convert(check_args({}))
    cache, cluster = PodAssignCache(args), Cluster([node(), metric(pods=[reported("p", "1")])])
    placed = PodInfo.of(pod())
    cluster.assume(placed, "a")
    before = list(cache.usage(cluster.snapshot(NOW - 1000 * SECOND), 0, Query()))
    cluster.forget("default/p")
    cache.assign("a", placed, NOW + SECOND)
    cluster.assume(placed, "a")
    after = list(cache.usage(cluster.snapshot(NOW + SECOND), 0, Query()))
    assert before[0] < after[0]


def test_a_pod_that_did_not_come_is_forgotten(kit):
    args = convert(check_args({}))
    cache, cluster = PodAssignCache(args), Cluster([node(), metric(pods=[reported("q", "1")])])
    cache.assign("a", PodInfo.of(pod("q")), NOW - 1000 * SECOND)
    cluster.assume(PodInfo.of(pod("r")), "a")
    cache.usage(cluster.snapshot(NOW), 0, Query())
    cluster.assume(PodInfo.of(pod("q")), "a")
    shown = cluster.snapshot(NOW)
    assert list(cache.usage(shown, 0, Query())) == list(PodAssignCache(args).usage(shown, 0, Query()))


def test_what_a_view_shows_leaves_nothing_behind(kit):
    args = convert(check_args({}))
    cache, cluster = PodAssignCache(args), Cluster([node(), metric()])
    cluster.assume(PodInfo.of(pod()), "a")
    before = list(cache.usage(cluster.snapshot(NOW), 0, Query()))
    view = cluster.snapshot(NOW).overlay({"a": NodeChange(add=[PodInfo.of(pod("q"))], remove=["default/p"])})
    shown = list(cache.usage(view, 0, Query()))
    assert (shown == before, list(cache.usage(cluster.snapshot(NOW), 0, Query()))) == (True, before)
    wide = cluster.snapshot(NOW).overlay({"a": NodeChange(add=[PodInfo.of(pod("q"))])})
    assert cache.usage(wide, 0, Query())[0] > before[0]
    assert list(cache.usage(cluster.snapshot(NOW), 0, Query())) == before


def usages(cache, cluster):
    queries = (Query(), Query(prod=True), Query(statistic="p95", duration=0))
    snapshot = cluster.snapshot(NOW)
    return {
        name: [list(cache.usage(snapshot, row, query)) for query in queries] for name, row in snapshot.index.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_what_pods_add_is_the_same_whether_it_was_followed_or_is_added_up_anew(random, of_system):
    args = convert(check_args({"prodUsageIncludeSys": of_system, "estimatedSecondsAfterPodScheduled": 60}))
    followed, cluster = PodAssignCache(args), Cluster([node("a"), node("b")])
    for _ in range(12):
        name = f"p{random.randrange(6)}"
        seen = random.choice([None, "2026-01-01T00:09:30Z", "2026-01-01T00:01:00Z"])
        item = pod(
            name, cpu=str(random.randrange(1, 9)), since=seen, on=random.choice(["a", "b", None]),
            priority=random.choice([9500, 5500]),
        )
        match random.randrange(5):
            case 0 | 1:
                cluster.upsert(item)
            case 2:
                cluster.delete("Pod", f"default/{name}")
            case 3:
                told = [
                    reported(f"p{number}", str(random.randrange(9)), random.choice(["koord-prod", "koord-batch"]))
                    for number in range(random.randrange(7))
                ]
                statistics = [
                    {"duration": "5m", "usage": {"p95": {"resources": {"cpu": "7", "memory": "1Gi"}}}},
                ] * random.randrange(2)
                cluster.upsert(
                    metric("a", pods=told, systemUsage={"resources": {"cpu": "1"}}, aggregatedNodeUsages=statistics),
                )
            case _:
                info = PodInfo.of(item)
                followed.assign("a", info, NOW)
                if random.random() < 0.5:
                    followed.unassign("a", info)
        assert usages(followed, cluster) == usages(PodAssignCache(args), cluster)
