"""The certificate of a listener, which is read again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from aiohttp import web

RELOAD_S: Final = 5.0
_LOG: Final = logging.getLogger(__name__)


class CertificateFiles:
    """Loads a certificate and its key again when their files change, for new connections."""

    def __init__(self, context: ssl.SSLContext, certificate: str, key: str) -> None:
        """`context` has loaded the files."""
        self.context = context
        self._files = certificate, key
        self._state = self._read_state()

    def _read_state(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((found.st_mtime_ns, found.st_ino, found.st_size)
                     for found in (Path(file).stat() for file in self._files))

    def reload(self) -> bool:
        """Load the files if they have changed; return whether that was done. A broken pair is logged and left."""
        try:
            state = self._read_state()
            if state == self._state:
                return False
            # Tried apart: a context with a new certificate and the old key could not serve any more.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            _LOG.warning("the new certificate cannot be used, the last one stays: %s", error)
            return False
        self._state = state
        _LOG.info("the certificate was loaded again from %s", self._files[0])
        return True

    async def follow(self, _: web.Application) -> AsyncGenerator[None, None]:
        """Look at the files while an application runs (for `cleanup_ctx`)."""
        async def look() -> None:
            while True:
                await asyncio.sleep(RELOAD_S)
                self.reload()

        task = asyncio.get_running_loop().create_task(look())
        try:
            yield
        finally:
            task.cancel()
