"""NodeAffinity: the labels that a pod wants its node to have, or would like it to have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.checked import Path
from koordpolicy.engine.cel.clauses import ABSENT
from koordpolicy.engine.cel.frame import Rows
from koordpolicy.engine.cluster.edits import Edit, label_edit, may_vary, without_selection_edit
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import Json, matches_node
from koordpolicy.engine.plugins import CycleState, Handle
from koordpolicy.engine.points import HIGHEST_SCORE, Answer, Code, Refusal, Scores
from koordpolicy.engine.scheduler.args import no_args
from koordpolicy.engine.scheduler.distinct import DistinctAnswers
from koordpolicy.engine.scheduler.normalize import normalize_by_max

_REASON: Final = "node(s) didn't match Pod's node affinity/selector"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class NodeAffinity:
    """Filter and score (kube-scheduler's plugin of that name)."""

    name = "NodeAffinity"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:  # noqa: ARG002 - every plugin is made like this
        self._matches = DistinctAnswers(np.bool_)
        self._weights = DistinctAnswers(np.int64)
        self._refusal = Refusal("affinity", _REASON, Code.UNRESOLVABLE)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:  # noqa: ARG002
        """Refuse nodes that the node selector or the required affinity does not take."""
        spec = pod.object.get("spec") or {}
        selector, required = spec.get("nodeSelector") or {}, _affinity(spec).get(_REQUIRED)
        if not selector and required is None:
            return Answer(np.ones(snapshot.size, np.bool_))
        paths = {_label(key) for key in selector}
        for term in (required or {}).get("nodeSelectorTerms") or ():
            paths.update(_paths(term))
        passed = self._matches.answer(
            snapshot, frozenset(paths), json.dumps([selector, required], sort_keys=True),
            lambda row: matches_node(pod.object, snapshot.node(row)),
        )
        return Answer(passed, lambda _: self._refusal, reasons=lambda refused: {_REASON: refused},
                      codes=lambda refused: {Code.UNRESOLVABLE: refused})

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:  # noqa: ARG002
        """Add up the weights of the preferred terms that take the node; the highest sum becomes 100."""
        preferred = _affinity(pod.object.get("spec") or {}).get(_PREFERRED) or ()
        if not preferred:
            return Scores(np.zeros(snapshot.size, np.int64))
        terms = [(int(each.get("weight", 0)), each.get("preference") or {}) for each in preferred]
        paths = frozenset(path for _, term in terms for path in _paths(term))
        wanted = [(weight, _pod_that_requires(term)) for weight, term in terms]
        sums = self._weights.answer(
            snapshot, paths, json.dumps(terms, sort_keys=True),
            lambda row: sum(weight for weight, probe in wanted if matches_node(probe, snapshot.node(row))),
        )
        return Scores(normalize_by_max(sums, rows, HIGHEST_SCORE), raw={"": sums})

    def remedies(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield the labels that the node would need, as far as people set them, and what the pod could do without."""
        spec, node = pod.object.get("spec") or {}, snapshot.node(row)
        labels = (node.get("metadata") or {}).get("labels") or {}
        for key, value in (spec.get("nodeSelector") or {}).items():
            if labels.get(key) != value:
                if may_vary(_label(key)):
                    yield label_edit(node, key, value)
                yield without_selection_edit(pod, ("spec", "nodeSelector", key), f"node selector {key}={value}")
        required = _affinity(spec).get(_REQUIRED)
        if required is None or matches_node({"spec": {"affinity": {"nodeAffinity": {_REQUIRED: required}}}}, node):
            return
        for term in required.get("nodeSelectorTerms") or ():
            for each in term.get("matchExpressions") or ():
                key, values = str(each.get("key", "")), each.get("values") or ("true",)
                if each.get("operator") in ("In", "Exists") and may_vary(_label(key)):
                    yield label_edit(node, key, values[0])
                elif each.get("operator") in ("NotIn", "DoesNotExist") and may_vary(_label(key)):
                    yield label_edit(node, key, ABSENT)
        yield without_selection_edit(pod, ("spec", "affinity", "nodeAffinity", _REQUIRED), "required node affinity")


def _affinity(spec: Json) -> Json:
    affinity: Json = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity


def _pod_that_requires(term: Json) -> Json:
    return {"spec": {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}}}


def _paths(term: Json) -> Iterator[Path]:
    for expression in term.get("matchExpressions") or ():
        yield _label(str(expression.get("key", "")))
    if term.get("matchFields"):
        yield ("node", "metadata", "name")


def _label(key: str) -> Path:
    return ("node", "metadata", "labels", key)
