"""Writes recordings of a live node, which `koord-policy qos --replay` reads (see `recording`), as JSON lines.

A file is complete by itself: it begins with the node, its objects and pods, and the machine. A new one begins when the
file is full, and when the Node, its NodeSLO or its topology changed, as a recording has one version of each. Files of
control groups are those that strategies read, with their text at that time; what others write to them later is not
recorded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Host
from koordpolicy.engine.texts import camel

from .daemon import Conclusion
from .live_readings import LiveReadings
from .parts import NodeObjects, UsageReadings

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
FILE_BYTES: Final = 64 * 1024 * 1024
MOST_FILES: Final = 8


class NodeRecorder:
    """Records one node; for the agent's thread.

    A disk that is full or gone costs the recording, which is logged once, and nothing else.
    """

    def __init__(
        self, path: Path, node: str, *, interval: float, host: Callable[[], Host], file_bytes: int = FILE_BYTES,
        most_files: int = MOST_FILES,
    ) -> None:
        """`interval` is that of the collection, in seconds. Former files are named after the time they were ended; the
        oldest are removed beyond `most_files`.
        """
        self._path = path
        self._node = node
        self._interval = int(interval * _SECOND)
        self._host = host
        self._file_bytes = file_bytes
        self._most_files = most_files
        self._file: IO[str] | None = None
        self._start = 0
        self._objects: tuple[Any, ...] = ()
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._texts: set[str] = set()
        self._number = 0
        self._failed = False

    def sample(self, now: int, states: NodeObjects, usage: UsageReadings, applications: Callable[[], Any]) -> None:
        """Record what was measured at `now`, in nanoseconds since the epoch; `applications` returns their names."""
        if self._failed or states.node is None:
            return
        try:
            self._begin(now, states)
            for pod in states.pods:
                if self._pods.get(pod.key) is not pod.object:
                    self._pods[pod.key] = pod.object
                    self._write(pod.object)
            self._write(self._sample(now, states.pods, usage, applications()))
        except OSError as error:
            self._fail(error)

    def concluded(self, conclusion: Conclusion, readings: LiveReadings) -> None:  # noqa: ARG002 - an observer
        """Record the files that a round read for the first time."""
        looked_up: Mapping[str, str] = getattr(readings.files, "looked_up", {})
        new = {name: text for name, text in looked_up.items() if name not in self._texts}
        if not new or self._file is None:
            return
        self._texts.update(new)
        try:
            self._write({"files": {self._node: new}})
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _begin(self, now: int, states: NodeObjects) -> None:
        """Begin a file if there is none, or the present one is over."""
        objects = (states.node, states.node_slo, states.topology)
        changed = len(objects) != len(self._objects) or any(
            _content(one) != _content(other) for one, other in zip(objects, self._objects, strict=True)
            if one is not other)
        if self._file is not None and not changed and self._file.tell() < self._file_bytes:
            self._objects = objects
            return
        self._rotate()
        self._start, self._objects = now, objects
        self._pods.clear()
        self._texts.clear()
        self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w",
                               encoding="utf-8", buffering=1)
        self._write({"interval": f"{self._interval // 1_000_000}ms",
                     "start": _time(now), "hosts": {self._node: _plain(self._host())}})
        for kind, each in zip(("Node", "NodeSLO", "NodeResourceTopology"), objects, strict=True):
            if each is not None:
                self._write({**each, "kind": kind})

    def _rotate(self) -> None:
        self.close()
        if self._path.exists():
            self._number += 1
            time = datetime.now(UTC).strftime("%Y-%m-%d-%H-%M-%S")
            self._path.rename(self._path.with_name(f"{self._path.stem}-{time}-{self._number:04}{self._path.suffix}"))
        former = sorted(self._path.parent.glob(f"{self._path.stem}-????-??-??-??-??-??-*{self._path.suffix}"))
        for path in former[: max(len(former) - self._most_files + 1, 0)]:
            path.unlink(missing_ok=True)

    def _sample(
        self, now: int, pods: tuple[PodInfo, ...], usage: UsageReadings, applications: Any,
    ) -> dict[str, Any]:
        window = self._interval // 2
        # Rounds of a replay are in step with the first sample: without jitter each sees the sample that it saw.
        steps = round((now - self._start) / self._interval)
        found: dict[str, Any] = {"time": _time(self._start + steps * self._interval), "node": self._node,
                                 "canonical": True}
        if of_node := usage.measured("node", self._node, "last", window):
            found["usage"] = of_node
        for kind, names in (
            ("pod", [pod.key for pod in pods]),
            ("container", [f"{pod.key}/{each.get('name')}" for pod in pods
                           for each in (pod.object.get("spec") or {}).get("containers") or ()]),
            ("application", applications),
        ):
            measured = {name: amounts for name in names if (amounts := usage.measured(kind, name, "last", window))}
            if measured:
                found[f"{kind}s"] = measured
        if best_effort := usage.measured("bestEffort", self._node, "last", window):
            found["bestEffort"] = best_effort
        return found

    def _write(self, content: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(content, separators=(",", ":"), default=str) + "\n")

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self.close()
        _LOG.error("the recording %s has ended, as it cannot be written: %s", self._path, error.strerror or error)


def _time(now: int) -> str:
    seconds, rest = divmod(now, _SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _content(item: Mapping[str, Any] | None) -> Any:
    """Return the parts of an object that matter to strategies: all but its version and the times of a Node's
    conditions.
    """
    if item is None:
        return None
    metadata = item.get("metadata") or {}
    status = item.get("status") or {}
    return (metadata.get("labels"), metadata.get("annotations"), item.get("spec"), item.get("zones"),
            status.get("capacity"), status.get("allocatable"))


def _plain(value: Any) -> Any:
    """Return a machine as `recording.host_of` reads it."""
    if isinstance(value, Host):
        found = {camel(each.name): _plain(getattr(value, each.name)) for each in fields(value)}
        found["processors"] = [[each.cpu, each.core, each.socket, each.numa_node] for each in value.processors]
        return found
    if is_dataclass(value) and not isinstance(value, type):
        return {camel(each.name): _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
