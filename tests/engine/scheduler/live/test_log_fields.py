"""Lines of the log about a pod have its namespace and name as `pod`, beside the generation, in JSON."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from koordpolicy.engine.cli.logs import JsonFormatter
from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import ApiError, Status
from koordpolicy.engine.client.writes import PodCondition
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import QueuedPod
from koordpolicy.engine.scheduler.cycle.loop import Attempt
from koordpolicy.engine.scheduler.live.client import LiveClient
from koordpolicy.engine.scheduler.live.reporting import AttemptReporter
from koordpolicy.engine.scheduler.live.watchdogs import LOST_S, LostPods
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.testing import FakeClock, pod
from tests.waiting import until

POD = PodInfo.of(pod("a", namespace="team", schedulerName="koord-policy"))
REFERENCE = pod_reference(POD.namespace, POD.name, POD.uid)
EVENT = {"type": "Normal", "reason": "Scheduled", "action": "Binding", "note": "", "controller": "koord-policy"}
LIVE = "koordpolicy.engine.scheduler.live"


class Refusing:
    """A transport whose API server refuses all."""

    def lift_limit(self):
        pass

    async def request(self, *_, **__):
        raise ApiError(403, Status(message="not allowed"))


class Broken:
    """A transport with a fault of its own."""

    def lift_limit(self):
        pass

    async def request(self, *_, **__):
        raise KeyError("field")


class Recorder:
    """Drops events."""

    def record(self, *_, **__):
        return True


@pytest.fixture
def lines(caplog):
    """The lines so far as JSON, without their time and the text of an exception."""
    caplog.set_level(logging.INFO)

    def read():
        found = [json.loads(JsonFormatter(lambda: 7).format(record)) for record in caplog.records]
        return [{name: value for name, value in line.items() if name not in {"time", "exception"}} for line in found]

    return read


@pytest.fixture
def client():
    with IoThread("test") as io:
        yield LiveClient(io, Refusing(), Recorder(), clock=FakeClock())


def line(level, logger, message, **more):
    return {"level": level, "logger": logger, "message": message, "generation": 7, **more}


def test_of_a_binding_that_is_refused(client, lines):
    with pytest.raises(OSError, match="not allowed") as refused:
        client.bind(POD, "one")
    refusal = ("Binder", Point.BIND, Refusal("Binder", str(refused.value), Code.ERROR))
    verdict = Verdict(POD, "koord-policy", 7, ("one",), None, -1, refusal=refusal)
    AttemptReporter(client).observe(Attempt(QueuedPod(POD), verdict, 0, POD))
    (found,) = [each for each in lines() if each["logger"] == f"{LIVE}.reporting"]
    assert found == line(
        "warning", f"{LIVE}.reporting",
        f"an attempt to schedule pod team/a failed, it is tried again: {verdict.message()}", pod="team/a")


def test_of_a_status_that_is_refused(client, lines):
    client.statuses.write(POD, condition=PodCondition("PodScheduled", "False", "Unschedulable", "no"))
    until(lines)
    (found,) = lines()
    assert found["message"].startswith("the status of pod team/a was not written: ")
    assert found == line("warning", f"{LIVE}.pod_status", found["message"], pod="team/a")


def test_of_a_preemption_and_of_the_patch_of_a_plugin_that_are_refused(client, lines):
    preemptor = PodInfo.of(pod("b", schedulerName="koord-policy"))
    cluster = Cluster()
    client.own(cluster)
    client.preempt(POD, preemptor, "one")
    until(lambda: len(lines()) == 1)
    changed = {**POD.object, "metadata": {**POD.object["metadata"], "labels": {"a": "b"}}}
    client.patch(POD.object, changed)
    until(lambda: len(lines()) == 2)
    client.evict(POD, "quota")
    until(lambda: len(lines()) == 4)
    quota = {"kind": "ElasticQuota", "metadata": {"name": "q", "namespace": "apps", "uid": "u"}}
    client.patch(quota, {**quota, "spec": {"max": {}}})
    until(lambda: len(lines()) == 5)
    assert [(each["message"].split(": ")[0], each.get("pod")) for each in lines()] == [
        ("team/a could not be preempted by default/b", "team/a"), ("Pod team/a was not changed", "team/a"),
        ("team/a is evicted", "team/a"), ("Pod team/a was not evicted", "team/a"),
        ("ElasticQuota apps/q was not changed", None)]


@pytest.mark.parametrize(("transport", "level", "message"), [
    (Refusing(), "warning", "the event Scheduled about {} cannot be written: "),
    (Broken(), "error", "an event about {} is lost"),
])
def test_of_an_event_that_is_lost(lines, transport, level, message):
    async def script():
        recorder = EventRecorder(transport)
        for regarding in (REFERENCE, ObjectReference(BY_KIND["Reservation"], "", "r", "u")):
            recorder.record(regarding, **EVENT)
            await recorder.flush()

    asyncio.run(script())
    about = [(each["message"], each.get("pod")) for each in lines()]
    logger = "koordpolicy.engine.client.event_recorder"
    assert about[0][0].startswith(message.format("team/a"))
    assert lines()[0] == line(level, logger, about[0][0], pod="team/a")
    assert [pod for _, pod in about] == ["team/a", None][:len(about)]


def test_of_a_pod_in_no_queue(lines):
    clock = FakeClock()

    class Loop:
        def lost(self):
            return (POD,)

        def enqueue(self, pod):
            """Take it."""

    watchdog = LostPods(clock)
    watchdog.look(Loop())
    clock.advance(LOST_S)
    watchdog.look(Loop())
    assert lines() == [line(
        "error", f"{LIVE}.watchdogs", "team/a has been in no queue for 60 s: it is queued again", pod="team/a")]
