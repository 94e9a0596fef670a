"""Following a source that can only be listed: what changed from one listing to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ..source import PolicyError, Problem
from .snapshot import Cluster

Key: TypeAlias = tuple[str, str]
"""Kind, and `namespace/name` or `name`."""
Change: TypeAlias = tuple[Key, Mapping[str, Any] | None]
"""An object that is new or another one now, or None for one that is gone."""


class Listing:
    """Knows what was listed last. Belongs to one thread, which need not be the one that owns the cluster."""

    def __init__(self, objects: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[Key, Mapping[str, Any]] = {}
        self.changes(objects)

    def changes(self, objects: Iterable[Mapping[str, Any]]) -> list[Change]:
        """Return what is different from the last listing, nodes first; objects that say no name are left out.

        Objects of one uid and resourceVersion are the same; without a version they are compared.
        """
        before, self._known = self._known, {}
        found: list[Change] = []
        for each in objects:
            key = _key_of(each)
            if key is not None:
                self._known[key] = each
                if key not in before or not _same(before[key], each):
                    found.append((key, each))
        found += ((key, None) for key in before if key not in self._known)
        # A pod that comes before its node would wait for it; a sort keeps the order otherwise.
        return sorted(found, key=lambda change: change[0][0] != "Node")


def apply(cluster: Cluster, changes: Iterable[Change]) -> list[Problem]:
    """Bring the cluster up to the changes; return what is wrong with objects that had to be left out."""
    problems: list[Problem] = []
    for (kind, key), each in changes:
        if each is None:
            cluster.delete(kind, key)
            continue
        try:
            cluster.upsert(each)
        except PolicyError as error:
            problems.extend(error.problems)
    return problems


def _key_of(each: Mapping[str, Any]) -> Key | None:
    metadata = each.get("metadata")
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        return None
    kind, namespace, name = each.get("kind"), metadata.get("namespace"), metadata["name"]
    # As the cluster keeps its objects: a pod is in some namespace, whatever its object says.
    namespace = namespace or ("default" if kind == "Pod" else "")
    return str(kind), f"{namespace}/{name}" if namespace else str(name)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = one["metadata"], other["metadata"]
    version = first.get("resourceVersion")
    if version and second.get("resourceVersion"):
        return bool(version == second["resourceVersion"] and first.get("uid") == second.get("uid"))
    return one == other
