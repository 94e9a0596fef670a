"""PrioritySort: orders the queue by priority, highest first, then by time of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import Handle, QueuedPod


class PrioritySort:
    """The order of the queue (kube-scheduler's plugin of that name)."""

    name = "PrioritySort"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def queue_key(self, queued: QueuedPod) -> tuple[int, int]:
        """Return priority and time of arrival."""
        return -queued.pod.priority, queued.since
