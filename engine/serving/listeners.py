"""Listeners of the HTTP server: in this event loop, or in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SHUTDOWN_SECONDS: Final = 5.0
_LINGERING_SECONDS: Final = 1.0
_READ_BYTES: Final = 64 * 1024
_LONGEST_LINE: Final = 8190


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for a record about a request that is not HTTP: any client could fill the log with them."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG: Final = logging.getLogger(__name__)
_LOG.addFilter(_is_own_fault)


@asynccontextmanager
async def serving(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None, *, longest_line: int = _LONGEST_LINE,
) -> AsyncIterator[str]:
    """Serve until the block ends; yield the URL.

    A request whose first line is longer than `longest_line` bytes is refused before the application gets it.
    """
    # Nothing is decompressed, even where the body is ignored; the rest of a rejected body is not awaited.
    runner = web.AppRunner(app, access_log=None, logger=_LOG, shutdown_timeout=_SHUTDOWN_SECONDS, auto_decompress=False,
                           lingering_time=_LINGERING_SECONDS, read_bufsize=_READ_BYTES, max_line_size=longest_line)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        address = runner.addresses[0]
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        yield f"{'http' if tls is None else 'https'}://{shown}:{address[1]}"
    finally:
        await runner.cleanup()
        # Tasks of disconnected clients have not been awaited, and cancelled ones have not ended.
        tasks = [task for task in asyncio.all_tasks()
                 if getattr(task.get_coro(), "__qualname__", "").startswith("RequestHandler.")]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LINGERING_SECONDS)


class ListenerThread:
    """A listener in a thread with its own event loop: a busy process delays it by the interpreter's lock only."""

    def __init__(self, app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._address = host, port
        self._tls = tls
        self._started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

    def start(self) -> str:
        """Serve from now on; return the URL. Raises `OSError` if the address is not available."""
        self._thread.start()
        return self._started.result()[0]

    def close(self) -> None:
        """Stop, and return when all connections are closed."""
        _, loop, stop = self._started.result()
        loop.call_soon_threadsafe(stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the caller of the start gets it
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        async with serving(self._app, *self._address, self._tls) as url:
            self._started.set_result((url, asyncio.get_running_loop(), stop))
            await stop.wait()


@asynccontextmanager
async def serving_apart(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve from a thread with its own event loop, so that a busy caller's loop does not delay it; yield the URL."""
    listener = ListenerThread(app, host, port)
    url = await asyncio.to_thread(listener.start)
    try:
        yield url
    finally:
        await asyncio.to_thread(listener.close)


def tls_context(
    certificate: str, key: str, client_ca: str | None = None, *, optional: bool = False,
) -> ssl.SSLContext:
    """Return a server's context, TLS 1.2 at least; with `client_ca` only clients with a certificate of it get in.

    With `optional` clients without a certificate get in too: their requests are authenticated in another way.

    Raises `OSError` or `ssl.SSLError` for files that cannot be used.
    """
    context = server_context(client_ca, optional=optional)
    context.load_cert_chain(certificate, key)
    return context


def server_context(client_ca: str | None = None, *, optional: bool = False) -> ssl.SSLContext:
    """Return the context of `tls_context` without a certificate of the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context
