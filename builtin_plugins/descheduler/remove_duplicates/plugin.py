"""RemoveDuplicates: pods of one owner with the same images are spread evenly over the nodes that take them.

Kubernetes' descheduler (removeduplicates). The first pod in the order of the node's pods stays, where upstream's choice
depends on the order of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.plugin_args import PodSelection
from koordpolicy.engine.descheduler.pods import PlacementGroups
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal

from .args import check_args

__all__ = ["RemoveDuplicates", "check_args", "make"]

_DUPLICATE: Final = "duplicate"
_SIGNATURES: Final = "signatures of duplicates"

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
        order = [int(row) for row in rows]
        placement = PlacementGroups(snapshot, order)
        for key, group in self._groups(snapshot, order, evictor).items():
            if not group.duplicates:
                continue
            feasible = placement.feasible(pod for pods in group.duplicates.values() for pod in pods)
            if len(feasible) < 2:
                for pod in _all(group.duplicates):
                    evictor.keep(pod, Refusal("feasibleNodes", "fewer than two nodes take it"), rule=_DUPLICATE)
                continue
            upper = -(-group.count // len(feasible))
            for row, pods in group.duplicates.items():
                for pod in pods[: upper - 1]:
                    message = f"at most {upper} pods of its owner per node"
                    evictor.keep(pod, Refusal("average", message), rule=_DUPLICATE)
                node = snapshot.names[row]
                for pod in pods[upper - 1 :]:
                    reason = f"node `{node}` has {len(pods) + 1} pods of {key[1]} {key[2]}, above {upper}"
                    evictor.evict(pod, reason, rule=_DUPLICATE)

    def _groups(self, snapshot: Snapshot, order: Sequence[int], evictor: Evictor) -> Mapping[_OwnerKey, _Group]:
        """Return the pods of owners that have duplicates, in the order in which owners are found."""
        by_row: list[tuple[int, list[tuple[PodInfo, _Signature]]]] = []
        relevant: set[_OwnerKey] = set()
        cache = snapshot.cluster.cross_version_cache
        before: Mapping[int, tuple[PodInfo, _Signature | None]] = cache.get(_SIGNATURES, {})  # type: ignore[assignment]
        current: dict[int, tuple[PodInfo, _Signature | None]] = {}
        for row in order:
            signed = []
            for pod in snapshot.pods(row):
                identity = id(pod)
                known = before.get(identity)
                # The cached pod keeps its identity from being used again.
                current[identity] = known = (pod, _signature(pod)) if known is None else known
                signature = known[1]
                if signature is not None and not self._is_excluded(signature):
                    signed.append((pod, signature))
            by_row.append((row, signed))
            seen: set[_Signature] = set()
            for _, signature in signed:
                if signature in seen:
                    relevant.update(_owner_keys(signature))
                seen.add(signature)
        cache[_SIGNATURES] = current
        groups: dict[_OwnerKey, _Group] = {}
        for row, signed in by_row if relevant else ():
            originals: set[_Signature] = set()
            for pod, signature in signed:
                keys = _owner_keys(signature)
                # Most owners have no two pods on any node: no filter is asked about their pods.
                if relevant.isdisjoint(keys) or not self._selection.candidate(pod, evictor):
                    continue
                for key in keys:
                    group = groups.setdefault(key, _Group())
                    group.count += 1
                    if signature in originals:
                        group.duplicates.setdefault(row, []).append(pod)
                originals.add(signature)
        return groups

    def _is_excluded(self, signature: _Signature) -> bool:
        return bool(self._excluded_kinds) and any(kind in self._excluded_kinds for kind, _ in signature[1])


def _signature(pod: PodInfo) -> _Signature | None:
    """Return what makes pods duplicates; None if the pod has no owner."""
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


def _owner_keys(signature: _Signature) -> list[_OwnerKey]:
    namespace, owners, images = signature
    return [(namespace, kind, name, images) for kind, name in owners]


def _all(duplicates: Mapping[int, Sequence[PodInfo]]) -> Iterator[PodInfo]:
    for pods in duplicates.values():
        yield from pods


def make(args: Mapping[str, Any], handle: object) -> RemoveDuplicates:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile, of valid arguments."""
    return RemoveDuplicates(args)
