"""Ports of this machine that nobody else gets while a test uses them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nobody listens until the test does.

    It stays bound, so that the system gives it to no other process; a server that sets SO_REUSEADDR may listen there.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
