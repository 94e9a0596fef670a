"""The common part of servers of a live cluster with policies: their connection, listeners, and end."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from . import delegation
from .ending import end_at_signals, leave
from .exits import Exit
from .reloading import check_paths
from .serving import admin_token_of, listen, tls_of

if TYPE_CHECKING:
    from aiohttp import web

    from koordpolicy.engine.client.connection import Connection
    from koordpolicy.engine.client.leader_election import Ended
    from koordpolicy.engine.reload.reloader import Reloader
    from koordpolicy.engine.serving.access import Access
    from koordpolicy.engine.serving.endpoints import OperationEndpoints


class LiveProcess(Protocol):
    """A server of a live cluster, with what keeps its policies up to date."""

    reloader: Reloader

    def start(self) -> None:
        """Begin to follow the policies."""
        ...

    def run(self) -> Ended:
        """Work until `stop` is called, or the Lease is lost."""
        ...

    def stop(self) -> None:
        """Let `run` end; for a signal handler."""
        ...

    def close(self) -> None:
        """End all that `start` began."""
        ...


class LiveServing:
    """The connection and the listeners of one server; made before its policies are loaded, so that faults of options
    come first.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises `Stop` for options and files that are of no use, `OSError` for a token that cannot be read."""
        from koordpolicy.engine.client.kubeconfig import load_connection

        check_paths(options)
        delegation.refuse_without_effect(options)
        self.connect: Callable[[], Connection] = partial(load_connection, options.cluster.partition(":")[2] or None)
        self._options = options
        self._tls, self._token = tls_of(options, certificates_optional=True), admin_token_of(options)

    def access(self) -> Access | None:
        """Return the access control of metrics and configuration; None if everybody may read them."""
        return delegation.access_of(self._options, self.connect) if delegation.protects(self._options) else None

    def run(self, process: LiveProcess, endpoints: OperationEndpoints, *, name: str, grace_s: float) -> None:
        """Serve health, metrics and rollbacks while the process works, until a signal ends it.

        If the Lease of this `name` of a server was lost, the whole process ends here with exit code 1. It also ends if
        a signal has not stopped it within `grace_s` seconds.
        """
        from koordpolicy.engine.client.leader_election import Ended
        from koordpolicy.engine.reload.admin import RollbackEndpoint

        rollback = RollbackEndpoint(lambda: process.reloader, self._token)

        def add_to(app: web.Application, option: str) -> None:
            endpoints.add_to(app)
            if option == "--bind":
                rollback.add_to(app)

        options = self._options
        listeners = listen(add_to, (("--bind", options.bind, self._tls), ("--health-bind", options.health_bind, None)))
        end_at_signals(process.stop, grace_s)
        try:
            process.start()
            ended = process.run()
        finally:
            process.close()
            for listener in listeners:
                listener.close()
            endpoints.close()
        if ended is Ended.LOST_LEASE:
            logging.getLogger(__name__).error("the Lease was lost: another %s may lead now", name)
            # Threads that hang must not keep a process alive that others believe to be gone.
            leave(Exit.UNEXPECTED)
