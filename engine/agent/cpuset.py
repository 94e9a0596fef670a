"""Lists of CPUs as texts (`0,4-5`), as the kernel reads and prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_CPUS: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_LARGEST_CPU: Final = 65_535  # Linux is built for 8,192 at most


def parse_cpuset(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0,4-5`; raise `ValueError` for any other text."""
    cpus: set[int] = set()
    for part in filter(None, (each.strip() for each in text.strip().split(","))):
        found = _CPUS.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last <= _LARGEST_CPU:
            raise ValueError(f"`{part}` is neither a CPU nor a range of CPUs from 0 to {_LARGEST_CPU}")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpuset(cpus: Iterable[int]) -> str:
    """Return CPUs as sorted ranges (`0,4-5`), as the kernel prints them."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
