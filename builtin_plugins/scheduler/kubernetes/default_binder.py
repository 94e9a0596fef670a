"""DefaultBinder: binds a pod to its node at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Handle


class DefaultBinder:
    """Bind (kube-scheduler's plugin of that name)."""

    name = "DefaultBinder"
    thread_safe = True
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:  # noqa: ARG002 - every plugin is made like this
        self._client = handle.client

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | None:  # noqa: ARG002
        """Bind the pod, or return why that failed."""
        try:
            self._client.bind(pod, node)
        except OSError as error:
            return Refusal("bind", f"cannot bind {pod.key} to {node}: {error}", Code.ERROR)
        return None
