"""Overlays: which rows differ from those of the cluster, and by what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.frame import Rows

from .objects.metrics import NodeMetric
from .objects.node_rows import NodeRow, allocatable_of, devices_of, model_of
from .objects.pods import PodInfo
from .state import ClusterState

__all__ = ["NodeChange", "override", "pod_changes", "rows_that_differ"]


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The changes of an overlay on one node: another node object or NodeMetric, removed pods (by key), added pods.

    `devices` are the minors of an added pod; without them, it gets the first that fit.
    """

    node: Mapping[str, Any] | None = None
    add: Sequence[PodInfo] = ()
    remove: Sequence[str] = ()
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metric: Mapping[str, Any] | None = None
    """Another NodeMetric object; it is as fresh as the previous one."""


def override(
    state: ClusterState, overridden: Mapping[int, NodeRow], changes: Mapping[str, NodeChange],
) -> dict[int, NodeRow]:
    """Return the overridden rows of an overlay with further changes; no row that is given changes.

    Raises:
        ValueError: there is no such node, a pod to remove is not on it, or an object is malformed.
    """
    result = dict(overridden)
    for name, change in changes.items():
        index = state.index.get(name)
        if index is None:
            raise ValueError(f"no node `{name}`")
        row = (result.get(index) or state.rows[index]).copy()
        if change.node is not None:
            row.set_node(change.node)
            row.allocatable = allocatable_of(change.node)
            device = state.object("Device", name)
            row.set_devices(devices_of(row.allocatable, device), model_of(row.node, device))
        if change.metric is not None:
            row.metric = NodeMetric.of(change.metric)
        for key in change.remove:
            if key not in row.pods:
                raise ValueError(f"no pod `{key}` on node `{name}`")
            row.remove(key)
        for pod in change.add:
            if pod.key in row.pods:
                row.remove(pod.key)
            row.add(pod.on(name), change.devices.get(pod.key, ()))
        result[index] = row
    return result


def rows_that_differ(state: ClusterState, overridden: Mapping[int, NodeRow], paths: frozenset[Path]) -> Rows:
    """Return the overridden rows, ascending, that may differ from the base at one of the ROW paths."""
    rows, differ = state.rows, [_DIFFER.get(path[0], _always) for path in paths]
    some = [index for index, row in overridden.items() if any(each(row, rows[index]) for each in differ)]
    return np.array(sorted(some), np.intp)


def pod_changes(row: NodeRow, base: NodeRow) -> Iterator[tuple[PodInfo, int]]:
    """Yield the pods that an overridden row adds to its base, with 1, and those that it lacks, with -1."""
    before = base.pods
    for key, pod in row.pods.items():
        if before.get(key) is not pod:
            yield pod, 1
    for key, pod in before.items():
        if row.pods.get(key) is not pod:
            yield pod, -1


def _always(row: NodeRow, base: NodeRow) -> bool:  # noqa: ARG001 - whatever they are
    return True


_DIFFER: Final[Mapping[str, Callable[[NodeRow, NodeRow], bool]]] = {
    "node": lambda row, base: row.node is not base.node,
    "allocatable": lambda row, base: row.allocatable is not base.allocatable,
    "nodeMetric": lambda row, base: row.metric is not base.metric,
    "objects": lambda row, base: False,  # noqa: ARG005 - an overlay overrides no objects of the cluster
}
"""By variable, whether an overridden row may differ from the base's at its paths; a row may always differ at others."""
