"""Measures of numbers: amounts in a unit and shares of a whole, and the comparisons that make sense between them.

A number is a factor times amounts, divided by amounts. `usage.cpu` is one amount in milli-cores,
`allocatable.cpu * 65 / 100` is 0.65 of one, `usage.cpu * 100 / allocatable.cpu` is 100 times a share: a percentage.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeAlias

from koordpolicy.engine.explanation import shown

Dimensions: TypeAlias = tuple[tuple[str, int], ...]
"""Names with their powers, in order of names; empty for shares."""

ONE: Final = Fraction(1)
PERCENT: Final = Fraction(100)


class Origin(enum.IntEnum):
    """The origin of an amount, ordered by decreasing typical size; it determines which bounds are absurd."""

    CLUSTER = -1
    """A sum over many nodes."""
    CAPACITY = 0
    """The capacity of a node."""
    NODE = 1
    """The total usage or requests on a node."""
    POD = 2
    """The request of one pod."""
    MEASURED = 3
    """The measured usage of a part of a node's pods, which may be very small."""


_UNITS: Final[Mapping[str, tuple[str, Fraction]]] = {
    "milli-cores": ("cpu", ONE), "cores": ("cpu", Fraction(1, 1000)),
    "bytes": ("bytes", ONE),
    "seconds": ("time", ONE), "milliseconds": ("time", Fraction(1000)), "nanoseconds": ("time", Fraction(10**9)),
    "minutes": ("time", Fraction(1, 60)), "hours": ("time", Fraction(1, 3600)),
    "thousandths of a device": ("gpu", ONE), "devices": ("gpu", Fraction(1, 1000)),
    "pods": ("pods", ONE),
    "seconds since 1970": ("instant", ONE),
}
_CONVERTED: Final[Mapping[str, Mapping[Fraction, str]]] = {
    "cpu": {ONE: "milli-cores", Fraction(1, 1000): "cores"},
    "bytes": {
        ONE: "bytes",
        **{Fraction(1, 1024**power): f"{letter}iB" for power, letter in enumerate("KMGT", start=1)},
        **{Fraction(1, 1000**power): f"{letter}B" for power, letter in enumerate("kMGT", start=1)},
    },
    "time": {
        ONE: "seconds", Fraction(1000): "milliseconds", Fraction(10**9): "nanoseconds", Fraction(1, 60): "minutes",
        Fraction(1, 3600): "hours", Fraction(1, 86400): "days",
    },
    "gpu": {ONE: "thousandths of a device", Fraction(1, 1000): "devices"},
    "pods": {ONE: "pods"},
    "instant": {ONE: "seconds since 1970", Fraction(1000): "milliseconds since 1970"},
}
"""The units by dimension and factor. Any other factor is a part or a multiple of the first unit."""
_SHARES: Final[Mapping[Fraction, str]] = {ONE: "a fraction", PERCENT: "a percentage", Fraction(1000): "per mille"}
_COUNTED: Final = frozenset(("pods", "gpu"))
"""Counts are often used as plain numbers: they may be mixed with shares, mainly in scores."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure of a number: `factor` times the amounts of `dimensions`; None if the factor is not known.

    `loose`: a factor is a param, which may have its own unit. `of_whole`: a share of which 1 is the whole.
    """

    dimensions: Dimensions
    factor: Fraction | None = ONE
    origin: Origin = Origin.CAPACITY
    loose: bool = False
    of_whole: bool = False

    @property
    def dimension(self) -> str:
        """The one dimension of an amount; an empty string for shares and for products."""
        return self.dimensions[0][0] if len(self.dimensions) == 1 and self.dimensions[0][1] == 1 else ""

    @property
    def is_share(self) -> bool:
        """True if it is an amount divided by an amount of the same kind."""
        return not self.dimensions

    @property
    def unit(self) -> str:
        """The unit's name; that of an amount follows from its factor."""
        if self.is_share:
            return _SHARES.get(self.factor, "a share") if self.factor is not None else "a share"
        units = _CONVERTED.get(self.dimension)
        if units is None:
            return ""
        return units.get(self.factor, units[ONE]) if self.factor is not None else units[ONE]

    @property
    def in_unit(self) -> bool:
        """True if the factor is exactly that of a unit, so that the number counts in it."""
        return self.factor in _CONVERTED.get(self.dimension, ())


def share(factor: Fraction, *, of_whole: bool = True) -> Measure:
    """Return a share of which `factor` is the whole: 1 for fractions, 100 for percentages."""
    return Measure((), factor, of_whole=of_whole)


@functools.cache
def amount(unit: str, origin: Origin = Origin.CAPACITY) -> Measure | None:
    """Return one amount in a unit of the table of points; None for a unit that is not known."""
    if unit == "percent":
        return share(PERCENT)
    found = _UNITS.get(unit)
    return None if found is None else Measure(((found[0], 1),), found[1], origin)


def scaled(measure: Measure, by: Fraction | None, *, loose: bool = False) -> Measure:
    """Return the measure of a number multiplied by `by` (None: an unknown number)."""
    factor = measure.factor * by if measure.factor is not None and by is not None else None
    return replace(measure, factor=factor, loose=measure.loose or loose)


def product(left: Measure, right: Measure, *, divided: bool = False) -> Measure | None:
    """Return the measure of the product (or quotient) of two measures."""
    powers = dict(left.dimensions)
    for name, power in right.dimensions:
        powers[name] = powers.get(name, 0) + (-power if divided else power)
    factor = None
    if left.factor is not None and right.factor is not None and (not divided or right.factor):
        factor = left.factor / right.factor if divided else left.factor * right.factor
    dimensions = tuple(sorted((name, power) for name, power in powers.items() if power))
    if not dimensions and divided and left.dimensions:
        of_whole = right.origin <= Origin.CAPACITY and not right.loose
    else:
        of_whole = left.of_whole and right.of_whole
    if any(name == "gpu" and power != 1 for name, power in dimensions):
        return None  # a number of devices times the request of each is an amount again
    return Measure(dimensions, factor, max(left.origin, right.origin), left.loose or right.loose, of_whole)


def total(left: Measure, right: Measure, *, subtracted: bool = False) -> Measure | None:
    """Return the measure of the sum (or difference) of two measures of one kind; None if it is not known."""
    if left.dimensions != right.dimensions:
        if subtracted and left.dimension == "instant" and right.dimension == "time":
            return left
        return None
    factors = (left.factor, right.factor)
    factor = left.factor if left.factor == right.factor else None
    if left.is_share and not subtracted:
        factor = left.factor + right.factor if left.factor is not None and right.factor is not None else None
    elif factor is None and ONE in factors and all(each is not None and each <= 1 for each in factors):
        factor = ONE  # 65 % of an amount less another
    found = replace(
        left, factor=factor, origin=max(left.origin, right.origin), loose=left.loose or right.loose,
        of_whole=left.of_whole and right.of_whole,
    )
    if left.dimension == "instant" and subtracted:
        return replace(found, dimensions=(("time", 1),), origin=Origin.MEASURED)
    return found


def either(left: Measure | None, right: Measure | None) -> Measure | None:
    """Return the common measure of two alternatives; None if they differ."""
    if left is None or right is None or left.dimensions != right.dimensions:
        return None
    return replace(
        left, factor=left.factor if left.factor == right.factor else None, origin=max(left.origin, right.origin),
        loose=left.loose or right.loose, of_whole=left.of_whole and right.of_whole,
    )


@dataclass(frozen=True, slots=True)
class UnitFault:
    """An incompatibility of two numbers: the message, the help, and the intended number if that is clear."""

    message: str
    help: str
    meant: str = ""


def unlike(left: Measure, right: Measure, *, joined: bool) -> UnitFault | None:
    """Return why two measures cannot be compared or (`joined`) added, if that is certain.

    The message names both units.
    """
    if left.factor is None or right.factor is None:
        return None
    left, right = replace(left, factor=abs(left.factor)), replace(right, factor=abs(right.factor))
    assert left.factor is not None
    assert right.factor is not None
    if left.is_share and right.is_share:
        if left.factor != right.factor and left.factor in _SHARES and right.factor in _SHARES:
            both = sorted((left, right), key=lambda each: each.factor or ONE)
            times = (both[1].factor or ONE) / (both[0].factor or ONE)
            return _fault(left, right, f"multiply {both[0].unit} by {_number(times)}")
        return None
    if left.loose or right.loose:
        return None  # a param may have the missing unit
    if left.dimensions == right.dimensions:
        if left.dimension and left.unit != right.unit and left.in_unit and right.in_unit:
            return _fault(left, right, f"convert one of them: {_conversion(left, right)}")
        return None
    for one, other in ((left, right), (right, left)):
        if one.is_share:
            if one.factor not in _SHARES or not other.dimension or other.dimension in _COUNTED:
                return None
            if other.in_unit or not joined:
                return _fault(left, right, _SHARE_HELP.get(other.dimension, ""))
            return None
    if not left.dimension or not right.dimension:
        return None
    kinds = {left.dimension, right.dimension}
    if joined:
        if kinds <= _COUNTED or left.factor != right.factor or left.factor not in (ONE, PERCENT):
            return None
        return _fault(left, right, "bring both to shares first: `percent(part, whole)`")
    # A factor may be a ratio of two units, as in `requests.memory <= requests.cpu * 4294967`.
    if left.factor != right.factor and not (
        kinds.isdisjoint(_COUNTED) and 1 / _LIKELY_PART <= left.factor / right.factor <= _LIKELY_PART
    ):
        return None
    return _fault(left, right, "compare amounts of one resource")


_LIKELY_PART: Final = 200
"""The largest ratio of factors that may be a part or a percentage; a larger one may convert units."""
_SHARE_HELP: Final = {
    "cpu": "compare shares with shares: `percent(usage.cpu, allocatable.cpu)`",
    "bytes": "compare shares with shares: `percent(usage.memory, allocatable.memory)`",
}


def _fault(left: Measure, right: Measure, hint: str) -> UnitFault:
    return UnitFault(f"{left.unit} and {right.unit}", hint)


def _conversion(left: Measure, right: Measure) -> str:
    one, other = left.factor or ONE, right.factor or ONE
    large, small, times = (right, left, one / other) if one > other else (left, right, other / one)
    return f"1 {large.unit.removesuffix('s')} is {_number(times)} {small.unit}"


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"


_CORE_COUNTS: Final = frozenset((12, 16, 24, 32, 48, 64, 96, 128, 192, 256))
"""Common numbers of cores, which are unlikely as milli-cores."""
_LEAST_CPU: Final = {
    Origin.CLUSTER: 100, Origin.CAPACITY: 100, Origin.NODE: 10, Origin.POD: 10, Origin.MEASURED: 5,
}
_LEAST_BYTES: Final = {
    Origin.CLUSTER: 1 << 26, Origin.CAPACITY: 1 << 26, Origin.NODE: 10**6, Origin.POD: 10**6, Origin.MEASURED: 10**5,
}
"""Milli-cores and bytes that are implausibly small as thresholds; 10 for a whole node may mean that it is idle."""
_LIKELY_PERCENTS: Final = range(50, 100)
"""Numbers of milli-cores that are probably meant as percentages where what a node uses is compared with them."""
_MOST_CPU: Final = 2 * 10**6
"""The maximum of one node: 2,000 cores."""
_MOST_BYTES: Final = 10**15
"""The maximum of one node: a petabyte."""
_UNLIMITED: Final = 2**60
"""Numbers of bytes that stand for no limit."""
_MOST_DEVICES: Final = 100
_MOST_PODS: Final = 10_000
_BYTES_PER_MILLI_CORE: Final = 1_000
"""The minimum of a ratio of memory to cpu: a megabyte per core."""
_GUARDS: Final = frozenset((">=", "<", "==", "!=", "clamp"))
"""With these comparisons, 1 may mean `any` or guard a divisor against 0."""
_ORDERS: Final = frozenset(("<", "<=", ">", ">="))
_DAY: Final = 86400
_LONG: Final = 900 * _DAY


def absurd(measure: Measure, value: Fraction, operator: str) -> UnitFault | None:
    """Return why a measure cannot sensibly be compared with a number, if that is certain.

    `operator` is `<`, `<=`, `>`, `>=`, `==`, `!=`, `clamp` (an argument of greatest or least) or `offset` (added or
    subtracted).
    """
    if measure.factor is None or measure.factor <= 0 or value <= 0 or (value == 1 and operator in _GUARDS):
        return None
    if measure.is_share:
        return None if operator == "offset" else _absurd_share(measure, measure.factor, value)
    if measure.loose:
        return None
    if not measure.dimension:
        return _absurd_ratio(measure, value)
    if operator == "offset" and (value == 1 or measure.factor != 1):
        return None
    if measure.dimension == "cpu" and measure.origin is Origin.NODE and operator in _ORDERS:
        percent = value / measure.factor
        if percent in _LIKELY_PERCENTS and percent not in _CORE_COUNTS:
            return UnitFault(f"{_number(percent)} milli-cores is {shown(float(percent), 'milli-cores')}",
                             f"for {_number(percent)} %, compare a share: `percent(usage.cpu, allocatable.cpu)`")
    return _ABSURD[measure.dimension](measure, value)


def _absurd_share(measure: Measure, factor: Fraction, value: Fraction) -> UnitFault | None:
    if factor >= 50 and value < 1:
        meant = value * factor
        sure = factor == PERCENT and meant.denominator == 1
        named = measure.unit if factor in _SHARES else "a weighted percentage"
        return UnitFault(
            f"{named} is compared with {_number(value)}: that is {_number(value)} of {_number(factor)}",
            f"did you mean {_number(meant)}?", str(meant) if sure else "",
        )
    if not measure.of_whole:
        return None
    if factor == PERCENT and value >= 1000:
        return UnitFault(
            f"a percentage is compared with {_number(value)}: that is {_number(value / 100)} times the whole",
            "percentages of a whole go from 0 to about 100",
        )
    if factor == ONE and value >= 10:
        meant = value / 100
        return UnitFault(
            f"a fraction is compared with {_number(value)}: that is {_number(value)} times the whole",
            f"did you mean {_number(meant)}? Or multiply by 100 first, for a percentage",
            _number(meant) if value <= 100 else "",
        )
    return None


_CPU_BY_MEMORY: Final = ({"cpu": 1, "bytes": -1}, {"cpu": -1, "bytes": 1})
_RATIO_HELP: Final = "divide by an amount of the same resource; memory by cpu is in bytes per milli-core"


def _absurd_ratio(measure: Measure, value: Fraction) -> UnitFault | None:
    """Return the fault of an amount, or a hundred times one, divided by an amount of another kind."""
    powers = dict(measure.dimensions)
    if powers in _CPU_BY_MEMORY and measure.factor is not None and measure.factor != PERCENT:
        ratio = value / measure.factor
        if powers["cpu"] > 0 and ratio * _BYTES_PER_MILLI_CORE > 1:
            return UnitFault(f"{_number(ratio)} milli-cores per byte is more than any node or pod has", _RATIO_HELP)
        if powers["cpu"] < 0 and ratio < _BYTES_PER_MILLI_CORE:
            return UnitFault(f"{_number(ratio)} bytes per milli-core is next to nothing", _RATIO_HELP)
        return None
    if measure.factor != PERCENT or value > 1000 or sorted(powers.values()) != [-1, 1]:
        return None
    if not _COUNTED.isdisjoint(powers):
        return None
    above, below = sorted(powers, key=lambda name: -powers[name])
    return UnitFault(f"{_CONVERTED[above][ONE]} divided by {_CONVERTED[below][ONE]} are no percentage",
                 "divide by an amount of the same resource")


def _absurd_cpu(measure: Measure, value: Fraction) -> UnitFault | None:
    assert measure.factor is not None
    milli = value / measure.factor
    least = _LEAST_CPU[measure.origin]
    if measure.unit == "cores" and measure.in_unit:
        if milli < least:
            return UnitFault(f"{_number(value)} cores is next to nothing", "the number is in cores")
        if milli < _MOST_CPU or measure.origin is Origin.CLUSTER:
            return None
        return UnitFault(f"{_number(value)} cores is more than any node has", f"did you mean {_number(value / 1000)}?")
    if milli >= _MOST_CPU and measure.origin is not Origin.CLUSTER:
        return UnitFault(
            f"{_number(milli)} milli-cores is {shown(float(milli), 'milli-cores')}", "cpu is in milli-cores",
        )
    if not (milli < least or (milli in _CORE_COUNTS and measure.origin is not Origin.MEASURED)):
        return None
    readable = f"{_number(milli)} milli-core{'' if milli == 1 else 's'} is {shown(float(milli), 'milli-cores')}"
    if milli < 1:
        return UnitFault(
            readable, "compare with a share of an amount (`allocatable.cpu * 85 / 100`), or with milli-cores",
        )
    if measure.factor != 1:
        return UnitFault(readable, "cpu is in milli-cores")
    return UnitFault(readable, f"did you mean {_number(milli * 1000)}?",
                 str(milli * 1000) if milli.denominator == 1 else "")


def _absurd_bytes(measure: Measure, value: Fraction) -> UnitFault | None:
    assert measure.factor is not None
    size = value / measure.factor
    if measure.in_unit and measure.factor != 1:
        if size < _LEAST_BYTES[measure.origin]:
            return UnitFault(
                f"{_number(value)} {measure.unit} is next to nothing", f"the number is in {measure.unit}",
            )
        if size < _MOST_BYTES or measure.origin is Origin.CLUSTER:
            return None
        return UnitFault(
            f"{_number(value)} {measure.unit} is more than any node has", f"the number is in {measure.unit}",
        )
    if size >= _LEAST_BYTES[measure.origin]:
        if size < _MOST_BYTES or size >= _UNLIMITED or measure.origin is Origin.CLUSTER:
            return None
        return UnitFault(f"{_number(size)} bytes is {shown(float(size), 'bytes')}", "memory is in bytes")
    readable = f"{_number(size)} byte{'' if size == 1 else 's'}"
    text = shown(float(size), "bytes")
    if text != f"{_number(size)} bytes" and size >= 1024:
        readable += f" is {text}"
    else:
        readable += " is next to nothing"
    if size < 1:
        return UnitFault(readable, "compare with a share of an amount (`allocatable.memory * 85 / 100`), or with bytes")
    if size >= 1 << 20 or size.denominator != 1:
        return UnitFault(readable, "memory is in bytes")
    power = 30 if size <= (1024 if measure.origin <= Origin.NODE else 63) else 20
    return UnitFault(readable, f"did you mean {int(size) << power} ({int(size)}{'Gi' if power == 30 else 'Mi'})?")


def _absurd_time(measure: Measure, value: Fraction) -> UnitFault | None:
    unit = measure.unit
    if not measure.in_unit:
        return None
    if unit == "nanoseconds":
        if value >= 10**6:
            return None
        return UnitFault(f"{_number(value)} nanoseconds is less than a millisecond",
                     f"did you mean {_number(value * 10**9)} ({_number(value)} seconds)?")
    if unit != "seconds":
        return None
    if value < 1:
        return UnitFault(f"{_number(value)} seconds is less than anything is measured in", "the number is in seconds")
    whole = value.denominator == 1 and value % 1000 == 0
    if measure.origin is Origin.NODE:  # the age of a metric
        wrong = whole and ((value > _DAY and value % _DAY != 0) or (value >= 30_000 and value % 3600 != 0))
    else:
        wrong = whole and value >= _LONG and value % (365 * _DAY) != 0
    if not wrong:
        return None
    return UnitFault(f"{_number(value)} seconds is {_spoken(value)}",
                 f"did you mean {_number(value / 1000)} (milliseconds are a thousandth of it)?", str(value / 1000))


def _spoken(seconds: Fraction) -> str:
    for size, name in ((365 * _DAY, "years"), (_DAY, "days"), (3600, "hours")):
        if seconds >= size:
            return f"{float(seconds / size):.3g} {name}"
    return f"{float(seconds / 60):.3g} minutes"


def _absurd_gpu(measure: Measure, value: Fraction) -> UnitFault | None:
    if measure.factor == 1 and value <= (1 if measure.origin is Origin.MEASURED else 16):
        meant = value * 1000
        return UnitFault(f"{_number(value)} thousandths of a device is {_number(value / 1000)} devices",
                     f"did you mean {_number(meant)}?", str(meant) if value.denominator == 1 else "")
    if measure.factor == Fraction(1, 1000) and value >= _MOST_DEVICES and measure.origin is not Origin.CLUSTER:
        return UnitFault(f"{_number(value)} devices are more than any node has",
                     f"did you mean {_number(value / 1000)}?" if value % 1000 == 0 else "",
                     str(value / 1000) if value % 1000 == 0 else "")
    return None


def _absurd_pods(measure: Measure, value: Fraction) -> UnitFault | None:
    if measure.factor == 1 and value < 1:
        return UnitFault(f"a number of pods is compared with {_number(value)}",
                     "compare with a share: `percent(nodeInfo.pods, allocatable.pods)`")
    if measure.factor == 1 and value >= _MOST_PODS and measure.origin is not Origin.CLUSTER:
        return UnitFault(f"{_number(value)} pods are more than any node runs", "")
    return None


def _never(_: Measure, __: Fraction) -> UnitFault | None:
    return None


_ABSURD: Final = {
    "cpu": _absurd_cpu, "bytes": _absurd_bytes, "time": _absurd_time, "gpu": _absurd_gpu, "pods": _absurd_pods,
    "instant": _never,
}
_MOST_OF_CAPACITY: Final = 20
_LEAST_OF_CAPACITY: Final = Fraction(1, 100)


def absurd_part(left: Measure, right: Measure) -> UnitFault | None:
    """Return the fault of comparing an amount with a part of a node's capacity that exceeds the whole."""
    if left.dimensions != right.dimensions or not left.dimension or left.factor is None or right.factor is None:
        return None
    for used, whole in ((left, right), (right, left)):
        if whole.origin is not Origin.CAPACITY or used.origin is Origin.CAPACITY or not used.factor or not whole.factor:
            continue
        part = whole.factor / used.factor
        if part >= _MOST_OF_CAPACITY and part not in _CONVERTED[used.dimension]:
            return UnitFault(f"{_number(part)} times what the node has", "for a percentage of it, divide by 100")
        if part < _LEAST_OF_CAPACITY and used.origin is Origin.NODE and 1 / part % 1000 != 0:
            return UnitFault(
                f"{_number(part * 100)} % of what the node has", f"did you mean {_number(part * 10000)} %?",
            )
    return None
