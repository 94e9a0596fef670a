"""Announcements of nodes to the API server: `status.nominatedNodeName` of pods whose binding takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..cycle.binding import BindingCycle
from ..cycle.loop import SchedulingLoop
from ..extensions.reservations import is_reserve_pod
from .pod_status import PodStatuses

_SECOND: Final = 1_000_000_000
ANNOUNCED_S: Final = 1
"""Seconds for which a pod must have waited with its node."""


class Announcements:
    """Announces the nodes of pods that wait for a permit or for objects; for the deciding thread, and never waits.

    Autoscalers and other schedulers see the choice, and this scheduler tries the node first after a restart.
    kube-scheduler announces it for every pod that is prepared for its binding; here most pods cost one write. The
    report of a failed attempt clears it, and so does the API server when it binds the pod.
    """

    def __init__(self, statuses: PodStatuses, clock: Callable[[], int]) -> None:
        self._statuses = statuses
        self._clock = clock
        self._waiting_since: dict[BindingCycle, int | None] = {}
        """Since when the pods wait; None if that is announced."""

    def look(self, loop: SchedulingLoop) -> None:
        """Announce the nodes of the pods that have waited for long enough."""
        now = self._clock()
        before, self._waiting_since = self._waiting_since, {}
        for binding in _waiting(loop):
            since = before.get(binding, now)
            if since is not None and now - since >= ANNOUNCED_S * _SECOND:
                since = None
                self._statuses.write(binding.pod, nominated_node=binding.node)
            self._waiting_since[binding] = since


def _waiting(loop: SchedulingLoop) -> Iterator[BindingCycle]:
    scheduler = loop.scheduler
    keys = scheduler.waiting.keys()
    waiting_pods = (scheduler.waiting.get(key) for key in keys)
    for binding in (*(each.binding for each in waiting_pods if each is not None), *scheduler.awaiting):
        if not is_reserve_pod(binding.pod):
            yield binding
