"""The extender binds the pod that it was sent, and no other one of its name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.scheduler.extender.pod_binder import Binding, PodBinder
from koordpolicy.engine.source import PolicyError

from ...client.fake_api_server import api_server, json_answer, refusal

BINDING = Binding("shop", "web-1", "u1", "n1")


def bound(answer: Any) -> list[Any]:
    """The requests of a binding."""
    sent: list[Any] = []

    async def record(request: web.Request) -> web.StreamResponse:
        sent.append((request.method, request.path, await request.json()))
        result: web.StreamResponse = await answer(request)
        return result

    async def run() -> None:
        async with api_server(record) as fake:
            binder = PodBinder(fake.connection)
            try:
                await asyncio.to_thread(binder, BINDING)
            finally:
                await asyncio.to_thread(binder.close)

    asyncio.run(run())
    return sent


def test_a_pod_is_bound_by_its_uid():
    assert bound(json_answer({"kind": "Status", "status": "Success"}, 201)) == [
        ("POST", "/api/v1/namespaces/shop/pods/web-1/binding", {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web-1", "namespace": "shop", "uid": "u1"},
            "target": {"kind": "Node", "name": "n1"}})]


def test_a_pod_that_is_on_the_node_already_is_bound():
    assert len(bound(json_answer(refusal(409, "Conflict", 'pod web-1 is already assigned to node "n1"'), 409))) == 1


@pytest.mark.parametrize(("code", "message", "advice"), [
    (403, "no", "grant `create` on `pods/binding`"),
    (404, 'pods "web-1" not found', "nothing: kube-scheduler decides"),
    (409, 'pod web-1 is already assigned to node "n2"', "nothing: kube-scheduler decides"),
    (409, "the UID in the precondition (u1) does not match the UID in record (u2)", "nothing: kube-scheduler decides"),
])
def test_a_pod_that_cannot_be_bound_says_why(code: int, message: str, advice: str):
    with pytest.raises(PolicyError) as caught:
        bound(json_answer(refusal(code, "", message), code))
    (problem,) = caught.value.problems
    assert (problem.message, problem.help.startswith(advice)) == (f"shop/web-1: {message}", True)


def test_a_server_that_does_not_listen_is_a_fault():
    binder = PodBinder(Connection("http://127.0.0.1:1"))
    try:
        with pytest.raises(PolicyError, match="shop/web-1: nobody listens there"):
            binder(BINDING)
    finally:
        binder.close()
