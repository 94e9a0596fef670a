"""Monitor of long attempts: a decision that hangs is logged and counted while it hangs.

The behaviour is Koordinator's (`pkg/scheduler/frameworkext/scheduler_monitor.go`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from koordpolicy.engine.framework.handle import Count

from .metric_table import SCHEDULING_TIMEOUT

_LOG = logging.getLogger(__name__)


class Monitor:
    """The running attempts; `start` and `complete` are called by the deciding thread, `check` by any thread.

    `timer` returns seconds of a monotonic clock. An attempt that takes longer than `timeout` seconds is
    logged and counted once, as koord-scheduler's `scheduler_scheduling_timeout` with the profile's name.
    """

    def __init__(self, timer: Callable[[], float], *, timeout: float = 30.0, count: Count | None = None) -> None:
        self._timer = timer
        self._timeout = timeout
        self._count = count
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, str]] = {}
        """The start and the profile of each attempt, by pod."""
        self._reported: set[str] = set()

    def start(self, pod: str, profile: str = "") -> None:
        """Record the start of an attempt for the pod, in that profile."""
        with self._lock:
            self._begun[pod] = self._timer(), profile

    def complete(self, pod: str) -> None:
        """Record the end of the attempt, whatever its result."""
        self._report(self._overdue(pod))
        with self._lock:
            self._begun.pop(pod, None)
            self._reported.discard(pod)

    def check(self) -> dict[str, float]:
        """Return the attempts that exceed the timeout, with their seconds so far; new ones are logged."""
        found = self._overdue()
        self._report(found)
        return found

    def _overdue(self, pod: str | None = None) -> dict[str, float]:
        with self._lock:
            now = self._timer()
            return {key: now - begun for key, (begun, _) in self._begun.items()
                    if now - begun > self._timeout and pod in (None, key)}

    def _report(self, overdue: dict[str, float]) -> None:
        for key, seconds in overdue.items():
            with self._lock:
                if key in self._reported or key not in self._begun:
                    continue  # it may have ended meanwhile, and then its end was reported
                self._reported.add(key)
                profile = self._begun[key][1]
            _LOG.warning("the decision about %s takes %.1f s, more than %.1f s", key, seconds, self._timeout,
                         extra={"pod": key})
            if self._count is not None:
                self._count(SCHEDULING_TIMEOUT.name, profile=profile)
