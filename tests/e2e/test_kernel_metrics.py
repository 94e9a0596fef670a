"""Collectors and the watcher of lifecycle events against the control groups of this machine's kernel.

What is measured is compared with the accounts of the processes themselves, so that other load does no harm.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.control_groups import CGROUPFS, ControlGroups
from koordpolicy.engine.agent.host.files import FileReader
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor import parsing
from koordpolicy.engine.agent.metrics_advisor.collector import SECOND, MetricCollector, Sources
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroup, MeasuredGroups
from koordpolicy.engine.agent.metrics_advisor.memory_file import STAT, MemoryFile
from koordpolicy.engine.agent.metrics_advisor.pleg import LifecycleEvent, LifecycleWatcher
from koordpolicy.engine.agent.metrics_advisor.pressure import RESOURCES, PressureStall, pressure_name
from koordpolicy.engine.agent.metrics_advisor.usage import NodeResource, PodResource, PodThrottled
from tests.bench.agent_tree import kernel_groups

UNIFIED = Path("/sys/fs/cgroup/unified")
POD = MeasuredGroup("pod", "d/p", "u-1", "kubepods/burstable/podu-1")

CHILD = """
import resource, sys

def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime

held = []
print("ready", flush=True)
for line in sys.stdin:
    what, amount = line.split()
    before = used()
    if what == "spin":
        while used() - before < float(amount):
            sum(range(1000))
    else:
        held.append(bytearray(b"x") * int(amount))
    print(used() - before, flush=True)
"""


class Process:
    """A process in control groups, which works when it is told to and says how much CPU time it took."""

    def __init__(self, groups: ControlGroups) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready"
        for root in set(groups.roots.values()):
            (Path(root) / POD.directory / "cgroup.procs").write_text(str(self._process.pid))

    def spin(self, seconds: float) -> float:
        """Use that much CPU time; return how much it was."""
        return self._do("spin", seconds)

    def allocate(self, amount: int) -> None:
        self._do("allocate", amount)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)

    def _do(self, what: str, amount: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {amount}\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    """Control groups v1 of our own, with the pod's."""
    with kernel_groups_or_skip() as found:
        cpuset = Path(found.roots["cpuset"])
        for root in found.roots.values():
            (Path(root) / POD.directory).mkdir(parents=True)
        # A new group has neither CPUs nor memory, and no process can enter it.
        for name in ("cpuset.cpus", "cpuset.mems"):
            text = (cpuset.parent / name).read_text()
            for folder in (cpuset, *(cpuset / each for each in ("kubepods", "kubepods/burstable", POD.directory))):
                (folder / name).write_text(text)
        yield found


def kernel_groups_or_skip():
    class Skipping:
        def __enter__(self) -> ControlGroups:
            self._context = kernel_groups(f"koord-policy-test-{secrets.token_hex(4)}")
            try:
                return self._context.__enter__()
            except OSError as error:
                pytest.skip(f"control groups v1 cannot be made here: {error}")

        def __exit__(self, *raised: object) -> None:
            self._context.__exit__(None, None, None)

    return Skipping()


@pytest.fixture
def process(groups: ControlGroups) -> Iterator[Process]:
    found = Process(groups)
    yield found
    found.end()


class Reader:
    """Collects by one collector, and knows the time between its readings."""

    def __init__(self, groups: ControlGroups) -> None:
        self.times: list[int] = []
        self.sources = Sources(MetricCache("n"), groups, FileReader(), monotonic=self._monotonic)
        self.sources.subjects = MeasuredGroups((POD,))

    def _monotonic(self) -> int:
        self.times.append(time.monotonic_ns())
        return self.times[-1]

    def collect(self, collector: MetricCollector) -> None:
        self.now = time.time_ns()
        collector.collect(self.now)

    def last(self, what: str, name: str) -> dict[str, float]:
        return self.sources.cache.at(self.now).measured(what, name, "last", 0)

    @property
    def elapsed(self) -> float:
        """The seconds between the last two readings."""
        return (self.times[-1] - self.times[-2]) / SECOND


def test_the_cpu_of_a_pod_is_that_of_its_processes(groups, process):
    reader = Reader(groups)
    collector = PodResource(reader.sources, SECOND)
    reader.collect(collector)
    used = process.spin(0.5)
    reader.collect(collector)
    assert reader.last("pod", "d/p")["cpu"] / 1000 * reader.elapsed == pytest.approx(used, rel=0.1)


def test_the_memory_of_a_pod_is_what_its_processes_allocated(groups, process):
    reader = Reader(groups)
    collector = PodResource(reader.sources, SECOND)
    for _ in range(2):
        reader.collect(collector)
    before = reader.last("pod", "d/p")["memory"]
    process.allocate(64 * 2**20)
    reader.collect(collector)
    assert reader.last("pod", "d/p")["memory"] - before == pytest.approx(64 * 2**20, rel=0.1)


def test_the_memory_of_a_pod_is_the_same_out_of_each_file_of_the_kernel(groups, process):
    reader = Reader(groups)
    process.allocate(64 * 2**20)
    file = MemoryFile.of(reader.sources)
    amounts = file.amounts(reader.sources.files.read(reader.sources.path("memory", POD.directory, file.name)))
    stat = parsing.memory_amounts(
        reader.sources.files.read(reader.sources.path("memory", POD.directory, STAT)), b"total_")
    assert amounts == pytest.approx(stat, rel=0.02)
    assert amounts[0] > 64 * 2**20 * 0.9


def test_a_pod_with_a_quota_is_throttled(groups, process):
    reader = Reader(groups)
    collector = PodThrottled(reader.sources, SECOND)
    reader.collect(collector)
    process.spin(0.1)
    reader.collect(collector)
    assert reader.last("pod", "d/p") == {"throttled": 0}
    folder = Path(groups.roots["cpu"]) / POD.directory
    (folder / "cpu.cfs_period_us").write_text("20000")
    (folder / "cpu.cfs_quota_us").write_text("1000")  # less than what other processes leave, however many
    process.spin(0.02)
    reader.collect(collector)
    assert 0.2 < reader.last("pod", "d/p")["throttled"] <= 1


def test_the_node_uses_at_least_what_a_process_uses(groups, process):
    reader = Reader(groups)
    collector = NodeResource(reader.sources, SECOND, tuple)
    reader.collect(collector)
    used = process.spin(0.5)
    reader.collect(collector)
    found = reader.last("node", "n")
    assert found["cpu"] / 1000 * reader.elapsed > used * 0.9
    assert found["cpu"] <= 1000 * (os.cpu_count() or 1) * 1.1
    assert 0 < found["memory"] < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_pod_whose_control_group_is_gone_has_no_sample(groups, process):
    reader = Reader(groups)
    collector = PodResource(reader.sources, SECOND)
    for _ in range(2):
        reader.collect(collector)
    process.end()
    for root in groups.roots.values():
        (Path(root) / POD.directory).rmdir()
    reader.collect(collector)
    assert collector.failures == 1
    assert reader.sources.cache.at(reader.now).pod_usage("d/p", "cpu", "count", 60 * SECOND) == 1


def test_the_kernels_queue_of_changes_may_overflow(tmp_path, caplog):
    length = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if length > 50_000:
        pytest.skip(f"{length} changes would take long")
    groups = ControlGroups(2, CGROUPFS, {"": str(tmp_path)})
    (tmp_path / POD.directory).parent.mkdir(parents=True)
    events: list[LifecycleEvent] = []
    watcher = LifecycleWatcher(groups, events.append)
    watcher.start()
    for _ in range(length // 2 + 10):
        (tmp_path / POD.directory).mkdir()
        (tmp_path / POD.directory).rmdir()
    (tmp_path / "kubepods/podu-2/c1").mkdir(parents=True)
    watcher.dispatch()
    watcher.close()
    assert "all of them are listed again" in caplog.text
    assert events == [LifecycleEvent(True, "guaranteed", "u-2"), LifecycleEvent(True, "guaranteed", "u-2", "c1")]


@pytest.fixture
def unified() -> Iterator[ControlGroups]:
    """A control group v2 of our own, with the pod's."""
    root = UNIFIED / f"koord-policy-test-{secrets.token_hex(4)}"
    try:
        (root / POD.directory).mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"control groups v2 cannot be made here: {error}")
    yield ControlGroups(2, CGROUPFS, {"": str(root)})
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).rmdir()


def test_pressures_are_those_of_the_kernel(unified):
    folder = Path(unified.roots[""]) / POD.directory
    if not (folder / "cpu.pressure").exists():
        pytest.skip("this kernel has no pressures of control groups")
    process = Process(unified)
    try:
        reader = Reader(unified)
        collector = PressureStall(reader.sources, 10 * SECOND, enabled=True)
        process.spin(0.2)
        read = [texts(folder)]
        reader.collect(collector)
        read.append(texts(folder))
    finally:
        process.end()
    found = reader.last("pod", "d/p")
    assert found.keys() == {pressure_name(resource, degree) for resource in RESOURCES for degree in ("some", "full")}
    for name, percent in found.items():
        assert percent in [each[name] for each in read]
    assert all(0 <= percent <= 100 for percent in reader.last("node", "n").values())
    assert "cpu-pressure-some" in reader.last("node", "n")


def texts(folder: Path) -> dict[str, float]:
    """Return the percents in the pressure files."""
    return {
        pressure_name(resource, line.split()[0]): float(line.split()[1].removeprefix("avg10="))
        for resource in RESOURCES for line in (folder / f"{resource}.pressure").read_text().splitlines()
    }


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_control_groups_that_come_and_go_are_events(version: str, request):
    groups = request.getfixturevalue("groups" if version == "v1" else "unified")
    events: list[LifecycleEvent] = []
    watcher = LifecycleWatcher(groups, events.append)
    watcher.start()
    assert watcher.pods == {"u-1": frozenset()}
    root = Path(groups.root("cpu"))
    folder = root / groups.pod("besteffort", "u-2") / "c1"  # the directory of the tier is missing too
    for path in (folder.parents[1], folder.parent, folder, root / POD.directory / "c2"):
        path.mkdir()
        assert watcher.wait(60)
        watcher.dispatch()
    for path in (root / POD.directory / "c2", folder, folder.parent):
        path.rmdir()
        assert watcher.wait(60)
        watcher.dispatch()
    watcher.close()
    assert events == [
        LifecycleEvent(True, "besteffort", "u-2"), LifecycleEvent(True, "besteffort", "u-2", "c1"),
        LifecycleEvent(True, "burstable", "u-1", "c2"), LifecycleEvent(False, "burstable", "u-1", "c2"),
        LifecycleEvent(False, "besteffort", "u-2", "c1"), LifecycleEvent(False, "besteffort", "u-2"),
    ]
