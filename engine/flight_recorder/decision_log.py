"""The decision log: a line of JSON for each sampled decision, in files that are rotated."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from koordpolicy.engine.files import open_own
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.kubernetes.times import rfc3339_micro
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .background import CAPACITY, BackgroundWriter
from .summaries import next_best, reasons_in, total_of

_LOG: Final = logging.getLogger(__name__)
_RETRY_S: Final = 10.0
_MOST_HASHES: Final = 1_000
_MILLISECOND: Final = 1e6


@dataclass(frozen=True, slots=True)
class LogLimits:
    """When a file is rotated, and how many rotated ones stay (`FILE.1` is the newest)."""

    bytes: int = 100 * 1024 * 1024
    files: int = 5


class DecisionLog:
    """Logs decisions of a scheduling loop (implements `scheduler.observe.cycle_observer.CycleObserver`)."""

    def __init__(
        self, path: Path, live: Live, *, sample: float = 1.0, limits: LogLimits | None = None,
        clock: Callable[[], int], capacity: int = CAPACITY,
    ) -> None:
        """`sample` is the share of pods, 0 to 1: of a sampled pod, chosen by its UID, all decisions are logged.

        `clock` returns nanoseconds since the epoch.

        Raises:
            OSError: the file cannot be written, is a link, not a file, or belongs to another user.
        """
        self._live = live
        self._clock = clock
        self._below = round(sample * 2**32)
        self._hashes: dict[int, str] = {}
        self._time = 0
        self._dropped = 0
        self._files = _RotatedFile(path, limits or LogLimits())
        self._writer: BackgroundWriter[Mapping[str, Any]] = BackgroundWriter("decision-log", self._files.write,
                                                                            capacity=capacity)

    @property
    def dropped(self) -> int:
        """The number of decisions that were not logged because the disk was too slow or failed; for any thread."""
        return self._dropped + self._files.dropped

    def begin(self, now: int) -> None:
        """Remember the time of the decision."""
        self._time = now

    def end(self, verdict: Verdict | None, duration: int) -> None:
        """Log a decision."""
        if verdict is not None and self._is_sampled(verdict):
            self._put(self._line(verdict, self._time) | {"durationMs": round(duration / _MILLISECOND, 3)})

    def concluded(self, verdict: Verdict) -> None:
        """Log the end of a binding cycle."""
        if self._is_sampled(verdict):
            self._put(self._line(verdict, self._clock()) | {"concluded": True})

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        if not self._writer.close():
            _LOG.error("the decision log could not be ended in time")
        self._files.close()
        if self.dropped:
            _LOG.warning("the decision log lacks %d decisions: the disk was too slow, or failed", self.dropped)

    def _is_sampled(self, verdict: Verdict) -> bool:
        return zlib.crc32((verdict.pod.uid or verdict.pod.key).encode("utf-8", "replace")) < self._below

    def _put(self, line: Mapping[str, Any]) -> None:
        if not self._writer.put(line):
            self._dropped += 1

    def _line(self, verdict: Verdict, time: int) -> dict[str, Any]:
        pod = verdict.pod
        line: dict[str, Any] = {
            "time": rfc3339_micro(time), "pod": pod.key, "uid": pod.uid, "profile": verdict.profile,
            "generation": verdict.generation, "hash": self._hash_of(verdict.generation), "node": verdict.node,
            "nodes": verdict.size, "passed": len(verdict.passed),
        }
        if verdict.waiting or verdict.binding:
            line["pending"] = True
        if verdict.node is None:
            reasons, left_out = reasons_in(verdict)
            line["refusals"] = [{"plugin": plugin, "rule": rule, "reason": reason, "nodes": nodes}
                                for plugin, rule, reason, nodes in reasons]
            if left_out:
                line["refusalsLeftOut"] = left_out
            if verdict.nomination is not None:
                line["nominated"] = verdict.nomination.node
                line["victims"] = [victim.key for victim in verdict.nomination.victims]
            return line
        total, other = total_of(verdict), next_best(verdict)
        if total is not None:
            line["score"] = {"total": total, "plugins": verdict.score_of(verdict.node)}
        if other is not None:
            line["next"] = {"node": other[0], "total": other[1], "plugins": verdict.score_of(other[0])}
        return line

    def _hash_of(self, generation: int) -> str:
        found = self._hashes.get(generation)
        if found is None:
            registry = self._live.registry
            if registry.generation != generation:
                return ""  # they were replaced during the decision
            if len(self._hashes) >= _MOST_HASHES:
                self._hashes.clear()
            found = self._hashes[generation] = registry.digest
        return found


class _RotatedFile:
    """A file of lines that is renamed when it is full; for one thread after the first."""

    def __init__(self, path: Path, limits: LogLimits) -> None:
        self.dropped = 0
        self._path = path
        self._limits = limits
        self._descriptor: int | None = None
        self._size = 0
        self._failed = 0.0
        self._open()

    def write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines; those that cannot be written are counted."""
        if not lines:
            return
        content = bytearray()
        for line in lines:
            content += json.dumps(line, allow_nan=False, default=str).encode() + b"\n"
        try:
            if self._descriptor is None:
                if monotonic() - self._failed < _RETRY_S:
                    self.dropped += len(lines)
                    return
                self._open()
            elif self._size and self._size + len(content) > self._limits.bytes:
                self._rotate()
            self._append(content)
        except OSError as error:
            self.dropped += len(lines)
            self._failed = monotonic()
            self.close()
            _LOG.error("the decision log cannot be written, and is tried again: %s", error.strerror or error)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> None:
        self._descriptor = open_own(self._path, mode=0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # a line that was cut off by a crash stays one line

    def _append(self, content: bytes | bytearray) -> None:
        assert self._descriptor is not None
        view = memoryview(content)
        while view:
            written = os.write(self._descriptor, view)
            view = view[written:]
            self._size += written

    def _rotate(self) -> None:
        self.close()
        for number in range(self._limits.files, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1) if number > 1 else self._path
            if newer.exists() or newer.is_symlink():
                newer.replace(older)
        if not self._limits.files:
            self._path.unlink()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
