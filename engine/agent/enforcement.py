"""The way of adjustments to the node, or not: dry runs, plugins' own threads, and causes that are logged once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from koordpolicy.engine.framework.qos import Adjustment

from .parts import AppliesAdjustments, EvictionQueue

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo

_LOG: Final = logging.getLogger(__name__)
Lock: TypeAlias = AbstractContextManager[Any]
EVICT: Final = "evict"
"""The kind of adjustments that are evictions."""
_AGAIN_S: Final = 600.0
_MOST: Final = 1000


class LoggedCauses:
    """Says of each cause whether it is to be logged: once in ten minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that only go forward."""
        self._clock = clock
        self._logged: dict[Hashable, float] = {}

    def is_new(self, cause: Hashable) -> bool:
        """Return whether this cause was not logged within the last ten minutes."""
        now = self._clock()
        if now - self._logged.get(cause, float("-inf")) < _AGAIN_S:
            return False
        if len(self._logged) >= _MOST:
            self._logged.clear()
        self._logged[cause] = now
        return True


class _Overlay(Mapping[str, str]):
    def __init__(self, below: Mapping[str, str], above: Mapping[str, str]) -> None:
        self._below = below
        self._above = above

    @property
    def looked_up(self) -> Mapping[str, str]:
        """The files below that were looked up so far."""
        found: Mapping[str, str] = getattr(self._below, "looked_up", {})
        return found

    def __getitem__(self, name: str) -> str:
        real = self._below[name]  # a file that went away, or never was, has no text
        return self._above.get(name, real)

    def __contains__(self, name: object) -> bool:
        return name in self._below

    def __iter__(self) -> Iterator[str]:
        return iter(self._below)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DryRun:
    """Adjustments that are said and not made: later rounds read what would have been written.

    Accumulating files (`resctrl/GROUP/tasks`, `schemata`) show their real text, as a write is not their content.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        """`say` takes one line; without it lines are logged."""
        self._would: dict[str, str] = {}
        self._say = say or (lambda line: _LOG.info("%s", line))
        self._logged: set[tuple[str, str, str]] = set()

    def over(self, files: Mapping[str, str]) -> Mapping[str, str]:
        """Return the files as they would be."""
        return _Overlay(files, self._would)

    def forget_others(self, exists: Callable[[str], bool]) -> None:
        """Forget files that do not exist any more, as those of pods that ended, and what was said long ago."""
        self._would = {name: text for name, text in self._would.items() if exists(name)}
        if len(self._logged) > _MOST:
            self._logged.clear()

    def say(self, plugin: str, adjustments: Iterable[Adjustment], files: Mapping[str, str]) -> None:
        """Say what would be done, each eviction and each write that would change something once."""
        for each in adjustments:
            changes = [(name, text) for name, text in each.writes if self._changes(name, text, files)]
            if each.writes and not changes:
                continue
            if not each.writes:
                if (plugin, each.kind, each.subject) in self._logged:
                    continue
                self._logged.add((plugin, each.kind, each.subject))
            verb = "recover " if each.recovers else ""
            self._say(f"dry run: `{plugin}` would {verb}{each.kind} {each.subject}: {each.reason}"
                      + "".join(f", {name}={text.strip()}" for name, text in changes))

    def _changes(self, name: str, text: str, files: Mapping[str, str]) -> bool:
        if name.startswith("resctrl/"):
            known = ("resctrl", name, text) in self._logged
            self._logged.add(("resctrl", name, text))
            return not known
        before = self._would.get(name)
        if before is None:
            before = files.get(name)
        self._would[name] = text.strip()
        return before != text.strip()


class LockedFiles(Mapping[str, str]):
    """Files for another thread than the daemon's: each look-up waits for the daemon's pass."""

    def __init__(self, lock: Lock, files: Mapping[str, str]) -> None:
        self._lock = lock
        self._files = files

    def __getitem__(self, name: str) -> str:
        with self._lock:
            return self._files[name]

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._files

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(tuple(self._files))

    def __len__(self) -> int:
        with self._lock:
            return len(self._files)


class LockedApplier:
    """The executor for a plugin's own thread (implements `Applies`); without one it says what would be written."""

    def __init__(
        self, lock: Lock, executor: AppliesAdjustments | None, plugin: str, clock: Callable[[], float],
    ) -> None:
        """`clock` is the monotonic one."""
        self._lock = lock
        self._clock = clock
        self._executor = executor
        self._plugin = plugin
        self._logged: set[tuple[str, str]] = set()

    def apply(self, adjustments: Sequence[Adjustment]) -> object:
        """Write the files of the adjustments."""
        written = [each for each in adjustments if each.writes]
        with self._lock:
            if self._executor is None:
                for each in written:
                    self._say(each)
                return ()
            return self._executor.apply(written, int(self._clock() * 1e9))

    def _say(self, each: Adjustment) -> None:
        for file, text in each.writes:
            if (file, text) not in self._logged:
                if len(self._logged) >= _MOST:
                    self._logged.clear()
                self._logged.add((file, text))
                _LOG.info("`%s` would write %s=%s: %s", self._plugin, file, text.strip(), each.reason)


class PodEvictions:
    """The evictor for a plugin's own thread (implements `EvictsPods`); without one it says what would be evicted."""

    def __init__(self, evictor: EvictionQueue | None, plugin: str) -> None:
        self._evictor = evictor
        self._plugin = plugin

    def evict(self, pod: PodInfo, reason: str, message: str = "") -> bool:
        """Evict a pod; return whether it is leaving, or its request is under way."""
        if self._evictor is None:
            _LOG.info("`%s` would evict %s: %s", self._plugin, pod.key, message or reason)
            return False
        self._evictor.evict(pod, Adjustment(EVICT, pod.key, message or reason, reason))
        return pod.uid in self._evictor.evictions.leaving
