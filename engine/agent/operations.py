"""The agent's endpoints: health, metrics by koordlet's names, and pages of the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.vocabulary import BE
from koordpolicy.engine.serving.access import Access
from koordpolicy.engine.serving.certificates import CertificateFiles
from koordpolicy.engine.serving.endpoints import OperationEndpoints
from koordpolicy.engine.serving.health import Health, HealthCheck
from koordpolicy.engine.serving.instruments import Histogram, Metric, MetricSpec, MetricsRegistry
from koordpolicy.engine.serving.listeners import ListenerThread
from koordpolicy.engine.serving.long_texts import in_blocks
from koordpolicy.engine.serving.process_metrics import ProcessMetrics

from . import metric_table as table
from .audit import AuditPages, PageError
from .counts import AgentCounts
from .cpuset import parse_cpuset
from .daemon import Conclusion
from .live_readings import LiveReadings
from .metrics_advisor.collection_metrics import CollectionMetrics
from .qos_manager.evictor import EvictionAttempt
from .qos_manager.suppression import CPUSET_FILE, QUOTA_FILE
from .report_metrics import ReportMetrics
from .states_informer.node_topology import BE_SHARED_POOLS_ANNOTATION, SHARED_POOLS_ANNOTATION

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
_PERIOD_US: Final = 100_000
"""The period of the best-effort tier's quota (qos.md 4.2.3)."""
_SUPPRESSING: Final[Mapping[str, str]] = {CPUSET_FILE: "cpuset", QUOTA_FILE: "cfsQuota"}
_TOKEN: Final = "Next-Page-Token"  # noqa: S105 - a header's name


class DecisionMetrics:
    """The metrics of strategies, writes and evictions (implements `Collector`); for any thread.

    Series of pods that are gone are dropped.
    """

    def __init__(self, node: str, counts: AgentCounts) -> None:
        """`counts` are those of the agent."""
        self.durations = Histogram(table.WRITE_MILLISECONDS)
        self.kubelet = Histogram(table.KUBELET_SECONDS)
        self._node = node
        self._counts = counts

    def wrote(self, file: str, status: str, seconds: float) -> None:
        """Measure a write."""
        self.durations.observe(seconds * 1000, file, status)

    def asked_kubelet(self, path: str, code: int, seconds: float) -> None:
        """Measure a request to the kubelet; the code is 0 if there was no answer."""
        self.kubelet.observe(seconds, "GET", path, str(code) if code else "<error>")

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
        failed = {write.file for each in conclusion.results for write in each.writes if write.failed}
        for each in conclusion.report.adjustments:
            if each.kind == "suppressCPU":
                for file, text in each.writes:
                    if file not in failed:
                        self._suppressed(file, text, recovers=each.recovers)
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
                self._counts.set(counted, pod.namespace, pod.name, _container_id(pod, container), container,
                                 amount=float(text))

    def _suppressed(self, file: str, text: str, *, recovers: bool) -> None:
        """Take what limits the best-effort tier: the number of CPUs of its set, or the cores of its quota."""
        kind = _SUPPRESSING.get(file)
        if kind is None:
            return
        try:
            cores = len(parse_cpuset(text)) if file == CPUSET_FILE else int(text) / _PERIOD_US
        except ValueError:
            return
        if recovers or cores <= 0:
            self._counts.keep("suppressed", lambda labels: labels != (kind,))
        else:
            self._counts.set("suppressed", kind, amount=cores)

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        for name, spec in _COUNTED.items():
            yield spec.of(*self._counts.read(name).items())
        for name, spec in (("evictions", table.POD_EVICTION), ("evicted", table.POD_EVICTION_DETAIL),
                           ("suppressed", table.BE_SUPPRESS), ("burst", table.SCALED_BURST),
                           ("quota", table.SCALED_QUOTA)):
            yield spec.of(*(((self._node, *labels), amount) for labels, amount in self._counts.read(name).items()))
        yield from self.durations.collect()
        yield from self.kubelet.collect()


class AgentOperations:
    """Serves the endpoints of an agent from a thread of its own."""

    def __init__(
        self, agent: NodeAgent, decisions: DecisionMetrics, *, generation: Callable[[], int],
        problems: Callable[[], str] = lambda: "", pages: AuditPages | None = None, access: Access | None = None,
        registry: MetricsRegistry | None = None,
    ) -> None:
        """`problems` returns what is wrong with the policies; `pages` None serves no /events.

        `access` decides who may read what but health; None lets everybody read everything. `registry` has further
        metrics.
        """
        self._agent = agent
        self._generation = generation
        self._pages = pages
        registry = registry or MetricsRegistry()
        for each in (decisions, self, CollectionMetrics(agent.advisor), ReportMetrics(
                agent.settings.node, agent.states, agent.cache, usage=lambda: agent.reported_usage,
                prediction=lambda: agent.prediction)):
            registry.add(each)
        alive = HealthCheck("rounds", self._stuck)
        ready = HealthCheck("states", lambda: "" if agent.agent.ready else agent.faults())
        self._endpoints = OperationEndpoints(
            Health({"healthz": (alive,), "livez": (alive,), "readyz": (ready, HealthCheck("policies", problems))}),
            registry, access=access, texts=halves(MetricsRegistry(registry, ProcessMetrics())))
        self._listener: ListenerThread | None = None

    @property
    def protected(self) -> bool:
        """True if reads are authorized."""
        return self._endpoints.protected

    def listen(self, host: str, port: int, certificate: CertificateFiles | None = None) -> str:
        """Serve from now on; return the URL. Raises `OSError` if the address is not available."""
        app = web.Application()
        self._endpoints.add_to(app)
        if self._pages is not None:
            self._endpoints.add(app, "/events", self._events)
        if certificate is not None:
            app.cleanup_ctx.append(certificate.follow)
        self._listener = ListenerThread(app, host, port, None if certificate is None else certificate.context)
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
        yield from self._used()
        yield from self._shared()

    def _used(self) -> Iterator[Metric]:
        """Yield the CPU that best-effort pods and all others use, as far as it is measured."""
        measured = self._agent.cache.latest("pod", "cpu", time.time_ns())
        best_effort = {pod.key for pod in self._agent.states.pods if pod.qos_class == BE}
        for spec, chosen in ((table.LS_USED, measured.keys() - best_effort), (table.BE_USED, best_effort)):
            used = [measured[key] for key in chosen if key in measured]
            yield spec.of(*(((self._agent.settings.node,), sum(used) / 1000),) if measured else ())

    def _shared(self) -> Iterator[Metric]:
        """Yield the CPUs that pods share, by the annotations of the topology."""
        node = self._agent.settings.node
        for annotation, amount, cpus in (
                (SHARED_POOLS_ANNOTATION, table.SHARE_POOL, table.SHARE_POOL_CPUS),
                (BE_SHARED_POOLS_ANNOTATION, table.BE_SHARE_POOL, table.BE_SHARE_POOL_CPUS)):
            found = _pool(self._agent.states.topology, annotation)
            yield amount.of(*(((node,), len(found)),) if found else ())
            yield cpus.of(*(((node, str(cpu)), 1) for cpu in sorted(found)))

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


def halves(registry: MetricsRegistry) -> Mapping[str, Callable[[], Iterable[bytes]]]:
    """Return koordlet's pages of metrics by path, in blocks: those of workloads, and all others."""
    names = {spec.name for spec in table.EXTERNAL}

    def page(*, external: bool) -> Iterable[bytes]:
        return in_blocks(line for metric in registry.collect() if (metric.spec.name in names) is external
                         for line in metric.lines())

    return {"/internal-metrics": partial(page, external=False), "/external-metrics": partial(page, external=True)}


def _container_id(pod: PodInfo, name: str) -> str:
    """Return the id of a pod's container (`containerd://ID`); empty until its status is known."""
    statuses = (pod.object.get("status") or {}).get("containerStatuses") or ()
    return next((str(each.get("containerID") or "") for each in statuses if each.get("name") == name), "")


def _pool(topology: Mapping[str, Any] | None, annotation: str) -> frozenset[int]:
    """Return the CPUs of all entries of an annotation with shared pools; none if it is not there, or malformed."""
    text = (((topology or {}).get("metadata") or {}).get("annotations") or {}).get(annotation)
    try:
        return frozenset().union(*(parse_cpuset(each["cpuset"]) for each in json.loads(text or "[]")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return frozenset()
