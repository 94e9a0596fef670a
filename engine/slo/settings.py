"""The settings of a NodeSLO and of slo-controller-config as a table: name, type and range of each.

Decoding follows Go's decoder as Koordinator uses it: `null` sets nothing, and so do an empty list and an empty string
where Koordinator's field is no pointer; names differ in case at most; unknown names are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from koordpolicy.engine.kubernetes.objects import json_kind
from koordpolicy.engine.kubernetes.quantity import Quantity

Path: TypeAlias = tuple[str | int, ...]
"""Names of fields and positions in lists, from an object downwards."""

_INT64_MAX: Final = 2**63 - 1


class SettingType(Enum):
    """The JSON type of a setting."""

    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    TEXT = "a string"
    QUANTITY = "a quantity"
    INT_OR_TEXT = "a whole number or a string"
    DURATION = "a duration such as 5m"
    OBJECT = "an object"
    LIST = "a list"
    MAP = "an object of values"
    ANY = "any JSON"


@dataclass(frozen=True, slots=True)
class Setting:
    """The type of a setting and its range, both ends included; `above` is an excluded lower end.

    `choices` are texts that are allowed (none: all). `plain` marks a text that is no pointer in Koordinator: an empty
    one sets nothing. `fields` are those of an object, `item` the type of a list's items or a map's values.
    """

    type: SettingType
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    plain: bool = False
    fields: Mapping[str, Setting] = field(default_factory=dict)
    item: Setting | None = None


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A setting that is malformed or out of its range, and the position of it."""

    path: Path
    message: str

    def __str__(self) -> str:
        """Return the fault with its path as text."""
        return f"`{path_text(self.path)}` {self.message}" if self.path else f"it {self.message}"


class MalformedSetting(ValueError):
    """A setting whose JSON type is wrong; Koordinator refuses the whole text that it is in."""

    def __init__(self, path: Path, message: str) -> None:
        """`path` leads to the setting."""
        self.fault = SettingFault(path, message)
        super().__init__(str(self.fault))


def path_text(path: Path) -> str:
    """Return a path as people write it: `nodeStrategies[0].enable`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def decode(declared: Setting, value: Any, path: Path = ()) -> Any:
    """Return a value as Koordinator decodes it, without what sets nothing; None if it sets nothing at all.

    The result shares no object or list with `value`, except below settings of type ANY.

    Raises:
        MalformedSetting: a value has the wrong JSON type.
    """
    if value is None:
        return None
    match declared.type:
        case SettingType.OBJECT:
            return _decoded_object(declared, value, path)
        case SettingType.MAP if isinstance(value, Mapping):
            item = declared.item or _ANY
            return {str(key): decode(item, each, (*path, str(key))) for key, each in value.items()}
        case SettingType.LIST if isinstance(value, list | tuple):
            item = declared.item or _ANY
            return [decode(item, each, (*path, number)) for number, each in enumerate(value)] or None
        case SettingType.ANY:
            return value
        case _:
            return _decoded_scalar(declared, value, path)


def _decoded_object(declared: Setting, value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedSetting(path, f"must be an object, not {json_kind(value)}")
    found = {}
    for key, each in value.items():
        name = name_of(declared, str(key))
        if name is not None:
            decoded = decode(declared.fields[name], each, (*path, str(key)))
            if decoded is not None:
                found[name] = decoded
    return found


def name_of(declared: Setting, key: str) -> str | None:
    """Return the name of the field that a key means: the same, or one that differs in case; None for unknown ones."""
    if key in declared.fields:
        return key
    folded = key.casefold()
    return next((name for name in declared.fields if name.casefold() == folded), None)


def _decoded_scalar(declared: Setting, value: Any, path: Path) -> Any:
    kind = declared.type
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and abs(value) > _INT64_MAX and kind is not SettingType.NUMBER:
        raise MalformedSetting(path, "does not fit into 64 bits")
    fits = {
        SettingType.BOOL: isinstance(value, bool), SettingType.INT: whole,
        SettingType.NUMBER: whole or isinstance(value, float), SettingType.TEXT: isinstance(value, str),
        SettingType.INT_OR_TEXT: whole or isinstance(value, str),
        SettingType.QUANTITY: whole or isinstance(value, float | str), SettingType.DURATION: isinstance(value, str),
    }.get(kind, False)
    if not fits:
        raise MalformedSetting(path, f"must be {kind.value}, not {json_kind(value)}")
    if kind is SettingType.QUANTITY:
        text = value if isinstance(value, str) else str(value)
        try:
            Quantity.parse(text)
        except ValueError as error:
            raise MalformedSetting(path, f"must be a quantity: {error}") from None
        return text
    if kind is SettingType.DURATION:
        try:
            return duration_text(duration_nanoseconds(str(value)))
        except ValueError:
            raise MalformedSetting(path, f"must be a duration such as 5m, not `{value}`") from None
    return None if declared.plain and value == "" else value


def faults(declared: Setting, value: Any, path: Path = ()) -> Iterator[SettingFault]:
    """Yield the settings that are malformed or out of their range."""
    if value is None:
        return
    if declared.type is SettingType.OBJECT and isinstance(value, Mapping):
        for key, each in value.items():
            name = name_of(declared, str(key))
            if name is not None:
                yield from faults(declared.fields[name], each, (*path, str(key)))
    elif declared.type is SettingType.LIST and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from faults(declared.item or _ANY, each, (*path, number))
    else:
        try:
            decoded = decode(declared, value, path)
        except MalformedSetting as error:
            yield error.fault
            return
        message = _out_of_range(declared, decoded)
        if message:
            yield SettingFault(path, message)


def unknown_names(declared: Setting, value: Any, path: Path = ()) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the path of each field that there is not, with the names that there are."""
    if declared.type is SettingType.OBJECT and isinstance(value, Mapping):
        for key, each in value.items():
            name = name_of(declared, str(key))
            if name is None:
                yield (*path, str(key)), tuple(sorted(declared.fields))
            else:
                yield from unknown_names(declared.fields[name], each, (*path, str(key)))
    elif declared.type is SettingType.LIST and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from unknown_names(declared.item or _ANY, each, (*path, number))


def _out_of_range(declared: Setting, value: Any) -> str:
    if declared.choices and isinstance(value, str) and value not in declared.choices:
        return f"is `{value}`: it must be one of {', '.join(declared.choices)}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if declared.above is not None and value <= declared.above:
        return f"is {value}: it must be above {declared.above:g}"
    if declared.low is not None and value < declared.low:
        return f"is {value}: it must be {declared.low:g} or more"
    if declared.high is not None and value > declared.high:
        return f"is {value}: it must be {declared.high:g} or less"
    return ""


_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def duration_nanoseconds(text: str) -> int:
    """Return the length of a Go duration (`1h30m`, `2.5s`, `0`).

    Raises:
        ValueError: it is none.
    """
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total, position = 0, 0
    while position < len(rest):
        start = position
        while position < len(rest) and (rest[position].isdecimal() or rest[position] == "."):
            position += 1
        number, start = rest[start:position], position
        while position < len(rest) and not (rest[position].isdecimal() or rest[position] == "."):
            position += 1
        whole, _, fraction = number.partition(".")
        unit = _UNITS.get(rest[start:position])
        digits = whole + fraction
        if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 30:
            raise ValueError(text)
        total += int(digits) * unit // 10 ** len(fraction)
    if not rest or total > _INT64_MAX:
        raise ValueError(text)
    return sign * total


def duration_text(nanoseconds: int) -> str:
    """Return a length as Go prints it: `5m0s`, `1.5s`, `300ms`."""
    if nanoseconds == 0:
        return "0s"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest < 10**9:
        unit, size = next((unit, size) for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if rest >= size)
        return f"{sign}{_decimal(rest, size)}{unit}"
    hours, rest = divmod(rest, _UNITS["h"])
    minutes, rest = divmod(rest, _UNITS["m"])
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return f"{sign}{text}{_decimal(rest, 10**9)}s"


def _decimal(amount: int, size: int) -> str:
    whole, fraction = divmod(amount, size)
    return f"{whole}.{fraction:0{len(str(size)) - 1}d}".rstrip("0") if fraction else str(whole)


# -- the table ---------------------------------------------------------------------------------------------------------

_ANY: Final = Setting(SettingType.ANY)
_BOOL: Final = Setting(SettingType.BOOL)
_INT: Final = Setting(SettingType.INT)
_PERCENT: Final = Setting(SettingType.INT, low=0, high=100)
_SWITCH: Final = Setting(SettingType.INT, low=0, high=1)
_NOT_NEGATIVE: Final = Setting(SettingType.INT, low=0)
_POSITIVE: Final = Setting(SettingType.INT, above=0)
_PLAIN: Final = Setting(SettingType.TEXT, plain=True)
_BANDWIDTH: Final = Setting(SettingType.INT_OR_TEXT)


def _object(**fields: Setting) -> Setting:
    return Setting(SettingType.OBJECT, fields=fields)


def _list(item: Setting) -> Setting:
    return Setting(SettingType.LIST, item=item)


def _choice(*choices: str, plain: bool = False) -> Setting:
    return Setting(SettingType.TEXT, choices=choices, plain=plain)


TEXT: Final = _PLAIN
"""A name, which may be absent."""

SELECTOR: Final = _object(
    matchLabels=Setting(SettingType.MAP, item=Setting(SettingType.TEXT)),
    matchExpressions=_list(_object(key=_PLAIN, operator=_PLAIN, values=_list(Setting(SettingType.TEXT)))),
)
"""A label selector."""

THRESHOLD: Final = _object(
    enable=_BOOL,
    cpuSuppressThresholdPercent=_PERCENT, cpuSuppressMinPercent=_PERCENT,
    cpuSuppressPolicy=Setting(SettingType.TEXT, choices=("cpuset", "cfsQuota"), plain=True),
    memoryEvictThresholdPercent=_PERCENT, memoryEvictLowerPercent=_PERCENT,
    memoryAllocatableEvictThresholdPercent=_NOT_NEGATIVE, memoryAllocatableEvictLowerPercent=_NOT_NEGATIVE,
    cpuEvictBESatisfactionUpperPercent=_PERCENT, cpuEvictBESatisfactionLowerPercent=_PERCENT,
    cpuEvictBEUsageThresholdPercent=_PERCENT, cpuEvictTimeWindowSeconds=_POSITIVE,
    cpuEvictPolicy=Setting(SettingType.TEXT, choices=("evictByRealLimit", "evictByAllocatable"), plain=True),
    cpuEvictThresholdPercent=_PERCENT, cpuEvictLowerPercent=_PERCENT,
    cpuAllocatableEvictThresholdPercent=_NOT_NEGATIVE, cpuAllocatableEvictLowerPercent=_NOT_NEGATIVE,
    evictEnabledPriorityThreshold=_INT,
    allocatableEvictPriorityThreshold=Setting(SettingType.INT, low=0, high=7999),
)
"""`resourceUsedThresholdWithBE`."""

CPU_BURST: Final = _object(
    policy=_choice("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto", plain=True),
    cpuBurstPercent=Setting(SettingType.INT, low=1, high=10_000),
    cfsQuotaBurstPercent=Setting(SettingType.INT, low=100),
    cfsQuotaBurstPeriodSeconds=Setting(SettingType.INT, low=-1),
    sharePoolThresholdPercent=_PERCENT,
)
"""`cpuBurstStrategy`."""

SYSTEM: Final = _object(
    minFreeKbytesFactor=_POSITIVE, watermarkScaleFactor=Setting(SettingType.INT, low=10, high=400),
    memcgReapBackGround=_SWITCH, schedGroupIdentityEnabled=_SWITCH, schedIdleSaverWmark=_INT,
    pageCacheLimitEnabled=_SWITCH, totalNetworkBandwidth=Setting(SettingType.QUANTITY),
    schedFeatures=Setting(SettingType.MAP, item=_BOOL),
)
"""`systemStrategy`."""

_IO: Final = _object(
    readIOPS=_NOT_NEGATIVE, writeIOPS=_NOT_NEGATIVE, readBPS=_NOT_NEGATIVE, writeBPS=_NOT_NEGATIVE,
    ioWeightPercent=Setting(SettingType.INT, low=1, high=100),
    readLatencyPercent=_PERCENT, writeLatencyPercent=_PERCENT, readLatency=_POSITIVE, writeLatency=_POSITIVE,
    enableUserModel=_BOOL, modelReadBPS=_POSITIVE, modelReadSeqIOPS=_POSITIVE, modelReadRandIOPS=_POSITIVE,
    modelWriteBPS=_POSITIVE, modelWriteSeqIOPS=_POSITIVE, modelWriteRandIOPS=_POSITIVE,
)
_CLASS: Final = _object(
    cpuQOS=_object(
        enable=_BOOL, groupIdentity=Setting(SettingType.INT, low=-1, high=2), schedIdle=_SWITCH, coreExpeller=_BOOL),
    memoryQOS=_object(
        enable=_BOOL, minLimitPercent=_PERCENT, lowLimitPercent=_PERCENT, throttlingPercent=_PERCENT,
        wmarkRatio=_PERCENT, wmarkScalePermill=Setting(SettingType.INT, low=1, high=1000),
        wmarkMinAdj=Setting(SettingType.INT, low=-25, high=50), priorityEnable=_SWITCH,
        priority=Setting(SettingType.INT, low=0, high=12), oomKillGroup=_SWITCH, pageCacheEnable=_BOOL,
        pageCacheLimitPercent=_PERCENT, pageCacheLimitSize=_NOT_NEGATIVE, pageCacheReclaimSync=_BOOL),
    resctrlQOS=_object(
        enable=_BOOL, catRangeStartPercent=_PERCENT, catRangeEndPercent=_PERCENT, mbaPercent=_PERCENT),
    blkioQOS=_object(enable=_BOOL, blocks=_list(_object(
        name=_PLAIN, type=_choice("device", "volumegroup", "podvolume", plain=True), ioCfg=_IO))),
    networkQOS=_object(
        enable=_BOOL, ingressRequest=_BANDWIDTH, ingressLimit=_BANDWIDTH, egressRequest=_BANDWIDTH,
        egressLimit=_BANDWIDTH),
)

CLASSES: Final = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
"""The sections of `resourceQOSStrategy`, one for each class of pods and one for the root control group."""

RESOURCE_QOS: Final = _object(
    policies=_object(
        cpuPolicy=_choice("groupIdentity", "coreSched"), netQOSPolicy=_choice("tc", "terwayQos")),
    **dict.fromkeys(CLASSES, _CLASS),
)
"""`resourceQOSStrategy`."""

APPLICATIONS: Final = _list(_object(
    name=_PLAIN, priority=_PLAIN, qos=_PLAIN, strategy=_ANY,
    cgroupPath=_object(base=_PLAIN, parentDir=_PLAIN, relativePath=_PLAIN),
))
"""`hostApplications`."""

_RATIO: Final = Setting(SettingType.INT, low=0)
COLOCATION: Final = _object(
    enable=_BOOL, metricAggregateDurationSeconds=_POSITIVE, metricReportIntervalSeconds=_POSITIVE,
    metricAggregatePolicy=_object(durations=_list(Setting(SettingType.DURATION))),
    metricMemoryCollectPolicy=_choice("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"),
    cpuReclaimThresholdPercent=_RATIO, cpuCalculatePolicy=_choice("", "usage", "maxUsageRequest"),
    memoryReclaimThresholdPercent=_RATIO, memoryCalculatePolicy=_choice("", "usage", "request", "maxUsageRequest"),
    degradeTimeMinutes=_POSITIVE, updateTimeThresholdSeconds=_POSITIVE,
    resourceDiffThreshold=Setting(SettingType.NUMBER, above=0, high=1),
    batchCPUThresholdPercent=_RATIO, batchMemoryThresholdPercent=_RATIO,
    midCPUThresholdPercent=_PERCENT, midMemoryThresholdPercent=_PERCENT, midUnallocatedPercent=_PERCENT,
    midStaticCPUReservedPercent=_RATIO, midStaticMemoryReservedPercent=_RATIO,
    midReclaimMode=Setting(SettingType.TEXT), extensions=_ANY,
)
"""The strategy of `colocation-config`, of the cluster or of a node entry."""
