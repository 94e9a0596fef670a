"""One node as expressions see it, without columns: a node agent evaluates row by row, and does not load numpy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.node_rows import NodeRow, allocatable_of, devices_of, model_of
from koordpolicy.engine.cluster.objects.pods import PodInfo

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_KINDS: Final = frozenset({"Node", "Pod", "Namespace"})


class NodeVariables:
    """The variables of a node and its pods, and the objects beside them; without measurements.

    The same as the row of the node in a cluster of these objects. Finished pods request nothing.
    """

    def __init__(
        self, node: Mapping[str, Any], pods: Iterable[PodInfo], namespaces: Iterable[Mapping[str, Any]] = (),
        kinds: Collection[str] = _KINDS,
    ) -> None:
        """`kinds` are those that the source of the objects contains.

        Raises:
            EvaluationError: the Node is malformed, with reason `InvalidNode`.
        """
        name = str(node["metadata"]["name"])
        try:
            allocatable = allocatable_of(node)
            self._row = NodeRow(name, node, allocatable)
            self._row.set_devices(devices_of(allocatable, None), model_of(node, None))
        except ValueError as error:
            raise EvaluationError(f"the Node `{name}`: {error}", reason="InvalidNode") from None
        self._pods: dict[str, Mapping[str, Any]] = {}
        for pod in pods:
            self._pods[pod.key] = pod.object
            if (pod.object.get("status") or {}).get("phase") not in _FINISHED:
                self._row.add(pod)
        self._objects: dict[str, dict[str, Mapping[str, Any]]] = {
            "Node": {name: node}, "Pod": self._pods,
            "Namespace": {str(each["metadata"]["name"]): each for each in namespaces}}
        self._kinds = frozenset(kinds)

    def value(self, name: str) -> object:
        """Return `node`, `nodeInfo` (which says that nothing was measured), `allocatable` or `requested`."""
        match name:
            case "node":
                return self._row.node
            case "nodeInfo":
                return self._row.info(measured=False)
            case "allocatable":
                return self._row.allocatable
            case "requested":
                return self._row.requested
            case _:
                raise KeyError(name)

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object by kind and key, or None."""
        return self._objects.get(kind, {}).get(key)

    def objects(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all objects of a kind by key."""
        return self._objects.get(kind, {})

    def lacks(self, kind: str) -> bool:
        """Return whether a kind is unknown, because the source does not contain it."""
        return kind not in self._kinds and not self._objects.get(kind)
