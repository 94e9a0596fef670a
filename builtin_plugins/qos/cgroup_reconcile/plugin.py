"""CgroupReconcile: memory QoS of tiers, pods and containers.

The behaviour is koordlet's (cgroup_reconcile.go); it reads the `memoryQOS` of each class in
`spec.resourceQOSStrategy` of the node's NodeSLO and the pods' annotation `koordinator.sh/memoryQOS`. The arithmetic is
in `engine.agent.qos_manager.memory_qos`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.memory_qos import (
    TIERS,
    Files,
    PodMemory,
    Settings,
    class_of,
    is_active,
    levels_of,
    memory_classes,
    pod_memory,
    pod_settings,
    tier_files,
)
from koordpolicy.engine.agent.qos_manager.node_slo import node_name, node_slo_object
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.resource_executor.levels import levelled_writes
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import MEMORY_QOS_ANNOTATION, qos_class

_SECOND: Final = 1_000_000_000
_REREAD_AFTER: Final = 60 * _SECOND
"""The time after which files that had the desired text are read again (as in koordlet's resource executor)."""
_MISSING_AFTER: Final = 5 * _SECOND
"""The time after which files that a directory lacks are looked for again."""


@dataclass(slots=True)
class _PodEntry:
    """The files of one version of a pod, None if an amount is malformed; not read before the time `next_read`."""

    pod: PodInfo
    memory: PodMemory | None
    next_read: int = 0


@dataclass(slots=True)
class _NodeState:
    """The strategy's state on one node; `originals` are the texts of files before their first change.

    The files of tiers are not read before the time `tiers_next_read`.
    """

    classes: Mapping[str, Settings] = field(default_factory=dict)
    allocatable: object = None
    entries: dict[str, _PodEntry] = field(default_factory=dict)
    tiers: Files | None = None
    """The files of the tiers; None after one of the entries has changed."""
    tiers_next_read: int = 0
    originals: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """By directory, the key of its pod."""


class CgroupReconcile:
    """The strategy, with the original texts of the files that it changed."""

    name = "CgroupReconcile"

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self._interval = read_interval(args)
        self._nodes: dict[str, _NodeState] = {}

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Set the files of tiers, pods and containers; no child is protected beyond its parent in between."""
        classes = _classes(readings)
        if classes is None:
            return ()
        node, now, files = self._update(readings, classes), readings.now, readings.files
        due = [entry for entry in node.entries.values() if entry.memory is not None and now >= entry.next_read]
        tiers = _tiers(node)
        if now < node.tiers_next_read:
            tiers = ()
        desired = [*tiers, *(file for entry in due for file in _files(entry))]
        host = readings.host
        writes = levelled_writes(levels_of(desired), files, page_size=host.page_size, version=host.cgroup_version)
        for file, _ in writes:
            if file not in node.originals:
                node.originals[file] = files[file]
        written = {_pod_directory(file) for file, _ in writes}
        for entry in due:
            if readings.directory(entry.pod) not in written:
                entry.next_read = _next_read(_files(entry), readings)
        if tiers and written.isdisjoint(file for file, _ in tiers):
            node.tiers_next_read = _next_read(tiers, readings)
        return self._adjustments(readings, node, writes, "memory QoS", recovers=False)

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Restore the texts that the files had before their first change."""
        node = self._nodes.pop(node_name(readings), None)
        if node is None:
            return ()
        host = readings.host
        writes = levelled_writes(
            levels_of(sorted(node.originals.items())), readings.files,
            page_size=host.page_size, version=host.cgroup_version,
        )
        return self._adjustments(readings, node, writes, "the strategy does not run any more", recovers=True)

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the files and values of the tiers."""
        classes = _classes(readings)
        if classes is None:
            return (Finding("state", "the NodeSLO has no `resourceQOSStrategy`"),)
        node = self._update(readings, classes)
        files = _tiers(node)
        return tuple(
            Finding("tier", f"{tier}: {', '.join(parts)}", facts={"tier": tier})
            for tier in TIERS
            if (parts := [f"{path.partition('/')[2]} {text}" for path, text in files if path.startswith(f"{tier}/")])
        ) or (Finding("state", "no class and no pod has memory settings"),)

    def _update(self, readings: Readings, classes: Mapping[str, Settings]) -> _NodeState:
        """Return the node's state, with an entry for the current version of each active pod."""
        node = self._nodes.setdefault(node_name(readings), _NodeState())
        allocatable = ((readings.node.get("status") or {}).get("allocatable") or {}).get("memory")
        if node.classes != classes or node.allocatable != allocatable:
            node.classes, node.allocatable, node.entries, node.tiers = classes, allocatable, {}, None
        keys = set()
        for pod in readings.pods:
            entry = node.entries.get(pod.key)
            if entry is not None and entry.pod is pod:
                keys.add(pod.key)
            elif is_active(pod):
                keys.add(pod.key)
                node.entries[pod.key], node.tiers = _entry(pod, classes, readings), None
                node.owners[readings.directory(pod)] = pod.key
        if len(node.entries) > len(keys):
            node.entries, node.tiers = {key: entry for key, entry in node.entries.items() if key in keys}, None
            node.owners = {path: key for path, key in node.owners.items() if key in keys}
            node.originals = {
                file: text for file, text in node.originals.items()
                if file.count("/") == 1 or _pod_directory(file) in node.owners
            }
        return node

    def _adjustments(
        self, readings: Readings, node: _NodeState, writes: Iterable[tuple[str, str]], reason: str, *, recovers: bool,
    ) -> tuple[Adjustment, ...]:
        """Return writes as adjustments of pods, and of the node for its tiers, in the same order."""
        def subject(write: tuple[str, str]) -> str:
            return node.owners.get(_pod_directory(write[0]), node_name(readings))

        return tuple(
            Adjustment("memoryQOS", owner, reason, writes=tuple(group), recovers=recovers)
            for owner, group in groupby(writes, subject)
        )


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> CgroupReconcile:
    """Make the strategy for one profile."""
    return CgroupReconcile(args, handle)


def _classes(readings: Readings) -> Mapping[str, Settings] | None:
    slo = node_slo_object(readings)
    try:
        return memory_classes(slo)
    except ValueError as error:
        raise EvaluationError(f"the NodeSLO: {error}", reason="InvalidSettings") from None


def _entry(pod: PodInfo, classes: Mapping[str, Settings], readings: Readings) -> _PodEntry:
    annotation = ((pod.object.get("metadata") or {}).get("annotations") or {}).get(MEMORY_QOS_ANNOTATION)
    try:
        settings = pod_settings(classes[class_of(pod)], qos_class(pod.object), annotation)
        return _PodEntry(pod, pod_memory(pod, settings, readings))
    except ValueError:
        return _PodEntry(pod, None)  # a malformed amount affects only its own pod


def _tiers(node: _NodeState) -> Files:
    """Return the files of the tiers, which have the sums of their pods."""
    if node.tiers is None:
        memories = (each.memory for each in node.entries.values() if each.memory is not None)
        node.tiers, node.tiers_next_read = tier_files(memories, node.classes), 0
    return node.tiers


def _files(entry: _PodEntry) -> Files:
    """Return the files of a pod and its containers."""
    return () if entry.memory is None else (*entry.memory.pod, *entry.memory.containers)


def _next_read(desired: Files, readings: Readings) -> int:
    """Return when to read files with the desired texts again: sooner if their directories still lack some."""
    files = readings.files
    complete = all(file in files or f"guaranteed/{file.rpartition('/')[2]}" not in files for file, _ in desired)
    return readings.now + (_REREAD_AFTER if complete else _MISSING_AFTER)


def _pod_directory(file: str) -> str:
    return "/".join(file.split("/", 2)[:2])
