"""RemoveDuplicates: pods of one owner with the same images are spread evenly over the nodes that take them.

Kubernetes' descheduler (removeduplicates). The first pod in the order of the node's pods stays, where upstream's choice
depends on the order of a map.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        signatures = _Signatures.of(snapshot)
        by_row = [(pods, signatures.codes(pods)) for pods in map(snapshot.pods, order)]
        signatures.keep_for_later()
        repeated: set[int] = set()
        for _, codes in by_row:
            if len(set(codes)) < len(codes):
                repeated.update(code for code, count in Counter(codes).items() if count > 1)
        # Most owners have no two pods on any node: no filter is called for their pods.
        relevant = self._keys_of(repeated, signatures)
        groups: dict[_OwnerKey, _Group] = {}
        for row, (pods, codes) in zip(order, by_row, strict=True) if relevant else ():
            originals: set[int] = set()
            for pod, code in zip(pods, codes, strict=True):
                keys = relevant.get(code)
                if keys is None or not self._selection.candidate(pod, evictor):
                    continue
                for key in keys:
                    group = groups.setdefault(key, _Group())
                    group.count += 1
                    if code in originals:
                        group.duplicates.setdefault(row, []).append(pod)
                originals.add(code)
        return groups

    def _keys_of(self, repeated: Iterable[int], signatures: _Signatures) -> Mapping[int, Sequence[_OwnerKey]]:
        """Return the owner keys of each code that shares one with a repeated code."""
        known = [signatures.at(code) for code in repeated if code >= 0]
        wanted = {key for signature in known if not self._is_excluded(signature) for key in _owner_keys(signature)}
        return {
            code: keys for code, signature in enumerate(signatures.all)
            if not wanted.isdisjoint(keys := _owner_keys(signature)) and not self._is_excluded(signature)
        }

    def _is_excluded(self, signature: _Signature) -> bool:
        return bool(self._excluded_kinds) and any(kind in self._excluded_kinds for kind, _ in signature[1])


class _Signatures:
    """The signatures of pods as small numbers, found once per pod as long as it does not change."""

    def __init__(self, cache: dict[object, object]) -> None:
        self._cache = cache
        self._known: dict[int, tuple[PodInfo, int]] = {}
        self._current: dict[int, tuple[PodInfo, int]] = {}
        self._codes: dict[_Signature, int] = {}
        self.all: list[_Signature] = []

    @staticmethod
    def of(snapshot: Snapshot) -> _Signatures:
        """Return the signatures, with those of the pods of the last call."""
        cache = snapshot.cluster.cross_version_cache
        found = cache.get(_Signatures)
        # Signatures of pods that are gone are dropped now and then.
        return found if isinstance(found, _Signatures) and not found.is_stale else _Signatures(cache)

    @property
    def is_stale(self) -> bool:
        """True if most signatures are those of pods that are gone."""
        return len(self.all) > 2 * len(self._known) + 1_000

    def keep_for_later(self) -> None:
        """Keep the signatures of the pods of this call."""
        self._known, self._current = self._current, {}
        self._cache[_Signatures] = self

    def codes(self, pods: Iterable[PodInfo]) -> list[int]:
        """Return the number of each pod's signature; a negative one of its own for a pod without an owner."""
        known, current = self._known, self._current
        codes: list[int] = []
        for pod in pods:
            identity = id(pod)
            found = known.get(identity)
            if found is None:
                signature = _signature(pod)
                # The cached pod keeps its identity from being used again.
                found = pod, -1 if signature is None else self._code(signature)
            current[identity] = found
            codes.append(found[1] if found[1] >= 0 else -1 - len(codes))
        return codes

    def at(self, code: int) -> _Signature:
        """Return the signature of a number."""
        return self.all[code]

    def _code(self, signature: _Signature) -> int:
        code = self._codes.get(signature)
        if code is None:
            code = self._codes[signature] = len(self.all)
            self.all.append(signature)
        return code


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
