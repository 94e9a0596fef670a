"""The HTTP endpoints of a live descheduler for operators: health, metrics, status, and the configuration in use."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from koordpolicy.engine.client.leader_election import renewal_fault
from koordpolicy.engine.cluster.sources.changes import views_status
from koordpolicy.engine.reload.followed_file import FollowedFile
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.serving.access import Access
from koordpolicy.engine.serving.client_metrics import ClientMetrics
from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.instruments import Metric, MetricsRegistry

from . import metric_table as table
from .evictions import AttemptedEviction
from .loop import CycleReport
from .server import DeschedulerServer

_STUCK_S: Final = 600.0
"""Seconds without a round of the descheduling thread after which the process is not alive: a cycle may be long."""
_LAST_EVICTIONS: Final = 100


class DeschedulerOperations:
    """The endpoints of a live descheduler. They answer before it begins, and until the process ends."""

    def __init__(self, *, access: Access | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`access` decides who may read; `clock` is that of the elector."""
        self.registry = MetricsRegistry()
        self.requests = ClientMetrics(self.registry)
        """Measures requests to the API server."""
        self._evicted = self.registry.counter(table.PODS_EVICTED)
        self._cycles = self.registry.counter(table.CYCLES)
        self._seconds = self.registry.histogram(table.CYCLE_SECONDS)
        self._candidates = self.registry.counter(table.CANDIDATES)
        self._failures = self.registry.counter(table.FAILURES)
        self._attempts: deque[AttemptedEviction] = deque(maxlen=_LAST_EVICTIONS)
        self._clock = clock
        self._server: DeschedulerServer | None = None
        self._reloader: Reloader | None = None
        self._file: FollowedFile[Any] | None = None
        self.registry.add(self)
        lease, alive = HealthCheck("leaderElection", self._lease), HealthCheck("descheduling", self._stuck)
        self.endpoints = OperationEndpoints(
            Health({"healthz": [lease, alive], "livez": [alive], "readyz": [
                lease, HealthCheck("informer-sync", self._sync), HealthCheck("policies", self._policies),
                HealthCheck("shutdown", self._shutdown)]}),
            self.registry, configuration=self._configuration, status=self._status, access=access)

    @property
    def generation(self) -> int | None:
        """The active generation; None until there is one."""
        return None if self._server is None else self._server.descheduler.view.generation or None

    def follow(self, server: DeschedulerServer, reloader: Reloader, file: FollowedFile[Any] | None) -> None:
        """Report about this server, before it runs; `file` is that of the configuration."""
        self._server, self._reloader, self._file = server, reloader, file

    # Observation, in the descheduling thread

    def attempted(self, attempt: AttemptedEviction) -> None:
        """Count an eviction."""
        self._evicted.add(attempt.result, attempt.strategy, attempt.namespace, attempt.node)
        if attempt.sent:
            self._attempts.append(attempt)

    def observe(self, report: CycleReport) -> None:
        """Count a cycle, and what it did; of a dry run the evictions, too."""
        result = report.result
        self._cycles.add("stale" if report.stale else "failed" if result.error else "completed")
        self._seconds.observe(report.seconds)
        for each in result.evicted if result.dry_run else ():
            self._evicted.add("dry-run", each.decision.plugin, each.pod.partition("/")[0], each.node)
        for labels, number in result.decisions.staying().items():
            self._candidates.add(*labels, amount=number)
        for failure in result.failures:
            self._failures.add(failure.plugin)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the process, on each scrape."""
        server = self._server
        if server is None:
            return
        view, now = server.descheduler.view, time.time()
        yield table.LEADER.value(int(server.leads()))
        yield table.READY.value(int(not self._sync() and not self._policies()))
        yield table.GENERATION.value(view.generation)
        if view.last is not None:
            yield table.LAST_CYCLE.value(view.last.began)
        kinds = {kind: each for kind, each in server.feed.views.items() if each.listed}
        yield table.STALENESS.of(*(((kind,), max(0.0, now - each.listed)) for kind, each in kinds.items()))
        yield table.FAULTY_WATCH.of(*(((kind,), int(each.stale)) for kind, each in kinds.items()))
        yield table.HELD_BUDGETS.value(len(server.evictions.holds().keys() - {"*"}))
        yield table.CONFIGURATION_REFUSED.value(int(bool(self._refusal())))
        shards = server.shards
        if shards is not None:
            yield table.SHARD_HELD.value(int(bool(shards.shard)))
            yield table.SHARD_MEMBERS.value(len(shards.members))
            yield table.LEDGER_EVICTIONS.value(shards.evictions)
        figures = server.migrations.figures
        yield table.MIGRATION_JOBS.of((("waiting",), figures.waiting), (("running",), figures.running))
        yield table.MIGRATIONS_ENDED.of(*figures.ended.items())
        yield table.MIGRATION_STEPS.of((("done",), figures.steps - figures.failures), (("failed",), figures.failures))

    # Health

    def _lease(self) -> str:
        server = self._server
        return "" if server is None else renewal_fault(server.settings.lease, server.election, self._clock())

    def _stuck(self) -> str:
        view = None if self._server is None else self._server.descheduler.view
        if view is None or not view.synced or view.stopping:
            return ""
        age = time.monotonic() - view.looked_at
        return f"no round has ended for {age:.0f} s" if age > _STUCK_S else ""

    def _sync(self) -> str:
        server = self._server
        if server is not None and server.descheduler.view.synced:
            return ""
        views = {} if server is None else server.feed.views
        missing = [f"{kind} ({view.fault})" if view.fault else kind for kind, view in views.items() if not view.listed]
        return f"not all kinds are listed: {', '.join(missing)}"

    def _policies(self) -> str:
        emptied = () if self._reloader is None else self._reloader.status().emptied
        return f"no policies are left in {', '.join(emptied)}" if emptied else ""

    def _shutdown(self) -> str:
        stopping = self._server is not None and self._server.descheduler.view.stopping
        return "process is shutting down" if stopping else ""

    def _refusal(self) -> str:
        server, file = self._server, self._file
        if file is not None and file.status.problems:
            return "; ".join(problem.message for problem in file.status.problems)
        return "" if server is None else server.activator.fault

    # Pages

    def _status(self) -> Mapping[str, Any]:
        server, reloader = self._server, self._reloader
        if server is None or reloader is None:
            return {"ready": False}
        view, feed = server.descheduler.view, server.feed
        last = view.last
        return {
            "ready": not self._sync() and not self._policies(), "leading": server.leads(),
            "generation": view.generation, "nodes": view.nodes, "pods": view.pods, "cycles": view.cycles,
            "nextCycle": view.next_cycle,
            "lastCycle": None if last is None else {
                "began": last.began, "seconds": round(last.seconds, 3), "stale": list(last.stale),
                **last.result.to_json()},
            "evictions": [asdict(each) for each in tuple(self._attempts)],
            "held": {name: {"reason": reason, "seconds": round(left, 1)}
                     for name, (reason, left) in server.evictions.holds().items()},
            **({} if server.shards is None else {"shards": server.shards.to_json()}),
            "configuration": {"file": None if self._file is None else self._file.status.to_json(),
                              "fault": server.activator.fault or None},
            "cluster": views_status(feed.views, feed.lag_s, time.time()),
            "policies": reloader.status().to_json() | {"reloadSeconds": round(reloader.seconds_at_work, 3)},
        }

    def _configuration(self) -> Mapping[str, Any]:
        server = self._server
        return {} if server is None else dict(server.configuration.plain)
