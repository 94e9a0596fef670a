from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler.remove_pods_violating_topology_spread_constraint.constraints import moves
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.testing import FakeEvictor
from tests.builtin_plugins.descheduler.clusters import balance, node, pod

NAME = "RemovePodsViolatingTopologySpreadConstraint"
NODES = [node(f"n{zone}", cpu="100", labels={"zone": zone}) for zone in ("a", "b")]


def constraint(**changes):
    return {
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}, **changes,
    }


def spread(name, on, *constraints, **more):
    return pod(name, on, topologySpreadConstraints=list(constraints or (constraint(),)), **more)


def evicted(*objects, args=None, **more):
    return set(balance(NAME, args or {}, objects, **more).evicted)


def four_on_one(**more):
    return [spread(f"p{index}", "na", **more) for index in range(4)]


def test_pods_leave_a_domain_until_its_skew_is_allowed():
    result = balance(NAME, {}, [*NODES, *four_on_one()])
    assert result.evicted == dict.fromkeys(("shop/p2", "shop/p3"), "too many pods in its domain of zone, maxSkew is 1")


def test_a_greater_skew_moves_fewer_pods():
    assert len(evicted(*NODES, *[spread(f"p{index}", "na", constraint(maxSkew=3)) for index in range(4)])) == 1


@pytest.mark.parametrize(("args", "count"), [
    ({}, 0), ({"constraints": ["ScheduleAnyway"]}, 2), ({"constraints": ["DoNotSchedule", "ScheduleAnyway"]}, 2),
])
def test_only_the_listed_constraints_count(args, count):
    pods = [spread(f"p{index}", "na", constraint(whenUnsatisfiable="ScheduleAnyway")) for index in range(4)]
    assert len(evicted(*NODES, *pods, args=args)) == count


def test_pods_of_the_highest_priority_go_first_and_those_with_a_node_selector_last():
    pods = [spread("low", "na", priority=1), spread("high", "na", priority=9), spread("none", "na"),
            spread("bound", "na", priority=99, nodeSelector={})]
    assert evicted(*NODES, *pods) == {"shop/high", "shop/low"}


def test_a_pod_that_no_node_of_a_small_domain_takes_stays_and_none_goes_in_its_place():
    nodes = [NODES[0], node("nb", cpu="1", labels={"zone": "b"})]
    pods = [spread("p0", "na", cpu="2"), spread("p1", "na", cpu="2"), spread("p2", "na"), spread("p3", "na", cpu="2")]
    result = balance(NAME, {}, [*nodes, *pods])
    assert (set(result.evicted), result.kept) == (
        {"shop/p2"}, {"shop/p3": "no node of a smaller domain of zone takes it"},
    )
    assert evicted(*nodes, *pods, args={"topologyBalanceNodeFit": False}) == {"shop/p2", "shop/p3"}


@pytest.mark.parametrize(("changes", "count"), [
    ({}, 2), ({"nodeTaintsPolicy": "Honor"}, 0), ({"labelSelector": None}, 0), ({"labelSelector": {}}, 2),
    ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, 2),
    ({"labelSelector": {"matchLabels": {"app": "web", "tier": "front"}}}, 0),
])
def test_the_constraint_says_which_pods_and_nodes_count(changes, count):
    tainted = node("nb", cpu="100", labels={"zone": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}])
    pods = [spread(f"p{index}", "na", constraint(**changes)) for index in range(4)]
    assert len(evicted(NODES[0], tainted, *pods, args={"topologyBalanceNodeFit": False})) == count


def test_match_label_keys_split_the_pods_by_their_own_values():
    def of(revision, name, on):
        labels = {"app": "web", "rev": revision}
        return spread(name, on, constraint(matchLabelKeys=["rev"]), metadata={"labels": labels})

    old = [of("1", f"old{index}", "na") for index in range(2)]
    new = [of("2", f"new{index}", "nb") for index in range(2)]
    assert len(evicted(*NODES, *old, *new)) == 2
    together = [spread(f"p{index}", on) for index, on in enumerate(("na", "na", "nb", "nb"))]
    assert evicted(*NODES, *together) == set()


def test_pods_that_may_not_go_or_terminate_do_not_count():
    pods = four_on_one()
    assert evicted(*NODES, *pods, evictor=FakeEvictor({"shop/p0": "no", "shop/p1": "no", "shop/p2": "no"})) == set()
    leaving = spread("p9", "na", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}})
    assert evicted(*NODES, *pods[:1], leaving) == set()


def test_the_plugin_stops_at_the_limit_of_all_evictions():
    assert len(evicted(*NODES, *four_on_one(), evictor=FakeEvictor(limit=1))) == 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_moves_keep_all_pods_and_leave_no_domain_above_the_average_that_could_give(sizes, max_skew):
    item = PodInfo.of(pod("p", "n"))
    domains = [[item] * size for size in sorted(sizes)]
    moved = list(moves(domains, max_skew, lambda _: True))
    after = [len(each) for each in domains]
    assert sum(after) == sum(sizes)
    assert max(after) - min(after) <= max(sizes) - min(sizes)
    if max(sizes) - min(sizes) <= max_skew:
        assert moved == []
    if len(sizes) == 2:
        assert max(after) - min(after) <= max_skew
