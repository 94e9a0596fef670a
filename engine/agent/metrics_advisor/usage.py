"""Collectors of CPU and memory usage: of the node, its system, pods, containers, host applications and best-effort."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koordpolicy.engine.framework.qos import Processor

from ..cpuset import parse_cpuset
from ..host.control_groups import BEST_EFFORT
from . import parsing
from .collector import SECOND, MetricCollector, Rate, Sources
from .measured_groups import MeasuredGroup, Probes
from .memory_file import STAT, MemoryFile

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
        used, memory = {}, {}
        for node, cpus in self._numa_nodes().items():
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
                used[str(node)] = cpu
                memory[str(node)] = float(max(total - sum(free), 0))
        self.sources.cache.table("numaNode", "cpu").append_all(now, used)
        self.sources.cache.table("numaNode", "memory").append_all(now, memory)

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


class _Usage:
    """The files of a control group's CPU and memory, the last CPU time, and what the memory was read of last."""

    __slots__ = ("amounts", "cpu", "data", "memory", "name", "rate")

    def __init__(self, sources: Sources, subject: MeasuredGroup, memory: str = STAT) -> None:
        """`memory` is the name of the file that memory is read of."""
        self.name = subject.name
        version2 = sources.groups.version == 2
        self.cpu = sources.path("cpuacct", subject.directory, "cpu.stat" if version2 else "cpuacct.usage")
        self.memory = sources.path("memory", subject.directory, memory)
        self.rate = Rate()
        self.data: bytes | None = None
        self.amounts: tuple[int, int] = (0, 0)


def _usage_usec(data: bytes) -> int:
    """Return the CPU time of a control group in nanoseconds, out of cpu.stat of v2."""
    return parsing.field(data, b"usage_usec") * 1000


class _GroupUsage(MetricCollector):
    """Measures control groups of one kind."""

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._cpu_time = _usage_usec if sources.groups.version == 2 else parsing.number
        self._file = MemoryFile.of(sources)

    def _probes(self) -> Probes[_Usage]:
        sources, memory = self.sources, self._file.name
        return Probes(lambda subject: _Usage(sources, subject, memory))

    def _measure(self, what: str, now: int, probes: Sequence[_Usage]) -> tuple[float, float, int]:
        """Append the usages of these control groups; return both sums, and how many were read."""
        sources, cpu_time, amounts = self.sources, self._cpu_time, self._file.amounts
        read_all, monotonic = sources.files.read_all, sources.monotonic
        cpu: dict[str, float] = {}
        memory: dict[str, float] = {}
        present, with_page_cache = 0, sources.shared.with_page_cache
        times: list[int] = []
        memories = read_all([each.memory for each in probes])
        cpu_times = read_all([each.cpu for each in probes], lambda: times.append(monotonic()))
        for probe, of_memory, of_cpu, time in zip(probes, memories, cpu_times, times, strict=True):
            try:
                used = cpu_time(of_cpu)
                if of_memory != probe.data:
                    probe.amounts, probe.data = amounts(of_memory), of_memory
            except ValueError:
                self.failures += 1
                continue
            present += 1
            held, full = probe.amounts
            if with_page_cache is not None:
                with_page_cache[probe.memory] = full
            cores = probe.rate.per_nanosecond(used, time)
            if cores is not None:
                cpu[probe.name] = cores * 1000
                memory[probe.name] = held
        sources.cache.table(what, "cpu").append_all(now, cpu)
        sources.cache.table(what, "memory").append_all(now, memory)
        # Without control groups there is nothing to wait for.
        self.started = self.started or bool(cpu) or not present
        return sum(cpu.values()), sum(memory.values()), present


class PodResource(_GroupUsage):
    """Usage of pods and containers (koordlet's podresource)."""

    name = "podresource"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._pods = self._probes()
        self._containers = self._probes()

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
        self._applications = self._probes()

    def collect(self, now: int) -> None:
        """Measure."""
        cpu, memory, _ = self._measure("application", now, self._applications.of(self.sources.subjects.applications))
        if self.started:
            self.sources.shared.applications = now, cpu, memory


class SystemResource(MetricCollector):
    """Usage of the system: the node's without pods and host applications, at least 0 (koordlet's sysresource)."""

    name = "sysresource"

    def __init__(self, sources: Sources, interval: int, outdated: int = _OUTDATED) -> None:
        """A usage that is older than `outdated` nanoseconds counts as unknown."""
        super().__init__(sources, interval)
        self._outdated = outdated

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


class BestEffortResource(MetricCollector):
    """CPU of the best-effort tier: usage, request and real limit, in milli-cores (koordlet's beresource)."""

    name = "beresource"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        tier = sources.groups.tier(BEST_EFFORT)
        self._version2 = sources.groups.version == 2
        self._cpu_time = _usage_usec if self._version2 else parsing.number
        self._usage = _Usage(sources, MeasuredGroup("bestEffort", sources.node, "", tier))
        cpuset = "cpuset.cpus.effective" if self._version2 else "cpuset.cpus"
        self._cpuset = sources.path("cpuset", tier, cpuset)
        self._quota = sources.path("cpu", tier, "cpu.max" if self._version2 else "cpu.cfs_quota_us")
        self._period = sources.path("cpu", tier, "cpu.cfs_period_us")

    def collect(self, now: int) -> None:
        """Measure."""
        sources = self.sources
        used = self._cpu_time(sources.files.read(self._usage.cpu))
        cores = self._usage.rate.per_nanosecond(used, sources.monotonic())
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


class _Periods:
    """The file with a control group's CFS periods, and what it had last."""

    __slots__ = ("data", "last", "name", "path")

    def __init__(self, sources: Sources, subject: MeasuredGroup) -> None:
        self.name = subject.name
        self.path = sources.path("cpu", subject.directory, "cpu.stat")
        self.last: parsing.Throttling | None = None
        self.data: bytes | None = None


class PodThrottled(MetricCollector):
    """The share of CFS periods in which pods and containers were throttled (koordlet's podthrottled)."""

    name = "podthrottled"

    def __init__(self, sources: Sources, interval: int) -> None:
        super().__init__(sources, interval)
        self._pods = Probes(lambda subject: _Periods(sources, subject))
        self._containers = Probes(lambda subject: _Periods(sources, subject))

    def collect(self, now: int) -> None:
        """Measure."""
        subjects = self.sources.subjects
        pods, containers = self._pods.of(subjects.pods), self._containers.of(subjects.containers)
        appended = self._measure("pod", now, pods) + self._measure("container", now, containers)
        present = any(probe.last is not None for probe in (*pods, *containers)) if not self.started else True
        self.started = self.started or appended > 0 or not present

    def _measure(self, what: str, now: int, probes: Sequence[_Periods]) -> int:
        shares: dict[str, float] = {}
        for probe, data in zip(probes, self.sources.files.read_all([each.path for each in probes]), strict=True):
            if data == probe.data:  # nothing ran under a quota, which is the rule
                shares[probe.name] = 0.0
                continue
            try:
                found = parsing.throttling(data)
            except ValueError:
                self.failures += 1
                continue
            last, probe.last, probe.data = probe.last, found, data
            if last is None or found.periods < last.periods or found.throttled < last.throttled:
                continue
            periods = found.periods - last.periods
            shares[probe.name] = min((found.throttled - last.throttled) / periods, 1.0) if periods else 0.0
        self.sources.cache.table(what, "throttled").append_all(now, shares)
        return len(shares)
