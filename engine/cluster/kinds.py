"""Kinds of objects that a source contains, kinds that plugins read, and reports of missing kinds.

A kind that a source contains without any object is empty; one that the source does not contain is unknown: a dump
without Namespaces has no information about their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import ClusterState

Json = Mapping[str, Any]


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
    fields: frozenset[tuple[str, ...]] | None = None
    """The fields that it reads, by their names from the object downwards without positions of lists; None for all."""


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


def lacking(reads: Mapping[str, Iterable[Read]], cluster: ClusterState) -> tuple[Lack, ...]:
    """Return the plugins, by name, that read kinds which the cluster lacks."""
    pods = tuple(cluster.objects("Pod").values())  # a copy: may run in another thread than the owner's
    found: list[Lack] = []
    for plugin, of_plugin in reads.items():
        kinds = {each.kind for each in of_plugin if cluster.lacks(each.kind) and (
            each.of is None or any(map(each.of, pods)))}
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


def _joined(kinds: tuple[str, ...]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
