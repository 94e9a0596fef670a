from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.transport import ApiError, Status, Transport
from koordpolicy.engine.manager.certificate_rotation import (
    CertificateFault,
    CertificateRotation,
    CertificateSettings,
)
from koordpolicy.engine.manager.certificates import Certificates, renew

NOW = datetime.now(UTC)
NAME = "koord-policy-manager.ns.svc"
SETTINGS = CertificateSettings(namespace="ns", secret="tls", configuration="hooks", names=(NAME,))
SECRET = "/api/v1/namespaces/ns/secrets/tls"
HOOKS = tuple(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/hooks" for kind in (
    "mutating", "validating"))


class ApiServer(Transport):
    """Objects by path; merges patches as far as these tests need it."""

    def __init__(self) -> None:
        super().__init__(Connection("http://127.0.0.1:9"))
        self.objects: dict[str, Any] = {path: {"webhooks": [
            {"name": "a", "clientConfig": {"service": {"name": "s"}}},
            {"name": "b", "clientConfig": {"caBundle": "b2xk"}},
        ]} for path in HOOKS}
        self.writes: list[tuple[str, str]] = []
        self.refusals: dict[str, int] = {}
        self.version = 0

    async def request(self, method: str, path: str, *, body: bytes | None = None, **more: Any) -> bytes:
        code = self.refusals.get(f"{method} {path}")
        if code is None and path not in self.objects and method != "POST":
            code = 404
        if code is not None:
            raise ApiError(code, Status(code=code, message="refused"))
        if method == "GET":
            return json.dumps(self.objects[path]).encode()
        self.writes.append((method, path))
        found = json.loads(body or b"")
        if method == "POST":
            path = f"{path}/{found['metadata']['name']}"
            self.objects[path] = found
        elif path == SECRET:
            if found["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
                raise ApiError(409, Status(code=409, message="changed"))
            self.objects[path]["data"] |= found["data"]
        else:
            assert more["content_type"] == "application/strategic-merge-patch+json"
            for changed in found["webhooks"]:
                [known] = [each for each in self.objects[path]["webhooks"] if each["name"] == changed["name"]]
                known["clientConfig"] |= changed["clientConfig"]
        self.version += 1
        self.objects[path].setdefault("metadata", {})["resourceVersion"] = str(self.version)
        return b"{}"

    def stored(self) -> Certificates:
        data = {key: base64.b64decode(value) for key, value in self.objects[SECRET]["data"].items()}
        return Certificates(data["ca.crt"], data["ca.key"], data["tls.crt"], data["tls.key"])

    def bundles(self) -> set[str]:
        return {each["clientConfig"]["caBundle"] for path in HOOKS for each in self.objects[path]["webhooks"]}


class Replica:
    """A manager's rotation with its own clock and leadership; `meanwhile` runs where it waits for the API server."""

    def __init__(self, api: ApiServer, *, leads: bool = True) -> None:
        self.leads = leads
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.now = NOW
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.rotation = CertificateRotation(
            api, SETTINGS, self.context, leads=lambda: self.leads, now=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        if self.meanwhile is not None:
            await self.meanwhile()

    def check(self) -> None:
        asyncio.run(self.rotation.check())

    def certificate(self) -> str:
        """The certificate that clients get."""
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server)
        peer = self.context.wrap_bio(to_server, to_client, server_side=True)
        for each in (client, peer, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                each.do_handshake()
        return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"")


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


def test_the_leader_makes_the_secret_and_publishes_its_authority(api: ApiServer):
    replica = Replica(api)
    assert (replica.rotation.ready, replica.certificate() != "") == (False, True)
    replica.check()
    assert api.writes == [*(("PATCH", path) for path in HOOKS), ("POST", "/api/v1/namespaces/ns/secrets")]
    assert api.objects[SECRET]["type"] == "kubernetes.io/tls"
    assert api.bundles() == {base64.b64encode(api.stored().bundle).decode()}
    assert api.objects[HOOKS[0]]["webhooks"][0]["clientConfig"]["service"] == {"name": "s"}
    assert (replica.rotation.ready, replica.certificate()) == (True, api.stored().certificate.decode())


def test_while_nothing_is_due_nothing_is_written(api: ApiServer):
    replica = Replica(api)
    replica.check()
    api.writes.clear()
    replica.now += timedelta(days=200)
    replica.check()
    assert api.writes == []


def test_an_authority_that_somebody_has_removed_is_published_again(api: ApiServer):
    replica = Replica(api)
    replica.check()
    api.writes.clear()
    del api.objects[HOOKS[1]]["webhooks"][0]["clientConfig"]["caBundle"]
    replica.check()
    assert (api.writes, len(api.bundles())) == ([("PATCH", HOOKS[1])], 1)


def test_another_replica_serves_what_the_leader_has_stored_and_writes_nothing(api: ApiServer):
    leader, other = Replica(api), Replica(api, leads=False)
    with pytest.raises(CertificateFault, match="the manager that holds the Lease makes it"):
        other.check()
    assert (other.rotation.ready, api.writes) == (False, [])
    leader.check()
    api.writes.clear()
    other.check()
    assert (other.certificate(), api.writes) == (leader.certificate(), [])
    leader.now += timedelta(days=300)
    leader.check()
    other.check()
    assert other.certificate() == leader.certificate() == api.stored().certificate.decode()
    assert len(api.writes) == 1


def test_a_broken_secret_is_mended_by_the_leader_and_left_by_others(api: ApiServer):
    leader, other = Replica(api), Replica(api, leads=False)
    leader.check()
    other.check()
    served = other.certificate()
    api.objects[SECRET]["data"]["tls.key"] = "!"
    with pytest.raises(CertificateFault):
        other.check()
    assert (other.certificate(), other.rotation.ready) == (served, True)
    leader.check()
    other.check()
    assert other.certificate() == api.stored().certificate.decode() != served


def test_a_secret_that_another_leader_has_changed_meanwhile_is_not_overwritten(api: ApiServer):
    leader = Replica(api)
    leader.check()
    before = api.stored()
    leader.now += timedelta(days=300)
    api.refusals[f"PATCH {SECRET}"] = 409
    with pytest.raises(CertificateFault, match="cannot be written"):
        leader.check()
    assert (api.stored(), leader.certificate()) == (before, before.certificate.decode())


@pytest.mark.parametrize(("refused", "code", "message"), [
    (f"GET {SECRET}", 403, "the Secret `tls` cannot be read: "),
    ("POST /api/v1/namespaces/ns/secrets", 403, "grant it on `secrets`"),
    (f"PATCH {HOOKS[0]}", 403, "grant it on `mutatingwebhookconfigurations`"),
    (f"GET {HOOKS[1]}", 404, "there is no ValidatingWebhookConfiguration `hooks`")])
def test_a_refusal_says_what_to_do_and_is_tried_again(api: ApiServer, refused: str, code: int, message: str):
    replica = Replica(api)
    api.refusals[refused] = code
    with pytest.raises(CertificateFault) as raised:
        replica.check()
    assert (message in str(raised.value), replica.rotation.ready) == (True, False)
    api.refusals.clear()
    replica.check()
    assert replica.rotation.ready


def test_it_looks_soon_until_there_is_a_certificate_and_again_once_it_leads(
    api: ApiServer, caplog: pytest.LogCaptureFixture,
):
    leads: list[bool] = []

    async def no_time(_: float) -> None:
        """The loop does nothing else meanwhile."""

    async def run() -> None:
        looks = asyncio.Event()

        def may_write() -> bool:
            leads.append(len(leads) >= 3)
            looks.set()
            return leads[-1]

        rotation = CertificateRotation(
            api, SETTINGS, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), leads=may_write, soon_s=0.001, check_s=3600,
            sleep=no_time)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(rotation.run())
            while not rotation.ready:
                await looks.wait()
                looks.clear()
            rotation.wake()
            await looks.wait()
            running.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (leads, caplog.text.count("has none yet")) == ([False, False, False, True, True], 1)


def test_certificates_in_a_secret_of_others_are_used_if_the_manager_would_have_made_them(api: ApiServer):
    made = renew(None, (NAME,), NOW)
    parts = {"ca.crt": made.bundle, "ca.key": made.authority_key, "tls.crt": made.certificate, "tls.key": made.key}
    api.objects[SECRET] = {"metadata": {"resourceVersion": "1"}, "data": {
        key: base64.b64encode(value).decode() for key, value in parts.items()} | {"more": "eA=="}}
    replica = Replica(api)
    replica.check()
    assert ([path for _, path in api.writes], replica.certificate()) == ([*HOOKS], made.certificate.decode())


# Two replicas, and certificate and authority that are due at once


class Watched(ApiServer):
    """After each write, every certificate that is stored or served must be trusted by what was in every `caBundle`."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas: list[Replica] = []
        self.looks = 0

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        answer = await super().request(method, path, **more)
        if method != "GET" and SECRET in self.objects:
            self.look()
        return answer

    def look(self) -> None:
        self.looks += 1
        shown = [self.stored().certificate.decode(), *(each.certificate() for each in self.replicas)]
        for bundle in self.bundles():
            issuers = {each.subject for each in x509.load_pem_x509_certificates(base64.b64decode(bundle))}
            for each in shown:
                assert x509.load_pem_x509_certificate(each.encode()).issuer in issuers


def pair() -> tuple[Watched, Replica, Replica]:
    """Return an API server and two replicas that serve its certificate, the first of which leads."""
    api = Watched()
    leader, other = Replica(api), Replica(api, leads=False)
    leader.check()
    other.check()
    api.replicas = [leader, other]
    return api, leader, other


def authorities(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)


def test_if_both_are_due_at_once_the_known_authority_signs_and_a_new_one_is_only_published():
    api, leader, other = pair()
    [old] = authorities(api.stored().bundle)
    leader.now += timedelta(days=2440)  # two thirds of ten years are 2433 days
    for minute in range(3):
        leader.check()
        x509.load_pem_x509_certificate(api.stored().certificate).verify_directly_issued_by(old)
        assert len(authorities(api.stored().bundle)) == min(minute + 1, 2)
        other.check()
        api.look()
        leader.now += timedelta(minutes=1)
    [new, kept] = authorities(api.stored().bundle)
    assert (kept, leader.certificate(), other.certificate()) == (old, *[api.stored().certificate.decode()] * 2)
    leader.now += timedelta(days=300)
    leader.check()
    x509.load_pem_x509_certificate(api.stored().certificate).verify_directly_issued_by(new)
    other.check()
    api.look()
    assert api.looks > 5


def lost(api: Watched) -> None:
    del api.objects[SECRET]


def broken(api: Watched) -> None:
    api.objects[SECRET]["data"]["ca.key"] = "!"


@pytest.mark.parametrize("begin_anew", [lost, broken])
def test_a_new_authority_that_must_sign_at_once_is_known_first_and_the_old_one_until_all_serve_what_it_signed(
    begin_anew: Callable[[Watched], None],
):
    api, leader, other = pair()
    before, [old] = other.certificate(), authorities(api.stored().bundle)
    begin_anew(api)
    seen: list[tuple[bool, int]] = []

    async def looks() -> None:
        """Another replica looks while the API server gets to see the new bundle: nothing of it is in the Secret yet."""
        with contextlib.suppress(CertificateFault):
            await other.rotation.check()
        [bundle] = api.bundles()
        seen.append((other.certificate() == before, len(authorities(base64.b64decode(bundle)))))

    leader.meanwhile = looks
    leader.now += timedelta(days=1)
    leader.check()
    assert seen == [(True, 2)]
    assert leader.certificate() == api.stored().certificate.decode() != before
    api.look()  # the other replica serves the old certificate still
    leader.now += timedelta(minutes=2)
    leader.check()
    other.check()
    api.look()
    leader.now += timedelta(minutes=10)
    leader.check()
    [bundle] = api.bundles()
    assert old not in authorities(base64.b64decode(bundle))
    assert base64.b64decode(bundle) == api.stored().bundle


def test_what_cannot_be_published_is_not_stored_where_others_would_serve_it():
    api, leader, other = pair()
    before = api.stored()
    leader.now += timedelta(days=3400)  # the old authority does not outlive another certificate
    api.refusals[f"PATCH {HOOKS[1]}"] = 403
    with pytest.raises(CertificateFault, match="cannot be patched"):
        leader.check()
    other.check()
    assert (api.stored(), other.certificate()) == (before, before.certificate.decode())
    api.refusals.clear()
    leader.check()
    other.check()
    api.look()
    assert len(authorities(api.stored().bundle)) == 2
