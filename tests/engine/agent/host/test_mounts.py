"""The kernel's list of mounts is read line by line."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.host.mounts import MountPoint, parse_mountinfo, read_mounts

LINE = r"32 31 0:29 / /sys/fs/cgroup/cpu\040x rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"


def test_a_line_tells_where_a_file_system_is_mounted() -> None:
    assert parse_mountinfo(LINE) == (MountPoint(
        "/sys/fs/cgroup/cpu x", "cgroup", "cgroup", "0:29", "/", frozenset({"rw", "cpu", "cpuacct"}),
    ),)


def test_lines_that_are_cut_off_are_left_out() -> None:
    assert parse_mountinfo(f"{LINE[:30]}\n\n - \n{LINE}\n1 2 3") == parse_mountinfo(LINE)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    parse_mountinfo(text)
    parse_mountinfo(LINE.replace("cgroup", text))


def test_the_first_process_that_can_be_read_counts(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_bytes(LINE.encode() + b"\n\xff\xfe\n")
    assert read_mounts(tmp_path, ("1", "self")) == parse_mountinfo(LINE)
    assert read_mounts(tmp_path / "absent") == ()
