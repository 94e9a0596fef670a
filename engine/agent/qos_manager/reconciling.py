"""Reconcilers: strategies that keep files of control groups at values which follow from objects alone.

What koordlet's runtime hooks set when a container starts is reached here within one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Readings

from ..resource_executor.levels import levelled_writes
from .memory_qos import levels_of
from .node_slo import node_name

INTERVAL_SECONDS: Final = 10
"""koordlet's default interval between two reconciliations."""
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A file with the text that it should have; `owner` is the pod's key, or the node's name."""

    owner: str
    path: str
    text: str


@dataclass(slots=True)
class FileReconciler:
    """Keeps files at their desired texts, on any number of nodes, and restores what they had before.

    `kind` is that of its adjustments.
    """

    kind: str
    _originals: dict[str, dict[str, DesiredFile]] = field(default_factory=dict)
    """By node and path: the texts before the first change, with their owners."""

    def reconcile(self, readings: Readings, desired: Iterable[DesiredFile], reason: str) -> tuple[Adjustment, ...]:
        """Return the writes of desired files that differ, and those that restore files which are no longer desired.

        Files that do not exist are left out. No child exceeds its parent in between.
        """
        desired = tuple(desired)
        originals, files = self._originals.setdefault(node_name(readings), {}), readings.files
        paths = {each.path for each in desired}
        stale = [each for path, each in originals.items() if path not in paths]
        restored = self._writes(readings, stale, "it is not wanted any more", recovers=True)
        for each in stale:
            del originals[each.path]
        written = self._writes(readings, desired, reason, recovers=False)
        owners = {each.path: each.owner for each in desired}
        for adjustment in written:
            for path, _ in adjustment.writes:
                if path not in originals:
                    originals[path] = DesiredFile(owners[path], path, files[path])
        return (*restored, *written)

    def recover(self, readings: Readings) -> tuple[Adjustment, ...]:
        """Return the writes that restore all files of the node."""
        originals = self._originals.pop(node_name(readings), {})
        return self._writes(readings, originals.values(), "the strategy does not run any more", recovers=True)

    def _writes(
        self, readings: Readings, desired: Iterable[DesiredFile], reason: str, *, recovers: bool,
    ) -> tuple[Adjustment, ...]:
        owners = {each.path: each.owner for each in desired}
        host = readings.host
        writes = levelled_writes(
            levels_of((each.path, each.text) for each in desired), readings.files,
            page_size=host.page_size, version=host.cgroup_version,
        )
        return tuple(
            Adjustment(self.kind, owner, reason, writes=tuple(group), recovers=recovers)
            for owner, group in groupby(writes, lambda write: owners[write[0]])
        )


def started_containers(pod: PodInfo) -> tuple[Mapping[str, Any], ...]:
    """Return the containers of a pod's spec that have an id."""
    ids = {each.get("name") for each in (pod.object.get("status") or {}).get("containerStatuses") or ()
           if each.get("containerID")}
    containers = (pod.object.get("spec") or {}).get("containers") or ()
    return tuple(each for each in containers if each.get("name") in ids)
