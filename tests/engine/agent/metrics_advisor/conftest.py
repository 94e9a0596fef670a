from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.files import FileReader
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor.collector import SECOND, MetricCollector, Sources
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroup, MeasuredGroups
from tests.bench.agent_tree import imitated, memory_stat, write_group


class Machine:
    """An imitated machine with the node `n`, whose clocks stand still until they are moved."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        self.groups = imitated(root / "cgroup", version)
        self.seconds = 100.0
        self.cache = MetricCache("n")
        self.sources = Sources(
            self.cache, self.groups, FileReader(), str(root / "proc"), str(root / "sys"),
            str(root / "sys/fs/resctrl"),
            monotonic=lambda: int(self.seconds * SECOND),
        )
        self.write_stat(0)
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\n")

    @property
    def now(self) -> int:
        return int(self.seconds * SECOND)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def write_stat(self, *ticks: int) -> None:
        """Write /proc/stat with these busy ticks per CPU."""
        lines = [f"cpu {sum(ticks)} 0 0 500 20 0 0 7 0 0"]
        lines += [f"cpu{cpu} {each} 0 0 500 20 0 0 7 0 0" for cpu, each in enumerate(ticks)]
        self.write("proc/stat", "\n".join([*lines, "intr 1 2 3", "ctxt 5"]) + "\n")

    def group(self, subsystem: str, directory: str, name: str, text: str) -> None:
        path = Path(self.sources.path(subsystem, directory, name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(errors="surrogateescape"))

    def subject(self, what: str, name: str, identity: str = "1") -> MeasuredGroup:
        """Return a subject with all files of its control group."""
        found = MeasuredGroup(what, name, identity, f"{what}-{name.replace('/', '-')}-{identity}")
        write_group(self.groups, found.directory)
        return found

    def use(self, *subjects: MeasuredGroup, batch_cpu: int = 0) -> None:
        of = {what: tuple(each for each in subjects if each.what == what)
              for what in ("pod", "container", "application")}
        self.sources.subjects = MeasuredGroups(of["pod"], of["container"], of["application"], batch_cpu)

    def set_cpu(self, directory: str, milliseconds: int, *, periods: int = 0, throttled: int = 0) -> None:
        """Set the CPU time of a control group since it was made, and its CFS periods."""
        if self.version == 2:
            self.group("", directory, "cpu.stat", f"usage_usec {milliseconds * 1000}\nuser_usec 0\nsystem_usec 0\n"
                                                  f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9\n")
        else:
            self.group("cpuacct", directory, "cpuacct.usage", f"{milliseconds * 10**6}\n")
            self.group("cpu", directory, "cpu.stat",
                       f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 9\n")

    def set_memory(self, directory: str, amount: int) -> None:
        self.group("memory", directory, "memory.stat", memory_stat(amount, version=self.version))

    def collect(self, *collectors: MetricCollector, after: float = 1) -> None:
        """Let seconds pass, and collect."""
        self.seconds += after
        for each in collectors:
            each.collect(self.now)

    def last(self, what: str, name: str = "n") -> dict[str, float]:
        """Return the values that were measured now."""
        return self.cache.at(self.now).measured(what, name, "last", 0)


@pytest.fixture(params=(1, 2), ids=("v1", "v2"))
def machine(request, tmp_path) -> Machine:
    return Machine(tmp_path, request.param)
