"""Observers of the node agent that its options name: audit log, recording, metrics and endpoints."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .exits import Stop
from .terminal import write

if TYPE_CHECKING:
    from koordpolicy.engine.agent.node_agent import NodeAgent
    from koordpolicy.engine.agent.node_recorder import NodeRecorder
    from koordpolicy.engine.agent.operations import AgentOperations
    from koordpolicy.engine.framework.qos import Host
    from koordpolicy.engine.reload.reloader import Reloader

_LOG: Final = logging.getLogger(__name__)


class Observed:
    """The observers, for `NodeAgent`, and the parts that begin and end with it; only what is used is imported."""

    def __init__(self, options: argparse.Namespace) -> None:
        from koordpolicy.engine.agent.counts import AgentCounts  # noqa: PLC0415

        self.counts = AgentCounts()
        self.observers: list[Any] = []
        self.on_attempt: list[Any] = []
        self.metric: Any = None
        self._options = options
        self._log: Any = None
        self._recorder: Any = None
        self._decisions: Any = None
        if options.audit_log_dir is not None:
            from koordpolicy.engine.agent.audit import AuditLog, AuditSettings  # noqa: PLC0415
            from koordpolicy.engine.agent.audit_events import AuditEvents  # noqa: PLC0415

            self._log = AuditLog(AuditSettings(options.audit_log_dir), clock=time.monotonic)
            events = AuditEvents(self._log)
            self.observers.append(events.concluded)
            self.on_attempt.append(events.attempted)
        if options.http is not None:
            from koordpolicy.engine.agent.operations import DecisionMetrics  # noqa: PLC0415

            self._decisions = DecisionMetrics(options.node_name, self.counts)
            self.observers.append(self._decisions.concluded)
            self.on_attempt.append(self._decisions.attempted)
            self.metric = self._decisions.wrote

    def recorder(self, host: Callable[[], Host]) -> NodeRecorder | None:
        """Return what writes the recording that `--record` names, if it does."""
        if self._options.record is None:
            return None
        from koordpolicy.engine.agent.node_recorder import NodeRecorder  # noqa: PLC0415

        if self._options.record.suffix != ".jsonl":
            raise Stop(f"`--record {self._options.record}`: a recording of JSON lines is named FILE.jsonl")
        made = NodeRecorder(
            self._options.record, self._options.node_name, interval=self._options.interval, host=host)
        self.observers.append(made.concluded)
        self._recorder = made
        return made

    def parts(
        self, agent: NodeAgent, reloader: Reloader,
    ) -> Iterable[tuple[Callable[[], object], Callable[[], object]]]:
        """Yield what begins and ends with the agent."""
        if self._log is not None:
            yield _nothing, self._log.flush
        if self._recorder is not None:
            yield _nothing, self._recorder.close
        if self._decisions is not None:
            from koordpolicy.engine.agent.audit import AuditPages  # noqa: PLC0415
            from koordpolicy.engine.agent.operations import AgentOperations  # noqa: PLC0415

            pages = None if self._log is None else AuditPages(self._log, clock=time.monotonic)
            operations = AgentOperations(
                agent, self._decisions, generation=lambda: reloader.registry.generation, pages=pages,
                problems=lambda: "; ".join(
                    problem.message for source in reloader.status().sources for problem in source.problems))
            yield partial(_listen, operations, *self._options.http), operations.close


def _nothing() -> None:
    """Begin nothing."""


def _listen(operations: AgentOperations, host: str, port: int) -> None:
    try:
        url = operations.listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        raise Stop(f"cannot listen on {host}:{port}: {why.lower()}: name another address with `--http`") from None
    if host not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("whoever reaches %s:%d reads metrics and the audit log: limit who does", host, port)
    write(f"listening on {url}")
    sys.stdout.flush()
