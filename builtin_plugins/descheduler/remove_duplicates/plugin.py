"""RemoveDuplicates: pods of one owner with the same images are spread evenly over the nodes that take them.

Kubernetes' descheduler (removeduplicates). The first pod in the order of the node's pods stays, where upstream's choice
depends on the order of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pod_columns import PodColumns, Positions
from koordpolicy.engine.descheduler.pods import PlacementGroups
from koordpolicy.engine.descheduler.templates import fact_of
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal

from .args import check_args

__all__ = ["RemoveDuplicates", "check_args", "make"]

_DUPLICATE: Final = "duplicate"

_Signature: TypeAlias = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Namespace, owners (kind and name, sorted) and images (sorted): pods that have it in common are duplicates."""
_OwnerKey: TypeAlias = tuple[str, str, str, tuple[str, ...]]
"""Namespace, the owner's kind and name, images."""


@dataclass(slots=True)
class _Group:
    """The pods of one owner with the same images."""

    count: int = 0
    duplicates: dict[int, list[PodInfo]] = field(default_factory=dict)
    """By row, without the first pod of each node."""


class RemoveDuplicates:
    """The plugin, with valid arguments."""

    name = "RemoveDuplicates"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._selection = PodSelection.of(args)
        self._excluded_kinds = frozenset(args.get("excludeOwnerKinds") or ())

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict duplicates above the average number of an owner's pods per feasible node.

        A pod with two owners counts for both, and may be evicted for both.
        """
        placement = PlacementGroups(snapshot, rows.tolist())
        for key, group in self._groups(PodColumns.of(snapshot), rows, evictor).items():
            if not group.duplicates:
                continue
            feasible = placement.feasible(pod for pods in group.duplicates.values() for pod in pods)
            if feasible < 2:
                refusal = Refusal("feasibleNodes", "fewer than two nodes take it")
                evictor.keep_all(_all(group.duplicates), refusal, rule=_DUPLICATE)
                continue
            upper = -(-group.count // feasible)
            average = Refusal("average", f"at most {counted(upper, 'pod')} of its owner per node")
            evictor.keep_all(
                (pod for pods in group.duplicates.values() for pod in pods[: upper - 1]), average, rule=_DUPLICATE)
            for row, pods in group.duplicates.items():
                if len(pods) >= upper:
                    node = snapshot.names[row]
                    reason = f"node `{node}` has {len(pods) + 1} pods of {key[1]} {key[2]}, above {upper}"
                    for pod in pods[upper - 1 :]:
                        evictor.evict(pod, reason, rule=_DUPLICATE)

    def _groups(self, columns: PodColumns, rows: Rows, evictor: Evictor) -> Mapping[_OwnerKey, _Group]:
        """Return the pods of owners that have duplicates, in the order in which owners are found."""
        signed = _Signed.of(columns, rows)
        # Most owners have no two pods on any node: no filter is called for their pods.
        relevant = self._keys_of(signed)
        is_relevant = np.zeros(len(signed.signatures), np.bool_)
        is_relevant[list(relevant)] = True
        signed = signed.chosen(is_relevant[signed.codes])
        signed = signed.chosen(self._selection.candidates(columns, signed.places, evictor))
        groups: dict[_OwnerKey, _Group] = {}
        for code, count in signed.counts():
            for key in relevant[code]:
                groups.setdefault(key, _Group()).count += count
        repeats = signed.chosen(signed.are_repeats())
        for pod, row, code in zip(
            columns.listed(repeats.places), repeats.rows.tolist(), repeats.codes.tolist(), strict=True,
        ):
            for key in relevant[code]:
                groups[key].duplicates.setdefault(row, []).append(pod)
        return groups

    def _keys_of(self, signed: _Signed) -> Mapping[int, Sequence[_OwnerKey]]:
        """Return the owner keys of each code that shares one with a code that two pods of a node have."""
        keys = [() if self._is_excluded(each) else _owner_keys(each) for each in signed.signatures]
        shared = {key for code in signed.repeated() for key in keys[code]}
        return {code: of_code for code, of_code in enumerate(keys) if not shared.isdisjoint(of_code)}

    def _is_excluded(self, signature: _Signature) -> bool:
        return bool(self._excluded_kinds) and any(kind in self._excluded_kinds for kind, _ in signature[1])


@dataclass(frozen=True, slots=True)
class _Signed:
    """The pods with an owner on the nodes of one call: their places, and their signatures as numbers."""

    places: Positions
    rows: Rows
    codes: NDArray[np.intp]
    signatures: Sequence[_Signature]

    @staticmethod
    def of(columns: PodColumns, rows: Rows) -> _Signed:
        known: dict[_Signature, int] = {}
        signatures = [fact_of(template.pod, _signature) for template in columns.templates]
        of_template = np.array(
            [-1 if each is None else known.setdefault(each, len(known)) for each in signatures], np.intp,
        )
        codes = of_template[columns.codes]
        places = np.flatnonzero((codes >= 0) & columns.on(rows))
        return _Signed(places, columns.rows[places], codes[places], list(known))

    def chosen(self, mask: NDArray[np.bool_]) -> _Signed:
        """Return the pods for which the mask is true."""
        return _Signed(self.places[mask], self.rows[mask], self.codes[mask], self.signatures)

    def counts(self) -> list[tuple[int, int]]:
        """Return the codes with their numbers of pods, in the order of the first pod of each."""
        codes, first, counts = np.unique(self.codes, return_index=True, return_counts=True)
        order = np.argsort(first)
        return list(zip(codes[order].tolist(), counts[order].tolist(), strict=True))

    def are_repeats(self) -> NDArray[np.bool_]:
        """Return which pods have the code of one before them on their node."""
        _, first = np.unique(self._pairs(), return_index=True)
        found = np.ones(len(self.codes), np.bool_)
        found[first] = False
        return found

    def repeated(self) -> list[int]:
        """Return the codes that two pods of one node have."""
        found: list[int] = np.unique(self.codes[self.are_repeats()]).tolist()
        return found

    def _pairs(self) -> NDArray[np.intp]:
        """Return a number for each pod that those with its code on its node share."""
        return self.rows * len(self.signatures) + self.codes


def _signature(pod: PodInfo) -> _Signature | None:
    """Return the key that duplicates share; None if the pod has no owner."""
    owners = pod.object["metadata"].get("ownerReferences")
    if not owners:
        return None
    pairs = [(each.get("kind", ""), each.get("name", "")) for each in owners]
    images = [each.get("image", "") for each in pod.object["spec"]["containers"]]
    if len(pairs) > 1:
        pairs.sort()
    if len(images) > 1:
        images.sort()
    return pod.namespace, tuple(pairs), tuple(images)


def _owner_keys(signature: _Signature) -> tuple[_OwnerKey, ...]:
    namespace, owners, images = signature
    return tuple([(namespace, kind, name, images) for kind, name in owners])


def _all(duplicates: Mapping[int, Sequence[PodInfo]]) -> Iterator[PodInfo]:
    for pods in duplicates.values():
        yield from pods


def make(args: Mapping[str, Any], handle: object) -> RemoveDuplicates:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return RemoveDuplicates(args)
