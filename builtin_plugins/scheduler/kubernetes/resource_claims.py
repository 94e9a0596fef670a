"""ResourceClaims: a pod with resource claims is not queued, as nothing here allocates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import Event, Handle

_MESSAGE: Final = "resource claims (spec.resourceClaims) are not supported: another scheduler must schedule the pod"


class ResourceClaims:
    """PreEnqueue: bound to a node without allocated claims, a pod would never start there."""

    name = "ResourceClaims"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return a refusal of a pod with claims, or None."""
        claims = (pod.object.get("spec") or {}).get("resourceClaims")
        return Refusal("claims", _MESSAGE, Code.UNRESOLVABLE) if claims else None

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the pod itself changed: its claims are immutable, but a pod of its name may have none."""
        return event.kind == "Pod" and event.key == pod.key
