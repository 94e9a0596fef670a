"""Kinds of objects that a source contains, kinds that plugins read, and reports of missing kinds.

A kind that a source contains without any object is empty; one that the source does not contain is unknown: a dump
without Namespaces has no information about their labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from koordpolicy.engine.client.resources import ApiResource

Json = Mapping[str, Any]
FieldPath: TypeAlias = tuple[str, ...]
FieldSets: TypeAlias = Mapping[str, frozenset[FieldPath] | None]
"""The fields that are read of each kind; None for all."""


class KindsOfObjects(Protocol):
    """Has objects, and knows which kinds their source contains: a cluster, or what a node agent knows."""

    def objects(self, kind: str) -> Mapping[str, Json]:
        """Return all objects of a kind by key."""
        ...

    def lacks(self, kind: str) -> bool:
        """Return whether a kind is unknown, because the source does not contain it; an empty kind is known."""
        ...


class Objects(tuple[Json, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """API objects of a source, in its order, and the kinds that it contains, with objects or without."""

    kinds: frozenset[str]

    @classmethod
    def of(cls, objects: Iterable[Json], kinds: Iterable[str] = ()) -> Objects:
        """Return the objects; the kinds are theirs and those of `kinds`."""
        made = cls(objects)
        made.kinds = frozenset(kinds).union(str(each.get("kind")) for each in made)
        return made


@dataclass(frozen=True, slots=True)
class Read:
    """A kind that a plugin reads; with `of`, only in clusters with a pod that satisfies it."""

    kind: str
    of: Callable[[Json], bool] | None = None
    fields: frozenset[FieldPath] | None = None
    """The fields that it reads with all that is below them, by their names from the object downwards without positions
    of lists; None for all. What identifies an object, and what `CLUSTER_READS` has, need not be named."""
    refines: bool = False
    """True if its decisions are only better with these objects, so that it is no fault if a source lacks them."""
    group: str = ""
    """The API group of a kind that koord-policy does not know, with its `version` and its `plural` in URLs."""
    version: str = ""
    plural: str = ""

    def __post_init__(self) -> None:
        given = bool(self.version), bool(self.plural)
        if any(given) != all(given) or (self.group and not self.version):
            raise ValueError(f"a `Read` of {self.kind} that says where the API serves it has `group`, `version` and "
                             "`plural`")

    @property
    def resource(self) -> ApiResource | None:
        """The API resource that it declares; None if its kind is one of those that koord-policy knows."""
        return ApiResource(self.kind, self.group, self.version, self.plural) if self.plural else None


def field_paths(*paths: str) -> frozenset[FieldPath]:
    """Return the fields at these paths with dots; `spec.{a,b.c}` is short for `spec.a` and `spec.b.c`."""
    return frozenset(tuple(each.split(".")) for path in paths for each in _spelled_out(path))


def _spelled_out(path: str) -> list[str]:
    start, brace, rest = path.partition("{")
    if not brace:
        return [path]
    inside, _, end = rest.partition("}")
    return [found for each in inside.split(",") for found in _spelled_out(f"{start}{each.strip()}{end}")]


_WHOLE: Final = (Read("Node"), Read("Pod"))


def with_whole(reads: Iterable[Read]) -> tuple[Read, ...]:
    """Return the reads of a plugin, with whole nodes and pods unless it names these kinds."""
    given = tuple(reads)
    named = {read.kind for read in given}
    return (*given, *(whole for whole in _WHOLE if whole.kind not in named))


NOT_LISTED: Final = "objects-not-listed"
"""The code of the problem of policies that read objects which are not there yet; they are tried again."""
IDENTITY: Final = field_paths("apiVersion", "kind", "metadata.{name,namespace,uid,resourceVersion}")
"""The fields that identify an object and its version: every projection has them."""
_RESOURCES: Final = "{name,resources,allocatedResources}"
CLUSTER_READS: Final = (
    Read("Node", fields=field_paths(
        "metadata.{annotations,creationTimestamp,deletionTimestamp,labels}", "spec.{taints,unschedulable}",
        "status.allocatable",
    )),
    Read("Pod", fields=field_paths(
        "metadata.{annotations,creationTimestamp,deletionTimestamp,generation,labels,ownerReferences}",
        "spec.{affinity,hostNetwork,nodeName,nodeSelector,overhead,preemptionPolicy,priority,priorityClassName}",
        "spec.{resources,schedulerName,schedulingGates,tolerations,topologySpreadConstraints}",
        "spec.containers.{name,resources,restartPolicy}", "spec.initContainers.{name,resources,restartPolicy}",
        "status.{allocatedResources,nominatedNodeName,phase,qosClass,resources,startTime}",
        # Without their times, which no two pods share, the conditions of most running pods are equal.
        "status.conditions.{message,observedGeneration,reason,status,type}",
        f"status.containerStatuses.{_RESOURCES}", f"status.initContainerStatuses.{_RESOURCES}",
    )),
    Read("NodeMetric", fields=field_paths(
        "metadata.labels", "spec.metricCollectPolicy", "status.{updateTime,nodeMetric,podsMetric}",
    ), refines=True),
)
"""The fields that the cluster and the scheduler itself read, whichever plugins are active.

A NodeMetric's count only if some plugin reads that kind.
"""
_WITH_MEASUREMENTS: Final = (Read("Pod", fields=field_paths("status.conditions.lastTransitionTime")),)
"""The fields that are read besides if some plugin reads NodeMetrics: which of them know of a pod."""


def fields_read(reads: Iterable[Read]) -> dict[str, frozenset[FieldPath] | None]:
    """Return the fields that these read of each kind together, with those of `CLUSTER_READS`.

    Nodes and pods are read in any case, and other kinds only if they are among `reads`.
    """
    found: dict[str, frozenset[FieldPath] | None] = {
        own.kind: own.fields for own in CLUSTER_READS if not own.refines}
    for read in reads:
        known = found.get(read.kind, frozenset[FieldPath]())
        found[read.kind] = None if known is None or read.fields is None else known | read.fields
    for own in (*CLUSTER_READS, *(_WITH_MEASUREMENTS if "NodeMetric" in found else ())):
        known = found.get(own.kind)
        if known is not None and own.fields is not None:
            found[own.kind] = known | own.fields
    return found


WORKLOAD_READS: Final = tuple(
    Read(kind, refines=True, fields=field_paths("metadata.ownerReferences", "spec.replicas"))
    for kind in ("ReplicaSet", "Deployment", "StatefulSet", "ReplicationController", "CloneSet"))
"""The objects that counts of pods by workload read: which is above another, and how many pods it should have."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A plugin that reads kinds which the source of the cluster does not contain, sorted."""

    plugin: str
    kinds: tuple[str, ...]

    @property
    def message(self) -> str:
        """The message fragment for the plugin's decisions."""
        return f"it reads {_joined(self.kinds)}, which the source of the cluster does not contain"

    def to_json(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"plugin": self.plugin, "kinds": list(self.kinds)}


def lacking(reads: Mapping[str, Iterable[Read]], cluster: KindsOfObjects) -> tuple[Lack, ...]:
    """Return the plugins, by name, that read kinds which the cluster lacks."""
    @functools.cache
    def pods() -> tuple[Mapping[str, Any], ...]:
        return tuple(cluster.objects("Pod").values())  # a copy: may run in another thread than the owner's

    found: list[Lack] = []
    for plugin, of_plugin in reads.items():
        kinds = {each.kind for each in of_plugin
                 if not each.refines and each.kind not in _ALWAYS and cluster.lacks(each.kind)
                 and (each.of is None or any(map(each.of, pods())))}
        if kinds:
            found.append(Lack(plugin, tuple(sorted(kinds))))
    return tuple(found)


def describe(lacks: Iterable[Lack]) -> str:
    """Return the lacking kinds and their plugins in one line; empty if there are none."""
    by_kind: dict[str, list[str]] = {}
    for lack in lacks:
        for kind in lack.kinds:
            by_kind.setdefault(kind, []).append(f"`{lack.plugin}`")
    parts = [f"{kind} (read by {', '.join(sorted(set(names)))})" for kind, names in sorted(by_kind.items())]
    return f"the source of the cluster does not contain {'; '.join(parts)}" if parts else ""


_ALWAYS: Final = frozenset({"Node", "Pod"})
"""A source without any is one of an empty cluster."""


def _joined(kinds: tuple[str, ...]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
