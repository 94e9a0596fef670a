"""The executor on this machine's kernel, with the version of control groups that it has.

Everything is in a tree of its own that is removed at the end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.agent.host.control_groups import ControlGroups
from koordpolicy.engine.agent.host.detection import HostRoots, detect_control_groups
from koordpolicy.engine.agent.host.storage import read_storage
from koordpolicy.engine.agent.qos_manager.suppression import Topology, recover_cpus, set_cpus
from koordpolicy.engine.agent.resource_executor import executor as module
from koordpolicy.engine.agent.resource_executor.executor import ResourceExecutor
from koordpolicy.engine.agent.resource_executor.journal import ResourceJournal
from koordpolicy.engine.agent.resource_executor.tree import FileTree
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Processor

PREFIX = "koord-policy-test-"
SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory")
CONTROLLERS = ("cpu", "cpuset", "memory")
TIER, POD, MAIN = "besteffort", "besteffort/podu-1", "besteffort/podu-1/c1"
ID = "0123456789abcdef"
VALUES = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpuset.cpus", "memory.limit_in_bytes",
          "cpu.weight", "cpu.max", "cpu.max.burst", "memory.max", "cgroup.subtree_control")


def lacking() -> str:
    """Return the reason why this machine cannot run these tests, or an empty text."""
    if os.geteuid() != 0:
        return "needs root"
    found, _ = detect_control_groups(HostRoots())
    if found.version == 2:
        enabled = Path(found.roots[""], "cgroup.subtree_control").read_text().split()
        missing = [name for name in CONTROLLERS if name not in enabled]
        return f"the root of control groups v2 has not enabled {', '.join(missing)}" if missing else ""
    missing = [name for name in SUBSYSTEMS if name not in found.roots or not os.access(found.roots[name], os.W_OK)]
    if missing:
        return f"no writable hierarchy of {', '.join(missing)}"
    return "" if Path(found.roots["cpu"], "cpu.cfs_quota_us").exists() or _has_quota(found) else "no CFS quota"


def _has_quota(groups: ControlGroups) -> bool:
    return any(Path(groups.roots["cpu"]).glob("*/cpu.cfs_quota_us"))


REASON = lacking()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


def neighbours(roots: dict[str, str]) -> dict[str, str]:
    """Return the values of the hierarchies' roots and of their directories, without those of tests."""
    found = {}
    for root in roots.values():
        for directory in [Path(root), *(each for each in Path(root).iterdir() if each.is_dir())]:
            if not directory.name.startswith(PREFIX):
                for name in VALUES:
                    with contextlib.suppress(OSError):
                        found[str(directory / name)] = (directory / name).read_text()
    return found


@dataclass
class Node:
    groups: ControlGroups
    executor: ResourceExecutor
    state: Path

    def directory(self, subsystem: str, directory: str) -> Path:
        path, root = self.executor.tree.directories.path(directory), self.groups.root(subsystem)
        assert path is not None
        assert root is not None
        return Path(root, path)

    def path(self, name: str) -> Path:
        return Path(self.executor.tree.place(name).path)

    def value(self, name: str) -> str:
        """Return the text of the file in the kernel."""
        return self.path(name).read_text().strip()

    def logical(self, name: str) -> str:
        """Return the value that strategies read, in the units of v1."""
        return self.executor.tree.view()[name]

    @property
    def is_v2(self) -> bool:
        return self.groups.version == 2

    def write(self, *writes: tuple[str, str], recovers: bool = False) -> list[tuple[str, str]]:
        adjustment = Adjustment("cgroup", "node", "a test", writes=writes, recovers=recovers)
        return [(each.status.value, each.error) for each in self.executor.apply((adjustment,), 0)[0].writes]

    def remove(self, directory: str) -> None:
        for path in {self.directory(subsystem, directory) for subsystem in SUBSYSTEMS}:
            path.rmdir()

    def make(self, directory: str) -> None:
        """Make a directory as the container runtime does: on v1 with CPUs and memory, on v2 with the controllers."""
        for path in {self.directory(subsystem, directory) for subsystem in SUBSYSTEMS}:
            if self.is_v2:
                (path.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
            path.mkdir()
        if not self.is_v2:
            for file in ("cpuset.cpus", "cpuset.mems"):
                path = self.directory("cpuset", directory)
                (path / file).write_text((path.parent / file).read_text())


def executor_of(groups: ControlGroups, state: Path) -> ResourceExecutor:
    return ResourceExecutor(FileTree(groups), ResourceJournal(state / "journal"))


@pytest.fixture(params=["cgroupfs", "systemd"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    found, _ = detect_control_groups(HostRoots())
    roots = dict(found.roots) if found.version == 2 else {name: found.roots[name] for name in SUBSYSTEMS}
    before = neighbours(roots)
    name = f"{PREFIX}{secrets.token_hex(4)}"
    groups = ControlGroups(found.version, request.param, roots, name)
    made = Node(groups, executor_of(groups, tmp_path), tmp_path)
    made.executor.tree.directories.use_pods([PodInfo.of({
        "metadata": {"name": "p", "namespace": "n", "uid": "u-1"}, "spec": {"containers": [{"name": "c1"}]},
        "status": {"containerStatuses": [{"name": "c1", "containerID": f"docker://{ID}"}]},
    })])
    try:
        for each in ("guaranteed", TIER, POD, MAIN):
            made.make(each)
        assert detect_control_groups(HostRoots(), name)[0].driver == request.param
        made.executor.start(0)
        yield made
    finally:
        made.executor.close()
        for root in roots.values():
            top = Path(root, groups.tier("guaranteed"))
            for path in sorted(top.rglob("*"), key=lambda each: -len(each.parts)):
                if path.is_dir():
                    path.rmdir()
            if top.exists():
                top.rmdir()
    assert [path for root in roots.values() for path in Path(root).glob(f"{name}*")] == []
    after = neighbours(roots)
    assert {path: text for path, text in before.items() if after.get(path, text) != text} == {}


@pytest.mark.parametrize(("name", "text", "logical", "v2"), [
    ("cpu.cfs_quota_us", "50000", "50000", "50000 100000"), ("cpu.shares", "2", "2", "1"),
    ("cpu.cfs_burst_us", "1000", "1000", "1000"), ("memory.limit_in_bytes", "100000001", "99999744", "99999744"),
    ("cpu.cfs_period_us", "50000", "50000", "max 50000"), ("cpu.idle", "1", "1", "1"),
    ("memory.min", "8193", "8192", "8192"), ("memory.low", "8193", "8192", "8192"),
    ("memory.high", "100000001", "99999744", "99999744"), ("memory.oom.group", "1", "1", "1"),
])
def test_the_kernel_has_the_value_that_was_written(node: Node, name: str, text: str, logical: str, v2: str) -> None:
    file = f"{MAIN}/{name}"
    if not node.path(file).exists():
        pytest.skip(f"the kernel has no {name}")
    before = node.value(file)
    assert node.write((file, text)) == [("written", "")]
    assert node.value(file) == (v2 if node.is_v2 else logical)
    assert node.write((file, text), recovers=True) == [("unchanged", "")]
    assert node.logical(file) == logical
    assert [each.status.value for each in node.executor.restore(0)] == ["restored"]
    assert node.value(file) == before


def test_limits_of_a_disk_are_written_line_by_line(node: Node) -> None:
    root = detect_control_groups(HostRoots())[0].root("blkio")
    disks = [number for name, number in read_storage(Path("/sys"), Path("/proc")).devices.items()
             if name.startswith(("vd", "sd", "nvme"))]
    if root is None or not disks:
        pytest.skip("no hierarchy of blkio, or no disk")
    disk, file = disks[0], f"{TIER}/blkio.throttle.read_bps_device"
    if node.is_v2:
        for each in (Path(root), node.directory("blkio", "guaranteed")):
            try:
                (each / "cgroup.subtree_control").write_text("+io")
            except OSError as error:
                pytest.skip(f"no control of disks: {error}")
    tree = FileTree(node.groups if node.is_v2 else replace(node.groups, roots={"blkio": root}))
    executor = ResourceExecutor(tree, ResourceJournal(node.state / "disks"))
    executor.start(0)
    path = Path(tree.place(file).path)
    if not node.is_v2:
        path.parent.mkdir(parents=True)
    form = f"{disk} rbps={{}} wbps=max riops=max wiops=max" if node.is_v2 else f"{disk} {{}}"
    try:
        for text, status, after in (("0", "unchanged", ""), ("1048576", "written", form.format("1048576")),
                                    ("2097152", "written", form.format("2097152"))):
            adjustment = Adjustment("blkio", "node", "a test", writes=((file, f"{disk} {text}"),))
            assert executor.apply((adjustment,), 0)[0].writes[0].status.value == status
            assert path.read_text().strip() == after
        assert [each.status.value for each in executor.restore(0)] == ["restored"]
        assert path.read_text() == ""
    finally:
        executor.close()
        for each in () if node.is_v2 else (path.parent, path.parent.parent):
            each.rmdir()


def test_cpu_sets_of_the_tier_are_narrowed_and_given_back(node: Node) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("the machine has one CPU")
    topology = Topology(tuple(Processor(cpu, cpu, 0, 0) for cpu in cpus))
    before = dict(node.executor.tree.view())
    assert len(before) == 3
    for chosen in (cpus[:1], cpus[1:2], cpus):
        writes = set_cpus(chosen, node.executor.tree.view(), topology)
        assert {status for status, _ in node.write(*writes)} == {"written"}
        assert set(dict(node.executor.tree.view()).values()) == {node.logical(f"{TIER}/cpuset.cpus")}
        assert node.value(f"{TIER}/cpuset.cpus") == node.logical(f"{TIER}/cpuset.cpus")
    node.write(*set_cpus(cpus[:1], node.executor.tree.view(), topology))
    node.write(*recover_cpus(node.executor.tree.view(), topology), recovers=True)
    assert (dict(node.executor.tree.view()), node.executor.journaled) == (before, frozenset())


def test_cpu_sets_in_the_wrong_order_are_refused_by_the_kernel(node: Node) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("the machine has one CPU")
    text = str(cpus[0])
    if node.is_v2:
        pytest.skip("v2 takes them in any order")
    assert node.write((f"{TIER}/cpuset.cpus", text)) == [("failed", os.strerror(errno.EBUSY))]
    assert node.write(*((f"{each}/cpuset.cpus", text) for each in (MAIN, POD, TIER))) == [("written", "")] * 3
    assert {each.status.value for each in node.executor.restore(0)} == {"restored"}


def test_quotas_of_nested_directories_are_given_back_parents_first(node: Node) -> None:
    every = [f"{each}/cpu.cfs_quota_us" for each in (TIER, POD, MAIN)]
    assert node.write(*((file, "20000") for file in reversed(every))) == [("written", "")] * 3
    more = ("written", "") if node.is_v2 else ("failed", os.strerror(errno.EINVAL))
    assert node.write((every[2], "30000")) == [more]
    assert [each.status.value for each in node.executor.restore(0)] == ["restored"] * 3
    assert [node.value(file) for file in every] == ["max 100000" if node.is_v2 else "-1"] * 3


def test_a_process_is_moved_by_its_id(node: Node) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert node.write((f"{MAIN}/cgroup.procs", str(process.pid))) == [("written", "")]
            assert node.write((f"{MAIN}/tasks", str(process.pid))) == [("unchanged", "")]
            assert f":/{node.executor.tree.directories.path(MAIN)}" in Path(f"/proc/{process.pid}/cgroup").read_text()
        finally:
            process.kill()
            process.wait()
    assert node.write((f"{MAIN}/tasks", str(process.pid))) == [("gone", "the process ended")]


def test_no_process_moves_to_a_group_that_gives_controllers_to_others(node: Node) -> None:
    if not node.is_v2:
        pytest.skip("a rule of v2")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert node.write((f"{POD}/cgroup.procs", str(process.pid))) == [("failed", os.strerror(errno.EBUSY))]
            assert f":/{node.executor.tree.directories.path(POD)}" not in Path(
                f"/proc/{process.pid}/cgroup").read_text()
        finally:
            process.kill()


def test_a_directory_that_vanishes_is_no_failure(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file = module.write_file

    def vanish(path: str, text: str, access: Any) -> None:
        if node.directory("cpu", MAIN).exists():
            node.remove(MAIN)
        write_file(path, text, access)

    monkeypatch.setattr(module, "write_file", vanish)
    view = node.executor.tree.view()
    shares = "2597" if node.is_v2 else "1024"
    assert view[f"{MAIN}/cpu.shares"] == shares
    assert node.write((f"{MAIN}/cpu.shares", "5"), (f"{POD}/cpu.shares", "5")) == [
        ("gone", "the directory does not exist"), ("written", ""),
    ]
    assert (view[f"{MAIN}/cpu.shares"], f"{MAIN}/cpu.shares" in node.executor.tree.view()) == (shares, False)
    assert list(node.executor.tree.view()) == [f"{TIER}/cpuset.cpus", f"{POD}/cpuset.cpus"]
    node.make(MAIN)
    assert node.logical(f"{MAIN}/cpu.shares") == shares
    assert {each.status.value for each in node.executor.restore(0)} == {"restored", "unchanged"}


@pytest.mark.parametrize(("name", "text"), [
    ("cpu.cfs_quota_us", "500"), ("cpuset.cpus", "4095"), ("cpu.cfs_quota_us", str(2**63)),
])
def test_a_value_that_the_kernel_refuses_changes_nothing(node: Node, name: str, text: str) -> None:
    file = f"{TIER}/{name}"
    before = node.value(file)
    assert [status for status, _ in node.write((file, text))] == ["failed"]
    assert node.value(file) == before
    assert [each.status.value for each in node.executor.restore(0)] == ["unchanged"]


def test_files_of_other_kernels_are_not_supported_here(node: Node) -> None:
    files = [f"{TIER}/{name}" for name in ("cpu.bvt_warp_ns", "memory.wmark_ratio", "memory.pagecache_limit.size")]
    if any(node.path(file).exists() for file in files[:2]):
        pytest.skip("this kernel has them")
    assert [status for status, _ in node.write(*((file, "1") for file in files))] == ["unsupported"] * 3


AGENT = textwrap.dedent("""
    import json, os, sys
    from pathlib import Path
    from koordpolicy.engine.agent.host.control_groups import ControlGroups
    from koordpolicy.engine.agent.resource_executor.executor import ResourceExecutor
    from koordpolicy.engine.agent.resource_executor.journal import ResourceJournal
    from koordpolicy.engine.agent.resource_executor.tree import FileTree
    from koordpolicy.engine.framework.qos import Adjustment

    given = json.loads(sys.argv[1])
    executor = ResourceExecutor(
        FileTree(ControlGroups(given["version"], given["driver"], given["roots"], given["kubepods"])),
        ResourceJournal(Path(given["state"], "journal")),
    )
    executor.start(0)
    writes = tuple((file, text) for file, text in given["writes"])
    results = executor.apply((Adjustment("cgroup", "node", "a test", writes=writes),), 0)
    print(json.dumps([[each.status.value, each.error] for each in results[0].writes]), flush=True)
    os.kill(os.getpid(), 9)
""")


def run_agent(node: Node, writes: list[tuple[str, str]], *before: str) -> list[list[str]]:
    """Run an agent that makes the writes and is killed."""
    given = {"version": node.groups.version, "driver": node.groups.driver, "roots": dict(node.groups.roots),
             "kubepods": node.groups.kubepods, "state": str(node.state), "writes": writes}
    command = [*before, sys.executable, "-c", AGENT, json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_the_next_agent_gives_back_what_a_killed_one_has_changed(node: Node) -> None:
    files = [f"{each}/{name}" for each in (POD, TIER) for name in ("cpu.cfs_quota_us", "cpu.shares")]
    before = [node.value(file) for file in files]
    assert run_agent(node, [(file, "20000") for file in files]) == [["written", ""]] * 4
    assert [node.value(file) for file in files] == (
        ["20000 100000", "763"] if node.is_v2 else ["20000", "20000"]) * 2
    node.path(files[3]).write_text("77")
    found = executor_of(node.groups, node.state).start(0)
    assert sorted(each.status.value for each in found) == ["changed-by-others"] + ["restored"] * 3
    assert [node.value(file) for file in files] == [*before[:3], "77"]


def test_nothing_is_changed_for_the_first_time_on_a_full_disk(node: Node) -> None:
    inside = ["unshare", "-m", "--", "sh", "-c",
              f'mount -t tmpfs -o size=64k tmpfs {node.state} && (head -c 1M /dev/zero > {node.state}/x; exec "$@")',
              "sh"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    file = f"{TIER}/cpu.shares"
    before = node.value(file)
    found, = run_agent(node, [(file, "5")], *inside)
    assert (found[0], "No space left on device" in found[1]) == ("not-journaled", True)
    assert node.value(file) == before


def test_a_read_only_hierarchy_is_a_failure_that_is_said(node: Node) -> None:
    root = node.groups.root("cpu")
    inside = ["unshare", "-m", "--", "sh", "-c",
              f'mount --bind {root} {root} && mount -o remount,bind,ro {root} && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    failed, written = ["failed", os.strerror(errno.EROFS)], ["written", ""]
    assert run_agent(node, [(f"{TIER}/cpu.shares", "5"), (f"{TIER}/memory.limit_in_bytes", "8192000")], *inside) == [
        failed, failed if node.is_v2 else written,
    ]
    found = executor_of(node.groups, node.state).start(0)
    assert sorted(each.status.value for each in found) == ["unchanged" if node.is_v2 else "restored", "unchanged"]
