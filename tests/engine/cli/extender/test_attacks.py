"""The extender among clients that mean it ill: what they send costs the others nothing."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender
from koordpolicy.engine.scheduler.extender.server import Server

from ..conftest import node
from .serving import Client, arguments, document, question, running, serving

MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Return the words of a command line that serves a policy over a dump."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "policies").mkdir()
    (folder / "policies" / "policy.yaml").write_text(document(4000))
    items = [node("one", cpu="1"), node("two", cpu="2"), node("eight", cpu="8")]
    (folder / "cluster.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return "--policies", folder / "policies", "--cluster", folder / "cluster.yaml"


@pytest.fixture(scope="module")
def client(words):
    with serving(*words) as client:
        yield client


@contextmanager
def slow_bodies(client, path, count, begun=b"{"):
    """Begin so many bodies and end none of them."""
    address = urlsplit(client.url)
    opened = []
    try:
        for _ in range(count):
            connection = socket.create_connection((address.hostname, address.port))
            opened.append(connection)
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode() + begun)
        yield opened
    finally:
        for connection in opened:
            connection.close()


def asks(client):
    status, answer = client("POST", "/filter", question("one", "eight"))
    return status, answer.get("NodeNames")


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        ("POST", "/filter", 415), ("POST", "/prioritize", 415), ("POST", "/explain", 415), ("POST", "/status", 405),
        ("POST", "/nothing", 404),
    ],
)
def test_nothing_is_decompressed(client, method, path, want):
    bomb = gzip.compress(bytes(MEBIBYTE), 9)
    client.connection.close()
    client.connection.request(method, path, bomb, {"Content-Encoding": "gzip"})
    response = client.connection.getresponse()
    assert response.status == want
    assert "encoded as `gzip`" in json.loads(response.read())["error"] or want != 415
    client.connection.close()
    assert asks(client) == (200, ["one"])


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/explain"])
def test_bodies_that_do_not_end_take_nobodys_place(client, path):
    with slow_bodies(client, path, 60):
        assert asks(client) == (200, ["one"])
        assert client("POST", "/explain", question("one")["Pod"])[0] == 200
        assert client("GET", "/readyz") == (200, "ok")


def test_more_slow_bodies_than_may_be_under_way_end_the_oldest(client):
    with slow_bodies(client, "/filter", 300) as opened:
        opened[0].settimeout(30)
        assert opened[0].recv(64).startswith(b"HTTP/1.1 503 ")
        assert asks(client) == (200, ["one"])


@pytest.mark.parametrize("body", [
    b'{"Pod":[' + b"{}," * MEBIBYTE + b"0]}", b'{"Nodes":{"items":[' + b"{}," * MEBIBYTE + b"0]}}",
    b'{"NodeNames":[' + b'"",' * MEBIBYTE + b'""]}',
    b"[" * MEBIBYTE, b'{"a":' * MEBIBYTE, b'{"Pod":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, b'"' * MEBIBYTE,
    b"9" * MEBIBYTE,
])
def test_bodies_that_are_much_in_little_are_refused(client, body):
    for path in ("/filter", "/explain"):
        status, answer = client("POST", path, body)
        assert (status in (400, 413), set(answer)) == (True, {"error"})
        assert len(answer["error"]) < 500
    assert asks(client) == (200, ["one"])


def test_probes_answer_from_their_own_thread_while_the_event_loop_is_busy(words, port):
    blocked, go_on = threading.Event(), threading.Event()
    server = Server(extender.loader(arguments(*words), builtins), health=("127.0.0.1", port))

    async def stuck(request):
        blocked.set()
        go_on.wait(60)
        return web.Response()

    server._services = stuck
    with running(server) as client:
        held = Client(client.url)
        asking = threading.Thread(target=held, args=("GET", "/apis/v1/x"))
        asking.start()
        assert blocked.wait(60)
        try:
            probe = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            found = []
            for path in ("/healthz", "/readyz", "/metrics"):
                probe.request("GET", path)
                response = probe.getresponse()
                response.read()
                found.append(response.status)
            probe.close()
        finally:
            go_on.set()
            asking.join()
            held.connection.close()
    assert found == [200, 200, 200]
