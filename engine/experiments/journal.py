"""Journal of finished experiments, so that an interrupted run can be resumed.

One line of JSON per experiment, under a key of everything that determines its outcome. An incomplete last line is
ignored, and cut off before the next one is appended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from koordpolicy.engine.files import open_own

from .axes import Point

_LONGEST_LINE: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """The result of an experiment: figures by name, and curves by name, each a list over a common x."""

    figures: Mapping[str, float | int | None]
    curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    seconds: float = 0.0
    """The duration where it ran."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"figures": dict(self.figures), "curves": {name: list(each) for name, each in self.curves.items()},
                "seconds": round(self.seconds, 3)}


def key_of(point: Point, inputs: str) -> str:
    """Return the key of an experiment: the same for the same point over the same inputs."""
    text = json.dumps([inputs, dict(point)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Busy(Exception):
    """Another process is writing this journal."""


class Journal:
    """The file that finished experiments are written to, open and locked until `close`."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open or create a journal; `fresh` discards its content.

        Raises:
            Busy: another process has it open.
            OSError: it cannot be read or written, is a link, or belongs to another user.
        """
        self.path = path
        self.finished: dict[str, ExperimentOutcome] = {}
        """The results recorded so far, by `key_of`."""
        self._file: IO[bytes] = os.fdopen(open_own(path), "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise Busy from None
        if fresh:
            self._file.truncate(0)
        self._read()

    def add(self, key: str, point: Point, outcome: ExperimentOutcome) -> None:
        """Append the outcome of an experiment; it is on the disk when this returns."""
        line = json.dumps({"key": key, "experiment": dict(point), **outcome.to_json()}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.finished[key] = outcome

    def close(self) -> None:
        """Close and unlock the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        begins = True  # an overlong line is read in parts and ignored
        while line := self._file.readline(_LONGEST_LINE):
            ended = line.endswith(b"\n")
            if begins and ended and (found := _finished(line)) is not None:
                self.finished[found[0]] = found[1]
            begins = ended
            if ended:
                whole = self._file.tell()
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)


def _finished(line: bytes) -> tuple[str, ExperimentOutcome] | None:
    """Return key and outcome of a line; None for a line in another format, which is ignored."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    key, seconds = content.get("key"), content.get("seconds")
    figures, curves = content.get("figures"), content.get("curves")
    if not isinstance(key, str) or not isinstance(seconds, int | float) or not _is_number(seconds):
        return None
    if not isinstance(figures, dict) or not all(map(_is_figure, figures.values())):
        return None
    if not isinstance(curves, dict) or not all(
            isinstance(curve, list) and all(map(_is_figure, curve)) for curve in curves.values()):
        return None
    return key, ExperimentOutcome(figures, curves, seconds)


def _is_figure(value: object) -> bool:
    return value is None or _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
