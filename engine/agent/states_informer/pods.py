"""Pods of a node: what is decoded of them, and the containers that run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.projection import PartPool, Projection
from koordpolicy.engine.cluster.kinds import CLUSTER_READS, IDENTITY, FieldSets, field_paths
from koordpolicy.engine.cluster.objects.pods import PodInfo

_LOG: Final = logging.getLogger(__name__)

_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_STATUS: Final = "{name,containerID,state,ready,resources,allocatedResources}"
_COPY: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MIRROR: Final = "kubernetes.io/config.mirror"
_OWN: Final = field_paths(
    "metadata.{annotations,creationTimestamp,deletionTimestamp,generation,labels,ownerReferences}",
    "spec.{hostNetwork,nodeName,overhead,priority,priorityClassName,resources,restartPolicy}",
    "spec.terminationGracePeriodSeconds",
    "spec.containers.{name,resources,restartPolicy}", "spec.initContainers.{name,resources,restartPolicy}",
    "spec.volumes.{name,persistentVolumeClaim,ephemeral.metadata,csi.driver}",
    "status.{allocatedResources,conditions,phase,qosClass,resources,startTime}",
    f"status.containerStatuses.{_STATUS}", f"status.initContainerStatuses.{_STATUS}",
)
"""The fields that the agent itself reads. Images, environment, probes and mounts, most of the JSON, are not read."""

_ACTIVE_PHASES: Final = (None, "Pending", "Running")


def is_active(pod: PodInfo) -> bool:
    """Return whether a pod is pending or running."""
    status: Any = pod.object.get("status") or {}
    return status.get("phase") in _ACTIVE_PHASES


def pod_projection(reads: FieldSets) -> Projection:
    """Return the fields of pods that the agent decodes: its own, and `reads`, those of plugins."""
    more = reads.get("Pod", frozenset())
    cluster = next(each.fields for each in CLUSTER_READS if each.kind == "Pod")
    if more is None:
        return Projection()
    # Plugins' fields include those that the scheduler itself reads, which the agent does not need.
    return Projection(_OWN | IDENTITY | (more - (cluster or frozenset())))


@dataclass(slots=True)
class PodReader:
    """Reads pods in JSON. One that cannot be read stays as it was, and is logged once per cause."""

    projection: Projection
    mirrors: bool = False
    """True if pods come from the API server, where a static pod is a mirror: its control groups have another UID."""
    faults: dict[str, str] = field(default_factory=dict)
    """The error of each pod that could not be read in its last version, by `namespace/name`."""
    _parts: PartPool = field(default_factory=lambda: PartPool(4096))
    _read: dict[bytes, PodInfo] = field(default_factory=dict)
    """The pods of the last list by their JSON: most have not changed since."""

    def use(self, projection: Projection) -> bool:
        """Decode these fields too; return True if some are new, so that all pods must be read again."""
        if self.projection.covers(projection):
            return False
        self.projection |= projection
        self._read.clear()
        return True

    def read(self, raw: msgspec.Raw | bytes) -> PodInfo:
        """Return a pod; raise `ValueError` or `RecursionError` if it cannot be read."""
        item = self.projection.decode(raw)
        item["apiVersion"], item["kind"] = "v1", "Pod"
        return self.of(item)

    def of(self, item: dict[str, Any]) -> PodInfo:
        """Return a pod of a decoded object."""
        metadata = item.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        if isinstance(metadata, dict) and isinstance(annotations, dict):
            annotations.pop(_COPY, None)
            if self.mirrors and isinstance(annotations.get(_MIRROR), str):
                metadata["uid"] = annotations[_MIRROR]
        return PodInfo.of(self._parts.share(item))

    def read_all(
        self, raws: Iterable[msgspec.Raw], known: Mapping[str, PodInfo], *, whole: bool = True,
    ) -> dict[str, PodInfo]:
        """Return pods by key, and in place of a pod that cannot be read its last readable state.

        With `whole`, `raws` are all pods of the node.
        """
        found: dict[str, PodInfo] = {}
        faults: dict[str, str] = {}
        read: dict[bytes, PodInfo] = {}
        for raw in raws:
            content = bytes(raw)
            try:
                pod = self._read.get(content) or self.read(raw)
            except (ValueError, RecursionError) as error:
                key = _key_of(raw)
                faults[key] = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                if self.faults.get(key) != faults[key]:
                    _LOG.warning("the pod `%s` cannot be read, and is left as it was: %s", key, faults[key])
                if key in known:
                    found[key] = known[key]
                continue
            found[pod.key] = pod
            read[content] = pod
        if whole:
            self._read = read
        others = {} if whole else {key: fault for key, fault in self.faults.items() if key not in found}
        self.faults = others | faults
        return found


def sorted_pods(pods: Mapping[str, PodInfo]) -> tuple[PodInfo, ...]:
    """Return pods in the order of their keys."""
    return tuple(pods[key] for key in sorted(pods))


def container_ids(pod: PodInfo, *, running: bool = True) -> dict[str, str]:
    """Return the ids of a pod's containers with their runtime (`containerd://ID`) by name.

    Sidecars and running init containers are among them. With `running` only containers that run now: a container that
    waits to be restarted has the id of its last run, and no control group.
    """
    status = pod.object.get("status")
    found: dict[str, str] = {}
    for field_name in _STATUSES:
        statuses = status.get(field_name) if isinstance(status, Mapping) else None
        for each in statuses if isinstance(statuses, list) else ():
            if not isinstance(each, Mapping):
                continue
            name, known, state = each.get("name"), each.get("containerID"), each.get("state")
            runs = isinstance(state, Mapping) and state.get("running") is not None
            if isinstance(name, str) and isinstance(known, str) and known and (runs or not running):
                found[name] = known
    return found


class _Identity(msgspec.Struct, gc=False):
    name: Any = ""
    namespace: Any = ""


class _Identified(msgspec.Struct, gc=False):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)


def _key_of(raw: msgspec.Raw) -> str:
    try:
        metadata = _IDENTIFIED.decode(raw).metadata
    except (ValueError, RecursionError):
        return "?"
    return f"{metadata.namespace or 'default'}/{metadata.name}"[:300]
