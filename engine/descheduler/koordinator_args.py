"""Arguments of CustomPriority, FragmentationAware and ScaleDownBinPack: defaults, conversion and validation.

The rules are Koordinator's (pkg/descheduler/apis/config). The written and the internal form have the same fields; the
internal one has all defaults. `check_*` take the internal form, in which an absent field has Go's zero value.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.kubernetes.label_syntax import selector_faults

from .argument_faults import Fault

BEST_EFFORT: Final = "BestEffort"
DRAIN_NODE: Final = "DrainNode"
MODES: Final = (BEST_EFFORT, DRAIN_NODE)
CALCULATE_ONLY: Final = "CalculateOnly"
EVICT_DIRECTLY: Final = "EvictDirectly"
_RESOURCES: Final = ("cpu", "memory")
_AT_LEAST_ZERO: Final = "must be greater than or equal to 0"
_FEWEST_LEVELS: Final = 2


def default_custom_priority(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return CustomPriorityArgs with their defaults."""
    full = {"paused": False, "dryRun": False, "nodeFit": True, "autoCordon": False, **_given(args)}
    full["mode"] = full.get("mode") or BEST_EFFORT
    return full


def check_custom_priority(internal: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of CustomPriorityArgs in internal form; any text is a mode, as in Koordinator's factory."""
    levels = internal.get("evictionOrder") or ()
    if len(levels) < _FEWEST_LEVELS:
        yield ("evictionOrder",), "CustomPriority requires at least 2 resource priority levels"
    seen: set[str] = set()
    for index, level in enumerate(levels):
        name, path = level.get("name") or "", ("evictionOrder", index)
        if not name:
            yield (*path, "name"), "priority name cannot be empty"
        elif name in seen:
            yield (*path, "name"), f"duplicate priority name: {name}"
        seen.add(name)
        if level.get("nodeSelector") is None:
            yield path, f"priority {name} must have a nodeSelector"
        yield from _check_selector(level.get("nodeSelector"), (*path, "nodeSelector"))
    yield from _check_selector(internal.get("nodeSelector"), ("nodeSelector",))
    yield from _check_pod_selectors(internal)


def default_fragmentation_aware(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return FragmentationAwareArgs with their defaults."""
    full = {
        "paused": False, "dryRun": False, "nodeFit": True, "imbalanceThreshold": 0.15, "minImprovementThreshold": 0.02,
        **_given(args),
    }  # fmt: skip
    full["resources"] = full.get("resources") or list(_RESOURCES)
    return full


def check_fragmentation_aware(internal: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of FragmentationAwareArgs in internal form."""
    resources = internal.get("resources") or ()
    if not resources:
        yield ("resources",), "Required value: resources must not be empty"
    for index, name in enumerate(resources):
        if name in resources[:index]:
            yield ("resources", index), f"Duplicate value: `{name}`"
    for field in ("imbalanceThreshold", "minImprovementThreshold"):
        if not internal.get(field, 0) >= 0:  # not a number is refused too
            yield (field,), _AT_LEAST_ZERO
    yield from _check_selector(internal.get("nodeSelector"), ("nodeSelector",))
    yield from _check_pod_selectors(internal)
    yield from _check_namespaces(internal)


def default_scale_down_bin_pack(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return ScaleDownBinPackArgs with their defaults."""
    full = {"paused": False, **_given(args)}
    full["strategy"] = full.get("strategy") or CALCULATE_ONLY
    full["resources"] = full.get("resources") or list(_RESOURCES)
    given = full.get("resourceWeights") or {}
    full["resourceWeights"] = {**given, **{name: 1.0 for name in full["resources"] if name not in given}}
    return full


def check_scale_down_bin_pack(internal: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of ScaleDownBinPackArgs in internal form."""
    strategy = internal.get("strategy")
    if strategy not in (CALCULATE_ONLY, EVICT_DIRECTLY):
        yield ("strategy",), f"strategy must be {CALCULATE_ONLY} or {EVICT_DIRECTLY}"
    if strategy == EVICT_DIRECTLY and (internal.get("maxPodsToEvict") or 0) <= 0:
        yield ("maxPodsToEvict",), f"maxPodsToEvict must be positive when strategy is {EVICT_DIRECTLY}"
    yield from _check_selector(internal.get("nodeSelector"), ("nodeSelector",))
    yield from _check_pod_selectors(internal)
    yield from _check_namespaces(internal)
    for name, weight in (internal.get("resourceWeights") or {}).items():
        if not (math.isfinite(weight) and weight > 0):
            yield ("resourceWeights", name), "weights must be positive finite floats"


def as_written(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaulted arguments in internal form, which has the same fields."""
    return dict(args)


def _given(args: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({key: value for key, value in args.items() if value is not None})


def _check_selector(
    selector: Mapping[str, Any] | None, path: tuple[str | int, ...], about: str = "invalid selector: ",
) -> Iterator[Fault]:
    found = next(selector_faults(selector), None)
    if found is not None:
        yield path, f"{about}{found}"


def _check_pod_selectors(internal: Mapping[str, Any]) -> Iterator[Fault]:
    for index, each in enumerate(internal.get("podSelectors") or ()):
        about = f"invalid labelSelector {each.get('name') or ''}, "
        yield from _check_selector(each.get("selector"), ("podSelectors", index, "selector"), about)


def _check_namespaces(internal: Mapping[str, Any]) -> Iterator[Fault]:
    namespaces = internal.get("evictableNamespaces") or {}
    if namespaces.get("include") and namespaces.get("exclude"):
        yield ("evictableNamespaces",), "only one of Include/Exclude namespaces can be set"
