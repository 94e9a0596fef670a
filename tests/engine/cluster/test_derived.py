from __future__ import annotations

import sys
import threading
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.derived import Derived, DerivedObjects, DerivedState, Owned, all_rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange

PODS = frozenset({("nodeInfo", "pods")})
ZONE = frozenset({("node", "metadata", "labels", "zone")})


def node(name, zone=""):
    labels = {"zone": zone} if zone else {}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "8"}}}


def pod(name, cpu="1"):
    main = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [main]}})


class Counting:
    """A function of single rows that notes for which rows it was called."""

    def __init__(self, function):
        self.function, self.rows = function, []

    def __call__(self, snapshot, row):
        self.rows.append(snapshot.names[row])
        return self.function(snapshot, row)


def number_of_pods(snapshot, row):
    return len(snapshot.pods(row))


def zone_of(snapshot, row):
    return snapshot.node(row)["metadata"]["labels"].get("zone")


def test_only_rows_that_changed_are_computed_again():
    compute = Counting(lambda snapshot, row: (number_of_pods(snapshot, row), snapshot.now))
    columns = Derived(PODS, np.int64, compute, width=2)
    cluster = Cluster([node("a"), node("b")])
    assert columns.of(cluster.snapshot(1)).T.tolist() == [[0, 1], [0, 1]]
    assert columns.of(cluster.snapshot(2)).T.tolist() == [[0, 1], [0, 1]]
    cluster.assume(pod("p"), "b")
    assert columns.of(cluster.snapshot(3)).T.tolist() == [[0, 1], [1, 3]]
    assert compute.rows == ["a", "b", "b"]


def test_nodes_that_come_or_go_begin_everything_anew():
    column, cluster = Derived(PODS, np.int64, number_of_pods), Cluster([node("a"), node("c")])
    cluster.assume(pod("p"), "c")
    assert column.of(cluster.snapshot()).tolist() == [0, 1]
    cluster.upsert(node("b"))
    assert column.of(cluster.snapshot()).tolist() == [0, 0, 1]
    cluster.delete("Node", "a")
    assert column.of(cluster.snapshot()).tolist() == [0, 1]


def test_clusters_do_not_share_columns():
    column = Derived(PODS, np.int64, number_of_pods)
    first, second = Cluster([node("a")]), Cluster([node("a"), node("b")])
    second.assume(pod("p"), "b")
    assert [column.of(each.snapshot()).tolist() for each in (first, second, first)] == [[0], [0, 1], [0]]


def test_an_overlay_computes_its_overridden_rows_once_and_leaves_the_base_alone():
    compute = Counting(number_of_pods)
    column, cluster = Derived(PODS, np.int64, compute), Cluster([node("a"), node("b")])
    overlay = cluster.snapshot().overlay({"b": NodeChange(add=[pod("p")])})
    assert [column.of(overlay).tolist(), column.of(overlay).tolist()] == [[0, 1], [0, 1]]
    assert column.of(cluster.snapshot()).tolist() == [0, 0]
    assert column.of(overlay.overlay({"a": NodeChange(add=[pod("q")])})).tolist() == [1, 1]
    assert compute.rows == ["a", "b", "b", "a"]


def test_an_overlay_of_many_overlays_computes_the_rows_that_changed_since_the_column_was_read():
    compute, names = Counting(number_of_pods), [f"n{number:03}" for number in range(100)]
    column, cluster = Derived(PODS, np.int64, compute), Cluster([node(name) for name in names])
    overlay = cluster.snapshot().overlay({name: NodeChange(add=[pod("p")]) for name in names[:50]})
    assert column.of(overlay).sum() == 50
    del compute.rows[:]
    for name in names[50:53]:
        overlay = overlay.overlay({name: NodeChange(add=[pod("p")])})
    assert (column.of(overlay).sum(), compute.rows) == (53, names[50:53])
    assert (overlay.pod_count.sum(), overlay.overridden_at(PODS).tolist()) == (53, [*range(53)])
    for number, name in enumerate(names):
        overlay = overlay.overlay({name: NodeChange(add=[pod(f"q{number}")])})
    del compute.rows[:]
    # So many have changed that all overridden rows are computed.
    assert (column.of(overlay).sum(), len(compute.rows)) == (153, 100)


def test_an_overlay_that_does_not_differ_at_the_paths_shares_the_array_of_its_base():
    column = Derived(ZONE, np.object_, zone_of, distinct=True)
    cluster = Cluster([node("a", "x"), node("b", "y")])
    with_a_pod = cluster.snapshot().overlay({"b": NodeChange(add=[pod("p")])})
    moved = cluster.snapshot().overlay({"b": NodeChange(node=node("b", "x"))})
    assert column.of(with_a_pod) is column.of(cluster.snapshot())
    assert (column.of(moved).tolist(), column.of(cluster.snapshot()).tolist()) == (["x", "x"], ["x", "y"])


def test_a_distinct_column_is_computed_once_for_rows_that_agree_and_another_array_where_a_value_changes():
    compute = Counting(zone_of)
    column = Derived(ZONE, np.object_, compute, distinct=True)
    cluster = Cluster([node(f"n{number:02}", "xy"[number % 2]) for number in range(20)])
    before = column.of(cluster.snapshot())
    assert (before.tolist(), compute.rows) == (["x", "y"] * 10, ["n00", "n01"])
    cluster.upsert(node("n03", "y") | {"spec": {"unschedulable": True}})
    assert column.of(cluster.snapshot()) is before
    cluster.upsert(node("n03", "x"))
    after = column.of(cluster.snapshot())
    assert (after.tolist(), before.tolist()) == (["x", "y", "x", "x"] + ["x", "y"] * 8, ["x", "y"] * 10)


def test_each_key_has_a_column_and_the_least_recently_used_is_dropped():
    column, cluster, asked = Derived(PODS, np.int64), Cluster([node("a")]), []

    def of(key):
        def compute(snapshot, row):
            asked.append(key)
            return key + number_of_pods(snapshot, row)
        return column.of(cluster.snapshot(), key, compute).tolist()

    assert [of(1), of(2), of(1)] == [[1], [2], [1]]
    for key in range(3, 514):
        of(key)
    assert (of(1), asked.count(1), of(2), asked.count(2)) == ([1], 1, [2], 2)


def test_paths_of_a_read_stand_in_for_those_of_the_constructor():
    column, cluster = Derived(PODS, np.object_), Cluster([node("a", "x")])
    assert column.of(cluster.snapshot(), "zone", zone_of, paths=ZONE).tolist() == ["x"]
    cluster.upsert(node("a", "y"))
    assert column.of(cluster.snapshot(), "zone", zone_of, paths=ZONE).tolist() == ["y"]


def test_everything_is_computed_again_where_what_else_decides_is_something_else():
    compute = Counting(number_of_pods)
    column, cluster = Derived(PODS, np.int64, compute), Cluster([node("a")])
    for extra in (1, 1, 2):
        column.of(cluster.snapshot(), extra=extra)
    assert compute.rows == ["a", "a"]


def test_rows_that_are_not_asked_for_are_not_computed():
    compute = Counting(number_of_pods)
    column, cluster = Derived(PODS, np.int64, compute), Cluster([node("a"), node("b"), node("c")])
    cluster.assume(pod("p"), "b")
    assert column.of(cluster.snapshot(), rows=np.array([1]))[1] == 1
    overlay = cluster.snapshot().overlay({"c": NodeChange(add=[pod("q")])})
    assert column.of(overlay, rows=np.array([0, 2]))[[0, 2]].tolist() == [0, 1]
    assert column.of(cluster.snapshot()).tolist() == [0, 1, 0]
    assert compute.rows == ["b", "a", "c", "c"]


def test_a_vectorized_column_is_computed_for_the_rows_that_changed_at_once():
    asked = []

    def compute(snapshot, rows):
        asked.append(rows.tolist())
        return snapshot.pod_count[rows]

    column, cluster = Derived(PODS, np.int64, vectorized=True), Cluster([node("a"), node("b")])
    cluster.assume(pod("one"), "b")
    assert column.of(cluster.snapshot(), "pods", compute).tolist() == [0, 1]
    cluster.assume(pod("two"), "a")
    assert column.of(cluster.snapshot(), "pods", compute).tolist() == [1, 1]
    view = cluster.snapshot().overlay({"b": NodeChange(remove=["default/one"])})
    assert column.of(view, "pods", compute).tolist() == [1, 0]
    assert column.of(cluster.snapshot(), "pods", compute).tolist() == [1, 1]
    assert column.of(cluster.snapshot(), "pods", compute, extra=1).tolist() == [1, 1]
    assert asked == [[0, 1], [0], [1], [0, 1]]


def test_a_row_that_was_forgotten_is_computed_again_in_every_cluster():
    size = {"a": 1, "b": 2}
    objects = DerivedObjects(PODS, lambda snapshot, row: size[snapshot.names[row]])
    clusters = [Cluster([node("a"), node("b")]), Cluster([node("b")])]
    overlay = clusters[0].snapshot().overlay({"b": NodeChange(add=[pod("p")])})
    assert (objects.at(overlay, 1), objects.of(clusters[1].snapshot()).values) == (2, [2])
    assert objects.of(overlay).values == [1, 2]
    size["b"] = 3
    objects.forget("b")
    objects.forget("gone")
    assert (objects.at(overlay, 1), objects.of(clusters[1].snapshot()).values) == (3, [3])
    assert objects.of(overlay).values == [1, 3]


def test_a_refresh_that_fails_leaves_nothing_half_refreshed():
    broken = set()

    def compute(snapshot, row):
        if snapshot.names[row] in broken:
            raise RuntimeError(snapshot.names[row])
        return number_of_pods(snapshot, row)

    objects, cluster = DerivedObjects(PODS, compute), Cluster([node("a"), node("b")])
    objects.of(cluster.snapshot())
    cluster.assume(pod("p"), "a")
    cluster.assume(pod("q"), "b")
    broken.add("b")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="b"):
            objects.of(cluster.snapshot())
    broken.clear()
    assert objects.of(cluster.snapshot()).values == [1, 1]


def test_another_thread_may_drop_what_is_cached_while_new_clusters_are_read():
    with Owned() as owned:
        column = Derived(PODS, np.int64, lambda snapshot, row: row)
    interval, stop, errors = sys.getswitchinterval(), threading.Event(), []

    def drop():
        while not stop.is_set() and not errors:
            try:
                owned.drop()
            except RuntimeError as error:
                errors.append(error)

    thread = threading.Thread(target=drop)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        clusters = [Cluster([node("a"), node("b")]) for _ in range(500)]
        found = {tuple(column.of(each.snapshot()).tolist()) for each in clusters}
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert (found, errors) == ({(0, 1)}, [])


def test_objects_follow_the_objects_that_are_named_like_nodes():
    compute = Counting(lambda snapshot, row: (snapshot.object("Topology", snapshot.names[row]) or {}).get("zones"))
    objects = DerivedObjects(frozenset({("objects", "Topology")}), compute, lambda zones: (zones or 0,), 1)
    cluster = Cluster([node("a"), node("b")])
    found = objects.of(cluster.snapshot())
    assert (found.values, found.present.tolist()) == ([None, None], [])
    cluster.upsert({"kind": "Topology", "metadata": {"name": "b"}, "zones": 2})
    cluster.upsert({"kind": "Other", "metadata": {"name": "a"}})
    found = objects.of(cluster.snapshot())
    assert (found.numbers.tolist(), found.present.tolist()) == ([[0], [2]], [1])
    cluster.delete("Topology", "b")
    found = objects.of(cluster.snapshot())
    assert (found.values, found.present.tolist()) == ([None, None], [])
    assert compute.rows == ["a", "b", "b", "b"]


def test_the_object_of_an_overridden_row_is_computed_once_also_for_overlays_of_the_overlay():
    compute = Counting(number_of_pods)
    objects, cluster = DerivedObjects(PODS, compute), Cluster([node("a"), node("b")])
    overlay = cluster.snapshot().overlay({"b": NodeChange(add=[pod("p")])})
    assert (objects.at(overlay, 1), objects.at(overlay, 0)) == (1, 0)
    above = overlay.overlay({"a": NodeChange(add=[pod("q")])})
    assert (objects.at(above, 1), objects.at(above, 0)) == (1, 1)
    again = overlay.overlay({"b": NodeChange(remove=["default/p"])})
    assert (objects.at(again, 1), objects.at(cluster.snapshot(), 1)) == (0, 0)
    assert compute.rows == ["a", "b", "b", "a", "b"]


class Total:
    """The sum of the pods of all nodes."""

    def __init__(self, size):
        self.by_row, self.total = [0] * size, 0

    def refresh(self, snapshot, rows):
        for row in rows.tolist():
            self.total += number_of_pods(snapshot, row) - self.by_row[row]
            self.by_row[row] = number_of_pods(snapshot, row)

    def copy(self):
        twin = Total(0)
        twin.by_row, twin.total = list(self.by_row), self.total
        return twin


def test_a_state_follows_all_rows_and_an_overlay_has_its_own():
    total, cluster = DerivedState(PODS, Total), Cluster([node("a"), node("b")])
    cluster.assume(pod("p"), "a")
    overlay = cluster.snapshot().overlay({"b": NodeChange(add=[pod("q")]), "a": NodeChange(add=[pod("r")])})
    assert (total.of(overlay).total, total.of_base(overlay).total, total.of(cluster.snapshot()).total) == (3, 1, 1)
    cluster.forget("default/p")
    assert total.of(cluster.snapshot()).total == 0


# Whatever happens

KINDS = ("pods", "zone", "both", "clock")
PATHS = {
    "pods": PODS, "zone": ZONE, "both": PODS | ZONE, "clock": frozenset({("metricAge",)}) | PODS,
}
VALUES = {
    "pods": number_of_pods,
    "zone": lambda snapshot, row: hash(zone_of(snapshot, row)) % 1000,
    "both": lambda snapshot, row: number_of_pods(snapshot, row) * 7 + hash(zone_of(snapshot, row)) % 1000,
    "clock": lambda snapshot, row: snapshot.now + number_of_pods(snapshot, row),
}


class Everything:
    """One of each, all of which must be what computing all rows afresh returns."""

    def __init__(self):
        self.single = {kind: Derived(PATHS[kind], np.int64, VALUES[kind]) for kind in KINDS}
        self.distinct = Derived(ZONE, np.int64, VALUES["zone"], distinct=True)
        self.wide = Derived(PATHS["both"], np.int64, lambda snapshot, row: (
            number_of_pods(snapshot, row), VALUES["zone"](snapshot, row)), width=2)
        self.objects = {kind: DerivedObjects(PATHS[kind], VALUES[kind], lambda value: (value,), 1) for kind in KINDS}
        self.total = DerivedState(PODS, Total)
        self.keyed = Derived(PODS, np.int64)
        self.keyed._most = lambda size: 2

    def check(self, snapshot, random):
        rows = range(snapshot.size)
        fresh = {kind: [VALUES[kind](snapshot, row) for row in rows] for kind in KINDS}
        for kind in KINDS:
            some = np.array(sorted(random.sample(rows, random.randint(0, snapshot.size))), np.intp)
            part = self.single[kind].of(snapshot, rows=some)
            assert part[some].tolist() == [fresh[kind][row] for row in some.tolist()]
            if random.random() < 0.5:
                assert self.single[kind].of(snapshot).tolist() == fresh[kind]
            for row in some.tolist():
                assert self.objects[kind].at(snapshot, row) == fresh[kind][row]
            found = self.objects[kind].of(snapshot)
            assert (found.values, found.numbers[:, 0].tolist()) == (fresh[kind], fresh[kind])
        assert self.distinct.of(snapshot).tolist() == fresh["zone"]
        assert self.wide.of(snapshot).tolist() == [fresh["pods"], fresh["zone"]]
        assert self.total.of(snapshot).total == sum(fresh["pods"])
        key = random.randrange(4)
        keyed = self.keyed.of(snapshot, key, lambda view, row: key + number_of_pods(view, row))
        assert keyed.tolist() == [key + number for number in fresh["pods"]]


def some_change(snapshot, random, count):
    name = random.choice(snapshot.names)
    there = [each.key for each in snapshot.pods(snapshot.index[name])]
    return {name: random.choice([
        NodeChange(add=[pod(f"overlaid{count}")]),
        NodeChange(remove=random.sample(there, random.randint(0, len(there)))),
        NodeChange(node=node(name, random.choice("xyz"))),
        NodeChange(node=node(name, random.choice("xyz")), add=[pod(f"overlaid{count}"), pod("p0")]),
    ])}


def change_cluster(cluster, random, everything):
    names = cluster.names
    match random.randrange(7):
        case 0:
            cluster.upsert(node(f"n{random.randrange(24):02}", random.choice("xyz")))
        case 1 if len(names) > 1:
            cluster.delete("Node", random.choice(names))
        case 2:
            cluster.forget(f"default/p{random.randrange(12)}")
        case 3:
            name = random.choice(names)
            everything.objects["both"].forget(name)
        case 4:
            for number in range(9_000):  # more than the change log holds
                cluster.assume(pod("p0"), names[number % len(names)])
                if number > random.choice([20, 20, 20, 9_000]):
                    break
        case _:
            cluster.assume(pod(f"p{random.randrange(12)}"), random.choice(names))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_read_is_what_computing_all_rows_afresh_returns(seed):
    random, everything = Random(seed), Everything()
    cluster = Cluster(node(f"n{number:02}", random.choice("xyz")) for number in range(random.choice([1, 3, 16])))
    for now in range(1, 16):
        for _ in range(random.randrange(3)):
            change_cluster(cluster, random, everything)
        views = [cluster.snapshot(now if random.random() < 0.8 else now - 1)]
        for count in range(random.randrange(4)):
            below = random.choice(views)
            views.append(below.overlay(some_change(below, random, count)))
        random.shuffle(views)
        for view in views:
            everything.check(view, random)


def test_the_numbers_of_all_rows_are_not_to_be_written():
    assert (all_rows(3).tolist(), all_rows(3).flags.writeable) == ([0, 1, 2], False)
