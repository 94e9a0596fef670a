"""The live client: what becomes of a binding, preemptions, and the order of writes about one pod."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest

from koordpolicy.engine.client.faults import ApiFault
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.object_patches import NotLeadingError, WriteFailedError
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Status
from koordpolicy.engine.client.writes import PodCondition
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.handle import StalePodError
from koordpolicy.engine.scheduler.live.client import LiveClient
from koordpolicy.testing import FakeClock, pod
from tests.waiting import until

POD = PodInfo.of(pod("a", schedulerName="koord-policy"))
PATH = "/api/v1/namespaces/default/pods/a"
BIND = ("POST", f"{PATH}/binding")
STATUS = ("PATCH", f"{PATH}/status")
CONDITION = PodCondition("PodScheduled", "False", "Unschedulable", "no")


class Recorder:
    """Records events."""

    def __init__(self):
        self.events = []

    def record(self, regarding, **of):
        self.events.append((regarding.name, of["reason"], of["note"]))


class FakeTransport:
    """Answers by method and path; an answer is raised if it is an error, and awaited if it is an `asyncio.Event`."""

    def __init__(self):
        self.answers, self.sent = {}, []

    async def request(self, method, path, *, body=None, **_):
        self.sent.append((method, path))
        answers = self.answers.get((method, path)) or [{}]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = {}
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


class Scene:
    def __init__(self, io, **more):
        self.io, self.transport, self.recorder, self.woken = io, FakeTransport(), Recorder(), threading.Event()
        self.client = LiveClient(io, self.transport, self.recorder, clock=FakeClock(), wake=self.woken.set, **more)

    def bind(self, **more):
        return self.io.submit(self.client.bind_async(POD, "one", more)).result(60)

    def answer(self, request, *answers):
        self.transport.answers[request] = list(answers)


@pytest.fixture
def io():
    with IoThread("test") as running:
        yield running


@pytest.fixture
def scene(io):
    return Scene(io)


def refused(code, message):
    return ApiError(code, Status(message=message))


def lost():
    return ConnectionFailed(ApiFault("it breaks off the connection", "look"), refused=False, broken=True)


def on(node, uid=POD.uid):
    return {"metadata": {"uid": uid}, "spec": {"nodeName": node}}


BOUND = [("a", "Scheduled", "Successfully assigned default/a to one")]


def test_a_binding_is_one_request_and_an_event(scene):
    scene.bind()
    assert (scene.transport.sent, scene.recorder.events) == ([BIND], BOUND)


@pytest.mark.parametrize("found", [
    refused(404, 'pods "a" not found'), refused(409, 'pod a is already assigned to node "two"'),
    refused(409, "pod a is being deleted, cannot be assigned to a host"), refused(409, "UID in precondition: b"),
], ids=["gone", "assigned", "terminating", "replaced"])
def test_a_pod_that_is_not_what_the_scheduler_knows_is_stale(scene, found):
    scene.answer(BIND, found)
    with pytest.raises(StalePodError):
        scene.bind()
    assert scene.recorder.events == []


def test_a_pod_that_is_already_on_the_node_is_bound(scene):
    scene.answer(BIND, refused(409, 'pod a is already assigned to node "one"'))
    scene.bind()
    assert scene.recorder.events == BOUND


@pytest.mark.parametrize("found", [refused(403, "exceeded quota"), refused(500, "etcd is gone")], ids=["403", "500"])
def test_any_other_refusal_fails_with_the_servers_words(scene, found):
    scene.answer(BIND, found)
    with pytest.raises(WriteFailedError, match=found.message):
        scene.bind()


@pytest.mark.parametrize(("looks", "error", "events"), [
    ([on("one")], None, BOUND), ([lost(), on("one")], None, BOUND),
    ([on("two")], StalePodError, []), ([refused(404, "gone")], StalePodError, []),
    ([on("one", uid="another")], StalePodError, []), ([on("")], WriteFailedError, []),
], ids=["bound", "bound-at-the-second-look", "elsewhere", "gone", "replaced", "not-bound"])
def test_a_pod_whose_binding_has_no_answer_is_read_and_never_bound_twice(scene, looks, error, events):
    scene.answer(BIND, lost())
    scene.answer(("GET", PATH), *looks)
    if error is None:
        scene.bind()
    else:
        with pytest.raises(error):
            scene.bind()
    assert (scene.transport.sent.count(BIND), scene.recorder.events) == (1, events)


def test_a_binding_that_takes_too_long_fails_and_is_not_sent_later(io):
    scene = Scene(io, bind_s=0.05)
    scene.answer(BIND, lost())
    scene.answer(("GET", PATH), lost())
    with pytest.raises(OSError, match=r"the API server has not answered within 0\.05 s"):
        scene.bind()
    assert scene.transport.sent == [BIND]


def test_a_process_that_does_not_lead_binds_nothing(io):
    scene = Scene(io, may_write=lambda: False)
    with pytest.raises(NotLeadingError):
        scene.bind()
    assert scene.transport.sent == []


def test_a_status_that_is_being_written_arrives_before_the_binding_and_a_queued_one_never(scene):
    gate = asyncio.Event()
    scene.answer(STATUS, gate)
    scene.client.statuses.write(POD, condition=CONDITION)
    until(lambda: scene.transport.sent)
    scene.client.statuses.write(POD, condition=CONDITION, nominated_node="one")
    binding = scene.io.submit(scene.client.bind_async(POD, "one", {}))
    time.sleep(0.02)
    assert scene.transport.sent == [STATUS]
    scene.io.call_soon(gate.set)
    binding.result(60)
    assert scene.transport.sent == [STATUS, BIND]


def test_of_the_statuses_that_are_requested_meanwhile_the_last_one_is_written(scene):
    gate = asyncio.Event()
    scene.answer(STATUS, gate, {})
    scene.client.statuses.write(POD, condition=CONDITION)
    until(lambda: scene.transport.sent)
    for node in ("one", "two", ""):
        scene.client.statuses.write(POD, nominated_node=node)
    scene.client.statuses.write(POD, nominated_node="three")
    scene.io.call_soon(gate.set)
    until(lambda: not scene.client.statuses.pending)
    assert scene.transport.sent == [STATUS, STATUS]


@pytest.mark.parametrize(("first", "then", "sent"), [
    ({"nominated_node": "one"}, {"nominated_node": ""}, 2), ({"nominated_node": "one"}, {"nominated_node": "one"}, 1),
    ({"condition": replace(CONDITION, message="new")}, {"condition": CONDITION}, 2),
    ({"condition": replace(CONDITION, message="new")}, {"condition": replace(CONDITION, message="new")}, 1),
])
def test_what_was_just_written_counts_before_the_watch_shows_it(scene, first, then, sent):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}
    known = PodInfo.of({**POD.object, "status": {"conditions": [condition]}})
    gate = asyncio.Event()
    scene.answer(STATUS, gate, {})
    scene.client.statuses.write(known, **first)
    until(lambda: scene.transport.sent)
    scene.client.statuses.write(known, **then)
    scene.io.call_soon(gate.set)
    until(lambda: not scene.client.statuses.pending)
    assert scene.transport.sent == [STATUS] * sent


def test_a_status_that_changes_nothing_is_not_written(scene):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}
    known = PodInfo.of({**POD.object, "status": {"conditions": [condition], "nominatedNodeName": "one"}})
    scene.client.statuses.write(known, condition=CONDITION, nominated_node="one")
    scene.bind()
    assert scene.transport.sent == [BIND]


def preempted(scene):
    cluster = Cluster([{**POD.object, "spec": {**POD.object["spec"], "nodeName": "one"}}])
    scene.client.own(cluster)
    victim = cluster.pod("default/a")
    assert victim is not None
    scene.client.preempt(victim, PodInfo.of(pod("big", schedulerName="koord-policy")), "one")
    return cluster


DELETE = ("DELETE", PATH)


@pytest.mark.parametrize("answers", [
    {}, {STATUS: [refused(404, "gone")]}, {DELETE: [refused(404, "gone")]},
    {DELETE: [refused(409, "UID in precondition: b")]},
], ids=["deleted", "gone-before", "gone-meanwhile", "replaced"])
def test_l36_a_victim_is_marked_and_deleted_and_one_that_is_gone_is_no_failure(scene, answers):
    scene.transport.answers |= answers
    cluster = preempted(scene)
    assert cluster.object("Pod", "default/a")["metadata"]["deletionTimestamp"]
    requests = [STATUS] + [DELETE] * (STATUS not in answers)
    until(lambda: scene.transport.sent == requests and (answers or scene.recorder.events))
    scene.bind()  # what comes after the answer has happened
    assert scene.recorder.events[:-1] == ([] if answers else [
        ("a", "Preempted", "Preempted by pod uid-of-default-big on node one")])
    assert scene.transport.sent[:-1] == requests
    assert scene.client.take_failed_preemptions() == []


def test_a_victim_that_cannot_be_deleted_is_returned_and_wakes_the_scheduler_up(scene):
    scene.answer(DELETE, refused(403, "you may not"))
    cluster = preempted(scene)
    assert scene.woken.wait(60)
    (failed,) = scene.client.take_failed_preemptions()
    assert (failed.victim.key, failed.preemptor.key) == ("default/a", "default/big")
    assert cluster.object("Pod", "default/a") is failed.marked
    assert scene.recorder.events == []


def test_a_victim_stays_one_that_is_being_deleted_until_the_server_says_since_when(scene):
    gate = asyncio.Event()
    scene.answer(DELETE, gate, {})
    cluster = preempted(scene)
    marked = cluster.object("Pod", "default/a")
    plain = {**marked, "metadata": {name: value for name, value in marked["metadata"].items()
                                    if name != "deletionTimestamp"}, "status": {"phase": "Running"}}
    assert scene.client.revise(plain) == {**plain, "metadata": marked["metadata"]}
    other = {**plain, "metadata": {**plain["metadata"], "uid": "another"}}
    assert scene.client.revise(other) is other
    going = {**plain, "metadata": {**plain["metadata"], "deletionTimestamp": "2026-02-02T00:00:00Z"}}
    assert (scene.client.revise(going), len(scene.client._victims)) == (going, 0)
    scene.io.call_soon(gate.set)


def test_a_victim_that_is_gone_is_forgotten(scene):
    gate = asyncio.Event()
    scene.answer(STATUS, gate, {})
    cluster = preempted(scene)
    assert len(scene.client._victims) == 1
    cluster.delete("Pod", "default/a")
    assert len(scene.client._victims) == 0
    scene.io.call_soon(gate.set)


def test_a_failed_preemption_is_undone_in_what_the_cluster_has_by_then(scene):
    scene.answer(DELETE, refused(403, "you may not"))
    cluster = preempted(scene)
    marked = cluster.object("Pod", "default/a")
    assert scene.woken.wait(60)
    plain = {**marked, "metadata": {name: value for name, value in marked["metadata"].items()
                                    if name != "deletionTimestamp"}, "status": {"phase": "Running"}}
    later = scene.client.revise(plain)
    (failed,) = scene.client.take_failed_preemptions()
    assert failed.unmarked(later) == plain
    assert scene.client.revise(plain) is plain
    assert failed.unmarked({**later, "metadata": {**later["metadata"], "uid": "another"}}) is None
    assert failed.unmarked({**later, "metadata": {**later["metadata"], "deletionTimestamp": "2026-02-02"}}) is None


def test_a_pod_that_is_already_terminating_is_not_deleted_again(scene):
    scene.client.own(Cluster())
    metadata = {**POD.object["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    going = PodInfo.of({**POD.object, "metadata": metadata})
    scene.client.preempt(going, POD, "one")
    scene.bind()
    assert scene.transport.sent == [BIND]
