"""Texts of the kernel as numbers, out of bytes.

Every function raises `ValueError` for a text that is malformed or not whole: each file ends with a line break, so one
without it was cut off. Amounts are at most 64 bits long, as the kernel's counters are.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_LARGEST: Final = 2**64 - 1
NO_NUMBER: Final = -1
"""Stands for a counter that could not be read."""
_MEMORY: Final = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")
_IN_ORDER: Final = {
    prefix: re.compile(b"\n" + b"".join(prefix + name + rb" (\d{1,19})\n" for name in _MEMORY))
    for prefix in (b"", b"total_")
}
"""The lines of memory.stat as the kernel writes them: one after the other, with amounts below 64 bits."""
_PAGES: Final = re.compile(
    rb"\nhierarchical_total=(\d{1,19}) [^\n]*\nhierarchical_file=\d[^\n]*\nhierarchical_anon=(\d{1,19}) [^\n]*"
    rb"\nhierarchical_unevictable=(\d{1,19}) [^\n]*\n")
_PERIODS: Final = re.compile(rb"(?:^|\n)nr_periods (\d{1,19})\nnr_throttled (\d{1,19})\n")
_PRESSURE: Final = re.compile(
    rb"some avg10=(\d{1,3}\.\d\d) [^\n]*\n(?:full avg10=(\d{1,3}\.\d\d) [^\n]*\n)?\Z")
_COLD: Final = (b"cfei", b"dfei", b"cfui", b"dfui")
"""Pages of files that are neither active nor slab: clean or dirty, evictable or not."""
COLD_BUCKET: Final = 5
"""The first bucket of ages whose pages count as cold (koordlet's kidled_util.go)."""


def amount(text: bytes) -> int:
    """Return a counter."""
    if not text.isdigit() or len(text) > 20 or (found := int(text)) > _LARGEST:  # long texts are slow to convert
        raise ValueError(f"{text[:40]!r} is no amount of the kernel")
    return found


def _whole(data: bytes) -> bytes:
    if data[-1:] != b"\n":
        raise ValueError("the text is cut off")
    return data


def number(data: bytes) -> int:
    """Return the one number of a file."""
    digits = data[:-1]
    if len(digits) < 20 and digits.isdigit() and data[-1:] == b"\n":  # as the kernel writes it
        return int(digits)
    return amount(_whole(data)[:-1].strip())


def numbers(contents: Sequence[bytes]) -> list[int]:
    """Return the one number of each file; -1 for one that is malformed or not whole."""
    together = b"".join(contents)
    # As the kernel writes them: digits and a line break. A content without either, or with two, is no number for `int`.
    if (together.translate(None, b"\n").isdigit() and together.count(b"\n") == len(contents)
            and not together.startswith(b"\n") and b"\n\n" not in together and max(map(len, contents)) <= 20):
        with contextlib.suppress(ValueError):
            return [int(content) for content in contents]
    return [_number_or_none(content) for content in contents]


def _number_or_none(data: bytes) -> int:
    try:
        return number(data)
    except ValueError:
        return NO_NUMBER


def signed(data: bytes) -> int:
    """Return the one number of a file, which may be negative (-1: unlimited)."""
    text = _whole(data)[:-1].strip()
    return -amount(text[1:]) if text[:1] == b"-" else amount(text)


def field(data: bytes, name: bytes) -> int:
    """Return the number behind a name at the beginning of a line."""
    prefix = name + b" "
    start = 0 if data.startswith(prefix) else data.find(b"\n" + prefix) + 1
    if not start and not data.startswith(prefix):
        raise ValueError(f"there is no {name.decode()}")
    end = data.find(b"\n", start)
    if end < 0:
        raise ValueError("the text is cut off")
    return amount(data[start + len(prefix) : end].strip())


def memory_amounts(data: bytes, prefix: bytes) -> tuple[int, int]:
    """Return a control group's memory without and with page cache, in bytes, out of memory.stat.

    The lines that count descendants begin with `total_` on v1, which is the prefix then.
    """
    in_order = _IN_ORDER[prefix].search(data)
    inactive, active, inactive_file, active_file, unevictable = (
        map(int, in_order.groups()) if in_order is not None else (field(data, prefix + name) for name in _MEMORY))
    used = inactive + active + unevictable
    return used, used + inactive_file + active_file


def memory_pages(data: bytes) -> tuple[int, int]:
    """Return a control group's memory without and with page cache, in pages, out of memory.numa_stat of v1.

    It is that of the control group with its descendants.
    """
    found = _PAGES.search(data)
    if found is None:
        raise ValueError("lines of memory.numa_stat are missing")
    total, anonymous, unevictable = map(int, found.groups())
    return anonymous + unevictable, total


class Throttling(NamedTuple):
    """Periods of the CFS quota since the control group was made."""

    periods: int
    throttled: int


def throttling(data: bytes) -> Throttling:
    """Read the periods in cpu.stat, of v1 or v2."""
    in_order = _PERIODS.search(data)
    if in_order is not None:
        return Throttling(*map(int, in_order.groups()))
    return Throttling(field(data, b"nr_periods"), field(data, b"nr_throttled"))


def cpu_ticks(data: bytes) -> dict[int, int]:
    """Return the busy ticks of /proc/stat by CPU, and of all of them as CPU -1.

    Busy is user, nice, system, irq and softirq: neither idle, iowait nor steal, and guests are part of user.
    """
    found: dict[int, int] = {}
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):
        if not line.startswith(b"cpu"):
            break
        words = line.split()
        if len(words) < 8:
            raise ValueError("a line of CPU times is cut off")
        name = words[0][3:]
        cpu = amount(name) if name else -1
        found[cpu] = (
            amount(words[1]) + amount(words[2]) + amount(words[3]) + amount(words[6]) + amount(words[7])
        )
    if -1 not in found:
        raise ValueError("there are no CPU times")
    return found


def meminfo(data: bytes) -> dict[bytes, int]:
    """Return the amounts of /proc/meminfo, or of a NUMA node's meminfo, in bytes; without lines that are cut off."""
    found: dict[bytes, int] = {}
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):
        name, separator, value = line.partition(b":")
        words = value.split()
        if separator and len(words) == 2 and words[1] == b"kB":
            found[name.rsplit(None, 1)[-1]] = amount(words[0]) * 1024
    return found


def processor_times(data: bytes) -> list[int]:
    """Return the CPU time of each processor in nanoseconds, by number, out of cpuacct.usage_percpu of v1."""
    return [amount(word) for word in _whole(data).split()]


def memory_of_nodes(data: bytes, names: Sequence[bytes]) -> dict[int, int]:
    """Return the sum of these lines of memory.numa_stat by NUMA node: pages on v1, bytes on v2."""
    found: dict[int, int] = {}
    missing = set(names)
    for first, *columns in filter(None, map(bytes.split, _whole(data).split(b"\n"))):
        name = first.partition(b"=")[0]  # v1 has the sum of all nodes behind the name
        if name not in missing:
            continue
        missing.remove(name)
        for column in columns:
            node, _, value = column.partition(b"=")
            number = amount(node.removeprefix(b"N"))
            found[number] = found.get(number, 0) + amount(value)
    if missing:
        raise ValueError("lines of memory.numa_stat are missing")
    return found


def amounts_of(found: Mapping[bytes, int], *names: bytes) -> list[int]:
    """Return the amounts of these names; raise `ValueError` if one is missing."""
    try:
        return [found[name] for name in names]
    except KeyError as missing:
        raise ValueError(f"there is no {missing.args[0].decode()}") from None


class Pressure(NamedTuple):
    """Pressure stall information: percents of the last 10 seconds in which some tasks or all of them waited.

    `full` is None where the kernel has no such line, as older ones for the CPU.
    """

    some: float
    full: float | None


def pressure(data: bytes) -> Pressure:
    """Read a pressure file."""
    in_order = _PRESSURE.match(data)
    if in_order is not None:
        some, full = in_order.groups()
        return Pressure(_percent(some), None if full is None else _percent(full))
    found: dict[bytes, float] = {}
    for line in _whole(data).splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].startswith(b"avg10="):
            raise ValueError("a line of pressure is malformed")
        found[words[0]] = _percent(words[1][6:])
    if b"some" not in found:
        raise ValueError("there is no pressure")
    return Pressure(found[b"some"], found.get(b"full"))


def _percent(text: bytes) -> float:
    percent = float(text)
    if not 0 <= percent <= 100:
        raise ValueError(f"`{percent}` is not a percentage")
    return percent


def cold_pages(data: bytes, first_bucket: int = COLD_BUCKET) -> int:
    """Return the bytes of cold file pages in memory.idle_page_stats, from a bucket of ages on (counted from 0)."""
    total, lines = 0, 0
    for line in _whole(data).splitlines():
        words = line.split()
        if words and words[0] in _COLD:
            lines += 1
            total += sum(map(amount, words[1 + first_bucket :]))
    if lines != len(_COLD):
        raise ValueError("lines of idle pages are missing")
    return total
