"""DefaultBinder: binds a pod to its node at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.handle import AsyncBinder, StalePodError
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.framework.scheduler import STALE_POD, BindAnnotations
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import CycleState, Deferred, Handle


class DefaultBinder:
    """Bind (kube-scheduler's plugin of that name)."""

    name = "DefaultBinder"
    sends_annotations = True
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._client = handle.client
        self._async_client = handle.client if isinstance(handle.client, AsyncBinder) else None
        self.thread_safe = self._async_client is None

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | Deferred | None:
        """Bind the pod, or return why that failed; in the event loop, where the client has one."""
        if self._async_client is not None:
            annotations = state.get(BindAnnotations) or {}
            return Deferred(partial(_bind, self._async_client, pod, node, annotations), asynchronous=True)
        try:
            self._client.bind(pod, node)
        except OSError as error:
            return _not_bound(error)
        return None


async def _bind(client: AsyncBinder, pod: PodInfo, node: str, annotations: Mapping[str, str]) -> Refusal | None:
    try:
        await client.bind_async(pod, node, annotations)
    except OSError as error:
        return _not_bound(error)
    return None


def _not_bound(error: OSError) -> Refusal:
    return Refusal(STALE_POD if isinstance(error, StalePodError) else "bind", str(error), Code.ERROR)
