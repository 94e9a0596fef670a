"""Topology domains: which nodes share the value of a label, and sums over all nodes that do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.snapshot import Snapshot

_Integers = NDArray[np.int64]
_Booleans = NDArray[np.bool_]


class Domains:
    """The domains of one label: `codes` numbers them per node, int64[nodes], -1 where the node lacks the label.

    `count` is one more than the largest code; a code may be in use no more. Not to be written.
    """

    __slots__ = (
        "_numbers", "_sizes", "_stamp", "codes", "complete", "count", "identity", "overlaid", "present",
        "unique",
    )

    def __init__(self, size: int, *, overlaid: bool = False) -> None:
        self.overlaid = overlaid
        """Whether they are those of an overlay, which is not cached."""
        self.identity: object = object()
        """Another one whenever a node is in another domain."""
        self.codes: _Integers = np.full(size, -1, np.int64)
        self.present: _Booleans = np.zeros(size, np.bool_)
        self.count = 0
        self.complete = False
        """Whether all nodes have the label."""
        self.unique = False
        """Whether no two nodes share a domain."""
        self._numbers: dict[str, int] = {}
        self._stamp = -1

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
            values = np.append(values, 0)  # what a code of -1 reads
        found: NDArray[Any] = values[self.codes]
        return found

    def number(self, rows: Rows) -> int:
        """Return in how many domains these nodes are; those without the label share one more."""
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

    def _write(self, row: int, node: Mapping[str, Any], key: str) -> None:
        value = ((node.get("metadata") or {}).get("labels") or {}).get(key)
        self.codes[row] = -1 if value is None else self._numbers.setdefault(value, len(self._numbers))

    def follow(self, snapshot: Snapshot, key: str) -> None:
        """Take over what changed in the cluster beneath the snapshot."""
        cluster = snapshot.cluster
        paths = frozenset({("node", "metadata", "labels", key)})
        stamp = cluster.stamp(paths)
        if stamp == self._stamp:
            return
        changed = cluster.changed(paths, self._stamp)
        if changed is None or len(self._numbers) > 2 * len(self.codes):
            self._numbers.clear()
            changed = np.arange(len(self.codes))
        for row in changed.tolist():
            self._write(row, cluster.rows[row].node, key)
        self._stamp = stamp
        self._sum_up()

    def _sum_up(self) -> None:
        self.count = len(self._numbers)
        self.present = self.codes >= 0
        self.complete = bool(self.present.all())
        self._sizes = np.bincount(self.codes[self.present], minlength=self.count)
        self.unique = bool((self._sizes <= 1).all())
        self.identity = object()

    def in_overlay(self, snapshot: Snapshot, key: str) -> Domains:
        """Return the domains as an overlay shows the nodes."""
        of = snapshot.cluster.rows
        rows = [row for row, overridden in snapshot.overridden.items() if overridden.node is not of[row].node]
        if not rows:
            return self
        copy = Domains(0, overlaid=True)
        copy.codes, copy._numbers = self.codes.copy(), dict(self._numbers)
        for row in rows:
            copy._write(row, snapshot.overridden[row].node, key)
        copy._sum_up()
        return copy


def domains(snapshot: Snapshot, key: str) -> Domains:
    """Return the domains of a label, as the snapshot shows the nodes."""
    kept = snapshot.cluster.cross_version_cache
    found = kept.get((Domains, key))
    if not isinstance(found, Domains):
        found = kept[Domains, key] = Domains(snapshot.size)
    found.follow(snapshot, key)
    return found.in_overlay(snapshot, key) if snapshot.overridden else found
