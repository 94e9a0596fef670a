from __future__ import annotations

import socket
from pathlib import Path

import pytest

from koordpolicy.engine.agent.koordlet import find_koordlet, port_is_taken


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_bytes(b"/sbin/init\0koordlet\0")
    (tmp_path / "self").mkdir()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n")
    return tmp_path


def test_a_node_without_koordlet(proc):
    assert find_koordlet(proc) == ""


def test_a_koordlet_is_known_by_its_process(proc):
    (proc / "77").mkdir()
    (proc / "77" / "cmdline").write_bytes(b"/koordlet\0--addr=:9316\0")
    assert find_koordlet(proc) == "the process 77 is a koordlet"


def test_a_koordlet_is_known_by_its_socket(proc):
    (proc / "net" / "unix").write_text("0: 00000002 00000000 00010000 0001 01 17 /var/run/koordlet/koordlet.sock\n")
    assert find_koordlet(proc) == "somebody listens on koordlet's socket /var/run/koordlet/koordlet.sock"


def test_a_koordlet_is_known_by_its_port(proc):
    head = "  sl  local_address rem_address   st\n"
    (proc / "net" / "tcp").write_text(f"{head}   0: 0100007F:2464 0100007F:9000 01\n   1: 0100007F:2465 0:0 0A\n")
    assert find_koordlet(proc) == ""
    (proc / "net" / "tcp6").write_text(f"{head}   0: {'0' * 32}:2464 {'0' * 32}:0000 0A\n")
    assert find_koordlet(proc) == "somebody listens on koordlet's port 9316, a koordlet or another agent"


def test_a_machine_without_proc_has_no_koordlet(tmp_path):
    assert find_koordlet(tmp_path / "nothing") == ""


def test_a_port_that_somebody_listens_on_is_taken():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert not port_is_taken(port)
        one.listen()
        assert port_is_taken(port)
