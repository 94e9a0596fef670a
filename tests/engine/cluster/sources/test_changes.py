"""Changes of objects reach the cluster one by one: an odd one costs no other."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.changes import KindView, apply, key_of


def node(name, version="1", cpu="4", uid="u"):
    return {"kind": "Node", "metadata": {"name": name, "uid": uid, "resourceVersion": version},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def pod(name, node_name, version="1", phase="Running"):
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {"kind": "Pod", "metadata": {"name": name, "resourceVersion": version},
            "spec": {"containers": [container], "nodeName": node_name}, "status": {"phase": phase}}


@pytest.mark.parametrize(("item", "key"), [
    (node("a"), ("Node", "a")), (pod("p", "a"), ("Pod", "default/p")),
    ({"kind": "Device", "metadata": {"name": "d", "namespace": "x"}}, ("Device", "x/d")),
    ({"kind": "Node"}, None), ({"kind": "Node", "metadata": {}}, None), ({"kind": "Node", "metadata": 1}, None),
    (1, None),
])
def test_the_key_of_an_object_is_its_kind_and_name(item, key):
    assert key_of(item) == key


def test_a_malformed_object_is_reported_once_and_the_others_are_applied():
    cluster, faults = Cluster([node("a")]), {}
    changes = [
        [node("a", "2", cpu="x"), node("b")], [node("a", "2", cpu="x"), node("b")],
        [node("a", "3", cpu="y"), node("b")], [node("a", "4", cpu="6"), node("b")], [node("a", "4", cpu="6")],
    ]
    found = [[problem.message.partition(": write")[0]
              for problem in apply(cluster, [(key_of(each), each) for each in items], faults)] for items in changes]
    assert found == [["Node `a`: `status.allocatable.cpu`: `x` is not a quantity"], [],
                     ["Node `a`: `status.allocatable.cpu`: `y` is not a quantity"], [], []]
    assert (cluster.snapshot().allocatable("cpu").tolist(), faults) == ([6000, 4000], {})


def test_a_kind_is_stale_if_it_was_listed_and_is_not_watched():
    views = KindView(), KindView(1.0), KindView(0.0, "gone"), KindView(1.0, "gone")
    assert [view.stale for view in views] == [False, False, False, True]


class Trap(dict):
    """An object whose spec cannot be read by name, as nobody does before the object is half applied."""

    def get(self, key, default=None):
        if key == "spec":
            raise RuntimeError("sprung")
        return super().get(key, default)

    def __getitem__(self, key):
        return self.get(key)


def test_an_object_that_fails_half_way_costs_no_other_object_and_leaves_what_was_known_of_it():
    before = {**node("a"), "spec": {"unschedulable": False}}
    cluster = Cluster([before, pod("p", "a"), pod("q", "a")])
    cluster.snapshot().frame({}).codes(("node", "spec", "unschedulable"))  # a column that follows what the trap hides
    changes = [(("Node", "a"), Trap({**node("a", "2", cpu="8"), "spec": {}})), (("Node", "b"), node("b")),
               (("Pod", "default/q"), None), (("Pod", "default/r"), pod("r", "b"))]
    problems = apply(cluster, changes)
    assert [problem.message for problem in problems] == ["Node `a`: it cannot be taken in (RuntimeError: sprung)"]
    fresh = Cluster([before, node("b"), pod("p", "a"), pod("r", "b")])
    assert [
        (each.snapshot().allocatable("cpu").tolist(), each.snapshot().requested("cpu").tolist(), each.objects("Node"))
        for each in (cluster, fresh)
    ] == [([4000, 4000], [1000, 1000], fresh.objects("Node"))] * 2


def test_a_listener_that_fails_stops_neither_the_change_nor_the_other_listeners(caplog):
    cluster, heard = Cluster([node("a")]), []

    def fail(event):
        raise RuntimeError("no room")

    cluster.listen(fail)
    cluster.listen(lambda event: heard.append(event.key))
    assert apply(cluster, [(("Node", "b"), node("b")), (("Node", "a"), None)]) == []
    assert (cluster.names, heard) == (["b"], ["b", "a"])
    assert [record.getMessage() for record in caplog.records] == [
        "a change of the Node `b` could not be followed everywhere: no room",
        "a change of the Node `a` could not be followed everywhere: no room"]
