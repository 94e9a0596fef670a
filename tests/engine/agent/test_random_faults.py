"""An agent on a machine of files that fail at random: calls of the system, contents, directories, the disk, the clock.

Collectors, all built-in strategies, executor and journal are the real ones; what they call of the system fails.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.daemon import Agent, AgentSettings
from koordpolicy.engine.agent.host import files as files_module
from koordpolicy.engine.agent.host.control_groups import SYSTEMD, ContainerId, ControlGroups
from koordpolicy.engine.agent.host.detection import SUBSYSTEMS, HostRoots
from koordpolicy.engine.agent.host.facts import read_host
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor.advisor import AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collector import Sources
from koordpolicy.engine.agent.parts import AgentParts
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.agent.resource_executor import journal as journal_module
from koordpolicy.engine.agent.resource_executor import writing as writing_module
from koordpolicy.engine.agent.resource_executor.executor import ResourceExecutor
from koordpolicy.engine.agent.resource_executor.journal import ResourceJournal
from koordpolicy.engine.agent.resource_executor.tree import FileTree
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.slo.effective import effective_spec
from koordpolicy.engine.testing.states import FakeStates
from tests.bench.agent_process import ALL_GATES, node, node_slo, pod, write_files
from tests.bench.agent_tree import write_group

from .test_daemon import RecordingEvictor, VirtualClock

PODS = 6
FAULTS = (errno.EINVAL, errno.EBUSY, errno.EACCES, errno.EROFS, errno.ENODEV, errno.ENOENT, errno.EIO, errno.EPERM,
          errno.ENOSPC, errno.EMFILE, errno.EINTR, errno.ENOMEM, errno.EOPNOTSUPP, errno.ESTALE)
SEEDS = range(int(os.environ.get("KOORD_POLICY_FAULT_SEEDS", "1")))
PASSES = int(os.environ.get("KOORD_POLICY_FAULT_PASSES", "120"))
"""Changes of what goes wrong, each followed by some seconds. Thousands of them are tried by hand."""


@dataclass
class FaultySystem:
    """The module `os`, some of whose calls fail, or return half of a content, while `rate` is above 0.

    A write fails when the file is opened for it: a plain file would be empty after that, as none of the kernel is.
    """

    draw: random.Random
    rate: float = 0.0
    disk_is_full: bool = False
    failed: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _fail(self, call: str) -> None:
        if self.draw.random() < self.rate:
            number = self.draw.choice(FAULTS)
            self.failed[errno.errorcode[number]] += 1
            raise OSError(number, os.strerror(number), call)

    def open(self, path: Any, *arguments: Any, **options: Any) -> int:
        self._fail("open")
        return os.open(path, *arguments, **options)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._fail("pread")
        content = os.pread(descriptor, size, offset)
        if content.count(b"\n") > 1 and self.draw.random() < self.rate:
            self.failed["half"] += 1
            return content[: len(content) // 2]
        return content

    def fdatasync(self, descriptor: int) -> None:
        self._fail("fdatasync")


class FullDisk(FaultySystem):
    """The system below the journal, whose disk may be full."""

    def write(self, descriptor: int, content: bytes) -> int:
        if self.disk_is_full:
            self.failed["full disk"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fail("write")
        return os.write(descriptor, content)


@dataclass
class Machine:
    """A machine of plain files with an agent, in virtual time."""

    root: Path
    draw: random.Random
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        write_files(self.root, PODS)
        (self.root / "resctrl" / "schemata").write_text("L3:0=7ff\n")
        self.gone: dict[Path, dict[Path, bytes]] = {}
        self.system, self.disk = FaultySystem(self.draw), FullDisk(self.draw)
        roots = {name: str(self.root / "cgroup" / name) for name in SUBSYSTEMS}
        self.groups = ControlGroups(1, SYSTEMD, roots)
        for number in range(PODS):  # a container has files of its own
            write_group(self.groups, self.groups.container(
                *self._named(number), ContainerId("containerd", f"{number:032x}{0:032x}")))
        self.states = FakeStates(
            node=node(), node_slo={**node_slo(), "spec": effective_spec(node_slo()["spec"])},
            pods=tuple(PodInfo.of(pod(number)) for number in range(PODS)))
        self.tree = FileTree(self.groups, resctrl=str(self.root / "resctrl"), proc=str(self.root / "proc"),
                             sys=str(self.root / "sys"))
        self.executor = ResourceExecutor(
            self.tree, ResourceJournal(self.root / "state" / "journal", "boot"), log=logging.getLogger("executor"))
        self.before = self.everything()
        self.agent = self._agent()

    @staticmethod
    def _named(number: int) -> tuple[str, str]:
        tier = ("guaranteed", "burstable", "besteffort")[number % 3]
        return tier, f"00000000-0000-0000-0000-{number:012}"

    def _agent(self) -> Agent:
        clock = self.clock
        host = read_host(HostRoots(proc=str(self.root / "proc"), sys=str(self.root / "sys"),
                                   resctrl=str(self.root / "resctrl")), 1)
        gates = {name: True for name, _, _ in (each.partition("=") for each in ALL_GATES.split(","))}
        sources = Sources(
            MetricCache("bench"), self.groups, self.tree.reader, proc=str(self.root / "proc"),
            sys=str(self.root / "sys"), resctrl=str(self.root / "resctrl"),
            monotonic=lambda: int(clock.seconds * 1e9))
        advisor = MetricsAdvisor(sources, AdvisorSettings.of(10**9, gates), lambda: host.processors,
                                 lambda: host.storage)
        advisor.use_pods(self.states.pods)
        self.tree.directories.use_pods(self.states.pods)
        self.executor.start(0, give_back=False)
        live = Live()
        live.activate(Registry.of(PLUGINS, generation=0))
        return Agent(AgentParts(
            "bench", host, self.states, sources.cache, self.tree.view, self.executor, RecordingEvictor(),
            collectors=advisor.periodic(), journaled=lambda: self.executor.journaled, clock=clock,
        ), live, Manager(gates, frozenset(each.name for each in PLUGINS), on_node=True), AgentSettings())

    def everything(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes().rstrip() for path in sorted(self.root.rglob("*"))
                if path.is_file() and "state" not in path.relative_to(self.root).parts and "proc/stat" not in str(path)}

    def run(self, seconds: float) -> None:
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            self.clock.seconds = min(max(self.agent.step(), self.clock.seconds + 0.001), end)

    def disturb(self) -> None:
        """Change what goes wrong."""
        draw = self.draw
        self.system.rate = self.disk.rate = draw.choice((0, 0, 0.002, 0.02, 0.3))
        self.disk.disk_is_full = draw.random() < 0.2
        if draw.random() < 0.2:
            self.clock.jump += draw.choice((-7200, -3, 5, 3600)) * 10**9
        if draw.random() < 0.3:
            self.come_back() if self.gone else self.vanish(draw.randrange(PODS))
        busy = draw.randrange(10**9)
        for number in range(PODS):
            path = self.root / "cgroup/cpu" / self.groups.pod(*self._named(number)) / "cpu.stat"
            if path.exists():
                path.write_text(f"nr_periods {int(self.clock.seconds)}\nnr_throttled {busy % 5}\nthrottled_time 1\n")
        stat = self.root / "proc/stat"
        stat.write_text(f"cpu {busy % 10**6} 0 0 0 0 0 0 0 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\n")

    def vanish(self, number: int) -> None:
        """Remove the control groups of a pod, as its runtime does."""
        for subsystem in SUBSYSTEMS:
            top = self.root / "cgroup" / subsystem / self.groups.pod(*self._named(number))
            if top.is_dir():
                self.gone[top] = {path: self.before[str(path.relative_to(self.root))] + b"\n"
                                  for path in top.rglob("*") if path.is_file()}
                shutil.rmtree(top)

    def come_back(self) -> None:
        """Make the control groups anew, with what a runtime gives them."""
        for files in self.gone.values():
            for path, content in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        self.gone.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_nothing_crashes_nothing_is_left_and_each_cause_is_one_line(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(tmp_path / "machine", random.Random(seed))
    for module, system in ((files_module, machine.system), (writing_module, machine.system),
                           (journal_module, machine.disk)):
        monkeypatch.setattr(module, "os", system)
    caplog.set_level(logging.WARNING)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(PASSES):
        machine.disturb()
        machine.run(machine.draw.choice((1, 2, 5)))
    changed = machine.everything() != machine.before
    machine.system.rate = machine.disk.rate = 0.0
    machine.disk.disk_is_full = False
    machine.come_back()
    machine.run(700)  # what was refused is tried again after a pause
    machine.agent.close()
    machine.executor.close()

    wrong = {name: (content, machine.before.get(name)) for name, content in machine.everything().items()
             if machine.before.get(name) != content and "cpu.stat" not in name}
    crashes = [record.getMessage() for record in caplog.records if record.exc_info]
    lines = Counter(record.getMessage() for record in caplog.records)
    times = machine.clock.seconds / 600 + 1  # a cause is logged once in ten minutes
    repeated = {line: count for line, count in lines.items() if count > times}
    assert (wrong, crashes, repeated, machine.executor.journaled) == ({}, [], {}, frozenset())
    assert (changed, len(machine.system.failed) > 10, machine.disk.failed["full disk"] > 0) == (True, True, True)
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
