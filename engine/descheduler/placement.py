"""The variable `placement` of documents: the nodes that take a pod, and the weights of its preferred node affinity."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import matches_term

from .pods import NodeFit

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class PodPlacements:
    """The placements of pods on some nodes. Valid as long as its snapshot."""

    def __init__(self, snapshot: Snapshot, rows: Sequence[int], fit: NodeFit) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._fit = fit
        self._greatest: dict[str, int] = {}

    def of(self, pod: PodInfo) -> Mapping[str, object]:
        """Return the fields of a pod's placement, each computed when it is first read."""
        return _Fields({
            "anyNode": lambda: self._fits(pod, but_own=False),
            "otherNode": lambda: self._fits(pod, but_own=True),
            "preferredWeight": lambda: self._weight(_terms(pod), self._snapshot.index.get(pod.node_name)),
            "greatestPreferredWeight": lambda: self._greatest_weight(_terms(pod)),
        })

    def _fits(self, pod: PodInfo, *, but_own: bool) -> bool:
        own = self._snapshot.index.get(pod.node_name, -1)
        if own >= 0 and not but_own and self._fit.fits_strictly(pod, own):
            return True
        return any(row != own and self._fit.fits_strictly(pod, row) for row in self._rows)

    def _greatest_weight(self, terms: Sequence[Mapping[str, Any]]) -> int:
        key = json.dumps(terms, sort_keys=True)
        if key not in self._greatest:
            self._greatest[key] = max((self._weight(terms, row) for row in self._rows), default=0)
        return self._greatest[key]

    def _weight(self, terms: Sequence[Mapping[str, Any]], row: int | None) -> int:
        if row is None or not terms:
            return 0
        node = self._snapshot.node(row)
        return sum(each.get("weight") or 0 for each in terms if matches_term(each.get("preference") or {}, node))


class _Fields(dict[str, object]):
    """Fields that are computed when they are first read."""

    __slots__ = ("_compute",)

    def __init__(self, compute: Mapping[str, Callable[[], object]]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, name: str) -> object:
        value = self[name] = self._compute[name]()
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._compute

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if there is none of that name."""
        return self[key] if key in self._compute else default


def _terms(pod: PodInfo) -> Sequence[Mapping[str, Any]]:
    affinity = (pod.object.get("spec") or {}).get("affinity") or {}
    return (affinity.get("nodeAffinity") or {}).get(_PREFERRED) or ()
