"""Readers of a server's endpoints are authenticated and authorized by an API server."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.serving.access import DelegatedAccess
from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health
from koordpolicy.engine.serving.instruments import MetricSpec, MetricsRegistry, MetricType
from koordpolicy.engine.serving.listeners import serving, tls_context
from koordpolicy.engine.serving.reviews import CacheTimes, Reviews

PROMETHEUS = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "7",
              "groups": ["system:serviceaccounts", "system:authenticated"], "extra": {"pod": ["p-0"]}}


class FakeReviews:
    """An API server that knows the token `good`, and lets Prometheus and one group read."""

    def __init__(self) -> None:
        self.reviews: list[tuple[str, Any]] = []
        self.allowed = True
        self.down = False

    async def review(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        self.reviews.append((body["kind"], body["spec"]))
        if self.down:
            return web.json_response({"kind": "Status", "status": "Failure", "code": 503}, status=503)
        if body["kind"] == "TokenReview":
            good = body["spec"]["token"] == "good"
            status = {"authenticated": True, "user": PROMETHEUS} if good else {"error": "invalid token"}
        else:
            known = body["spec"]["user"] == PROMETHEUS["username"] or "monitors" in body["spec"]["groups"]
            status = {"allowed": self.allowed and known, "reason": "" if known else "no role"}
        return web.json_response(body | {"status": status}, status=201)


@asynccontextmanager
async def served(reviews: FakeReviews, now: list[float], times: CacheTimes | None = None, **options: Any):
    """Yield the URL of a server whose metrics are protected."""
    api = web.Application()
    for path in ("authentication.k8s.io/v1/tokenreviews", "authorization.k8s.io/v1/subjectaccessreviews"):
        api.router.add_post(f"/apis/{path}", reviews.review)
    registry = MetricsRegistry()
    registry.counter(MetricSpec("some_total", MetricType.COUNTER, "Some"))
    async with serving(api, "127.0.0.1", 0, None) as address:
        reviews_of = Reviews(lambda: Transport(Connection(address)), times=times, clock=lambda: now[0])
        access = DelegatedAccess(reviews_of, **options)
        endpoints = OperationEndpoints(Health({"healthz": [], "livez": [], "readyz": []}), registry, access=access,
                                       configuration=lambda: {"kind": "Some"})
        app = web.Application()
        endpoints.add_to(app)
        async with serving(app, "127.0.0.1", 0, None) as url:
            yield url
        endpoints.close()


def asked(reviews: FakeReviews, *requests: tuple[str, str | None], at: list[float] | None = None, **options: Any):
    """The statuses and texts of requests for a path with a token, one second of `at` after the other."""

    async def run() -> list[tuple[int, str]]:
        now, found = [0.0], []
        async with served(reviews, now, **options) as url, aiohttp.ClientSession() as session:
            for number, (path, token) in enumerate(requests):
                now[0] = at[number] if at else 0.0
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                async with session.get(url + path, headers=headers) as response:
                    found.append((response.status, await response.text()))
        return found

    return asyncio.run(run())


def test_probes_are_answered_to_everybody():
    reviews = FakeReviews()
    assert asked(reviews, ("/healthz", None), ("/livez", None), ("/readyz", "bad"), ("/readyz/ping", None)) == [
        (200, "ok")] * 4
    assert reviews.reviews == []


def test_a_known_user_with_a_role_reads_metrics_and_configuration():
    reviews = FakeReviews()
    (metrics, configuration) = asked(reviews, ("/metrics", "good"), ("/configz", "good"))
    assert metrics[0] == 200
    assert "some_total 0.0" in metrics[1]
    assert configuration == (200, '{"componentconfig": {"kind": "Some"}}')
    user = {"user": PROMETHEUS["username"], "uid": "7", "groups": PROMETHEUS["groups"], "extra": {"pod": ["p-0"]}}
    assert reviews.reviews == [
        ("TokenReview", {"token": "good"}),
        ("SubjectAccessReview", user | {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
        ("SubjectAccessReview", user | {"nonResourceAttributes": {"path": "/configz", "verb": "get"}}),
    ]


def test_a_token_that_is_not_known_is_refused():
    reviews = FakeReviews()
    assert asked(reviews, ("/metrics", "bad")) == [
        (401, '{"error": "the API server does not accept the token"}')]
    assert [kind for kind, _ in reviews.reviews] == ["TokenReview"]


def test_nobody_is_somebody_who_needs_a_role():
    reviews = FakeReviews()
    assert asked(reviews, ("/metrics", None)) == [
        (403, '{"error": "user \\"system:anonymous\\" cannot get path \\"/metrics\\": no role"}')]
    assert reviews.reviews[0][1]["groups"] == ["system:unauthenticated"]


def test_answers_are_cached_for_ten_seconds():
    reviews = FakeReviews()
    asked(reviews, ("/metrics", "good"), ("/metrics", "good"), ("/metrics", "good"), at=[0.0, 9.9, 10.0])
    assert [kind for kind, _ in reviews.reviews] == ["TokenReview", "SubjectAccessReview"] * 2


def test_a_refusal_is_cached_for_a_time_of_its_own():
    reviews = FakeReviews()
    reviews.allowed = False
    asked(reviews, *[("/metrics", "good")] * 3, at=[0.0, 1.0, 2.0], times=CacheTimes(100.0, 100.0, 2.0))
    assert [kind for kind, _ in reviews.reviews] == ["TokenReview"] + ["SubjectAccessReview"] * 2


def test_without_the_api_server_nobody_is_let_in_and_nothing_is_cached():
    reviews = FakeReviews()
    reviews.down = True
    assert [status for status, _ in asked(reviews, ("/metrics", "good"), ("/metrics", "good"))] == [503, 503]
    assert len(reviews.reviews) == 2


def test_paths_may_be_opened_to_everybody():
    reviews = FakeReviews()
    found = asked(reviews, ("/metrics/slis", None), ("/healthz", None), always_allowed=("/metrics*",))
    assert [status for status, _ in found] == [200, 403]


@pytest.mark.parametrize(("organization", "status"), [("monitors", 200), ("others", 403)])
def test_a_client_certificate_names_user_and_groups(tmp_path, organization: str, status: int):
    authority = trustme.CA()
    served_by, shown = authority.issue_cert("127.0.0.1"), authority.issue_cert(
        common_name="probe", organization_name=organization)
    served_by.private_key_pem.write_to_path(tmp_path / "tls.key")
    served_by.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    reviews = FakeReviews()

    async def run() -> int:
        api = web.Application()
        api.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", reviews.review)
        async with serving(api, "127.0.0.1", 0, None) as address:
            endpoints = OperationEndpoints(
                Health({"livez": []}), MetricsRegistry(),
                access=DelegatedAccess(Reviews(lambda: Transport(Connection(address)))))
            app = web.Application()
            endpoints.add_to(app)
            tls = tls_context(*(str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")), optional=True)
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
            shown.configure_cert(context)
            async with serving(app, "127.0.0.1", 0, tls) as url, aiohttp.ClientSession() as session, session.get(
                    f"{url}/metrics", ssl=context) as response:
                return response.status

    assert asyncio.run(run()) == status
    assert (reviews.reviews[0][1]["user"], reviews.reviews[0][1]["groups"]) == (
        "probe", [organization, "system:authenticated"])
