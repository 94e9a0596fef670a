"""Each class of faults between a client and an API server has its own message and advice."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import warnings
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme
import yaml

from koordpolicy.engine.client.faults import of_exception, of_status
from koordpolicy.engine.cluster.sources.api import load
from koordpolicy.engine.source import PolicyError
from tests.ports import reserved_port


class Server:
    """Answers every request with the same status and body."""

    def __init__(self, status=200, body=b'{"items":[]}', context=None, by_path=None):
        self.asked = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                server.asked.append(
                    (
                        self.command, self.path.partition("?")[0],
                        json.loads(self.rfile.read(length)) if length else None,
                    ),
                )
                code, text = (by_path or {}).get(self.path.partition("?")[0], (status, body))
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET  # noqa: N815 - the names of `http.server`

            def log_message(self, *args):
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                """A client that does not trust the certificate goes away."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def kubeconfig(folder, server, user=None, **cluster):
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "it", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": {"token": "secret"} if user is None else user}],
        "contexts": [{"name": "here", "context": {"cluster": "it", "user": "me"}}],
    }))
    return file


def complaint(file, context=None, kinds=("Node",)):
    """Return message and advice of what cannot be listed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PolicyError) as caught:
            load(context, kinds=kinds, configuration_file=file)
    (problem,) = caught.value.problems
    return problem.message, problem.help


def status_body(message):
    return json.dumps({"kind": "Status", "message": message}).encode()


@pytest.mark.parametrize(("status", "message", "advice"), [
    (
        400, "nodes cannot be listed: the server does not understand the request (400: said)",
        "is this a Kubernetes API server?",
    ),
    (
        401, "nodes cannot be listed: the server does not accept the credentials (401: said)",
        "renew the token or the certificate",
    ),
    (403, "nodes may not be listed: said", "grant `list` on `nodes` cluster-wide"),
    (404, "the cluster has no nodes (v1)", "is this a Kubernetes API server?"),
    (410, "nodes cannot be listed: the server answers something else (410: said)", "is this a Kubernetes API server?"),
    (418, "nodes cannot be listed: the server answers something else (418: said)", "is this a Kubernetes API server?"),
    (429, "nodes cannot be listed: the server has too many requests (429: said)", "try again later"),
    (500, "nodes cannot be listed: the server fails (500: said)", "look at the health of the API server"),
    (503, "nodes cannot be listed: the server fails (503: said)", "look at the health of the API server"),
    (504, "nodes cannot be listed: the server fails (504: said)", "look at the health of the API server"),
])
def test_each_status_has_a_meaning_and_an_advice(tmp_path, status, message, advice):
    with Server(status, status_body("said")) as server:
        found = complaint(kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}"))
    assert (found[0], found[1].startswith(advice)) == (message, True), found
    assert "list" not in found[1] or status == 403


@pytest.mark.parametrize(
    "body", [None, b"", b"<html>502</html>", b"{", b'{"message": 1}', b"\xff", "text", "x" * 10_000],
)
def test_every_refusal_is_one_line_with_an_advice(body):
    for status in range(600):
        fault = of_status(status, body, verb="list", resource="nodes")
        assert fault.message
        assert fault.help
        assert "\n" not in fault.message
        assert len(fault.message) < 500


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b"{", b'{"items": 1}', b'{"items": [1]}', b"\xff", b'{"items": [{"metadata": {"name": 1}}]}'],
)
def test_what_is_no_list_is_no_api_server(tmp_path, body):
    with Server(200, body) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert complaint(kubeconfig(tmp_path, url)) == (
            f"the cluster at {url} answers with something else than a list of nodes",
            "is this a Kubernetes API server?",
        )


def test_nobody_who_listens_is_told(tmp_path):
    with reserved_port() as port:
        message, advice = complaint(kubeconfig(tmp_path, f"http://127.0.0.1:{port}"))
    assert message == f"the cluster at http://127.0.0.1:{port} cannot be reached: nobody listens there"
    assert advice.startswith("is the API server running")


def test_a_name_that_is_not_known_is_told(tmp_path):
    message, advice = complaint(kubeconfig(tmp_path, "http://nowhere.invalid:6443"))
    assert message == "the cluster at http://nowhere.invalid:6443 cannot be reached: its name is not known"
    assert advice.startswith("check `server`")


def test_a_connection_that_breaks_off_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def hang_up():
            for _ in range(2):  # aiohttp repeats a GET once
                connection, _ = listening.accept()
                connection.recv(1000)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        message, advice = complaint(kubeconfig(tmp_path, f"http://127.0.0.1:{port}"))
        thread.join()
    assert message.endswith("cannot be reached: it breaks off the connection")
    assert advice.startswith("check the API server, and load balancers and proxies")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = trustme.CA()
    file = tmp_path_factory.mktemp("ca") / "ca.crt"
    made.cert_pem.write_to_path(file)
    return made, file


def served(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    return Server(context=context)


def test_certificates_say_what_is_wrong_with_them(tmp_path, authority):
    known, file = authority
    past = datetime.now(UTC) - timedelta(days=1)
    cases = [
        (
            trustme.CA().issue_cert("127.0.0.1"), "its certificate is of an authority that is not known here",
            "name that authority's file",
        ),
        (
            known.issue_cert("127.0.0.1", not_before=past - timedelta(days=2), not_after=past),
            "its certificate has expired", "renew the API server's",
        ),
        (known.issue_cert("other.example.com"), "its certificate is for other", "use one of its names"),
    ]
    for certificate, why, what in cases:
        with served(certificate) as server:
            message, advice = complaint(
                kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}", **{"certificate-authority": str(file)}),
            )
        assert f"cannot be reached: {why}" in message
        assert advice.startswith(what)
    with served(known.issue_cert("127.0.0.1")) as server:
        assert load(None, kinds=("Node",), configuration_file=kubeconfig(
            tmp_path, f"https://127.0.0.1:{server.port}", **{"certificate-authority": str(file)})) == ()


def test_plain_http_behind_https_is_told(tmp_path):
    with Server() as server:
        message, advice = complaint(kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}"))
    assert message.endswith("cannot be reached: TLS with it fails")
    assert "say https" in advice


def test_who_asks_for_no_verification_is_not_warned_for_each_request(tmp_path, capsys):
    with served(trustme.CA().issue_cert("127.0.0.1")) as server, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        file = kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}", **{"insecure-skip-tls-verify": True})
        assert load(None, kinds=("Node", "Pod"), configuration_file=file) == ()
    assert [str(each.message) for each in warned if "Insecure" in each.category.__name__] == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("error", "message"), [
    (TimeoutError("timed out"), "it does not answer in time"),
    (ConnectionResetError(), "it breaks off the connection"),
    (BrokenPipeError(), "it breaks off the connection"),
    (ssl.SSLError("handshake"), "TLS with it fails"),
    (OSError("whatever"), "it cannot be reached"),
])
def test_what_connections_raise_has_a_meaning(error, message):
    wrapped = RuntimeError("wrapped")
    wrapped.reason = error
    assert of_exception(error).message == of_exception(wrapped).message == message
    assert of_exception(error).everywhere


@pytest.mark.parametrize(("text", "message", "advice"), [
    (None, "there is no kubeconfig `{file}`", "name one in the environment variable KUBECONFIG"),
    ("clusters: [", "the kubeconfig `{file}` is not YAML: ", "correct it"),
    ("", "", ""), ("[]", "", ""), ("text", "", ""), ("{}", "", ""), ("contexts: 1\ncurrent-context: x", "", ""),
    ("current-context: here\ncontexts: []\n", "", ""),
])
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path, text, message, advice):
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    found = complaint(file)
    assert found[0].startswith("no way into the cluster: " + message.format(file=file))
    assert found[1].startswith(advice or "")
    assert found[1]
    assert "\n" not in found[0]


def test_a_context_that_is_not_there_is_told(tmp_path):
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    assert complaint(file, "other") == (
        f"no way into the cluster `other`: the kubeconfig `{file}` has no context `other`",
        "name one of its contexts (`kubectl config get-contexts`)")


def test_a_certificate_file_that_is_not_there_is_told(tmp_path):
    message, advice = complaint(
        kubeconfig(tmp_path, "https://127.0.0.1:1", **{"certificate-authority": "/nowhere/ca.crt"}),
    )
    assert "/nowhere/ca.crt" in message
    assert advice


@pytest.mark.parametrize(("command", "message", "advice"), [
    (
        "no-such-command-here", "is known by the command `no-such-command-here`, which is not installed here",
        "brew install it",
    ),
    ("false", "the command `false`, by which the kubeconfig's user is known, brought no credentials", "run it by hand"),
])
def test_a_plugin_that_brings_no_credentials_is_told(tmp_path, command, message, advice):
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": command, "installHint": "brew install it",
        "interactiveMode": "Never",
    }
    found = complaint(kubeconfig(tmp_path, "http://127.0.0.1:1", user={"exec": plugin}))
    assert message in found[0]
    assert found[1].startswith(advice)


def test_one_kind_that_fails_costs_no_other(tmp_path):
    failing = {"/apis/slo.koordinator.sh/v1alpha1/nodemetrics": (500, status_body("said")),
               "/apis/scheduling.koordinator.sh/v1alpha1/devices": (404, b"")}
    notes = []
    with Server(by_path=failing) as server:
        found = load(
            None, kinds=("Node", "Pod", "NodeMetric", "Device"), note=notes.append,
            configuration_file=kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}"),
        )
    assert (list(found), found.kinds) == ([], {"Node", "Pod"})
    (note,) = notes
    assert note == ("the cluster has no devices; nodemetrics cannot be listed: the server fails (500: said); "
                    "going on without")


@pytest.mark.parametrize("text", [b'"\xff"', b"1e999", b"9" * 5000])
def test_an_object_that_cannot_be_decoded_is_left_out_and_logged(tmp_path, caplog, text):
    body = b'{"items":[{"metadata":{"name":"odd"},"x":%b},{"metadata":{"name":"fine","managedFields":[]}}]}' % text
    with Server(by_path={"/api/v1/nodes": (200, body)}) as server:
        found = load(None, kinds=("Node", "Pod"),
                     configuration_file=kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}"))
    assert list(found) == [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fine"}}]
    assert [record.getMessage().partition(" left out")[0] for record in caplog.records] == [
        "Node `odd`: it cannot be read, and is"]
