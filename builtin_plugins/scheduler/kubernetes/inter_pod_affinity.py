"""InterPodAffinity: affinity and anti-affinity of pods to other pods.

The number of running pods that a term selects is cached as a column by node (see `pod_counts`); a decision sums it
per domain. The terms of running pods are matched to the pod once per set of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, Refusal, Scores
from koordpolicy.engine.kubernetes.pod_affinity import AffinityTerm, AffinityTerms
from koordpolicy.engine.kubernetes.release import BehaviourChange
from koordpolicy.engine.scheduler.extensions.domains import Domains, domains
from koordpolicy.engine.scheduler.extensions.pod_counts import Counts, PodKind, PodsSeen, pod_counts
from koordpolicy.plugin import SKIP, CycleState, Event, Handle, Skip

from ..allocation.requeue_hints import is_of, node_came_or_changed, placed_pod_changed
from ..allocation.strict_args import boolean, integer, read_args

_AFFINITY: Final = "node(s) didn't match pod affinity rules"
_ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
_EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
_REASONS: Final = (_AFFINITY, _ANTI_AFFINITY, _EXISTING)
_RULES: Final = ("affinity", "anti-affinity", "existing-anti-affinity")
_MOST_KINDS: Final = 4_096

_Booleans = NDArray[np.bool_]
_Matched = Mapping[AffinityTerms, int]
"""The weight of the terms of running pods for a pod, by set of terms."""


@dataclass(frozen=True, slots=True)
class _About:
    """The terms of running pods that select pods of one kind, by topology key."""

    keeping_apart: Mapping[str, _Matched]
    """The number of required anti-affinity terms that select it."""
    drawing: Mapping[str, _Matched]
    """The weights of the terms that count for the score."""


class InterPodAffinity:
    """Filter and scorer (kube-scheduler's plugin of that name).

    Arguments: `hardPodAffinityWeight` (1) is the weight of a required affinity of a running pod in the score;
    `ignorePreferredTermsOfExistingPods` (false) skips scoring of pods without preferred terms.
    """

    name = "InterPodAffinity"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._kubernetes = handle.kubernetes
        self._hard_weight = args.get("hardPodAffinityWeight", 1)
        self._ignores_existing = args.get("ignorePreferredTermsOfExistingPods", False)
        self._known: dict[tuple[PodKind, Hashable], _About] = {}
        self._refusals = (
            Refusal(_RULES[0], _AFFINITY, Code.UNRESOLVABLE), Refusal(_RULES[1], _ANTI_AFFINITY),
            Refusal(_RULES[2], _EXISTING),
        )

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        given = read_args(args, "InterPodAffinityArgs", {
            "hardPodAffinityWeight": integer, "ignorePreferredTermsOfExistingPods": boolean,
        })
        weight = given.get("hardPodAffinityWeight", 1)
        if not 0 <= weight <= HIGHEST_SCORE:
            raise ValueError(f"`hardPodAffinityWeight` is {weight}: not in valid range [0, 100]")
        return {"hardPodAffinityWeight": weight,
                "ignorePreferredTermsOfExistingPods": given.get("ignorePreferredTermsOfExistingPods", False)}

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | Skip | None:
        """Skip pods without required terms that no running pod's anti-affinity selects."""
        pods = pod_counts(snapshot)
        kind = pods.kind_of(pod)
        if kind.terms.problem:
            return Refusal("affinity", kind.terms.problem, Code.ERROR)
        if kind.terms.required_affinity or kind.terms.required_anti_affinity:
            return None
        return None if self._about(pods, kind).keeping_apart else SKIP

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes by the pod's required terms, and by the anti-affinity of running pods."""
        pods = pod_counts(snapshot)
        kind = pods.kind_of(pod)
        terms = kind.terms
        failed: list[_Booleans | None] = [
            self._misses_affinity(terms.required_affinity, kind, pods, snapshot) if terms.required_affinity else None,
            self._meets_others(terms.required_anti_affinity, pods, snapshot) if terms.required_anti_affinity else None,
            self._is_kept_apart(kind, pods, snapshot),
        ]
        passed: _Booleans = np.ones(snapshot.size, np.bool_)
        for each in failed:
            if each is not None:
                passed &= ~each

        def groups(refused: Rows) -> list[Rows]:
            found = []
            for each in failed:
                here = each[refused] if each is not None else np.zeros(len(refused), np.bool_)
                found.append(refused[here])
                refused = refused[~here]
            return found

        def explain(row: int) -> Refusal:
            return next(
                refusal for refusal, each in zip(self._refusals, failed, strict=True) if each is not None and each[row]
            )

        def codes(refused: Rows) -> dict[Code, Rows]:
            first, *others = groups(refused)
            return {Code.UNRESOLVABLE: first, Code.UNSCHEDULABLE: np.sort(np.concatenate(others))}

        return Answer(passed, explain, codes=codes, reasons=lambda refused: {
            reason: some for reason, some in zip(_REASONS, groups(refused), strict=True) if len(some)
        })

    def _misses_affinity(
        self, terms: tuple[AffinityTerm, ...], own: PodKind, pods: PodsSeen, snapshot: Snapshot,
    ) -> _Booleans:
        labels_of = pods.namespace_labels

        def takes(kind: PodKind) -> bool:
            return all(term.takes(kind.namespace, kind.labels, labels_of) for term in terms)

        cache_key = ("affinity", terms, _namespaces(terms, pods))
        missed: _Booleans = np.zeros(snapshot.size, np.bool_)
        anywhere = False
        lacking: _Booleans = np.zeros(snapshot.size, np.bool_)
        for key in dict.fromkeys(term.topology_key for term in terms):
            found = domains(snapshot, key)
            if not found.complete:
                lacking |= ~found.present
            near = pods.near(cache_key, lambda kind: int(takes(kind)), found)
            anywhere = anywhere or bool(near.any())
            missed |= near <= 0
        # The first of several pods with affinity to each other has none to match.
        return lacking if not anywhere and takes(own) else missed | lacking

    def _meets_others(self, terms: tuple[AffinityTerm, ...], pods: PodsSeen, snapshot: Snapshot) -> _Booleans:
        met: _Booleans = np.zeros(snapshot.size, np.bool_)
        for term in dict.fromkeys(terms):
            cache_key = ("affinity", (term,), _namespaces((term,), pods))
            met |= pods.near(cache_key, _takes(term, pods), domains(snapshot, term.topology_key)) > 0
        return met

    def _is_kept_apart(self, kind: PodKind, pods: PodsSeen, snapshot: Snapshot) -> _Booleans | None:
        apart: _Booleans | None = None
        for key, matched in self._about(pods, kind).keeping_apart.items():
            here = _near(matched, pods, domains(snapshot, key), ("apart", key)) > 0
            apart = here if apart is None else apart | here
        return apart

    # Score

    def pre_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Skip | None:
        """Skip pods without preferred terms that no running pod's terms match."""
        pods = pod_counts(snapshot)
        kind = pods.kind_of(pod)
        if kind.terms.preferred_affinity or kind.terms.preferred_anti_affinity:
            return None
        return SKIP if self._ignores_existing or not self._about(pods, kind).drawing else None

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Prefer nodes by the weights of the preferred terms, the pod's own and those of the pods that run."""
        pods = pod_counts(snapshot)
        kind = pods.kind_of(pod)
        own = [*((term, 1) for term in kind.terms.preferred_affinity),
               *((term, -1) for term in kind.terms.preferred_anti_affinity)]
        raw: Counts = np.zeros(snapshot.size, np.int64)
        for term, sign in own:
            cache_key = ("affinity", (term,), _namespaces((term,), pods))
            near = pods.near(cache_key, _takes(term, pods), domains(snapshot, term.topology_key))
            raw += near * (sign * term.weight)
        if own or not self._ignores_existing:
            for key, matched in self._about(pods, kind).drawing.items():
                raw += _near(matched, pods, domains(snapshot, key), ("drawn", key))
        return Scores(_normalized(raw, rows), raw={"": raw})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether nodes, namespaces or pods that are on a node changed; since Kubernetes 1.36, also the pod."""
        return (placed_pod_changed(event, self._kubernetes) or node_came_or_changed(event)
                or event.kind == "Namespace"
                or (BehaviourChange.OWN_LABELS_HELP.is_in(self._kubernetes) and is_of(event, pod)))

    # Terms of running pods

    def _about(self, pods: PodsSeen, kind: PodKind) -> _About:
        version = pods.terms_version, pods.namespaces_version
        found = self._known.get((kind, version))
        if found is None:
            if len(self._known) >= _MOST_KINDS:
                self._known.clear()
            found = self._known[kind, version] = self._find_about(pods, kind)
        return found

    def _find_about(self, pods: PodsSeen, kind: PodKind) -> _About:
        apart: dict[str, dict[AffinityTerms, int]] = {}
        drawing: dict[str, dict[AffinityTerms, int]] = {}
        namespace, labels, labels_of = kind.namespace, kind.labels, pods.namespace_labels
        hard = self._hard_weight
        for of in pods.affine():
            counted = [(apart, term, 1) for term in of.required_anti_affinity]
            if hard:
                counted += [(drawing, term, hard) for term in of.required_affinity]
            counted += [(drawing, term, term.weight) for term in of.preferred_affinity]
            counted += [(drawing, term, -term.weight) for term in of.preferred_anti_affinity]
            for found, term, amount in counted:
                if term.takes(namespace, labels, labels_of):
                    by_terms = found.setdefault(term.topology_key, {})
                    by_terms[of] = by_terms.get(of, 0) + amount
        return _About(apart, drawing)


def _takes(term: AffinityTerm, pods: PodsSeen) -> Callable[[PodKind], int]:
    labels_of = pods.namespace_labels
    return lambda kind: int(term.takes(kind.namespace, kind.labels, labels_of))


def _namespaces(terms: Iterable[AffinityTerm], pods: PodsSeen) -> int:
    """Return the version of the namespaces' labels that a column of these terms depends on; 0 for none."""
    return pods.namespaces_version if any(term.reads_namespaces for term in terms) else 0


def _near(matched: _Matched, pods: PodsSeen, among: Domains, what: Hashable) -> Counts:
    """Return the total weight of the running pods with these terms in the domain of each node."""
    return pods.near((what, frozenset(matched.items())), lambda kind: matched.get(kind.terms, 0), among)


def _normalized(raw: Counts, rows: Rows) -> Counts:
    """Return scores 0..100 between the lowest and the highest of the rows; all 0 if they are equal."""
    values = raw[rows]
    if not len(values):
        return np.zeros(len(raw), np.int64)
    most, least = int(values.max()), int(values.min())
    if most == least:
        return np.zeros(len(raw), np.int64)
    # In the floating point of the original.
    return (HIGHEST_SCORE * ((raw - least) / (most - least))).astype(np.int64)
