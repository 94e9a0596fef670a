"""Columns over all active pods of a snapshot, in the order of nodes: their nodes and templates as numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot

from .row_facts import facts_by_row
from .templates import PodTemplate, template_of

Positions: TypeAlias = NDArray[np.intp]
"""Places of pods in the columns."""

_TEMPLATES: Final = "templates"
_PODS: Final = frozenset({("nodeInfo", "pods")})


@dataclass(slots=True, eq=False)
class _Found:
    """The places of the first `count` of some pods."""

    pods: Sequence[PodInfo] = ()
    count: int = 0
    mask: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class PodColumns:
    """The columns of one snapshot. Read-only; valid until the cluster changes."""

    pods: Sequence[PodInfo]
    """In the order of rows, on each node in order of arrival."""
    rows: Rows
    """The row of each pod."""
    templates: Sequence[PodTemplate]
    """The templates that occur, each once."""
    codes: NDArray[np.intp]
    """The place of each pod's template in `templates`."""
    _order: Positions
    """All places by code."""
    _starts: NDArray[np.intp]
    """The first index of each code in `_order`, and the number of pods."""
    _index: Mapping[str, int]
    """The rows by the names of nodes."""
    _starts_of_rows: Sequence[int]
    """The place of the first pod of each row, and the number of pods."""
    _places: Sequence[Mapping[PodInfo, int]]
    """The places of its pods on each row."""
    _found: _Found

    @staticmethod
    def of(snapshot: Snapshot) -> PodColumns:
        """Return the columns; computed anew only after pods have changed."""
        if snapshot.overridden:
            found: PodColumns | None = snapshot.overlay_cache.get(PodColumns)
            if found is None:
                found = snapshot.overlay_cache[PodColumns] = _columns(snapshot)
            return found
        cluster = snapshot.cluster
        stamp = cluster.stamp(_PODS)
        known: Any = cluster.cross_version_cache.get(PodColumns)
        if known is None or known[0] != stamp:
            known = cluster.cross_version_cache[PodColumns] = stamp, _columns(snapshot)
        current: PodColumns = known[1]
        return current

    @property
    def counts(self) -> NDArray[np.intp]:
        """The number of pods of each template."""
        return np.diff(self._starts)

    def templates_at(self, positions: Positions) -> list[PodTemplate]:
        """Return the templates of the pods at these places, in the order of the first pod of each."""
        codes, first = np.unique(self.codes[positions], return_index=True)
        return [self.templates[code] for code in codes[np.argsort(first)].tolist()]

    def having(self, takes: Callable[[PodTemplate], bool]) -> Positions:
        """Return the places of the pods whose template `takes` accepts, ascending."""
        return self.of_codes([code for code, template in enumerate(self.templates) if takes(template)])

    def of_codes(self, codes: Iterable[int]) -> Positions:
        """Return the places of the pods with one of these codes, ascending."""
        order, starts = self._order, self._starts
        parts = [order[starts[code] : starts[code + 1]] for code in codes]
        if not parts:
            return np.empty(0, np.intp)
        # A stable sort merges the parts, which are in order.
        return np.sort(np.concatenate(parts), kind="stable") if len(parts) > 1 else parts[0]

    def on(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which pods are on the nodes at these rows."""
        chosen = np.zeros(int(self.rows[-1]) + 1 if len(self.rows) else 0, np.bool_)
        chosen[rows[rows < len(chosen)]] = True
        return chosen[self.rows]

    def are_among(self, pods: Sequence[PodInfo]) -> NDArray[np.bool_]:
        """Return which pods are these, or have their keys on their nodes. Read-only.

        Of a list that has only grown since the last call, only the new pods are looked up.
        """
        found = self._found
        if found.pods is not pods or found.count > len(pods):
            found.pods, found.count, found.mask = pods, 0, np.zeros(len(self.pods), np.bool_)
        places = [self._place(pod) for pod in pods[found.count :]]
        found.mask[[place for place in places if place >= 0]] = True
        found.count = len(pods)
        return found.mask

    def _place(self, pod: PodInfo) -> int:
        """Return the place of a pod; -1 if there is none."""
        row = self._index.get(pod.node_name, -1)
        if row < 0:
            return -1
        first, places = self._starts_of_rows[row], self._places[row]
        place = places.get(pod)
        if place is None:  # another version of the pod, or none
            return next((first + at for each, at in places.items() if each.key == pod.key), -1)
        return first + place

    def listed(self, positions: Positions) -> list[PodInfo]:
        """Return the pods at these places."""
        pods = self.pods
        return [pods[place] for place in positions.tolist()]


def _columns(snapshot: Snapshot) -> PodColumns:
    by_row = facts_by_row(snapshot, _TEMPLATES, _of_row)
    numbers = np.concatenate([found for _, _, found in by_row]) if by_row else np.empty(0, np.int64)
    places = [found for found, _, _ in by_row]
    pods = list(itertools.chain.from_iterable(places))
    templates = list(itertools.chain.from_iterable(found for _, found, _ in by_row))
    sizes = list(map(len, places))
    rows = np.repeat(np.arange(len(by_row), dtype=np.intp), sizes)
    by_number = dict(zip(numbers.tolist(), templates, strict=True))
    codes = np.zeros(max(by_number, default=-1) + 1, np.intp)
    codes[list(by_number)] = np.arange(len(by_number))
    codes = codes[numbers]
    # Numbers of 16 bits are sorted in linear time.
    order = np.argsort(codes.astype(np.uint16) if len(by_number) < 2**16 else codes, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(by_number)))))
    return PodColumns(pods, rows, list(by_number.values()), codes, order, starts, snapshot.index,
                      list(itertools.accumulate(sizes, initial=0)), places, _Found())


_OfRow: TypeAlias = tuple[dict[PodInfo, int], list[PodTemplate], NDArray[np.int64]]


def _of_row(pods: tuple[PodInfo, ...]) -> _OfRow:
    templates = [template_of(pod) for pod in pods]
    places = {pod: place for place, pod in enumerate(pods)}
    return places, templates, np.array([each.number for each in templates], np.int64)
