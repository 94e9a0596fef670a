"""The metrics of a scheduling loop that serves them."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns

from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.serving.instruments import MetricsRegistry

from ..observe.counters import Counters
from ..observe.scheduler_metrics import SchedulerMetrics, Sources
from .loop import SchedulingLoop


def measure(
    loop: SchedulingLoop, *, reloader: Reloader | None = None, counters: Counters | None = None,
    clock: Callable[[], int] = time_ns, registry: MetricsRegistry | None = None,
) -> SchedulerMetrics:
    """Return the metrics of a loop, which reports to them from now on.

    `counters` are those of its plugins, `clock` is the loop's. The metrics are added to the registry (None: a new one).
    """
    cluster = loop.scheduler.cluster

    def sizes() -> dict[str, int]:
        return {"nodes": len(cluster.names), "pods": len(cluster.objects("Pod")), "assumed_pods": loop.held}

    metrics = SchedulerMetrics(Sources(
        loop.queue.counts, sizes, loop.queue.events, loop.scheduler.binding_seconds, lambda: loop.scheduler.profiles,
        reloader, counters or Counters()), registry, clock=clock)
    loop.report_to(metrics)
    return metrics
