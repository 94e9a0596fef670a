"""Options of the commands that call running servers, and texts about what they answer."""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.monitoring.addresses import RESOLVED, UnresolvedError, addresses_of, check_address

from .exits import Exit, Stop

DEFAULT: Final = "http://127.0.0.1:8888"
_SHORTEST_HASH: Final = 6
_HASH: Final = f"[0-9a-f]{{{_SHORTEST_HASH},64}}"
"""A hash, or the beginning of one."""
_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""A part of a name, as the API server takes it."""


def add_endpoints(
    parser: argparse._ActionsContainer, *, changes: bool = False, default: str = DEFAULT,
) -> None:
    """Add `--endpoints`, the token and the TLS options; `changes` says that the command changes something."""
    parser.add_argument(
        "--endpoints", "--endpoint", metavar="URL[,URL...]", action="append",
        help="the servers; may be repeated. dns+http://NAME:PORT stands for every address that the name has, as that "
             f"of a headless service (default: {default})")
    parser.add_argument("--token-file", metavar="FILE", type=Path,
                        help="holds the token that the server was given as `--admin-token-file`" if changes else
                        "holds a token that may read /status, of a server that authenticates its readers")
    parser.add_argument("--ca", metavar="FILE", help="trust servers with a certificate of this authority")
    parser.add_argument("--server-name", metavar="NAME",
                        help="the name for which the servers' certificates are (default: the host of each URL, which "
                             "after dns+https is an address)")
    parser.add_argument("--cert", metavar="FILE", help="the certificate to show (PEM)")
    parser.add_argument("--key", metavar="FILE", help="its private key")


def endpoints_of(options: argparse.Namespace, *, unresolved: Exit) -> list[str]:
    """Return the servers that the options name, each address once.

    Raises:
        Stop: a text is not a URL; or a name has no address, with the exit code `unresolved`, that of a command of which
        a server does not answer.
    """
    found: list[str] = []
    for word in words_of(options.endpoints or [DEFAULT], "--endpoints"):
        try:
            found += addresses_of(word)
        except UnresolvedError as error:
            raise Stop(str(error), unresolved) from None
    return list(dict.fromkeys(found))


def words_of(values: Sequence[str], option: str) -> list[str]:
    """Return the words of an option with servers; raises `Stop` for one that is not a URL."""
    words = [text.strip() for text in ",".join(values).split(",")]
    for word in words:
        try:
            check_address(word)
        except ValueError:
            raise Stop(f"`{option}`: `{word.removeprefix(RESOLVED)}` is not a URL such as {DEFAULT}") from None
    return words


def caller_of(options: argparse.Namespace, *, seconds: float = 10.0) -> Caller:
    """Return the client of the options; raises `Stop` for files that cannot be used."""
    token = "" if options.token_file is None else token_of(options.token_file)
    if options.key is not None and options.cert is None:
        raise Stop("`--key` goes with `--cert`")
    context = None
    if options.ca is not None or options.cert is not None:
        context = _context_of(options)
    return Caller(token, context, seconds, server_name=options.server_name or "")


def _context_of(options: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
    except OSError as error:  # also ssl.SSLError, which is one
        why = "it holds no certificate (PEM)" if isinstance(error, ssl.SSLError) else str(error.strerror).lower()
        raise Stop(f"`--ca {options.ca}` cannot be used: {why}") from None
    if options.cert is not None:
        files, what = f"`--cert {options.cert}`", "it holds no certificate with its private key (PEM)"
        if options.key is not None:
            files, what = f"{files} with `--key {options.key}`", "they are no certificate with its private key (PEM)"
        try:
            context.load_cert_chain(options.cert, options.key)
        except OSError as error:
            why = what if isinstance(error, ssl.SSLError) else str(error.strerror).lower()
            raise Stop(f"{files} cannot be used: {why}") from None
    return context


def token_of(file: Path) -> str:
    """Return the token in a file; raises `Stop` if it holds none, `OSError` if it cannot be read."""
    token = file.read_bytes().decode("utf-8", "replace").strip()
    if not token or not token.isprintable() or not token.isascii():
        raise Stop(f"`{file}` holds no token")
    return token


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
    if not re.fullmatch(_HASH, text):
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a hash: at least its first {_SHORTEST_HASH} digits, as `koord-policy hash` prints them")
    return text


def generation_of(text: str) -> str:
    """Parse the number of a generation, a hash, or the beginning of one."""
    if not re.fullmatch(f"[1-9][0-9]{{0,9}}|{_HASH}", text):
        raise argparse.ArgumentTypeError(
            f"`{text}` is neither the number of a generation nor at least the first {_SHORTEST_HASH} digits of a hash: "
            "`koord-policy status --history` shows both; without the option it is the generation before")
    return text


def configmap_of(text: str) -> str:
    """Parse the name of a ConfigMap, which may come after its namespace and a slash."""
    if not re.fullmatch(rf"({_LABEL}/)?{_LABEL}(\.{_LABEL})*", text):
        raise argparse.ArgumentTypeError(f"`{text}` is not the name of a ConfigMap: write `NAME` or `NAMESPACE/NAME`")
    return text


def moment(at: object) -> str:
    """Return a time (seconds since the epoch) as text."""
    if not isinstance(at, int | float):
        return "never"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def short(digest: object) -> str:
    """Return the beginning of a hash."""
    return str(digest)[:12] if digest else "nothing"
