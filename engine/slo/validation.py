"""Validation of slo-controller-config, as strict as Koordinator's webhook; faults have their path in a key's value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.kubernetes.selectors import check_selector

from .config_map import NAME, NODE_SELECTOR, ConfigKey, cluster_of, merged_entry
from .effective import overlay_section
from .settings import (
    CLASSES,
    COLOCATION,
    RESOURCE_QOS,
    THRESHOLD,
    MalformedSetting,
    Path,
    Setting,
    SettingFault,
    decode,
    faults,
    path_text,
)

_THRESHOLD_ORDER: Final = (
    ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
    ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
    ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
    ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
    ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
)
_MOST_OVERLAPS: Final = 20


def value_faults(key: ConfigKey, value: Mapping[str, Any]) -> Iterator[SettingFault]:
    """Yield the faults of a key's value: types, ranges, pairs in the wrong order, and node entries."""
    malformed = list(faults(key.shape, value))
    yield from malformed
    if malformed:
        return  # what follows compares settings
    decoded = decode(key.shape, value)
    try:
        cluster = overlay_section(key.declared, key.default(), cluster_of(key, decoded) or None)
    except MalformedSetting:  # pragma: no cover - found above
        return
    own = cluster_of(key, decoded)
    yield from _order_faults(key.declared, cluster, own, (key.cluster,) if key.cluster else ())
    entries: list[Mapping[str, Any]] = [entry or {} for entry in decoded.get(key.entries) or ()]
    for number, entry in enumerate(entries):
        merged = merged_entry(key, cluster, entry)
        yield from _order_faults(key.declared, merged, entry, (key.entries, number))
    yield from _entry_faults(key, entries)


def _order_faults(
    declared: Setting, merged: Mapping[str, Any], own: Mapping[str, Any], path: Path,
) -> Iterator[SettingFault]:
    """Yield pairs in the wrong order after merging, of which this strategy itself sets one."""
    if declared is THRESHOLD:
        for low, high in _THRESHOLD_ORDER:
            yield from _pair(merged, own, low, high, path)
    elif declared is RESOURCE_QOS:
        for name in CLASSES:
            yield from _pair(
                (merged.get(name) or {}).get("resctrlQOS") or {}, (own.get(name) or {}).get("resctrlQOS") or {},
                "catRangeStartPercent", "catRangeEndPercent", (*path, name, "resctrlQOS"))
    elif declared is COLOCATION and own.get("metricMemoryCollectPolicy") == "":
        yield SettingFault((*path, "metricMemoryCollectPolicy"), "must not be empty")


def _pair(
    merged: Mapping[str, Any], own: Mapping[str, Any], low: str, high: str, path: Path,
) -> Iterator[SettingFault]:
    below, above = merged.get(low), merged.get(high)
    if below is not None and above is not None and below >= above and (low in own or high in own):
        place = low if low in own else high
        yield SettingFault((*path, place), f"is {merged[place]}: `{low}` ({below}) must be below `{high}` ({above})")


def _entry_faults(key: ConfigKey, entries: list[Mapping[str, Any]]) -> Iterator[SettingFault]:
    names: dict[str, int] = {}
    usable: list[tuple[int, Mapping[str, Any]]] = []
    for number, entry in enumerate(entries):
        path = key.entries, number
        selector = entry.get(NODE_SELECTOR)
        if not selector or not any(selector.values()):
            yield SettingFault(path, f"has no `{NODE_SELECTOR}`: {_effect(selector)}")
        else:
            try:
                check_selector(selector)
            except ValueError as error:
                yield SettingFault((*path, NODE_SELECTOR), f"is invalid, and the entry is left out: {error}")
            else:
                usable.append((number, selector))
        name = entry.get(NAME)
        if name and name in names:
            yield SettingFault((*path, NAME), f"is `{name}`, as that of entry {names[name]}: names must differ")
        elif name:
            names[name] = number
    yield from _overlaps(key, entries, usable)


def _effect(selector: Mapping[str, Any] | None) -> str:
    return "it matches no node" if selector is None else "it matches all nodes, so no later entry has an effect"


def _overlaps(
    key: ConfigKey, entries: list[Mapping[str, Any]], usable: list[tuple[int, Mapping[str, Any]]],
) -> Iterator[SettingFault]:
    found = 0
    for position, (number, selector) in enumerate(usable):
        for other, earlier in usable[:position]:
            labels = common_labels(earlier, selector)
            if labels is not None:
                shown = ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "no labels"
                name = entries[other].get(NAME) or path_text((key.entries, other))
                yield SettingFault(
                    (key.entries, number, NODE_SELECTOR),
                    f"overlaps with that of `{name}`, which comes first and is used: both match a node with {shown}")
                found += 1
                if found >= _MOST_OVERLAPS:
                    return
                break


def common_labels(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str] | None:
    """Return labels of a node that two valid selectors both match; None if there can be no such node."""
    permitted: dict[str, set[str]] = {}
    forbidden: dict[str, set[str]] = {}
    present: set[str] = set()
    absent: set[str] = set()
    for operator, key, values in (*_requirements(first), *_requirements(second)):
        match operator:
            case "In":
                permitted[key] = permitted[key] & values if key in permitted else values
            case "NotIn":
                forbidden.setdefault(key, set()).update(values)
            case "Exists":
                present.add(key)
            case _:
                absent.add(key)
    if absent & (present | permitted.keys()):
        return None
    labels = {}
    for key in sorted(present | permitted.keys()):
        without = forbidden.get(key, set())
        if key in permitted:
            possible = sorted(permitted[key] - without)
            if not possible:
                return None
            labels[key] = possible[0]
        else:
            labels[key] = next(text for number in range(len(without) + 1)
                               if (text := f"any{number or ''}") not in without)
    return labels


def _requirements(selector: Mapping[str, Any]) -> Iterator[tuple[str, str, set[str]]]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield "In", key, {value}
    for each in selector.get("matchExpressions") or ():
        yield str(each.get("operator")), str(each.get("key", "")), set(each.get("values") or ())
