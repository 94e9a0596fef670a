from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.scheduler.extensions.reservations import (
    ReservationInfo,
    allocated_uid,
    follow,
    is_reserve_pod,
    matches_owners,
    problem_of,
    reservation_of,
    reserve_pod,
)

PREFIX = "scheduling.koordinator.sh/"


def container(**requests):
    return {"name": "main", "resources": {"requests": requests}}


def reservation(template=None, status=None, metadata=None, **spec):
    template = {"spec": {"containers": [container(cpu="4")]}} if template is None else template
    return {"kind": "Reservation", "metadata": {"name": "r", "uid": "u", **(metadata or {})},
            "spec": {"template": template, "owners": [{}], "ttl": "1h", **spec}, "status": status or {}}


def test_a_reserve_pod_is_named_by_the_uid_and_carries_what_template_and_reservation_say():
    template = {
        "metadata": {"namespace": "team", "labels": {"a": "template", "b": "template"}},
        "spec": {"nodeName": "given", "containers": [container(cpu="1")]},
    }
    pod = reserve_pod(reservation(template, metadata={"labels": {"b": "own"}}, preAllocation=True))
    assert (pod.key, pod.uid, pod.priority, pod.node_name) == ("team/u", "u", 2**31 - 1, "")
    assert pod.object["metadata"]["labels"] == {"a": "template", "b": "own"}
    assert pod.object["metadata"]["annotations"] == {
        PREFIX + "reserve-pod": "true", PREFIX + "reservation-name": "r", PREFIX + "reservation-node": "given",
        PREFIX + "is-pre-allocation": "true"}
    assert pod.object["spec"]["schedulerName"] == "default-scheduler"
    assert (is_reserve_pod(pod), reservation_of(pod)) == (True, "r")


@pytest.mark.parametrize(("template", "labels", "priority"), [
    ({"spec": {"priority": 7}}, {"koordinator.sh/priority": "9"}, 7), ({}, {"koordinator.sh/priority": "9"}, 9),
    ({}, {"koordinator.sh/priority": "x"}, 2**31 - 1),
])
def test_the_priority_is_the_templates_then_the_labels_then_the_highest(template, labels, priority):
    assert reserve_pod(reservation(template, metadata={"labels": labels})).priority == priority


def test_an_available_reservation_of_another_size_holds_what_its_status_says():
    template = {"spec": {"containers": [container(cpu="1", memory="1Gi")], "overhead": {"cpu": "1"}}}
    status = {"phase": "Available", "nodeName": "n", "allocatable": {"cpu": "8"}}
    pod = reserve_pod(reservation(template, status))
    assert (pod.requests, pod.node_name) == ({"cpu": 8000, "memory": 2**30}, "n")
    assert "overhead" not in pod.object["spec"]


@pytest.mark.parametrize(("item", "problem"), [
    (None, "the reservation is nil"), ({"spec": {}}, "the reservation misses the template spec"),
    ({"spec": {"template": {}}}, "the reservation misses the owner spec"),
    ({"spec": {"template": {}, "owners": [{}]}}, "the reservation misses the expiration spec"),
    (reservation(), ""),
])
def test_what_makes_a_reservation_unusable_is_told(item, problem):
    assert problem_of(item) == problem


def test_restricted_options_and_reserved_amounts_are_read():
    annotations = {PREFIX + "reservation-restricted-options": '{"resources": ["cpu", "gpu"]}',
                   "node.koordinator.sh/reservation": '{"resources": {"cpu": "1"}}'}
    template = {"spec": {"containers": [container(cpu="4", memory="1Gi")]}}
    status = {"phase": "Available", "nodeName": "n"}
    restricted = reservation(template, status, {"annotations": annotations}, allocatePolicy="Restricted")
    info = ReservationInfo.of(restricted)
    assert (info.resource_names, info.left(), info.is_matchable) == (("cpu",), {"cpu": 3000, "memory": 2**30}, True)
    assert ReservationInfo.of({**restricted, "spec": {**restricted["spec"], "allocatePolicy": ""}}).resource_names == (
        "cpu", "memory")


def test_owners_that_cannot_be_read_match_nobody():
    broken = [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}}]
    info = ReservationInfo.of(reservation(status={"phase": "Available", "nodeName": "n"}, owners=broken))
    assert (info.owners, info.is_matchable, "`spec.owners`" in info.parse_error) == ((), False, True)


def test_a_controller_is_recognised_by_what_is_said_of_it():
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "1", "controller": True}
    pod = PodInfo.of({"metadata": {"name": "p", "namespace": "a", "ownerReferences": [reference]},
                      "spec": {"containers": [container()]}})
    assert matches_owners(pod, [{"controller": {"name": "web", "namespace": "a"}}])
    assert not matches_owners(pod, [{"controller": {"name": "web", "namespace": "b"}}])
    assert not matches_owners(pod, [{"controller": {"name": "web", "controller": False}}])
    assert not matches_owners(pod, [])


def test_a_pod_may_act_as_a_reservation():
    annotations = {PREFIX + "reservation-owners": '[{"labelSelector": {"matchLabels": {"app": "web"}}}]'}
    item = {"metadata": {"name": "p", "uid": "x", "annotations": annotations},
            "spec": {"nodeName": "n", "containers": [container(cpu="2")]}}
    info = ReservationInfo.of_operating_pod(PodInfo.of(item))
    assert (info.policy, info.allocate_once, info.is_matchable, info.left()) == ("Aligned", True, True, {"cpu": 2000})
    annotations[PREFIX + "reservation-current-owner"] = '{"name": "q"}'
    assert not ReservationInfo.of_operating_pod(PodInfo.of(item)).is_matchable


def test_a_note_that_cannot_be_read_names_no_reservation():
    assert allocated_uid({"metadata": {"annotations": {PREFIX + "reservation-allocated": "{"}}}) == ""


def node(name):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "10"}}}


def state(cluster):
    pods = cluster.objects("Pod")
    return {key: cluster.pod(key).node_name for key in pods}


def test_reservations_wait_hold_their_place_and_leave_as_pods():
    cluster = Cluster([node("a"), node("b"), reservation()])
    follow(cluster)
    assert (state(cluster), [pod.key for pod in cluster.pending]) == ({"default/u": ""}, ["default/u"])
    cluster.upsert(reservation(status={"phase": "Available", "nodeName": "a"}))
    assert (state(cluster), cluster.snapshot().requested("cpu").tolist()) == ({"default/u": "a"}, [4000, 0])
    cluster.upsert(reservation(status={"phase": "Available", "nodeName": "b"}))
    assert cluster.snapshot().requested("cpu").tolist() == [0, 4000]
    cluster.upsert(reservation(status={"phase": "Succeeded", "nodeName": "b"}))
    assert (state(cluster), cluster.snapshot().requested("cpu").tolist()) == ({}, [0, 0])
    cluster.upsert(reservation())
    cluster.upsert(reservation(metadata={"uid": "v"}))
    assert state(cluster) == {"default/v": ""}
    cluster.delete("Reservation", "r")
    assert state(cluster) == {}


def test_reservations_that_cannot_be_used_or_are_anothers_do_not_wait():
    cluster = Cluster([reservation(owners=[])])
    follow(cluster, lambda name: name == "mine")
    cluster.upsert(reservation())
    assert state(cluster) == {}
    cluster.upsert(reservation({"spec": {"schedulerName": "mine", "containers": [container()]}}))
    assert state(cluster) == {"default/u": ""}


def test_what_consumers_use_is_taken_off_the_pod_that_holds_the_place():
    cluster = Cluster([node("a"), reservation(status={"phase": "Available", "nodeName": "a"})])
    follow(cluster)
    consumer = {
        "kind": "Pod",
        "metadata": {"name": "c", "annotations": {PREFIX + "reservation-allocated": '{"name": "r", "uid": "u"}'}},
        "spec": {"nodeName": "a", "containers": [container(cpu="3", memory="1Gi")]},
    }
    cluster.upsert(consumer)
    assert cluster.snapshot().requested("cpu").tolist() == [4000]
    assert cluster.pod("default/u").requests == {"cpu": 1000}
    cluster.delete("Pod", "default/c")
    assert (cluster.snapshot().requested("cpu").tolist(), cluster.pod("default/u").requests) == ([4000], {"cpu": 4000})
