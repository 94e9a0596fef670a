"""Pod counts: cached columns with the number or weight of the running pods of some kind on each node.

Thousands of pods have a handful of different sets of labels. The fields of a pod that selectors can see are its *kind*;
a column's weight is computed once per kind, and the column is updated for each pod that comes or goes. So the cost of a
decision is proportional to the new kinds since the column was last used, not to the running pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedOfBase
from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.pod_affinity import NO_TERMS, AffinityTerms, HostPort, host_ports

from .domains import Domains

_PODS: Final[frozenset[Path]] = frozenset({("nodeInfo", "pods")})
_MOST_BYTES: Final = 64 * 1024 * 1024
_FEWEST_COLUMNS: Final = 32
_MOST_SEEN: Final = 4_096
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"

Counts = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class PodKind:
    """The fields that pods of one kind share: those that selectors, affinity terms and ports read."""

    namespace: str
    labels: Mapping[str, str]
    terminating: bool
    terms: AffinityTerms
    ports: frozenset[HostPort]
    where: dict[int, int] = field(default_factory=dict)
    """The number of running pods by row."""
    columns: list[tuple[_Column, int]] = field(default_factory=list)
    """The columns that count the kind, with its weight in each."""
    listed: bool = False
    """True if a pod of the kind has ever run."""


Weight = Callable[[PodKind], int]
"""The weight of one pod of a kind; it must not change for one cache key."""


class _Column:
    __slots__ = ("places", "seen", "values")

    def __init__(self, size: int, places: Sequence[int] | None) -> None:
        self.values: Counts = np.zeros(size, np.int64)
        self.places = places
        """The row under which each row counts, -1 for none; None if each counts under its own number."""
        self.seen = 0
        """The number of kinds whose weight is known."""

    def add(self, row: int, amount: int) -> None:
        """Count more, or less, on a node."""
        place = row if self.places is None else self.places[row]
        if place >= 0:
            self.values[place] += amount


class PodCounts:
    """The pods of one cluster by kind and row, and the cached columns; see `pod_counts`."""

    def __init__(self, size: int, most_bytes: int = _MOST_BYTES) -> None:
        self._size = size
        self._most = max(_FEWEST_COLUMNS, most_bytes // (8 * max(size, 1)))
        self._rows: list[dict[str, tuple[PodInfo, PodKind]]] = [{} for _ in range(size)]
        self._kinds: dict[Hashable, PodKind] = {}
        self._running: dict[PodKind, int] = {}
        self._terms: dict[Hashable, AffinityTerms] = {}
        self._affine: dict[AffinityTerms, int] = {}
        self._with_ports = 0
        self._seen: dict[int, tuple[Mapping[str, Any], PodKind]] = {}
        self._order: list[PodKind] = []
        self._columns: dict[Hashable, _Column] = {}
        self.seen: PodsSeen | None = None
        """The last snapshot: several plugins use one snapshot, one after the other."""
        self.version = 0
        """Incremented whenever running pods change."""
        self.terms_version = 0
        """Incremented whenever the affinity terms of running pods may have changed."""

    # Following the cluster

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Update the counts of these nodes."""
        for index in rows.tolist():
            self._follow_row(index, snapshot.row(index))
        self.version += 1
        if len(self._kinds) > 2 * len(self._running) + _MOST_SEEN:
            self._forget_kinds()

    def _forget_kinds(self) -> None:
        """Drop the kinds without a running pod."""
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind in self._running}
        self._terms = {key: terms for key, terms in self._terms.items() if terms in self._affine}
        self._seen.clear()
        for column in self._columns.values():
            column.seen = sum(1 for kind in self._order[: column.seen] if kind in self._running)
        self._order = [kind for kind in self._order if kind in self._running]

    def _follow_row(self, index: int, row: NodeRow) -> None:
        known, pods = self._rows[index], row.pods
        removed = [key for key, (pod, _) in known.items() if pods.get(key) is not pod]
        for key in removed:
            self._count(index, known.pop(key)[1], -1)
        if len(known) < len(pods):
            for key, pod in pods.items():
                if key not in known:
                    kind = self.kind_of(pod)
                    known[key] = (pod, kind)
                    self._count(index, kind, 1)

    def _count(self, index: int, kind: PodKind, change: int) -> None:
        here = kind.where.get(index, 0) + change
        if here:
            kind.where[index] = here
        else:
            del kind.where[index]
        running = self._running.get(kind, 0)
        if not running or running + change == 0:
            self._first_or_last(kind, change)
        if running + change:
            self._running[kind] = running + change
        else:
            del self._running[kind]
        for column, weight in kind.columns:
            column.add(index, weight * change)
        if not kind.listed:
            kind.listed = True
            self._order.append(kind)

    def _first_or_last(self, kind: PodKind, change: int) -> None:
        if kind.ports:
            self._with_ports += change
        if not kind.terms.has_any:
            return
        count = self._affine.get(kind.terms, 0) + change
        if count:
            if count == change:
                self.terms_version += 1
            self._affine[kind.terms] = count
        else:
            del self._affine[kind.terms]
            self.terms_version += 1

    def kind_of(self, pod: PodInfo) -> PodKind:
        """Return the kind of a pod; pods with equal fields have the same object."""
        item = pod.object
        found = self._seen.get(id(item))
        if found is not None and found[0] is item:
            return found[1]
        kind = self._kind_of(pod, item)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(item)] = (item, kind)
        return kind

    def _kind_of(self, pod: PodInfo, item: Mapping[str, Any]) -> PodKind:
        metadata, spec = item["metadata"], item["spec"]
        labels: Mapping[str, str] = metadata.get("labels") or {}
        affinity = spec.get("affinity") or {}
        texts = ""
        if affinity and (affinity.get("podAffinity") or affinity.get("podAntiAffinity")):
            texts = repr((affinity.get("podAffinity"), affinity.get("podAntiAffinity")))
        ports = host_ports(item)
        terminating = bool(metadata.get("deletionTimestamp"))
        key = (pod.namespace, tuple(sorted(labels.items())), terminating, texts, ports)
        kind = self._kinds.get(key)
        if kind is None:
            terms = self._terms_of(texts, affinity, pod.namespace, labels)
            kind = self._kinds[key] = PodKind(pod.namespace, labels, terminating, terms, ports)
        return kind

    def _terms_of(
        self, text: str, affinity: Mapping[str, Any], namespace: str, labels: Mapping[str, str],
    ) -> AffinityTerms:
        if not text:
            return NO_TERMS
        # Only these keys make the terms depend on the pod's own labels.
        own = tuple(sorted(labels.items())) if "LabelKeys" in text else ()
        key = (namespace, text, own)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = AffinityTerms.of(affinity, namespace, labels)
        return terms

    # Answers

    @property
    def any_ports(self) -> bool:
        """True if any running pod has host ports."""
        return self._with_ports > 0

    def affine(self) -> Iterable[AffinityTerms]:
        """Return the distinct terms of running pods."""
        return self._affine

    def column(self, question: Hashable, weight: Weight, among: Domains | None = None) -> Counts:
        """Return the sum of the pods' weights for each node, or each domain; read-only."""
        column = self._columns.pop(question, None)
        if column is None:
            column = _Column(self._size, None) if among is None else _Column(among.count, among.codes.tolist())
            self._evict_columns()
        self._columns[question] = column
        order = self._order
        if column.seen < len(order):
            for kind in order[column.seen:]:
                if amount := weight(kind):
                    kind.columns.append((column, amount))
                    for row, number in kind.where.items():
                        column.add(row, amount * number)
            column.seen = len(order)
        return column.values

    def _evict_columns(self) -> None:
        if len(self._columns) < self._most:
            return
        # The least recently used; several at once, because all kinds have to forget them.
        evicted = {self._columns.pop(key) for key in list(self._columns)[: self._most // 8]}
        for kind in self._order:
            kind.columns = [each for each in kind.columns if each[0] not in evicted]

    def moved(self, snapshot: Snapshot) -> list[tuple[int, PodKind, int]]:
        """Return the changes of an overlay: rows, kinds, and the differences of their numbers of pods."""
        return [(row, self.kind_of(pod), change) for row, pod, change in snapshot.pod_changes()]


class PodsSeen:
    """The pods of one snapshot, including its overlay, of which nothing is cached."""

    __slots__ = ("_counts", "_moved", "snapshot", "version")

    def __init__(self, counts: PodCounts, snapshot: Snapshot) -> None:
        self._counts = counts
        self.snapshot = snapshot
        self.version = counts.version
        self._moved = counts.moved(snapshot)

    def kind_of(self, pod: PodInfo) -> PodKind:
        """Return the kind of a pod, running or not."""
        return self._counts.kind_of(pod)

    @property
    def any_ports(self) -> bool:
        """True if any running pod may have host ports."""
        return self._counts.any_ports or any(kind.ports for _, kind, _ in self._moved)

    @property
    def terms_version(self) -> Hashable:
        """A value that changes whenever the result of `affine` may change."""
        moved = frozenset(kind.terms for _, kind, change in self._moved if change > 0 and kind.terms.has_any)
        return (self._counts.terms_version, moved) if moved else self._counts.terms_version

    def affine(self) -> Iterable[AffinityTerms]:
        """Return the distinct terms of running pods; in an overlay some may belong to removed pods."""
        moved = {kind.terms for _, kind, change in self._moved if change > 0 and kind.terms.has_any}
        return {*self._counts.affine(), *moved} if moved else self._counts.affine()

    def column(self, question: Hashable, weight: Weight) -> Counts:
        """Return the sums of the weights of the pods on each node, int64[nodes], read-only.

        `question` is the cache key of `weight`: columns of equal keys are shared.
        """
        values = self._counts.column(question, weight)
        if self._moved:
            values = values.copy()
            for row, kind, change in self._moved:
                values[row] += change * weight(kind)
        return values

    def sums(self, question: Hashable, weight: Weight, among: Domains) -> Counts:
        """Return the sums of the weights of the pods in each domain, int64[domains], read-only."""
        if among.overlaid:
            return among.sums(self.column(question, weight))
        values = self._counts.column((question, among.identity), weight, among)
        if self._moved:
            values = values.copy()
            for row, kind, change in self._moved:
                place = among.codes[row]
                if place >= 0:
                    values[place] += change * weight(kind)
        return values

    def near(self, question: Hashable, weight: Weight, among: Domains) -> Counts:
        """Return for each node the sum over its domain, 0 if it has none; read-only."""
        if among.unique:
            return among.per_node(self.column(question, weight))
        return among.of_nodes(self.sums(question, weight, among))

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's labels; without its object, the label that every namespace has."""
        item = self.snapshot.object("Namespace", namespace)
        labels = (item.get("metadata") or {}).get("labels") if item is not None else None
        return labels or {_NAMESPACE_LABEL: namespace}

    @property
    def namespaces_version(self) -> int:
        """Incremented whenever labels of a namespace may have changed."""
        return self.snapshot.version_of("Namespace")


_COUNTS: Final = DerivedOfBase(_PODS, PodCounts)


def pod_counts(snapshot: Snapshot) -> PodsSeen:
    """Return the counts of a snapshot's pods."""
    counts = _COUNTS.of_base(snapshot)
    seen = counts.seen
    if seen is None or seen.snapshot is not snapshot or seen.version != counts.version:
        seen = counts.seen = PodsSeen(counts, snapshot)
    return seen
