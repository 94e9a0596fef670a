"""Addresses of servers: URLs, and names that stand for every address that they have."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import SplitResult, urlsplit

RESOLVED: Final = "dns+"
"""Begins a URL whose name stands for every address that it has, as that of a headless service."""


class UnresolvedError(Exception):
    """A name without an address; the message says why."""


def check_address(word: str) -> None:
    """Raise `ValueError` for a text that is neither a URL of http or https, nor one after `dns+`."""
    _split(word.removeprefix(RESOLVED))


def addresses_of(word: str) -> list[str]:
    """Return the URLs that a word stands for.

    Raises:
        ValueError: it is no URL.
        UnresolvedError: its name has no address.
    """
    url = _split(word.removeprefix(RESOLVED))
    if not word.startswith(RESOLVED):
        return [url.geturl()]
    assert url.hostname is not None
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise UnresolvedError(f"`{url.hostname}` has no address: {why.lower()}") from None
    hosts = dict.fromkeys(str(each[4][0]) for each in found)
    return [f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}{url.path}" for host in hosts]


def _split(word: str) -> SplitResult:
    try:
        url = urlsplit(word)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None or port == 0:
        raise ValueError(word)
    return url
