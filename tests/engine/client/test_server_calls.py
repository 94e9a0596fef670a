from __future__ import annotations

import threading
from typing import Any

from koordpolicy.engine.client.server_calls import Caller, EndpointAnswer


def test_an_answer_is_plain_data_and_a_missing_page_is_reported(serve):
    server = serve()
    server.pages["/status"] = {"ready": True}
    assert Caller().ask(server.url, "/status") == EndpointAnswer(server.url, 200, {"ready": True})
    assert Caller().ask(server.url, "/none") == EndpointAnswer(server.url, 404, error="it has no /none")
    server.pages["/metrics"] = "a 1\n"
    assert Caller().text(server.url, "/metrics") == ("a 1\n", "")
    assert Caller().text(server.url, "/none") == ("", "answered 404")


def test_nobody_and_somebody_else_are_reported(serve):
    server = serve()
    server.pages["/status"] = "<html>"
    assert Caller().ask(server.url, "/status").error == "what answers there is no koord-policy"
    server.pages["/status"] = "[" * 100_000
    assert Caller().ask(server.url, "/status").error == "what answers there is no koord-policy"
    server.close()
    assert Caller().ask(server.url, "/status").error == "cannot be reached: connection refused"


def test_a_huge_answer_is_not_read_to_its_end(serve):
    server = serve()
    server.pages["/metrics"] = "x" * 2_000_000
    assert Caller(largest=100_000).text(server.url, "/metrics") == ("", "its answer has more than 100,000 bytes")


def test_a_server_that_sends_a_byte_now_and_then_does_not_hold_the_request(serve):
    server, stop = serve(), threading.Event()

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.05):
            handler.wfile.write(b" ")

    server.pages["/status"] = drip
    try:
        assert Caller(seconds=0.4).ask(server.url, "/status").error == "no answer within 0.4 s"
    finally:
        stop.set()


def test_a_server_without_tls_is_reported(serve):
    url = serve().url.replace("http:", "https:")
    assert Caller().ask(url, "/status").error == "cannot be reached: it speaks no TLS (write http:// if it should not)"
