"""Fields that a recording contains: those that the policies read, those that a replay needs, and those of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.types import ObjectType, Type
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.cluster.kinds import IDENTITY, Read, fields_read
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.kubernetes import types
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec, all_reads_of, full_reads_of
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

Path: TypeAlias = tuple[str, ...]
"""The names from the object down to a field, without positions in lists."""
_Tree: TypeAlias = "dict[str, _Tree] | None"
"""The recorded fields below one; None for all of it."""

ALL: Final = "all"
# An update that changes the version of an object only is recorded as `Touched`.
_IDENTITY: Final = IDENTITY - {("metadata", "resourceVersion")} | {("metadata", "creationTimestamp")}
"""Recorded of every object."""
_NEEDED: Final[Mapping[str, frozenset[Path]]] = {
    "Pod": frozenset({("spec", "nodeName"), ("spec", "schedulerName"), ("status", "phase"), ("status", "conditions"),
                      ("status", "nominatedNodeName"), ("metadata", "ownerReferences"), ("metadata", "annotations")}),
}
"""Recorded of a kind because a replay needs them."""


class NotRecorded(Exception):
    """A plugin reads a kind or field that a recording does not contain; the message says which, and what helps."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields by kind, None for whole objects of a kind; `kinds` is None for whole objects of all kinds."""

    kinds: Mapping[str, frozenset[Path] | None] | None = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Fields:
        """Return the fields of `--record-fields`: `all`, kinds (`Namespace`) and fields (`Pod.spec.volumes`), each text
        with commas between them.

        Raises:
            ValueError: a part is malformed; the message is for its author.
        """
        found: dict[str, frozenset[Path] | None] = {}
        for part in (part.strip() for text in texts for part in text.split(",")):
            if part == ALL:
                return cls(None)
            kind, *path = part.split(".")
            if not kind[:1].isupper() or not kind.isalnum() or not all(path):
                raise ValueError(f"`{part}` is neither `{ALL}` nor a kind such as `Namespace` nor a field such as "
                                 "`Pod.spec.volumes`")
            before = found.get(kind, frozenset())
            found[kind] = None if not path or before is None else before | {tuple(path)}
        return cls(found)

    @classmethod
    def of_reads(cls, reads: Iterable[Read]) -> Fields:
        """Return the fields that plugins read, and the scheduler itself."""
        return cls(fields_read(reads))

    @classmethod
    def of_plain(cls, plain: Mapping[str, Iterable[Iterable[str]] | None] | None) -> Fields:
        """Return the fields of `plain`."""
        return cls(None if plain is None else {
            kind: None if paths is None else frozenset(map(tuple, paths)) for kind, paths in plain.items()})

    @property
    def plain(self) -> dict[str, list[list[str]] | None] | None:
        """The fields as plain data."""
        return None if self.kinds is None else {
            kind: None if paths is None else sorted(map(list, paths)) for kind, paths in sorted(self.kinds.items())}

    def __or__(self, other: Fields) -> Fields:
        if self.kinds is None or other.kinds is None:
            return Fields(None)
        merged: dict[str, frozenset[Path] | None] = dict(self.kinds)
        for kind, paths in other.kinds.items():
            before = merged.get(kind, frozenset())
            merged[kind] = None if paths is None or before is None else before | paths
        return Fields(merged)

    def projection(self) -> Projection:
        """Return the projection of objects to these fields, and to those that are always recorded."""
        return Projection(self)

    def missing(self, read: Read) -> tuple[str, ...]:
        """Return the fields of the read that these lack: `Namespace` or `Pod.spec.volumes`, sorted."""
        if self.kinds is None:
            return ()
        if read.kind not in self.kinds:
            return (read.kind,)
        known = self.kinds[read.kind]
        if known is None:
            return ()
        if read.fields is None:
            return (read.kind,)
        known |= _IDENTITY | _NEEDED.get(read.kind, frozenset())
        return tuple(sorted(".".join((read.kind, *path)) for path in read.fields
                            if not any(path[:length] in known for length in range(1, len(path) + 1))))


class Projection:
    """Copies of objects with the recorded fields only."""

    def __init__(self, fields: Fields) -> None:
        self._trees: dict[str, _Tree] | None = None if fields.kinds is None else {
            kind: None if paths is None else _tree(paths | _IDENTITY | _NEEDED.get(kind, frozenset()))
            for kind, paths in fields.kinds.items()
        }

    def covers(self, kind: str) -> bool:
        """Return whether objects of the kind are recorded."""
        return self._trees is None or kind in self._trees

    def of(self, kind: str, item: Any) -> Any:
        """Return the recorded part of an object."""
        tree = None if self._trees is None else self._trees[kind]
        return item if tree is None else _part(item, tree)


def check_declared(fields: Fields) -> None:
    """Check that the kinds and fields exist. Keys of maps, and fields of kinds without declarations, are not checked.

    Raises:
        ValueError: there is no such kind or field; the message is for its author.
    """
    declared = types.load()
    for kind, paths in (fields.kinds or {}).items():
        if kind not in BY_KIND:
            raise ValueError(f"there is no kind `{kind}`: {_advice(kind, BY_KIND, 'kinds')}")
        name = next((name for group in ("kubernetes", "koordinator") if (name := f"{group}.{kind}") in declared), "")
        for path in sorted(paths or ()):
            _check_path(kind, path, Type(name), declared)


def _check_path(kind: str, path: Path, below: Type, declared: Mapping[str, ObjectType]) -> None:
    for length, step in enumerate(path, start=1):
        while below.name == "list":
            below = below.parameters[0]
        owner = declared.get(below.name)
        if owner is None or not owner.fields or (step not in owner.fields and owner.index is not None):
            return
        if step not in owner.fields:
            raise ValueError(f"there is no field `{'.'.join((kind, *path[:length]))}`: "
                             f"{_advice(step, owner.fields, 'fields there')}")
        below = owner.fields[step].type


def _advice(word: str, known: Iterable[str], plural: str) -> str:
    return did_you_mean(word, known) or f"the {plural} are {', '.join(f'`{each}`' for each in sorted(known))}"


def fields_of(profiles: Iterable[ProfileSpec], registry: Registry) -> Fields:
    """Return the fields that the active plugins of the profiles read."""
    return Fields.of_reads(all_reads_of(profiles, registry))


def check_recorded(recorded: Fields, profiles: Iterable[ProfileSpec], registry: Registry) -> None:
    """Check that a recording contains what the active plugins of the profiles read.

    Raises:
        NotRecorded: it does not.
    """
    lacks: dict[str, list[str]] = {}
    for spec in profiles:
        for plugin, reads in full_reads_of(spec, registry).items():
            for each in (missing for read in reads for missing in recorded.missing(read)):
                lacks.setdefault(each, []).append(plugin)
    if lacks:
        parts = [f"{name} (read by {', '.join(f'`{each}`' for each in sorted(set(by)))})"
                 for name, by in sorted(lacks.items())]
        raise NotRecorded(f"the recording does not contain {'; '.join(parts)}: record with "
                          f"`--record-fields {','.join(sorted(lacks))}`, or with `--record-fields {ALL}`")


def need_recorded(recorded: Iterable[Fields], profiles: Iterable[ProfileSpec], registry: Registry) -> None:
    """Check that all segments, each with its fields, contain what the active plugins of the profiles read.

    Raises:
        PolicyError: they do not; it says which fields and how to record them.
    """
    profiles = tuple(profiles)
    for fields in recorded:
        try:
            check_recorded(fields, profiles, registry)
        except NotRecorded as error:
            message, _, hint = str(error).rpartition(": ")
            raise PolicyError([Problem(message, help=hint, code="not-recorded")]) from None


def _tree(paths: Iterable[Path]) -> _Tree:
    root: dict[str, _Tree] = {}
    for path in sorted(paths, key=len):
        at = root
        for name in path[:-1]:
            below = at.setdefault(name, {})
            if below is None:
                break  # a shorter path contains this one
            at = below
        else:
            at[path[-1]] = None
    return root


def _part(value: Any, tree: dict[str, _Tree]) -> Any:
    if isinstance(value, Mapping):
        return {name: each if (below := tree[name]) is None else _part(each, below)
                for name, each in value.items() if name in tree}
    if isinstance(value, list | tuple):
        return [_part(each, tree) for each in value]
    return value
