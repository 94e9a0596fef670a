from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from koordpolicy.engine.client.access_reviews import missing
from koordpolicy.engine.client.permissions import Permission
from koordpolicy.engine.client.transport import Transport

from .fake_api_server import api_server


def test_each_verb_is_asked_for_and_what_is_not_granted_is_returned():
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        attributes = (await request.json())["spec"]["resourceAttributes"]
        asked.append(attributes)
        return web.json_response({"status": {"allowed": attributes["verb"] != "watch"}}, status=201)

    pods, evict = Permission("", "pods", ("list", "watch"), "a"), Permission("", "pods/eviction", ("create",), "b")

    async def run() -> Any:
        async with api_server(answer) as fake, Transport(fake.connection, rate=0) as transport:
            return await missing(transport, [pods, evict], namespace="shop")

    assert asyncio.run(run()) == [(pods, "watch")]
    assert sorted(asked, key=str) == sorted([
        {"verb": "list", "resource": "pods", "namespace": "shop"},
        {"verb": "watch", "resource": "pods", "namespace": "shop"},
        {"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": "shop"}], key=str)
