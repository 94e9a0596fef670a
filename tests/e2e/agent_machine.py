"""A node of its own on this machine's kernel: a tree of control groups as kubelet makes it, with real processes.

What runs outside of the tree must neither be harmed nor disturb: the agent sees the node through a directory `proc`
whose totals (`Accounts`) are those of the tree, and `WriteWatch` says which files of the kernel a process has written.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from koordpolicy.engine.agent.host.control_groups import CGROUPFS, ControlGroups
from koordpolicy.engine.agent.host.detection import HostRoots, detect_control_groups
from koordpolicy.engine.agent.host.files import FileReader
from koordpolicy.engine.agent.resource_executor.tree import FileTree
from koordpolicy.engine.cluster.objects.pods import PodInfo

from .periodic import Periodic

PREFIX = "koord-policy-proof-"
CONTROLLERS = ("cpu", "cpuset", "memory")
_LOAD = Path(__file__).with_name("agent_load.py")
_OF_TESTS = ("koord-policy", "kp")
_CHANGING = ("tasks", "cgroup.procs", "cgroup.threads", "cpuacct.usage", "ns_last_pid")
"""Files that a user may write, and that change without."""


def found_groups() -> ControlGroups:
    """Return the machine's hierarchies: v2 where it has the controllers, else v1."""
    return detect_control_groups(HostRoots())[0]


def lacking() -> str:
    """Return why this machine's kernel cannot run these tests; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    groups = found_groups()
    if groups.version == 2:
        given = (Path(groups.roots[""]) / "cgroup.controllers").read_text().split()
        missing = [name for name in CONTROLLERS if name not in given]
    else:
        missing = [name for name in (*CONTROLLERS, "cpuacct")
                   if name not in groups.roots or not os.access(groups.roots[name], os.W_OK)]
    return f"no writable control groups of {', '.join(missing)}" if missing else ""


def without_version_2() -> str:
    """Return why the tests do not run on control groups v2 here; empty if they do."""
    if found_groups().version == 2:
        return ""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    for path in (line.split()[4] for line in mounts if " - cgroup2 " in line):
        given = (Path(path) / "cgroup.controllers").read_text().split()
        return f"the v2 hierarchy {path} has {' '.join(given) or 'no controllers'}: those of this machine are of v1"
    return "this machine has control groups v1 only"


class NodeTree:
    """The tree; use as a context manager, which ends its processes and removes it. `name` is the name of its root."""

    def __init__(self) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(4)}"
        found = found_groups()
        self.groups = ControlGroups(found.version, CGROUPFS, found.roots, self.name)
        self.files = FileTree(self.groups, FileReader())
        self._loads: list[Load] = []
        self._pods: list[PodInfo] = []

    def __enter__(self) -> Self:
        for tier in ("guaranteed", "burstable", "besteffort"):
            self._make(self.groups.tier(tier))
        # As kubelet does, on a machine with 2 CPUs, for pods without CPU requests.
        for tier, shares in (("guaranteed", "2048"), ("burstable", "2"), ("besteffort", "2")):
            self.write(f"{tier}/cpu.shares", shares)
        return self

    def __exit__(self, *_exception: object) -> None:
        for load in self._loads:
            load.end()
        for root in set(self.groups.roots.values()):
            top = Path(root, self.name)
            for path in (*sorted(filter(Path.is_dir, top.rglob("*")), key=lambda each: -len(each.parts)), top):
                for _ in range(100):
                    try:
                        path.rmdir()
                        break
                    except FileNotFoundError:
                        break
                    except OSError:  # a process that was killed is not gone at once
                        time.sleep(0.05)
        assert not [root for root in self.groups.roots.values() if Path(root, self.name).exists()]

    def add_pod(self, pod: dict[str, Any]) -> None:
        """Make the control groups of a pod and its containers, with their CPU limits."""
        self._pods.append(PodInfo.of(pod))
        self.files.directories.use_pods(self._pods)
        of_pod = self.directory(pod)
        self._make(str(self.files.directories.path(of_pod)))
        total = 0
        for each in pod["spec"]["containers"]:
            directory = f"{of_pod}/{each['name']}"
            self._make(str(self.files.directories.path(directory)))
            limit = each.get("resources", {}).get("limits", {}).get("cpu", "")
            if limit.endswith("m"):
                total += int(limit[:-1]) * 100
                self.write(f"{directory}/cpu.cfs_quota_us", str(int(limit[:-1]) * 100))
        if total:
            self.write(f"{of_pod}/cpu.cfs_quota_us", str(total))

    def directory(self, pod: dict[str, Any]) -> str:
        """Return the logical directory of a pod."""
        return f"{pod['status']['qosClass'].lower()}/pod{pod['metadata']['uid']}"

    def text(self, name: str) -> str:
        """Return the text of a logical file, in the units of v1."""
        return self.files.view()[name].strip()

    def write(self, name: str, text: str) -> None:
        """Write a logical file, in the units of v1."""
        place = self.files.place(name)
        path = Path(place.path)
        path.write_text(place.native(text, path.read_text()))

    def run(self, directory: str, kind: str, *arguments: float) -> Load:
        """Return a process of a load in a logical directory, which has not begun."""
        load = Load(kind, *arguments)
        self._loads.append(load)
        for root in set(self.groups.roots.values()):
            Path(root, str(self.files.directories.path(directory)), "cgroup.procs").write_text(str(load.process.pid))
        return load

    def cpu_ns(self) -> int:
        """Return the CPU time of the tree in nanoseconds."""
        root = self.groups.root("cpuacct")
        assert root is not None
        if self.groups.version == 1:
            return int(Path(root, self.name, "cpuacct.usage").read_text())
        return _of(Path(root, self.name, "cpu.stat"), "usage_usec") * 1000

    def memory(self) -> int:
        """Return the anonymous memory of the tree in bytes."""
        root = self.groups.root("memory")
        assert root is not None
        name = "total_rss" if self.groups.version == 1 else "anon"
        return _of(Path(root, self.name, "memory.stat"), name)

    def _make(self, directory: str) -> None:
        if self.groups.version == 2:
            path = Path(self.groups.roots[""], directory)
            (path.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
            path.mkdir()
            return
        for subsystem, root in self.groups.roots.items():
            path = Path(root, directory)
            path.mkdir(exist_ok=True)  # several subsystems may share a hierarchy
            if subsystem == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (path / file).write_text((path.parent / file).read_text())


class Load:
    """A process of `agent_load.py`; see there for the kinds."""

    def __init__(self, kind: str, *arguments: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(_LOAD), kind, *map(str, arguments)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self._line()

    def begin(self) -> int:
        """Let it begin; return the time, in nanoseconds since the epoch."""
        assert self.process.stdin is not None
        begun = time.time_ns()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return begun

    def begin_and_hold(self) -> None:
        """Let it begin, and wait until it has the memory."""
        self.begin()
        assert self._line() == "held"

    def pause(self) -> None:
        """Stop it until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def result(self) -> list[float]:
        """Return its measurements."""
        found: list[float] = json.loads(self._line())
        self.end()
        return found

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class Accounts(Periodic):
    """A directory `proc` for the agent: the machine's, but with the totals of a tree; use as a context manager.

    `more_milli` and `more_bytes` are the usage of the system beside the tree.
    """

    def __init__(self, directory: Path, tree: NodeTree, *, memory: int = 1 << 30) -> None:
        self.path = directory
        self.more_milli = 0
        self.more_bytes = 0
        self._tree = tree
        self._memory = memory
        self._more_ns, self._counted = 0.0, time.monotonic()
        super().__init__(self._count, 0.02)

    def __enter__(self) -> Self:
        self.path.mkdir()
        for name in ("self", "sys", "cpuinfo"):
            (self.path / name).symlink_to(f"/proc/{name}")
        for name in ("stat", "meminfo"):
            (self.path / name).touch()
        self._write(0)
        return super().__enter__()

    def _count(self) -> None:
        now = time.monotonic()
        self._more_ns += (now - self._counted) * self.more_milli * 1e6
        self._counted = now
        self._write(int(self._more_ns))

    def _write(self, more_ns: int) -> None:
        ticks = (self._tree.cpu_ns() + more_ns) * os.sysconf("SC_CLK_TCK") // 1_000_000_000
        free = max(self._memory - self._tree.memory() - self.more_bytes, 0)
        # The length never changes: the agent keeps the files open, and reads them at any time.
        for name, text in (
            ("stat", "".join(f"{cpu:<5}{share:>20} 0 0 0 0 0 0 0 0 0\n" for cpu, share in (
                ("cpu", ticks), ("cpu0", ticks // 2), ("cpu1", ticks // 2)))),
            ("meminfo", f"MemTotal: {self._memory >> 10:>20} kB\nMemAvailable: {free >> 10:>20} kB\n"),
        ):
            with (self.path / name).open("r+b", buffering=0) as file:
                file.write(text.encode())


def machines_proc(directory: Path) -> Path:
    """Make and return a directory `proc` with the machine's own totals, and without its processes.

    Another test may run a process that the agent takes for a koordlet.
    """
    directory.mkdir()
    for name in ("self", "sys", "cpuinfo", "stat", "meminfo"):
        (directory / name).symlink_to(f"/proc/{name}")
    return directory


class WriteWatch:
    """Notes the files of the kernel (control groups, /proc, /sys) that processes write; use as a context manager.

    It needs fanotify; `works` says whether there is.
    """

    _NONBLOCK_UNLIMITED = 0x1 | 0x2 | 0x10 | 0x20
    _ADD_MOUNT = 0x1 | 0x10
    _MODIFY = 0x2
    _EVENT = struct.Struct("=IBBHQii")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._written: dict[int, set[str]] = {}
        self._reading = Periodic(self._read, 0.02)
        self._descriptor = -1

    @property
    def works(self) -> bool:
        return self._descriptor >= 0

    def __enter__(self) -> Self:
        self._descriptor = self._libc.fanotify_init(self._NONBLOCK_UNLIMITED, os.O_RDONLY | os.O_CLOEXEC)
        if self.works:
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                kind, path = line.partition(" - ")[2].split()[0], line.split()[4]
                if kind in ("cgroup", "cgroup2", "proc", "sysfs", "resctrl"):
                    self._libc.fanotify_mark(
                        self._descriptor, self._ADD_MOUNT, ctypes.c_uint64(self._MODIFY), -100, path.encode())
            self._reading.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.works:
            self._reading.stop()
            os.close(self._descriptor)
            self._descriptor = -1

    def written_by(self, pid: int) -> set[str]:
        """Return the files that a process has written so far."""
        time.sleep(0.1)
        return set(self._written.get(pid, ()))

    def _read(self) -> None:
        # Nothing more to read, or a file that is gone since it was written: the kernel has dropped that event.
        with contextlib.suppress(OSError):
            while True:
                self._note(os.read(self._descriptor, 65536))

    def _note(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            length, _, _, _, _, file, pid = self._EVENT.unpack_from(events, at)
            at += length
            if file >= 0:
                try:
                    self._written.setdefault(pid, set()).add(str(Path(f"/proc/self/fd/{file}").readlink()))
                finally:
                    os.close(file)


def settings_outside() -> dict[str, str]:
    """Return the writable files of control groups outside of the trees of tests, and of /proc/sys, with their
    values."""
    found = {}
    for path in _outside():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.stat().st_mode & 0o200 and not path.name.endswith(_CHANGING) and "usage" not in path.name:
                found[str(path)] = path.read_text()
    return found


def _outside() -> Iterator[Path]:
    for root in set(found_groups().roots.values()):
        for directory, below, files in os.walk(root):
            below[:] = [name for name in below if not name.startswith(_OF_TESTS)]
            yield from (Path(directory, name) for name in files)
    for directory, _, files in os.walk("/proc/sys"):
        yield from (Path(directory, name) for name in files)


def _of(path: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
