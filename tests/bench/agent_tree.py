"""The control groups of a node with many pods, for benchmarks and tests: as plain files, or in the kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordpolicy.engine.agent.host.control_groups import CGROUPFS, SYSTEMD, ControlGroups
from koordpolicy.engine.agent.host.detection import SUBSYSTEMS as DETECTED
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroup, MeasuredGroups

SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory")
_STAT_NAMES = (
    "cache", "rss", "rss_huge", "shmem", "mapped_file", "dirty", "writeback", "workingset_refault_anon",
    "workingset_refault_file", "swap", "swapcached", "pgpgin", "pgpgout", "pgfault", "pgmajfault", "inactive_anon",
    "active_anon", "inactive_file", "active_file", "unevictable",
)


def memory_stat(anonymous: int, *, version: int = 1) -> str:
    """Return a memory.stat in which that many bytes are active anonymous memory."""
    if version == 2:
        names = ("anon", "file", "kernel", *_STAT_NAMES[-5:], "slab_reclaimable", "slab")
        return "".join(f"{name} {anonymous if name in ('anon', 'active_anon') else 0}\n" for name in names)
    own = "".join(f"{name} {anonymous if name in ('rss', 'active_anon') else 0}\n" for name in _STAT_NAMES)
    limits = "hierarchical_memory_limit 9223372036854771712\nhierarchical_memsw_limit 9223372036854771712\n"
    return own + limits + "".join(f"total_{line}\n" for line in own.splitlines())


def numa_stat(nodes: int = 1, **pages: int) -> str:
    """Return a memory.numa_stat of v1 with these pages in all, all of them on the first NUMA node."""
    lines = [f"{name}={amount} N0={amount}" + "".join(f" N{node}=0" for node in range(1, nodes))
             for name, amount in pages.items()]
    own = "".join(f"{name}=0" + "".join(f" N{node}=0" for node in range(nodes)) + "\n" for name in pages)
    return own + "".join(f"hierarchical_{line}\n" for line in lines)


PRESSURE = "some avg10=0.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def write_group(groups: ControlGroups, directory: str) -> None:
    """Write the files of a control group that collectors read."""
    if groups.version == 2:
        files = {"": {
            "cpu.stat": "usage_usec 1000\nuser_usec 1000\nsystem_usec 0\n"
                        "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "memory.stat": memory_stat(4096, version=2), "cpu.max": "max 100000\n",
            "cpuset.cpus.effective": "0-1\n", **{f"{each}.pressure": PRESSURE for each in ("cpu", "memory", "io")},
        }}
    else:
        files = {
            "cpu": {"cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n", "cpu.cfs_quota_us": "-1\n",
                    "cpu.cfs_period_us": "100000\n"},
            "cpuacct": {"cpuacct.usage": "1000000\n",
                        **{f"{each}.pressure": PRESSURE for each in ("cpu", "memory", "io")}},
            "cpuset": {"cpuset.cpus": "0-1\n"},
            "memory": {"memory.stat": memory_stat(4096)},
        }
    for subsystem, texts in files.items():
        folder = Path(groups.roots[subsystem]) / directory
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)


def imitated(root: Path, version: int) -> ControlGroups:
    """Return control groups whose hierarchies are plain directories."""
    roots = {"": str(root)} if version == 2 else {each: str(root / each) for each in SUBSYSTEMS}
    return ControlGroups(version, SYSTEMD, roots)


def subjects_of(groups: ControlGroups, pods: int, containers: int) -> MeasuredGroups:
    """Return subjects with that many pods, a third of each QoS class, and containers in each."""
    of_pods, of_containers = [], []
    for number in range(pods):
        tier = ("guaranteed", "burstable", "besteffort")[number % 3]
        uid = f"00000000-0000-0000-0000-{number:012}"
        directory = groups.pod(tier, uid)
        of_pods.append(MeasuredGroup("pod", f"bench/pod-{number:03}", uid, directory))
        of_containers += [
            MeasuredGroup("container", f"bench/pod-{number:03}/c{each}", f"{number}-{each}", f"{directory}/c{each}")
            for each in range(containers)
        ]
    return MeasuredGroups(tuple(of_pods), tuple(of_containers))


@contextmanager
def kernel_groups(name: str) -> Iterator[ControlGroups]:
    """Make empty control groups v1 below a directory of that name in each hierarchy, and remove them at the end.

    Raises:
        OSError: they cannot be made here.
    """
    roots = {each: Path("/sys/fs/cgroup") / each / name for each in SUBSYSTEMS}
    try:
        for each, root in roots.items():
            if not root.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, f"the hierarchy v1 of {each} is not mounted", str(root.parent))
            root.mkdir(exist_ok=True)  # two subsystems may have one hierarchy
        yield ControlGroups(1, CGROUPFS, {each: str(root) for each, root in roots.items()})
    finally:
        _remove(roots.values())


@contextmanager
def linked_hierarchies(root: Path) -> Iterator[None]:
    """Make a control group in each of the kernel's hierarchies v1, linked by the hierarchy's name below `root`.

    The groups are removed at the end. Raises:
        OSError: they cannot be made here.
    """
    mounted = {each.name: each / f"koord-policy-bench-{os.getpid()}" for each in Path("/sys/fs/cgroup").iterdir()
               if each.name in DETECTED}
    if missing := set(SUBSYSTEMS) - mounted.keys():
        raise FileNotFoundError(errno.ENOENT, "hierarchies v1 are not mounted", ", ".join(sorted(missing)))
    root.mkdir()
    try:
        for name, folder in mounted.items():
            folder.mkdir(exist_ok=True)  # two subsystems may have one hierarchy
            (root / name).symlink_to(folder)
        _inherit_cpus(mounted["cpuset"])
        yield
    finally:
        _remove(mounted.values())


def make_group(groups: ControlGroups, directory: str) -> None:
    """Make a control group in each hierarchy of the kernel that there is; its CPU set is its parent's."""
    for subsystem, root in groups.roots.items():
        if not Path(root).is_dir():
            continue
        at = Path(root)
        for part in directory.split("/"):
            at /= part
            at.mkdir(exist_ok=True)
            if subsystem == "cpuset":
                _inherit_cpus(at)


def _inherit_cpus(folder: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        (folder / name).write_text((folder.parent / name).read_text())


def _remove(roots: Iterable[Path]) -> None:
    for root in roots:
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()
