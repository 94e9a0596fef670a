"""Policies of an API server are followed in a thread, and status is written back by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.leader_election import LeaseSettings
from koordpolicy.engine.client.writes import WriteStatus
from koordpolicy.engine.reload.api_source import ApiSource, ConfigMapSource, ObjectSource
from koordpolicy.engine.reload.follow import PolicyFollower
from tests.engine.client.fake_api_server import Json, api_server, bookmark, json_answer, refused, watched

from .conftest import POLICY

GROUP = "/apis/policy.koordinator.sh/v1alpha2"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def by_path(answers: Mapping[str, Answer]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await answers[request.path](request)

    return answer


def configmap(version: int, text: str) -> Json:
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": str(version)},
            "data": {"a.yaml": text}}


def document(kind: str, name: str) -> Json:
    return {"kind": kind, "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "3", "generation": 1},
            "spec": {}}


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def following(connection: Connection, *sources: ApiSource) -> AsyncIterator[PolicyFollower]:
    """A follower that has not started; it ends with the context, whatever becomes of the test."""
    follower = PolicyFollower(sources, connection)
    try:
        yield follower
    finally:
        await asyncio.to_thread(follower.close)


def texts(source: ApiSource) -> dict[str, str]:
    version = source.read().version
    assert version is not None
    return {name: file.text for name, file in version.files.items()}


def test_one_configmap_is_listed_and_followed_without_the_right_to_see_others():
    async def run() -> None:
        changed: list[None] = []
        frames = watched(("ADDED", configmap(4, POLICY)), bookmark(5, initial_end=True),
                         ("MODIFIED", configmap(6, "# none")))
        source = ConfigMapSource("ns", "p")
        async with api_server(frames) as fake, following(fake.connection, source) as follower:
            follower.on_change(lambda: changed.append(None))
            assert not source.synced
            follower.start()
            assert await asyncio.to_thread(follower.wait)
            await until(lambda: texts(source) == {"a.yaml": "# none"} and len(changed) > 1)
            assert [(method, path, query["fieldSelector"]) for method, path, query in fake.requests] == [
                ("GET", "/api/v1/namespaces/ns/configmaps", "metadata.name=p")]
            assert len(changed) == 2

    asyncio.run(run())


def test_all_kinds_are_followed_and_status_is_patched_where_the_uid_is_the_same():
    async def run() -> None:
        patches: list[tuple[str, str, Any]] = []

        async def patch(request: web.Request) -> web.StreamResponse:
            patches.append((request.path, request.content_type, await request.json()))
            return web.json_response({})

        objects = {"schedulerplugins": "SchedulerPlugin", "qosplugins": "QoSPlugin",
                   "deschedulerplugins": "DeschedulerPlugin", "policyparams": "PolicyParams"}
        answers = {f"{GROUP}/{plural}": watched(("ADDED", document(kind, "a")), bookmark(5, initial_end=True))
                   for plural, kind in objects.items()}
        source = ObjectSource()
        async with api_server(by_path({**answers, f"{GROUP}/qosplugins/a/status": patch})) as fake, following(
                fake.connection, source) as follower:
            follower.start()
            assert await asyncio.to_thread(follower.wait)
            assert sorted(texts(source)) == sorted(f"{kind}/a" for kind in objects.values())
            future = follower.write_status("QoSPlugin", "a", "u-a", {"hash": "x", "errors": None})
            assert (await asyncio.wrap_future(future)).status is WriteStatus.DONE
            assert patches == [(f"{GROUP}/qosplugins/a/status", "application/merge-patch+json", {
                "metadata": {"uid": "u-a"}, "status": {"hash": "x", "errors": None}})]

    asyncio.run(run())


def test_nobody_waits_for_kinds_that_are_not_installed():
    async def run() -> None:
        source = ObjectSource()
        async with api_server(refused(404, "NotFound")) as fake, following(fake.connection, source) as follower:
            follower.start()
            async with asyncio.timeout(60):
                assert not await asyncio.to_thread(follower.wait, 3600)
            stamp = source.read().stamp
            assert (stamp.reason, stamp.help[:16]) == ("the cluster does not have it", "install the kind")

    asyncio.run(run())


def test_a_server_that_does_not_answer_is_waited_for_a_while():
    async def run() -> None:
        async with api_server(refused(500)) as fake, following(
                fake.connection, ConfigMapSource("ns", "p")) as follower:
            follower.start()
            assert not await asyncio.to_thread(follower.wait, 0.1)

    asyncio.run(run())


def test_the_status_of_many_objects_does_not_delay_the_lease():
    async def run() -> None:
        stored: dict[str, Any] = {}
        written: list[str] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.method == "PATCH":
                written.append(request.path)
                return web.json_response({})
            if request.method == "GET" and not stored:
                return web.json_response({"code": 404}, status=404)
            if request.method != "GET":
                stored.update(json.loads(await request.text()))
            return web.json_response(stored)

        async with api_server(answer) as fake, following(fake.connection) as follower:
            follower.start()
            for number in range(2_000):  # they take half a minute at least
                follower.write_status("QoSPlugin", f"p{number}", "u", {"hash": "x"})
            follower.elect(LeaseSettings("ns", "l", "me"))
            await until(follower.leads)
            assert len(written) < 2_000

    asyncio.run(run())


def test_a_leadership_that_was_lost_is_tried_again():
    async def run() -> None:
        stored: dict[str, Any] = {}
        writable = True

        async def lease(request: web.Request) -> web.StreamResponse:
            if request.method == "GET":
                return web.json_response(stored or {"code": 404}, status=200 if stored else 404)
            if not writable:
                return web.json_response({"code": 500}, status=500)
            stored.update(json.loads(await request.text()))
            return web.json_response(stored)

        async with api_server(lease) as fake, following(fake.connection) as follower:
            follower.start()
            follower.elect(LeaseSettings("ns", "l", "me", lease_s=1.0, renew_s=0.3, retry_s=0.05))
            await until(follower.leads)
            writable = False
            await until(lambda: not follower.leads())
            writable = True
            await until(follower.leads)

    asyncio.run(run())


def test_the_holder_of_the_lease_leads_and_releases_it_at_the_end():
    async def run() -> None:
        stored: dict[str, Any] = {}

        async def lease(request: web.Request) -> web.StreamResponse:
            if request.method == "GET" and not stored:
                return web.json_response({"code": 404}, status=404)
            if request.method != "GET":
                stored.update(json.loads(await request.text()))
            return web.json_response(stored)

        answers = {f"/apis/coordination.k8s.io/v1/namespaces/ns/leases{name}": lease for name in ("", "/l")}
        empty = json_answer({"metadata": {"resourceVersion": "1"}, "items": []})
        async with api_server(by_path({**answers, "/api/v1/namespaces/ns/configmaps": empty})) as fake, following(
                fake.connection, ConfigMapSource("ns", "p")) as follower:
            follower.start()
            assert not follower.leads()
            follower.elect(LeaseSettings("ns", "l", "me"))
            await until(follower.leads)
            assert stored["spec"]["holderIdentity"] == "me"
            await asyncio.to_thread(follower.close)
            assert (stored["spec"]["holderIdentity"], follower.leads()) == ("", False)

    asyncio.run(run())
