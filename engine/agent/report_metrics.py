"""koordlet's metrics of what a node reports and of what is published about it: usages, predictions, batch resources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.kubernetes.vocabulary import PROD
from koordpolicy.engine.serving.instruments import Metric

from . import metric_table as table
from .metric_cache.cache import MetricCache
from .parts import NodeObjects
from .prediction.predictor import Prediction

_CORE: Final = "core"
_BYTE: Final = "byte"
_INTEGER: Final = "integer"
_UNITS: Final[Mapping[str, str]] = {
    "kubernetes.io/batch-cpu": _INTEGER, "kubernetes.io/mid-cpu": _INTEGER,
    "kubernetes.io/batch-memory": _BYTE, "kubernetes.io/mid-memory": _BYTE,
}
"""The resources that the manager publishes, with koordlet's names of their units."""

_Series = tuple[tuple[str, ...], float]


class ReportMetrics:
    """Yields the rows `metric_table.REPORTS` (a `serving.instruments.Collector`); for any thread."""

    def __init__(
        self, node: str, states: NodeObjects, cache: MetricCache, *, usage: Callable[[], Mapping[str, Any]] = dict,
        prediction: Callable[[], Prediction] = Prediction, clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`usage` returns `nodeMetric` of the last report and `prediction` its prediction, both empty without one."""
        self._node = node
        self._states = states
        self._cache = cache
        self._usage = usage
        self._prediction = prediction
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        usage = self._usage()
        for spec, field in ((table.NODE_METRIC_NODE, "nodeUsage"), (table.NODE_METRIC_SYSTEM, "systemUsage")):
            resources = (usage.get(field) or {}).get("resources") or {}
            yield spec.of(*(((self._node, resource, unit), amount) for resource, unit, amount in _amounts(resources)))
        now = self._clock()
        for spec, what in ((table.NODE_METRIC_NUMA, "numaNode"), (table.NODE_METRIC_NUMA_SYSTEM, "systemNumaNode")):
            yield spec.of(*(
                ((self._node, name, resource, unit), amount / scale)
                for resource, unit, scale in (("cpu", _CORE, 1000), ("memory", _BYTE, 1))
                for name, amount in self._cache.latest(what, resource, now).items()))
        prediction = self._prediction()
        for spec, found in ((table.PREDICTED_RECLAIMABLE, prediction.reclaimable),
                            (table.PREDICTED_PEAK, prediction.peaks)):
            yield spec.of(*(((self._node, predictor, *labels), amount) for predictor, amounts in found.items()
                            for labels, amount in _in_base_units(amounts)))
        yield table.PROD_RECLAIMABLE.of(*(
            ((self._node, PROD, *labels), amount) for labels, amount in _in_base_units(prediction.result)))
        status = (self._states.node or {}).get("status")
        allocatable = status.get("allocatable") if isinstance(status, Mapping) else None
        yield table.ALLOCATABLE.of(*(
            ((self._node, resource, unit), amount) for resource, unit, amount in _published(allocatable)))
        yield from self._containers()

    def _containers(self) -> Iterator[Metric]:
        for spec, which in ((table.CONTAINER_REQUESTS, "requests"), (table.CONTAINER_LIMITS, "limits")):
            yield spec.of(*self._of_containers(which))

    def _of_containers(self, which: str) -> Iterator[_Series]:
        for pod in self._states.pods:
            ids = {each.get("name"): str(each.get("containerID") or "")
                   for each in (pod.object.get("status") or {}).get("containerStatuses") or ()}
            for container in (pod.object.get("spec") or {}).get("containers") or ():
                amounts = (container.get("resources") or {}).get(which)
                for resource, unit, amount in _published(amounts):
                    yield (self._node, resource, unit, pod.uid, pod.name, pod.namespace,
                           ids.get(container.get("name"), ""), str(container.get("name") or "")), amount


def _amounts(resources: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield cpu in cores and memory in bytes with their units."""
    for resource, unit, scale in (("cpu", _CORE, 1000), ("memory", _BYTE, 1)):
        if resources.get(resource) is not None:
            yield resource, unit, canonical_amount(resource, resources[resource], resource) / scale


def _in_base_units(amounts: Mapping[str, float]) -> Iterator[tuple[tuple[str, str], float]]:
    for resource, amount in amounts.items():
        yield (resource, _CORE if resource == "cpu" else _BYTE), amount / (1000 if resource == "cpu" else 1)


def _published(resources: Any) -> Iterator[tuple[str, str, float]]:
    """Yield the batch and mid resources of a resource list, without those that are malformed."""
    if not isinstance(resources, Mapping):
        return
    for resource, unit in _UNITS.items():
        try:
            amount = canonical_amount(resource, resources[resource], resource)
        except (ValueError, KeyError):
            continue
        yield resource, unit, amount
