"""NodeAffinity: required and preferred node labels of a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.explain.clauses import ABSENT
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.edits import Edit, label_edit, may_vary, without_selection_edit
from koordpolicy.engine.cluster.node_selection import (
    PREFERRED,
    REQUIRED,
    NodeSelection,
    label_path,
    node_affinity,
    paths_of,
    pod_that_requires,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, CacheKey, Code, Point, Refusal, Scores
from koordpolicy.engine.kubernetes.selectors import Json, matches_node
from koordpolicy.engine.scheduler.cycle.normalize import normalize_by_max
from koordpolicy.plugin import SKIP_SHAPE, CycleState, Event, Handle, OnlyNodes, Skip

from ..allocation.requeue_hints import is_of, node_came_or_changed
from ..allocation.strict_args import integer, listed, nested, read_args, text, texts

_PATHS: Final = frozenset({("node", "metadata", "labels"), ("node", "metadata", "name")})
_REASON: Final = "node(s) didn't match Pod's node affinity/selector"
_ENFORCED: Final = "node(s) didn't match scheduler-enforced node affinity"
_CONFLICT: Final = "pod affinity terms conflict"
_NAME_FIELD: Final = "metadata.name"

_requirement: Final = nested({
    "key": text, "operator": text, "values": lambda value, path: list(texts(value, path)),
})
_term: Final = nested({"matchExpressions": listed(_requirement), "matchFields": listed(_requirement)})
_added: Final = nested({
    REQUIRED: nested({"nodeSelectorTerms": listed(_term)}),
    PREFERRED: listed(nested({"weight": integer, "preference": _term})),
})


class NodeAffinity:
    """PreFilter, filter and scorer (kube-scheduler's plugin of that name).

    Arguments: `addedAffinity` is a node affinity for all pods of the profile, in addition to their own.
    """

    name = "NodeAffinity"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        added: Json = args.get("addedAffinity") or {}
        required = added.get(REQUIRED)
        self._added = None if required is None else pod_that_requires(required.get("nodeSelectorTerms") or ())
        self._added_preferred: Sequence[Json] = added.get(PREFERRED) or ()
        self._selection = NodeSelection()
        self._weights = Derived(frozenset(), np.int64, distinct=True)
        self._refusal = Refusal("affinity", _REASON, Code.UNRESOLVABLE)
        self._enforced = Refusal("added-affinity", _ENFORCED, Code.UNRESOLVABLE)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments; raises `ValueError` with the fault and the field's path."""
        given = read_args(args, "NodeAffinityArgs", {"addedAffinity": _added})
        added = given.get("addedAffinity", {})
        probe = pod_that_requires([*(added.get(REQUIRED) or {}).get("nodeSelectorTerms", ()),
                                   *(each.get("preference", {}) for each in added.get(PREFERRED, ()))])
        try:
            PodInfo.of({"metadata": {"name": "probe"}, "spec": {**probe["spec"], "containers": [{"name": "probe"}]}})
        except ValueError as error:
            raise ValueError(f"`addedAffinity`: {error}") from None
        for index, each in enumerate(added.get(PREFERRED, ())):
            if not 1 <= each.get("weight", 0) <= HIGHEST_SCORE:
                path = f"addedAffinity.{PREFERRED}[{index}].weight"
                raise ValueError(f"`{path}` is {each.get('weight', 0)}: not in valid range [1, 100]")
        return given

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Skip pods that accept any node; limit the nodes of those that name them."""
        spec = pod.object.get("spec") or {}
        required = node_affinity(spec).get(REQUIRED)
        if required is None:
            return SKIP_SHAPE if self._added is None and not spec.get("nodeSelector") else None
        names: set[str] = set()
        terms = required.get("nodeSelectorTerms") or ()
        for term in terms:
            fields = [frozenset(each.get("values") or ()) for each in term.get("matchFields") or ()
                      if each.get("key") == _NAME_FIELD and each.get("operator") == "In"]
            if not fields:
                return None  # terms are alternatives: this one matches nodes of any name
            names |= frozenset.intersection(*fields)
        if not terms:
            return None
        return OnlyNodes(frozenset(names)) if names else Refusal("affinity", _CONFLICT, Code.UNRESOLVABLE)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes that the node selector, the required affinity or the added one does not match."""
        own = self._selection.of(pod.object, snapshot)
        added = self._selection.of(self._added, snapshot) if self._added is not None else None
        if added is None:
            passed = np.ones(snapshot.size, np.bool_) if own is None else own
            return Answer(passed, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                          codes=lambda refused: {Code.UNRESOLVABLE: refused})
        enforced = added
        passed = enforced if own is None else enforced & own

        def reasons(refused: Rows) -> dict[str, Rows]:
            passing = enforced[refused]
            groups = {_ENFORCED: refused[~passing], _REASON: refused[passing]}
            return {reason: some for reason, some in groups.items() if len(some)}

        return Answer(passed, lambda row: self._refusal if enforced[row] else self._enforced, reasons=reasons,
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def pre_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Skip | None:
        """Skip pods without preferences."""
        return None if self._preferred(pod) else SKIP_SHAPE

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Add up the weights of the preferred terms that match the node; the highest sum becomes 100."""
        preferred = self._preferred(pod)
        if not preferred:
            return Scores(np.zeros(snapshot.size, np.int64))
        terms = [(int(each.get("weight", 0)), each.get("preference") or {}) for each in preferred]
        paths = frozenset(path for _, term in terms for path in paths_of(term))
        weighted = [(weight, pod_that_requires([term])) for weight, term in terms]
        sums = self._weights.of(
            snapshot, json.dumps(terms, sort_keys=True),
            lambda view, row: sum(weight for weight, probe in weighted if matches_node(probe, view.node(row))),
            paths=paths,
        )
        return Scores(normalize_by_max(sums, rows, HIGHEST_SCORE), raw={"": sums})

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether a node came or changed."""
        return node_came_or_changed(event) or is_of(event, pod)

    def _preferred(self, pod: PodInfo) -> Sequence[Json]:
        own: Sequence[Json] = node_affinity(pod.object.get("spec") or {}).get(PREFERRED) or ()
        return [*self._added_preferred, *own] if self._added_preferred else own

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return the dependencies of the filter: the node selector and the required affinity."""
        if point is not Point.FILTER:
            return None
        spec = pod.object.get("spec") or {}
        required = node_affinity(spec).get(REQUIRED)
        return CacheKey(repr((spec.get("nodeSelector"), required)), _PATHS, stable_for_shape=True,
                        refusal=self._refusal if self._added is None else None)

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield the labels that users could add to the node, and the selection that the pod could drop."""
        spec, node = pod.object.get("spec") or {}, snapshot.node(row)
        labels = (node.get("metadata") or {}).get("labels") or {}
        for key, value in (spec.get("nodeSelector") or {}).items():
            if labels.get(key) != value:
                if may_vary(label_path(key)):
                    yield label_edit(node, key, value)
                yield without_selection_edit(pod, ("spec", "nodeSelector", key), f"node selector {key}={value}")
        required = node_affinity(spec).get(REQUIRED)
        if required is None or matches_node({"spec": {"affinity": {"nodeAffinity": {REQUIRED: required}}}}, node):
            return
        for term in required.get("nodeSelectorTerms") or ():
            for each in term.get("matchExpressions") or ():
                key, values = str(each.get("key", "")), each.get("values") or ("true",)
                if each.get("operator") in ("In", "Exists") and may_vary(label_path(key)):
                    yield label_edit(node, key, values[0])
                elif each.get("operator") in ("NotIn", "DoesNotExist") and may_vary(label_path(key)):
                    yield label_edit(node, key, ABSENT)
        yield without_selection_edit(pod, ("spec", "affinity", "nodeAffinity", REQUIRED), "required node affinity")
