"""Following a source that can only be listed: what changed from one listing to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..source import PolicyError, Problem
from .snapshot import Cluster

Key: TypeAlias = tuple[str, str]
"""Kind, and `namespace/name` or `name`."""
Change: TypeAlias = tuple[Key, Mapping[str, Any] | None]
"""An object that is new or another one now, or None for one that is gone."""


class Listing:
    """Knows what was listed last, and which of it could not be applied.

    Belongs to one thread at a time, which need not be the one that owns the cluster.
    """

    def __init__(self, objects: Iterable[Mapping[str, Any]] = ()) -> None:
        self.faults: dict[Key, str] = {}
        """What `changes` returns again, and why it was left out; empty where it was not applied for another reason."""
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
                if key not in before or key in self.faults or not _same(before[key], each):
                    found.append((key, each))
        found += ((key, None) for key in dict.fromkeys([*before, *self.faults]) if key not in self._known)
        # A pod that comes before its node would wait for it; a sort keeps the order otherwise.
        return sorted(found, key=lambda change: change[0][0] != "Node")

    def retry(self, changes: Iterable[Change]) -> None:
        """Return these objects with the next changes again: it is not known that they reached the cluster."""
        for key, _ in changes:
            self.faults.setdefault(key, "")


def apply(cluster: Cluster, changes: Iterable[Change], listing: Listing | None = None) -> list[Problem]:
    """Bring the cluster up to the changes; return what is wrong with objects that had to be left out.

    No object costs another one, whatever fails. With the `listing` that the changes are of, objects that fail are
    retried with the next one, and a fault is returned when it is new or another one: once, not with every listing.
    """
    faults = {} if listing is None else listing.faults
    problems: list[Problem] = []
    for key, each in changes:
        before = faults.pop(key, None)
        found: Sequence[Problem] = ()
        try:
            if each is None:
                cluster.delete(*key)
            else:
                cluster.upsert(each)
        except PolicyError as error:
            found = error.problems
        except Exception as error:  # an object that cannot be taken out is no reason to miss what else changed
            found = [Problem(f"{key[0]} `{key[1]}`: it cannot be taken out ({type(error).__name__}: {error})",
                             code="malformed-object")]
        if found:
            faults[key] = "\n".join(problem.message for problem in found)
            if faults[key] != before:
                problems.extend(found)
    return problems


def _key_of(each: Mapping[str, Any]) -> Key | None:
    metadata = each.get("metadata") if isinstance(each, Mapping) else None
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
