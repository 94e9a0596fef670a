from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable

import pytest
from aiohttp import web

from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.cluster.sources.dump import Dumped, dump
from koordpolicy.engine.source import PolicyError
from tests.engine.client.fake_api_server import api_server

Answer = Callable[[web.Request], "asyncio.Future[web.StreamResponse]"]


def text(body: bytes | str, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body if isinstance(body, bytes) else body.encode(), status=status)

    return answer  # type: ignore[return-value]


def page(*names: str, more: str = "") -> Answer:
    items = [{"metadata": {"name": name}} for name in names]
    return text(json.dumps({"metadata": {"resourceVersion": "1", "continue": more}, "items": items}))


def dumped(*answers: Answer, kinds: tuple[str, ...] = ("Node",)) -> tuple[Dumped, str]:
    file = io.BytesIO()

    async def run() -> Dumped:
        async with api_server(*answers) as server, Transport(server.connection, rate=0) as transport:
            return await dump(transport, kinds, file)

    found = asyncio.run(run())
    return found, file.getvalue().decode()


def test_pages_become_one_list():
    found, content = dumped(page("a", "b", more="x"), page("c"))
    assert found.objects == {"Node": 3}
    assert json.loads(content) == {"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in "abc"]}
    assert found.bytes == len(content)


def test_a_list_that_expires_between_its_pages_is_written_again():
    gone = text(json.dumps({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}), 410)
    found, content = dumped(page("a", "b", more="x"), gone, page("b", more="y"), page("c"))
    assert found.objects == {"Node": 2}
    assert [item["metadata"]["name"] for item in json.loads(content)["items"]] == ["b", "c"]


def test_a_kind_that_is_forbidden_is_omitted_with_the_reason_of_the_server():
    forbidden = text(json.dumps({"kind": "Status", "status": "Failure", "code": 403,
                                 "message": 'namespaces is forbidden: User "u" cannot list resource'}), 403)
    found, content = dumped(page("a"), forbidden, kinds=("Node", "Namespace"))
    assert found.objects == {"Node": 1}
    assert found.omitted == {"Namespace": 'namespaces is forbidden: User "u" cannot list resource'}
    assert len(json.loads(content)["items"]) == 1
    with pytest.raises(PolicyError, match="nodes cannot be listed: namespaces is forbidden"):
        dumped(forbidden)


def test_an_empty_kind_writes_nothing_and_the_next_one_is_well_separated():
    found, content = dumped(page(), page("a"), page(), page("b"), kinds=("Node", "Pod", "Namespace", "Service"))
    assert found.objects == {"Node": 0, "Pod": 1, "Namespace": 0, "Service": 1}
    assert [item["kind"] for item in json.loads(content)["items"]] == ["Pod", "Service"]


@pytest.mark.parametrize("body", [b"<html>", b'{"items": 5}', b'{"items": [', b"\xff\xfe", b"[]", b"{}"])
def test_what_is_no_list_is_refused(body: bytes):
    with pytest.raises(PolicyError, match="answers with something else than a list of nodes"):
        dumped(text(body))


def test_an_odd_object_costs_itself():
    body = b'{"metadata": {}, "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "odd"}, "x": "\xff"}]}'
    found, content = dumped(text(body))
    assert [item["metadata"]["name"] for item in json.loads(content)["items"]] == ["a"]
    (fault,) = found.faults
    assert fault.startswith("Node `")
