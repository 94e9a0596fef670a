"""RemovePodsViolatingNodeTaints (Kubernetes' descheduler): evicts pods that do not tolerate a taint of their node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.selectors import NO_SCHEDULE, tolerates
from koordpolicy.plugin import Evictor

from .args import NodeTaintsArgs, check_args, read_args

__all__ = ["RemovePodsViolatingNodeTaints", "check_args", "make"]

_PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"

Json = Mapping[str, Any]


class RemovePodsViolatingNodeTaints:
    """Evicts active pods that do not tolerate each taint of their node that the arguments consider.

    NoExecute taints never count: the node lifecycle controller evicts for those.
    """

    name = "RemovePodsViolatingNodeTaints"
    decides_per_node = True

    def __init__(self, args: NodeTaintsArgs) -> None:
        self._args = args
        self._effects = (NO_SCHEDULE, _PREFER_NO_SCHEDULE) if args.include_prefer_no_schedule else (NO_SCHEDULE,)

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods node by node; see `Deschedule`."""
        for row in rows.tolist():
            taints = self._considered(snapshot.node(row))
            if not taints:
                continue
            found = [
                (pod, taint) for pod in snapshot.pods(row)
                if (taint := _untolerated(pod, taints)) and self._args.selection.candidate(pod, evictor)
            ]
            for pod, taint in found:
                evictor.evict(pod, f"it does not tolerate the taint {_named(taint)}:{taint.get('effect')} of its node")

    def _considered(self, node: Json) -> list[Json]:
        given = (node.get("spec") or {}).get("taints") or ()
        return [taint for taint in given if taint.get("effect") in self._effects and self._counts(taint)]

    def _counts(self, taint: Json) -> bool:
        names = {taint.get("key", ""), _named(taint)}
        if names & self._args.excluded:
            return False
        return self._args.included is None or bool(names & self._args.included)


def _named(taint: Json) -> str:
    value = taint.get("value")
    return f"{taint.get('key', '')}={value}" if value else str(taint.get("key", ""))


def _untolerated(pod: PodInfo, taints: Sequence[Json]) -> Json | None:
    """Return the first taint that the pod does not tolerate, or None."""
    tolerations = (pod.object.get("spec") or {}).get("tolerations") or ()
    return next((taint for taint in taints if not any(tolerates(each, taint) for each in tolerations)), None)


def make(args: Json, handle: object) -> RemovePodsViolatingNodeTaints:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile."""
    return RemovePodsViolatingNodeTaints(read_args(args))
