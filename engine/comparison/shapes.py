"""Kinds of pods that no policy can distinguish, so that thousands of replicas are evaluated once.

A cluster of fifty thousand pods has some hundred kinds. Pods of one kind may differ only in fields that no plugin reads
(name, uid, times, status, mounted tokens): every path that an expression of the active policies reads is part of the
kind. If a Python plugin of another distribution is active, which may read anything, each pod is a kind of its own.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.vector.encoding import value_at
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import pod_facts
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import CompiledScheduler
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.framework.scheduler import CycleState, Skip
from koordpolicy.engine.scheduler.profiles.profile import Profile
from koordpolicy.engine.testing.instruments import compiled_of, programs_of

_BUILT_IN: Final = "built-in"
_LOCAL: Final = frozenset((
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "LoadAwareScheduling", "GpuShare", "DeviceShare",
    "NodeNUMAResource", "ElasticQuota", "Coscheduling",
))
"""Built-in plugins whose result for a node depends only on that node and the pod, or on no node.

`Cacheable` does not imply that: a plugin without cacheable results may still read one node only.
"""
_OF_AFFINITY: Final = "InterPodAffinity"
"""The built-in plugin that reads other nodes if the pod has affinity."""
_OF_SPREAD: Final = "PodTopologySpread"
"""The built-in plugin that reads other nodes unless it skips the pod; its arguments may require that, too."""
_OF_DISKS: Final = "VolumeRestrictions"
"""The built-in plugin that reads other nodes unless it skips the pod: a claim may be in use on one of them."""
_OF_NEIGHBOURS: Final = frozenset((_OF_AFFINITY, _OF_SPREAD, _OF_DISKS))
_OF_CLAIMS: Final = frozenset(("NodeVolumeLimits", "VolumeBinding", "VolumeZone", _OF_DISKS))
"""Built-in plugins that read a pod's volumes."""
_OWN_VOLUMES: Final = frozenset(("configMap", "secret", "emptyDir", "projected", "downwardAPI", "hostPath"))
"""Kinds of volumes that no built-in plugin reads."""
_READ_OF_ANNOTATIONS: Final = ("koordinator.sh", "alibabacloud.com")
"""Domains of the annotations that built-in plugins and the rows of nodes read."""
_CONTAINERS: Final = ("initContainers", "containers")
_OWN_OF_SPEC: Final = frozenset(("nodeName", "volumes", "hostname", *_CONTAINERS))
_OWN_OF_CONTAINER: Final = frozenset(("volumeMounts", "env"))
_OF_POD: Final = frozenset(("pod", "podInfo"))
_KNOWN_OF_POD: Final = frozenset((("pod", "metadata", "labels"), ("pod", "metadata", "namespace")))
_WITHOUT_REFERENCES: Final = 2
"""The version of the format in which equal data has equal bytes, whatever objects it shares."""


@dataclass(frozen=True, slots=True)
class FieldReads:
    """The reads of the scheduling plugins of a registry: paths of a pod, and other nodes."""

    paths: frozenset[Path]
    everything: bool
    """True if a plugin may read any field of a pod."""
    local: bool
    """True if the result for a node depends only on that node and the pod, unless the pod refers to others itself."""
    affinity: bool
    """True if pods may refer to others by affinity."""
    spreads: tuple[Any, ...]
    """The plugins that read other nodes unless they skip the pod."""
    claims: bool
    """True if a plugin reads the volumes of pods."""

    def asks_alone(self, pod: PodInfo, snapshot: Snapshot) -> bool:
        """Return whether results for this pod on a node do not depend on other nodes."""
        if not self.local or (self.affinity and _is_drawn_or_kept_apart(pod)):
            return False
        return all(_skips(plugin, pod, snapshot) for plugin in self.spreads)

    @classmethod
    def of(cls, profiles: Iterable[Profile]) -> FieldReads:
        """Return the reads of the plugins of profiles."""
        profiles = tuple(profiles)
        checks = {each.name: each.plugin for of in profiles for each in (*of.pre_filters, *of.filters)}
        others = {each.name: each.plugin for of in profiles for each in of.scores}
        paths: set[Path] = set()
        for plugin in (checks | others).values():
            if plugin.source:
                for program in programs_of(compiled_of(plugin, {})):
                    paths.update(path for path in program.checked.reads if path[0] in _OF_POD)
        everything = any(not each.source and each.origin != _BUILT_IN for each in (checks | others).values())
        spreads = tuple(each.instance for of in profiles for each in of.filters
                        if each.name in (_OF_SPREAD, _OF_DISKS) and not each.plugin.source)
        local = all(_is_local(plugin) for name, plugin in checks.items() if name not in _OF_NEIGHBOURS or plugin.source)
        return cls(frozenset(paths), everything, local, _OF_AFFINITY in checks, spreads,
                   not _OF_CLAIMS.isdisjoint(checks))


def _is_local(plugin: Plugin) -> bool:
    if plugin.source:
        compiled = compiled_of(plugin, {})
        assert isinstance(compiled, CompiledScheduler)
        return not compiled.aggregates
    return plugin.origin == _BUILT_IN and plugin.name in _LOCAL


def _is_drawn_or_kept_apart(pod: PodInfo) -> bool:
    affinity = pod.object["spec"].get("affinity") or {}
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity"))


def _skips(plugin: Any, pod: PodInfo, snapshot: Snapshot) -> bool:
    try:
        return isinstance(plugin.pre_filter(CycleState(), pod, snapshot), Skip)
    except BaseException as error:  # the border: failures are reported where the plugin runs
        must_be_survived(error)
        return False


def shapes_of(pods: Iterable[PodInfo], reading: FieldReads) -> list[tuple[PodInfo, ...]]:
    """Return the pods grouped by kind, in the order of their first members.

    A placed pod and a pending one are never in one group.
    """
    paths = sorted(path for path in reading.paths if not _is_known(path))
    groups: dict[object, list[PodInfo]] = {}
    for pod in pods:
        key = pod.key if reading.everything else _key(pod, paths, claims=reading.claims)
        groups.setdefault(key, []).append(pod)
    return [tuple(group) for group in groups.values()]


def _is_known(path: Path) -> bool:
    """Return whether a path is part of the kind of every pod in any case."""
    return path[:3] in _KNOWN_OF_POD or (path[0] == "podInfo" and len(path) > 1 and path[1] != "name")


def _key(pod: PodInfo, paths: Iterable[Path], *, claims: bool) -> bytes | str:
    try:
        parts = [*_parts(pod, paths), *(_claims(pod) if claims else ())]
    except (AttributeError, TypeError):
        return pod.key  # malformed in a field that is not read: a separate kind
    try:
        return marshal.dumps(parts, _WITHOUT_REFERENCES)
    except ValueError:  # a value of no JSON type, as YAML may hold
        return repr(parts)


def _parts(pod: PodInfo, paths: Iterable[Path]) -> list[object]:
    """Return the parts of a pod's kind; raise `AttributeError` or `TypeError` if its object is malformed."""
    metadata, spec, gpu = pod.object["metadata"], pod.object["spec"], pod.gpu
    annotations = metadata.get("annotations") or {}
    parts: list[object] = [
        pod.namespace, bool(pod.node_name), pod.priority, pod.priority_band, pod.qos_class, pod.kubernetes_qos,
        dict(pod.requests), dict(pod.limits), metadata.get("labels"),
        None if gpu is None else (gpu.count, gpu.share, sorted(gpu.models)),
        {name: text for name, text in annotations.items() if any(part in name for part in _READ_OF_ANNOTATIONS)},
        [(each.get("kind"), each.get("name")) for each in metadata.get("ownerReferences") or ()],
        {name: value for name, value in spec.items() if name not in _OWN_OF_SPEC},
        [_without(each, _OWN_OF_CONTAINER) for name in _CONTAINERS for each in spec.get(name) or ()],
    ]
    if paths:
        values = {"pod": pod.object, "podInfo": pod_facts(pod)}
        parts += [repr(value_at(values[path[0]], path[1:])) for path in paths]
    return parts


def _claims(pod: PodInfo) -> list[object]:
    """Return the claims and disks of a pod; a claim that is made for the pod (an ephemeral volume) is not shared."""
    found: list[object] = []
    for volume in pod.object["spec"].get("volumes") or ():
        if volume.get("ephemeral") is not None:
            found.append((pod.name, volume.get("name")))
        elif volume.get("persistentVolumeClaim"):
            found.append(volume["persistentVolumeClaim"])
        elif not _OWN_VOLUMES & volume.keys():
            found.append({kind: each for kind, each in volume.items() if kind != "name"})
    return found


def _without(value: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in names}
