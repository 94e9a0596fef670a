"""The collector of pressure stall information (PSI)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..host.control_groups import GUARANTEED
from . import parsing
from .collector import MetricCollector, Sources
from .measured_groups import Rows, RowsOf, Subjects

RESOURCES: Final = ("cpu", "memory", "io")
DEGREES: Final = ("some", "full")


def pressure_name(resource: str, degree: str) -> str:
    """Return the name of a pressure in the metric cache, of `cpu`, `memory` or `io`, `some` or `full`."""
    return f"{resource}-pressure-{degree}"


class _Files(Rows):
    """The pressure files of control groups, by resource."""

    __slots__ = ("of_resource",)

    def __init__(self, sources: Sources, subjects: Subjects, before: _Files | None) -> None:
        super().__init__(subjects, before)
        self.of_resource = [
            sources.files.together(sources.path("cpuacct", each.directory, f"{resource}.pressure") for each in subjects)
            for resource in RESOURCES]


class _NodeFiles:
    """The pressure files of the machine."""

    def __init__(self, sources: Sources) -> None:
        self.names = (sources.node,)
        self.of_resource = [sources.files.together([f"{sources.proc}/pressure/{each}"]) for each in RESOURCES]


class PressureStall(MetricCollector):
    """Percents of the last 10 seconds in which tasks waited, of the node, pods and containers (koordlet's performance).

    A kernel without the line `full` for the CPU has no series of it.
    """

    name = "psi"

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        self._node = _NodeFiles(sources)
        self._pods: RowsOf[_Files] = RowsOf(lambda subjects, before: _Files(sources, subjects, before))
        self._containers: RowsOf[_Files] = RowsOf(lambda subjects, before: _Files(sources, subjects, before))

    def collect(self, now: int) -> None:
        """Measure."""
        subjects = self.sources.subjects
        self._measure("node", now, self._node)
        if not self._lacking():
            self._measure("pod", now, self._pods.of(subjects.pods))
            self._measure("container", now, self._containers.of(subjects.containers))
        self.started = True

    def _lacking(self) -> bool:
        """Return whether the kernel has no pressures of control groups: few have them on v1, and then for all groups.

        Looking for hundreds of files that are not there takes longer than reading as many.
        """
        if self.sources.groups.version == 2:
            return False
        tier = Path(self.sources.path("cpuacct", self.sources.groups.tier(GUARANTEED), f"{RESOURCES[0]}.pressure"))
        return tier.parent.is_dir() and not tier.exists()

    def _measure(self, what: str, now: int, rows: _Files | _NodeFiles) -> None:
        for resource, files in zip(RESOURCES, rows.of_resource, strict=True):
            some: dict[str, float] = {}
            full: dict[str, float] = {}
            contents, _ = self.sources.files.read_together(files)
            for name, data in zip(rows.names, contents, strict=True):
                try:
                    of_some, of_full = parsing.pressure(data)
                except ValueError:
                    self.failures += 1
                    continue
                some[name] = of_some
                if of_full is not None:
                    full[name] = of_full
            for degree, values in (("some", some), ("full", full)):
                if values:
                    pressure = pressure_name(resource, degree)
                    self.sources.cache.table(what, pressure, self.interval).append_all(now, values)
