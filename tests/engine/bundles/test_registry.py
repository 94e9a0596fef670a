"""The client speaks the distribution specification with a registry, and believes nothing that it does not verify."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.logins import Logins
from koordpolicy.engine.bundles.manifest import Descriptor
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.registry import RegistryAccess, RegistryClient
from tests.oci_registry import TOKEN, OciRegistry, Reply, Request, digest_of, oci_registry
from tests.ports import reserved_port

CONTENT = b"a blob"
BLOB = Descriptor.of("x/y", CONTENT)
MANIFEST = b'{"schemaVersion":2}'


@pytest.fixture
def client(reference: BundleReference, access: RegistryAccess) -> RegistryClient:
    return RegistryClient(reference, access, write=True)


@pytest.fixture
def filled(registry: OciRegistry) -> OciRegistry:
    registry.blobs[BLOB.digest] = CONTENT
    registry.manifests["team/policies:v1"] = MANIFEST
    return registry


def fault_of(client: RegistryClient, *, blob: bool = False) -> BundleFault:
    with pytest.raises(BundleFault) as refused:
        _ = client.blob(BLOB) if blob else client.manifest("v1")
    return refused.value


def message(registry: OciRegistry, why: str) -> str:
    return f"the registry `{registry.host}`: {why}"


def test_what_is_stored_is_found_by_tag_and_digest(client: RegistryClient, registry: OciRegistry):
    client.put_blob(CONTENT)
    client.put_blob(CONTENT)
    client.put_manifest("v1", MANIFEST)
    assert (client.blob(BLOB), client.manifest("v1"), client.manifest(digest_of(MANIFEST)), client.digest("v1")) == (
        CONTENT, MANIFEST, MANIFEST, digest_of(MANIFEST))
    assert [each.method for each in registry.requests] == [
        "HEAD", "POST", "PUT", "HEAD", "PUT", "GET", "GET", "GET", "HEAD"]


def test_what_is_not_there_is_none(client: RegistryClient):
    assert (client.manifest("v1"), client.digest("v1")) == (None, None)
    with pytest.raises(BundleFault, match="it does not have the blob"):
        client.blob(BLOB)


def test_without_its_header_a_digest_is_computed_from_the_manifest(client: RegistryClient, filled: OciRegistry):
    filled.digest_header = False
    assert client.digest("v1") == digest_of(MANIFEST)


def test_an_exchanged_content_is_refused(client: RegistryClient, filled: OciRegistry):
    filled.blobs[BLOB.digest] = b"b blob"
    other = fault_of(client, blob=True)
    assert (other.problem.message, other.problem.code, other.passing) == (message(
        filled, f"the blob {BLOB.digest} has another digest: {digest_of(b'b blob')}"), "digest-mismatch", False)
    filled.manifests[f"team/policies@{BLOB.digest}"] = MANIFEST
    with pytest.raises(BundleFault, match="has another digest"):
        client.manifest(BLOB.digest)


def test_an_answer_is_never_longer_than_expected(client: RegistryClient, filled: OciRegistry):
    filled.blobs[BLOB.digest] = CONTENT * 1_000_000
    assert fault_of(client, blob=True).problem.message == message(
        filled, "it sends more than the 6 bytes that are expected")
    filled.manifests["team/policies:v1"] = b" " * ((256 << 10) + 1)
    assert fault_of(client).problem.message == message(filled, "it sends more than the 262,144 bytes that are expected")


def test_an_answer_that_is_cut_off_passes(client: RegistryClient, filled: OciRegistry):
    filled.fault = lambda _: Reply(200, CONTENT[:4], cut=2)
    cut = fault_of(client, blob=True)
    assert (cut.problem.message, cut.passing) == (message(filled, "its answer ends 2 bytes early"), True)
    filled.fault = lambda _: Reply(200, CONTENT[:4])
    short = fault_of(client, blob=True)
    assert (short.problem.message, short.passing) == (
        message(filled, f"it sent 4 of 6 bytes of {BLOB.digest}"), True)


@pytest.mark.parametrize(("reply", "why", "retry_after_s"), [
    (Reply(429, b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}', {"Retry-After": "17"}),
     "it answered 429, slow down", 17.0),
    (Reply(503, b"<html>", {"Retry-After": "99999999"}), "it answered 503", 3600.0),
    (Reply(500, b'{"errors":[]}', {"Retry-After": "soon"}), "it answered 500", 0.0),
    (Reply(502, b'{"errors":[7]}', {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}), "it answered 502", 0.0),
    (Reply(504, b"[" * 100_000), "it answered 504", 0.0),
])
def test_a_busy_registry_says_when_to_come_back(
    client: RegistryClient, registry: OciRegistry, reply: Reply, why: str, retry_after_s: float,
):
    registry.fault = lambda _: reply
    busy = fault_of(client)
    assert (busy.problem.message, busy.passing, busy.retry_after_s) == (message(registry, why), True, retry_after_s)


def test_a_passing_fault_is_tried_again_as_often_as_permitted(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry,
):
    waits: list[float] = []
    replies = [Reply(503), Reply(429, headers={"Retry-After": "9"})]
    filled.fault = lambda _: replies.pop(0) if replies else None
    client = RegistryClient(reference, replace(access, attempts=3, sleep=waits.append))
    assert (client.manifest("v1"), waits) == (MANIFEST, [1.0, 9.0])
    filled.fault = lambda _: Reply(503)
    assert fault_of(client).problem.message == message(filled, "it answered 503")
    assert len(waits) == 4


def test_other_answers_are_faults_that_stay(client: RegistryClient, registry: OciRegistry):
    registry.fault = lambda _: Reply(418, b'{"errors":[{"code":"TEAPOT"}]}')
    other = fault_of(client)
    assert (other.problem.message, other.passing) == (message(registry, "it answered 418, TEAPOT"), False)


def test_a_registry_that_is_not_there_is_a_passing_fault(access: RegistryAccess):
    with reserved_port() as port:
        client = RegistryClient(BundleReference.parse(f"127.0.0.1:{port}/p:v1"), access)
        away = fault_of(client)
    assert (away.problem.message, away.passing) == (
        f"the registry `127.0.0.1:{port}`: it cannot be reached: connection refused", True)


# Logins.


def logged_in(access: RegistryAccess, directory: Path, registry: OciRegistry, **entry: str) -> RegistryAccess:
    (directory / "config.json").write_text(json.dumps({"auths": {registry.host: entry}}))
    return replace(access, logins=Logins({"DOCKER_CONFIG": str(directory)}))


ANN = base64.b64encode(b"ann:secret").decode()


@pytest.mark.parametrize("bearer", [True, False])
def test_a_login_is_used_when_the_registry_demands_one(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry, tmp_path: Path, bearer: bool,
):
    filled.login, filled.bearer = ("ann", "secret"), bearer
    client = RegistryClient(reference, logged_in(access, tmp_path, filled, auth=ANN))
    assert (client.manifest("v1"), client.blob(BLOB)) == (MANIFEST, CONTENT)
    tokens = [each for each in filled.requests if urlsplit(each.path).path == "/token"]
    assert [parse_qs(urlsplit(each.path).query) for each in tokens] == [
        {"service": ["tests"], "scope": ["repository:team/policies:pull"]}] * bearer


def test_a_client_that_pushes_demands_that_right(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, tmp_path: Path,
):
    registry.login = ("ann", "secret")
    RegistryClient(reference, logged_in(access, tmp_path, registry, auth=ANN), write=True).put_blob(CONTENT)
    (token,) = [each for each in registry.requests if "/token" in each.path]
    assert parse_qs(urlsplit(token.path).query)["scope"] == ["repository:team/policies:pull,push"]
    assert registry.blobs == {BLOB.digest: CONTENT}


def test_an_identity_token_is_exchanged(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry, tmp_path: Path,
):
    filled.login = ("ann", "secret")
    client = RegistryClient(reference, logged_in(access, tmp_path, filled, identitytoken=TOKEN))
    assert client.manifest("v1") == MANIFEST
    (token,) = [each for each in filled.requests if "/token" in each.path]
    assert (token.method, parse_qs(token.body.decode())) == ("POST", {
        "service": ["tests"], "scope": ["repository:team/policies:pull"], "grant_type": ["refresh_token"],
        "client_id": ["koord-policy"], "refresh_token": [TOKEN]})


def test_a_token_that_expired_is_renewed(client: RegistryClient, filled: OciRegistry):
    expired = iter([True, False, False])

    def fault(request: Request) -> Reply | None:
        if "/token" in request.path or not next(expired):
            return None
        return Reply(401, headers={"WWW-Authenticate": f'Bearer realm="{filled.url}/token"'})

    filled.fault = fault
    assert client.manifest("v1") == MANIFEST
    assert filled.requests[-1].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(("entry", "bearer"), [
    ({}, True), ({}, False), ({"auth": base64.b64encode(b"ann:wrong").decode()}, True),
    ({"auth": base64.b64encode(b"ann:wrong").decode()}, False), ({"identitytoken": "wrong"}, True),
])
def test_a_login_that_is_missing_or_wrong_leads_to_docker_login(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry, tmp_path: Path, entry: dict[str, str],
    bearer: bool,
):
    filled.login, filled.bearer = ("ann", "secret"), bearer
    refused = fault_of(RegistryClient(reference, logged_in(access, tmp_path, filled, **entry)))
    assert (refused.problem.message, refused.passing) == (
        message(filled, "it does not permit this user to pull from `team/policies` (401)"), False)
    assert f"log in with `docker login {filled.host}`" in refused.problem.help


def test_a_right_that_is_missing_is_named(client: RegistryClient, registry: OciRegistry):
    registry.fault = lambda _: Reply(403, b'{"errors":[{"code":"DENIED","message":"ask ann"}]}')
    assert fault_of(client).problem.message == message(
        registry, "it does not permit this user to push to `team/policies` (403, ask ann)")


@pytest.mark.parametrize("challenge", [
    "", "Negotiate", "Bearer", 'Bearer realm=""', 'Bearer realm="ftp://127.0.0.1/"', 'Bearer realm="http://example.org/"',
    'Bearer realm="http://u:p@127.0.0.1/"', 'Bearer realm="//["', 'Bearer realm="file:///etc/passwd"',
])
def test_a_challenge_never_leads_to_a_less_safe_place(client: RegistryClient, registry: OciRegistry, challenge: str):
    registry.fault = lambda _: Reply(401, headers={"WWW-Authenticate": challenge})
    assert fault_of(client).problem.message.startswith(f"the registry `{registry.host}`: it ")
    assert len(registry.requests) == 1


@pytest.mark.parametrize("token", [{}, {"token": 7}, {"token": "a\nb"}, [], "x"])
def test_a_token_that_is_none_is_not_sent(client: RegistryClient, registry: OciRegistry, token: object):
    registry.fault = lambda request: Reply(200, json.dumps(token).encode()) if "/token" in request.path else Reply(
        401, headers={"WWW-Authenticate": f'Bearer realm="{registry.url}/token"'})
    assert fault_of(client).problem.message == message(
        registry, "it does not permit this user to push to `team/policies` (401)")
    assert all("Authorization" not in each.headers for each in registry.requests)


# Redirects.


def test_blobs_are_followed_to_their_storage_without_the_login(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry, tmp_path: Path,
):
    filled.login = ("ann", "secret")
    with oci_registry() as storage:
        filled.storage, storage.blobs = storage.url, filled.blobs
        client = RegistryClient(reference, logged_in(access, tmp_path, filled, auth=ANN))
        assert client.blob(BLOB) == CONTENT
        (fetched,) = storage.requests
    assert "Authorization" not in fetched.headers


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_a_challenge_of_the_storage_gets_no_login(
    reference: BundleReference, access: RegistryAccess, filled: OciRegistry, tmp_path: Path, scheme: str,
):
    with oci_registry() as storage:
        filled.storage = storage.url
        storage.fault = lambda _: Reply(401, headers={"WWW-Authenticate": f'{scheme} realm="{storage.url}/token"'})
        client = RegistryClient(reference, logged_in(access, tmp_path, filled, auth=ANN))
        fault_of(client, blob=True)
        (fetched,) = storage.requests
    assert "Authorization" not in fetched.headers
    assert all("Authorization" not in each.headers for each in filled.requests)


@pytest.mark.parametrize("place", [
    "http://example.org/blob", "file:///etc/passwd", "ftp://127.0.0.1/x", "", "http://u:p@127.0.0.1/x", "http://[",
])
def test_a_redirect_never_leads_to_a_less_safe_place(client: RegistryClient, registry: OciRegistry, place: str):
    registry.fault = lambda _: Reply(307, headers={"Location": place})
    assert fault_of(client, blob=True).problem.message == message(
        registry, f"it redirects to `{place}`, which is not followed")
    assert len(registry.requests) == 1


def test_redirects_in_a_circle_end(client: RegistryClient, registry: OciRegistry):
    registry.fault = lambda request: Reply(302, headers={"Location": request.path})
    assert fault_of(client).problem.message == message(registry, "it redirects in circles")
    assert len(registry.requests) == 6


@pytest.mark.parametrize("place", ["", "http://example.org/upload", "file:///srv/upload"])
def test_an_upload_goes_to_no_less_safe_place(client: RegistryClient, registry: OciRegistry, place: str):
    registry.fault = lambda request: Reply(202, headers={"Location": place}) if request.method == "POST" else None
    with pytest.raises(BundleFault, match="it names no usable place for an upload"):
        client.put_blob(CONTENT)


# TLS.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[OciRegistry]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with oci_registry(context) as served:
        served.manifests["p:v1"] = MANIFEST
        yield served


def test_an_own_authority_is_trusted_where_it_is_named(
    secure: OciRegistry, access: RegistryAccess, authority: trustme.CA, tmp_path: Path,
):
    reference = BundleReference.parse(f"{secure.host}/p:v1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    assert RegistryClient(reference, replace(access, ca=tmp_path / "ca.pem")).manifest("v1") == MANIFEST
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    other = fault_of(RegistryClient(reference, replace(access, ca=tmp_path / "other.pem")))
    assert other.problem.message.startswith(message(secure, "its certificate is not trusted: "))
    assert other.problem.help == "name its authority with `--registry-ca`"


def test_tls_never_leads_to_plain_http(
    secure: OciRegistry, access: RegistryAccess, authority: trustme.CA, tmp_path: Path,
):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    secure.fault = lambda _: Reply(307, headers={"Location": "http://127.0.0.1:1/x"})
    client = RegistryClient(BundleReference.parse(f"{secure.host}/p:v1"), replace(access, ca=tmp_path / "ca.pem"))
    assert fault_of(client).problem.message == message(
        secure, "it redirects to `http://127.0.0.1:1/x`, which is not followed")


def test_tls_with_a_registry_that_speaks_plain_http_fails_with_advice(
    registry: OciRegistry, reference: BundleReference, access: RegistryAccess, authority: trustme.CA, tmp_path: Path,
):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    plain = fault_of(RegistryClient(reference, replace(access, ca=tmp_path / "ca.pem")))
    assert plain.problem.message.startswith(message(registry, "TLS with it fails: "))
    assert plain.problem.help == "it may speak plain HTTP, which is for loopback only"


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_an_authority_that_cannot_be_read_is_named(
    reference: BundleReference, access: RegistryAccess, tmp_path: Path, content: bytes | None,
):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleFault) as refused:
        RegistryClient(reference, replace(access, ca=path))
    assert refused.value.problem.message.startswith(f"`--registry-ca {path}` cannot be used: ")
