"""Writes say what became of them, carry UIDs, and are repeated only where that is safe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter, PodCondition, WriteResult, WriteStatus, pod_status_patch
from koordpolicy.engine.source import PolicyError, Problem

from ...ports import reserved_port
from .fake_api_server import api_server, json_answer, never, recorded, refusal, refused, text_answer

POD = pod_reference("default", "a", "uid-a")
PATH = "/api/v1/namespaces/default/pods/a"
FINE = json_answer({"kind": "Status", "status": "Success"}, 201)
CONDITION = PodCondition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available")
PROFILE = ObjectReference(BY_KIND["NodeMetric"], "", "one", "uid-one")


class Sent(list[tuple[str, str, str, Any]]):
    """Requests: method, path, content type and body."""


def written(write: Callable[[ClusterWriter], Awaitable[WriteResult]], *answers: Any) -> tuple[
        WriteResult, Sent, list[float]]:
    """The result of a write, the requests that it sent, and its delays."""
    sent = Sent()

    def recording(answer: Any) -> Any:
        async def record(request: web.Request) -> web.StreamResponse:
            sent.append((request.method, request.path, request.content_type, await request.json()))
            result: web.StreamResponse = await answer(request)
            return result

        return record

    async def run() -> tuple[WriteResult, Sent, list[float]]:
        delays, sleep = recorded()
        async with (api_server(*map(recording, answers or [FINE])) as fake,
                    Transport(fake.connection, rate=0, sleep=sleep) as transport):
            writer = ClusterWriter(transport, now=lambda: 1e6, sleep=sleep, jitter=lambda: 0.0)
            return await write(writer), sent, delays

    return asyncio.run(run())


def conflict(message: str) -> Any:
    return json_answer(refusal(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "a": {message}'), 409)


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def test_l22_a_binding_names_pod_uid_and_node_and_brings_annotations():
    result, sent, _ = written(lambda writer: writer.bind(POD, "one", annotations={"a": "b"}))
    assert result == WriteResult(WriteStatus.DONE)
    assert result.done
    assert sent == [("POST", f"{PATH}/binding", "application/json", {
        "apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "one"},
        "metadata": {"namespace": "default", "name": "a", "uid": "uid-a", "annotations": {"a": "b"}}})]


@pytest.mark.parametrize(("answer", "status", "node"), [
    (conflict('pod a is already assigned to node "two"'), WriteStatus.ALREADY_ASSIGNED, "two"),
    (conflict("pod a is being deleted, cannot be assigned to a host"), WriteStatus.TERMINATING, ""),
    (conflict("pod a has non-empty .spec.schedulingGates"), WriteStatus.GATED, ""),
    (conflict("Precondition failed: UID in precondition: x, UID in object meta: y"), WriteStatus.REPLACED, ""),
    (conflict("the object has been modified"), WriteStatus.CONFLICT, ""),
    (conflict("the UID in the precondition (x) does not match the UID in record (y)"), WriteStatus.REPLACED, ""),
    (json_answer(refusal(422, "Invalid", 'Pod "a" is invalid: metadata.uid: Invalid value: "x": field is immutable'),
                 422), WriteStatus.REPLACED, ""),
    (refused(404, "NotFound"), WriteStatus.GONE, ""),
    (refused(403, "Forbidden"), WriteStatus.FORBIDDEN, ""),
    (refused(401, "Unauthorized"), WriteStatus.FORBIDDEN, ""),
    (refused(422, "Invalid"), WriteStatus.REFUSED, ""),
    (refused(500, "InternalError"), WriteStatus.REFUSED, ""),
    (text_answer("Too many requests, please try again later.", 429), WriteStatus.THROTTLED, ""),
])
def test_l23_a_binding_is_sent_once_and_its_refusal_says_why(answer: Any, status: WriteStatus, node: str):
    result, sent, delays = written(lambda writer: writer.bind(POD, "one"), answer)
    assert (result.status, result.node, result.done, len(sent), delays) == (status, node, False, 1, [])
    assert result.message


def test_l24_a_binding_whose_answer_is_lost_is_unknown_and_not_repeated():
    result, sent, _ = written(lambda writer: writer.bind(POD, "one"), reset, FINE)
    assert result == WriteResult(WriteStatus.UNKNOWN, "it breaks off the connection")
    assert len(sent) == 1


def test_a_binding_is_repeated_where_the_server_says_when():
    result, sent, delays = written(
        lambda writer: writer.bind(POD, "one"), refused(429, headers={"Retry-After": "1"}), FINE)
    assert (result, len(sent), delays) == (WriteResult(WriteStatus.DONE), 2, [1.0])


def to_nowhere(write: Callable[[ClusterWriter], Awaitable[WriteResult]]) -> tuple[WriteResult, list[float]]:
    async def run() -> tuple[WriteResult, list[float]]:
        delays, sleep = recorded()
        with reserved_port() as port:
            async with Transport(Connection(f"http://127.0.0.1:{port}")) as transport:
                return await write(ClusterWriter(transport, sleep=sleep, jitter=lambda: 0.0)), delays

    return asyncio.run(run())


def test_a_write_without_a_connection_has_not_been_seen_by_the_server():
    result, delays = to_nowhere(lambda writer: writer.bind(POD, "one"))
    assert (result, delays) == (WriteResult(WriteStatus.UNREACHABLE, "nobody listens there"), [])
    result, delays = to_nowhere(lambda writer: writer.patch_pod_status(POD, condition=CONDITION))
    assert (result, delays) == (
        WriteResult(WriteStatus.UNREACHABLE, "nobody listens there", attempts=4), [0.01, 0.05, 0.25])


def test_a_write_without_credentials_has_not_been_seen_by_the_server():
    class NoCredentials:
        async def header(self) -> str | None:
            raise PolicyError([Problem("no credentials", code="cluster")])

        def refused(self, header: str | None) -> None:
            pass

    async def run() -> WriteResult:
        async with Transport(Connection("http://127.0.0.1:1", NoCredentials())) as transport:
            return await ClusterWriter(transport).bind(POD, "one")

    result = asyncio.run(run())
    assert result.status is WriteStatus.UNREACHABLE
    assert "no credentials" in result.message


def test_a_status_patch_sets_the_condition_and_the_nominated_node():
    result, sent, _ = written(
        lambda writer: writer.patch_pod_status(POD, condition=CONDITION, nominated_node="one"))
    assert result == WriteResult(WriteStatus.DONE)
    assert sent == [("PATCH", f"{PATH}/status", "application/strategic-merge-patch+json", {
        "metadata": {"uid": "uid-a"},
        "status": {"nominatedNodeName": "one", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
            "lastTransitionTime": "1970-01-12T13:46:40Z"}]}})]


@pytest.mark.parametrize("answer", [
    refused(409, "Conflict"), refused(500, "InternalError"), refused(503, "ServiceUnavailable"), reset,
])
def test_l17_a_status_patch_is_repeated_four_times_in_less_than_half_a_second(answer: Any):
    result, sent, delays = written(lambda writer: writer.patch_pod_status(POD, condition=CONDITION), answer, FINE)
    assert (result, len(sent), delays) == (WriteResult(WriteStatus.DONE, attempts=2), 2, [0.01])
    result, sent, delays = written(lambda writer: writer.patch_pod_status(POD, condition=CONDITION), answer)
    assert (result.done, result.attempts, len(sent), delays) == (False, 4, 4, [0.01, 0.05, 0.25])


@pytest.mark.parametrize("answer", [
    refused(404, "NotFound"), refused(403, "Forbidden"), refused(422, "Invalid"), text_answer("busy", 429),
    conflict("Precondition failed: UID in precondition: x, UID in object meta: y"), never,
])
def test_what_does_not_pass_quickly_is_not_repeated(answer: Any):
    result, sent, delays = written(lambda writer: writer.patch_pod_status(POD, condition=CONDITION), answer)
    assert (result.done, result.attempts, len(sent), delays) == (False, 1, 1, [])


def test_after_the_repeats_that_the_server_wished_there_are_no_others():
    result, sent, delays = written(
        lambda writer: writer.patch_pod_status(POD, condition=CONDITION), refused(503, headers={"Retry-After": "1"}))
    assert (result.attempts, result.retry_after, len(sent), delays) == (1, 1.0, 11, [1.0] * 10)


CURRENT = {"nominatedNodeName": "one", "conditions": [
    {"type": "Ready", "status": "False"},
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
     "lastTransitionTime": "2020-01-01T00:00:00Z", "lastProbeTime": None}]}


def test_l27_a_status_that_is_so_already_is_not_written():
    result, sent, _ = written(lambda writer: writer.patch_pod_status(
        POD, condition=CONDITION, nominated_node="one", current=CURRENT))
    assert (result, sent) == (WriteResult(WriteStatus.UNCHANGED, attempts=0), [])
    assert result.done


@pytest.mark.parametrize(("condition", "nominated_node", "patch"), [
    (None, None, None),
    (None, "", {"nominatedNodeName": None}),
    (None, "two", {"nominatedNodeName": "two"}),
    (PodCondition("PodScheduled", "False", "Unschedulable", "0/3"), None, {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]}),
    (PodCondition("PodScheduled", "True"), None, {"conditions": [
        {"type": "PodScheduled", "status": "True", "reason": None, "message": None,
         "lastTransitionTime": "1970-01-01T00:00:07Z"}]}),
    (PodCondition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available", 4), None, {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
         "observedGeneration": 4}]}),
    (PodCondition("Ready", "False", "Waits", "m"), None, {"conditions": [
        {"type": "Ready", "status": "False", "reason": "Waits", "message": "m"}]}),
    (PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", "m"), None, {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m",
         "lastTransitionTime": "1970-01-01T00:00:07Z"}]}),
])
def test_a_status_patch_holds_what_differs(condition: PodCondition | None, nominated_node: str | None, patch: Any):
    assert pod_status_patch(CURRENT, condition=condition, nominated_node=nominated_node, now=7 * 10**9) == patch


def test_a_merge_patch_carries_the_uid_and_is_repeated():
    result, sent, _ = written(
        lambda writer: writer.merge_patch(PROFILE, {"metadata": {"labels": {"a": None}}, "status": {"x": [1]}},
                                          subresource="status"), refused(409, "Conflict"), FINE)
    assert result == WriteResult(WriteStatus.DONE, attempts=2)
    assert sent == [("PATCH", "/apis/slo.koordinator.sh/v1alpha1/nodemetrics/one/status",
                     "application/merge-patch+json",
                     {"metadata": {"labels": {"a": None}, "uid": "uid-one"}, "status": {"x": [1]}})] * 2


def test_a_merge_patch_of_one_version_is_not_repeated():
    result, sent, _ = written(
        lambda writer: writer.merge_patch(PROFILE, {"spec": {"x": 1}}, resource_version="7"), refused(409, "Conflict"))
    assert (result.status, len(sent)) == (WriteStatus.CONFLICT, 1)
    assert sent[0][3] == {"metadata": {"uid": "uid-one", "resourceVersion": "7"}, "spec": {"x": 1}}


def test_a_deletion_carries_the_uid():
    result, sent, _ = written(
        lambda writer: writer.delete(POD, grace_s=0, propagation="Background", dry_run=True))
    assert result == WriteResult(WriteStatus.DONE)
    assert sent == [("DELETE", PATH, "application/json", {
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 0,
        "dryRun": ["All"], "propagationPolicy": "Background"})]


def test_a_deletion_without_wishes_leaves_them_to_the_server():
    _, sent, _ = written(lambda writer: writer.delete(ObjectReference(BY_KIND["Node"], "", "one")))
    assert sent == [("DELETE", "/api/v1/nodes/one", "application/json",
                     {"apiVersion": "v1", "kind": "DeleteOptions"})]


def test_an_eviction_carries_the_uid():
    result, sent, _ = written(lambda writer: writer.evict(POD, grace_s=5, dry_run=True))
    assert result == WriteResult(WriteStatus.DONE)
    assert sent == [("POST", f"{PATH}/eviction", "application/json", {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "default", "name": "a"},
        "deleteOptions": {"preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 5, "dryRun": ["All"]}})]


def budget(cause: str, headers: dict[str, str] | None = None) -> Any:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return json_answer({**refusal(429, "TooManyRequests", message), "details": {
        "causes": [{"reason": "DisruptionBudget", "message": cause}]}}, 429, headers)


@pytest.mark.parametrize(("answer", "status", "name", "retry_after"), [
    (budget("The disruption budget web needs 2 healthy pods and has 2 currently"),
     WriteStatus.PDB_BLOCKED, "web", None),
    (budget("The disruption budget web is still being processed by the server.", {"Retry-After": "10"}),
     WriteStatus.PDB_STALE, "web", 10.0),
    (text_answer("Too many requests, please try again later.", 429, {"Retry-After": "1"}),
     WriteStatus.THROTTLED, "", 1.0),
    (json_answer(refusal(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource "
                         "does not support."), 201), WriteStatus.MULTI_PDB, "", None),
    (refused(404, "NotFound"), WriteStatus.GONE, "", None),
    (conflict("Precondition failed: UID in precondition: x, UID in object meta: y"), WriteStatus.REPLACED, "", None),
    (refused(409, "Conflict"), WriteStatus.CONFLICT, "", None),
    (refused(403, "Forbidden"), WriteStatus.FORBIDDEN, "", None),
    (refused(504, "Timeout", {"Retry-After": "10"}), WriteStatus.REFUSED, "", 10.0),
    (reset, WriteStatus.UNKNOWN, "", None),
])
def test_l49_l50_l51_a_refused_eviction_says_why_and_returns_without_a_wait(
    answer: Any, status: WriteStatus, name: str, retry_after: float | None,
):
    result, sent, delays = written(lambda writer: writer.evict(POD), answer)
    assert (result.status, result.budget, result.retry_after, len(sent), delays) == (status, name, retry_after, 1, [])


def test_the_message_of_a_blocked_eviction_names_the_cause():
    result, _, _ = written(lambda writer: writer.evict(POD), budget("The disruption budget web needs 2"))
    assert result.message == ("Cannot evict pod as it would violate the pod's disruption budget.; "
                              "The disruption budget web needs 2")
    assert json.loads(json.dumps(result.status)) == "pdb-blocked"
