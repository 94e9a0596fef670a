"""PodTopologySpread: spreads pods of one kind over the domains of a label, strictly or by preference.

The number of pods that a selector matches on each node is cached as a column (see `pod_counts`); a decision
sums it up per domain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.node_selection import NodeSelection
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, Refusal, Scores
from koordpolicy.engine.kubernetes.pod_affinity import HOSTNAME
from koordpolicy.engine.kubernetes.selectors import untolerated
from koordpolicy.engine.scheduler.extensions.domains import domains
from koordpolicy.engine.scheduler.extensions.pod_counts import Counts, PodKind, Weight, pod_counts
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event, Handle, Skip

from ...allocation.requeue_hints import is_of, node_came_or_changed, placed_pod_changed
from .constraints import (
    DO_NOT_SCHEDULE,
    SCHEDULE_ANYWAY,
    SYSTEM_CONSTRAINTS,
    Constraint,
    DefaultSelectors,
    check_args,
    constraints_of,
    ignored_args,
)

_REASON: Final = "node(s) didn't match pod topology spread constraints"
_MISSING: Final = f"{_REASON} (missing required label)"
_TAINTS: Final = frozenset({("node", "spec", "taints")})

_Booleans = NDArray[np.bool_]


class PodTopologySpread:
    """Filter and scorer (kube-scheduler's plugin of that name); pods without constraints are skipped.

    Arguments: `defaultingType` System (the default) or List, and `defaultConstraints` for the latter, for pods without
    constraints that belong to a Service, ReplicaSet, StatefulSet or ReplicationController.
    """

    name = "PodTopologySpread"
    check_args = staticmethod(check_args)
    ignored_args = staticmethod(ignored_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._kubernetes = handle.kubernetes
        self._system = args.get("defaultingType", "System") == "System"
        defaults = SYSTEM_CONSTRAINTS if self._system else tuple(args.get("defaultConstraints") or ())
        self._defaults = {action: constraints_of(defaults, {}, action) for action in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)}
        self._selectors = DefaultSelectors()
        self._selection = NodeSelection()
        self._tolerated = Derived(_TAINTS, np.bool_, distinct=True)
        self._label_missing = Refusal("label", _MISSING, Code.UNRESOLVABLE)
        self._skewed = Refusal("skew", _REASON)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without required constraints."""
        try:
            return None if self._constraints(state, pod, snapshot, DO_NOT_SCHEDULE) else self._skip(DO_NOT_SCHEDULE)
        except ValueError as error:
            return Refusal("constraints", str(error), Code.ERROR)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose domain would exceed the domain with the fewest pods by more than the maximum skew."""
        constraints = self._constraints(state, pod, snapshot, DO_NOT_SCHEDULE)
        passed: _Booleans = np.ones(snapshot.size, np.bool_)
        missing: _Booleans = np.zeros(snapshot.size, np.bool_)
        labels = pod.object["metadata"].get("labels") or {}
        pods = pod_counts(snapshot)
        for constraint in constraints:
            found = domains(snapshot, constraint.topology_key)
            if not found.complete:
                missing |= passed & ~found.present
                passed &= found.present
            among = self._eligible(pod, snapshot, constraint, constraints)
            cache_key, weight = _key_and_weight(pod, constraint)
            sums = (pods.sums(cache_key, weight, found) if among is None
                    else found.sums(pods.column(cache_key, weight), among))
            least = _least(sums, found.in_use(among), constraint.min_domains)
            most = constraint.max_skew + least - int(constraint.takes(labels))
            if len(sums) and sums.max() > most:
                passed &= found.of_nodes(sums) <= most
            elif most < 0:
                passed[:] = False

        def explain(row: int) -> Refusal:
            return self._label_missing if missing[row] else self._skewed

        def reasons(refused: Rows) -> dict[str, Rows]:
            lacking = missing[refused]
            return {reason: some for reason, some in ((_MISSING, refused[lacking]), (_REASON, refused[~lacking]))
                    if len(some)}

        def codes(refused: Rows) -> dict[Code, Rows]:
            lacking = missing[refused]
            return {Code.UNRESOLVABLE: refused[lacking], Code.UNSCHEDULABLE: refused[~lacking]}

        return Answer(passed, explain, reasons=reasons, codes=codes)

    def pre_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Refusal | Skip | None:
        """Skip pods without preferred constraints."""
        try:
            return None if self._constraints(state, pod, snapshot, SCHEDULE_ANYWAY) else self._skip(SCHEDULE_ANYWAY)
        except ValueError as error:
            return Refusal("constraints", str(error), Code.ERROR)

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes in domains with few pods; small domains count less."""
        constraints = self._constraints(state, pod, snapshot, SCHEDULE_ANYWAY)
        if not constraints:
            return Scores(np.zeros(snapshot.size, np.int64))
        # With Kubernetes' defaults, a node without a zone still counts by its hostname.
        wants_all = bool(pod.object["spec"].get("topologySpreadConstraints")) or not self._system
        chosen: _Booleans | None = None
        if wants_all:
            for constraint in constraints:
                found = domains(snapshot, constraint.topology_key)
                if not found.complete:
                    chosen = found.present if chosen is None else chosen & found.present
        scored = rows if chosen is None else rows[chosen[rows]]
        total: NDArray[np.float64] = np.zeros(snapshot.size)
        part: NDArray[np.float64]
        pods = pod_counts(snapshot)
        for constraint in constraints:
            found = domains(snapshot, constraint.topology_key)
            cache_key, weight = _key_and_weight(pod, constraint)
            if constraint.topology_key == HOSTNAME:
                part = _part(pods.column(cache_key, weight), len(scored), constraint)
            else:
                among = self._eligible(pod, snapshot, constraint, constraints if wants_all else ())
                sums = (pods.sums(cache_key, weight, found) if among is None
                        else found.sums(pods.column(cache_key, weight), among))
                part = found.of_nodes(_part(sums, found.number(scored), constraint))
            total += part if found.complete else np.where(found.present, part, 0)
        raw = np.floor(total + 0.5).astype(np.int64)
        return Scores(_normalized(raw, rows, scored), raw={"": raw})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether nodes changed, or placed or (since Kubernetes 1.36) nominated pods of the same namespace."""
        if placed_pod_changed(event, self._kubernetes):
            return event.key.partition("/")[0] == pod.namespace
        return node_came_or_changed(event) or (event.kind == "Node" and event.new is None) or is_of(event, pod)

    def _skip(self, action: str) -> Skip:
        # Defaults are for pods of a Service, which may come or go.
        return SKIP if self._defaults[action] else SKIP_SHAPE

    def _constraints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, action: str,
    ) -> tuple[Constraint, ...]:
        found: tuple[Constraint, ...] | None = state.get((PodTopologySpread, action, pod))
        if found is None:
            found = state[PodTopologySpread, action, pod] = self._read(pod, snapshot, action)
        return found

    def _read(self, pod: PodInfo, snapshot: Snapshot, action: str) -> tuple[Constraint, ...]:
        own = pod.object["spec"].get("topologySpreadConstraints")
        if own:
            return constraints_of(own, pod.object["metadata"].get("labels") or {}, action)
        defaults = self._defaults[action]
        selector, text = self._selectors.of(pod, snapshot) if defaults else (None, "")
        if selector is None:
            return ()
        return tuple(
            Constraint(each.max_skew, each.topology_key, selector, each.min_domains, each.honors_affinity,
                       each.honors_taints, text) for each in defaults
        )

    def _eligible(
        self, pod: PodInfo, snapshot: Snapshot, constraint: Constraint, together: tuple[Constraint, ...],
    ) -> _Booleans | None:
        """Return the nodes that count for a constraint, None for all; they must have the labels of `together` too."""
        among: _Booleans | None = None
        for each in together:
            found = domains(snapshot, each.topology_key)
            if not found.complete:
                among = found.present if among is None else among & found.present
        if constraint.honors_affinity:
            selected = self._selection.of(pod.object, snapshot)
            if selected is not None:
                among = selected if among is None else among & selected
        if constraint.honors_taints:
            tolerations = pod.object["spec"].get("tolerations")
            tolerated = self._tolerated.of(
                snapshot, json.dumps(tolerations, sort_keys=True) if tolerations else "",
                lambda view, row: untolerated(pod.object, view.node(row)) is None,
            )
            among = tolerated if among is None else among & tolerated
        return among


def _key_and_weight(pod: PodInfo, constraint: Constraint) -> tuple[Hashable, Weight]:
    """Return the cache key of a constraint's pod counts, and the weight function."""
    namespace = pod.namespace

    def weight(kind: PodKind) -> int:
        return int(kind.namespace == namespace and not kind.terminating and constraint.counts(kind.labels))

    return (PodTopologySpread, namespace, constraint.text), weight


def _part(counts: Counts, size: int, constraint: Constraint) -> NDArray[np.float64]:
    """Return a constraint's part of the scores, for `size` domains."""
    return counts.astype(np.float64) * math.log(size + 2) + (constraint.max_skew - 1)


def _least(sums: Counts, in_use: _Booleans, min_domains: int) -> int:
    """Return the lowest number of pods of a domain: 0 if there are fewer domains than the minimum."""
    sums = sums[in_use]
    return 0 if len(sums) < max(min_domains, 1) else int(sums.min())


def _normalized(raw: NDArray[np.int64], rows: Rows, scored: Rows) -> NDArray[np.int64]:
    """Return 0..100, higher for fewer pods; 0 for rows that are not scored."""
    result: NDArray[np.int64] = np.zeros(len(raw), np.int64)
    if not len(scored):
        return result
    values = raw[scored]
    most, least = int(values.max()), int(values.min())
    if len(scored) == len(rows) == len(raw):
        return np.full(len(raw), HIGHEST_SCORE, np.int64) if most == 0 else HIGHEST_SCORE * (most + least - raw) // most
    result[scored] = HIGHEST_SCORE if most == 0 else HIGHEST_SCORE * (most + least - values) // most
    return result
