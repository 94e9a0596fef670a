"""The scores of NodeResourcesFit and NodeResourcesBalancedAllocation, against references written node by node."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.allocation.resource_scoring import shape_table
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.kubernetes.release import KUBERNETES_1_36, NEWEST, RELEASES
from koordpolicy.plugin import SKIP_SHAPE, CycleState

TABLE = {plugin.name: plugin for plugin in PLUGINS}
GPU = "example.com/gpu"
RATIO = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 70, "score": 10}, {"utilization": 100, "score": 3}]}


def make(name, kubernetes=NEWEST, **args):
    return TABLE[name].make(TABLE[name].check_args(args), SimpleNamespace(seed=0, kubernetes=kubernetes))


def node(name, cpu=4000, memory=1000, gpu=0):
    amounts = {"cpu": f"{cpu}m", "memory": str(memory), "pods": "10", **({GPU: str(gpu)} if gpu else {})}
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}}


def pod(name, cpu=None, memory=None, gpu=0, node=""):
    requests = {**({} if cpu is None else {"cpu": f"{cpu}m"}), **({} if memory is None else {"memory": str(memory)}),
                **({GPU: str(gpu)} if gpu else {})}
    return {
        "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
        },
    }


def scores(plugin, pod, snapshot):
    rows = np.arange(snapshot.size)
    pre_score = getattr(plugin, "pre_score", None)
    if pre_score is not None and pre_score(CycleState(), pod, snapshot, rows) is SKIP_SHAPE:
        return None
    return plugin.score(CycleState(), pod, snapshot, rows).values.tolist()


# References


def used(pods, name, nonzero):
    unrequested = {"cpu": 100, "memory": 200 * 1024 * 1024} if nonzero else {}
    return sum((each["spec"]["containers"][0]["resources"]["requests"].get(name) is None and unrequested.get(name, 0))
               or amount(each, name) for each in pods)


def amount(each, name):
    text = each["spec"]["containers"][0]["resources"]["requests"].get(name)
    return 0 if text is None else int(text.removesuffix("m"))


def fit_score(kind, resources, pod, item, there):
    total = weights = 0
    for resource in resources:
        name, weight = resource["name"], resource["weight"]
        capacity = int(item["status"]["allocatable"].get(name, "0").removesuffix("m"))
        mine = used([pod], name, nonzero=True)
        if not capacity or (name == GPU and not mine):
            continue
        wanted = used(there, name, nonzero=True) + mine
        if kind == "LeastAllocated":
            score = 0 if wanted > capacity else (capacity - wanted) * 100 // capacity
        elif kind == "MostAllocated":
            score = min(wanted, capacity) * 100 // capacity
        else:
            score = broken_line(100 if wanted > capacity else wanted * 100 // capacity)
            weight = weight if score else 0
        total += score * weight
        weights += weight
    if not weights:
        return 0
    return math.floor(total / weights + 0.5) if kind == "RequestedToCapacityRatio" else total // weights


def broken_line(at):
    points = [(each["utilization"], each["score"] * 10) for each in RATIO["shape"]]
    for (left, low), (right, high) in itertools.pairwise(points):
        if at <= right:
            return low + math.trunc((high - low) * (at - left) / (right - left))
    return points[-1][1]


def balance_score(kubernetes, resources, pod, item, there):
    after = balance(resources, pod, item, there, placed=True)
    if kubernetes < KUBERNETES_1_36:
        return after
    return math.trunc(50 + math.trunc((50 + after - balance(resources, pod, item, there, placed=False)) / 2))


def balance(resources, pod, item, there, *, placed):
    shares = []
    for resource in resources:
        name = resource["name"]
        capacity = int(item["status"]["allocatable"].get(name, "0").removesuffix("m"))
        mine = used([pod], name, nonzero=False)
        if capacity and (name != GPU or mine):
            shares.append(min((used(there, name, nonzero=False) + (mine if placed else 0)) / capacity, 1))
    if len(shares) < 2:
        return 100
    if len(shares) == 2:
        return int((1 - abs((shares[0] - shares[1]) / 2)) * 100)
    mean = sum(shares) / len(shares)
    return int((1 - math.sqrt(sum((each - mean) ** 2 for each in shares) / len(shares))) * 100)


amounts = st.one_of(st.none(), st.sampled_from((0, 1, 100, 333, 1000)))
pods = st.builds(lambda cpu, memory, gpu: (cpu, memory, gpu), amounts, amounts, st.sampled_from((0, 0, 1)))
nodes = st.tuples(st.sampled_from((0, 250, 999, 4000)), st.sampled_from((0, 500, 1234, 10**9)), st.sampled_from((0, 3)))
RESOURCES = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 3}, {"name": GPU, "weight": 5}]


@settings(max_examples=100, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), pods), max_size=6), pods,
       st.sampled_from(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")), st.sampled_from(RELEASES))
def test_scores_are_those_of_each_node_alone(shapes, placed, shape, kind, kubernetes):
    items = [node(f"n{index}", *each) for index, each in enumerate(shapes)]
    there = [pod(f"p{index}", *each, node=f"n{place % len(items)}") for index, (place, each) in enumerate(placed)]
    new = pod("new", *shape)
    on = [[each for each in there if each["spec"]["nodeName"] == item["metadata"]["name"]] for item in items]
    fit = make(
        "NodeResourcesFit", scoringStrategy={"type": kind, "resources": RESOURCES, "requestedToCapacityRatio": RATIO},
    )
    even = [{**each, "weight": 1} for each in RESOURCES]
    balanced = make("NodeResourcesBalancedAllocation", kubernetes, resources=even)
    expected = [fit_score(kind, RESOURCES, new, item, held) for item, held in zip(items, on, strict=True)]
    wanted = [balance_score(kubernetes, even, new, item, held) for item, held in zip(items, on, strict=True)]
    if not any(amount(new, each["name"]) for each in even):
        wanted = None
    cluster = Cluster([*items, *there])
    views = [cluster.snapshot()]
    if there:
        less = Cluster([*items, *there[:-1]])
        for plugin in (fit, balanced):
            scores(plugin, PodInfo.of(new), less.snapshot())
        views.append(less.snapshot().overlay({there[-1]["spec"]["nodeName"]: NodeChange(add=[PodInfo.of(there[-1])])}))
    for snapshot in views:
        assert (
            scores(fit, PodInfo.of(new), snapshot), scores(balanced, PodInfo.of(new), snapshot),
        ) == (expected, wanted)
    if there:
        less.upsert(there[-1])
        snapshot = less.snapshot()
        assert (
            scores(fit, PodInfo.of(new), snapshot), scores(balanced, PodInfo.of(new), snapshot),
        ) == (expected, wanted)


def test_a_shape_is_level_outside_its_points_and_straight_between_them():
    table = shape_table(
        [{"utilization": 20, "score": 2}, {"utilization": 50, "score": 10}, {"utilization": 80, "score": 0}],
    )
    assert [int(table[at]) for at in (0, 20, 35, 50, 65, 79, 80, 100)] == [20, 20, 60, 100, 50, 4, 0, 0]


@pytest.mark.parametrize(("name", "args", "message"), [
    ("NodeResourcesFit", {"scoringStrategy": {"type": "Least"}}, "`scoringStrategy.type` is `Least`"),
    (
        "NodeResourcesFit", {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}},
        "weight of cpu not in valid range",
    ),
    (
        "NodeResourcesFit", {"scoringStrategy": {"resources": [{"weight": 1}]}},
        "`scoringStrategy.resources[0].name` is missing",
    ),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio"}}, "must hold at least one point"),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {
        "shape": [{"utilization": 5, "score": 1}, {"utilization": 5, "score": 2}]}}}, "sorted in increasing order"),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {
        "shape": [{"utilization": 101, "score": 1}]}}}, "not in valid range [0, 100]"),
    ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {
        "shape": [{"utilization": 1, "score": 11}]}}}, "not in valid range [0, 10]"),
    ("NodeResourcesFit", {"ignoredResourceGroups": ["a/b"]}, "can't contain '/'"),
    ("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 2}]}, "must be 1"),
    ("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu"}, {"name": "cpu"}]}, "named twice"),
])
def test_arguments_that_kube_scheduler_refuses_are_refused(name, args, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
        TABLE[name].check_args(args)
    assert message in str(error.value)


def test_arguments_get_kubernetes_defaults():
    resources = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
    assert TABLE["NodeResourcesFit"].check_args({"ignoredResources": ["example.com/a"]}) == {
        "ignoredResources": ("example.com/a",), "scoringStrategy": {"type": "LeastAllocated", "resources": resources}}
    assert TABLE["NodeResourcesBalancedAllocation"].check_args({}) == {"resources": resources}
