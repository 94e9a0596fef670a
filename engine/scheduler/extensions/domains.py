"""Topology domains: sets of nodes that share the value of a label, and sums over them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedState, all_rows
from koordpolicy.engine.cluster.snapshot import Snapshot

_Integers = NDArray[np.int64]
_Booleans = NDArray[np.bool_]


class Domains:
    """The domains of one label: `codes` numbers them per node, int64[nodes], -1 where the node lacks the label.

    `count` is one more than the largest code; a code may be unused. Read-only.
    """

    __slots__ = (
        "_key", "_numbers", "_sizes", "codes", "complete", "count", "identity", "overlaid", "present", "unique",
    )

    def __init__(self, size: int, key: str) -> None:
        self._key = key
        self.overlaid = False
        """True if the domains are those of an overlay."""
        self.identity: object = object()
        """Replaced whenever a node changes its domain."""
        self.codes: _Integers = np.full(size, -1, np.int64)
        self.present: _Booleans = np.zeros(size, np.bool_)
        self.count = 0
        self.complete = False
        """True if all nodes have the label."""
        self.unique = False
        """True if no two nodes share a domain."""
        self._numbers: dict[str, int] = {}

    def sums(self, values: _Integers, among: _Booleans | None = None) -> _Integers:
        """Return the sums of `values` per domain, int64[count], over the nodes `among` (None: all) with the label."""
        codes = self.codes
        if among is not None:
            chosen = among if self.complete else among & self.present
            codes, values = codes[chosen], values[chosen]
        elif not self.complete:
            codes, values = codes[self.present], values[self.present]
        return np.bincount(codes, values, self.count).astype(np.int64)

    def per_node(self, values: _Integers, among: _Booleans | None = None) -> _Integers:
        """Return for each node the sum of `values` over its domain, 0 where it lacks the label."""
        if self.unique:
            chosen = self.present if among is None else self.present & among
            return values if self.complete and among is None else np.where(chosen, values, 0)
        return self.of_nodes(self.sums(values, among))

    def of_nodes(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each node the number of its domain, 0 where it lacks the label."""
        if not self.complete:
            values = np.append(values, 0)  # the value of code -1
        found: NDArray[Any] = values[self.codes]
        return found

    def number(self, rows: Rows) -> int:
        """Return the number of domains of these nodes; nodes without the label count as one more domain."""
        if len(rows) == len(self.codes):
            return int(np.count_nonzero(self._sizes)) + (not self.complete)
        if 2 * len(rows) > len(self.codes):
            # Omitted domains need not be compared.
            out = np.ones(len(self.codes), np.bool_)
            out[rows] = False
            sizes = self._sizes - np.bincount(self.codes[out & self.present], minlength=self.count)
            return int(np.count_nonzero(sizes)) + (not self.complete and bool((~self.present)[rows].any()))
        return len(np.unique(self.codes[rows]))

    def in_use(self, among: _Booleans | None = None) -> _Booleans:
        """Return which domains have a node (of `among`), bool[count]."""
        if among is None:
            in_use: _Booleans = self._sizes > 0
            return in_use
        found: _Booleans = np.bincount(self.codes[self.present & among], minlength=self.count) > 0
        return found

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Read the label of these nodes again."""
        if len(self._numbers) > 2 * len(self.codes):  # many of the values are no longer used
            self._numbers.clear()
            rows = all_rows(len(self.codes))
        for row in rows.tolist():
            value = ((snapshot.node(row).get("metadata") or {}).get("labels") or {}).get(self._key)
            self.codes[row] = -1 if value is None else self._numbers.setdefault(value, len(self._numbers))
        self.count = len(self._numbers)
        self.present = self.codes >= 0
        self.complete = bool(self.present.all())
        self._sizes = np.bincount(self.codes[self.present], minlength=self.count)
        self.unique = bool((self._sizes <= 1).all())
        self.identity = object()

    def copy(self) -> Domains:
        """Return domains for an overlay, which can be refreshed without these changing."""
        twin = Domains(0, self._key)
        twin.codes, twin._numbers, twin.overlaid = self.codes.copy(), dict(self._numbers), True
        return twin


_DOMAINS: Final[DerivedState[Domains]] = DerivedState()


def domains(snapshot: Snapshot, key: str) -> Domains:
    """Return the domains of a label, as the snapshot shows the nodes."""
    path: Path = ("node", "metadata", "labels", key)
    return _DOMAINS.of(snapshot, key, lambda size: Domains(size, key), frozenset((path,)))
