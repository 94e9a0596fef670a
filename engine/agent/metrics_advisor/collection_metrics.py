"""The agent's metrics of what it collects, in Prometheus' shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from koordpolicy.engine.serving.instruments import Metric

from .. import metric_table as table
from ..host.devices import GPU
from . import devices
from .advisor import MetricsAdvisor
from .measured_groups import MeasuredGroup
from .pressure import DEGREES, RESOURCES, pressure_name
from .resctrl import parse_name

_RESOURCE_TYPES: Final = {"cpu": "cpu", "memory": "mem", "io": "io"}
"""koordlet's names of pressures."""

_Series = tuple[tuple[str, ...], float]


class CollectionMetrics:
    """Yields the rows `metric_table.COLLECTION` out of the metric cache (a `serving.instruments.Collector`)."""

    def __init__(self, advisor: MetricsAdvisor, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` returns nanoseconds since the epoch, as the times of samples are."""
        self._advisor = advisor
        self._clock = clock
        self._start = clock() / 1e9

    def collect(self) -> Iterator[Metric]:
        """Yield the current state; in any thread."""
        advisor, now = self._advisor, self._clock()
        cache, node = advisor.sources.cache, advisor.sources.node
        yield table.START_TIME.of(((node,), self._start))
        # NUMA nodes are read with the processors.
        for spec, facts in ((table.NODE_CPU_INFO, advisor.node_info), (table.NODE_NUMA_INFO, advisor.node_info),
                            (table.NODE_STORAGE_INFO, advisor.node_storage)):
            counted = (("succeeded", facts.successes), ("failed", facts.failures)) if facts.enabled else ()
            yield spec.of(*(((node, status), count) for status, count in counted))
        for spec, resource, scale in ((table.NODE_USED_CPU, "cpu", 1000), (table.NODE_USED_MEMORY, "memory", 1)):
            yield spec.of(*(((name,), value / scale) for name, value in cache.latest("node", resource, now).items()))
        yield table.APPLICATION_USAGE.of(*self._applications(now))
        pods = {each.name: each for each in advisor.sources.subjects.pods}
        yield table.POD_PSI.of(*self._pressures("pod", now, lambda name: _pod_labels(node, pods.get(name))))
        containers = {each.name: each for each in advisor.sources.subjects.containers}
        yield table.CONTAINER_PSI.of(*self._pressures(
            "container", now, lambda name: _container_labels(node, containers.get(name), pods)))
        yield from self._resctrl(now)
        yield from self._devices(now)
        yield table.COLLECTOR_FAILURES.of(*(((each.name,), each.failures) for each in advisor.enabled))
        yield table.METRIC_CACHE_BYTES.value(cache.size)

    def _devices(self, now: int) -> Iterator[Metric]:
        cache, node = self._advisor.sources.cache, self._advisor.sources.node
        yield table.DEVICES.of(*(
            ((node, each.type, str(each.minor), each.name, each.address, each.driver, str(each.numa_node)),
             int(each.healthy)) for each in self._advisor.devices.devices))
        yield table.GPU_CORE.of(*(
            ((node, minor), value) for minor, value in cache.latest(GPU, devices.CORE, now).items()))
        yield table.GPU_MEMORY.of(*(
            ((node, minor, kind), value)
            for kind, resource in (("used", devices.MEMORY), ("total", devices.MEMORY_TOTAL))
            for minor, value in cache.latest(GPU, resource, now).items()))

    def _applications(self, now: int) -> Iterator[_Series]:
        sources = self._advisor.sources
        declared = {each.name: each for each in sources.subjects.applications}
        for resource, scale in (("cpu", 1000), ("memory", 1)):
            for name, value in sources.cache.latest("application", resource, now).items():
                if (found := declared.get(name)) is not None:
                    yield (sources.node, name, resource, found.priority_class, found.qos_class), value / scale

    def _pressures(
        self, what: str, now: int, labels: Callable[[str], tuple[str, ...] | None],
    ) -> Iterator[_Series]:
        cache = self._advisor.sources.cache
        values = {(resource, degree): cache.latest(what, pressure_name(resource, degree), now)
                  for resource in RESOURCES for degree in DEGREES}
        for (resource, degree), of_names in values.items():
            for name, value in of_names.items():
                if (found := labels(name)) is not None:
                    # koordlet's label says of each resource whether its file has a line `full`.
                    supported = "true" if name in values[resource, "full"] else "false"
                    yield (*found, _RESOURCE_TYPES[resource], "avg10", degree, supported), value

    def _resctrl(self, now: int) -> Iterator[Metric]:
        cache, node = self._advisor.sources.cache, self._advisor.sources.node
        occupied: list[_Series] = []
        moved: list[_Series] = []
        for resource in cache.resources("resctrl"):
            cache_id, kind = parse_name(resource)
            for qos, value in cache.latest("resctrl", resource, now).items():
                if kind:
                    moved.append(((node, cache_id, qos, kind), value))
                else:
                    occupied.append(((node, cache_id, qos), value))
        yield table.LLC_OCCUPANCY.of(*occupied)
        yield table.MEMORY_BANDWIDTH.of(*moved)


def _pod_labels(node: str, pod: MeasuredGroup | None) -> tuple[str, ...] | None:
    if pod is None:
        return None  # it is gone meanwhile
    namespace, _, name = pod.name.partition("/")
    return node, pod.identity, name, namespace


def _container_labels(
    node: str, container: MeasuredGroup | None, pods: dict[str, MeasuredGroup],
) -> tuple[str, ...] | None:
    if container is None:
        return None
    key, _, name = container.name.rpartition("/")
    pod = _pod_labels(node, pods.get(key))
    return None if pod is None else (node, container.identity, name, *pod[1:])
