"""An API server that lacks something which the configuration needs is found at start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import LeaseSettings
from koordpolicy.engine.client.permissions import Permission
from koordpolicy.engine.descheduler.live.preflight import check_permissions
from koordpolicy.engine.source import PolicyError

EVICT = Permission("", "pods/eviction", ("create",), "to evict pods")
LEASE = LeaseSettings("system", "lock", "me")


@contextmanager
def server(*resources: str, denied: str = "", broken: bool = False) -> Iterator[Connection]:
    """An API server with these resources that denies a verb."""
    async def review(request: web.Request) -> web.Response:
        attributes = (await request.json())["spec"]["resourceAttributes"]
        return web.json_response({"status": {"allowed": attributes["verb"] != denied}}, status=500 if broken else 201)

    async def discovery(_: web.Request) -> web.Response:
        return web.json_response({"resources": [{"name": name} for name in resources]})

    async def serve() -> str:
        application = web.Application()
        application.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        application.router.add_get("/api/v1", discovery)
        runner = web.AppRunner(application, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        io.on_close(runner.cleanup)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    with IoThread() as io:
        yield Connection(io.submit(serve()).result(10))


def complaints(connection: Connection, lease: LeaseSettings | None = LEASE) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        check_permissions(connection, [EVICT], lease)
    return sorted(problem.message for problem in caught.value.problems)


def test_nothing_is_said_where_all_is_there():
    with server("pods", "pods/eviction") as connection:
        check_permissions(connection, [EVICT], LEASE)


def test_missing_rights_and_their_reasons_are_named():
    with server("pods/eviction", denied="create") as connection:
        assert complaints(connection) == [
            ("the API server does not permit to `create` leases.coordination.k8s.io in the namespace `system`: "
             "leader election"),
            "the API server does not permit to `create` pods/eviction cluster-wide: to evict pods"]


def test_a_missing_right_on_the_memory_is_named_with_its_namespace():
    with server("pods/eviction", denied="patch") as connection, pytest.raises(PolicyError) as caught:
        check_permissions(connection, [EVICT], LEASE, memory=("ours", "evictions"))
    assert [problem.message for problem in caught.value.problems] == [
        "the API server does not permit to `patch` configmaps in the namespace `ours`: the memory of useless evictions"]


def test_a_server_without_evictions_is_named():
    with server("pods") as connection:
        assert complaints(connection, None) == [
            "the API server does not support evictions: it has no resource `pods/eviction`"]
        check_permissions(connection, [], None)  # nothing is evicted


def test_a_server_that_does_not_answer_is_logged_only(caplog: pytest.LogCaptureFixture):
    with server(broken=True) as connection:
        check_permissions(connection, [EVICT], None)
    assert caplog.messages[0].startswith("the permissions could not be checked: ")
