from __future__ import annotations

import pytest

from koordpolicy.engine.agent.recorded_files import apply_writes


@pytest.mark.parametrize(("file", "before", "write", "after"), [
    ("besteffort/cpu.cfs_quota_us", "-1", "2000", "2000"),
    ("resctrl/BE/schemata", "    MB:0=100;1=100\n    L3:0=ff;1=ff", "L3:0=f;\n", "MB:0=100;1=100\nL3:0=f;1=ff"),
    ("resctrl/BE/schemata", "", "MB:0=10;\n", "MB:0=10"),
    ("besteffort/blkio.throttle.read_bps_device", "8:0 1\n8:16 2", "8:0 0", "8:16 2"),
    ("besteffort/blkio.throttle.read_bps_device", "8:16 2", "8:0 7", "8:16 2\n8:0 7"),
    ("besteffort/blkio.cost.weight", "default 100", "8:0 7", "default 100\n8:0 7"),
    ("sys/kernel/debug/sched_features", "A NO_B", "B\n", "A B"),
    ("sys/kernel/debug/sched_features", "A NO_B", "NO_A\n", "NO_A NO_B"),
])
def test_a_file_has_the_text_that_the_kernel_would_print(file: str, before: str, write: str, after: str) -> None:
    files = {file: before}
    apply_writes(files, ((file, write),))
    assert files == {file: after}


def test_a_task_is_in_one_group_only() -> None:
    files = {"resctrl/LS/tasks": "1\n2", "resctrl/BE/tasks": "3"}
    apply_writes(files, (("resctrl/BE/tasks", "1"), ("resctrl/LSR/tasks", "2")))
    assert files == {"resctrl/LS/tasks": "", "resctrl/BE/tasks": "3\n1", "resctrl/LSR/tasks": "2"}
