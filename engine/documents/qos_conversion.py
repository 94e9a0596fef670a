"""Conversion of QoSPlugin documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .document_fields import DocumentFields
from .plugin_conversion import criterion, plugin_fields, sort_key
from .specs import (
    Action,
    BlkIO,
    CgroupFile,
    CPUBurstAction,
    Effect,
    EvictAction,
    EvictionRelease,
    Otherwise,
    QoSSpec,
    Resctrl,
    Subject,
    SuppressCPU,
    Sysctl,
    Threshold,
)

BLKIO_KEYS: Final = {
    "read_iops": "readIOPS", "write_iops": "writeIOPS", "read_bps": "readBPS", "write_bps": "writeBPS",
    "io_weight_percent": "ioWeightPercent",
}


def qos_spec(fields: DocumentFields) -> QoSSpec:
    """Return the spec of a QoSPlugin."""
    if "profiles" in fields.node.fields:
        fields.problem("`profiles` means nothing here: the QoS manager has none", fields.place("profiles"), "remove it")
    times = {name: fields.duration(name) for name in ("interval", "window", "staleAfter")}
    for name in ("interval", "window"):
        if times[name] == 0 and name in fields.node.fields:
            fields.problem(f"`{name}` is 0", fields.node.fields[name].span, "write a duration such as `1s`")
    return QoSSpec(
        **plugin_fields(fields),
        feature_gate=fields.text("featureGate"),
        interval_ns=times["interval"],
        for_each=Subject(fields.value("forEach")),
        window_ns=times["window"],
        stale_after_ns=times["staleAfter"],
        thresholds=fields.each("thresholds", _threshold),
        actions=fields.each("actions", _action),
    )


def _threshold(item: DocumentFields) -> Threshold:
    return Threshold(
        item.text("name"), item.required("expression"), item.duration("for"), item.duration("holdFor"),
        item.duration("coolDown"), item.text("message"), item.expression("messageExpression"),
        item.node.fields["name"].span,
    )


def _action(item: DocumentFields) -> Action:
    kind = next(each for each in EFFECTS if each.key in item.node.fields)
    fields = item.sub(kind.key)
    assert fields is not None
    return Action(
        item.text("name"), kind.make(fields), item.expression("when"), Otherwise(item.value("otherwise")),
        item.node.fields["name"].span,
    )


def _suppress_cpu(fields: DocumentFields) -> Effect:
    band = fields.whole("deadBandPercent")
    return SuppressCPU(fields.required("target"), fields.text("policy"), band)


def _evict(fields: DocumentFields) -> Effect:
    release = fields.sub("release")
    return EvictAction(
        fields.each("criteria", criterion), fields.each("sort", sort_key),
        EvictionRelease(release.text("resource"), release.required("amount"), release.text("measure"))
        if release is not None else None,
        fields.duration("coolDown"), fields.expression("pastBudget"),
    )


def _cpu_burst(fields: DocumentFields) -> Effect:
    return CPUBurstAction(
        fields.text("policy"), fields.expression("cpuBurstPercent"), fields.expression("cfsQuotaBurstPercent"),
        fields.duration("cfsQuotaBurstPeriod") if "cfsQuotaBurstPeriod" in fields.node.fields else None,
        fields.expression("sharePoolThresholdPercent"), fields.node.place,
    )


def _cgroup(fields: DocumentFields) -> Effect:
    return CgroupFile(fields.text("file"), fields.required("value"))


def _resctrl(fields: DocumentFields) -> Effect:
    return Resctrl(
        fields.expression("catRangeStartPercent"), fields.expression("catRangeEndPercent"),
        fields.expression("mbaPercent"), fields.node.place,
    )


def _blkio(fields: DocumentFields) -> Effect:
    return BlkIO(fields.text("device"), fields.text("kind"), span=fields.node.place, **{
        field: fields.expression(key) for field, key in BLKIO_KEYS.items()
    })


def _sysctl(fields: DocumentFields) -> Effect:
    return Sysctl(fields.text("name"), fields.required("value"), fields.node.fields["name"].span)


@dataclass(frozen=True, slots=True)
class _EffectKind:
    """One kind of action: its key and its constructor."""

    key: str
    type: type[Any]
    make: Callable[[DocumentFields], Effect]


EFFECTS: Final = (
    _EffectKind("suppressCPU", SuppressCPU, _suppress_cpu),
    _EffectKind("evict", EvictAction, _evict),
    _EffectKind("cpuBurst", CPUBurstAction, _cpu_burst),
    _EffectKind("cgroup", CgroupFile, _cgroup),
    _EffectKind("resctrl", Resctrl, _resctrl),
    _EffectKind("blkio", BlkIO, _blkio),
    _EffectKind("sysctl", Sysctl, _sysctl),
)
"""All kinds of QoS actions."""
