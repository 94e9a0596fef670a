"""RemoveFailedPods (Kubernetes' descheduler): evicts pods whose phase is Failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.criteria import AgeLimit, creation_of, has_exit_code, has_reason, status_of
from koordpolicy.engine.descheduler.pods import AssignedPods, owners_of
from koordpolicy.plugin import Evictor

from .args import RemoveFailedPodsArgs, check_args, read_args

__all__ = ["RemoveFailedPods", "check_args", "make"]


class RemoveFailedPods:
    """Evicts failed pods that are old enough, and that failed for one of the given reasons if there are any."""

    name = "RemoveFailedPods"
    restarts_pods = True
    decides_per_node = True

    def __init__(self, args: RemoveFailedPodsArgs) -> None:
        self._args = args

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict failed pods node by node; see `Deschedule`."""
        args, assigned = self._args, AssignedPods(snapshot)
        old_enough = AgeLimit.of(snapshot.now, args.least_seconds)
        for row in rows.tolist():
            found = [
                (pod, reason) for pod in assigned.finished(row)
                if (reason := self._reason(pod, old_enough)) and args.selection.candidate(pod, evictor)
            ]
            for pod, reason in found:
                evictor.evict(pod, reason)

    def _reason(self, pod: PodInfo, old_enough: AgeLimit) -> str:
        """Return why the pod is evicted; empty if it is not."""
        args, status = self._args, status_of(pod)
        if status.get("phase") != "Failed":
            return ""
        time = creation_of(pod)
        if time and not old_enough.met_by(time):
            return ""
        if args.excluded_kinds and any(each.get("kind") in args.excluded_kinds for each in owners_of(pod)):
            return ""
        parts = ["it failed"]
        if args.reasons:
            given = status.get("reason") or ""
            reason = given if given in args.reasons else has_reason(status, args.fields, args.reasons)
            if not reason:
                return ""
            parts.append(f"for the reason {reason}")
        if args.exit_codes:
            code = has_exit_code(status, args.fields, args.exit_codes)
            if code is None:
                return ""
            parts.append(f"with exit code {code}")
        return " ".join(parts)


def make(args: Mapping[str, Any], handle: object) -> RemoveFailedPods:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile."""
    return RemoveFailedPods(read_args(args))
