"""NodeMetrics: current usage of a node, percentiles, and the time of measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NoReturn

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.kubernetes.objects import NANOSECONDS, check_object, nanoseconds

from .pods import ResourceList, mapping_at, objects_at, resource_list, text_at

__all__ = [
    "NANOSECONDS", "STATISTICS", "WINDOWS", "MeasuredList", "NodeMetric", "Unmeasured", "duration_text", "is_window",
    "nanoseconds", "unmeasured",
]

STATISTICS: Final = ("avg", "p50", "p90", "p95", "p99")
WINDOWS: Final = "over"
"""The key of a usage's statistics by duration."""

_DEFAULT_REPORT_INTERVAL: Final = 60
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?)(h|ms|m|us|µs|ns|s)")
_DURATIONS: Final = re.compile(f"(?:{_DURATION.pattern})+")
_LONGEST: Final = 40  # characters of a duration
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def unmeasured(message: str) -> EvaluationError:
    """Return the error of reading a metric that is absent or expired."""
    return EvaluationError(message, reason="NoMetric")


class Unmeasured(dict[str, Any]):
    """A resource list that was not measured: reading it is the error `NoMetric`."""

    __slots__ = ("message",)

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def __missing__(self, _: str) -> NoReturn:
        raise unmeasured(self.message)

    def _refuse(self, *_: object) -> NoReturn:
        raise unmeasured(self.message)

    get = _refuse
    __contains__ = _refuse
    __iter__ = _refuse
    __len__ = _refuse
    __eq__ = _refuse
    __ne__ = _refuse
    __hash__ = None
    keys = values = items = _refuse

    def __repr__(self) -> str:
        return f"<{self.message}>"


class MeasuredList(dict[str, Any]):
    """Measured amounts by resource, and resource lists by statistic (`p90`); a resource without one is an error."""

    __slots__ = ()

    def __missing__(self, name: str) -> NoReturn:
        raise unmeasured(f"no metric of `{name}`")

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - absence is an error, never a default
        """Return the amount; raise `EvaluationError` (NoMetric) if there is none."""
        return self[key]


class Windows(dict[str, Any]):
    """Statistics of a usage by the duration that they are over, such as `5m`; a duration without any is an error."""

    __slots__ = ()

    def __missing__(self, duration: str) -> Any:
        written = duration_text(_seconds(duration)) if is_window(duration) else ""
        if written in self and written != duration:
            return self[written]  # `300s` is `5m` too
        there = ", ".join(f"`{each}`" for each in self) or "none"
        raise unmeasured(f"no metric over `{duration}`; durations that are reported: {there}")

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - absence is an error, never a default
        """Return the statistics over a duration; raise `EvaluationError` (NoMetric) if there are none."""
        return self[key]


@dataclass(frozen=True, slots=True)
class NodeMetric:
    """A NodeMetric object, read. `updated` is in ns since the epoch; None if the status was never reported."""

    object: Mapping[str, Any]
    updated: int | None
    report_interval: int
    """Report interval in seconds."""
    usage: MeasuredList
    pods: Mapping[str, ResourceList] = field(default_factory=dict)
    """Usage of the node's pods by `namespace/name`."""

    @staticmethod
    def of(metric: Mapping[str, Any]) -> NodeMetric:
        """Read a NodeMetric object.

        Raises:
            ValueError: a field is malformed; the message begins with its path.
        """
        check_object(metric, "NodeMetric")
        status = mapping_at(metric, "status", optional=True)
        node = mapping_at(status, "nodeMetric", "status", optional=True)
        usage: dict[str, Any] = dict(_resources(node, "nodeUsage", "status.nodeMetric"))
        usage |= _aggregated(node)
        policy = mapping_at(mapping_at(metric, "spec", optional=True), "metricCollectPolicy", "spec", optional=True)
        interval = policy.get("reportIntervalSeconds")
        updated = text_at(status, "updateTime", "status")
        return NodeMetric(
            object=metric,
            updated=nanoseconds(updated, "status.updateTime") if updated and usage else None,
            report_interval=interval if isinstance(interval, int) else _DEFAULT_REPORT_INTERVAL,
            usage=MeasuredList(usage),
            pods=_pods(status),
        )


def _resources(parent: Mapping[str, Any], name: str, path: str) -> ResourceList:
    return resource_list(mapping_at(parent, name, path, optional=True), "resources", f"{path}.{name}")


def _aggregated(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage per statistic, each over the longest duration that has it (Koordinator's default choice), and
    those of all durations under `WINDOWS`.
    """
    chosen: dict[str, tuple[float, MeasuredList]] = {}
    windows = Windows()
    for index, entry in enumerate(objects_at(node, "aggregatedNodeUsages", "status.nodeMetric")):
        path = f"status.nodeMetric.aggregatedNodeUsages[{index}]"
        duration = _seconds(text_at(entry, "duration", path))
        usages = mapping_at(entry, "usage", path, optional=True)
        for statistic in usages:
            amounts = _resources(usages, statistic, f"{path}.usage")
            if amounts:
                windows.setdefault(duration_text(duration), MeasuredList())[statistic] = MeasuredList(amounts)
            if amounts and (statistic not in chosen or duration > chosen[statistic][0]):
                chosen[statistic] = duration, MeasuredList(amounts)
    found: dict[str, Any] = {statistic: amounts for statistic, (_, amounts) in chosen.items()}
    return {**found, WINDOWS: windows} if windows else found


def _pods(status: Mapping[str, Any]) -> dict[str, ResourceList]:
    found: dict[str, ResourceList] = {}
    for index, entry in enumerate(objects_at(status, "podsMetric", "status")):
        path = f"status.podsMetric[{index}]"
        usage = _resources(entry, "podUsage", path)
        if usage:  # empty entries are ignored (Koordinator's pod-assign cache)
            found[f"{text_at(entry, 'namespace', path)}/{text_at(entry, 'name', path)}"] = usage
    return found


@lru_cache(maxsize=256)
def duration_text(seconds: float) -> str:
    """Return a duration in the shortest form with whole units: `1h30m`, `5m`, `90s` as `1m30s`; parts of a second are
    left out.
    """
    whole = int(seconds)
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def is_window(text: str) -> bool:
    """Return whether a key of `usage.over` is a duration of at least a second, such as `5m`, `300s` and `1h30m`."""
    return len(text) < _LONGEST and _DURATIONS.fullmatch(text) is not None and _seconds(text) >= 1


@lru_cache(maxsize=256)
def _seconds(text: str) -> float:
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))
