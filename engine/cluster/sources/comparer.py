"""The comparison of the cluster with what informers delivered, and dumps of the cluster for operators.

kube-scheduler's comparer lists differences on SIGUSR2, also those of changes that are on their way. Here an informer's
state is compared at the very place of the inbox at which it was taken, so that each difference is one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..cluster import Cluster
from .changes import Key

_AT_ONCE: Final = 256
_MOST_NAMES: Final = 10


class Found(enum.Enum):
    """The kinds of differences."""

    MISSING = "missing"
    """The informer delivered it, and the cluster does not have it."""
    OUTDATED = "outdated"
    """The cluster has an older version, or another object of the name."""
    REDUNDANT = "redundant"
    """The cluster has it, and the API server does not."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An object that is not in the cluster as the informer delivered it."""

    key: Key
    uid: str
    found: Found


def differences(
    cluster: Cluster, kind: str, known: Mapping[tuple[str, str], tuple[str, str]],
    is_followed: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> Iterator[Difference | None]:
    """Yield the differences of the objects of a kind, and None from time to time, so that the caller may pause.

    `known` has UID and version by namespace and name. Objects that are not in it are differences if `is_followed`
    returns True for them, and they have a version: the cluster has some of its own without, the pods of Reservations.
    """
    cached_objects = tuple(cluster.objects(kind).items())
    left = 0
    for (namespace, name), (uid, version) in known.items():
        key = kind, f"{namespace}/{name}" if namespace else name
        item = cluster.object(*key)
        if item is None:
            yield Difference(key, uid, Found.MISSING)
        elif uid_of(item) != uid or version_of(item) < number_of(version):
            yield Difference(key, uid, Found.OUTDATED)
        left += 1
        if left % _AT_ONCE == 0:
            yield None
    for name, item in cached_objects:
        namespace, _, own = name.rpartition("/")
        if (namespace, own) not in known and item["metadata"].get("resourceVersion") and is_followed(item):
            yield Difference((kind, name), uid_of(item), Found.REDUNDANT)
        left += 1
        if left % _AT_ONCE == 0:
            yield None


def describe(found: Iterable[Difference]) -> str:
    """Return differences in one line, as `missing Pods a/b, a/c and 3 more`."""
    names: dict[tuple[Found, str], list[str]] = {}
    for each in found:
        names.setdefault((each.found, each.key[0]), []).append(each.key[1])
    parts = []
    for (sort, kind), keys in names.items():
        more = f" and {len(keys) - _MOST_NAMES} more" if len(keys) > _MOST_NAMES else ""
        parts.append(f"{sort.value} {kind}s {', '.join(keys[:_MOST_NAMES])}{more}")
    return "; ".join(parts)


def dump(cluster: Cluster, queued: Iterable[str] | None) -> Iterator[str]:
    """Yield lines about each node with its pods, and the pods in the queue, as kube-scheduler logs them on SIGUSR2.

    `queued` are the keys of the pods in the queue; None without a queue.
    """
    yield "Dump of cached NodeInfo"
    for row in cluster.rows:
        requested = ", ".join(f"{name}={amount}" for name, amount in sorted(row.requested.items()) if amount)
        allocatable = ", ".join(f"{name}={amount}" for name, amount in sorted(row.allocatable.items()))
        yield (f"Node name: {row.name}, requested: {requested or 'nothing'}, allocatable: {allocatable}, pods: "
               f"{len(row.pods)}")
        for pod in row.pods.values():
            shown = cluster.object("Pod", pod.key)
            assumed = shown is None or not (shown.get("spec") or {}).get("nodeName")
            yield f"  {pod.key} (uid {pod.uid}){', assumed' if assumed else ''}"
    if queued is None:
        return
    yield "Dump of scheduling queue"
    for key in queued:
        yield f"  {key}"


def uid_of(item: Mapping[str, Any]) -> str:
    """Return the UID of an object; empty without one."""
    return str(item["metadata"].get("uid") or "")


def version_of(item: Mapping[str, Any]) -> int:
    """Return the resourceVersion of an object as a number, in which versions are ordered; 0 without one."""
    return number_of(item["metadata"].get("resourceVersion"))


def number_of(version: object) -> int:
    """Return a resourceVersion as a number; 0 for one that is none."""
    return int(version) if isinstance(version, str) and version.isdecimal() else 0
