"""Writes of pods' statuses: the last one counts, and none arrives after the binding of its pod."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import ObjectReference, pod_reference
from koordpolicy.engine.client.writes import ClusterWriter, PodCondition, WriteStatus
from koordpolicy.engine.cluster.objects.pods import PodInfo

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """The next write for a pod: what is None is left as it is."""

    reference: ObjectReference
    current: Mapping[str, Any]
    condition: PodCondition | None
    nominated_node: str | None


class PodStatuses:
    """Patches of `status` for the condition PodScheduled and the nominated node.

    For each pod one patch is under way; of those that are requested meanwhile, the last condition and the last
    nominated node are sent after it. A patch that changes nothing is not sent.
    """

    def __init__(self, io: IoThread, writer: ClusterWriter, may_write: Callable[[], bool]) -> None:
        self._io = io
        self._writer = writer
        self._may_write = may_write
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._pending: dict[str, StatusPatch] = {}
        """The next write by the UID of its pod; for the loop, as all below."""
        self._faults = RepeatedFaults()
        self._writing: dict[str, asyncio.Task[None]] = {}

    @property
    def pending(self) -> int:
        """The number of pods with a write under way; for any thread."""
        return len(self._writing)

    def write(
        self, pod: PodInfo, *, condition: PodCondition | None = None, nominated_node: str | None = None,
    ) -> None:
        """Request a write, see `ClusterWriter.patch_pod_status`; never waits."""
        reference = pod_reference(pod.namespace, pod.name, pod.uid)
        patch = StatusPatch(reference, pod.object.get("status") or {}, condition, nominated_node)
        self._io.call_soon(self._request, patch)

    async def drain(self, uid: str) -> None:
        """Drop what was requested for a pod, and wait for the patch that is under way: the pod is about to be bound."""
        self._pending.pop(uid, None)
        task = self._writing.get(uid)
        if task is not None:
            await asyncio.wait((task,))

    def _request(self, patch: StatusPatch) -> None:
        uid = patch.reference.uid
        before = self._pending.get(uid)
        if before is not None:
            patch = replace(
                patch, condition=patch.condition or before.condition,
                nominated_node=before.nominated_node if patch.nominated_node is None else patch.nominated_node)
        self._pending[uid] = patch
        if uid not in self._writing:
            self._writing[uid] = asyncio.get_running_loop().create_task(self._write(uid))

    async def _write(self, uid: str) -> None:
        written: dict[str, Any] = {}  # what watches may not show yet
        try:
            async with self._slots:
                while (patch := self._pending.pop(uid, None)) is not None and self._may_write():
                    result = await self._writer.patch_pod_status(
                        patch.reference, condition=patch.condition, nominated_node=patch.nominated_node,
                        current={**patch.current, **written})
                    if result.done and patch.nominated_node is not None:
                        written["nominatedNodeName"] = patch.nominated_node
                    if result.done and patch.condition is not None:
                        written["conditions"] = [_shown(patch.condition, patch.current)]
                    if not result.done and result.status not in {WriteStatus.GONE, WriteStatus.REPLACED} and (
                            self._faults.is_due(result.message, patch.reference.name)):
                        _LOG.warning("the status of pod %s/%s was not written: %s", patch.reference.namespace,
                                     patch.reference.name, result.message, extra=patch.reference.log_fields)
        finally:
            del self._writing[uid]


def _shown(condition: PodCondition, current: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a condition as it is in the status after it was written over a current one."""
    before: Mapping[str, Any] = next(
        (each for each in current.get("conditions") or () if each.get("type") == condition.type), {})
    return {**before, "type": condition.type, "status": condition.status, "reason": condition.reason or None,
            "message": condition.message or None, "observedGeneration": condition.observed_generation}
