"""The way to an API server: address, TLS and credentials. `kubeconfig.load_connection` finds it.

Tokens in files are read again when they expire or are refused, and changed certificates are noticed, without a restart.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

_LOG: Final = logging.getLogger(__name__)

_TOKEN_S: Final = 50.0  # client-go reads a token file again after about this time


class Credentials(Protocol):
    """The credentials of requests besides a client certificate. Belongs to one event loop."""

    async def header(self) -> str | None:
        """Return the value of the Authorization header; None for none."""
        ...

    def refused(self, header: str | None) -> None:
        """Obtain new credentials for the next request if `header` is still current: the server answered 401 to it."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """Credentials that never change."""

    value: str | None = field(default=None, repr=False)

    async def header(self) -> str | None:
        """Return the header."""
        return self.value

    def refused(self, header: str | None) -> None:
        """Do nothing: there are no others."""


class TokenFile:
    """A bearer token in a file that is replaced from time to time, as kubelet does with a service account's.

    The file is read again after 50 seconds and after a refusal. If it cannot be read or is empty, the old token stays,
    and the error is logged.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._header: str | None = None
        self._read_at = float("-inf")

    async def header(self) -> str | None:
        """Return the header of the newest readable token."""
        if self._clock() - self._read_at >= _TOKEN_S:
            self._read_at = self._clock()
            try:
                token = self._path.read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                token, why = "", str(error)
            else:
                why = "the file is empty"
            if token:
                self._header = f"Bearer {token}"
            else:
                _LOG.warning("cannot read the token in %s, the last one stays in use: %s", self._path, why)
        return self._header

    def refused(self, header: str | None) -> None:
        """Read the file again for the next request."""
        if header == self._header:
            self._read_at = float("-inf")


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and how to authenticate there. `kubeconfig.load_connection` makes it."""

    server: str
    """The URL, without a slash at its end."""
    credentials: Credentials = field(default_factory=FixedCredentials)
    certificate_authority: str | None = None
    """File; None for the system's authorities."""
    client_certificate: tuple[str, str | None] | None = None
    """Files of certificate and key."""
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host of the URL."""
    proxy: str | None = None

    def tls_state(self) -> tuple[object, ...]:
        """Return a value that differs once a file of certificates changed."""
        return tuple(_stat(name) for name in (self.certificate_authority, *(self.client_certificate or ())) if name)

    def tls(self) -> ssl.SSLContext | bool:
        """Return a new TLS context of the files as they are now; True for a server without TLS.

        Raises `OSError` if a file cannot be read, or holds no certificate.
        """
        if not self.server.startswith("https:"):
            return True
        context = ssl.create_default_context(cafile=self.certificate_authority)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate:
            context.load_cert_chain(*self.client_certificate)
        return context


def _stat(name: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(name)  # noqa: PTH116 - a plain string of a file that may be absent
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
