"""Resctrl is mounted where the kernel has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.resctrl import has_resctrl, mount_resctrl
from koordpolicy.engine.framework.qos import Host


def test_a_mounted_resctrl_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "schemata").write_text("L3:0=f\n")
    assert mount_resctrl(str(tmp_path)) == ""


def test_a_kernel_without_resctrl_is_a_reason(tmp_path: Path) -> None:
    assert mount_resctrl(f"{tmp_path}/absent") == (
        f"`{tmp_path}/absent` does not exist: the kernel was built without resctrl"
    )


@pytest.mark.skipif("resctrl" in Path("/proc/filesystems").read_text(), reason="the kernel has resctrl")
def test_a_refused_mount_is_a_reason(tmp_path: Path) -> None:
    reason = mount_resctrl(str(tmp_path))
    assert reason.startswith(f"resctrl cannot be mounted on `{tmp_path}`: ")


def test_processors_need_both_technologies() -> None:
    flags = (frozenset({"cat_l3"}), frozenset({"cat_l3", "mba", "fpu"}))
    assert [has_resctrl(Host(flags=each)) for each in flags] == [False, True]
