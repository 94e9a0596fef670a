"""Options of the commands that call running servers (`client.server_calls`)."""

from __future__ import annotations

import argparse
import re
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from koordpolicy.engine.client.server_calls import Caller

from .exits import Exit, Stop

DEFAULT: Final = "http://127.0.0.1:8888"
_RESOLVED: Final = "dns+"
_SHORTEST_HASH: Final = 6


def add_endpoints(parser: argparse.ArgumentParser, *, changes: bool = False) -> None:
    """Add `--endpoints`, the token and the TLS options; `changes` says that the command changes something."""
    parser.add_argument(
        "--endpoints", "--endpoint", metavar="URL[,URL...]", action="append",
        help="the servers; may be repeated. dns+http://NAME:PORT stands for every address that the name has, as that "
             f"of a headless service (default: {DEFAULT})")
    parser.add_argument("--token-file", metavar="FILE", type=Path,
                        help="holds the token that the server was given as `--admin-token-file`" if changes else
                        "holds a token that may read /status, of a server that authenticates its readers")
    parser.add_argument("--ca", metavar="FILE", help="trust servers with a certificate of this authority")
    parser.add_argument("--cert", metavar="FILE", help="the certificate to show (PEM)")
    parser.add_argument("--key", metavar="FILE", help="its private key")


def endpoints_of(options: argparse.Namespace) -> list[str]:
    """Return the servers that the options name, each address once; raises `Stop` for a text that is not a URL."""
    found: list[str] = []
    for text in ",".join(options.endpoints or [DEFAULT]).split(","):
        word = text.strip()
        url = _split(word.removeprefix(_RESOLVED))
        found += _addresses(url) if word.startswith(_RESOLVED) else [url.geturl()]
    return list(dict.fromkeys(found))


def _split(word: str) -> SplitResult:
    try:
        url = urlsplit(word)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None or port == 0:
        raise Stop(f"`--endpoints`: `{word}` is not a URL such as {DEFAULT}")
    return url


def _addresses(url: SplitResult) -> list[str]:
    assert url.hostname is not None
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Stop(f"`{url.hostname}` has no address: {(error.strerror or str(error)).lower()}",
                   Exit.UNEXPECTED) from None
    hosts = dict.fromkeys(str(each[4][0]) for each in found)
    return [f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}{url.path}" for host in hosts]


def caller_of(options: argparse.Namespace, *, seconds: float = 10.0) -> Caller:
    """Return the client of the options; raises `Stop` for files that cannot be used."""
    token = ""
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8").strip()
        if not token or not token.isprintable() or not token.isascii():
            raise Stop(f"`{options.token_file}` holds no token")
    if options.key is not None and options.cert is None:
        raise Stop("`--key` goes with `--cert`")
    context = None
    if options.ca is not None or options.cert is not None:
        try:
            context = ssl.create_default_context(cafile=options.ca)
            if options.cert is not None:
                context.load_cert_chain(options.cert, options.key)
        except OSError as error:  # also ssl.SSLError, which is one
            raise Stop(f"the files of `--ca`, `--cert` and `--key` cannot be used: {error}") from None
    return Caller(token, context, seconds)


def share(text: str) -> float:
    """Parse a fraction: 0.1% or 0.001."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a part such as 0.1% or 0.001")
    return value


def hash_of(text: str) -> str:
    """Parse a hash, or the beginning of one."""
    if not re.fullmatch(r"[0-9a-f]{6,64}", text):
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a hash: at least its first {_SHORTEST_HASH} digits, as `koord-policy hash` prints them")
    return text


def moment(at: object) -> str:
    """Return a time (seconds since the epoch) as text."""
    if not isinstance(at, int | float):
        return "never"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def short(digest: object) -> str:
    """Return the beginning of a hash."""
    return str(digest)[:12] if digest else "nothing"
