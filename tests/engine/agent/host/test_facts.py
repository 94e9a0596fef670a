"""Processors, caches and storage are read from sysfs and procfs, as far as they are there."""

from __future__ import annotations

import os
from pathlib import Path

from koordpolicy.engine.agent.host.detection import HostRoots
from koordpolicy.engine.agent.host.facts import read_host
from koordpolicy.engine.agent.host.storage import read_storage
from koordpolicy.engine.framework.qos import Host, Processor, Storage

CPUINFO = "".join(
    f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nphysical id\t: {cpu // 2}\ncore id\t: {cpu % 2}\n"
    f"flags\t\t: fpu cat_l3 mba\n\n" for cpu in range(4)
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))


def roots(tmp_path: Path) -> HostRoots:
    return HostRoots(str(tmp_path / "cgroup"), str(tmp_path / "proc"), str(tmp_path / "sys"), str(tmp_path / "resctrl"))


def cpu(number: int, siblings: str, package: int, cache: int) -> dict[str, str]:
    base = f"sys/devices/system/cpu/cpu{number}"
    return {
        f"{base}/topology/core_cpus_list": f"{siblings}\n", f"{base}/topology/physical_package_id": f"{package}\n",
        f"{base}/cache/index3/level": "3\n", f"{base}/cache/index3/id": f"{cache}\n",
        f"{base}/cache/index2/level": "2\n", f"{base}/cache/index2/id": "9\n",
    }


def test_processors_are_numbered_by_core_and_socket_over_the_machine(tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/cpuinfo": CPUINFO, "sys/devices/system/cpu/online": "0-1,4-5\n", "resctrl/info/L3/cbm_mask": "fff\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n", "sys/devices/system/node/node1/cpulist": "4-7\n",
        **cpu(0, "0,4", 0, 0), **cpu(4, "0,4", 0, 0), **cpu(1, "1,5", 3, 8), **cpu(5, "1,5", 3, 8),
    })
    assert read_host(roots(tmp_path), 2) == Host(
        processors=(Processor(0, 0, 0, 0), Processor(1, 1, 1, 0), Processor(4, 0, 0, 1), Processor(5, 1, 1, 1)),
        vendor="GenuineIntel", flags=frozenset({"fpu", "cat_l3", "mba"}), cbm_mask="fff", l3_caches=(0, 8),
        cgroup_version=2, page_size=os.sysconf("SC_PAGE_SIZE"),
    )


def test_without_a_topology_in_sysfs_cpuinfo_has_the_processors(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": CPUINFO, "sys/devices/system/cpu/online": "0-3"})
    assert read_host(roots(tmp_path), 1).processors == (
        Processor(0, 0, 0, 0), Processor(1, 1, 0, 0), Processor(2, 2, 1, 0), Processor(3, 3, 1, 0),
    )


def test_a_machine_that_shows_nothing_has_no_facts(tmp_path: Path) -> None:
    assert read_host(roots(tmp_path), 1) == Host(page_size=os.sysconf("SC_PAGE_SIZE"))


def test_files_that_are_malformed_are_as_if_absent(tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/cpuinfo": "processor : \xff\nflags\n\nprocessor: 1\nphysical id: x\n", "sys/block/sda/dev": "what",
        "sys/devices/system/cpu/online": "0-\xff", "sys/devices/system/node/nodex/cpulist": "0",
        "proc/self/mountinfo": "1 2 3",
    })
    found = read_host(roots(tmp_path), 1)
    assert (found.processors, found.storage) == ((), Storage())


def test_limits_of_partitions_volumes_and_mounts_are_those_of_the_disk(tmp_path: Path) -> None:
    write(tmp_path, {
        "sys/block/sda/dev": "8:0\n", "sys/block/sda/sda1/partition": "1\n", "sys/block/sda/sda1/dev": "8:1\n",
        "sys/block/sdb/dev": "8:16\n", "sys/block/sdb/sdb1/partition": "1\n",
        "sys/block/dm-0/dev": "253:0\n", "sys/block/dm-0/dm/name": "my--group-data\n",
        "sys/block/dm-0/dm/uuid": "LVM-x\n", "sys/block/dm-0/slaves/sdb1/dev": "8:17\n",
        "sys/block/dm-1/dev": "253:1\n", "sys/block/dm-1/dm/name": "crypt-x\n", "sys/block/dm-1/dm/uuid": "CRYPT-x\n",
        "sys/block/dm-1/slaves/dm-0/dev": "253:0\n",
        "proc/1/mountinfo": "1 1 8:1 / / rw - ext4 /dev/root rw\n"
                            "2 1 253:0 / /data rw - xfs /dev/mapper/my--group-data rw\n"
                            "3 1 0:5 / /tmp rw - tmpfs tmpfs rw\n4 1 253:1 / /safe rw - ext4 /dev/dm-1 rw\n",
    })
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:1").symlink_to("../../block/sda/sda1")
    expected = {
        "sda": "8:0", "sda1": "8:0", "sdb": "8:16", "sdb1": "8:16", "dm-0": "8:16", "dm-1": "8:16",
    }
    assert read_storage(tmp_path / "sys", tmp_path / "proc") == Storage(
        devices={
            **expected, **{f"/dev/{name}": number for name, number in expected.items()},
            "/dev/mapper/my--group-data": "8:16", "/dev/mapper/crypt-x": "8:16",
        },
        volume_groups={"my-group": "8:16"}, mounts={"/": "8:0", "/data": "8:16", "/safe": "8:16"},
    )


def test_devices_that_lie_on_each_other_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, {
        "sys/block/dm-0/dev": "253:0", "sys/block/dm-0/slaves/dm-1/x": "", "sys/block/dm-1/dev": "253:1",
        "sys/block/dm-1/slaves/dm-0/x": "",
    })
    assert set(read_storage(tmp_path / "sys", tmp_path / "proc").devices) == {"dm-0", "dm-1", "/dev/dm-0", "/dev/dm-1"}


def test_this_machine_has_the_processors_that_this_process_runs_on() -> None:
    assert {each.cpu for each in read_host(HostRoots(), 1).processors} >= os.sched_getaffinity(0)
