"""Observers of the node agent that its options name: audit log, recording, metrics and endpoints."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import delegation
from .cluster_loading import context_of
from .exits import Stop, refuse_given
from .serving import tls_of, unavailable
from .terminal import write

if TYPE_CHECKING:
    from koordpolicy.engine.agent.node_agent import NodeAgent
    from koordpolicy.engine.agent.node_recorder import NodeRecorder
    from koordpolicy.engine.agent.operations import AgentOperations
    from koordpolicy.engine.framework.qos import Host
    from koordpolicy.engine.reload.reloader import Reloader
    from koordpolicy.engine.serving.access import DelegatedAccess
    from koordpolicy.engine.serving.certificates import CertificateFiles

_LOG: Final = logging.getLogger(__name__)


class Observed:
    """The observers, for `NodeAgent`, and the parts that begin and end with it; only what is used is imported."""

    def __init__(self, options: argparse.Namespace) -> None:
        from koordpolicy.engine.agent.counts import AgentCounts

        self.counts = AgentCounts()
        self.observers: list[Any] = []
        self.on_attempt: list[Any] = []
        self.metric: Any = None
        self.requests: Any = None
        self.kubelet_requests: Any = None
        self._options = options
        self._log: Any = None
        self._recorder: Any = None
        self._decisions: Any = None
        if options.audit_log_dir is not None:
            from koordpolicy.engine.agent.audit import AuditLog, AuditSettings
            from koordpolicy.engine.agent.audit_events import AuditEvents

            self._log = AuditLog(AuditSettings(options.audit_log_dir), clock=time.monotonic)
            events = AuditEvents(self._log)
            self.observers.append(events.concluded)
            self.on_attempt.append(events.attempted)
        if options.http is not None:
            from koordpolicy.engine.agent.operations import DecisionMetrics
            from koordpolicy.engine.serving.client_metrics import ClientMetrics
            from koordpolicy.engine.serving.instruments import MetricsRegistry

            self._decisions = DecisionMetrics(options.node_name, self.counts)
            self.observers.append(self._decisions.concluded)
            self.on_attempt.append(self._decisions.attempted)
            self.metric = self._decisions.wrote
            self._registry = MetricsRegistry()
            self.requests = ClientMetrics(self._registry)
            self.kubelet_requests = self._decisions.asked_kubelet

    def recorder(self, host: Callable[[], Host]) -> NodeRecorder | None:
        """Return the recorder of the file that `--record` names; None without it."""
        if self._options.record is None:
            return None
        from koordpolicy.engine.agent.node_recorder import NodeRecorder

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
        """Yield the parts that begin and end with the agent."""
        if self._log is not None:
            yield _nothing, self._log.flush
        if self._recorder is not None:
            yield _nothing, self._recorder.close
        if self._decisions is not None:
            from koordpolicy.engine.agent.audit import AuditPages
            from koordpolicy.engine.agent.operations import AgentOperations

            pages = None if self._log is None else AuditPages(self._log, clock=time.monotonic)
            operations = AgentOperations(
                agent, self._decisions, generation=lambda: reloader.registry.generation, pages=pages,
                access=_access_of(self._options), registry=self._registry,
                problems=lambda: "; ".join(
                    problem.message for source in reloader.status().sources for problem in source.problems))
            host, port = self._options.http
            yield partial(_listen, operations, host, port, _certificate_of(self._options)), operations.close


def _nothing() -> None:
    """Begin nothing."""


def check_serving(options: argparse.Namespace) -> None:
    """Raise `Stop` for options of the endpoints that contradict each other, or name files that are not there."""
    if options.http is None:
        refuse_given(options, ("tls_cert", "tls_key", "client_ca", *delegation.OPTIONS), "goes with `--http`")
        return
    if options.tls_cert is not None or options.tls_key is not None or options.client_ca is not None:
        tls_of(options, certificates_optional=True)
    _access_of(options)


def _access_of(options: argparse.Namespace) -> DelegatedAccess | None:
    """Return the access control of requests; nothing is imported unless the options require it."""
    if not delegation.protects(options):
        return delegation.access_of(options)
    from koordpolicy.engine.client.kubeconfig import load_connection

    return delegation.access_of(options, partial(load_connection, context_of(options.cluster)))


def _certificate_of(options: argparse.Namespace) -> CertificateFiles | None:
    if options.tls_cert is None:
        return None
    from koordpolicy.engine.serving.certificates import CertificateFiles

    context = tls_of(options, certificates_optional=True)
    assert context is not None
    return CertificateFiles(context, options.tls_cert, options.tls_key)


def _listen(
    operations: AgentOperations, host: str, port: int, certificate: CertificateFiles | None,
) -> None:
    try:
        url = operations.listen(host, port, certificate)
    except OSError as error:
        raise unavailable((host, port), "--http", error) from None
    if not operations.protected and host not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("whoever reaches %s:%d reads metrics and the audit log: limit who does", host, port)
    write(f"listening on {url}")
    sys.stdout.flush()
