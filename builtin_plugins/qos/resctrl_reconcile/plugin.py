"""RdtResctrl: gives each QoS class a range of the last-level cache and a share of the memory bandwidth.

The behaviour is koordlet's (resctrl_reconcile.go); it reads `resctrlQOS` of the classes in the NodeSLO's
`spec.resourceQOSStrategy`. Differences: a class that is malformed costs only itself, and a range smaller than one way
of the cache is refused, as the kernel would refuse it. The arithmetic is in `engine.agent.qos_manager.resctrl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koordpolicy.engine.agent.qos_manager.node_slo import SLOSection, WarningLog, node_name, node_slo
from koordpolicy.engine.agent.qos_manager.resctrl import (
    CLASS_OF_GROUP,
    GROUP_OF_QOS,
    GROUPS,
    TaskSchedule,
    active_pods,
    bandwidth_writes,
    cache_writes,
    full_writes,
    read_tasks,
    task_directories,
    task_writes,
    unsupported,
)
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings


class RdtResctrl:
    """The strategy, with the groups that it has changed on each node."""

    name = "RdtResctrl"

    def __init__(self, args: Mapping[str, Any], handle: Any = None) -> None:
        self._interval = read_interval(args)
        self._warnings = WarningLog.of(handle, self.name)
        self._changed: set[tuple[str, str]] = set()
        self._schedule = TaskSchedule()

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Write the schemata of the groups and move the tasks of pods into them."""
        strategy = node_slo(readings).sub("resourceQOSStrategy")
        if strategy is None:
            return self.recover(readings)
        if unsupported(readings.host):
            return ()
        warnings: dict[str, str] = {}
        found = [*self._schemata(readings, strategy, warnings), *self._tasks(readings, strategy)]
        self._warnings.update(node_name(readings), warnings)
        return tuple(found)

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Give all of the cache and the bandwidth to the changed groups; tasks stay where they are, as in koordlet."""
        found, node = [], node_name(readings)
        for group in GROUPS:
            if (node, group) in self._changed:
                self._changed.discard((node, group))
                writes = full_writes(group, readings.host, readings.files)
                if writes:
                    found.append(Adjustment("resctrl", group, "the strategy is removed", writes=writes, recovers=True))
        return tuple(found)

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return why nothing is allocated, or the share of each group with the reason."""
        strategy = node_slo(readings).sub("resourceQOSStrategy")
        if strategy is None:
            return (Finding("state", "the NodeSLO has no `resourceQOSStrategy`"),)
        lack = unsupported(readings.host)
        if lack:
            return (Finding("state", f"nothing is allocated: {lack}"),)
        found = []
        for group in GROUPS:
            now = readings.files.get(f"resctrl/{group}/schemata", "").split()
            try:
                shares = _shares(strategy, group)
            except EvaluationError as error:
                found.append(Finding("target", f"{group}: {error.message}"))
                continue
            text = f"cache {shares[0]} to {shares[1]} percent, bandwidth {shares[2]} percent" if shares else "not set"
            found.append(Finding("target", f"{group}: {text}; schemata: {' '.join(now) or 'no such group'}"))
        return tuple(found)

    def _schemata(self, readings: Readings, strategy: SLOSection, warnings: dict[str, str]) -> Iterator[Adjustment]:
        host, files = readings.host, readings.files
        for group in GROUPS:
            try:
                shares = _shares(strategy, group)
            except EvaluationError as error:
                warnings[group] = error.message
                continue
            if shares is None:
                continue
            start, end, bandwidth = shares
            problems: list[str] = []
            writes: list[tuple[str, str]] = []
            try:
                if start is None or end is None:
                    problems.append("`catRangeStartPercent` and `catRangeEndPercent` are not both set")
                else:
                    writes += cache_writes(group, start, end, host, files)
            except EvaluationError as error:
                problems.append(error.message)
            try:
                if bandwidth is not None:
                    writes += bandwidth_writes(group, bandwidth, host, files)
            except EvaluationError as error:
                problems.append(error.message)
            if problems:
                warnings[group] = "; ".join(problems)
            if writes:
                self._changed.add((node_name(readings), group))
                values = {"catRangeStartPercent": start, "catRangeEndPercent": end, "mbaPercent": bandwidth}
                reason = f"{CLASS_OF_GROUP[group]} of the NodeSLO"
                yield Adjustment("resctrl", group, reason, values=values, writes=tuple(writes))

    def _tasks(self, readings: Readings, strategy: SLOSection) -> Iterator[Adjustment]:
        enabled = set()
        for group in GROUPS:
            try:
                section = _section(strategy, group)
                if section is not None and section.flag("enable"):
                    enabled.add(group)
            except EvaluationError:
                continue  # reported with the schemata
        pods = [each for each in active_pods(readings.pods) if GROUP_OF_QOS.get(each.qos_class) in enabled]
        due = self._schedule.due(readings, pods)
        if not due:
            return
        listed = task_directories(readings.files)
        present = {group: read_tasks(readings.files.get(f"resctrl/{group}/tasks", "")) for group in enabled}
        for pod in due:
            group = GROUP_OF_QOS[pod.qos_class]
            writes = task_writes(group, pod, readings, present[group], listed)
            if writes:
                self._schedule.again(readings, pod)
                yield Adjustment(
                    "resctrl", pod.key, f"its tasks belong to group {group}", values={"tasks": len(writes)},
                    writes=writes,
                )


def _section(strategy: SLOSection, group: str) -> SLOSection | None:
    return strategy.sub(CLASS_OF_GROUP[group], "resctrlQOS")


def _shares(strategy: SLOSection, group: str) -> tuple[int | None, int | None, int | None] | None:
    """Return start and end of the cache's range and the share of the bandwidth; None if the class has no section."""
    section = _section(strategy, group)
    if section is None:
        return None
    if section.flag("enable") is False:
        return 0, 100, 100
    return section.whole("catRangeStartPercent"), section.whole("catRangeEndPercent"), section.whole("mbaPercent")


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> RdtResctrl:
    """Make the strategy for one profile."""
    return RdtResctrl(args, handle)
