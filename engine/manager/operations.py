"""The HTTP endpoints of the manager for operators: health, metrics, and the configuration in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.client.leader_election import renewal_fault
from koordpolicy.engine.serving.access import Access
from koordpolicy.engine.serving.client_metrics import ClientMetrics
from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.instruments import Metric, MetricSpec, MetricsRegistry, MetricType

from .server import ManagerServer

_C: Final = MetricType.COUNTER
_G: Final = MetricType.GAUGE

LEADER: Final = MetricSpec("koord_policy_manager_leader", _G, "1 if this process holds the Lease")
RECONCILIATIONS: Final = MetricSpec(
    "koord_policy_manager_reconciliations_total", _C, "Nodes that were compared with what they should be")
WRITES: Final = MetricSpec("koord_policy_manager_writes_total", _C, "Writes by result: done, failed", ("result",))
DEGRADED: Final = MetricSpec(
    "koord_policy_manager_degraded_nodes", _G, "Nodes without batch and mid resources, as their NodeMetric is stale")
QUEUE: Final = MetricSpec("koord_policy_manager_queue_length", _G, "Nodes that wait to be reconciled")
CONFIG_FAULTS: Final = MetricSpec(
    "koord_policy_manager_config_faults", _G, "Keys of slo-controller-config whose text cannot be used", ("key",))
WEBHOOKS: Final = MetricSpec(
    "koord_policy_manager_webhook_requests_total", _C, "Reviews by result: allowed, refused, malformed, failed",
    ("path", "result"))


class ManagerOperations:
    """The endpoints of a manager. They answer before the server begins, and until the process ends."""

    def __init__(self, *, access: Access | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`access` decides who may read; `clock` is that of the elector."""
        self.registry = MetricsRegistry()
        self.requests = ClientMetrics(self.registry)
        """Measures requests to the API server."""
        self.reviews = self.registry.counter(WEBHOOKS)
        self.registry.add(self)
        self._clock = clock
        self._server: ManagerServer | None = None
        lease, sync = HealthCheck("leaderElection", self._lease), HealthCheck("informer-sync", self._sync)
        self.endpoints = OperationEndpoints(
            Health({"healthz": [lease], "livez": [], "readyz": [
                lease, sync, HealthCheck("certificate", self._certificate), HealthCheck("shutdown", self._shutdown)]}),
            self.registry, configuration=self._configuration, access=access)

    def follow(self, server: ManagerServer) -> None:
        """Report about this server, before it runs."""
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the server, on each scrape."""
        server = self._server
        if server is None:
            return
        figures = server.reconciler.figures
        yield LEADER.value(int(server.leads()))
        yield RECONCILIATIONS.value(figures.reconciled)
        yield WRITES.of((("done",), figures.written), (("failed",), figures.failed))
        yield DEGRADED.value(figures.degraded)
        yield QUEUE.value(len(server.queue))
        faults = [*server.reconciler.slo.faults, *(["colocation-config"] if server.reconciler.colocation.fault else [])]
        yield CONFIG_FAULTS.of(*(((key,), 1) for key in faults))

    def _lease(self) -> str:
        server = self._server
        return "" if server is None else renewal_fault(server.settings.lease, server.election, self._clock())

    def _sync(self) -> str:
        server = self._server
        if server is not None and server.synced:
            return ""
        views = {} if server is None else {kind: informer.view for kind, informer in server.informers.items()}
        missing = [kind for kind, view in views.items() if not view.synced and not view.absent]
        return f"not all kinds are listed: {', '.join(missing)}"

    def _certificate(self) -> str:
        rotation = None if self._server is None else self._server.certificates
        return "the webhooks have no certificate yet" if rotation is not None and not rotation.ready else ""

    def _shutdown(self) -> str:
        return "process is shutting down" if self._server is not None and self._server.stopping else ""

    def _configuration(self) -> Mapping[str, Any]:
        server = self._server
        if server is None:
            return {}
        return {"sloControllerConfig": dict(server.reconciler.slo.configs),
                "colocationConfig": dict(server.reconciler.colocation.config)}
