"""Levelled writes: control group files of nested directories, in an order that never breaks the hierarchy.

A child must not exceed its parent: so on the way down, from parents to children, values only grow, and on the way up
they only shrink. Pure functions over texts; the rules are Koordinator's (resourceexecutor: LeveledUpdateBatch).
Names are logical ones, or the kernel's names in control groups v2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from ..cpuset import format_cpuset, parse_cpuset

Level: TypeAlias = Sequence[tuple[str, str]]
"""The files of directories at one depth, each with its new text."""

INFINITY: Final = float("inf")
_MEMORY_INFINITY: Final = 2**63 - 2**16
"""The kernel prints an unlimited amount of memory as the largest integer, rounded down to its page size."""


def parse_amount(text: str) -> float:
    """Return the first number of a file; `max`, -1 and the largest amounts of memory are infinite.

    Raises:
        ValueError: the text does not begin with a number or `max`.
    """
    first = (text.split() or [""])[0]
    if first == "max":
        return INFINITY
    try:
        amount = int(first)
    except ValueError:
        raise ValueError(f"`{text.strip()}` is neither a whole number nor `max`") from None
    return INFINITY if amount == -1 or amount >= _MEMORY_INFINITY else amount


def _larger(old: str, new: str) -> str | None:
    return new if parse_amount(new) > parse_amount(old) else None


def _union(old: str, new: str) -> str | None:
    before, after = parse_cpuset(old), parse_cpuset(new)
    return None if after <= before else format_cpuset(before | after)


_MERGES: Final[Mapping[str, Callable[[str, str], str | None]]] = {
    "memory.min": _larger, "memory.low": _larger, "memory.high": _larger,
    "cpu.cfs_quota_us": _larger, "cpu.max": _larger, "cpuset.cpus": _union,
}


def is_mergeable(file: str) -> bool:
    """Return whether a file's value grows on the way down and shrinks on the way up."""
    return _base(file) in _MERGES


def merge(file: str, old: str, new: str) -> str | None:
    """Return the text to write on the way down; None if the old value already includes the new one.

    Raises:
        ValueError: the old or the new text of a mergeable file is malformed.
    """
    return _MERGES[_base(file)](old, new)


def is_same(file: str, old: str, new: str, *, page_size: int = 4096, version: int = 1) -> bool:
    """Return whether a file's text already has a value, although the kernel may print it differently.

    The kernel rounds memory down to pages, prints CPUs as ranges, and control groups v2 hold shares as a weight.
    """
    old, new, name = old.strip(), new.strip(), _base(file)
    if old == new:
        return True
    try:
        if name == "cpuset.cpus":
            return parse_cpuset(old) == parse_cpuset(new)
        if name == "cpu.shares" and version == 2:
            return int(old) == _printed_shares(int(new))
        if name in _PAGED:
            before, after = parse_amount(old), parse_amount(new)
            return before == after or (after < INFINITY and before == after // page_size * page_size)
    except ValueError:
        pass
    return False


_PAGED: Final = frozenset({"memory.min", "memory.low", "memory.high", "memory.limit_in_bytes", "memory.max"})


def _printed_shares(shares: int) -> int:
    weight = min(max(1 + (shares - 2) * 9999 // 262142, 1), 10000)
    return (weight - 1) * 262142 // 9999 + 2


def levelled_writes(
    levels: Sequence[Level], files: Mapping[str, str], *, page_size: int = 4096, version: int = 1,
) -> tuple[tuple[str, str], ...]:
    """Return the writes that set all files of the levels (parents first), in order.

    A file that does not exist, has its value already, or has a malformed text is left out. If the way down writes a
    merged value (a union of CPUs), the way up writes the final one.
    """
    down: list[tuple[str, str]] = []
    up: list[list[tuple[str, str]]] = []
    for level in levels:
        shrinking: list[tuple[str, str]] = []
        for file, new in level:
            old = files.get(file)
            if old is None or is_same(file, old, new, page_size=page_size, version=version):
                continue
            if not is_mergeable(file):
                down.append((file, new))
                continue
            try:
                merged = merge(file, old, new)
            except ValueError:
                continue
            if merged is not None:
                down.append((file, merged))
            if merged is None or not is_same(file, merged, new, page_size=page_size, version=version):
                shrinking.append((file, new))
        up.append(shrinking)
    return (*down, *(write for shrinking in reversed(up) for write in shrinking))


def _base(file: str) -> str:
    return file.rpartition("/")[2]
