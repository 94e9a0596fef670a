"""Servers of tests in threads of their own, whose clients may still connect when they end."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aiohttp import web


class Listener:
    """An application on a free port of loopback. `start` and `stop` are called in one event loop."""

    def __init__(self, application: web.Application, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.AppRunner(application, shutdown_timeout=0.05)
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    async def start(self) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Stop, so that no socket stays open.

        asyncio (3.11) leaves a connection open that is accepted, and has no transport yet, when its server closes.
        """
        asyncio.get_running_loop().remove_reader(self._socket)
        for _ in range(5):
            await asyncio.sleep(0)
        await self._runner.cleanup()
