"""The collector of pressure stall information (PSI)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from . import parsing
from .collector import MetricCollector, Sources
from .measured_groups import MeasuredGroup, Probes

RESOURCES: Final = ("cpu", "memory", "io")
DEGREES: Final = ("some", "full")


def pressure_name(resource: str, degree: str) -> str:
    """Return the name of a pressure in the metric cache, of `cpu`, `memory` or `io`, `some` or `full`."""
    return f"{resource}-pressure-{degree}"


class _Files:
    """The pressure files of a control group."""

    __slots__ = ("name", "paths")

    def __init__(self, sources: Sources, subject: MeasuredGroup) -> None:
        self.name = subject.name
        self.paths = tuple(sources.path("cpuacct", subject.directory, f"{each}.pressure") for each in RESOURCES)


class _NodeFiles:
    """The pressure files of the machine."""

    __slots__ = ("name", "paths")

    def __init__(self, sources: Sources) -> None:
        self.name = sources.node
        self.paths = tuple(f"{sources.proc}/pressure/{each}" for each in RESOURCES)


class PressureStall(MetricCollector):
    """Percents of the last 10 seconds in which tasks waited, of the node, pods and containers (koordlet's performance).

    A kernel without the line `full` for the CPU has no series of it.
    """

    name = "psi"

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        self._node = _NodeFiles(sources)
        self._pods = Probes(lambda subject: _Files(sources, subject))
        self._containers = Probes(lambda subject: _Files(sources, subject))

    def collect(self, now: int) -> None:
        """Measure."""
        subjects = self.sources.subjects
        self._measure("node", now, (self._node,))
        self._measure("pod", now, self._pods.of(subjects.pods))
        self._measure("container", now, self._containers.of(subjects.containers))
        self.started = True

    def _measure(self, what: str, now: int, probes: Iterable[_Files | _NodeFiles]) -> None:
        read = self.sources.files.read
        found: dict[str, dict[str, float]] = {
            pressure_name(resource, degree): {} for resource in RESOURCES for degree in DEGREES
        }
        for probe in probes:
            for resource, path in zip(RESOURCES, probe.paths, strict=True):
                try:
                    pressure = parsing.pressure(read(path))
                except (OSError, ValueError):
                    self.failures += 1
                    continue
                found[pressure_name(resource, "some")][probe.name] = pressure.some
                if pressure.full is not None:
                    found[pressure_name(resource, "full")][probe.name] = pressure.full
        for name, values in found.items():
            if values:
                self.sources.cache.table(what, name, self.interval).append_all(now, values)
