from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.listing import KindView, Listed, Listing, Undecoded, apply
from koordpolicy.engine.source import Problem


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
    assert Listing().changes(
        [{"kind": "Node"}, {"kind": "Node", "metadata": {}}, {"kind": "Node", "metadata": 1}],
    ) == []


def test_a_cluster_follows_its_listings():
    first = [node("a"), node("b"), pod("p", "a"), pod("q", "a")]
    cluster, listing = Cluster(first), Listing(first)
    second = [node("a"), node("c"), pod("q", "c", "2"), pod("r", "c")]
    assert apply(cluster, listing.changes(second)) == []
    fresh = Cluster(second)
    assert (cluster.names, cluster.snapshot().requested("cpu").tolist()) == (
        fresh.names, fresh.snapshot().requested("cpu").tolist(),
    )
    assert cluster.objects("Pod") == fresh.objects("Pod")


def test_a_malformed_object_is_told_and_the_others_are_taken():
    cluster, listing = Cluster([node("a")]), Listing([node("a")])
    problems = apply(cluster, listing.changes([node("a", "2", cpu="x"), node("b")]))
    assert [problem.message.startswith("Node `a`: `status.allocatable.cpu`") for problem in problems] == [True]
    assert cluster.names == ["a", "b"]


def test_a_malformed_object_is_reported_once_and_retried_until_it_is_mended():
    cluster, listing = Cluster([node("a")]), Listing([node("a")])
    listings = [
        [node("a", "2", cpu="x"), node("b")], [node("a", "2", cpu="x"), node("b")],
        [node("a", "3", cpu="y"), node("b")], [node("a", "4", cpu="6"), node("b")],
        [node("a", "4", cpu="6"), node("b")],
    ]
    told = [[problem.message for problem in apply(cluster, listing.changes(each), listing.faults)] for each in listings]
    assert [[message.split(":")[2].strip() for message in each] for each in told] == [
        ["`x` is not a quantity"], [], ["`y` is not a quantity"], [], []]
    assert cluster.snapshot().allocatable("cpu").tolist() == [6000, 4000]


def test_changes_that_did_not_reach_the_cluster_come_again_with_the_next_listing():
    cluster, listing = Cluster([node("a"), node("b")]), Listing([node("a"), node("b")])
    second = [node("a", "2", cpu="8"), node("c")]
    lost = listing.changes(second)
    listing.retry(lost)
    again = listing.changes(second)
    assert again == lost == [(("Node", "a"), second[0]), (("Node", "c"), second[1]), (("Node", "b"), None)]
    assert (apply(cluster, again, listing.faults), cluster.names, listing.changes(second)) == ([], ["a", "c"], [])


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


def undecoded(item):
    metadata = item["metadata"]
    return Undecoded("v1", item["kind"], metadata["name"], metadata.get("namespace", ""), metadata.get("uid", ""),
                     metadata.get("resourceVersion", ""), msgspec.Raw(json.dumps(item).encode()))


def test_only_what_has_another_version_is_decoded():
    broken = replace(undecoded(node("a")), raw=msgspec.Raw(b"not decoded"))
    changed = node("b", "2", cpu="8")
    listing = Listing([node("a"), node("b")])
    assert listing.changes([broken, undecoded(changed)]) == [(("Node", "b"), {"apiVersion": "v1", **changed})]
    assert listing.changes([broken, undecoded(changed)]) == []


def test_what_is_known_of_a_kind_that_could_not_be_listed_stays():
    listing = Listing(
        [node("a"), pod("p", "a")], kinds=["Node", "Pod", "Device"], failed={"Device": Problem("none")}, now=1.0,
    )
    gone = {"Pod": Problem("not allowed"), "Device": Problem("none")}
    assert listing.changes([node("b")], failed=gone, now=2.0) == [(("Node", "b"), node("b")), (("Node", "a"), None)]
    assert listing.views == {
        "Node": KindView(2.0), "Pod": KindView(1.0, "not allowed"), "Device": KindView(0.0, "none"),
    }
    assert [kind for kind, view in listing.views.items() if view.stale] == ["Pod"]
    listing.failed("nobody answers")
    assert {view.fault for view in listing.views.values()} == {"nobody answers"}
    assert listing.changes([node("b")], now=3.0) == [(("Pod", "default/p"), None)]
    assert set(listing.views.values()) == {KindView(3.0)}


@pytest.mark.parametrize("text", [b'"\xff"', b"1e999", b"9" * 5000])
def test_an_object_that_cannot_be_decoded_stays_as_it_was_and_costs_no_other(text, caplog):
    odd = [
        replace(
            undecoded(node(name, "2")), raw=msgspec.Raw(b'{"metadata":{"name":"%b"},"x":%b}' % (name.encode(), text)),
        )
        for name in ("a", "new")
    ]
    listing = Listing([node("a"), node("gone")])
    assert listing.changes([*odd, undecoded(node("b"))]) == [
        (("Node", "b"), {"apiVersion": "v1", **node("b")}), (("Node", "gone"), None)]
    assert listing.changes([*odd, undecoded(node("b"))]) == []
    assert [
        record.getMessage().partition(": it cannot be read")[0] for record in caplog.records
    ] == ["Node `a`", "Node `new`"]
    assert listing.changes([undecoded(node("a", "3", cpu="8"))]) == [
        (("Node", "a"), {"apiVersion": "v1", **node("a", "3", cpu="8")}), (("Node", "b"), None)]
    assert Listed([*odd, undecoded(node("b"))]).decoded() == ({"apiVersion": "v1", **node("b")},)


def test_a_listing_that_fails_half_way_forgets_nothing_of_what_was_known():
    listing = Listing([node("a"), node("b")])
    with pytest.raises(OSError, match="gone"):
        listing.changes(
            each if isinstance(each, dict) else (_ for _ in ()).throw(OSError("gone")) for each in (node("a"), 0)
        )
    assert listing.changes([node("a")]) == [(("Node", "b"), None)]
