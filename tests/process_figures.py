"""Figures of running processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, name: str = "VmRSS") -> float:
    """Return a figure of a process's memory in MiB: what is resident now, or the most that was (`VmHWM`)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) / 1024
