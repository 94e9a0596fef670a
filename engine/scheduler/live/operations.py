"""The HTTP endpoints of a live scheduler for operators: health, metrics, status, and the configuration in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.client.leader_election import renewal_fault
from koordpolicy.engine.cluster.sources.changes import views_status
from koordpolicy.engine.cluster.sources.feed import Feed
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.serving.access import Access
from koordpolicy.engine.serving.client_metrics import ClientMetrics
from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.instruments import Metric, MetricsRegistry

from ..cycle.measuring import measure
from ..observe import metric_table as table
from ..observe.counters import Counters
from ..observe.pod_resources import PodResources
from ..profiles.profile import Profile
from ..status import scheduler_status
from .server import LiveServer
from .waiting import waiting_status

_STALE_S: Final = 60.0
"""Seconds without a round of the deciding thread after which the process is not alive."""


class Operations:
    """The endpoints of a live scheduler. They answer before the scheduler begins, and until the process ends."""

    def __init__(
        self, *, counters: Counters, access: Access | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counters` are those of the plugins; `access` decides who may read; `clock` is that of the elector."""
        self.registry = MetricsRegistry()
        self.requests = ClientMetrics(self.registry)
        """Measures requests to the API server."""
        self.counters = counters
        self._clock = clock
        self._server: LiveServer | None = None
        self._reloader: Reloader | None = None
        lease, alive = HealthCheck("leaderElection", self._lease), HealthCheck("deciding", self._deciding)
        self.endpoints = OperationEndpoints(
            Health({
                "healthz": [lease, alive], "livez": [alive],
                "readyz": [lease, HealthCheck("shutdown", self._shutdown),
                           HealthCheck("sched-handler-sync", self._sync), HealthCheck("policies", self._policies)],
            }), self.registry, configuration=self._configuration, status=self._status, access=access,
            texts={"/metrics/resources": self._resources}, pages={"/waiting": self._waiting})

    @property
    def generation(self) -> int | None:
        """The active generation; None until there is one, and once the scheduler is closed."""
        loop = None if self._server is None else self._server.scheduler.loop
        profiles = () if loop is None else loop.scheduler.profiles
        return profiles[0].generation if profiles else None

    def follow(self, server: LiveServer, reloader: Reloader) -> None:
        """Report about this server from now on; called before it runs."""
        self._server, self._reloader = server, reloader

    def measure(self) -> None:
        """Measure the server's loop, which exists by now; in the deciding thread."""
        server = self._server
        assert server is not None
        assert server.scheduler.loop is not None
        measure(server.scheduler.loop, registry=self.registry, reloader=self._reloader, counters=self.counters)
        self.registry.add(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the process, on each scrape."""
        server = self._server
        assert server is not None
        view, election = server.scheduler.view, server.election
        yield table.READY.value(int(not self._sync() and not self._policies()))
        lease = server.settings.lease
        if election is not None and lease is not None:
            yield table.LEADER.of(((lease.name,), int(election.state.leading)))
            yield table.SLOW_PATHS.of(((lease.name,), election.state.slow_paths))
        yield table.LOST_PODS.value(view.lost_pods)
        yield table.CORRECTED_BINDINGS.value(view.corrected_bindings)
        yield table.OLDEST_UNSCHEDULED.value(view.oldest_unscheduled_s)
        yield from self._of_feed(server.feed)

    def _of_feed(self, feed: Feed) -> Iterator[Metric]:
        view = feed.view
        yield table.LAST_REFRESH.value(time.time() - feed.oldest_view_age())
        yield table.LAST_KIND_REFRESH.of(*(((kind,), each.listed) for kind, each in view.kinds.items()
                                           if kind not in view.absent))
        yield table.KIND_STALE.of(*(((kind,), int(each.stale)) for kind, each in view.kinds.items()
                                    if kind not in view.absent))
        yield table.WATCH_LAG.histogram(((), feed.lags, feed.lag_sum_s))
        yield table.CACHE_MISMATCH.of(*view.mismatches.items())
        yield table.FAULTY_OBJECTS.value(view.faulty)

    # Health

    def _lease(self) -> str:
        server = self._server
        return "" if server is None else renewal_fault(server.settings.lease, server.election, self._clock())

    def _deciding(self) -> str:
        view = None if self._server is None else self._server.scheduler.view
        if view is None or not view.synced or view.stopping:
            return ""
        age = time.monotonic() - view.looked_at
        return f"no decision has ended for {age:.0f} s" if age > _STALE_S else ""

    def _shutdown(self) -> str:
        return "process is shutting down" if self._server is not None and self._server.scheduler.view.stopping else ""

    def _sync(self) -> str:
        synced = self._server is not None and self._server.scheduler.view.synced
        return "" if synced else "handlers are not fully synchronized"

    def _policies(self) -> str:
        emptied = () if self._reloader is None else self._reloader.status().emptied
        if not emptied:
            return ""
        paths = ", ".join(f"`{path}`" for path in emptied)
        return f"{paths} holds no policy, and the last good set decides"

    # Status

    def _status(self) -> Mapping[str, Any]:
        server, reloader = self._server, self._reloader
        loop = None if server is None else server.scheduler.loop
        if server is None or reloader is None or loop is None:
            return {"ready": False}
        feed, view = server.feed, server.scheduler.view
        kinds = {kind: each for kind, each in feed.view.kinds.items() if kind not in feed.view.absent}
        cluster = {"source": "kube", "nodes": len(server.scheduler.cluster.names)} | views_status(
            kinds, feed.lag_s, time.time())
        found = scheduler_status(loop.scheduler, reloader, cluster)
        return found | {
            "ready": found["ready"] and not self._sync() and not self._shutdown(),
            "leading": server.leads(),
            "oldestUnscheduledSeconds": round(view.oldest_unscheduled_s, 3),
            "lostPods": view.lost_pods,
            "correctedBindings": view.corrected_bindings,
        }

    def _waiting(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the pods that wait, or one of them with `?pod=NAMESPACE/NAME`."""
        server = self._server
        loop = None if server is None else server.scheduler.loop
        if server is None or loop is None:
            return {"parts": {}, "leftOut": 0, "pods": []}
        return waiting_status(loop, server.scheduler.reasons, server.feed.now(), pod=query.get("pod", ""))

    def _resources(self) -> Iterable[bytes]:
        server = self._server
        return () if server is None else MetricsRegistry(PodResources(server.scheduler.cluster, server.leads)).blocks()

    # Configuration

    def _configuration(self) -> Mapping[str, Any]:
        """Return the configuration in the form of kube-scheduler's, without defaults that mean nothing here."""
        found: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        server = self._server
        if server is None:
            return found
        settings, lease = server.settings, server.settings.lease
        found["clientConnection"] = {"qps": settings.qps, "burst": settings.burst}
        found["leaderElection"] = {"leaderElect": lease is not None}
        if lease is not None:
            found["leaderElection"] |= {
                "leaseDuration": f"{lease.lease_s:g}s", "renewDeadline": f"{lease.renew_s:g}s",
                "retryPeriod": f"{lease.retry_s:g}s", "resourceLock": "leases", "resourceName": lease.name,
                "resourceNamespace": lease.namespace}
        loop = server.scheduler.loop
        if loop is not None:
            queue = loop.scheduler.settings
            found["podInitialBackoffSeconds"] = queue.initial_backoff / 1e9
            found["podMaxBackoffSeconds"] = queue.longest_backoff / 1e9
            found["profiles"] = [_profile(profile) for profile in loop.scheduler.profiles]
        return found


def _profile(profile: Profile) -> dict[str, Any]:
    return {"schedulerName": profile.name, "plugins": {
        point.value: {"enabled": [
            {"name": each.name, "weight": each.weight} if point is Point.SCORE else {"name": each.name}
            for each in found]}
        for point, found in profile.at.items() if found}}
