"""Watchdogs of a live scheduler: pods that fell out of the queue, and bindings that the cluster does not confirm."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import pod_reference
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo

from ..cycle.binding import same_pod
from ..cycle.loop import SchedulingLoop
from .client import LiveClient

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
LOST_S: Final = 60
"""Seconds for which a pod is neither in the queue nor being bound before it is queued."""
UNCONFIRMED_S: Final = 60
"""Seconds after a binding until the pod is read if the cluster does not show it as bound."""
_LOOK_S: Final = 10


class LostPods:
    """Finds pods without a node that are in no queue, and queues them again."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.requeued = 0
        """The number of pods that were queued again."""
        self._clock = clock
        self._next = 0
        self._lost_since: dict[tuple[str, str], int] = {}
        """When pods were first found in no queue, by key and UID."""

    def look(self, loop: SchedulingLoop) -> None:
        """Look every 10 seconds, and queue the pods that are in no queue for 60 seconds."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _LOOK_S * _SECOND
        lost = {(pod.key, pod.uid): pod for pod in loop.lost()}
        self._lost_since = {key: self._lost_since.get(key, now) for key in lost}
        for key, since in tuple(self._lost_since.items()):
            if now - since >= LOST_S * _SECOND:
                _LOG.error("%s has been in no queue for %d s: it is queued again", key[0], (now - since) // _SECOND,
                           extra={"pod": key[0]})
                self.requeued += 1
                del self._lost_since[key]
                loop.enqueue(lost[key])


@dataclass(frozen=True, slots=True)
class UnconfirmedBinding:
    """A pod that was bound, and the time at which it is read unless it is confirmed before."""

    pod: PodInfo
    node: str
    deadline: int


class UnconfirmedBindings:
    """Bindings that succeeded and that the cluster has not shown yet.

    kube-scheduler assumes such pods on their nodes without limit of time. Here the pod is read after 60 seconds, and
    the API server's answer is applied.
    """

    def __init__(self, io: IoThread, client: LiveClient, clock: Callable[[], int], wake: Callable[[], None]) -> None:
        self.corrected = 0
        """The number of pods that were not on the nodes that they had been bound to."""
        self._io = io
        self._client = client
        self._clock = clock
        self._wake = wake
        self._bound: deque[UnconfirmedBinding] = deque()
        self._read: deque[tuple[UnconfirmedBinding, str | None]] = deque()
        """Pods that were read, with their node: empty without one, None if the pod is gone."""

    def add(self, pod: PodInfo, node: str) -> None:
        """Record that a pod was bound."""
        self._bound.append(UnconfirmedBinding(pod, node, self._clock() + UNCONFIRMED_S * _SECOND))

    def next_time(self) -> int | None:
        """Return the time at which the next pod is read, in nanoseconds since the epoch; None without one."""
        return self._bound[0].deadline if self._bound else None

    def look(self, loop: SchedulingLoop) -> None:
        """Read the pods that are not confirmed in time, and apply what was read; never waits."""
        cluster = loop.scheduler.cluster
        while self._bound and (self._bound[0].deadline <= self._clock() or _is_confirmed(cluster, self._bound[0])):
            bound = self._bound.popleft()
            if not _is_confirmed(cluster, bound):
                self._io.spawn(self._look_up(bound), f"to read the node of {bound.pod.key}")
        while self._read:
            self._apply(loop, *self._read.popleft())

    async def _look_up(self, bound: UnconfirmedBinding) -> None:
        pod = bound.pod
        while True:
            try:
                node = await self._client.read_node(pod_reference(pod.namespace, pod.name, pod.uid))
            except OSError:
                await asyncio.sleep(_LOOK_S)
            else:
                self._read.append((bound, node))
                return self._wake()

    def _apply(self, loop: SchedulingLoop, bound: UnconfirmedBinding, node: str | None) -> None:
        cluster = loop.scheduler.cluster
        if _is_confirmed(cluster, bound):
            return
        pod, known = bound.pod, cluster.object("Pod", bound.pod.key)
        if node:
            if node != bound.node:
                self._note(bound, f"is on {node}")
            if known is not None:
                cluster.upsert({**known, "spec": {**known["spec"], "nodeName": node}})
            return
        self._note(bound, "is gone" if node is None else "has no node")
        cluster.forget(pod.key)
        current = cluster.pod(pod.key)
        if node is not None and current is not None and not current.node_name:
            loop.enqueue(current)

    def _note(self, bound: UnconfirmedBinding, found: str) -> None:
        self.corrected += 1
        _LOG.error("%s was bound to %s, but the API server says that it %s", bound.pod.key, bound.node, found,
                   extra={"pod": bound.pod.key})


def _is_confirmed(cluster: Cluster, bound: UnconfirmedBinding) -> bool:
    """Return whether the cluster shows the node of the pod, or its deletion."""
    known = cluster.object("Pod", bound.pod.key)
    if known is None or (known.get("spec") or {}).get("nodeName"):
        return True
    return not same_pod(PodInfo.of(known), bound.pod)
