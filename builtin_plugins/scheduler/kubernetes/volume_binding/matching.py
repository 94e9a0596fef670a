"""Volumes and provisioning for claims that wait for their first consumer, by node.

A claim gets the smallest available volume that the node can reach, or is provisioned if its class, the class's
topologies and the tracked storage capacity allow that (kube-scheduler's `FindPodVolumes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.node_selection import label_path, paths_of, pod_that_requires
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import Json, matches_labels, matches_node

from ..volumes import CSI_DRIVER, CSI_STORAGE_CAPACITY, STORAGE_CLASS, VOLUME, class_of, key_of, refers_to

_NO_PROVISIONER: Final = frozenset(("", "kubernetes.io/no-provisioner"))
_AVAILABLE: Final = "Available"
_FILESYSTEM: Final = "Filesystem"
_NO_SIZE: Final = -1
"""The size of a volume or claim without one."""

_Booleans = NDArray[np.bool_]


class Reach:
    """The nodes that match terms over labels, as read-only bool[nodes]."""

    def __init__(self) -> None:
        self._matches = Derived(frozenset(), np.bool_, distinct=True)
        self._labels = Derived(frozenset(), np.object_, distinct=True)
        self._by_value: dict[str, tuple[NDArray[Any], dict[str, Rows]]] = {}

    def of_volume(self, volume: Json, snapshot: Snapshot) -> _Booleans | None:
        """Return the nodes that can reach a volume, None for all."""
        required = (_spec(volume).get("nodeAffinity") or {}).get("required")
        if required is None:
            return None
        terms = required.get("nodeSelectorTerms") or ()
        known = _only_label(terms)
        if known is not None:
            return self._with_label(*known, snapshot)
        probe = pod_that_requires(terms)
        return self._matches.of(
            snapshot, ("terms", json.dumps(terms, sort_keys=True)),
            lambda view, row: matches_node(probe, view.node(row)),
            paths=frozenset(path for term in terms for path in paths_of(term)),
        )

    def of_topologies(self, topologies: Sequence[Json], snapshot: Snapshot) -> _Booleans | None:
        """Return the nodes in one of a class's allowed topologies, None for all."""
        if not topologies:
            return None
        found = np.zeros(snapshot.size, np.bool_)
        for term in topologies:
            expressions = term.get("matchLabelExpressions") or ()
            inside = np.full(snapshot.size, bool(expressions))  # a term without expressions matches nothing
            for each in expressions:
                inside &= self._with_label(str(each.get("key", "")), tuple(each.get("values") or ()), snapshot)
            found |= inside
        return found

    def of_selector(self, selector: Json, snapshot: Snapshot) -> _Booleans:
        """Return the nodes whose labels match a selector; a malformed one matches none."""
        keys = {*(selector.get("matchLabels") or {}), *(
            str(each.get("key", "")) for each in selector.get("matchExpressions") or ())}

        def takes(view: Snapshot, row: int) -> bool:
            try:
                return matches_labels(selector, view.node(row)["metadata"].get("labels") or {})
            except ValueError:
                return False

        return self._matches.of(snapshot, ("selector", json.dumps(selector, sort_keys=True)), takes,
                                paths=frozenset(map(label_path, keys)))

    def _with_label(self, key: str, values: Sequence[str], snapshot: Snapshot) -> _Booleans:
        """Return the nodes that have one of the values; cached, as there may be a volume for every node."""
        column = self._labels.of(
            snapshot, key, lambda view, row: (view.node(row)["metadata"].get("labels") or {}).get(key),
            paths=frozenset({label_path(key)}),
        )
        known = self._by_value.get(key)
        if known is None or known[0] is not column:
            rows: dict[str, list[int]] = {}
            for row, value in enumerate(column.tolist()):
                if value is not None:
                    rows.setdefault(value, []).append(row)
            known = self._by_value[key] = column, {value: np.array(each, np.intp) for value, each in rows.items()}
        found = np.zeros(snapshot.size, np.bool_)
        for value in values:
            if value in known[1]:
                found[known[1][value]] = True
        return found


@dataclass(slots=True)
class Matched:
    """The volumes or provisioning of the waiting claims of one pod by node."""

    unbound: _Booleans
    """The nodes on which a claim would get no volume."""
    short: _Booleans
    """The nodes on which a volume would be provisioned, but the storage does not suffice."""
    bindings: list[tuple[Json, Json, _Booleans]] = field(default_factory=list)
    """Claims with existing volumes, and the nodes on which they would be bound."""


class VolumeMatcher:
    """Finds volumes for claims; `taken` are the claims (keys) of assigned volumes."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def match(self, selected: Sequence[tuple[Json, str]], others: Sequence[Json], snapshot: Snapshot,
              taken: Mapping[str, str]) -> Matched:
        """Return the matches of claims with a selected node, and of `others`, which may use any node."""
        size = snapshot.size
        found = Matched(np.zeros(size, np.bool_), np.zeros(size, np.bool_))
        for _, node in selected:
            elsewhere = np.ones(size, np.bool_)
            if node in snapshot.index:
                elsewhere[snapshot.index[node]] = False
            found.unbound |= elsewhere
        to_provision: list[tuple[Json, _Booleans]] = [(claim, np.ones(size, np.bool_)) for claim, _ in selected]
        used: dict[str, _Booleans] = {}
        for claim in sorted(others, key=_requested):
            matched = self._bind(claim, snapshot, taken, used, found)
            to_provision.append((claim, ~matched))
        for claim, needed in to_provision:
            self._provision(claim, needed, snapshot, found)
        return found

    def _bind(
        self, claim: Json, snapshot: Snapshot, taken: Mapping[str, str], used: dict[str, _Booleans], found: Matched,
    ) -> _Booleans:
        """Return the nodes with a volume for a claim, and record the volumes."""
        matched = np.zeros(snapshot.size, np.bool_)
        closed = np.zeros(snapshot.size, np.bool_)
        for volume, prebound in _candidates(claim, snapshot, taken):
            name = str(volume["metadata"]["name"])
            reached = self._reach.of_volume(volume, snapshot)
            free = ~(matched | closed)
            if name in used:
                free &= ~used[name]
            here = free if reached is None else free & reached
            if prebound:
                closed |= free & ~here  # a pre-bound claim can use no other volume
            if here.any():
                matched |= here
                used[name] = used[name] | here if name in used else here
                found.bindings.append((claim, volume, here))
            if (matched | closed).all():
                break
        return matched

    def _provision(self, claim: Json, needed: _Booleans, snapshot: Snapshot, found: Matched) -> None:
        needed = needed & ~(found.unbound | found.short)
        if not needed.any():
            return
        storage_class = snapshot.object(STORAGE_CLASS, class_of(claim)) or {}
        provisioner = str(storage_class.get("provisioner") or "")
        if provisioner in _NO_PROVISIONER:
            found.unbound |= needed
            return
        allowed = self._reach.of_topologies(storage_class.get("allowedTopologies") or (), snapshot)
        if allowed is not None:
            found.unbound |= needed & ~allowed
            needed &= allowed
        enough = self._enough(claim, provisioner, snapshot)
        if enough is not None:
            found.short |= needed & ~enough

    def _enough(self, claim: Json, provisioner: str, snapshot: Snapshot) -> _Booleans | None:
        """Return the nodes with enough storage capacity for a claim; None if capacity is not tracked."""
        driver = snapshot.object(CSI_DRIVER, provisioner)
        requested = _requested(claim)
        if driver is None or not _spec(driver).get("storageCapacity") or requested == _NO_SIZE:
            return None
        found = np.zeros(snapshot.size, np.bool_)
        for capacity in snapshot.objects(CSI_STORAGE_CAPACITY).values():
            topology = capacity.get("nodeTopology")
            if capacity.get("storageClassName") != class_of(claim) or topology is None:
                continue
            limit = capacity.get("maximumVolumeSize")
            if _amount(capacity.get("capacity") if limit is None else limit) >= requested:
                found |= self._reach.of_selector(topology, snapshot)
        return found


def _candidates(claim: Json, snapshot: Snapshot, taken: Mapping[str, str]) -> Iterator[tuple[Json, bool]]:
    """Yield the volumes that match a claim: its own one (then true) before others, the smallest first."""
    metadata, spec, key = claim["metadata"], _spec(claim), key_of(claim)
    requested, name = _requested(claim), class_of(claim)
    modes = frozenset(spec.get("accessModes") or ())
    own: list[Json] = []
    others: list[tuple[int, str, Json]] = []
    for volume in snapshot.objects(VOLUME).values():
        there = _spec(volume)
        if class_of(volume) != name or volume["metadata"].get("deletionTimestamp"):
            continue
        if taken.get(str(volume["metadata"]["name"]), key) != key:
            continue
        capacity = _amount((there.get("capacity") or {}).get("storage"))
        if capacity < requested or _mode(there) != _mode(spec):
            continue
        if (there.get("volumeAttributesClassName") or "") != (spec.get("volumeAttributesClassName") or ""):
            continue
        if there.get("claimRef") is not None:
            if refers_to(there["claimRef"], metadata):
                own.append(volume)
            continue
        if (volume.get("status") or {}).get("phase") != _AVAILABLE or not _selects(spec.get("selector"), volume):
            continue
        if not modes.issubset(there.get("accessModes") or ()):
            continue
        others.append((capacity, str(volume["metadata"]["name"]), volume))
    yield from ((volume, True) for volume in own)
    yield from ((volume, False) for _, _, volume in sorted(others, key=lambda each: each[:2]))


def _selects(selector: Json | None, volume: Json) -> bool:
    if selector is None:
        return True
    try:
        return matches_labels(selector, volume["metadata"].get("labels") or {})
    except ValueError:
        return False


def _only_label(terms: Sequence[Json]) -> tuple[str, tuple[str, ...]] | None:
    """Return key and values of terms that require only one label's value, as those of most volumes do."""
    if len(terms) != 1 or terms[0].get("matchFields"):
        return None
    expressions: Sequence[Json] = terms[0].get("matchExpressions") or ()
    if len(expressions) != 1 or expressions[0].get("operator") != "In":
        return None
    return str(expressions[0].get("key", "")), tuple(expressions[0].get("values") or ())


def _requested(claim: Json) -> int:
    """Return the bytes that a claim requests, `_NO_SIZE` for any."""
    requests: Json = (_spec(claim).get("resources") or {}).get("requests") or {}
    return _amount(requests.get("storage"))


def _amount(quantity: object) -> int:
    """Return an amount in bytes."""
    try:
        return _NO_SIZE if quantity is None else canonical_amount("storage", quantity, "storage")
    except ValueError:
        return _NO_SIZE


def _mode(spec: Json) -> str:
    return str(spec.get("volumeMode") or _FILESYSTEM)


def _spec(item: Json) -> Json:
    spec: Json = item.get("spec") or {}
    return spec
