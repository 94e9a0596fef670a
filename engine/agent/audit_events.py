"""The events of the audit log that rounds and evictions are: koordlet's reasons where it has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from koordpolicy.engine.framework.qos import Adjustment

from .audit import AuditEvent, AuditLog
from .daemon import Conclusion
from .live_readings import LiveReadings
from .qos_manager.evictor import EvictionAttempt

_REASONS: Final[Mapping[str, str]] = {
    "suppressCPU": "AdjustBEByNodeCPUUsage", "cpuBurst": "CPUBurst", "cfsQuotaBurst": "CFSQuotaBurst",
    "blkio": "UpdateBlkIO", "sysctl": "systemConfig reconcile",
}
_OTHER: Final = "UpdateCgroups"
_SHOWN: Final = 8


class AuditEvents:
    """Adds to the audit log what was done: adjustments that changed a file, and evictions."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` returns nanoseconds since the epoch."""
        self._log = log
        self._clock = clock

    def concluded(self, conclusion: Conclusion, readings: LiveReadings) -> None:  # noqa: ARG002 - an observer
        """Add the adjustments of a round that changed something, with the files."""
        for result in conclusion.results:
            if not result.changed:
                continue
            each = result.adjustment
            files = [f"{write.file}: {write.before.strip()} -> {write.text.strip()}" for write in result.writes
                     if write.status.value == "written"]
            more = f" and {len(files) - _SHOWN} more files" if len(files) > _SHOWN else ""
            kind, namespace, name, container = _subject(each, conclusion.node)
            self._log.add(AuditEvent(
                conclusion.time, kind, _REASONS.get(each.kind, _OTHER),
                f"{conclusion.plugin}: {each.reason} ({'; '.join(files[:_SHOWN])}{more})", 2 if each.recovers else 1,
                namespace, name, container))

    def attempted(self, attempt: EvictionAttempt) -> None:
        """Add an eviction, or why there was none."""
        why = f"; {attempt.outcome.value}: {attempt.error}" if attempt.error else f"; {attempt.outcome.value}"
        self._log.add(AuditEvent(self._clock(), "pod", attempt.reason, f"{attempt.message}{why}", 0,
                                 attempt.namespace, attempt.name))


def _subject(each: Adjustment, node: str) -> tuple[str, str, str, str]:
    """Return the type, namespace, name and container of an adjustment's subject."""
    parts = each.subject.split("/")
    if each.subject == node or len(parts) == 1:
        return ("node" if each.subject == node else "group"), "", each.subject, ""
    if len(parts) == 2:
        return "pod", parts[0], parts[1], ""
    return "container", parts[0], parts[1], "/".join(parts[2:])
