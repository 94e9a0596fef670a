"""A cluster that followed changes must be told from one that was built anew by nothing."""

import json
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import PolicyError

T0 = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000_000
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")
PROGRAMS = [compile_program(text, environment(Slot.FILTER)) for text in (
    "allocatable.cpu - requested.cpu >= requests.cpu",
    "usage.cpu * 100 / allocatable.cpu",
    "usage.p90.cpu < 2000 && nodeInfo.zone == ''",
    "nodeInfo.measured ? estimated.memory : -1",
    "node.metadata.labels.pool == 'a' || nodeInfo.gpuFree > 500",
    "devices.filter(d, d.free >= 500).size() + metricAge",
    "nodeInfo.pods + int(requests.cpu)",
    "has(node.spec.taints) && node.spec.taints.exists(t, t.key == 'k')",
    "nodeMetric.status.updateTime",
)]


def node(name, *, cpu="8", gpus=0, labels=None, **spec):
    allocatable = {"cpu": cpu, "memory": "32Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
            "status": {"allocatable": allocatable}}


def pod(name, *, cpu="500m", on=None, gpus=0, phase="Running", **metadata):
    requests = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]} | ({"nodeName": on} if on else {})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", **metadata}, "spec": spec,
            "status": {"phase": phase}}


def metric(name, *, cpu="2", p90=None, at="2026-01-01T00:00:00Z"):
    content = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "4Gi"}}}
    if p90:
        content["aggregatedNodeUsages"] = [{"duration": "5m", "usage": {"p90": {"resources": {"cpu": p90}}}}]
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": {"updateTime": at, "nodeMetric": content}}


def device(name, healthy):
    return {"kind": "Device", "metadata": {"name": name}, "spec": {"devices": [
        {"type": "gpu", "minor": minor, "health": health} for minor, health in enumerate(healthy)
    ]}}


def holding(*minors):
    content = json.dumps({"gpu": [{"minor": minor} for minor in minors]})
    return {"scheduling.koordinator.sh/device-allocated": content}


def seen(cluster, now, changes=None):
    """Return everything that a decision can see, in a form that compares."""
    snapshot = cluster.snapshot(now)
    if changes:
        snapshot = snapshot.overlay(changes)
    asking = PodInfo.of(pod("asking", cpu="7800m"))
    frame = snapshot.frame({"pod": asking.object, "requests": asking.requests})
    assert (snapshot.devices.free >= 0).all()
    assert (snapshot.devices.free <= snapshot.devices.total).all()
    found = {
        "names": list(snapshot.names),
        "pending": [each.key for each in cluster.pending],
        "pods": [sorted((each.key, each.node_name) for each in snapshot.pods(row)) for row in range(snapshot.size)],
        "requested": [snapshot.requested(name).tolist() for name in RESOURCES],
        "allocatable": [snapshot.allocatable(name).tolist() for name in RESOURCES],
        "count": snapshot.pod_count.tolist(),
        # Which of the devices a pod holds is a guess where nobody noted it; how much is not.
        "devices": [(int(free.sum()), int(total.sum())) for free, total in
                    zip(snapshot.devices.free, snapshot.devices.total, strict=True)],
    }
    for program in PROGRAMS:
        column = evaluate(program, frame)
        found[program.source.text] = [
            (column.errors[row].message, column.errors[row].reason) if row in column.errors else value
            for row, value in enumerate(column.values.tolist())
        ]
    return found


@dataclass
class Model:
    """The changes applied to the cluster, as a plain record from which another one can be built."""

    random: Random
    now: int = T0
    objects: dict = field(default_factory=dict)
    assumed: dict = field(default_factory=dict)

    def built(self):
        order = ("Node", "Device", "NodeMetric", "Pod")
        cluster = Cluster(sorted(self.objects.values(), key=lambda each: order.index(each["kind"])))
        for key, (waiting, name) in self.assumed.items():
            told = self.objects.get(("Pod", key))
            known = name in cluster.index
            if not known:
                cluster.upsert(node(name))
            cluster.assume(PodInfo.of(told) if told else waiting, name)
            if not known:
                cluster.delete("Node", name)
        return cluster

    def put(self, cluster, kind, key, item):
        self.objects[kind, key] = item
        cluster.upsert(item)

    def drop(self, cluster, kind, key):
        self.objects.pop((kind, key), None)
        cluster.delete(kind, key)

    def pod_of(self, name, on):
        """Return a pod as an informer may tell of it: one that was bound elsewhere before is another one by now."""
        told = self.objects.get(("Pod", f"shop/{name}"))
        same = told is not None and told["spec"].get("nodeName") in (None, on)
        uid = told["metadata"]["uid"] if same else str(self.random.random())
        return pod(name, on=on, gpus=self.random.choice([0, 1]), cpu=self.random.choice(["500m", "1"]), uid=uid,
                   phase=self.random.choice(["Running"] * 6 + ["Failed"]))

    def change(self, cluster):
        random = self.random
        name, own = f"n{random.randrange(8)}", f"p{random.randrange(10)}"
        key = f"shop/{own}"
        match random.randrange(10):
            case 0:
                self.put(cluster, "Node", name, node(
                    name, cpu=random.choice(["4", "8"]), gpus=random.choice([0, 0, 1, 4]),
                    labels={"pool": random.choice("ab")},
                    **random.choice([{}, {"taints": [{"key": "k"}]}, {"unschedulable": True}]),
                ))
            case 1 if random.random() < 0.4:
                self.drop(cluster, "Node", name)
            case 2:
                at = random.choice(["2026-01-01T00:00:00Z", "2026-01-01T00:02:00Z"])
                self.put(cluster, "NodeMetric", name, metric(
                    name, cpu=random.choice(["1", "3"]), p90=random.choice([None, "1500m"]), at=at,
                ))
            case 3:
                self.drop(cluster, "NodeMetric", name)
            case 4:
                self.drop(cluster, "Pod", key)
                self.assumed.pop(key, None)
            case 5:
                item = self.pod_of(own, random.choice([None, name]))
                told = self.objects.get(("Pod", key))
                other = told is not None and told["metadata"]["uid"] != item["metadata"]["uid"]
                if other or item["spec"].get("nodeName") or item["status"]["phase"] == "Failed":
                    self.assumed.pop(key, None)
                self.put(cluster, "Pod", key, item)
            case 6 if key in self.assumed:
                cluster.forget(key)
                del self.assumed[key]
            case 7:
                self.now += random.choice([1, 30, 100]) * SECOND
            case 8 if name in cluster.index:
                known = cluster.pod(key)
                if known is None and ("Pod", key) not in self.objects:
                    known = PodInfo.of(pod(own, gpus=random.choice([0, 1])))
                if known is not None and not known.node_name:
                    cluster.assume(known, name)
                    self.assumed[key] = known, name
            case 9:
                if random.random() < 0.5:
                    self.put(cluster, "Device", name, device(name, [True] * random.choice([1, 4])))
                else:
                    self.drop(cluster, "Device", name)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_cluster_that_followed_changes_is_like_one_built_anew(seed):
    model, cluster = Model(Random(seed)), Cluster()
    for _ in range(40):
        model.change(cluster)
        if model.random.random() < 0.4:
            anew = model.built()
            assert seen(cluster, model.now) == seen(anew, model.now)
            if cluster.names:
                changes = {model.random.choice(cluster.names): NodeChange(
                    add=[PodInfo.of(pod("extra", gpus=1))], node=model.random.choice([None, node("x", gpus=1)]),
                )}
                assert seen(cluster, model.now, changes) == seen(anew, model.now, changes)
                assert seen(cluster, model.now) == seen(anew, model.now)


def test_an_assumed_pod_outlives_its_nodes_absence_with_its_devices():
    cluster = Cluster([node("n1", gpus=2)])
    cluster.assume(PodInfo.of(pod("p", gpus=1)), "n1", (1,))
    cluster.delete("Node", "n1")
    assert cluster.pod("shop/p").node_name == "n1"
    cluster.upsert(node("n1", gpus=2))
    snapshot = cluster.snapshot()
    assert (snapshot.requested("cpu").tolist(), snapshot.devices.free.tolist()) == ([500], [[1000, 0]])
    cluster.forget("shop/p")
    assert cluster.snapshot().devices.free.tolist() == [[1000, 1000]]


def test_what_pods_hold_beyond_what_there_is_leaves_nothing_free_and_never_less():
    cluster = Cluster([
        node("n1", gpus=2), pod("a", on="n1", gpus=1, annotations=holding(0)),
        pod("b", on="n1", gpus=1, annotations=holding(0)),
    ])
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000]]
    cluster.delete("Pod", "shop/a")
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000]]
    cluster.upsert(device("n1", [False, True]))
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000]]
    assert cluster.snapshot().node_info(0)["gpuFree"] == 1000
    cluster.upsert(device("n1", [True, True]))
    cluster.delete("Pod", "shop/b")
    assert cluster.snapshot().devices.free.tolist() == [[1000, 1000]]


@pytest.mark.parametrize("annotations", [holding(-1), holding(7), {"scheduling.koordinator.sh/device-allocated": "["}])
def test_devices_that_cannot_be_are_taken_from_no_other(annotations):
    cluster = Cluster([node("n1", gpus=2), pod("a", on="n1", gpus=1, annotations=annotations)])
    assert cluster.snapshot().devices.free.min() >= 0
    assert cluster.snapshot().devices.free[0, 1] == 1000
    cluster.delete("Pod", "shop/a")
    assert cluster.snapshot().devices.free.tolist() == [[1000, 1000]]


def test_a_pod_that_was_short_of_devices_gets_what_becomes_free():
    cluster = Cluster([node("n1", gpus=1), pod("a", on="n1", gpus=1), pod("b", on="n1", gpus=1)])
    cluster.delete("Pod", "shop/a")
    assert cluster.snapshot().devices.free.tolist() == [[0]]


def test_devices_are_remembered_while_their_object_is_gone():
    cluster = Cluster([node("n1"), device("n1", [True, True])])
    cluster.assume(PodInfo.of(pod("p", gpus=1)), "n1", (1,))
    cluster.delete("Device", "n1")
    assert cluster.snapshot().devices.free.tolist() == [[]]
    cluster.upsert(device("n1", [True, True]))
    assert cluster.snapshot().devices.free.tolist() == [[1000, 0]]


def test_a_pod_made_anew_under_an_old_name_waits_for_a_node_of_its_own():
    cluster = Cluster([node("n1"), pod("web-0", on="n1", uid="old")])
    cluster.upsert(pod("web-0", uid="new"))
    assert [each.uid for each in cluster.pending] == ["new"]
    assert cluster.snapshot().requested("cpu").tolist() == [0]


def test_what_the_pod_says_of_its_devices_wins_over_what_was_assumed():
    cluster = Cluster([node("n1", gpus=2), pod("p", gpus=1)])
    cluster.assume(cluster.pending[0], "n1", (0,))
    cluster.upsert(pod("p", on="n1", gpus=1, annotations=holding(1)))
    assert cluster.snapshot().devices.free.tolist() == [[1000, 0]]


def test_a_resource_that_nobody_asks_for_any_more_is_absent():
    cluster = Cluster([node("n1", gpus=1), pod("a", on="n1", gpus=1), pod("b", on="n1", cpu="0")])
    cluster.delete("Pod", "shop/a")
    assert np.array_equal(cluster.snapshot().requested("nvidia.com/gpu"), [0])
    assert dict(cluster.snapshot().row(0).requested) == {"memory": 2**30}


def test_a_node_in_a_namespace_is_refused_and_not_counted_twice():
    cluster = Cluster([node("n1")])
    odd = node("n1")
    odd["metadata"]["namespace"] = "default"
    with pytest.raises(PolicyError, match="but a Node belongs to no namespace"):
        cluster.upsert(odd)
    assert cluster.names == ["n1"]
