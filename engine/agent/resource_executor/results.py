"""The results of writing the files of adjustments."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from koordpolicy.engine.framework.qos import Adjustment


class FileWriteStatus(enum.Enum):
    """The outcome of one write of an adjustment."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The file already has the value."""
    CACHED = "cached"
    """The value was written or found there less than the update interval ago; the file was not looked at."""
    DRY_RUN = "dry-run"
    """The value would be written."""
    UNSUPPORTED = "unsupported"
    """The machine does not have the file; no failure."""
    GONE = "gone"
    """The directory went away, as that of a container that ended; no failure."""
    INVALID = "invalid"
    """The value is outside of what the file accepts, by the table of files."""
    NOT_JOURNALED = "not-journaled"
    """The file's original value could not be stored, so it was not changed."""
    SUSPENDED = "suspended"
    """Writes to the file failed too often; the next attempt is later."""
    FAILED = "failed"
    """The kernel refused the value."""


@dataclass(frozen=True, slots=True)
class FileWriteResult:
    """The outcome of one write: the logical file, its text, and for a failure the reason.

    `before` is the logical text that the file had, empty if it was not read. `path` is empty for unsupported files.
    """

    file: str
    text: str
    status: FileWriteStatus
    path: str = ""
    before: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        """True if the file lacks the value although the machine has the file."""
        return self.status in _FAILURES


_FAILURES = frozenset({
    FileWriteStatus.INVALID, FileWriteStatus.NOT_JOURNALED, FileWriteStatus.SUSPENDED, FileWriteStatus.FAILED,
})


@dataclass(frozen=True, slots=True)
class AdjustmentResult:
    """The results of an adjustment's writes, in their order."""

    adjustment: Adjustment
    writes: tuple[FileWriteResult, ...]

    @property
    def changed(self) -> bool:
        """True if any file was changed, or would be in a dry run."""
        return any(each.status in (FileWriteStatus.WRITTEN, FileWriteStatus.DRY_RUN) for each in self.writes)


AuditHook: TypeAlias = Callable[[Adjustment, FileWriteResult], None]
"""Called after every write that changed a file, or would have in a dry run."""
MetricHook: TypeAlias = Callable[[str, str, float], None]
"""Called after every attempt to write: the file's name in the table (`cpu.cfs_quota_us`), the status, seconds."""
