"""ElasticQuotaArgs: strict reading of version v1, its defaults, conversion to the internal form, validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import ResourceList, resource_list
from koordpolicy.engine.documents import parse_duration

from ..allocation.strict_args import boolean, duration, listed, nested, quantities, raise_faults, read_args, text

KIND: Final = "ElasticQuotaArgs"
UNLIMITED: Final = (2**63 - 1) // 5
"""The default maximum of the default and the system quota: cpu (in cores) and memory."""

_FIELDS: Final = {
    "delayEvictTime": duration, "revokePodInterval": duration, "defaultQuotaGroupMax": quantities,
    "systemQuotaGroupMax": quantities, "quotaGroupNamespace": text, "monitorAllQuotas": boolean,
    "enableCheckParentQuota": boolean, "enableRuntimeQuota": boolean, "enableMinQuotaScale": boolean,
    "disableDefaultQuotaPreemption": boolean, "enableQueueHint": boolean, "quotaSnapshotUpdateInterval": duration,
    "hookPlugins": listed(nested({"key": text, "factoryKey": text, "factoryArgs": text})),
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "delayEvictTime": "120s", "revokePodInterval": "1s", "quotaGroupNamespace": "koordinator-system",
    "monitorAllQuotas": False, "enableCheckParentQuota": False, "enableRuntimeQuota": True,
    "enableMinQuotaScale": True, "disableDefaultQuotaPreemption": True, "enableQueueHint": False,
    "quotaSnapshotUpdateInterval": "120s", "hookPlugins": (),
}


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook of the quota check: its key, the factory that creates it, and the factory's argument."""

    key: str
    factory: str
    args: str = ""


@dataclass(frozen=True, slots=True)
class ElasticQuotaArgs:
    """The internal form; durations in nanoseconds, amounts in canonical units."""

    delay_evict: int
    revoke_interval: int
    default_max: ResourceList
    system_max: ResourceList
    namespace: str
    monitor: bool
    check_parents: bool
    runtime: bool
    scale_min: bool
    spare_default: bool
    queue_hint: bool
    hooks: tuple[Hook, ...]


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises `ValueError` with all faults and the fields' paths."""
    full = default_args(args)
    raise_faults(validate(convert(full)))
    return full


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the valid v1 arguments without effect, with the reasons; defaults are omitted."""
    why = {
        "quotaGroupNamespace": "no objects are created for the built-in quotas",
        "quotaSnapshotUpdateInterval": "quotas are always up to date: there is no snapshot of them",
    }
    return {name: reason for name, reason in why.items() if args.get(name) != _DEFAULTS[name]}


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults filled in.

    Raises:
        ValueError: there is no such field, or its value is of another type.
    """
    most = {"cpu": str(UNLIMITED // 1000), "memory": str(UNLIMITED)}
    given = read_args(args, KIND, _FIELDS)
    for name in ("defaultQuotaGroupMax", "systemQuotaGroupMax"):
        given[name] = given.get(name) or dict(most)
    return {**_DEFAULTS, **given}


def convert(full: Mapping[str, Any]) -> ElasticQuotaArgs:
    """Return the internal form of v1 arguments that have their defaults."""
    return ElasticQuotaArgs(
        delay_evict=parse_duration(full["delayEvictTime"]),
        revoke_interval=parse_duration(full["revokePodInterval"]),
        default_max=resource_list(full, "defaultQuotaGroupMax", ""),
        system_max=resource_list(full, "systemQuotaGroupMax", ""),
        namespace=full["quotaGroupNamespace"],
        monitor=full["monitorAllQuotas"],
        check_parents=full["enableCheckParentQuota"],
        runtime=full["enableRuntimeQuota"],
        scale_min=full["enableMinQuotaScale"],
        spare_default=full["disableDefaultQuotaPreemption"],
        queue_hint=full["enableQueueHint"],
        hooks=tuple(
            Hook(each.get("key", ""), each.get("factoryKey", ""), each.get("factoryArgs", ""))
            for each in full["hookPlugins"]
        ),
    )


def validate(args: ElasticQuotaArgs) -> Iterator[str]:
    """Yield the faults of arguments, each with the field's path (negative durations are already rejected)."""
    for field, amounts in (("defaultQuotaGroupMax", args.default_max), ("systemQuotaGroupMax", args.system_max)):
        for name, amount in sorted(amounts.items()):
            if amount < 0:
                yield f"`{field}[{name}]` is below 0"
