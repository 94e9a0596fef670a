"""Listings: the changes of a source from one listing to the next, for sources without a watch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import msgspec

from koordpolicy.engine.source import PolicyError, Problem

from ..cluster import Cluster

_LOG: Final = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
"""Kind, and `namespace/name` or `name`."""
Change: TypeAlias = tuple[Key, Mapping[str, Any] | None]
"""An added or changed object, or None for a deleted one."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """An undecoded object of a list, in the server's JSON, with its identifying metadata."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str
    version: str
    raw: msgspec.Raw

    def decode(self) -> Mapping[str, Any]:
        """Return the object with its `apiVersion` and `kind`, and without `metadata.managedFields`.

        Raises `ValueError` or `RecursionError` if it is not a Kubernetes object: only the structure of undecoded JSON
        was checked.
        """
        item: dict[str, Any] = msgspec.json.decode(self.raw)
        if isinstance(item.get("metadata"), dict):
            item["metadata"].pop("managedFields", None)
        return {"apiVersion": self.api_version, "kind": self.kind} | item

    @property
    def key(self) -> Key | None:
        """Its kind and name; None where it has no name."""
        return _key(self.kind, self.namespace, self.name) if self.name else None

    def is_same_as(self, other: Mapping[str, Any]) -> bool:
        """Return whether another object is this one in this very version."""
        metadata = other["metadata"]
        return bool(self.version and self.version == metadata.get("resourceVersion")
                    and self.uid == (metadata.get("uid") or ""))


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects of a source, and the kinds that could not be listed, with the reason."""

    objects: Sequence[Undecoded | Mapping[str, Any]]
    failed: Mapping[str, Problem] = field(default_factory=dict)

    def decoded(self) -> tuple[Mapping[str, Any], ...]:
        """Return all objects; one that cannot be decoded is left out, and logged."""
        found: list[Mapping[str, Any]] = []
        for each in self.objects:
            if not isinstance(each, Undecoded):
                found.append(each)
                continue
            try:
                found.append(each.decode())
            except (ValueError, RecursionError) as error:
                _LOG.warning("%s", _unreadable(each, error))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class KindView:
    """The state of the listing of a kind."""

    listed: float = 0.0
    """Time of the last listing, in seconds since the epoch; 0 for never."""
    fault: str = ""
    """The error of the last listing; empty if it succeeded."""

    @property
    def stale(self) -> bool:
        """True if it was listed once, and the last listing failed."""
        return bool(self.listed and self.fault)


class Listing:
    """The last listing, and the objects of it that could not be applied.

    Belongs to one thread at a time, which need not be the one that owns the cluster.
    """

    def __init__(
        self, objects: Iterable[Undecoded | Mapping[str, Any]] = (), *, kinds: Iterable[str] = (),
        failed: Mapping[str, Problem] | None = None, now: float = 0.0,
    ) -> None:
        """`now` is the time of the listing, `kinds` the requested kinds and `failed` those that could not be listed."""
        self.views: Mapping[str, KindView] = {}
        """The state of each kind's listing; rebound as a whole, so that other threads may read it."""
        self._kinds = tuple(kinds)
        self.faults: dict[Key, str] = {}
        """The objects that `changes` returns again, with the error (empty: not applied for another reason)."""
        self._known: dict[Key, Mapping[str, Any]] = {}
        self._unreadable: dict[Key, str] = {}
        """The objects that could not be decoded in the last listing, with the error."""
        self.changes(objects, failed=failed, now=now)

    def changes(
        self, objects: Iterable[Undecoded | Mapping[str, Any]], *, failed: Mapping[str, Problem] | None = None,
        now: float = 0.0,
    ) -> list[Change]:
        """Return the changes since the last listing, nodes first; objects without a name are omitted.

        Objects of one uid and resourceVersion are the same; without a version they are compared. Objects of kinds that
        `failed` stay as they are: a failed listing does not mean that there are none. So does an object that cannot be
        decoded; the error is logged when it is new.
        """
        before, after = self._known, dict[Key, Mapping[str, Any]]()
        failed = failed or {}
        found: list[Change] = []
        unreadable: dict[Key, str] = {}
        for item in objects:
            if isinstance(item, Undecoded):
                known = before.get(item.key) if item.key is not None else None
                try:
                    each = known if known is not None and item.is_same_as(known) else item.decode()
                except (ValueError, RecursionError) as error:
                    if item.key is not None:
                        unreadable[item.key] = _unreadable(item, error)
                    if known is None:
                        continue
                    each = known
            else:
                each = item
            key = key_of(each)
            if key is not None:
                after[key] = each
                if key not in before or key in self.faults or not _same(before[key], each):
                    found.append((key, each))
        after |= {key: each for key, each in before.items() if key[0] in failed}
        for key, fault in unreadable.items():
            if self._unreadable.get(key) != fault:
                _LOG.warning("%s", fault)
        # Only now: a listing that fails half-way changes nothing, and the next one finds the deleted objects.
        self._known, self._unreadable = after, unreadable
        self._note(failed, now)
        found += ((key, None) for key in dict.fromkeys([*before, *self.faults]) if key not in self._known)
        # A pod that comes before its node would wait for it; a sort keeps the order otherwise.
        return sorted(found, key=lambda change: change[0][0] != "Node")

    def failed(self, why: str) -> None:
        """Record that nothing could be listed."""
        self.views = {kind: replace(view, fault=why) for kind, view in self.views.items()}

    def _note(self, failed: Mapping[str, Problem], now: float) -> None:
        seen = self._kinds or {kind for kind, _ in self._known}
        kinds = dict.fromkeys([*seen, *self.views, *failed])
        self.views = {
            kind: replace(self.views.get(kind, KindView()), fault=failed[kind].message) if kind in failed
            else KindView(now) for kind in kinds}

    def retry(self, changes: Iterable[Change]) -> None:
        """Return these objects with the next changes again, as they may not have reached the cluster."""
        for key, _ in changes:
            self.faults.setdefault(key, "")


def apply(
    cluster: Cluster, changes: Iterable[Change], faults: dict[Key, str] | None = None,
) -> list[Problem]:
    """Apply the changes to the cluster; return the problems of objects that could not be applied.

    A failing object never affects another one. With the `faults` of earlier changes (`Listing.faults`), which are
    brought up to date, an error is returned only when it is new, not with every change of the object.
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
                cluster.upsert(each)
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


def _unreadable(item: Undecoded, error: Exception) -> str:
    name = item.key[1] if item.key is not None else ""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return f"{item.kind} `{name}`: it cannot be read, and is left as it was: {why}"


def key_of(each: Mapping[str, Any]) -> Key | None:
    """Return the kind and name of an object; None where it has no name."""
    metadata = each.get("metadata") if isinstance(each, Mapping) else None
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        return None
    return _key(str(each.get("kind")), metadata.get("namespace"), str(metadata["name"]))


def _key(kind: str, namespace: object, name: str) -> Key:
    # As in the cluster: a pod has a namespace even if its object names none.
    namespace = namespace or ("default" if kind == "Pod" else "")
    return kind, f"{namespace}/{name}" if namespace else name


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one is other:
        return True
    first, second = one["metadata"], other["metadata"]
    version = first.get("resourceVersion")
    if version and second.get("resourceVersion"):
        return bool(version == second["resourceVersion"] and first.get("uid") == second.get("uid"))
    return one == other
