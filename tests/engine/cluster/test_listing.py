from __future__ import annotations

from koordpolicy.engine.cluster.listing import Listing, apply
from koordpolicy.engine.cluster.snapshot import Cluster


def node(name, version="1", cpu="4", uid="u"):
    return {"kind": "Node", "metadata": {"name": name, "uid": uid, "resourceVersion": version},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def pod(name, node_name, version="1", phase="Running"):
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {"kind": "Pod", "metadata": {"name": name, "resourceVersion": version},
            "spec": {"containers": [container], "nodeName": node_name}, "status": {"phase": phase}}


def test_only_what_changed_between_two_listings_is_told_and_nodes_come_first():
    listing = Listing([node("a"), node("b"), pod("p", "a"), pod("q", "a")])
    q, p, b, c = pod("q", "b", "2"), pod("p", "a"), node("b", uid="other"), node("c")
    assert listing.changes([q, p, b, c]) == [
        (("Node", "b"), b), (("Node", "c"), c), (("Node", "a"), None), (("Pod", "default/q"), q)]
    assert listing.changes([q, p, b, c]) == []


def test_objects_without_a_version_are_compared():
    listing = Listing([node("a", ""), node("b", "")])
    assert listing.changes([node("a", ""), node("b", "", cpu="8")]) == [(("Node", "b"), node("b", "", cpu="8"))]


def test_objects_without_a_name_are_left_out():
    assert Listing().changes([{"kind": "Node"}, {"kind": "Node", "metadata": {}}, {"kind": "Node", "metadata": 1}]) == []


def test_a_cluster_follows_its_listings():
    first = [node("a"), node("b"), pod("p", "a"), pod("q", "a")]
    cluster, listing = Cluster(first), Listing(first)
    second = [node("a"), node("c"), pod("q", "c", "2"), pod("r", "c")]
    assert apply(cluster, listing.changes(second)) == []
    fresh = Cluster(second)
    assert (cluster.names, cluster.snapshot().requested("cpu").tolist()) == (fresh.names, fresh.snapshot().requested("cpu").tolist())
    assert cluster.objects("Pod") == fresh.objects("Pod")


def test_a_malformed_object_is_told_and_the_others_are_taken():
    cluster, listing = Cluster([node("a")]), Listing([node("a")])
    problems = apply(cluster, listing.changes([node("a", "2", cpu="x"), node("b")]))
    assert [problem.message.startswith("Node `a`: `status.allocatable.cpu`") for problem in problems] == [True]
    assert cluster.names == ["a", "b"]
