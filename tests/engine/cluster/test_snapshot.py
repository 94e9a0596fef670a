from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import NONZERO
from koordpolicy.engine.cluster.overlay import NodeChange

from .cluster_objects import PROGRAMS, SECOND, T0, answers, info, metric, node, pod


def test_what_was_not_measured_or_not_lately_is_an_error_and_never_zero():
    cluster = Cluster([node("n1"), node("n2"), metric("n1", p90="1")], metric_expiry_seconds=180)
    text = "usage.cpu * 100 / allocatable.cpu"
    assert answers(cluster.snapshot(T0 + 179 * SECOND), text) == [25, "NoMetric"]
    assert answers(cluster.snapshot(T0 + 180 * SECOND), text) == ["NoMetric", "NoMetric"]
    assert answers(cluster.snapshot(T0 + 179 * SECOND), text) == [25, "NoMetric"]
    snapshot = cluster.snapshot(T0 + 100 * SECOND)
    assert answers(snapshot, "nodeMetric.status.updateTime")[1] == "NoMetric"
    assert answers(snapshot, "nodeInfo.measured ? estimated.memory : -1") == [4 * 2**30, -1]
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
