"""Fake koord-policy servers on the loopback address."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

STATUS = {
    "ready": True, "leading": True, "started": 1000.0,
    "policies": {"generation": 3, "digest": "abcdef0123456789", "healthy": True, "sources": [], "warnings": []},
    "cluster": {"nodes": 5, "kinds": {"Pod": {"listed": 1.0, "age": 2.0, "fault": None}}},
}


class FakeServer:
    """Answers GET by path: with plain data, with text, or by a function that writes to the connection."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.requests: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.requests.append(self.path)
                page = fake.pages.get(self.path)
                if callable(page):
                    page(self)
                    return
                code, body = (404, b"not found") if page is None else (
                    (200, page.encode()) if isinstance(page, str) else (200, json.dumps(page).encode()))
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Clients may be gone."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def scheduler(self, placed: float = 0, waiting: float = 0, started: float = 1000.0, **status: Any) -> None:
        """Answer as a scheduler that has placed so many pods."""
        self.pages["/status"] = STATUS | {"started": started} | status
        self.pages["/metrics"] = "\n".join((
            f'scheduler_schedule_attempts_total{{result="scheduled",profile="p"}} {placed}',
            f'scheduler_pending_pods{{queue="active"}} {waiting}', f'scheduler_pending_pods{{queue="gated"}} {waiting}',
            f"scheduler_scheduling_algorithm_duration_seconds_sum {placed / 100}",
            f"scheduler_scheduling_algorithm_duration_seconds_count {placed}",
            f'koord_policy_expression_evaluations_total{{plugin="q",point="filter",rule="r"}} {placed * 10}',
            f'koord_policy_rule_refusals_total{{plugin="q",point="filter",rule="r"}} {placed * 2}'))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[], FakeServer]]:
    made: list[FakeServer] = []

    def start() -> FakeServer:
        made.append(FakeServer())
        return made[-1]

    yield start
    for each in made:
        each.close()
