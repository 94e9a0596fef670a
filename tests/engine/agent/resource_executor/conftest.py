"""A machine of plain files, with one best-effort pod and its container."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.control_groups import CGROUPFS, ControlGroups
from koordpolicy.engine.agent.resource_executor.executor import ResourceExecutor
from koordpolicy.engine.agent.resource_executor.journal import ResourceJournal
from koordpolicy.engine.agent.resource_executor.results import FileWriteResult
from koordpolicy.engine.agent.resource_executor.tree import FileTree
from koordpolicy.engine.framework.qos import Adjustment

TIER, POD, MAIN = "besteffort", "besteffort/podu1", "besteffort/podu1/c1"
SECOND = 1_000_000_000
V1 = {
    "cpu": {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "cpu.cfs_burst_us": "0",
            "tasks": "11\n12", "cpu.stat": "nr_periods 4\nnr_throttled 1\nthrottled_time 5000"},
    "cpuacct": {"cpuacct.usage": "7000"},
    "cpuset": {"cpuset.cpus": "0-3"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "4096",
               "memory.stat": "total_cache 1"},
    "blkio": {"blkio.throttle.read_bps_device": "8:0 1000"},
}
V2 = {
    "cpu.weight": "39", "cpu.max": "max 100000", "cpu.max.burst": "0", "cgroup.threads": "11\n12",
    "cpu.stat": "usage_usec 7\nnr_periods 4\nnr_throttled 1\nthrottled_usec 5", "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-3", "memory.max": "max", "memory.current": "4096", "memory.stat": "file 1",
    "io.max": "8:0 rbps=1000 wbps=max riops=max wiops=max", "io.weight": "default 100\n8:0 50",
    "memory.min": "0", "memory.low": "0", "memory.high": "max",
}


@dataclass
class Machine:
    """Plain files like those of a machine, with their executor; `now` is the time of its rounds."""

    root: Path
    version: int
    now: int = 0
    executor: ResourceExecutor = field(init=False)

    def __post_init__(self) -> None:
        for directory in ("kubepods/besteffort", "kubepods/besteffort/podu1", "kubepods/besteffort/podu1/c1"):
            for subsystem, files in ({"": V2} if self.version == 2 else V1).items():
                where = self.root / "cgroup" / subsystem / directory
                where.mkdir(parents=True)
                for name, text in files.items():
                    (where / name).write_text(f"{text}\n")
        for name, text in {
            "resctrl/schemata": "L3:0=fff;1=fff\nMB:0=100;1=100",
            "resctrl/BE/schemata": "    L3:0=fff;1=fff\nMB:0=100;1=100",
            "resctrl/BE/tasks": "7", "proc/sys/vm/min_free_kbytes": "67584", "proc/stat": "cpu 1",
            "sys/kernel/debug/sched_features": "GENTLE NO_WAKEUP",
        }.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{text}\n")
        self.executor = self.restarted(started=True)

    @property
    def groups(self) -> ControlGroups:
        base = self.root / "cgroup"
        return ControlGroups(self.version, CGROUPFS, {"": str(base)} if self.version == 2 else {
            name: str(base / name) for name in V1
        })

    def restarted(self, *, started: bool = False, dry_run: bool = False) -> ResourceExecutor:
        """Return the executor of another process on the same machine."""
        tree = FileTree(
            self.groups, resctrl=str(self.root / "resctrl"), proc=str(self.root / "proc"), sys=str(self.root / "sys"),
        )
        made = ResourceExecutor(tree, ResourceJournal(self.root / "state" / "journal", "boot"), dry_run=dry_run,
                                log=logging.getLogger("executor"))
        if started:
            made.start(self.now)
        return made

    def path(self, name: str) -> Path:
        return Path(self.executor.tree.place(name).path)

    def text(self, name: str) -> str:
        return self.path(name).read_text()

    def write(self, *writes: tuple[str, str], recovers: bool = False) -> list[FileWriteResult]:
        adjustment = Adjustment("cgroup", "node", "a test", writes=writes, recovers=recovers)
        return list(self.executor.apply((adjustment,), self.now)[0].writes)

    def statuses(self, *writes: tuple[str, str], recovers: bool = False) -> list[str]:
        return [each.status.value for each in self.write(*writes, recovers=recovers)]

    def everything(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*")) if path.is_file() and "state" not in path.parts
        }


@pytest.fixture(autouse=True, scope="package")
def _flushed_by_nobody() -> Iterator[None]:
    """A power failure is no part of these tests, and a busy disk takes long."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)
        yield


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 1)


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 2)
