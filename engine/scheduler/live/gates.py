"""Reports of gated pods to the API server: the condition PodScheduled says which gate holds a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordpolicy.engine.client.writes import PodCondition
from koordpolicy.engine.cluster.objects.pods import PodInfo

from ..cycle.loop import SchedulingLoop
from ..extensions.reservations import is_reserve_pod
from .pod_status import PodStatuses

_SECOND: Final = 1_000_000_000
GATED_S: Final = 2
"""Seconds for which a pod must be held for one reason before that is written: members of a gang arrive one by one."""


class GateReporter:
    """Writes why plugins gate pods; for the deciding thread, which never waits here.

    kube-scheduler writes nothing about such pods. The reason of a gate replaces no reason of an attempt, and the API
    server reports a pod's own `schedulingGates`.
    """

    def __init__(self, statuses: PodStatuses, clock: Callable[[], int]) -> None:
        self._statuses = statuses
        self._clock = clock
        self._gated_since: dict[str, tuple[str, int]] = {}
        """The last reason, and since when it holds the pod, by the pod's key."""
        self._written: dict[str, tuple[str, str]] = {}
        """The UID of the pod and the written message, by the pod's key."""

    def look(self, loop: SchedulingLoop) -> None:
        """Write the reasons that have held pods for long enough; takes time in proportion to the gated pods."""
        now = self._clock()
        before, self._gated_since = self._gated_since, {}
        for key, (_, refusal) in loop.gated.items():
            message = refusal.message or refusal.rule
            known = before.get(key)
            since = known[1] if known is not None and known[0] == message else now
            self._gated_since[key] = message, since
            if now - since >= GATED_S * _SECOND:
                pod = loop.queue.gated(key)
                if pod is not None and self._written.get(key) != (pod.uid, message) and self._may_report(pod):
                    self._write(pod, message)
        self._written = {key: written for key, written in self._written.items() if key in self._gated_since}

    def _may_report(self, pod: PodInfo) -> bool:
        if is_reserve_pod(pod) or (pod.object.get("spec") or {}).get("schedulingGates"):
            return False
        message = _reported(pod.object)
        return not message or (pod.uid, message) == self._written.get(pod.key)

    def _write(self, pod: PodInfo, message: str) -> None:
        self._written[pod.key] = pod.uid, message
        self._statuses.write(pod, condition=PodCondition(
            "PodScheduled", "False", "Unschedulable", message,
            observed_generation=(pod.object.get("metadata") or {}).get("generation")))


def _reported(item: Mapping[str, Any]) -> str:
    """Return the message of a pod's condition PodScheduled; empty if it has none."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((str(each.get("message") or "") for each in conditions if each.get("type") == "PodScheduled"), "")
