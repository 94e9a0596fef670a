"""The agent's endpoints: health, metrics by koordlet's names, and pages of the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client.core import Metric

from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.instruments import Histogram, MetricSpec, MetricsRegistry
from koordpolicy.engine.serving.listeners import ListenerThread

from . import metric_table as table
from .audit import AuditPages, PageError
from .counts import AgentCounts
from .daemon import Conclusion
from .live_readings import LiveReadings
from .metrics_advisor.collection_metrics import CollectionMetrics
from .qos_manager.evictor import EvictionAttempt

if TYPE_CHECKING:
    from .node_agent import NodeAgent

STUCK_S: Final = 30.0
"""Seconds after which a pass that does not end makes the agent unhealthy."""
_COUNTED: Final[Mapping[str, MetricSpec]] = {
    "rounds": table.ROUNDS, "seconds": table.ROUND_SECONDS, "adjustments": table.ADJUSTMENTS, "errors": table.ERRORS,
    "writes": table.WRITES, "failures": table.FAILURES,
}
_MOST_EVICTED: Final = 1000
_BURST: Final = "cpu.cfs_burst_us"
_QUOTA: Final = "cpu.cfs_quota_us"
_TOKEN: Final = "Next-Page-Token"  # noqa: S105 - a header's name


class DecisionMetrics:
    """The metrics of strategies, writes and evictions (implements `Collector`); for any thread.

    Series of pods that are gone are dropped.
    """

    def __init__(self, node: str, counts: AgentCounts) -> None:
        """`counts` are those of the agent."""
        self.durations = Histogram(table.WRITE_MILLISECONDS)
        self._node = node
        self._counts = counts

    def wrote(self, file: str, status: str, seconds: float) -> None:
        """Measure a write."""
        self.durations.observe(seconds * 1000, file, status)

    def attempted(self, attempt: EvictionAttempt) -> None:
        """Count an eviction that succeeded."""
        if attempt.outcome.succeeded:
            self._counts.add("evictions", attempt.reason)
            if len(self._counts.read("evicted")) >= _MOST_EVICTED:
                self._counts.keep("evicted", lambda _: False)
            self._counts.add("evicted", attempt.namespace, attempt.name, attempt.reason)

    def concluded(self, conclusion: Conclusion, readings: LiveReadings) -> None:
        """Take the limits that a round has set: of the best-effort tier, and of containers."""
        if not conclusion.enforced:
            return
        for each in conclusion.report.adjustments:
            if each.kind == "suppressCPU" and "target" in each.values:
                kind = "cpuset" if each.values.get("policy") == "CPUSet" else "cfsQuota"
                self._counts.set("suppressed", kind, amount=float(str(each.values["target"])) / 1000)
        scaled = [(file, text) for each in conclusion.report.adjustments for file, text in each.writes
                  if file.count("/") == 3 and file.endswith((_BURST, _QUOTA))]
        if not scaled:
            return
        pods = {f"pod{pod.uid}": pod for pod in readings.pods}
        known = {(pod.namespace, pod.name) for pod in readings.pods}
        for counted in ("burst", "quota"):
            self._counts.keep(counted, lambda labels: labels[:2] in known)
        for file, text in scaled:
            _, directory, container, name = file.split("/")
            pod = pods.get(directory)
            if pod is not None and text.strip().lstrip("-").isdigit():
                counted = "burst" if name == _BURST else "quota"
                self._counts.set(counted, pod.namespace, pod.name, container, amount=float(text))

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        for name, spec in _COUNTED.items():
            yield spec.of(*self._counts.read(name).items())
        for name, spec in (("evictions", table.POD_EVICTION), ("evicted", table.POD_EVICTION_DETAIL),
                           ("suppressed", table.BE_SUPPRESS), ("burst", table.SCALED_BURST),
                           ("quota", table.SCALED_QUOTA)):
            yield spec.of(*(((self._node, *labels), amount) for labels, amount in self._counts.read(name).items()))
        yield from self.durations.collect()


class AgentOperations:
    """Serves the endpoints of an agent from a thread of its own."""

    def __init__(
        self, agent: NodeAgent, decisions: DecisionMetrics, *, generation: Callable[[], int],
        problems: Callable[[], str] = lambda: "", pages: AuditPages | None = None,
    ) -> None:
        """`problems` returns what is wrong with the policies; `pages` None serves no /events."""
        self._agent = agent
        self._generation = generation
        self._pages = pages
        registry = MetricsRegistry(decisions, self, CollectionMetrics(agent.advisor))
        alive = HealthCheck("rounds", self._stuck)
        ready = HealthCheck("states", lambda: "" if agent.agent.ready else agent.faults())
        self._endpoints = OperationEndpoints(
            Health({"healthz": (alive,), "livez": (alive,), "readyz": (ready, HealthCheck("policies", problems))}),
            registry)
        self._listener: ListenerThread | None = None

    def listen(self, host: str, port: int) -> str:
        """Serve from now on; return the URL. Raises `OSError` if the address is not available."""
        app = web.Application()
        self._endpoints.add_to(app)
        if self._pages is not None:
            app.router.add_get("/events", self._events)
        self._listener = ListenerThread(app, host, port)
        return self._listener.start()

    def close(self) -> None:
        """Serve no more."""
        if self._listener is not None:
            self._listener.close()
        self._endpoints.close()
        if self._pages is not None:
            self._pages.close()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the agent itself."""
        yield table.READY.value(int(self._agent.agent.ready))
        yield table.GENERATION.value(self._generation())
        age = self._agent.states.pods_age
        if age != float("inf"):
            yield table.PODS_AGE.value(age)

    def _stuck(self) -> str:
        seconds = self._agent.agent.seconds_in_pass
        return "" if seconds < STUCK_S else f"a pass of rounds has not ended for {seconds:.0f} s"

    async def _events(self, request: web.Request) -> web.Response:
        assert self._pages is not None
        try:
            page = await asyncio.get_running_loop().run_in_executor(
                None, self._pages.page, request.query.get("size", ""), request.query.get("pageToken", ""))
        except PageError as error:
            return web.Response(text=f"{error}\n", status=error.status)
        if request.headers.get("Accept") == "application/json":
            events = [json.loads(line) for line in page.lines]
            return web.json_response({"NextPageToken": page.token, "Events": events})
        headers = {_TOKEN: page.token} if page.token else {}
        return web.Response(text="".join(f"{line}\n" for line in page.lines), headers=headers)
