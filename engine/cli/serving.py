"""Options of the servers: addresses, TLS, the log, and who may read metrics and configuration."""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import delegation
from .composition import need_file
from .exits import Stop, refuse_given
from .logs import add_format_argument
from .terminal import write

if TYPE_CHECKING:
    from aiohttp import web

    from koordpolicy.engine.reload.admin import AdminToken
    from koordpolicy.engine.serving.console_links import ConsoleLinks
    from koordpolicy.engine.serving.listeners import ListenerThread

EXTENDER_ADDRESS: Final = "127.0.0.1:8888"
_PROMOTE: Final = ", and promote the shadow of an extender,"
OPTIONS: Final = ("bind", "tls_cert", "tls_key", "client_ca", "health_bind", "admin_token_file", "log_format",
                  *delegation.OPTIONS)


def add_arguments(parser: argparse.ArgumentParser, *, server: str = "") -> None:
    """Declare the options; `server` names the server, if it is neither a scheduler nor an extender."""
    which = server.capitalize() or "An extender, and a scheduler of a live cluster,"
    group = parser.add_argument_group(
        "serving", f"{which} {'answers' if server else 'answer'} /healthz, /livez, /readyz, /metrics, /configz "
        "and\n/status. See docs/metrics.md")
    default = "without it nothing listens there" if server else (
        f"default: {EXTENDER_ADDRESS} for an extender; without it a scheduler of a live cluster does not listen")
    group.add_argument("--bind", metavar="HOST:PORT", type=address,
                       help=f"address to listen on; port 0 chooses a free port and prints it ({default})")
    group.add_argument("--tls-cert", metavar="FILE", help="serve https with this certificate (PEM)")
    group.add_argument("--tls-key", metavar="FILE", help="its private key")
    group.add_argument("--client-ca", metavar="FILE",
                       help="take client certificates of this authority, as well as tokens" if server else
                            "an extender lets in only clients with a certificate of this authority; a scheduler of a "
                            "live cluster takes their certificates as well as tokens")
    group.add_argument("--health-bind", metavar="HOST:PORT", type=address,
                       help="answer health, metrics and configuration there too, without TLS: probes have no client "
                            "certificate")
    group.add_argument("--admin-token-file", metavar="FILE", type=Path,
                       help=f"clients with the token in this file may roll back{'' if server else _PROMOTE} over HTTP; "
                            "without it none may")
    delegation.add_arguments(group)
    add_format_argument(group)


def add_console_url(group: argparse._ActionsContainer, effect: str) -> None:
    """Declare `--console-url`, the address of a console for people; its value is `ConsoleLinks`, or None."""
    group.add_argument("--console-url", metavar="URL", type=_links,
                       help=f"{effect}, such as https://console.example.org")


def _links(text: str) -> ConsoleLinks:
    from koordpolicy.engine.serving.console_links import ConsoleLinks

    try:
        return ConsoleLinks.at(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing to a process that ends by itself."""
    refuse_given(options, OPTIONS, "goes with `--extender`, or a live cluster without `--dry-run`")


def tls_of(options: argparse.Namespace, *, certificates_optional: bool = False) -> ssl.SSLContext | None:
    """Return the TLS context of the options; None without `--tls-cert`. Raises `Stop` for files that are of no use."""
    from koordpolicy.engine.serving.listeners import tls_context  # only servers pay for it

    if (options.tls_cert is None) != (options.tls_key is None):
        raise Stop("`--tls-cert` and `--tls-key` go together")
    if options.tls_cert is None:
        if options.client_ca is not None:
            raise Stop("`--client-ca` needs `--tls-cert` and `--tls-key`: without TLS no certificate is read")
        return None
    for option, file, content in _files(options):
        need_file(Path(file), f"`{option}` takes a {content} (PEM)")
    try:
        return tls_context(options.tls_cert, options.tls_key, options.client_ca, optional=certificates_optional)
    except ssl.SSLError as error:
        raise Stop(fault_of_files(options, error)) from None


def _files(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield each given file of TLS: its option, its path and its content."""
    for option, file, content in (("--tls-cert", options.tls_cert, "certificate"),
                                  ("--tls-key", options.tls_key, "private key"),
                                  ("--client-ca", options.client_ca, "certificate")):
        if file is not None:
            yield option, file, content


def fault_of_files(options: argparse.Namespace, error: ssl.SSLError) -> str:
    """Return which of the files of TLS cannot be used, and why."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"`--tls-key {options.tls_key}` is not the key of the certificate `--tls-cert {options.tls_cert}`"
    for option, file, content in _files(options):
        if f"{content.upper()}-----".encode() not in Path(file).read_bytes():
            return f"`{option} {file}` holds no {content} (PEM)"
    return f"the files of `--tls-cert`, `--tls-key` and `--client-ca` cannot be used: {error}"


def admin_token_of(options: argparse.Namespace) -> AdminToken | None:
    """Return the token that permits changes over HTTP; None without `--admin-token-file`.

    Raises:
        Stop: the file holds no valid token.
        OSError: it cannot be read.
    """
    from koordpolicy.engine.reload.admin import AdminToken  # only servers pay for it

    if options.admin_token_file is None:
        return None
    try:
        return AdminToken(options.admin_token_file)
    except ValueError as error:
        raise Stop(f"`--admin-token-file`: {error}") from None


def listen(
    add_to: Callable[[web.Application, str], None],
    addresses: Sequence[tuple[str, tuple[str, int] | None, ssl.SSLContext | None]],
) -> list[ListenerThread]:
    """Serve an application at each address that was given, and print the URLs.

    Each comes with its option, with which `add_to` adds the routes.

    Raises:
        Stop: an address is not available.
    """
    from aiohttp import web  # only servers pay for it

    from koordpolicy.engine.serving.listeners import ListenerThread

    found: list[ListenerThread] = []
    for option, place, context in addresses:
        if place is None:
            continue
        host, port = place
        app = web.Application()
        add_to(app, option)
        found.append(start_listener(ListenerThread(app, host, port, context), option, place))
    return found


def unavailable(place: tuple[str, int], option: str, error: OSError) -> Stop:
    """Return the end of a command that cannot listen at the address of an option."""
    why = error.strerror or str(error)
    if error.errno is not None and error.errno > 0:  # a failed look-up of a name has a negative one
        why = os.strerror(error.errno)
    return Stop(f"cannot listen on {place[0]}:{place[1]}: {why.lower()}: name another address with `{option}`")


def start_listener(listener: ListenerThread, option: str, place: tuple[str, int]) -> ListenerThread:
    """Start a listener and print its URL; raises `Stop` if the address is not available."""
    try:
        url = listener.start()
    except OSError as error:
        raise unavailable(place, option, error) from None
    write(f"listening on {url}")
    sys.stdout.flush()
    return listener


def address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`; raises `ArgumentTypeError` for any other text."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"`{text}` is not an address such as {EXTENDER_ADDRESS}")
    return host, int(port)
