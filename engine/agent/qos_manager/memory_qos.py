"""Memory QoS: protection, throttling, watermarks and page cache limits of control groups, by QoS class and pod.

Pure functions; the rules are Koordinator's (cgroup_reconcile.go). Amounts are in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Readings
from koordpolicy.engine.kubernetes.vocabulary import BATCH_MEMORY, BE, LS, LSE, LSR, SYSTEM, qos_class, raw_qos_class

Settings: TypeAlias = Mapping[str, Any]
"""The fields of a `memoryQOS`."""
Files: TypeAlias = tuple[tuple[str, str], ...]
"""Names of files, or paths, each with its text."""

CLASSES: Final[Mapping[str, str]] = MappingProxyType({
    LSE: "lsrClass", LSR: "lsrClass", LS: "lsClass", BE: "beClass", SYSTEM: "systemClass",
})
"""The class of settings of each QoS class."""
TIERS: Final[Mapping[str, str]] = MappingProxyType({
    "guaranteed": "lsrClass", "burstable": "lsClass", "besteffort": "beClass",
})
"""The class of settings of each tier's directory, in the order in which they are written."""
UNLIMITED: Final = 2**63 - 1

_NONE: Final[Settings] = MappingProxyType({
    "minLimitPercent": 0, "lowLimitPercent": 0, "throttlingPercent": 0, "wmarkRatio": 0, "wmarkScalePermill": 50,
    "wmarkMinAdj": 0, "priorityEnable": 0, "priority": 0, "oomKillGroup": 0,
})
_AUTO: Final[Settings] = MappingProxyType({**_NONE, "wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": -25})
DEFAULTS: Final[Mapping[str, Settings]] = MappingProxyType({
    "lsrClass": _AUTO, "lsClass": _AUTO, "systemClass": _NONE,
    "beClass": MappingProxyType({**_AUTO, "wmarkMinAdj": 50}),
})
"""koordlet's built-in settings of each class, which a pod's policy `auto` stands for."""

_SWITCHES: Final = frozenset(("enable", "pageCacheEnable", "pageCacheReclaimSync"))
_NUMBERS: Final = frozenset((*_NONE, "pageCacheLimitPercent", "pageCacheLimitSize"))
_PLAIN: Final[Mapping[str, str]] = MappingProxyType({
    "memory.wmark_ratio": "wmarkRatio", "memory.wmark_scale_factor": "wmarkScalePermill",
    "memory.wmark_min_adj": "wmarkMinAdj", "memory.priority": "priority", "memory.use_priority_oom": "priorityEnable",
    "memory.oom.group": "oomKillGroup",
})
_OF_TIER: Final = ("memory.priority", "memory.use_priority_oom", "memory.oom.group")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the types of the fields of a `memoryQOS`; raise `ValueError` with the first wrong one."""
    for name, value in settings.items():
        if value is None:
            continue
        if name in _SWITCHES and not isinstance(value, bool):
            raise ValueError(f"`{name}` must be true or false, not {value!r}")
        if name in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"`{name}` must be a whole number, not {value!r}")


def pod_settings(of_class: Settings, qos: str, annotation: str | None) -> Settings:
    """Return the settings of a pod: those of its class, changed by its annotation `koordinator.sh/memoryQOS`.

    The policy `none` is all settings at rest; `auto` replaces those of the class by built-in ones first. An annotation
    that is malformed is ignored.
    """
    if annotation is None:
        return of_class
    try:
        pod_config = json.loads(annotation)
        if not isinstance(pod_config, dict) or not isinstance(pod_config.get("policy") or "", str):
            return of_class
        check_settings(pod_config)
    except (ValueError, RecursionError):
        return of_class
    policy = pod_config.get("policy") or ""
    if policy == "none":
        return {**_NONE, "enable": False}
    base = of_class
    if policy == "auto":
        enable = {"enable": of_class["enable"]} if "enable" in of_class else {}
        base = {**DEFAULTS[CLASSES[qos]], **enable}
    known = _SWITCHES | _NUMBERS
    return {**base, **{name: value for name, value in pod_config.items() if name in known and value is not None}}


@dataclass(frozen=True, slots=True)
class MemoryAmounts:
    """The memory request and limit of a pod or a container; the limit is 0 if there is none."""

    request: int
    limit: int


def container_amounts(container: Mapping[str, Any], *, best_effort: bool) -> MemoryAmounts:
    """Return the amounts of a container: of batch memory if its pod is a best-effort one.

    Raises:
        ValueError: an amount is malformed.
    """
    resources, name = container.get("resources") or {}, BATCH_MEMORY if best_effort else "memory"
    request, limit = (
        max(canonical_amount(name, (resources.get(which) or {}).get(name, "0"), f"{container.get('name')}.{which}"), 0)
        for which in ("requests", "limits")
    )
    return MemoryAmounts(request, limit)


def pod_amounts(pod: PodInfo) -> MemoryAmounts:
    """Return the amounts of a pod; without a limit if one of its containers has none.

    Raises:
        ValueError: an amount is malformed.
    """
    best_effort = raw_qos_class(pod.object) == BE
    containers = [container_amounts(each, best_effort=best_effort)
                  for each in (pod.object.get("spec") or {}).get("containers") or ()]
    limit = sum(each.limit for each in containers) if all(each.limit for each in containers) else 0
    request = sum(each.request for each in containers) if best_effort else pod.requests["memory"]
    return MemoryAmounts(request, limit)


def protected(request: int, settings: Settings) -> tuple[int | None, int | None]:
    """Return `memory.min` and `memory.low` of a request, None where the percentage is unset.

    A low above 0 is at least min.
    """
    least, low = (
        None if settings.get(name) is None else request * settings[name] // 100
        for name in ("minLimitPercent", "lowLimitPercent")
    )
    if least is not None and low is not None and 0 < low < least:
        low = least
    return least, low


def throttled_from(amounts: MemoryAmounts, settings: Settings, allocatable: int, page_size: int) -> int | None:
    """Return `memory.high` of a container; None if it is unset, or neither a limit nor the node's memory is known."""
    percent: int | None = settings.get("throttlingPercent")
    if percent is None:
        return None
    if percent == 0:
        return UNLIMITED
    limit = amounts.limit or allocatable
    if limit <= 0:
        return None
    high: int = (amounts.request + (limit - amounts.request) * percent // 100) // page_size * page_size
    return max(high, protected(amounts.request, settings)[0] or 0)


def page_cache_files(limit: int, settings: Settings) -> Files:
    """Return the page cache files of a pod with that memory limit (0: none), in control groups v2."""
    size, percent, enable = (settings.get(name) for name in (
        "pageCacheLimitSize", "pageCacheLimitPercent", "pageCacheEnable",
    ))
    amount: int | None = None
    if size is not None:
        amount = min(size, limit) if limit > 0 else size
    elif percent is not None and limit > 0:
        amount = limit * percent // 100
    found: dict[str, str] = {}
    if amount is not None:
        found = {"enable": "1" if amount > 0 else "0", "size": str(max(amount, 0))}
        if amount > 0:
            found["sync"] = "1" if settings.get("pageCacheReclaimSync") else "0"
    if enable is not None:
        found = {**found, "enable": "1" if enable else "0"}
    return tuple((f"memory.pagecache_limit.{name}", text) for name, text in found.items())


def _files(settings: Settings, least: int | None, low: int | None, high: int | None = None) -> list[tuple[str, str]]:
    amounts = (("memory.min", least), ("memory.low", low), ("memory.high", high))
    found = [(name, str(value)) for name, value in amounts if value is not None]
    return found + [
        (name, str(settings[field])) for name, field in _PLAIN.items() if settings.get(field) is not None
    ]


def pod_files(amounts: MemoryAmounts, settings: Settings, version: int) -> Files:
    """Return the files of a pod's directory, in order."""
    cache = page_cache_files(amounts.limit, settings) if version != 1 else ()
    return (*_files(settings, *protected(amounts.request, settings)), *cache)


def container_files(amounts: MemoryAmounts, settings: Settings, allocatable: int, page_size: int) -> Files:
    """Return the files of a container's directory, in order."""
    high = throttled_from(amounts, settings, allocatable, page_size)
    return tuple(_files(settings, *protected(amounts.request, settings), high))


@dataclass(frozen=True, slots=True)
class PodMemory:
    """The files of a pod and its containers, by path, and what it adds to its tier (`guaranteed` and so on).

    An addition is None where the pod's settings do not have the percentage.
    """

    tier: str
    pod: Files
    containers: Files
    least: int | None
    low: int | None


def pod_memory(pod: PodInfo, settings: Settings, readings: Readings) -> PodMemory:
    """Return the files of a pod with those settings; containers without an id have none.

    Raises:
        ValueError: an amount is malformed.
    """
    host, amounts, directory = readings.host, pod_amounts(pod), readings.directory(pod)
    allocatable = ((readings.node.get("status") or {}).get("allocatable") or {}).get("memory", "0")
    memory = canonical_amount("memory", allocatable, "status.allocatable.memory")
    best_effort = raw_qos_class(pod.object) == BE
    ids = {each.get("name") for each in (pod.object.get("status") or {}).get("containerStatuses") or ()
           if each.get("containerID")}
    containers: list[tuple[str, str]] = []
    for each in (pod.object.get("spec") or {}).get("containers") or ():
        if each.get("name") in ids:
            path = readings.directory(pod, each["name"])
            files = container_files(
                container_amounts(each, best_effort=best_effort), settings, memory, host.page_size,
            )
            containers += ((f"{path}/{name}", text) for name, text in files)
    files = tuple((f"{directory}/{name}", text) for name, text in pod_files(amounts, settings, host.cgroup_version))
    least, low = (None if settings.get(name) is None else amounts.request * settings[name] // 100
                  for name in ("minLimitPercent", "lowLimitPercent"))
    return PodMemory(_TIER_OF[pod.kubernetes_qos], files, tuple(containers), least, low)


_TIER_OF: Final[Mapping[str, str]] = MappingProxyType({
    "Guaranteed": "guaranteed", "Burstable": "burstable", "BestEffort": "besteffort",
})


def tier_files(pods: Iterable[PodMemory], classes: Mapping[str, Settings]) -> Files:
    """Return the files of the tiers' directories, by path, in order.

    The guaranteed tier's directory holds the other two, so it has the sums of all pods.
    """
    sums: dict[tuple[str, str], int] = {}
    for pod in pods:
        for tier in {"guaranteed", pod.tier}:
            for name, amount in (("memory.min", pod.least), ("memory.low", pod.low)):
                if amount is not None:
                    sums[tier, name] = sums.get((tier, name), 0) + amount
    found: list[tuple[str, str]] = []
    for tier, of_class in TIERS.items():
        settings = classes.get(of_class) or {}
        found += ((f"{tier}/{name}", str(sums[tier, name])) for name in ("memory.min", "memory.low")
                  if (tier, name) in sums)
        found += ((f"{tier}/{name}", str(settings[_PLAIN[name]])) for name in _OF_TIER
                  if settings.get(_PLAIN[name]) is not None)
    return tuple(found)


def memory_classes(slo: Mapping[str, Any]) -> Mapping[str, Settings] | None:
    """Return the memory settings of each class of a NodeSLO; None if it has no `resourceQOSStrategy`.

    Raises:
        ValueError: a field has the wrong type; the message begins with its path.
    """
    strategy = (slo.get("spec") or {}).get("resourceQOSStrategy")
    if strategy is None:
        return None
    found = {}
    for name in dict.fromkeys(CLASSES.values()):
        settings = (strategy.get(name) or {}).get("memoryQOS") or {}
        try:
            check_settings(settings)
        except ValueError as error:
            raise ValueError(f"`resourceQOSStrategy.{name}.memoryQOS`: {error}") from None
        found[name] = settings
    return found


def is_active(pod: PodInfo) -> bool:
    """Return whether a pod is pending or runs."""
    return (pod.object.get("status") or {}).get("phase", "Pending") in ("Pending", "Running")


def class_of(pod: PodInfo) -> str:
    """Return the class of settings of a pod."""
    return CLASSES[qos_class(pod.object)]


def levels_of(files: Iterable[tuple[str, str]]) -> Sequence[Files]:
    """Return files by the depth of their directory, parents first; the guaranteed tier's holds the other tiers."""
    depths: dict[int, list[tuple[str, str]]] = {}
    for path, text in files:
        depth = path.count("/")
        depths.setdefault(0 if depth == 1 and path.startswith("guaranteed/") else depth, []).append((path, text))
    return [tuple(depths[depth]) for depth in sorted(depths)]
