"""Facts that are a pod's own, which other pods of its template need not share; found once for each version of a pod.

A cycle looks at all pods of each node of which a pod changed. Their objects are large, and spread over all memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo

REQUEST_ONLY: Final = "descheduler.alpha.kubernetes.io/request-evict-only"
IN_PROGRESS: Final = "descheduler.alpha.kubernetes.io/eviction-in-progress"
STATE_FIELDS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
"""The lists of container statuses in the status of a pod."""
TIME_WIDTH: Final = len("2026-01-31T12:00:00Z")


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """The facts of one pod."""

    creation: str
    """Its creation time as text; empty if it has none."""
    comparable_creation: str
    """The same if it is in whole seconds of UTC, so that it compares as text; else empty."""
    has_restarts: bool
    """True if a container restarted."""
    moves_in_background: bool
    """True if another component moves it, and its annotations say so."""


def is_comparable(time: str) -> bool:
    """Return whether an RFC 3339 time is in whole seconds of UTC: such texts compare as their times do."""
    return len(time) == TIME_WIDTH and time[-1] == "Z"


def own_facts_of(pod: PodInfo) -> OwnFacts:
    """Return a pod's own facts."""
    known: OwnFacts | None = getattr(pod, "_own_facts", None)
    if known is None:
        metadata = pod.object["metadata"]
        annotations = metadata.get("annotations")
        creation = metadata.get("creationTimestamp") or ""
        known = OwnFacts(
            creation, creation if is_comparable(creation) else "", _has_restarts(pod),
            bool(annotations) and REQUEST_ONLY in annotations and IN_PROGRESS in annotations,
        )
        object.__setattr__(pod, "_own_facts", known)
    return known


def _has_restarts(pod: PodInfo) -> bool:
    status = pod.object.get("status")
    if not status:
        return False
    return any(
        each.get("restartCount") for field in STATE_FIELDS if field in status for each in status[field] or ()
    )
