"""Writes the progress of PodGroups to their status (Koordinator's PodGroup controller)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.extensions.status_writes import StatusWrites
from koordpolicy.plugin import Handle

from .gangs import Gang, Gangs

PENDING: Final = "Pending"
PRE_SCHEDULING: Final = "PreScheduling"
SCHEDULING: Final = "Scheduling"
SCHEDULED: Final = "Scheduled"
RUNNING: Final = "Running"
FAILED: Final = "Failed"
FINISHED: Final = "Finished"

_ENDED: Final = frozenset({FAILED, FINISHED})
_RESYNC: Final = 60 * 1_000_000_000
_GIVEN_UP: Final = 48 * 3600 * 1_000_000_000


class PodGroupStatus:
    """Writes the status of PodGroup objects."""

    name = "PodGroupStatus"
    period = 1_000_000_000
    """Nanoseconds between two runs."""

    def __init__(self, handle: Handle, gangs: Gangs) -> None:
        self._handle = handle
        self._gangs = gangs
        self._writes = StatusWrites(handle)
        self._resync_at = 0

    def run(self, now: int) -> None:
        """Write the statuses of changed gangs, and of all once a minute; groups that have ended are skipped."""
        snapshot, changed = self._handle.snapshot(), self._gangs.take_changed()
        if now >= self._resync_at:
            self._resync_at = now + _RESYNC
            changed = [gang.id for gang in self._gangs.all()]
        for gang_id in changed:
            gang = self._gangs.get(gang_id)
            item = snapshot.object("PodGroup", gang_id)
            if gang is None or item is None or not gang.from_pod_group:
                continue
            status = current_status(item, gang, now)
            if status != (item.get("status") or {}):
                self._writes.patch(item, {**item, "status": status})
                self._gangs.note_changed(gang)  # until the cluster shows it


def current_status(item: Mapping[str, Any], gang: Gang, now: int) -> dict[str, Any]:
    """Return the status that a PodGroup has after all steps that its pods permit now."""
    status = dict(item.get("status") or {})
    while (following := next_status({**item, "status": status}, gang, now)) != status:
        status = following
    return status


def next_status(item: Mapping[str, Any], gang: Gang, now: int) -> dict[str, Any]:
    """Return the status that follows the one of a PodGroup, one phase at most; the same if nothing has changed."""
    status = dict(item.get("status") or {})
    phase = status.get("phase") or ""
    minimum = (item.get("spec") or {}).get("minMember") or 0
    if phase in _ENDED or _is_given_up(item, status, minimum):
        return status
    if not phase:
        return {**status, "phase": PENDING}
    if phase == PENDING:
        if 0 < minimum <= len(gang.children):
            first = next(iter(gang.children.values()))
            owners = (first.object["metadata"].get("ownerReferences")) or ()
            occupied = ",".join(sorted(f"{first.namespace}/{owner.get('name', '')}" for owner in owners))
            status |= {"phase": PRE_SCHEDULING, "scheduleStartTime": rfc3339(now)}
            if occupied:
                status["occupiedBy"] = occupied
        return status
    if not gang.children and not gang.ended:
        return {**status, "phase": PENDING}
    phases = Counter((pod.object.get("status") or {}).get("phase") for pod in gang.children.values())
    phases.update(gang.ended.values())
    running, succeeded, failed = phases["Running"], phases["Succeeded"], phases["Failed"]
    scheduled = len(gang.bound) + len(gang.ended)
    status |= {"scheduled": scheduled, "running": running, "succeeded": succeeded, "failed": failed}
    if failed and failed + running + succeeded >= minimum:
        status["phase"] = FAILED
    elif succeeded >= minimum:
        status["phase"] = FINISHED
    elif running + succeeded >= minimum:
        status["phase"] = RUNNING
    elif scheduled >= minimum:
        status["phase"] = SCHEDULED
    elif scheduled or gang.waiting:
        status["phase"] = SCHEDULING
    return status


def _is_given_up(item: Mapping[str, Any], status: Mapping[str, Any], minimum: int) -> bool:
    """Return whether a group began late, was scheduled and runs no more: its pods may have been garbage collected."""
    started, created = status.get("scheduleStartTime"), item["metadata"].get("creationTimestamp")
    if not started or not created or status.get("running") or status.get("scheduled") != minimum:
        return False
    since = nanoseconds(started, "status.scheduleStartTime")
    return since - nanoseconds(created, "metadata.creationTimestamp") > _GIVEN_UP


def unschedulable(item: Mapping[str, Any], message: str, now: int) -> dict[str, Any] | None:
    """Return a pod with the condition that it is unschedulable; None if it has that."""
    status = dict(item.get("status") or {})
    conditions = [dict(each) for each in status.get("conditions") or ()]
    known = next((each for each in conditions if each.get("type") == "PodScheduled"), None)
    new = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    if known is not None and all(known.get(key) == value for key, value in new.items()):
        return None
    before = known or {}
    since = before.get("lastTransitionTime") if before.get("status") == "False" else None
    others = [each for each in conditions if each is not known]
    return {**item, "status": {**status, "conditions": [*others, {**new, "lastTransitionTime": since or rfc3339(now)}]}}
