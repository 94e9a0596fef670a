"""Patches of the live client: what is sent, to which subresource, and what comes back."""

from __future__ import annotations

import json
import threading

import pytest

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import ApiError, Status
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.scheduler.live.client import LiveClient
from koordpolicy.testing import FakeClock

QUOTA = {"kind": "ElasticQuota", "metadata": {"name": "team", "namespace": "apps", "uid": "u"}, "status": {"used": {}}}
VOLUME = {"kind": "PersistentVolume", "metadata": {"name": "disk", "uid": "v", "resourceVersion": "7"}, "spec": {}}
PATH = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/apps/elasticquotas/team"


class FakeTransport:
    """Answers patches, and refuses what `refused` says by path."""

    def __init__(self):
        self.sent, self.refused, self.answered = [], {}, threading.Semaphore(0)

    async def request(self, method, path, *, body, content_type, retries=0):
        self.sent.append((path, json.loads(body)))
        self.answered.release()
        if path in self.refused:
            raise ApiError(self.refused[path], Status(message="the object has been modified"))
        return json.dumps({"metadata": {"resourceVersion": str(len(self.sent))}}).encode()


@pytest.fixture
def transport():
    return FakeTransport()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def client(transport, clock):
    with IoThread("test") as io:
        yield LiveClient(io, transport, None, clock=clock)


def used(cpu, **metadata):
    return {**QUOTA, "metadata": {**QUOTA["metadata"], **metadata}, "status": {"used": {"cpu": cpu}}}


def test_a_patch_returns_the_object_as_the_server_has_it(client, transport):
    bound = {**VOLUME, "spec": {"claimRef": {"name": "data"}}}
    assert client.patch(VOLUME, VOLUME) is None
    assert client.patch(VOLUME, bound) == {"metadata": {"resourceVersion": "1"}}
    assert transport.sent == [
        ("/api/v1/persistentvolumes/disk", {"metadata": {"uid": "v"}, "spec": {"claimRef": {"name": "data"}}})]


def test_an_exact_patch_is_sent_with_the_version_and_not_repeated_after_a_conflict(client, transport):
    before = {**VOLUME, "metadata": {"name": "disk", "uid": "v"}}
    transport.refused["/api/v1/persistentvolumes/disk"] = 409
    with pytest.raises(OSError, match="the object has been modified"):
        client.patch(before, {**VOLUME, "spec": {"claimRef": {"name": "data"}}})
    assert transport.sent == [("/api/v1/persistentvolumes/disk", {
        "metadata": {"uid": "v", "resourceVersion": "7"}, "spec": {"claimRef": {"name": "data"}}})]


def test_a_status_goes_to_its_subresource_and_the_rest_to_the_object(client, transport):
    client.patch(QUOTA, used("1", annotations={"a": "b"}))
    assert transport.sent == [
        (PATH, {"metadata": {"uid": "u", "annotations": {"a": "b"}}}),
        (f"{PATH}/status", {"metadata": {"uid": "u"}, "status": {"used": {"cpu": "1"}}})]


def test_a_kind_without_that_subresource_costs_one_patch_from_the_second_on(client, transport, clock):
    transport.refused[f"{PATH}/status"] = 404
    client.patch(QUOTA, used("1", annotations={"a": "b"}))
    assert [path for path, _ in transport.sent] == [PATH, f"{PATH}/status", PATH]
    assert client.patch(QUOTA, used("2", annotations={"a": "c"})) == {"metadata": {"resourceVersion": "4"}}
    assert transport.sent[3:] == [
        (PATH, {"metadata": {"uid": "u", "annotations": {"a": "c"}}, "status": {"used": {"cpu": "2"}}})]
    clock.advance(301)  # a new definition may have it
    client.patch(QUOTA, used("3"))
    assert [path for path, _ in transport.sent[4:]] == [f"{PATH}/status", PATH]


def test_an_object_that_is_gone_does_not_count_as_one_without_the_subresource(client, transport):
    transport.refused = {PATH: 404, f"{PATH}/status": 404}
    with pytest.raises(OSError, match="modified"):
        client.patch(QUOTA, used("1"))
    del transport.refused[PATH]
    client.patch(QUOTA, used("1"))
    assert [path for path, _ in transport.sent[2:]] == [f"{PATH}/status", PATH]


def test_in_the_deciding_thread_a_patch_is_only_queued(client, transport):
    client.own(Cluster())
    assert client.patch(QUOTA, used("1")) is None
    assert transport.answered.acquire(timeout=60)
    assert [path for path, _ in transport.sent] == [f"{PATH}/status"]
