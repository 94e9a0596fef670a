"""RemovePodsHavingTooManyRestarts (Kubernetes' descheduler): evicts pods whose containers restart again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.criteria import container_states, status_of, waiting_reason
from koordpolicy.engine.descheduler.own_facts import own_facts_of
from koordpolicy.engine.descheduler.pods import AssignedPods
from koordpolicy.engine.descheduler.row_facts import facts_by_row
from koordpolicy.plugin import Evictor

from .args import TooManyRestartsArgs, check_args, read_args

__all__ = ["RemovePodsHavingTooManyRestarts", "check_args", "make"]


def _restarts(status: Mapping[str, Any], fields: Iterable[str]) -> int:
    count = 0
    for field in fields:
        for each in status.get(field) or ():
            count += each.get("restartCount") or 0
    return count


def _restarted(pods: tuple[PodInfo, ...]) -> tuple[PodInfo, ...]:
    return tuple(pod for pod in pods if own_facts_of(pod).has_restarts)


class RemovePodsHavingTooManyRestarts:
    """Evicts pods of any phase that restarted as often as the threshold or more; per node the most restarted first."""

    name = "RemovePodsHavingTooManyRestarts"
    restarts_pods = True
    decides_per_node = True

    def __init__(self, args: TooManyRestartsArgs) -> None:
        self._args = args

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods node by node; see `Deschedule`."""
        args, assigned = self._args, AssignedPods(snapshot)
        restarted = facts_by_row(snapshot, "restarts", _restarted, rows)
        for row, active in zip(rows.tolist(), restarted, strict=True):
            found = [
                (count, pod) for pod in (*active, *assigned.finished(row))
                if (count := self._restarts(pod)) >= args.threshold and self._in_state(pod)
                and args.selection.candidate(pod, evictor)
            ]
            for count, pod in sorted(found, key=lambda each: -each[0]):
                evictor.evict(pod, f"its containers restarted {count} times")

    def _restarts(self, pod: PodInfo) -> int:
        return _restarts(status_of(pod), self._args.fields)

    def _in_state(self, pod: PodInfo) -> bool:
        states, status = self._args.states, status_of(pod)
        return (
            not states or status.get("phase") in states
            or any(waiting_reason(state) in states for state in container_states(status, self._args.fields))
        )


def make(args: Mapping[str, Any], handle: object) -> RemovePodsHavingTooManyRestarts:  # noqa: ARG001 - as others
    """Make the plugin for one profile."""
    return RemovePodsHavingTooManyRestarts(read_args(args))
