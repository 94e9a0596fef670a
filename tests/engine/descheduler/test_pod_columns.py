"""Places in the columns: those of pods that are given as a list, which may grow."""

from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.descheduler.pod_columns import PodColumns

from .conftest import NOW, node, pod

NODES = [node("a"), node("b"), node("c")]


def columns_of(*pods):
    return PodColumns.of(Cluster([*NODES, *pods]).snapshot(NOW))


def test_a_list_of_pods_that_grows_is_looked_up_as_a_whole():
    columns = columns_of(pod("x", "a"), pod("y", "a"), pod("z", "c"))
    x, y, z = columns.pods
    leaving: list[PodInfo] = []
    assert columns.are_among(leaving).tolist() == [False, False, False]
    leaving.append(y)
    assert columns.are_among(leaving).tolist() == [False, True, False]
    leaving.append(z)
    assert columns.are_among(leaving).tolist() == [False, True, True]
    assert columns.are_among([x]).tolist() == [True, False, False]
    assert columns.are_among(leaving).tolist() == [False, True, True]
    leaving.clear()
    assert columns.are_among(leaving).tolist() == [False, False, False]


def test_another_version_of_a_pod_has_its_place_and_pods_of_no_row_have_none():
    columns = columns_of(pod("x", "a"), pod("y", "b"))
    others = [pod("y", "b", cpu="2"), pod("x", "b"), pod("gone", "a"), pod("far", "elsewhere")]
    assert columns.are_among([PodInfo.of(each) for each in others]).tolist() == [False, True]


def test_an_overlay_has_columns_of_its_own():
    snapshot = Cluster([*NODES, pod("x", "b")]).snapshot(NOW)
    added = PodInfo.of(pod("new", "a"))
    columns = PodColumns.of(snapshot.overlay({"a": NodeChange(add=(added,))}))
    assert columns.are_among([added]).tolist() == [True, False]
    assert PodColumns.of(snapshot).are_among([added]).tolist() == [False]
