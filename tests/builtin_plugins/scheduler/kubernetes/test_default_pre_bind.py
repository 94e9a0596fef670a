from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.plugin import SKIP, CycleState
from tests.fake_framework import FakeFramework

POD = {"kind": "Pod", "metadata": {"name": "p", "uid": "u"}, "spec": {}, "status": {"phase": "Pending"}}


@pytest.fixture
def framework():
    return FakeFramework()


def patch(framework, original, modified):
    return framework.make("DefaultPreBind").apply_patch(CycleState(), original, modified)


def test_what_differs_is_sent_in_one_patch(framework):
    modified = {**POD, "metadata": {**POD["metadata"], "labels": {"a": "b"}}}
    assert patch(framework, POD, modified) is None
    assert framework.client.patches == [(POD, modified)]


def test_nothing_is_sent_where_nothing_or_only_the_status_differs(framework):
    assert patch(framework, POD, {**POD, "status": {"phase": "Running"}}) is None
    assert framework.client.patches == []


def test_the_patch_of_a_reservation_carries_its_uid(framework):
    reservation = {"kind": "Reservation", "metadata": {"name": "r", "uid": "u"}}
    patch(framework, reservation, {**reservation, "spec": {"ttl": "1h"}})
    (before, after), = framework.client.patches
    assert ("uid" in before["metadata"], after["metadata"]["uid"]) == (False, "u")


def test_other_kinds_are_left_to_others(framework):
    assert patch(framework, {"kind": "Node"}, {"kind": "Node", "spec": {}}) is SKIP


def test_closed_connections_are_tried_again_and_other_failures_are_not(framework):
    modified = {**POD, "spec": {"nodeName": "n"}}
    framework.client.failures = [ConnectionResetError("closed")] * 3
    assert patch(framework, POD, modified) is None
    framework.client.failures = [PermissionError("no")]
    assert patch(framework, POD, modified) == Refusal("patch", "no", Code.ERROR)
    framework.client.failures = [ConnectionResetError("closed")] * 9
    assert patch(framework, POD, modified) == Refusal("patch", "closed", Code.ERROR)


def test_a_pod_that_is_being_deleted_is_not_bound(framework):
    framework.client.answer = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    refusal = patch(framework, POD, {**POD, "spec": {"nodeName": "n"}})
    assert refusal == Refusal("deleted", "pod is being deleted", Code.ERROR)
