"""Changes of a cluster's objects: their application, and the state of the watch of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from koordpolicy.engine.source import PolicyError, Problem

from ..cluster import Cluster

Key: TypeAlias = tuple[str, str]
"""Kind, and `namespace/name` or `name`."""
Change: TypeAlias = tuple[Key, Mapping[str, Any] | None]
"""An added or changed object, or None for a deleted one."""


@dataclass(frozen=True, slots=True)
class KindView:
    """The state of the watch of a kind."""

    listed: float = 0.0
    """Time at which the API server was last heard of it, in seconds since the epoch; 0 for never."""
    fault: str = ""
    """The error of the last attempt; empty if it is watched."""

    @property
    def stale(self) -> bool:
        """True if it was listed once, and is not watched now."""
        return bool(self.listed and self.fault)


def apply(
    cluster: Cluster, changes: Iterable[Change], faults: dict[Key, str] | None = None, *, are_sound: bool = False,
) -> list[Problem]:
    """Apply the changes to the cluster; return the problems of objects that could not be applied.

    A failing object never affects another one. With the `faults` of earlier changes, the errors by object,
    which are brought up to date, an error is returned only when it is new, not with every change of the object.
    `are_sound` is as in `Cluster.upsert`.
    """
    faults = {} if faults is None else faults
    problems: list[Problem] = []
    for key, each in changes:
        before = faults.pop(key, None)
        found: Sequence[Problem] = ()
        try:
            if each is None:
                cluster.delete(*key)
            else:
                cluster.upsert(each, is_sound=are_sound)
        except PolicyError as error:
            found = error.problems
        except Exception as error:  # an object that cannot be removed must not stop the other changes
            found = [Problem(f"{key[0]} `{key[1]}`: it cannot be taken out ({type(error).__name__}: {error})",
                             code="malformed-object")]
        if found:
            faults[key] = "\n".join(problem.message for problem in found)
            if faults[key] != before:
                problems.extend(found)
    return problems


def key_of(each: Mapping[str, Any]) -> Key | None:
    """Return the kind and name of an object; None where it has no name."""
    metadata = each.get("metadata") if isinstance(each, Mapping) else None
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        return None
    return key_at(str(each.get("kind")), metadata.get("namespace"), metadata["name"])


def key_at(kind: str, namespace: object, name: object) -> Key:
    """Return the key of an object of this name."""
    # As in the cluster: a pod has a namespace even if its object names none.
    namespace = namespace or ("default" if kind == "Pod" else "")
    return kind, f"{namespace}/{name}" if namespace else str(name)


def views_status(views: Mapping[str, KindView], lag_s: float, now: float) -> dict[str, Any]:
    """Return the state of each kind of a watched cluster; `now` is in seconds since the epoch."""
    return {
        "lagSeconds": round(lag_s, 3),
        "stale": [kind for kind, view in views.items() if view.stale],
        "kinds": {kind: {"listed": view.listed or None, "age": round(now - view.listed, 3) if view.listed else None,
                         "fault": view.fault or None} for kind, view in views.items()},
    }
