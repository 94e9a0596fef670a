"""ReservationArgs: strict reading of version v1, its defaults, conversion to the internal form, validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..allocation.strict_args import boolean, integer, nested, raise_faults, read_args, text, texts

KIND: Final = "ReservationArgs"
CLUSTER_LABEL: Final = "pod.koordinator.sh/is-pre-allocatable"
PRIORITY_ANNOTATION: Final = "pod.koordinator.sh/pre-allocatable-priority"

_FIELDS: Final = {
    "enablePreemption": boolean, "minCandidateNodesPercentage": integer, "minCandidateNodesAbsolute": integer,
    "controllerWorkers": integer, "gcDurationSeconds": integer, "gcIntervalSeconds": integer,
    "resyncIntervalSeconds": integer, "disableGarbageCollection": boolean,
    "preAllocationConfig": nested({
        "enableClusterMode": boolean, "clusterLabelKey": text, "clusterPriorityAnnotationKey": text,
        "preferNoPreAllocatedPods": boolean,
    }),
    "ignoredResources": texts, "ignoredResourceGroups": texts,
    "reservationSelectorIndex": nested({"enabled": boolean, "keyPrefixes": texts, "keys": texts}),
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "enablePreemption": False, "minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100,
    "controllerWorkers": 1, "gcDurationSeconds": 86_400, "gcIntervalSeconds": 60, "resyncIntervalSeconds": 60,
    "disableGarbageCollection": False,
}
_NATIVE_DOMAIN: Final = "kubernetes.io/"


@dataclass(frozen=True, slots=True)
class ReservationArgs:
    """The internal form; times in seconds."""

    preempts: bool
    candidates_percentage: int
    candidates_absolute: int
    gc_duration: int
    gc_interval: int
    resync_interval: int
    collects_garbage: bool
    cluster_mode: bool = False
    cluster_label: str = CLUSTER_LABEL
    priority_annotation: str = PRIORITY_ANNOTATION
    prefers_no_pods: bool = False
    """True if pre-allocation is tried only where the node's free resources do not suffice."""
    ignored: frozenset[str] = frozenset()
    ignored_groups: tuple[str, ...] = ()

    def ignores(self, name: str) -> bool:
        """Return whether an extended resource is not looked at."""
        return name in self.ignored or any(name.startswith(f"{group}/") for group in self.ignored_groups)


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises ValueError for what is wrong, with the fields' paths."""
    full = default_args(args)
    raise_faults(validate(full))
    return full


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
    """Return which of valid v1 arguments have no effect, with the reason."""
    found = {} if args.get("controllerWorkers") == 1 else {"controllerWorkers": "there is one worker"}
    if (args.get("reservationSelectorIndex") or {}).get("enabled"):
        found["reservationSelectorIndex"] = "all reservations are matched, without an index of their labels"
    return found


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments, still in v1 terms, with their defaults filled in.

    Raises:
        ValueError: there is no such field, or its value is of another type.
    """
    return {**_DEFAULTS, **read_args(args, KIND, _FIELDS)}


def convert(full: Mapping[str, Any]) -> ReservationArgs:
    """Return the internal form of v1 arguments that have their defaults."""
    pre_allocation = full.get("preAllocationConfig") or {}
    return ReservationArgs(
        preempts=full["enablePreemption"],
        candidates_percentage=full["minCandidateNodesPercentage"],
        candidates_absolute=full["minCandidateNodesAbsolute"],
        gc_duration=full["gcDurationSeconds"],
        gc_interval=full["gcIntervalSeconds"],
        resync_interval=full["resyncIntervalSeconds"],
        collects_garbage=not full["disableGarbageCollection"],
        cluster_mode=pre_allocation.get("enableClusterMode", False),
        cluster_label=pre_allocation.get("clusterLabelKey") or CLUSTER_LABEL,
        priority_annotation=pre_allocation.get("clusterPriorityAnnotationKey") or PRIORITY_ANNOTATION,
        prefers_no_pods=pre_allocation.get("preferNoPreAllocatedPods", False),
        ignored=frozenset(full.get("ignoredResources", ())),
        ignored_groups=tuple(full.get("ignoredResourceGroups", ())),
    )


def validate(full: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of v1 arguments that have their defaults, each with the field's path."""
    percentage = full["minCandidateNodesPercentage"]
    if not 0 <= percentage <= 100:
        yield f"`minCandidateNodesPercentage` is {percentage}: it must lie within 0 and 100"
    for name in ("minCandidateNodesAbsolute", "gcDurationSeconds", "gcIntervalSeconds", "resyncIntervalSeconds"):
        if full[name] < 0:
            yield f"`{name}` is {full[name]}: it must not be below 0"
    if not full["minCandidateNodesAbsolute"] and not percentage:
        yield "`minCandidateNodesPercentage` and `minCandidateNodesAbsolute` are both 0: one must be above"
    for index, name in enumerate(full.get("ignoredResources", ())):
        if not _is_extended(name):
            yield f"`ignoredResources[{index}]` is `{name}`: only extended resources can be ignored"
    for index, group in enumerate(full.get("ignoredResourceGroups", ())):
        where = f"`ignoredResourceGroups[{index}]` is `{group}`"
        if "/" in group:
            yield f"{where}: a group has no `/`"
        elif not group or not _is_extended(f"{group}/x"):
            yield f"{where}: it must be the domain of extended resources, such as `example.com`"


def _is_extended(name: str) -> bool:
    domain, slash, rest = name.partition("/")
    native = f"{domain}/".endswith(_NATIVE_DOMAIN) and (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))
    return bool(slash and domain and rest) and not native and not name.startswith("requests.")
