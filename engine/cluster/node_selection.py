"""Node selectors and node affinity as columns, evaluated once per distinct set of the labels that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import Json, matches_node

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def node_affinity(spec: Json) -> Json:
    """Return the node affinity of a pod's spec, empty if there is none."""
    affinity: Json = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity


def label_path(key: str) -> Path:
    """Return the path of a node label."""
    return ("node", "metadata", "labels", key)


def paths_of(term: Json) -> Iterator[Path]:
    """Yield the paths of a node that a term reads."""
    for expression in term.get("matchExpressions") or ():
        yield label_path(str(expression.get("key", "")))
    if term.get("matchFields"):
        yield ("node", "metadata", "name")


def pod_that_requires(terms: Sequence[Json]) -> Json:
    """Return a minimal pod that requires one of these terms of its node."""
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}}


class NodeSelection:
    """The nodes that match the node selector and the required affinity of pods, cached for one plugin."""

    def __init__(self) -> None:
        self._matches = Derived(frozenset(), np.bool_, distinct=True)

    def of(self, pod: Json, snapshot: Snapshot) -> NDArray[np.bool_] | None:
        """Return bool[nodes], read-only, or None if the pod accepts any node."""
        spec: Mapping[str, Any] = pod.get("spec") or {}
        selector, required = spec.get("nodeSelector") or {}, node_affinity(spec).get(REQUIRED)
        if not selector and required is None:
            return None
        paths = {label_path(key) for key in selector}
        for term in (required or {}).get("nodeSelectorTerms") or ():
            paths.update(paths_of(term))
        return self._matches.of(
            snapshot, json.dumps([selector, required], sort_keys=True),
            lambda view, row: matches_node(pod, view.node(row)), paths=frozenset(paths),
        )
