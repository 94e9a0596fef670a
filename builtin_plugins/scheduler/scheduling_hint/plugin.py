"""SchedulingHint: restricts or orders the nodes of a pod by the annotation of another component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.plugin import SKIP, CycleState, Event, Handle, OnlyNodes, Skip

from ..allocation.annotations import SCHEDULING_HINT_ANNOTATIONS, annotations_of, json_object
from ..allocation.requeue_hints import is_of
from ..allocation.strict_args import integer, read_args

_MOST_NODES: Final = 100


class SchedulingHint:
    """PreFilter, and nodes to try before all others; for annotation and arguments see docs/plugins/scheduling-hint.md.

    (Koordinator's pkg/scheduler/plugins/schedulinghint.)
    """

    name = "SchedulingHint"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._most: int = args.get("maxHintNodes", _MOST_NODES)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return v1 arguments with their defaults; raises `ValueError` with the path of an invalid field."""
        given = {"maxHintNodes": _MOST_NODES, **read_args(args, "SchedulingHintArgs", {"maxHintNodes": integer})}
        if given["maxHintNodes"] < 1:
            raise ValueError(f"`maxHintNodes` is {given['maxHintNodes']}: it must be at least 1")
        return given

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Limit the nodes to those that the hint names, if it names any."""
        try:
            only, preferred = _hinted(pod)
        except ValueError as error:
            return Refusal("hint", str(error), Code.ERROR)
        state[SchedulingHint] = preferred
        return OnlyNodes(frozenset(only)) if only else SKIP

    def prefer_nodes(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Sequence[str] | Skip:
        """Return the considered nodes that the hint prefers."""
        preferred: Sequence[str] = state.get(SchedulingHint, ())
        if not preferred:
            return SKIP
        considered = {snapshot.names[row] for row in rows.tolist()}
        return [name for name in preferred[:self._most] if name in considered] or SKIP

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the pod itself changed, or a node was added."""
        return is_of(event, pod) or (event.kind == "Node" and event.old is None)


def _hinted(pod: PodInfo) -> tuple[Sequence[str], Sequence[str]]:
    """Return the only nodes to consider, empty for all, and those to try first; raises `ValueError` for a malformed
    hint.
    """
    annotations = annotations_of(pod.object)
    name = next((each for each in SCHEDULING_HINT_ANNOTATIONS if annotations.get(each)), None)
    if name is None:
        return (), ()
    hint = json_object(annotations, name)
    return _names(hint, "nodeNames", name), _names(hint, "preferredNodeNames", name)


def _names(hint: Mapping[str, Any], field: str, annotation: str) -> Sequence[str]:
    names = hint.get(field) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"annotation `{annotation}`: `{field}` must be a list of strings")
    return names
