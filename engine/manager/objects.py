"""The objects that the manager follows, as the API server last delivered them.

They are written in the event loop of the informers. Webhooks read them in another thread: each read takes one
reference, which is replaced and never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.client.informer import Change
from koordpolicy.engine.client.projection import FieldPath, Projection
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ApiResource
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.metadata import labels_of
from koordpolicy.engine.kubernetes.vocabulary import QUOTA_NAME_LABEL

_LOG: Final = logging.getLogger(__name__)

CONFIG_MAPS: Final = ApiResource("ConfigMap", "", "v1", "configmaps")
PROFILES: Final = ApiResource(
    "ClusterColocationProfile", "config.koordinator.sh", "v1alpha1", "clustercolocationprofiles")


@dataclass(frozen=True, slots=True)
class FollowedKind:
    """A kind that is followed, and the fields of its objects that are read; None for all."""

    resource: ApiResource
    fields: frozenset[FieldPath] | None = None


def _fields(*paths: str) -> frozenset[FieldPath]:
    identity = ("apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion")
    return frozenset(tuple(path.split(".")) for path in (*identity, *paths))


FOLLOWED: Final = (
    FollowedKind(CONFIG_MAPS),
    FollowedKind(BY_KIND["Node"], _fields("metadata.labels", "metadata.annotations", "metadata.deletionTimestamp",
                                          "status.capacity", "status.allocatable")),
    FollowedKind(BY_KIND["NodeMetric"]),
    FollowedKind(BY_KIND["NodeSLO"]),
    FollowedKind(BY_KIND["NodeResourceTopology"]),
    FollowedKind(BY_KIND["Pod"], _fields(
        "metadata.labels", "metadata.annotations", "spec.nodeName", "spec.priority", "spec.overhead", "spec.resources",
        "spec.containers.name", "spec.containers.resources", "spec.initContainers.name",
        "spec.initContainers.resources", "spec.initContainers.restartPolicy", "status.phase", "status.qosClass")),
    FollowedKind(BY_KIND["Namespace"], _fields("metadata.labels")),
    FollowedKind(BY_KIND["PriorityClass"]),
    FollowedKind(BY_KIND["ElasticQuota"]),
    FollowedKind(PROFILES),
)
"""The kinds that the manager follows; those of Koordinator may be absent."""


class ManagedObjects:
    """The followed objects, by kind and key (`namespace/name`, or the name); pods also by node and by quota."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Mapping[str, Any]]] = {each.resource.kind: {} for each in FOLLOWED}
        self._projections = {each.resource.kind: Projection(each.fields) for each in FOLLOWED}
        self._pods: dict[str, PodInfo] = {}
        self._by_node: dict[str, dict[str, Any]] = {}
        self._by_quota: dict[str, dict[str, Any]] = {}
        self._faults = RepeatedFaults()

    def apply(self, changes: Sequence[Change], changed: Callable[[str, str], None]) -> None:
        """Take changes of an informer; `changed` is called with kind and key of each that is not older than the known
        object.
        """
        for change in changes:
            key = f"{change.namespace}/{change.name}" if change.namespace else change.name
            if change.deleted or change.raw is None:
                self._remove(change.kind, key)
                changed(change.kind, key)
            elif self.put(change.kind, key, bytes(change.raw)):
                changed(change.kind, key)

    def put(self, kind: str, key: str, raw: bytes) -> bool:
        """Take an object in JSON; return False for an older version than the known one, and for an unreadable one."""
        try:
            item = self._projections[kind].decode(raw)
            version = _version(item)
            known = self._objects[kind].get(key)
            if known is not None and version < _version(known) and _uid(known) == _uid(item):
                return False
            if kind == "Pod":
                self._put_pod(key, PodInfo.of(item))
        except (ValueError, RecursionError) as error:
            if self._faults.is_due(str(error), key):
                _LOG.warning("%s %s cannot be read, and is left out: %s", kind, key, error)
            self._remove(kind, key)
            return False
        self._objects[kind][key] = item
        return True

    def _put_pod(self, key: str, pod: PodInfo) -> None:
        self._remove("Pod", key)
        self._pods[key] = pod
        if pod.node_name:
            self._by_node.setdefault(pod.node_name, {})[key] = pod
        quota = labels_of(pod.object).get(QUOTA_NAME_LABEL)
        if quota:
            self._by_quota.setdefault(quota, {})[key] = None

    def _remove(self, kind: str, key: str) -> None:
        self._objects[kind].pop(key, None)
        pod = self._pods.pop(key, None) if kind == "Pod" else None
        if pod is None:
            return
        _take_out(self._by_node, pod.node_name, key)
        _take_out(self._by_quota, labels_of(pod.object).get(QUOTA_NAME_LABEL) or "", key)

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object, or None."""
        return self._objects[kind].get(key)

    def keys(self, kind: str) -> tuple[str, ...]:
        """Return the keys of all objects of a kind."""
        return tuple(self._objects[kind])

    def all(self, kind: str) -> tuple[Mapping[str, Any], ...]:
        """Return all objects of a kind."""
        return tuple(self._objects[kind].values())

    def pods_of(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that are bound to a node."""
        return tuple(self._by_node.get(node, {}).values())

    def pods_of_quota(self, quota: str) -> tuple[PodInfo, ...]:
        """Return the pods whose label names a quota, by namespace and name."""
        found = (self._pods.get(key) for key in tuple(self._by_quota.get(quota, ())))
        return tuple(sorted((pod for pod in found if pod is not None), key=lambda pod: pod.key))


def _take_out(index: dict[str, dict[str, Any]], name: str, key: str) -> None:
    held = index.get(name)
    if held is not None:
        held.pop(key, None)
        if not held:
            del index[name]


def _uid(item: Mapping[str, Any]) -> object:
    return (item.get("metadata") or {}).get("uid")


def _version(item: Mapping[str, Any]) -> int:
    text = str((item.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdecimal() else 0
