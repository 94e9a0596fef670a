"""The client of a live descheduler: what plugins evict and change at the API server. Each write is waited for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.object_patches import NotLeadingError, ObjectPatches, WriteFailedError, reference_of
from koordpolicy.engine.client.writes import ClusterWriter, WriteStatus
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult, EvictOptions

from ..migration.worker import MigrationWorker
from .evictions import EvictionRequest, LiveEvictions, Silence

_PATCH_S: Final = 10.0


class DeschedulerClient:
    """Implements `Client` and `EvictsWithOptions` of `framework.handle`, and `MigratesPods`; for the descheduler."""

    def __init__(
        self, io: IoThread, writer: ClusterWriter, evictions: LiveEvictions, *, clock: Callable[[], int],
        migrations: MigrationWorker, identity: str, may_write: Callable[[], bool] = lambda: True,
        silence: Silence | None = None, patch_s: float = _PATCH_S,
    ) -> None:
        """`writer` belongs to the loop of `io`; `clock` returns the time in nanoseconds since the epoch.

        `identity` is the name of this process in the jobs of `migrations`. `silence` is that of `evictions`; a patch
        is waited for `patch_s` seconds.
        """
        self._silence = silence or Silence()
        self._patch_s = patch_s
        self.migrations = migrations
        self.identity = identity
        self.io = io
        self.writer = writer
        self.evictions = evictions
        self._patches = ObjectPatches(writer, clock)
        self._may_write = may_write

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Evict the pod through the eviction subresource; raises `EvictionRefusedError` if it stays."""
        self.evict_with_options(pod, EvictOptions(reason, "", ""))

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        """Evict the pod by the mode of the options; raises `EvictionRefusedError` if it stays."""
        grace_s = options.choice.grace_period_s
        return self.evictions.evict(EvictionRequest(
            pod.object, options.choice.mode or EvictionMode.EVICTION, options.reason, strategy=options.plugin,
            controller=options.profile, delete_options=None if grace_s is None else {"gracePeriodSeconds": grace_s},
            reports_failure=options.reports_failure))

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Send the difference of two states of an object; return the object as the server answers. Raises `OSError`.

        Nothing is sent while the last writes had no answer: a plugin may change many objects in a cycle.
        """
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more")
        hold = self._silence.hold()
        if hold is not None:
            raise OSError(hold.reason)
        writing = self.io.submit(self._patches.patch(reference_of(original), original, modified))
        try:
            answer = writing.result(self._patch_s)
        except FutureTimeoutError:
            writing.cancel()
            self._silence.note(answered=False)
            raise OSError(f"the API server has not answered within {self._patch_s:g} s") from None
        except WriteFailedError as error:
            self._silence.note(answered=error.status not in (WriteStatus.UNKNOWN, WriteStatus.UNREACHABLE))
            raise
        self._silence.note(answered=True)
        return json.loads(answer) if answer else None

    def bind(self, pod: PodInfo, node: str) -> None:
        """Refuse: a descheduler binds no pod."""
        raise OSError(f"a descheduler does not bind {pod.key} to {node}")

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Refuse: a descheduler preempts no pod."""
        raise OSError(f"a descheduler does not preempt {pod.key} on {node} for {preemptor.key}")
