from __future__ import annotations

import json

import pytest

from koordpolicy.builtin_plugins.scheduler.reservation.status import available, is_expired, synced, with_conditions
from koordpolicy.engine.cluster.objects.pods import PodInfo
from tests.fake_framework import FakeFramework

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"


def node(name="n"):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "10"}}}


def reservation(once=True, status=None, **spec):
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]}}
    return {
        "kind": "Reservation", "metadata": {"name": "r", "uid": "u", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"template": template, "owners": [{}], "allocateOnce": once, **(spec or {"ttl": "1h"})},
        "status": {"phase": "Available", "nodeName": "n", "allocatable": {"cpu": "4"}, **(status or {})},
    }


def consumer(name, cpu="1"):
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": name,
            "annotations": {ALLOCATED: json.dumps({"name": "r", "uid": "u"})},
        },
        "spec": {
            "nodeName": "n", "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1"}}}],
        },
    }


@pytest.mark.parametrize(("spec", "now", "expired"), [
    ({"ttl": "1h"}, HOUR, False), ({"ttl": "1h"}, HOUR + 1, True), ({"ttl": "0s"}, 9 * HOUR, False),
    ({"ttl": "0", "expires": "1970-01-01T00:30:00Z"}, HOUR, False), ({"expires": "1970-01-01T00:30:00Z"}, HOUR, True),
])
def test_a_reservation_expires_by_age_or_by_date_and_a_ttl_of_nothing_means_never(spec, now, expired):
    assert is_expired(reservation(**spec), now) is expired


def test_a_reservation_that_ended_expires_no_more():
    assert not is_expired(reservation(status={"phase": "Succeeded"}), 9 * HOUR)


def test_owners_and_what_they_use_are_written_in_the_order_of_their_uids():
    pods = [PodInfo.of(consumer("b")), PodInfo.of(consumer("a", "2"))]
    status = synced(reservation(once=False), pods, 0)["status"]
    assert ([owner["name"] for owner in status["currentOwners"]], status["allocated"], status["phase"]) == (
        ["a", "b"], {"cpu": "3"}, "Available")
    again = reservation(once=False, status=status)
    assert synced(again, pods, 0) is again


def test_one_that_is_used_once_succeeds_when_its_owners_change_and_also_when_the_last_one_leaves():
    first = synced(reservation(), [PodInfo.of(consumer("a"))], 0)["status"]
    assert (first["phase"], first["conditions"][0]["reason"]) == ("Succeeded", "Succeeded")
    owners = {"currentOwners": [{"namespace": "default", "name": "a", "uid": "a"}], "allocated": {"cpu": "1"}}
    last = synced(reservation(status=owners), [], 0)["status"]
    assert (last["phase"], last["currentOwners"]) == ("Succeeded", [])


def test_one_whose_node_is_gone_has_failed_and_one_without_a_node_is_left_alone():
    status = synced(reservation(), None, 0)["status"]
    assert (status["phase"], status["conditions"][0]["reason"]) == ("Failed", "Expired")
    waiting = reservation(status={"nodeName": "", "phase": "Pending"})
    assert synced(waiting, None, 9 * HOUR) is waiting


def test_conditions_keep_the_moment_at_which_they_changed():
    first = with_conditions({"status": {}}, 0, Ready=("True", "Available", ""))
    later = with_conditions(first, 60 * SECOND, Ready=("True", "Other", ""))
    moved = with_conditions(later, 90 * SECOND, Ready=("False", "Other", ""))
    moments = [each["status"]["conditions"][0]["lastTransitionTime"] for each in (first, later, moved)]
    assert moments == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:01:30Z"]
    assert with_conditions(first, SECOND, Ready=("True", "Available", "")) == first


def test_an_available_reservation_holds_what_its_template_asks_for_or_what_it_was_resized_to():
    item = reservation(status={"phase": "", "nodeName": "", "allocatable": None})
    assert available(item, "n", 0)["status"]["allocatable"] == {"cpu": "4"}
    item["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/reservation-resize-allocatable": '{"resources": {"cpu": "6", "memory": "1Gi"}}'}
    assert available(item, "n", 0)["status"]["allocatable"] == {"cpu": "6", "memory": "1Gi"}


def test_the_controller_writes_expires_and_clears_away():
    framework = FakeFramework(node(), reservation(), consumer("a"))
    controller, = framework.make("Reservation").controllers()
    controller.run(SECOND)
    (_, written), = framework.client.patches
    assert written["status"]["phase"] == "Succeeded"
    framework.upsert(written)
    controller.run(25 * HOUR)
    assert framework.cluster.object("Reservation", "r") is None


def test_pods_of_a_deleted_reservation_lose_the_note_where_that_is_asked_for():
    framework = FakeFramework(node(), reservation(), consumer("a"), gates={"CleanExpiredReservationAllocated"})
    controller, = framework.make("Reservation").controllers()
    framework.delete("Reservation", "r")
    controller.run(0)
    assert framework.client.patches[-1][1]["metadata"]["annotations"] == {}
