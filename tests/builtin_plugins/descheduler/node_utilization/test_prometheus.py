"""Queries of a Prometheus server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from koordpolicy.builtin_plugins.descheduler.node_utilization import prometheus
from koordpolicy.builtin_plugins.descheduler.node_utilization.args import _is_url
from koordpolicy.builtin_plugins.descheduler.node_utilization.prometheus import PrometheusServer
from tests.balance_cycles import evicted, node, pod, run
from tests.ports import reserved_port


class FakePrometheus:
    """Answers every query with `status` and `body`, and records the requests."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"", dict[str, str]()
        self.asked: list[tuple[str, dict[str, list[str]], str | None]] = []
        self.url = ""


@pytest.fixture
def server() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            fake.asked.append((parts.path, parse_qs(parts.query), self.headers.get("Authorization")))
            self.send_response(fake.status)
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(fake.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.url = f"http://127.0.0.1:{running.server_port}"
        yield fake
        running.shutdown()
        thread.join()


def vector(*samples: tuple[dict[str, str], Any], kind: str = "vector", status: str = "success") -> bytes:
    result = [{"metric": metric, "value": [1735689600.5, value]} for metric, value in samples]
    return json.dumps({"status": status, "data": {"resultType": kind, "result": result}, "warnings": ["odd"]}).encode()


def test_the_samples_of_a_query_are_those_of_the_nodes(server: FakePrometheus):
    server.body = vector(({"instance": "one", "job": "node"}, "0.25"), ({"instance": "two"}, "1"))
    assert PrometheusServer(server.url + "/")("a{b='c d'} > 0") == {"one": 0.25, "two": 1.0}
    assert server.asked == [("/api/v1/query", {"query": ["a{b='c d'} > 0"]}, None)]


def test_the_token_of_a_file_is_read_for_each_query_and_follows_no_redirection(
    server: FakePrometheus, tmp_path: Path,
):
    token = tmp_path / "token"
    asks = PrometheusServer(server.url, str(token))
    server.body = vector()
    for text in ("first\n", "second"):
        token.write_text(text)
        asks("q")
    assert [sent for _, _, sent in server.asked] == ["Bearer first", "Bearer second"]
    server.status, server.headers = 302, {"Location": f"{server.url}/elsewhere"}
    with pytest.raises(ValueError, match="failed: answered 302"):
        asks("q")
    assert len(server.asked) == 3
    for text, why in (("a\nb", "holds no token"), ("", "holds no token"), ("\u00e4", "other characters than ASCII")):
        token.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=why) as refused:
            asks("q")
        assert text == "" or text not in str(refused.value)
    token.unlink()
    with pytest.raises(ValueError, match="its token cannot be read: No such file or directory"):
        asks("q")


@pytest.mark.parametrize(("url", "sent"), [("http://127.0.0.1:1", ""), ("https://127.0.0.1:1", "pod")])
def test_the_token_of_the_service_account_goes_over_encrypted_connections_only(
    url: str, sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "token").write_text("pod")
    monkeypatch.setattr(prometheus, "SERVICE_ACCOUNT", tmp_path)
    assert PrometheusServer(url)._token() == sent


@pytest.mark.parametrize(("status", "body", "reason"), [
    (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}', "parse error"),
    (401, b"<html>", "no Prometheus: it answered 401"), (401, b"{}", "it wants another token"),
    (200, b"", "what answers there is no Prometheus$"),
    (503, b"<html>", "what answers there is no Prometheus: it answered 503"),
    (200, vector()[:-5], "no Prometheus"),
    (200, b"[" * 100_000, "no Prometheus"),
    (200, b'{"status":"success","data":{"result":' + b"[" * 100_000, "no Prometheus"),
    (200, b'{"status":"error","error":"it is too much"}', "it is too much"),
    (200, b'{"status":"success"}', 'expected query results to be of type "vector", got ""'),
    (200, vector(kind="scalar"), 'expected query results to be of type "vector", got "scalar" instead'),
    (200, vector(({"job": "node"}, "0.5")), "the collected metrics sample is missing 'instance' key"),
    (200, vector(({"instance": "one"}, "much")), "could not convert string to float"),
    (200, vector(({"instance": "one"}, 0.5)), "Expected `str`, got `float`"),
    (200, b'{"status":"success","data":{"resultType":"vector","result":7}}', "Expected `array`, got `int`"),
    (200, b"x" * (16 * 1024 * 1024 + 1), "more than 16,777,216 bytes"),
])
def test_an_answer_of_no_use_is_an_error_that_names_the_server(
    server: FakePrometheus, status: int, body: bytes, reason: str,
):
    server.status, server.body = status, body
    with pytest.raises(ValueError, match=f"the query of {server.url} failed: .*({reason})"):
        PrometheusServer(server.url)("q")


def test_a_server_that_is_away_is_an_error():
    with reserved_port() as port, pytest.raises(ValueError, match="failed: cannot be reached: connection refused"):
        PrometheusServer(f"http://127.0.0.1:{port}")("q")


@pytest.mark.parametrize(("said", "reason"), [
    (b"", "no answer within 0.2 s"), (b"no HTTP at all\r\n\r\n", "no Prometheus"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "no Prometheus"),
])
def test_a_server_that_is_silent_or_ends_early_is_an_error(
    said: bytes, reason: str, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(prometheus, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                if said:
                    connection.sendall(said)
                else:
                    ended.wait(5)

        ended, thread = threading.Event(), threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ValueError, match=f"failed: .*{reason}"):
            PrometheusServer(f"http://127.0.0.1:{listener.getsockname()[1]}")("q")
        ended.set()
        thread.join()


def test_pods_leave_the_nodes_whose_samples_are_above_the_target(server: FakePrometheus):
    objects = [node("hot"), pod("a", "hot", "1"), pod("b", "hot", "1"), node("cold"), node("mild")]
    args = {"thresholds": {"MetricResource": 20}, "targetThresholds": {"MetricResource": 70},
            "metricsUtilization": {"source": "Prometheus", "prometheus": {"query": "load", "url": server.url}},
            "evictionLimits": {"node": 1}}
    server.body = vector(({"instance": "hot"}, "0.9"), ({"instance": "cold"}, "0.1"), ({"instance": "mild"}, "0.5"))
    assert len(evicted(run("LowNodeUtilization", objects, **args))) == 1
    server.status = 503
    failed = run("LowNodeUtilization", objects, **args)
    assert (evicted(failed), [each.message for each in failed.failures]) == (
        [], [f"error getting node usage: the query of {server.url} failed: answered 503"])


@pytest.mark.parametrize(("text", "accepted"), [
    ("http://prometheus:9090", True), ("https://a/b", True), ("file:///etc/passwd", False), ("ftp://a", False),
    ("prometheus:9090", False), ("http://", False), ("http://[", False), ("", False),
    ("http://user:password@a", False), ("http://a?b=1", False), ("http://a#b", False), ("http://a b", False),
    ("http://a:99999", False), ("http://a\n", False),
])
def test_only_servers_of_http_are_asked(text: str, accepted: bool):
    assert _is_url(text) == accepted
