"""The events of the audit log that rounds and evictions are: koordlet's reasons where it has them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
KINDS: Final[Mapping[str, str]] = {reason: kind for kind, reason in _REASONS.items()}
"""The kinds of adjustments by their reasons in the log, as far as they have one of their own."""
_SHOWN: Final = 8


_MESSAGE: Final = re.compile(r"(?P<plugin>[^:]{1,253}): (?P<reason>.*) \((?P<files>[^()]*)\)", re.DOTALL)
_FILE: Final = re.compile(r"(?P<file>[^ ]+): (?P<before>.*) -> (?P<after>.*)", re.DOTALL)
_MORE: Final = re.compile(r" and (\d{1,6}) more files$")


@dataclass(frozen=True, slots=True)
class AuditedFile:
    """A file that was written: its logical name, and its texts before and after."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AuditedRound:
    """The message of an adjustment in the audit log; `more` is the number of further files."""

    plugin: str
    reason: str
    files: tuple[AuditedFile, ...]
    more: int = 0


def read_message(text: str) -> AuditedRound | None:
    """Return the adjustment that a message of the audit log is about; None if it has none, as that of an eviction."""
    found = _MESSAGE.fullmatch(text)
    if found is None:
        return None
    more = _MORE.search(found["files"])
    listed = found["files"] if more is None else found["files"][: more.start()]
    files = [_FILE.fullmatch(each) for each in listed.split("; ")]
    if not all(files):
        return None
    return AuditedRound(found["plugin"], found["reason"], tuple(
        AuditedFile(each["file"], each["before"], each["after"]) for each in files if each is not None),
        0 if more is None else int(more[1]))


def _written(plugin: str, reason: str, files: Sequence[AuditedFile]) -> str:
    listed = "; ".join(f"{each.file}: {each.before} -> {each.after}" for each in files[:_SHOWN])
    more = f" and {len(files) - _SHOWN} more files" if len(files) > _SHOWN else ""
    return f"{plugin}: {reason} ({listed}{more})"


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
            files = [AuditedFile(write.file, write.before.strip(), write.text.strip()) for write in result.writes
                     if write.status.value == "written"]
            kind, namespace, name, container = _subject(each, conclusion.node)
            self._log.add(AuditEvent(
                conclusion.time, kind, _REASONS.get(each.kind, _OTHER),
                _written(conclusion.plugin, each.reason, files), 2 if each.recovers else 1,
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
