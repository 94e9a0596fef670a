"""The measurements of a node at one time: the half of `NodeReadings` that is the same live and recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from koordpolicy.engine.cel.values.values import EvaluationError

from .series import STATISTICS, Series


class MetricReadings(ABC):
    """Statistics over the series of one node until one time; the parts of `NodeReadings` that need no objects."""

    def __init__(self, node: str, now: int, interval: int) -> None:
        """`now` in nanoseconds since the epoch; `interval` is that of the collection, in nanoseconds."""
        self._node = node
        self._now = now
        self._interval = interval

    @abstractmethod
    def _series(self, what: str, name: str) -> Mapping[str, Series]:
        """Return the series of a subject by resource."""

    @property
    def now(self) -> int:
        """The time, in nanoseconds since the epoch."""
        return self._now

    @property
    def collect_interval(self) -> int:
        """The time between two collections, in nanoseconds."""
        return self._interval

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the node's usage."""
        return self._usage("node", self._node, resource, statistic, window)

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the pod's usage."""
        return self._usage("pod", key, resource, statistic, window)

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the usage of a declared host application."""
        return self._usage("application", name, resource, statistic, window)

    def container_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the usage of a container (`namespace/pod/container`)."""
        return self._usage("container", key, resource, statistic, window)

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        """Return the CPU of the best-effort tier in milli-cores: its `usage`, `request` or `realLimit`."""
        return self._usage("bestEffort", self._node, allocation, statistic, window)

    def measured(self, what: str, name: str, statistic: str, window: int) -> dict[str, float]:
        """Return all resources measured within the window of a `node`, `pod`, `container` or `application`."""
        found = {}
        for resource, series in self._series(what, name).items():
            values = series.between(self._now - window, self._now)
            if values:
                found[resource] = STATISTICS[statistic](values)
        return found

    def age(self) -> int:
        """Return the age of the node's last sample, in nanoseconds; raise `EvaluationError` if there is none."""
        newest = (series.newest(self._now) for series in self._series("node", self._node).values())
        times = [time for time in newest if time is not None]
        if not times:
            raise EvaluationError(f"no sample of node `{self._node}` yet", reason="NoMetric")
        return self._now - max(times)

    def _usage(self, what: str, name: str, resource: str, statistic: str, window: int) -> float:
        series = self._series(what, name).get(resource)
        start = self._now - (window or 2 * self._interval)
        values = series.between(start, self._now) if series is not None else ()
        if statistic == "count":
            return len(values)
        if not values:
            raise not_measured(what, name, resource)
        return STATISTICS[statistic](values)


def not_measured(what: str, name: str, resource: str) -> EvaluationError:
    """Return the error of a usage without a sample in the window."""
    return EvaluationError(f"no sample of {resource} of {what} `{name}` in the window", reason="NoMetric")
