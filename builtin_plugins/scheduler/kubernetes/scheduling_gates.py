"""SchedulingGates: a pod is not queued until all its scheduling gates are removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import Event, Handle

_GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""The message of the condition that the API server writes for a pod with gates."""


class SchedulingGates:
    """PreEnqueue (kube-scheduler's plugin of that name)."""

    name = "SchedulingGates"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return a refusal with the pod's gates, or None."""
        gates = [str(each.get("name", "")) for each in (pod.object.get("spec") or {}).get("schedulingGates") or ()]
        if not gates:
            return None
        return Refusal("gates", f"waiting for scheduling gates: [{' '.join(gates)}]", Code.UNRESOLVABLE, brief=_GATED)

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the pod itself changed: no other event removes its gates."""
        return event.kind == "Pod" and event.key == pod.key
