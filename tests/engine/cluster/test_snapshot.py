from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.objects.pods import NONZERO, PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster, NodeChange
from koordpolicy.engine.framework.points import Slot, environment
from koordpolicy.engine.kubernetes.objects import LARGEST_AMOUNT
from koordpolicy.engine.source import PolicyError

T0 = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000_000
ENVIRONMENT = environment(Slot.FILTER)
PROGRAMS = {text: compile_program(text, ENVIRONMENT) for text in (
    "allocatable.cpu - requested.cpu >= requests.cpu",
    "usage.cpu * 100 / allocatable.cpu",
    "usage.p90.cpu < 2000 && nodeInfo.zone == 'z1'",
    "nodeInfo.measured ? estimated.memory : -1",
    "node.metadata.labels.pool == 'a' || nodeInfo.gpuFree > 500",
    "devices.exists(d, d.free >= 500) || metricAge > 60",
    "nodeInfo.pods + int(requests.cpu)",
    "string(requested.memory) + nodeInfo.gpuModel",
    "has(node.spec.taints) && node.spec.taints.exists(t, t.key == 'k')",
    "nodeMetric.status.updateTime",
    "allocatable['nvidia.com/gpu'] * 2 + requested['x/y']",
    "!nodeInfo.unschedulable && requests.cpu > 0",
)}


def node(name, *, cpu="8", gpus=None, labels=None, **spec):
    allocatable = {"cpu": cpu, "memory": "32Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
        "status": {"allocatable": allocatable},
    }


def pod(name, *, cpu="500m", on=None, gpus=0, **metadata):
    requests = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]} | ({"nodeName": on} if on else {})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", **metadata}, "spec": spec}


def metric(name, *, cpu="2", p90=None, at="2026-01-01T00:00:00Z"):
    content = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "4Gi"}}}
    if p90:
        content["aggregatedNodeUsages"] = [{"duration": "5m", "usage": {"p90": {"resources": {"cpu": p90}}}}]
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": {"updateTime": at, "nodeMetric": content}}


def info(name, **options):
    return PodInfo.of(pod(name, **options))


def amounts(snapshot, resource="cpu"):
    return dict(zip(snapshot.names, snapshot.requested(resource).tolist(), strict=True))


def answers(snapshot, text, asking=None):
    asking = asking or info("asking")
    frame = snapshot.frame({"pod": asking.object, "requests": asking.requests, "limits": asking.limits})
    column = evaluate(PROGRAMS[text], frame)
    return [
        (column.errors[row].reason or column.errors[row].message) if row in column.errors else value
        for row, value in enumerate(column.values.tolist())
    ]


def test_rows_are_sorted_by_name_and_pods_wait_in_order_of_arrival():
    cluster = Cluster([
        pod("late", creationTimestamp="2026-01-02T00:00:00Z"), pod("early", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("b", on="n1"), node("n2"), node("n1"), {**pod("done"), "status": {"phase": "Succeeded"}},
        pod("leaving", deletionTimestamp="2026-01-01T00:00:00Z"),
    ])
    assert cluster.names == ["n1", "n2"]
    assert [each.key for each in cluster.pending] == ["shop/early", "shop/late"]
    assert amounts(cluster.snapshot()) == {"n1": 500, "n2": 0}


def test_assuming_a_pod_changes_its_row_and_forgetting_undoes_it():
    cluster = Cluster([node("n1", gpus=2), node("n2", gpus=2), pod("p", gpus=1)])
    snapshot = cluster.snapshot()
    assert (amounts(snapshot), snapshot.devices.free.tolist()) == ({"n1": 0, "n2": 0}, [[1000, 1000]] * 2)
    [waiting] = cluster.pending
    cluster.assume(waiting, "n2", (1,))
    after = cluster.snapshot()
    assert (amounts(after), after.devices.free.tolist()) == ({"n1": 0, "n2": 500}, [[1000, 1000], [1000, 0]])
    assert (after.pod_count.tolist(), cluster.pending) == ([0, 1], ())
    assert [each.node_name for each in after.pods(1)] == ["n2"]
    cluster.upsert(pod("p", gpus=1, labels={"stale": "yes"}))  # an informer that has not heard of it yet
    assert cluster.snapshot().devices.free.tolist() == [[1000, 1000], [1000, 0]]
    cluster.forget("shop/p")
    cluster.forget("shop/p")
    assert (amounts(cluster.snapshot()), cluster.snapshot().devices.free.tolist()) == (
        {"n1": 0, "n2": 0}, [[1000, 1000]] * 2,
    )
    assert [each.key for each in cluster.pending] == ["shop/p"]
    with pytest.raises(ValueError, match="no node `n9`"):
        cluster.assume(waiting, "n9")


def test_a_pod_on_a_node_that_comes_later_counts_when_it_does():
    cluster = Cluster([pod("p", on="n1"), metric("n1")])
    cluster.upsert(node("n1"))
    assert (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu")) == (
        {"n1": 500}, [25],
    )
    cluster.delete("Node", "n1")
    assert cluster.snapshot().size == 0


def test_what_was_not_measured_or_not_lately_is_an_error_and_never_zero():
    cluster = Cluster([node("n1"), node("n2"), metric("n1", p90="1")], metric_expiry_seconds=180)
    text = "usage.cpu * 100 / allocatable.cpu"
    assert answers(cluster.snapshot(T0 + 179 * SECOND), text) == [25, "NoMetric"]
    assert answers(cluster.snapshot(T0 + 180 * SECOND), text) == ["NoMetric", "NoMetric"]
    assert answers(cluster.snapshot(T0 + 179 * SECOND), text) == [25, "NoMetric"]
    snapshot = cluster.snapshot(T0 + 100 * SECOND)
    assert answers(snapshot, "nodeMetric.status.updateTime")[1] == "NoMetric"
    assert answers(snapshot, "nodeInfo.measured ? estimated.memory : -1") == [4 * 2**30, -1]
    assert (snapshot.metric_age.values.tolist()[0], snapshot.metric_age.present.tolist()) == (100, [True, False])
    usage = snapshot.usage("cpu", "p90")
    assert (usage.values.tolist()[0], usage.present.tolist()) == (1000, [True, False])
    assert snapshot.usage("huge").present.tolist() == [False, False]
    with pytest.raises(EvaluationError) as caught:
        snapshot.frame({}).row_value("usage", 0)["huge"]
    assert caught.value.reason == "NoMetric"


def test_metrics_that_come_later_are_seen():
    cluster = Cluster([node(f"n{number:02}") for number in range(30)])
    text = "usage.cpu * 100 / allocatable.cpu"
    assert answers(cluster.snapshot(T0), text) == ["NoMetric"] * 30
    assert cluster.snapshot(T0).usage("cpu").present.tolist() == [False] * 30
    cluster.upsert(metric("n03"))
    assert answers(cluster.snapshot(T0), text) == ["NoMetric"] * 3 + [25] + ["NoMetric"] * 26
    assert np.flatnonzero(cluster.snapshot(T0).usage("cpu").present).tolist() == [3]


@pytest.mark.parametrize(("item", "message"), [
    ({"kind": "Node", "metadata": {"name": "n1"}, "status": {}}, "Node `n1`: `status.allocatable` is missing"),
    (node("n1", cpu="12Zi"), "Node `n1`: `status.allocatable.cpu`: `12Zi` is not a quantity"),
    (node("n1", taints={}), "Node `n1`: `spec.taints` must be a list, not an object"),
    ({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, "Pod `p`: `spec.containers` is missing or empty"),
    (pod("p", cpu="x"), "Pod `shop/p`: `spec.containers[0].resources.requests.cpu`: `x` is not a quantity"),
    ({**pod("p"), "spec": {"containers": [5]}}, "Pod `shop/p`: `spec.containers[0]` must be an object, not a number"),
    (metric("n1", cpu="1Q"), "NodeMetric `n1`: `status.nodeMetric.nodeUsage.resources.cpu`: `1Q` is not a quantity"),
    (metric("n1", at="today"), "NodeMetric `n1`: `status.updateTime`: `today` is not a time"),
    ({"kind": "Device", "metadata": {"name": "n1"}, "spec": {"devices": [{"type": "gpu", "minor": -1}]}},
     "Device `n1`: `spec.devices[0].minor` must be a number from 0 to 63"),
    ({"metadata": {"name": "x"}}, "object `x`: `kind` is missing"),
    ([], "object: an object of the API is needed, not a list"),
])
def test_a_malformed_object_is_named_and_nothing_else_is_lost(item, message):
    good = [node("n1"), node("n2"), pod("q", on="n1"), metric("n1")]
    cluster = Cluster(good)
    before = (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu"))
    with pytest.raises(PolicyError) as caught:
        cluster.upsert(item)
    assert caught.value.problems[0].message.startswith(message)
    assert (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu")) == before
    fresh = Cluster()
    assert [each.message[:20] for each in fresh.upsert_all([node("n0"), item, *good[1:]])] == [message[:20]]
    assert fresh.names == ["n0", "n2"]
    with pytest.raises(PolicyError):
        Cluster([item])


def test_an_overlay_differs_in_its_rows_only_and_leaves_no_trace():
    cluster = Cluster([node(f"n{number:02}", gpus=1) for number in range(40)] + [pod("p", on="n01", gpus=1)])
    snapshot = cluster.snapshot()
    asking = info("asking", cpu="7600m")
    text = "allocatable.cpu - requested.cpu >= requests.cpu"
    assert [row for row, fits in enumerate(answers(snapshot, text, asking)) if not fits] == [1]
    overlay = snapshot.overlay({"n01": NodeChange(remove=["shop/p"]), "n02": NodeChange(add=[info("x")])})
    nested = overlay.overlay({"n03": NodeChange(node=node("n03", cpu="1")), "n01": NodeChange(add=[info("p", gpus=1)])})
    assert [row for row, fits in enumerate(answers(overlay, text, asking)) if not fits] == [2]
    assert [row for row, fits in enumerate(answers(nested, text, asking)) if not fits] == [1, 2, 3]
    assert (overlay.devices.free[1].tolist(), nested.devices.free[1].tolist()) == ([1000], [0])
    assert overlay.frame({}).numbers(("nodeInfo", "gpuFree")).values[1] == 1000
    assert [row for row, fits in enumerate(answers(snapshot, text, asking)) if not fits] == [1]
    with pytest.raises(ValueError, match="no pod `shop/p` on node `n05`"):
        snapshot.overlay({"n05": NodeChange(remove=["shop/p"])})


def test_devices_come_from_the_device_object_where_there_is_one():
    device = {
        "kind": "Device", "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-model": "A10"}},
        "spec": {
            "devices": [
                {"type": "gpu", "minor": 0, "health": True}, {"type": "gpu", "minor": 1, "health": False},
                {"type": "rdma", "minor": 0}, {"type": "gpu", "minor": 2, "health": True},
            ],
        },
    }
    cluster = Cluster([node("n1", gpus=3), pod("p", on="n1", gpus=1), device])
    devices = cluster.snapshot().devices
    assert (devices.total.tolist(), devices.free.tolist(), devices.count.tolist()) == (
        [[1000, 0, 1000]], [[0, 0, 1000]], [2],
    )
    assert devices.of(0) == [
        {"type": "gpu", "minor": 0, "total": 1000, "free": 0, "model": "A10"},
        {"type": "gpu", "minor": 2, "total": 1000, "free": 1000, "model": "A10"},
    ]
    cluster.delete("Device", "n1")
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000, 1000]]


def change(random, cluster, now):
    name = f"n{random.randrange(45):02}"
    match random.randrange(9):
        case 0:
            cluster.upsert(node(
                name, cpu=random.choice(["4", "8"]), gpus=random.choice([0, 0, 1, 4]),
                labels={"pool": random.choice("ab"), "topology.kubernetes.io/zone": random.choice(["z1", "z2"])},
                **random.choice([{}, {"taints": [{"key": "k"}]}, {"unschedulable": True}]),
            ))
        case 1:
            cluster.delete("Node", name) if random.random() < 0.2 else None
        case 2:
            cluster.upsert(metric(name, cpu=random.choice(["1", "3"]), p90=random.choice([None, "1500m"])))
        case 3:
            cluster.delete(*random.choice([("NodeMetric", name), ("Pod", f"shop/p{random.randrange(30)}")]))
        case 4:
            cluster.upsert(pod(f"p{random.randrange(30)}", on=random.choice([None, name]), gpus=random.choice([0, 1])))
        case 5:
            cluster.forget(f"shop/p{random.randrange(30)}")
        case 6:
            now += random.choice([1, 30, 100]) * SECOND
        case _:
            if name in cluster.index:
                cluster.assume(info(f"a{random.randrange(30)}", gpus=random.choice([0, 1])), name)
    return now


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_columns_that_followed_their_rows_say_what_rows_say(seed):
    random = Random(seed)
    cluster = Cluster([node(f"n{number:02}") for number in range(0, 45, random.choice([1, 1, 2]))])
    now = T0
    for _ in range(12):
        for _ in range(random.randrange(6)):
            now = change(random, cluster, now)
        snapshot = cluster.snapshot(now)
        if random.random() < 0.3 and snapshot.size:
            name = random.choice(snapshot.names)
            snapshot = snapshot.overlay({name: NodeChange(add=[info("extra", gpus=1)])})
        for row in range(snapshot.size):
            pods = snapshot.pods(row)
            assert snapshot.requested("cpu")[row] == sum(each.requests["cpu"] for each in pods)
            counted = [snapshot.nonzero_requested(name)[row] for name in NONZERO]
            assert counted == [sum(each.nonzero[place] for each in pods) for place in range(len(NONZERO))]
            assert snapshot.devices.free[row].sum() == snapshot.devices.total[row].sum() - sum(
                1000 for minors in snapshot.row(row).taken.values() for minor in minors
                if minor < len(snapshot.row(row).total)
            )
        asking = info("asking", cpu=random.choice(["500m", "7800m", "100m"]))
        frame = snapshot.frame({"pod": asking.object, "requests": asking.requests})
        for text, program in PROGRAMS.items():
            column = evaluate(program, frame)
            for row in range(snapshot.size):
                alone = evaluate(program, frame, np.array([row], dtype=np.intp))
                error = alone.errors.get(row)
                got = column.errors.get(row)
                assert (got and (got.message, got.reason)) == (error and (error.message, error.reason)), text
                if error is None:
                    assert column.values[row] == alone.values[0], text


def test_sums_beyond_the_largest_amount_saturate_and_come_back_exactly_when_pods_leave():
    most = LARGEST_AMOUNT

    def bound(name, on, cpu, memory):
        item = pod(name, cpu=cpu, on=on)
        item["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(memory)
        return item

    cluster = Cluster([node("a"), node("b"), bound("small", "a", "1", 5), bound("other", "b", "2", 7),
                       bound("x", "a", "1", 2**63 - 1), bound("y", "a", f"{2**63 - 1}m", most)])

    def seen():
        snapshot = cluster.snapshot()
        return [snapshot.requested("cpu").tolist(), snapshot.requested("memory").tolist(),
                snapshot.nonzero_requested("memory").tolist(), [dict(snapshot.row(row).requested) for row in (0, 1)]]

    full = seen()
    cluster.delete("Pod", "shop/x")
    without_x = seen()
    cluster.delete("Pod", "shop/y")
    assert full == [[most, 2000], [most, 7], [most, 7], [{"cpu": most, "memory": most}, {"cpu": 2000, "memory": 7}]]
    assert without_x == full
    assert seen() == [[1000, 2000], [5, 7], [5, 7], [{"cpu": 1000, "memory": 5}, {"cpu": 2000, "memory": 7}]]
