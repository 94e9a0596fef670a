"""Detection of a koordlet on this node: two agents that write the same files undo each other's work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROGRAM: Final = "koordlet"
PORT: Final = 9316
"""koordlet's port of metrics."""
SOCKET: Final = "/var/run/koordlet/koordlet.sock"
_LISTENING: Final = "0A"


def find_koordlet(proc: Path = Path("/proc"), socket: str = SOCKET, port: int = PORT) -> str:
    """Return how a running koordlet was recognized; empty if there is none.

    Its process is seen if the agent shares the host's process ids, its socket and its port if it shares the host's
    network and file system. A socket file that nobody listens on is left by a koordlet that ended.
    """
    for pid in _processes(proc):
        with contextlib.suppress(OSError):
            program = (proc / pid / "cmdline").read_bytes().partition(b"\0")[0]
            if os.path.basename(os.fsdecode(program)) == PROGRAM:  # noqa: PTH119 - a text, no path of ours
                return f"the process {pid} is a koordlet"
    with contextlib.suppress(OSError):
        for line in (proc / "net" / "unix").read_text("utf-8", "replace").splitlines():
            if line.endswith(f" {socket}"):
                return f"somebody listens on koordlet's socket {socket}"
    if port and port_is_taken(port, proc):
        return f"somebody listens on koordlet's port {port}, a koordlet or another agent"
    return ""


def port_is_taken(port: int, proc: Path = Path("/proc")) -> bool:
    """Return whether somebody listens on a TCP port of this network."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (proc / "net" / name).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
    return False


def _processes(proc: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (path.name for path in proc.iterdir() if path.name.isdigit())
