"""Values of control group files: their checks, and their conversions between control groups v1 and v2.

All amounts are integers. Sources of the formulas: Koordinator's cgroup2.go and the kernel's documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from koordpolicy.engine.texts import beginning

from ..cpuset import parse_cpuset

Check: TypeAlias = Callable[[str], None]
"""Raises `ValueError` with the reason for a text that must not be written."""

INT64_MAX: Final = 2**63 - 1
_PAGE: Final = 4096
_UNLIMITED_MEMORY: Final = 2**62
"""From here on no machine has as much: the kernel prints unlimited amounts as the largest multiple of a page."""
_FEWEST_SHARES, _MOST_SHARES, _MOST_WEIGHT = 2, 262_144, 10_000


def shares_to_weight(shares: int) -> int:
    """Return the weight (1 to 10000, v2) of CPU shares (v1); raise `ValueError` outside of 2 to 262144."""
    if not _FEWEST_SHARES <= shares <= _MOST_SHARES:
        raise ValueError(f"cpu shares must be from {_FEWEST_SHARES} to {_MOST_SHARES}, not {shares}")
    weight = 1 + (shares - _FEWEST_SHARES) * (_MOST_WEIGHT - 1) // (_MOST_SHARES - _FEWEST_SHARES)
    return min(max(weight, 1), _MOST_WEIGHT)


def weight_to_shares(weight: int) -> int:
    """Return the CPU shares (v1) of a weight (v2)."""
    return (weight - 1) * (_MOST_SHARES - _FEWEST_SHARES) // (_MOST_WEIGHT - 1) + _FEWEST_SHARES


def whole_number(text: str) -> int:
    """Return the number that a file's text is; raise `ValueError` for any other text."""
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 20:
        raise ValueError(f"`{beginning(text)}` is not a whole number")
    return int(stripped)


def limit(text: str) -> int | None:
    """Return an amount, None for an unlimited one: `max`, a negative number, or more than any machine has."""
    if text.strip() == "max":
        return None
    number = whole_number(text)
    return None if number < 0 or number >= _UNLIMITED_MEMORY else number


def first_field(text: str) -> str:
    """Return the first field of a line; raise `ValueError` if there is none."""
    fields = text.split()
    if not fields:
        raise ValueError("it is empty")
    return fields[0]


# Checks


def in_range(least: int, most: int = INT64_MAX) -> Check:
    """Return the check for whole numbers from `least` to `most`."""

    def check(text: str) -> None:
        if not least <= whole_number(text) <= most:
            bounds = f"from {least} to {most}" if most != INT64_MAX else f"at least {least}"
            raise ValueError(f"must be {bounds}, not {beginning(text)}")

    return check


def any_number(text: str) -> None:
    """Check for any whole number."""
    whole_number(text)


def number_or_max(text: str) -> None:
    """Check for a whole number from 0, or `max`."""
    if text.strip() != "max":
        in_range(0)(text)


def memory_limit(text: str) -> None:
    """Check for a number of bytes, or -1 or `max` for no limit."""
    if text.strip() != "max":
        in_range(-1)(text)


def cpu_list(text: str) -> None:
    """Check for a list of CPUs; an empty one inherits."""
    parse_cpuset(text)


def one_line(text: str) -> None:
    """Check for one line of text."""
    if not text.strip() or "\n" in text.strip() or "\x00" in text:
        raise ValueError(f"must be one line of text, not `{beginning(text)}`")


def device_amounts(least: int, most: int = INT64_MAX) -> Check:
    """Return the check for lines `MAJ:MIN n`, where n is from `least` to `most`."""

    def check(text: str) -> None:
        for line in _lines(text):
            disk, *rest = line.split()
            _check_disk(disk)
            if len(rest) != 1:
                raise ValueError(f"`{beginning(line)}` is not `MAJ:MIN` and a number")
            in_range(least, most)(rest[0])

    return check


def device_settings(text: str) -> None:
    """Check for lines `MAJ:MIN key=value ...`, as in blkio.cost.qos."""
    for line in _lines(text):
        disk, *rest = line.split()
        _check_disk(disk)
        if not rest or not all(part.partition("=")[2] for part in rest):
            raise ValueError(f"`{beginning(line)}` is not `MAJ:MIN` and settings `key=value`")


def device_model(text: str) -> None:
    """Check for lines `MAJ:MIN key=value ...` of blkio.cost.model, whose amounts are at least 1."""
    device_settings(text)
    for line in _lines(text):
        for part in line.split()[1:]:
            key, _, value = part.partition("=")
            if key not in ("ctrl", "model"):
                in_range(1)(value)


def schemata(text: str) -> None:
    """Check for lines of a resctrl group's schemata (`L3:0=ff;1=ff`)."""
    parse_schemata(text)


def _lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    return lines


def _check_disk(disk: str) -> None:
    major, separator, minor = disk.partition(":")
    if not separator or not (major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"`{beginning(disk)}` is not the number of a disk (`MAJ:MIN`)")


def parse_schemata(text: str) -> dict[str, dict[str, str]]:
    """Return a resctrl group's values by resource (`L3`) and cache id; raise `ValueError` for malformed lines."""
    found: dict[str, dict[str, str]] = {}
    for line in _lines(text):
        kind, separator, rest = line.strip().partition(":")
        values = dict(part.split("=", 1) for part in rest.strip().split(";") if "=" in part)
        if not separator or not values or len(values) != len([part for part in rest.split(";") if part.strip()]):
            raise ValueError(f"`{beginning(line)}` is not a line of schemata (`L3:0=ff;1=ff`)")
        found[kind.strip()] = {key.strip(): value.strip() for key, value in values.items()}
    return found


# From control groups v2 to v1, in the text of a file


def quota_of(text: str) -> str:
    """Return the CFS quota of a `cpu.max`; -1 is unlimited."""
    quota = first_field(text)
    if quota == "max":
        return "-1"
    return str(whole_number(quota))


def period_of(text: str) -> str:
    """Return the CFS period of a `cpu.max`, in microseconds."""
    fields = text.split()
    return fields[1] if len(fields) > 1 else "100000"


def shares_of(text: str) -> str:
    """Return the CPU shares of a `cpu.weight`."""
    return str(weight_to_shares(whole_number(text)))


def memory_of(text: str) -> str:
    """Return a memory limit as v1 has it: unlimited is the largest multiple of a page."""
    return str(INT64_MAX // _PAGE * _PAGE) if text.strip() == "max" else text


def amount_of(text: str) -> str:
    """Return an amount, the largest one instead of `max`."""
    return str(INT64_MAX) if text.strip() == "max" else text


def throttling_of(text: str) -> str:
    """Return a `cpu.stat` as v1 has it: periods, and the throttled time in nanoseconds."""
    found = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
    lines = [f"{key} {found[key]}" for key in ("nr_periods", "nr_throttled") if key in found]
    if "throttled_usec" in found:
        lines.append(f"throttled_time {whole_number(found['throttled_usec']) * 1000}")
    return "\n".join(lines)


def cpu_time_of(text: str) -> str:
    """Return the used CPU time of a `cpu.stat`, in nanoseconds."""
    for line in text.splitlines():
        if line.startswith("usage_usec "):
            return str(whole_number(line.removeprefix("usage_usec ")) * 1000)
    raise ValueError("it has no `usage_usec`")


def memory_stat_of(text: str) -> str:
    """Return a `memory.stat` with the names that v1 has for a group with all below it (`total_cache`)."""
    names = {"anon": "rss", "file": "cache", "file_mapped": "mapped_file"}
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        lines.append(f"total_{names.get(key, key)} {value}")
    return "\n".join(lines)


def throttle_of(key: str) -> Callable[[str], str]:
    """Return the conversion of an `io.max` to the limits of one kind, one line per disk that has one."""

    def convert(text: str) -> str:
        lines = []
        for line in text.splitlines():
            disk, *settings = line.split() or [""]
            for field in settings:
                name, _, value = field.partition("=")
                if name == key and value != "max":
                    lines.append(f"{disk} {value}")
        return "\n".join(lines)

    return convert


def disks_of(text: str) -> str:
    """Return the lines of disks, without the default."""
    return "\n".join(line for line in text.splitlines() if line[:1].isdigit())


# From v1 to v2; `now` is the file's text before


def quota_to(text: str, now: str) -> str:  # noqa: ARG001 - all of these have one signature
    """Return the text to write to `cpu.max`: the quota alone, which leaves the period."""
    return "max" if text.strip() in ("max", "-1") else text


def period_to(text: str, now: str) -> str:
    """Return the text to write to `cpu.max`: the period, after the quota as it is."""
    return f"{first_field(now or 'max')} {text.strip()}"


def shares_to(text: str, now: str) -> str:  # noqa: ARG001 - one signature for all converters
    """Return the weight to write to `cpu.weight`."""
    return str(shares_to_weight(whole_number(text)))


def memory_to(text: str, now: str) -> str:  # noqa: ARG001 - one signature for all converters
    """Return the limit to write to `memory.max`."""
    return "max" if limit(text) is None else text


def throttle_to(key: str) -> Callable[[str, str], str]:
    """Return the conversion of limits of one kind to lines of `io.max`; 0 is no limit."""

    def convert(text: str, now: str) -> str:  # noqa: ARG001 - one signature for all converters
        lines = []
        for line in _lines(text):
            disk, amount = line.split()
            lines.append(f"{disk} {key}={'max' if int(amount) == 0 else amount}")
        return "\n".join(lines)

    return convert


# Comparisons of a desired text with a file's


def same_text(desired: str, current: str) -> bool:
    """Compare as texts, without blanks at the ends."""
    return desired.strip() == current.strip()


def same_number(desired: str, current: str) -> bool:
    """Compare as numbers where both are (`+1`, `01`), else as texts."""
    try:
        return whole_number(desired) == whole_number(current)
    except ValueError:
        return same_text(desired, current)


def same_cpus(desired: str, current: str) -> bool:
    """Compare as sets of CPUs."""
    try:
        return parse_cpuset(desired) == parse_cpuset(current)
    except ValueError:
        return False


def same_limit(desired: str, current: str) -> bool:
    """Compare as amounts of memory, of which the kernel counts whole pages; all unlimited ones are equal."""
    try:
        one, two = limit(desired), limit(current)
    except ValueError:
        return same_text(desired, current)
    if one is None or two is None:
        return one is two
    return one // _PAGE == two // _PAGE


def same_fields(desired: str, current: str) -> bool:
    """Compare the desired fields of `cpu.max`, from the first on."""
    fields = desired.split()
    return fields == current.split()[:len(fields)]


def same_quota(desired: str, current: str) -> bool:
    """Compare CFS quotas of v1: all negative ones are unlimited."""
    try:
        one, two = whole_number(desired), whole_number(current)
    except ValueError:
        return same_text(desired, current)
    return one == two or (one < 0 and two < 0)


def has_line(desired: str, current: str) -> bool:
    """Return whether a `MAJ:MIN ...` line needs no write: the file has it, or has no disk that it resets."""
    disk, *settings = desired.split() or [""]
    for line in current.splitlines():
        fields = line.split()
        if fields[:1] == [disk]:
            return _settings(settings) <= _settings(fields[1:])
    return bool(settings) and all(each == "0" or each.endswith("=max") for each in settings)


def _settings(fields: list[str]) -> set[str]:
    """Normalize settings: the kernel prints percents with decimals (`rpct=95.00`)."""
    found = set()
    for field in fields:
        key, separator, value = field.partition("=")
        whole, dot, decimals = (value if separator else key).partition(".")
        trimmed = whole if dot and not decimals.strip("0") else whole + dot + decimals
        found.add(f"{key}={trimmed}" if separator else trimmed)
    return found


def has_schemata(desired: str, current: str) -> bool:
    """Return whether a group's schemata have all values of the desired lines."""
    try:
        present = parse_schemata(current)
        return all(
            _number(kind, value) == _number(kind, present.get(kind, {}).get(cache, ""))
            for kind, values in parse_schemata(desired).items() for cache, value in values.items()
        )
    except ValueError:
        return False


def _number(kind: str, value: str) -> int:
    return int(value, 10 if kind.startswith("MB") else 16)


def has_item(desired: str, current: str) -> bool:
    """Return whether a list of ids, one a line, has the desired one."""
    return desired.strip() in current.split()
