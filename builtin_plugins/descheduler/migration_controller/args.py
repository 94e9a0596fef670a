"""MigrationControllerArgs: decoded strictly, defaulted, validated and converted as Koordinator does.

Unlike there a negative number of pods of a workload is refused, and so are limits of objects that do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.migration.filters import GATES
from koordpolicy.engine.descheduler.migration.jobs import EVICTION_POLICIES
from koordpolicy.engine.descheduler.migration.settings import (
    EVICT_DIRECTLY,
    RESERVATION_FIRST,
    MigrationSettings,
    ObjectLimit,
)
from koordpolicy.engine.descheduler.migration.workloads import scaled
from koordpolicy.engine.descheduler.plugin_args import check_label_selector, check_lists, decode
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.source import did_you_mean

Json = Mapping[str, Any]
KIND: Final = "MigrationControllerArgs"

DEFAULTS: Final[Json] = {
    "dryRun": False, "maxConcurrentReconciles": 1, "evictFailedBarePods": False, "evictAllBarePods": False,
    "evictLocalStoragePods": False, "evictSystemCriticalPods": False, "ignorePvcPods": False, "nodeFit": False,
    "nodeSelector": "", "maxMigratingPerNode": 2, "defaultJobMode": RESERVATION_FIRST, "defaultJobTTL": "5m0s",
    "evictQPS": 10, "evictBurst": 1, "evictionPolicy": "Eviction",
}
_INTERVAL: Final = "500ms"
_LIMITED: Final = ("workload", "namespace")


def default(args: Json) -> dict[str, Any]:
    """Return decoded arguments with their defaults, in v1alpha2 form."""
    full = {**DEFAULTS, **{key: value for key, value in args.items() if value is not None}}
    full["objectLimiters"] = full.get("objectLimiters") or {"workload": {"duration": "5m0s"}}
    full["schedulerNames"] = full.get("schedulerNames") or ["koord-scheduler"]
    full["arbitrationArgs"] = {
        "enabled": True, "interval": _INTERVAL,
        **{key: value for key, value in (full.get("arbitrationArgs") or {}).items() if value is not None},
    }
    return full


def check(full: Json) -> Iterator[Fault]:
    """Yield the faults of defaulted arguments, in the words of Koordinator's validation."""
    if full["maxConcurrentReconciles"] < 1:
        yield ("maxConcurrentReconciles",), "maxConcurrentReconciles should be greater than or equal to 1"
    for field in ("maxMigratingGlobally", "maxMigratingPerNamespace", "maxMigratingPerNode"):
        if (full.get(field) or 0) < 0:
            yield (field,), f"{field} should be greater or equal 0"
    for field in ("maxMigratingPerWorkload", "maxUnavailablePerWorkload"):
        yield from _check_int_or_percent(full.get(field), (field,), field)
    yield from _check_selection(full)
    for index, gate in enumerate(full.get("skipEvictionGates") or ()):
        if gate not in GATES:
            yield ("skipEvictionGates", index), f"unknown eviction gate `{gate}`. {did_you_mean(gate, GATES)}".rstrip(
                ". ")
    for name, limit in full["objectLimiters"].items():
        if name not in _LIMITED:
            yield ("objectLimiters", name), f"there is no such limiter. {did_you_mean(name, _LIMITED)}".rstrip(". ")
        if (limit or {}).get("burst", 0) < 0:
            yield ("objectLimiters", name, "burst"), "burst should be greater or equal 0"
        yield from _check_int_or_percent(
            (limit or {}).get("maxMigrating"), ("objectLimiters", name, "maxMigrating"), "maxMigrating",
        )
    if full["defaultJobMode"] not in (RESERVATION_FIRST, EVICT_DIRECTLY):
        yield ("defaultJobMode",), f"defaultJobMode must be {RESERVATION_FIRST} or {EVICT_DIRECTLY}"
    if parse_duration(full["defaultJobTTL"]) < 0:
        yield ("defaultJobTTL",), "defaultJobTTL should be positive or zero"
    if _per_second(full["evictQPS"]) <= 0:
        yield ("evictQPS",), "evictQPS must be greater than 0"
    if full["evictBurst"] <= 0:
        yield ("evictBurst",), "evictBurst must be greater than 0"
    if full["evictionPolicy"] not in EVICTION_POLICIES:
        yield ("evictionPolicy",), f"unsupported eviction policy, it must be one of {', '.join(EVICTION_POLICIES)}"
    if parse_duration(full["arbitrationArgs"]["interval"]) <= 0:
        yield ("arbitrationArgs", "interval"), "interval must be greater than 0"


def _check_selection(full: Json) -> Iterator[Fault]:
    yield from check_lists(full)
    yield from check_label_selector(full)
    threshold = full.get("priorityThreshold") or {}
    if threshold.get("value") is not None and threshold.get("name"):
        yield ("priorityThreshold",), "only one of value and name can be set"


def _check_int_or_percent(value: Any, path: tuple[str | int, ...], field: str) -> Iterator[Fault]:
    if value is None:
        return
    try:
        if scaled(value, 100) < 0:
            yield path, f"{field} should be greater or equal 0"
    except ValueError as error:
        yield path, f"{field} is invalid, err: {error}"


def _per_second(value: float | str) -> float:
    try:
        number = float(value)
    except ValueError:
        return -1.0
    return number if math.isfinite(number) else -1.0


def check_args(args: Json) -> dict[str, Any]:
    """Return arguments with their defaults; raise `ArgumentError` with all faults."""
    full = default(decode(args, KIND))
    refuse(check(full))
    return full


def settings_of(full: Json, instance: str = "") -> MigrationSettings:
    """Return valid arguments, defaulted, as the settings of the controller."""
    limits = tuple(
        (name, ObjectLimit(
            parse_duration((full["objectLimiters"][name] or {}).get("duration") or "0s"),
            (full["objectLimiters"][name] or {}).get("maxMigrating"),
            (full["objectLimiters"][name] or {}).get("burst") or 0,
        ))
        for name in _LIMITED if name in full["objectLimiters"]
    )
    return MigrationSettings(
        default_mode=full["defaultJobMode"],
        default_ttl=parse_duration(full["defaultJobTTL"]),
        scheduler_names=tuple(full["schedulerNames"]),
        max_migrating_globally=full.get("maxMigratingGlobally"),
        max_migrating_per_node=full.get("maxMigratingPerNode"),
        max_migrating_per_namespace=full.get("maxMigratingPerNamespace"),
        max_migrating_per_workload=full.get("maxMigratingPerWorkload"),
        max_unavailable_per_workload=full.get("maxUnavailablePerWorkload"),
        skip_expected_replicas=bool(full.get("skipCheckExpectedReplicas")),
        skipped_gates=frozenset(full.get("skipEvictionGates") or ()),
        object_limits=limits,
        eviction_policy=full["evictionPolicy"],
        default_delete_options=full.get("defaultDeleteOptions"),
        arbitration=full["arbitrationArgs"]["enabled"],
        arbitration_interval=parse_duration(full["arbitrationArgs"]["interval"]),
        evict_per_second=_per_second(full["evictQPS"]),
        evict_burst=full["evictBurst"],
        dry_run=full["dryRun"],
        instance=instance,
    )


def constraints_of(full: Json) -> dict[str, Any]:
    """Return the arguments of the constraints on pods, with the gates that are skipped applied to them."""
    skipped = frozenset(full.get("skipEvictionGates") or ())
    constraints = {key: value for key, value in full.items() if key in (
        "evictFailedBarePods", "evictAllBarePods", "evictLocalStoragePods", "evictSystemCriticalPods", "ignorePvcPods",
        "priorityThreshold", "labelSelector",
    )}
    constraints["evictSystemCriticalPods"] = full["evictSystemCriticalPods"] or "SystemCritical" in skipped
    constraints["evictLocalStoragePods"] = full["evictLocalStoragePods"] or "LocalStorage" in skipped
    constraints["evictAllBarePods"] = full["evictAllBarePods"] or "BarePods" in skipped
    constraints["ignorePvcPods"] = full["ignorePvcPods"] and "PVC" not in skipped
    for gate, field in (("PriorityThreshold", "priorityThreshold"), ("LabelSelector", "labelSelector")):
        if gate in skipped:
            constraints.pop(field, None)
    return constraints


def reads_of(full: Json) -> tuple[Read, ...]:
    """Return the kinds that these arguments make the filter read, besides those that it always does."""
    return (Read("PriorityClass"),) if (constraints_of(full).get("priorityThreshold") or {}).get("name") else ()
