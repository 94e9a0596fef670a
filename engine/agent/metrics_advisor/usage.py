"""Collectors of CPU and memory usage: of the node, its system, pods, containers, host applications and best-effort."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koordpolicy.engine.framework.qos import Processor

from ..cpuset import parse_cpuset
from ..host.control_groups import BEST_EFFORT
from . import parsing
from .collector import SECOND, CpuReadings, MetricCollector, NumaUsage, Rate, Sources
from .measured_groups import Rows, RowsOf, Subjects
from .memory_file import MemoryFile
from .numa import NumaWorkloads

_NONE: Final = math.nan
_LAST_PERIODS: Final = 3 * SECOND
"""After this time without CPU time a control group has had its last CFS period: a period is at most a second long, and
the kernel counts no further ones after two in which nothing ran."""
_OUTDATED: Final = 10 * SECOND


class NodeResource(MetricCollector):
    """Usage of the node, and of each NUMA node (koordlet's noderesource)."""

    name = "noderesource"

    def __init__(self, sources: Sources, interval: int, processors: Callable[[], Sequence[Processor]]) -> None:
        """`processors` returns the CPUs with their NUMA nodes, empty while they are unknown."""
        super().__init__(sources, interval)
        self._processors = processors
        self._mapped: Sequence[Processor] = ()
        self._numa: Mapping[int, tuple[int, ...]] = {}
        self._rates: dict[int, Rate] = {}
        self._tick_ns = SECOND / os.sysconf("SC_CLK_TCK")

    def collect(self, now: int) -> None:
        """Measure."""
        sources = self.sources
        ticks = parsing.cpu_ticks(sources.files.read(f"{sources.proc}/stat"))
        time = sources.monotonic()
        total, available = parsing.amounts_of(
            parsing.meminfo(sources.files.read(f"{sources.proc}/meminfo")), b"MemTotal", b"MemAvailable",
        )
        cpu = self._cores(-1, ticks[-1], time)
        if cpu is not None:
            memory = float(max(total - available, 0))
            sources.cache.table("node", "cpu").append_all(now, {sources.node: cpu})
            sources.cache.table("node", "memory").append_all(now, {sources.node: memory})
            sources.shared.node = now, cpu, memory
            self.started = True
        self._collect_numa(now, ticks, time)

    def _collect_numa(self, now: int, ticks: Mapping[int, int], time: int) -> None:
        used: dict[int, float] = {}
        memory: dict[int, float] = {}
        cpus_of = self._numa_nodes()
        for node, cpus in cpus_of.items():
            cpu = self._cores(-2 - node, sum(ticks.get(each, 0) for each in cpus), time)
            try:
                found = parsing.meminfo(self.sources.files.read(
                    f"{self.sources.sys}/devices/system/node/node{node}/meminfo"))
                total, *free = parsing.amounts_of(
                    found, b"MemTotal", b"MemFree", b"Active(file)", b"Inactive(file)", b"SReclaimable")
            except (OSError, ValueError):
                self.failures += 1
                continue
            if cpu is not None:
                used[node] = cpu
                memory[node] = float(max(total - sum(free), 0))
        for resource, values in (("cpu", used), ("memory", memory)):
            self.sources.cache.table("numaNode", resource).append_all(
                now, {str(node): value for node, value in values.items()})
        self.sources.shared.numa = NumaUsage(now, cpus_of, used, memory)

    def _numa_nodes(self) -> Mapping[int, tuple[int, ...]]:
        processors = self._processors()
        if processors is not self._mapped:
            by_node: dict[int, list[int]] = {}
            for each in processors:
                by_node.setdefault(each.numa_node, []).append(each.cpu)
            self._mapped, self._numa = processors, {node: tuple(cpus) for node, cpus in by_node.items()}
        return self._numa

    def _cores(self, key: int, ticks: int, time: int) -> float | None:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate()
        found = rate.per_nanosecond(ticks, time)
        return None if found is None else found * self._tick_ns * 1000


def _usage_usec(data: bytes) -> int:
    """Return the CPU time of a control group in nanoseconds, out of cpu.stat of v2."""
    return parsing.field(data, b"usage_usec") * 1000


def _usages_usec(contents: Sequence[bytes]) -> list[int]:
    """Return the CPU times of control groups in nanoseconds, out of cpu.stat of v2; -1 for one that is malformed."""
    return [_usage_usec_or_none(content) for content in contents]


def _usage_usec_or_none(data: bytes) -> int:
    try:
        return _usage_usec(data)
    except ValueError:
        return parsing.NO_NUMBER


def _cpu_file(sources: Sources) -> str:
    return "cpu.stat" if sources.groups.version == 2 else "cpuacct.usage"


class _Usages(Rows):
    """The CPU time and memory of control groups of one kind, as they were read last; a place for each subject."""

    __slots__ = ("amounts", "changed", "cpu", "memories", "memory", "texts", "times", "used")

    def __init__(self, sources: Sources, subjects: Subjects, before: _Usages | None, memory: str) -> None:
        """`memory` is the name of the file that memory is read of."""
        super().__init__(subjects, before)
        cpu = _cpu_file(sources)
        self.memories = [sources.path("memory", each.directory, memory) for each in subjects]
        self.cpu = sources.files.together(sources.path("cpuacct", each.directory, cpu) for each in subjects)
        self.memory = sources.files.together(self.memories)
        self.used: list[int] = self.carried_over(None if before is None else before.used, parsing.NO_NUMBER)
        """The CPU time of the last reading, from which the next rate is computed."""
        self.times: list[int] = self.carried_over(None if before is None else before.times, 0)
        self.changed: list[int] = self.carried_over(None if before is None else before.changed, 0)
        """The last time at which the CPU time differed from the one before, or was not read."""
        self.texts: list[bytes | None] = self.carried_over(None if before is None else before.texts, None)
        """The contents that the memory was read of last."""
        self.amounts: list[tuple[int, int]] = self.carried_over(None if before is None else before.amounts, (0, 0))


class _GroupUsage(MetricCollector):
    """Measures control groups of one kind."""

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._cpu_times = _usages_usec if sources.groups.version == 2 else parsing.numbers
        self._file = MemoryFile.of(sources)

    def _rows(self) -> RowsOf[_Usages]:
        sources, memory = self.sources, self._file.name
        return RowsOf(lambda subjects, before: _Usages(sources, subjects, before, memory))

    def _measure(self, what: str, now: int, rows: _Usages) -> tuple[float, float, int]:
        """Append the usages of these control groups; return both sums, and how many were read."""
        sources = self.sources
        memories, _ = sources.files.read_together(rows.memory)
        cpu_times, times = sources.files.read_together(rows.cpu, sources.monotonic)
        used = self._cpu_times(cpu_times)
        for place in self._read_memories(rows, memories):
            used[place] = parsing.NO_NUMBER
        failed = used.count(parsing.NO_NUMBER)
        cpu = [
            (value - before) / (time - last) * 1000 if 0 <= before <= value and time > last else _NONE
            for value, before, time, last in zip(used, rows.used, times, rows.times, strict=True)]
        held = [amounts[0] if cores == cores else _NONE  # noqa: PLR0124 - not NaN
                for amounts, cores in zip(rows.amounts, cpu, strict=True)]
        if sources.shared.with_page_cache is not None:
            sources.shared.with_page_cache.update(
                (path, amounts[1]) for path, amounts, value in zip(rows.memories, rows.amounts, used, strict=True)
                if value >= 0)
        rows.changed = [last if 0 <= value == before else time for value, before, time, last in zip(
            used, rows.used, times, rows.changed, strict=True)]
        sources.shared.cpu[what] = CpuReadings(now, rows.subjects, cpu_times, rows.changed)
        total_cpu, total_memory = sum(cpu), sum(held)
        if math.isnan(total_cpu):
            self._keep_last(rows, used, times)
            total_cpu, total_memory = (sum(each for each in values if not math.isnan(each)) for values in (cpu, held))
        rows.used, rows.times = used, times
        sources.cache.table(what, "cpu").append_row(now, rows.names, cpu)
        sources.cache.table(what, "memory").append_row(now, rows.names, held)
        self.failures += failed
        present = len(used) - failed
        # Without control groups there is nothing to wait for.
        self.started = self.started or not all(map(math.isnan, cpu)) or not present
        return total_cpu, total_memory, present

    def _read_memories(self, rows: _Usages, contents: list[bytes]) -> list[int]:
        """Take the amounts of files that have changed; return the places of those that are malformed."""
        if contents == rows.texts:
            return []
        failed = []
        for place, (content, before) in enumerate(zip(contents, rows.texts, strict=True)):
            if content != before:
                try:
                    rows.amounts[place] = self._file.amounts(content)
                except ValueError:
                    failed.append(place)
                else:
                    rows.texts[place] = content
        return failed

    @staticmethod
    def _keep_last(rows: _Usages, used: list[int], times: list[int]) -> None:
        """Put the last reading in place of one that failed, or that no time has passed for."""
        for place, (value, before, time, last) in enumerate(zip(used, rows.used, times, rows.times, strict=True)):
            if value < 0 or (0 <= before <= value and time <= last):
                used[place], times[place] = before, last


class PodResource(_GroupUsage):
    """Usage of pods and containers (koordlet's podresource)."""

    name = "podresource"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._pods = self._rows()
        self._containers = self._rows()

    def collect(self, now: int) -> None:
        """Measure."""
        subjects = self.sources.subjects
        cpu, memory, _ = self._measure("pod", now, self._pods.of(subjects.pods))
        self._measure("container", now, self._containers.of(subjects.containers))
        if self.started:
            self.sources.shared.pods = now, cpu, memory


class HostApplication(_GroupUsage):
    """Usage of the host applications that the NodeSLO declares (koordlet's hostapplication)."""

    name = "hostapplication"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._applications = self._rows()

    def collect(self, now: int) -> None:
        """Measure."""
        cpu, memory, _ = self._measure("application", now, self._applications.of(self.sources.subjects.applications))
        if self.started:
            self.sources.shared.applications = now, cpu, memory


class SystemResource(MetricCollector):
    """Usage of the system: the node's without pods and host applications, at least 0 (koordlet's sysresource).

    It is measured of each NUMA node, too, as far as `NumaWorkloads` knows what runs there.
    """

    name = "sysresource"

    def __init__(self, sources: Sources, interval: int, outdated: int = _OUTDATED) -> None:
        """A usage that is older than `outdated` nanoseconds counts as unknown."""
        super().__init__(sources, interval)
        self._outdated = outdated
        self._numa = NumaWorkloads(sources)

    def collect(self, now: int) -> None:
        """Measure."""
        shared = self.sources.shared
        parts = [
            part for part in (shared.node, shared.pods, shared.applications)
            if part is not None and abs(now - part[0]) <= self._outdated
        ]
        if len(parts) < 3:
            return
        cpu, memory = (max(parts[0][which] - parts[1][which] - parts[2][which], 0.0) for which in (1, 2))
        self.sources.cache.table("system", "cpu").append_all(now, {self.sources.node: cpu})
        self.sources.cache.table("system", "memory").append_all(now, {self.sources.node: memory})
        self.started = True
        if shared.numa is not None and abs(now - shared.numa.now) <= self._outdated:
            self._collect_numa(now, shared.numa, (parts[1][1] + parts[2][1], parts[1][2] + parts[2][2]))

    def _collect_numa(self, now: int, numa: NumaUsage, workloads: tuple[float, float]) -> None:
        """Measure the system of each NUMA node; `workloads` is what pods and host applications use in all."""
        used = self._numa.used(numa.cpus) if len(numa.cpus) > 1 else tuple(
            dict.fromkeys(numa.cpus, amount) for amount in workloads)
        for resource, of_node, taken in zip(("cpu", "memory"), (numa.cpu, numa.memory), used, strict=True):
            self.sources.cache.table("systemNumaNode", resource).append_all(now, {
                str(node): max(amount - taken[node], 0.0) for node, amount in of_node.items() if node in taken})


class BestEffortResource(MetricCollector):
    """CPU of the best-effort tier: usage, request and real limit, in milli-cores (koordlet's beresource)."""

    name = "beresource"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        tier = sources.groups.tier(BEST_EFFORT)
        self._version2 = sources.groups.version == 2
        self._cpu_time = _usage_usec if self._version2 else parsing.number
        self._usage = sources.path("cpuacct", tier, _cpu_file(sources))
        self._rate = Rate()
        cpuset = "cpuset.cpus.effective" if self._version2 else "cpuset.cpus"
        self._cpuset = sources.path("cpuset", tier, cpuset)
        self._quota = sources.path("cpu", tier, "cpu.max" if self._version2 else "cpu.cfs_quota_us")
        self._period = sources.path("cpu", tier, "cpu.cfs_period_us")

    def collect(self, now: int) -> None:
        """Measure."""
        sources = self.sources
        used = self._cpu_time(sources.files.read(self._usage))
        cores = self._rate.per_nanosecond(used, sources.monotonic())
        if cores is None:
            return
        found = {
            "usage": cores * 1000,
            "request": float(sources.subjects.batch_cpu),
            "realLimit": float(self._real_limit()),
        }
        for allocation, value in found.items():
            sources.cache.table("bestEffort", allocation).append_all(now, {sources.node: value})
        self.started = True

    def _real_limit(self) -> int:
        read = self.sources.files.read
        limit = len(parse_cpuset(read(self._cpuset).decode())) * 1000
        if self._version2:
            quota, period = _cpu_max(read(self._quota))
        else:
            quota, period = parsing.signed(read(self._quota)), parsing.number(read(self._period))
        if period <= 0:
            raise ValueError("a period of the CFS quota is above 0")
        return limit if quota < 0 else min(limit, quota * 1000 // period)


def _cpu_max(data: bytes) -> tuple[int, int]:
    """Return quota (-1: unlimited) and period out of cpu.max."""
    words = data.split()
    if len(words) != 2 or data[-1:] != b"\n":
        raise ValueError("cpu.max is cut off")
    return -1 if words[0] == b"max" else parsing.amount(words[0]), parsing.amount(words[1])


class _Periods(Rows):
    """The CFS periods of control groups of one kind, as they were read last."""

    __slots__ = ("files", "last", "read", "texts", "unchanged")

    def __init__(self, sources: Sources, subjects: Subjects, before: _Periods | None) -> None:
        super().__init__(subjects, before)
        self.files = sources.files.together(sources.path("cpu", each.directory, "cpu.stat") for each in subjects)
        self.read: list[int] = self.carried_over(None if before is None else before.read, 0)
        """The last time at which the file was read, by the monotonic clock."""
        self.texts: list[bytes | None] = self.carried_over(None if before is None else before.texts, None)
        self.last: list[parsing.Throttling | None] = self.carried_over(None if before is None else before.last, None)
        self.unchanged = [_NONE if each is None else 0.0 for each in self.last]
        """The shares of groups in which nothing ran under a quota, which is the rule."""


class PodThrottled(MetricCollector):
    """The share of CFS periods in which pods and containers were throttled (koordlet's podthrottled)."""

    name = "podthrottled"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._pods: RowsOf[_Periods] = RowsOf(lambda subjects, before: _Periods(sources, subjects, before))
        self._containers: RowsOf[_Periods] = RowsOf(lambda subjects, before: _Periods(sources, subjects, before))

    def collect(self, now: int) -> None:
        """Measure."""
        subjects = self.sources.subjects
        pods, containers = self._pods.of(subjects.pods), self._containers.of(subjects.containers)
        of_pods, of_containers = self._measure("pod", now, pods), self._measure("container", now, containers)
        if not self.started:
            present = any(each is not None for each in (*pods.last, *containers.last))
            self.started = of_pods or of_containers or not present

    def _measure(self, what: str, now: int, rows: _Periods) -> bool:
        """Append the shares of these control groups; return whether there is one."""
        shares = rows.unchanged
        places, contents = self._read(rows, self._cpu_readings(what, now, rows))
        changed = [(place, content) for place, content in zip(places, contents, strict=True)
                   if content != rows.texts[place]]
        if changed:
            shares = shares.copy()
            for place, content in changed:
                shares[place] = self._share(rows, place, content)
        self.sources.cache.table(what, "throttled").append_row(now, rows.names, shares)
        return not all(map(math.isnan, shares))

    def _cpu_readings(self, what: str, now: int, rows: _Periods) -> CpuReadings | None:
        """Return the readings of CPU times of this round, of the same subjects."""
        found = self.sources.shared.cpu.get(what)
        return found if found is not None and found.now == now and found.subjects is rows.subjects else None

    def _read(self, rows: _Periods, cpu: CpuReadings | None) -> tuple[Sequence[int], Sequence[bytes]]:
        """Read the files of the control groups that may have had a period; return their places and contents."""
        everywhere = range(len(rows.subjects))
        if cpu is None:
            return everywhere, self.sources.files.read_together(rows.files)[0]
        if self.sources.groups.version == 2:  # it is the same file
            return everywhere, cpu.contents
        places = [place for place, (read, changed) in enumerate(zip(rows.read, cpu.changed, strict=True))
                  if read - changed < _LAST_PERIODS]
        time = self.sources.monotonic()
        for place in places:
            rows.read[place] = time
        return places, self.sources.files.read_together(rows.files, places=places)[0]

    def _share(self, rows: _Periods, place: int, content: bytes) -> float:
        """Return the share of throttled periods since the last reading; NaN if there is none."""
        try:
            found = parsing.throttling(content)
        except ValueError:
            self.failures += 1
            return _NONE
        last, rows.last[place], rows.texts[place], rows.unchanged[place] = rows.last[place], found, content, 0.0
        if last is None or found.periods < last.periods or found.throttled < last.throttled:
            return _NONE
        periods = found.periods - last.periods
        return min((found.throttled - last.throttled) / periods, 1.0) if periods else 0.0
