"""The webhook server over HTTP: hostile bodies, answers, and changing certificates."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from koordpolicy.engine.manager.objects import ManagedObjects
from koordpolicy.engine.manager.operations import WEBHOOKS
from koordpolicy.engine.manager.webhooks import LONGEST_BODY, Webhooks
from koordpolicy.engine.serving.certificates import CertificateFiles
from koordpolicy.engine.serving.instruments import Counter
from koordpolicy.engine.serving.listeners import ListenerThread, tls_context
from tests.waiting import until

POD = {"metadata": {"name": "web", "labels": {"koordinator.sh/qosClass": "BE"}}, "spec": {"containers": [
    {"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}


class Server:
    def __init__(self) -> None:
        self.objects = ManagedObjects()
        self.synced = True
        self.requests = Counter(WEBHOOKS)
        self.url = ""

    def post(self, path: str, body: bytes, method: str = "POST") -> tuple[int, Any]:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else text

    def review(self, path: str, **request: Any) -> dict[str, Any]:
        status, answer = self.post(path, json.dumps({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "namespace": "shop", **request}}).encode())
        assert status == 200
        found: dict[str, Any] = answer["response"]
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    app = Webhooks(found.objects, synced=lambda: found.synced, requests=found.requests).app()
    listener = ListenerThread(app, "127.0.0.1", 0)
    found.url = listener.start()
    yield found
    listener.close()


def test_a_profile_changes_a_pod(server: Server):
    server.objects.put("ClusterColocationProfile", "p", json.dumps({
        "metadata": {"name": "p"}, "spec": {"labels": {"x": "y"}}}).encode())
    found = server.review("/mutate-pod", object=POD)
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    assert server.review("/mutate-pod", object=POD, operation="UPDATE") == {"uid": "u", "allowed": True}
    assert server.requests.read("/mutate-pod", "allowed") == 2


def test_refusals_are_answers_with_a_code(server: Server):
    found = server.review("/validate-pod", object={**POD, "spec": {"priority": 9500, **POD["spec"]}})
    assert found["status"]["code"] == 400
    assert "cannot be used in combination" in found["status"]["message"]
    assert server.requests.read("/validate-pod", "refused") == 1


@pytest.mark.parametrize(("path", "item", "message"), [
    ("/mutate-pod", {"metadata": {"labels": ["a"]}}, "`metadata.labels` must be an object, not a list"),
    ("/validate-pod", {"metadata": {"name": "x"}, "spec": {"containers": [{"resources": {"requests": 5}}]}},
     "`spec.containers[0].resources.requests` must be an object, not a number"),
    ("/validate-elasticquota", {"metadata": {"name": "x"}, "spec": {"min": {"cpu": "fast"}}},
     "`spec.min.cpu`: `fast` is not a quantity"),
])
def test_an_object_that_cannot_be_read_is_refused_with_its_fault(
    server: Server, path: str, item: dict[str, Any], message: str,
):
    found = server.review(path, object=item)
    assert (found["allowed"], found["status"]["code"]) == (False, 400)
    assert message in found["status"]["message"]


@pytest.mark.parametrize(("path", "body", "method", "status"), [
    ("/mutate-pod", b"{", "POST", 400), ("/mutate-pod", b"", "POST", 400), ("/mutate-pod", b"\x00" * 100, "POST", 400),
    ("/validate-pod", b"[" * 1_000_000, "POST", 400), ("/mutate-pod", b"", "GET", 405), ("/other", b"{}", "POST", 404),
    ("/mutate-pod", b" " * (LONGEST_BODY + 1), "POST", 413),
])
def test_hostile_requests_have_a_clear_status(
    server: Server, path: str, body: bytes, method: str, status: int, caplog: Any,
):
    assert server.post(path, body, method)[0] == status
    assert "Traceback" not in caplog.text


def test_before_the_cluster_is_known_the_failure_policy_decides(server: Server):
    server.synced = False
    status, answer = server.post("/mutate-pod", json.dumps({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE"}}).encode())
    assert (status, answer) == (503, {"error": "the state of the cluster is not known yet"})


def write_pair(authority: trustme.CA, directory: Path) -> trustme.LeafCert:
    issued = authority.issue_cert("127.0.0.1")
    (directory / "tls.crt").write_bytes(issued.cert_chain_pems[0].bytes())
    (directory / "tls.key").write_bytes(issued.private_key_pem.bytes())
    return issued


def served(url: str) -> str:
    place = urlsplit(url)
    return ssl.get_server_certificate((place.hostname or "", place.port or 0), timeout=60)


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_left(tmp_path: Path, caplog: Any):
    authority = trustme.CA()
    first = write_pair(authority, tmp_path)
    paths = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    context = tls_context(*paths)
    files = CertificateFiles(context, *paths)
    listener = ListenerThread(Webhooks(ManagedObjects(), synced=lambda: True).app(), "127.0.0.1", 0, context)
    url = listener.start()
    try:
        assert served(url).strip() == first.cert_chain_pems[0].bytes().decode().strip()
        assert files.reload() is False
        second = write_pair(authority, tmp_path)
        assert files.reload() is True
        assert served(url).strip() == second.cert_chain_pems[0].bytes().decode().strip()
        (tmp_path / "tls.crt").write_bytes(first.cert_chain_pems[0].bytes())  # without its key
        assert files.reload() is False
        assert "the new certificate cannot be used" in caplog.text
        assert served(url).strip() == second.cert_chain_pems[0].bytes().decode().strip()
    finally:
        listener.close()


@pytest.mark.parametrize("head", [
    b"Content-Length: 500\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc",
    b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
], ids=["ends early", "chunk ends early", "no gzip"])
def test_a_body_that_cannot_be_taken_whole_is_counted_and_no_failure_of_the_server(
    server: Server, caplog: pytest.LogCaptureFixture, head: bytes,
):
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
        connection.sendall(b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\n" + head)
        connection.shutdown(socket.SHUT_WR)
        until(lambda: server.requests.read("/mutate-pod", "malformed") == 1)

    assert server.post("/mutate-pod", b"{}")[0] == 400  # the log holds what the first one left
    assert not [each for each in caplog.records if each.exc_info]
