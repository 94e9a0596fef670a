"""BlkIOReconcile: limits the block devices of the best-effort tier, of single pods, and of the node.

The behaviour is koordlet's (blkio_reconcile.go). It reads `blkioQOS` of `beClass` and `cgroupRoot` in the NodeSLO's
`spec.resourceQOSStrategy`, and the annotation `koordinator.sh/blkioQOS` of running pods with a QoS class label.
Differences: a pod that loses its annotation loses its limits, numbers out of range are refused with their path, and
each disk is compared by itself. A block whose disk is not known leaves its directory as it is. The lines of the files
are made in `engine.agent.qos_manager.block_io`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.agent.pod_facts import PodFacts
from koordpolicy.engine.agent.qos_manager.block_io import disk_of, read_blocks, root_writes, tier_writes
from koordpolicy.engine.agent.qos_manager.node_slo import SLOSection, WarningLog, node_name, node_slo
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.qos_manager.suppression import ROOT as BEST_EFFORT
from koordpolicy.engine.agent.qos_manager.suppression import Writes, read_annotation
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import BLKIO_QOS_ANNOTATION, raw_qos_class

_ROOT: Final = "root"
_REMOVED: Final = "the strategy is removed"


class BlkIOReconcile:
    """The strategy, with the directories that it has limited on each node."""

    name = "BlkIOReconcile"

    def __init__(self, args: Mapping[str, Any], handle: Any = None) -> None:
        self._interval = read_interval(args)
        self._warnings = WarningLog.of(handle, self.name)
        self._limited: dict[tuple[str, str], str] = {}
        """The subject of each directory that was limited, by node and directory."""
        self._annotated = PodFacts(_is_annotated)

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Write what differs from the configured limits, and drop limits that are not configured any more."""
        strategy = node_slo(readings).sub("resourceQOSStrategy")
        if strategy is None:
            return self.recover(readings)
        node, warnings = node_name(readings), {}
        for name in ("lsrClass", "lsClass"):
            of_class = strategy.sub(name, "blkioQOS")
            if of_class is not None and of_class.flag("enable"):
                warnings[name] = "`blkioQOS` of this class has no effect: only `beClass` and `cgroupRoot` have one"
        found: list[Adjustment] = []
        for directory, subject, section, pod in self._targets(readings, strategy, warnings):
            try:
                writes, limits = _writes(directory, section, pod, readings)
            except EvaluationError as error:
                warnings[subject] = error.message
                continue
            if limits:
                self._limited[node, directory] = subject
            else:
                self._limited.pop((node, directory), None)
            if writes:
                found.append(Adjustment("blkio", subject, _reason(section, limits), writes=writes, recovers=not limits))
        self._warnings.update(node, warnings)
        return tuple(found)

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Drop all limits of the directories that were limited."""
        found, node = [], node_name(readings)
        for (owner, directory), subject in tuple(self._limited.items()):
            if owner == node:
                del self._limited[owner, directory]
                writes, _ = _writes(directory, None, None, readings)
                if writes:
                    found.append(Adjustment("blkio", subject, _REMOVED, writes=writes, recovers=True))
        return tuple(found)

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the blocks of each directory with their disks, or why its limits stay as they are."""
        strategy = node_slo(readings).sub("resourceQOSStrategy")
        if strategy is None:
            return (Finding("state", "the NodeSLO has no `resourceQOSStrategy`"),)
        warnings: dict[str, str] = {}
        found = []
        for _, subject, section, pod in self._targets(readings, strategy, warnings):
            try:
                blocks = read_blocks(section)
                disks = [(each.name, disk_of(each.name, each.type, readings.host.storage, pod)) for each in blocks]
            except EvaluationError as error:
                found.append(Finding("target", f"{subject}: left as it is: {error.message}"))
                continue
            text = ", ".join(f"{name} ({disk})" for name, disk in disks) or "no limits"
            found.append(Finding("target", f"{subject}: {text}", facts={"disks": dict(disks)}))
        return (*found, *(Finding("target", f"{subject}: {text}") for subject, text in warnings.items()))

    def _targets(
        self, readings: Readings, strategy: SLOSection, warnings: dict[str, str],
    ) -> Iterator[tuple[str, str, SLOSection | None, PodInfo | None]]:
        """Yield each directory with its subject, its section (None: without limits), and its pod."""
        node = node_name(readings)
        for directory, subject, name in (
            (BEST_EFFORT, "best-effort pods", "beClass"), (_ROOT, "all control groups", "cgroupRoot"),
        ):
            try:
                section = strategy.sub(name, "blkioQOS")
            except EvaluationError as error:
                warnings[subject] = error.message
                continue
            yield directory, subject, section, None
        limited = {directory for owner, directory in self._limited if owner == node} - {BEST_EFFORT, _ROOT}
        present = set()
        for pod, annotated in zip(readings.pods, self._annotated.of(readings.pods), strict=True):
            if annotated is None or not (annotated or limited):
                continue
            directory = readings.directory(pod)
            present.add(directory)
            if not annotated:
                if directory in limited:
                    yield directory, pod.key, None, pod
                continue
            try:
                values = read_annotation(pod.object, BLKIO_QOS_ANNOTATION)
            except EvaluationError as error:
                warnings[pod.key] = error.message
                continue
            yield directory, pod.key, SLOSection(values, BLKIO_QOS_ANNOTATION), pod
        for directory in limited - present:
            del self._limited[node, directory]  # its pod has ended


def _is_annotated(pod: PodInfo) -> bool | None:
    """Return whether a running pod with a QoS class has limits of its own; None for any other pod."""
    if (pod.object.get("status") or {}).get("phase") != "Running" or not raw_qos_class(pod.object):
        return None
    return BLKIO_QOS_ANNOTATION in ((pod.object.get("metadata") or {}).get("annotations") or {})


def _writes(
    directory: str, section: SLOSection | None, pod: PodInfo | None, readings: Readings,
) -> tuple[Writes, bool]:
    """Return the writes of a directory, and whether it has limits at all."""
    storage = readings.host.storage
    blocks = [(each, disk_of(each.name, each.type, storage, pod)) for each in read_blocks(section)]
    if directory == _ROOT:
        return root_writes(directory, blocks, readings.files), bool(blocks)
    return tier_writes(directory, blocks, readings.files), bool(blocks)


def _reason(section: SLOSection | None, limits: bool) -> str:
    if section is None:
        return "no `blkioQOS` is configured any more"
    return section.path if limits else f"{section.path} is disabled or has no blocks"


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> BlkIOReconcile:
    """Make the strategy for one profile."""
    return BlkIOReconcile(args, handle)
