"""The pods that wait for a permit."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Point, Refusal

from .binding import BindingCycle, same_pod


@dataclass(slots=True)
class WaitingPod:
    """A pod that waits for permits, with the deadline of each plugin in nanoseconds since the epoch."""

    binding: BindingCycle
    waits: dict[str, int]

    @property
    def pod(self) -> PodInfo:
        """The pod as it is assumed."""
        return self.binding.pod

    @property
    def deadline(self) -> int:
        """The time at which the pod loses its node: the earliest deadline of the plugins that have not allowed it."""
        return min(self.waits.values(), default=0)


class WaitingPodsMap:
    """The pods that wait for a permit (implements `framework.handle.WaitingPods`); for the deciding thread.

    `allow` and `reject` take effect with the next `take`, never while the calling plugin runs.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._pods: dict[str, WaitingPod] = {}
        self._deadlines: list[tuple[int, int, WaitingPod]] = []
        """A heap of deadlines, each with a sequence number; entries that are out of date are dropped when they are
        reached."""
        self._numbers = itertools.count()
        self._leaving: deque[WaitingPod] = deque()

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the waiting pods, oldest first."""
        return tuple(self._pods)

    def __contains__(self, key: str) -> bool:
        """Return whether a pod waits."""
        return key in self._pods

    def get(self, key: str) -> WaitingPod | None:
        """Return a pod that waits, or None."""
        return self._pods.get(key)

    def next_time(self) -> int | None:
        """Return the earliest deadline; None if no pod waits."""
        while self._deadlines:
            moment, _, waiting = self._deadlines[0]
            if self._pods.get(waiting.pod.key) is waiting and waiting.deadline == moment:
                return moment
            heapq.heappop(self._deadlines)
        return None

    def add(self, waiting: WaitingPod) -> None:
        """Add a pod."""
        self._pods[waiting.pod.key] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline, next(self._numbers), waiting))

    def allow(self, key: str, plugin: str) -> bool:
        """Record this plugin's permit; return whether the pod was waiting."""
        waiting = self._pods.get(key)
        if waiting is None:
            return False
        waiting.waits.pop(plugin, None)
        if not waiting.waits:
            self._leaving.append(self._pods.pop(key))
        else:
            heapq.heappush(self._deadlines, (waiting.deadline, next(self._numbers), waiting))
        return True

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Reject the pod; return whether it was waiting."""
        waiting = self._pods.pop(key, None)
        if waiting is None:
            return False
        waiting.binding.reject(plugin, Point.PERMIT, Refusal("", message))
        self._leaving.append(waiting)
        return True

    def take(self) -> WaitingPod | None:
        """Remove and return a pod that was allowed, rejected, or exceeded its deadline; None if there is none."""
        if not self._leaving and self._pods:
            now = self._clock()
            while (moment := self.next_time()) is not None and moment <= now:
                waiting = heapq.heappop(self._deadlines)[2]
                first = min(waiting.waits, key=lambda name: waiting.waits[name])
                self.reject(waiting.pod.key, first, "timeout after waiting for other pods")
        return self._leaving.popleft() if self._leaving else None

    def note(self, event: Event) -> None:
        """Reject waiting pods that were deleted, replaced by a new pod, or bound to another node.

        A pod that turns out to be bound to its node, as an earlier attempt succeeded late, waits no longer.
        """
        if event.kind == "Node" and event.new is None:
            for key in tuple(self._pods):
                waiting = self._pods.get(key)
                if waiting is not None and waiting.binding.verdict.node == event.key:
                    self.reject(key, "waiting", f"the node `{event.key}` is gone")
        if event.kind != "Pod" or event.assumed:
            return
        waiting = self._pods.get(event.key)
        if waiting is None:
            return
        pod = event.new_pod
        if pod is None:
            self.reject(event.key, "waiting", "the pod was deleted")
        elif not same_pod(waiting.pod, pod):
            self.reject(event.key, "waiting", "the pod was made anew")
        elif ((event.new or {}).get("metadata") or {}).get("deletionTimestamp"):
            self.reject(event.key, "waiting", "the pod is being deleted")
        elif pod.node_name != waiting.binding.verdict.node:
            self.reject(event.key, "waiting", f"the pod was bound to `{pod.node_name}` by somebody else")
        elif ((event.new or {}).get("spec") or {}).get("nodeName"):
            self._leaving.append(self._pods.pop(event.key))
