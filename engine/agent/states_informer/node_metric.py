"""The status of a NodeMetric: the usage of a node and its pods, as koordlet reports it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import STATISTICS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.times import rfc3339

from ..metric_cache.series import UsageStatistics

_NS: Final = 1_000_000_000
LEAST_INTERVAL_S: Final = 30.0
_LEAST_WINDOW_S: Final = 60
_DEFAULT_INTERVAL_S: Final = 60
_DEFAULT_WINDOW_S: Final = 300
_DEFAULT_DURATIONS_S: Final = (300, 600, 1800)
_LONGEST_DURATION_S: Final = 24 * 3600
_MOST_DURATIONS: Final = 10
_COVERAGE: Final = 0.5
"""Share of a window that the samples must span, else it is reported empty."""
WITHOUT_PAGE_CACHE: Final = "usageWithoutPageCache"
MEMORY: Final[Mapping[str, str]] = {
    WITHOUT_PAGE_CACHE: "memory", "usageWithHotPageCache": "memory-with-hot-pages",
    "usageWithPageCache": "memory-with-page-cache",
}
"""The resource of the metric cache by memory collect policy."""
_DURATION: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,8})(?:\.\d{0,9})?s)?")


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """The collect policy of a NodeMetric's spec, in seconds; what is absent or malformed has koordlet's default."""

    interval: float = _DEFAULT_INTERVAL_S
    window: int = _DEFAULT_WINDOW_S
    durations: tuple[int, ...] = _DEFAULT_DURATIONS_S
    memory: str = WITHOUT_PAGE_CACHE

    @staticmethod
    def of(node_metric: Mapping[str, Any], *, least_interval: float = LEAST_INTERVAL_S) -> CollectPolicy:
        """Read the policy of an object. Intervals below `least_interval` and windows below 60 s count as these."""
        policy = _mapping(_mapping(node_metric.get("spec")).get("metricCollectPolicy"))
        texts = _mapping(policy.get("nodeAggregatePolicy")).get("durations")
        durations = tuple(sorted({
            found for each in (texts if isinstance(texts, list) else [])[:_MOST_DURATIONS]
            if (found := _seconds(each)) is not None}))
        memory = policy.get("nodeMemoryCollectPolicy")
        return CollectPolicy(
            max(_number(policy.get("reportIntervalSeconds"), _DEFAULT_INTERVAL_S), least_interval),
            int(max(_number(policy.get("aggregateDurationSeconds"), _DEFAULT_WINDOW_S), _LEAST_WINDOW_S)),
            durations or _DEFAULT_DURATIONS_S, str(memory) if memory in MEMORY else WITHOUT_PAGE_CACHE)

    def require(self, statistics: UsageStatistics) -> None:
        """Let the metric cache keep the samples that the report reads."""
        for what in ("node", "system"):
            statistics.require(what, max(self.window, *self.durations) * _NS)
        for what in ("pod", "application"):
            statistics.require(what, self.window * _NS)


@dataclass(frozen=True, slots=True)
class NodeMetricReport:
    """The inputs of a report; `now` is this machine's time and `update_time` the API server's, in ns since the epoch.

    `applications` are those of the NodeSLO; `reclaimable` is the prediction, None if there is none.
    """

    node: str
    now: int
    update_time: int
    pods: Iterable[PodInfo]
    applications: Iterable[Mapping[str, Any]]
    policy: CollectPolicy
    reclaimable: Mapping[str, float] | None = None

    def status(self, statistics: UsageStatistics) -> dict[str, Any] | None:
        """Return the status as a merge patch, sorted by names; None if the node's usage was not measured."""
        node = self._average(statistics, "node", self.node)
        if node.keys() != {"cpu", "memory"}:
            return None
        return {
            "updateTime": rfc3339(self.update_time),
            "nodeMetric": {
                "nodeUsage": _resources(node, patch=True),
                "systemUsage": _resources(self._average(statistics, "system", self.node), patch=True),
                "aggregatedNodeUsages": self._aggregated(statistics, "node"),
                "aggregatedSystemUsages": self._aggregated(statistics, "system"),
            },
            "podsMetric": [
                {"namespace": pod.namespace, "name": pod.name, "priority": pod.priority_band, "qos": pod.qos_class,
                 "podUsage": _resources(usage)}
                for pod in sorted(self.pods, key=lambda each: (each.namespace, each.name))
                if (usage := self._average(statistics, "pod", pod.key))
            ],
            "hostApplicationMetric": self._applications(statistics),
            "prodReclaimableMetric": {"resource": _resources(self.reclaimable or {}, patch=True)},
        }

    def memory_measured(self, statistics: UsageStatistics) -> bool:
        """Return whether the node's memory is measured as the policy wants it."""
        return statistics.aggregate("node", self.node, MEMORY[self.policy.memory], self._start(), self.now) is not None

    def _start(self, window: int = 0) -> int:
        return self.now - (window or self.policy.window) * _NS

    def _average(self, statistics: UsageStatistics, what: str, name: str) -> dict[str, float]:
        found = {}
        for resource in ("cpu", "memory"):
            series = MEMORY[self.policy.memory] if resource == "memory" and what != "system" else resource
            known = statistics.aggregate(what, name, series, self._start(), self.now)
            if known is not None:
                found[resource] = known.avg
        return found

    def _aggregated(self, statistics: UsageStatistics, what: str) -> list[dict[str, Any]]:
        found = []
        for duration in self.policy.durations:
            usage: dict[str, dict[str, float]] = {statistic: {} for statistic in STATISTICS}
            for resource in ("cpu", "memory"):
                series = MEMORY[self.policy.memory] if resource == "memory" and what == "node" else resource
                known = statistics.aggregate(what, self.node, series, self._start(duration), self.now)
                if known is not None and known.span >= _COVERAGE * duration * _NS:
                    for statistic, amounts in usage.items():
                        amounts[resource] = getattr(known, statistic)
            found.append({"duration": format_seconds(duration),
                          "usage": {statistic: _resources(amounts) for statistic, amounts in usage.items()}})
        return found

    def _applications(self, statistics: UsageStatistics) -> list[dict[str, Any]]:
        found = []
        for each in sorted(self.applications, key=lambda application: str(application.get("name"))):
            name = each.get("name")
            usage = self._average(statistics, "application", name) if isinstance(name, str) and name else {}
            if usage:
                optional = {key: each[key] for key in ("priority", "qos") if isinstance(each.get(key), str)}
                found.append({"name": name, **optional, "usage": _resources(usage)})
        return found


def format_seconds(seconds: int) -> str:
    """Return a duration as Go prints it (`5m0s`)."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _resources(amounts: Mapping[str, float], *, patch: bool = False) -> dict[str, Any]:
    """Return a resource map; as a `patch` it deletes resources that have no amount now."""
    found: dict[str, Any] = {}
    for resource, amount in amounts.items():
        found[resource] = f"{int(amount)}m" if resource == "cpu" else str(int(amount))
    if patch:
        found = {"cpu": None, "memory": None} | found
    return {"resources": found} if found else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(float(value), _LONGEST_DURATION_S) if is_number and value > 0 else default


def _seconds(text: Any) -> int | None:
    """Return a duration in whole seconds, 1 to a day; None if it is none."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = hours * 3600 + minutes * 60 + seconds
    return total if 0 < total <= _LONGEST_DURATION_S else None
