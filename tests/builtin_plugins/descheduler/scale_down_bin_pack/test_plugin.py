from __future__ import annotations

import math
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler.scale_down_bin_pack.args import check_args
from koordpolicy.builtin_plugins.descheduler.scale_down_bin_pack.ranking import BinPackNode, rank_pods
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.argument_faults import ArgumentError
from tests.balance_cycles import Json, Server, evicted, kept, node, pod, run

COST = "controller.kubernetes.io/pod-deletion-cost"
WEB: Json = {"podSelectors": [{"name": "web", "selector": {"matchLabels": {"app": "web"}}}]}
APP = {"app": "web"}
# Half of `taxed` belongs to others; `pure` has web pods only.
CLUSTER = [
    node("taxed"), pod("t", "taxed", "1", "2Gi", labels=APP), pod("db", "taxed", "1", "2Gi"),
    node("pure"), pod("small", "pure", "500m", "1Gi", labels=APP), pod("large", "pure", "1", "2Gi", labels=APP),
    node("other"), pod("x", "other", "1", "2Gi"),
]


def costs(objects: list[Json] = CLUSTER, *, server: Server | None = None, **args: Any):
    server = server or Server()
    result = run("ScaleDownBinPack", objects, server=server, dry_run=False, **args)
    return {what.removeprefix("Pod "): value[COST] for what, value in server.writes}, result


def test_pods_of_nodes_that_can_be_emptied_go_first_and_large_ones_before_small_ones():
    assert costs(**WEB)[0] == {"large": "0", "small": "1", "t": "2"}


def test_without_selectors_all_pods_are_targets_and_nodes_with_fewer_pods_come_first():
    assert costs()[0] == {"x": "0", "large": "1", "small": "2", "db": "3", "t": "4"}


def test_targets_that_must_stay_cost_most_and_count_as_staying():
    server = Server()
    result = run("ScaleDownBinPack", CLUSTER, server=server, kept=("small",), dry_run=False, **WEB)
    assert {what: value[COST] for what, value in server.writes} == {
        "Pod large": "0", "Pod t": "1", "Pod small": "2147483647"}
    assert [each.to_json() for each in result.changes][2] == {
        "kind": "Pod", "object": "d/small", "profile": "p", "plugin": "ScaleDownBinPack",
        "message": "deletion cost 2147483647",
    }


def test_a_node_without_pods_that_may_go_is_left_alone():
    server = Server()
    run("ScaleDownBinPack", CLUSTER, server=server, kept=("t",), dry_run=False, **WEB)
    assert [what for what, _ in server.writes] == ["Pod large", "Pod small"]


def test_other_annotations_stay_and_a_cost_that_is_right_is_not_written_again():
    ranked = pod("a", "n", "1")
    ranked["metadata"]["annotations"] = {COST: "0", "other": "1"}
    second = pod("b", "n")
    second["metadata"]["annotations"] = {COST: "7", "other": "2"}
    server = Server()
    run("ScaleDownBinPack", [node("n"), ranked, second, node("m")], server=server, dry_run=False)
    assert server.writes == [("Pod b", {COST: "1", "other": "2"})]


def test_a_dry_run_says_which_costs_it_would_set_and_writes_nothing():
    server = Server()
    result = run("ScaleDownBinPack", CLUSTER, server=server, **WEB)
    assert (server.writes, [(each.key, each.message) for each in result.changes]) == (
        [], [("d/large", "deletion cost 0"), ("d/small", "deletion cost 1"), ("d/t", "deletion cost 2")])


def test_a_cost_that_cannot_be_set_fails_the_plugin_after_the_others_are_set():
    written, result = costs(server=Server("large"), **WEB)
    assert (written, result.error) == ({"small": "1", "t": "2"}, "failed to patch 1 pods")
    assert ("d/large", "deletion cost 0: the server is away") in [
        (each.subject, each.message) for each in result.failures]


def test_evictions_are_counted_by_their_success():
    server = Server("large")
    result = run("ScaleDownBinPack", CLUSTER, server=server, dry_run=False, strategy="EvictDirectly", maxPodsToEvict=1,
                 **WEB)
    assert server.writes == [("evict small", "scale-down binpack")]
    assert (evicted(result), kept(result)) == (["small"], {"large": "", "t": "maxPodsToEvict"})


def test_a_pod_that_may_not_leave_now_is_passed_over():
    result = run("ScaleDownBinPack", CLUSTER, not_now=("large",), strategy="EvictDirectly", maxPodsToEvict=1, **WEB)
    assert (evicted(result), kept(result)) == (["small"], {"large": "notNow", "t": "maxPodsToEvict"})


@pytest.mark.parametrize("args", [
    {"paused": True}, {"nodeSelector": {"matchLabels": {"a": "b"}}}, {"evictableNamespaces": {"exclude": ["d"]}},
    {"evictableNamespaces": {"include": ["e"]}},
    {"podSelectors": [{"name": "n", "selector": {"matchLabels": {"a": "b"}}}]},
])
def test_arguments_that_say_so_rank_nothing(args):
    written, result = costs(**args)
    assert (written, result.outcomes, result.changes, result.error) == ({}, (), (), "")


def test_an_entry_without_a_selector_makes_all_pods_targets_but_only_selected_ones_go():
    selectors: Json = {"podSelectors": [*WEB["podSelectors"], {"name": "all"}]}
    assert costs(**selectors)[0] == {"large": "0", "small": "1", "t": "2", "db": "2147483647"}


def test_weights_decide_and_resources_have_the_weight_one():
    cpu, memory = pod("cpu", "n", "3", "1Gi"), pod("memory", "n", "1", "7Gi")
    objects = [node("n"), cpu, memory, node("m")]
    assert costs(objects)[0] == {"memory": "0", "cpu": "1"}
    assert costs(objects, resourceWeights={"cpu": 4})[0] == {"cpu": "0", "memory": "1"}
    assert costs(objects, resources=["cpu"])[0] == {"cpu": "0", "memory": "1"}


def info(*args: str, **kwargs: str) -> PodInfo:
    return PodInfo.of(pod(*args, **kwargs))


def test_ties_go_to_the_newest_then_by_namespace_and_name():
    pods = (
        info("b", "n"), info("a", "n"), info("z", "n", namespace="a"), info("new", "n", created="2026-01-01T11:00:00Z"))
    ranked = rank_pods([BinPackNode("n", {"cpu": 1000}, pods)], {})
    assert [each.pod.key for each in ranked] == ["d/new", "a/z", "d/a", "d/b"]


def test_a_node_whose_removed_pods_request_nothing_comes_last_or_first():
    limits = {"cpu": 1000}
    nodes = [
        BinPackNode("taxed", limits, (info("a", "taxed"),), others=(info("x", "taxed", "1"),)),
        BinPackNode("mixed", limits, (info("b", "mixed", "500m"),), skipped=(info("y", "mixed", "250m"),)),
        BinPackNode("free", limits, (info("c", "free"),)),
        BinPackNode("none", limits, ()),
    ]
    assert [(each.pod.name, each.rank, each.score) for each in rank_pods(nodes, {"cpu": 2.0})] == [
        ("c", 0, 0.0), ("b", 1, 0.5), ("a", 2, math.inf)]


@pytest.mark.parametrize(("args", "fault"), [
    ({"strategy": "Evict"}, "strategy: strategy must be CalculateOnly or EvictDirectly"),
    ({"strategy": "EvictDirectly"},
     "maxPodsToEvict: maxPodsToEvict must be positive when strategy is EvictDirectly"),
    ({"resourceWeights": {"cpu": 0}}, "resourceWeights.cpu: weights must be positive finite floats"),
    ({"resourceWeights": {"cpu": math.inf}}, "resourceWeights.cpu: weights must be positive finite floats"),
    ({"evictableNamespaces": {"include": ["a"], "exclude": ["b"]}},
     "evictableNamespaces: only one of Include/Exclude namespaces can be set"),
])
def test_invalid_arguments_are_refused_with_their_field(args, fault):
    with pytest.raises(ArgumentError) as refused:
        check_args(args)
    assert str(refused.value) == fault
