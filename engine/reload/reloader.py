"""Directories -> settle -> build beside what runs -> swap; and what to do when any of that goes wrong.

`Reloader.step(now)` is one look at all sources. It never sleeps and reads no clock for its decisions, so that it can be
driven by virtual time; `start` drives it in a thread of its own, with file events as a hint that shortens the wait.
"""

from __future__ import annotations

import enum
import errno
import gc
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .history import GenerationRecord, History
from .journal import write_changes
from .low_latency_gc import GENTLY
from .mount import EMPTY, Mount, Presence, SourceReading, Stamp, Version
from .publish import publish
from .state_store import Saved, Store
from .status import EMPTIED, SourceStatus, Status
from .watch import FileEvents

Build: TypeAlias = Callable[[Sequence[Source]], Iterable[Plugin]]
"""Compiles the files of all sources together; raises `PolicyError` with everything that is wrong with them."""

Groups: TypeAlias = Callable[[Sequence[Source]], Iterable[Collection[str]]]
"""Names of files that belong together because one references the other; files that stand alone need no group."""

Warn: TypeAlias = Callable[[Sequence[Source]], Iterable[Problem]]
"""Says what is worth a look in files that are in force, each with its place."""

Take: TypeAlias = Callable[[Registry], None]
"""Takes a registry that is about to be put in force; raises `PolicyError` where it cannot run."""

FIRST_DECISIONS: Final = 100
"""Over how many decisions a new generation's errors are counted, unless told otherwise."""

_LOG: Final = logging.getLogger(__name__)
_FIRST_LOOKS: Final = 5
_SHORTEST_WAIT_S: Final = 0.001
OVERDUE: Final = "overdue"
"""The code of the problem with a document that a decision did not return from."""
UNAVAILABLE: Final = "vetting-unavailable"
"""The code of the problem that a set could not be checked, for no fault of its own: it is tried again."""
BLOCKED: Final = "held"
"""The code of the problem with a version that is kept out because somebody went back from it."""
_ALERT_S: Final = 1.0
"""How long after an event it is looked more often: what reads inotify may hold back for 0.5 s what follows a rename."""
_ALERT_INTERVAL_S: Final = 0.03
_ALERT_SHARE: Final = 10
"""How many times as long as a look the wait after it is, then, at least."""
_FLAPPING: Final = 200
"""After how many settle times without quiet a source is warned about."""


class InvalidAtStart(enum.Enum):
    """What to do when the policies are invalid (or missing) at start."""

    REFUSE = "refuse"
    LAST_GOOD = "last-good"
    WAIT = "wait"
    """Begin with nothing in force, and wait for a valid set: for policies that decide nothing yet."""


class ReloadUnit(enum.Enum):
    """What stays in its previous version as a whole when anything in it is wrong."""

    SOURCE = "source"
    FILE = "file"


@dataclass(slots=True, eq=False)
class SourceState:
    """What is known about one source; only the reloading thread touches it."""

    mount: Mount
    stamp: Stamp | None = None
    changed_at: float | None = None
    """When the stamp last changed; None once that change has been read."""
    flapping_since: float | None = None
    rehash_at: float = 0.0
    projected: bool = False
    unmounted: bool = False
    empty_since: float | None = None
    observed: Version | None = None
    """What was last read, desired or not."""
    desired: Version | None = None
    """What should be active: what is observed, but an empty one only after two looks."""
    desired_since: float = 0.0
    active: Version | None = None
    active_since: float = 0.0
    last_good: bool = False
    mixed: bool = False
    blocked: dict[str, Problem] = field(default_factory=dict)
    """What was rolled back, until something else is seen: versions, or (with files as the unit) contents of files."""
    overdue: dict[str, Problem] = field(default_factory=dict)
    """Contents of files that a decision did not return from: kept out until they change, whatever else does."""
    trouble: tuple[Problem, ...] = ()
    """Why it could not be read."""
    problems: tuple[Problem, ...] = ()
    """Why the desired version is not active."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """Changes that go in force together or not at all."""

    state: tuple[SourceState, ...]
    changes: Mapping[str, Source | None]
    """The files by name; None for one that was deleted."""
    since: float
    problems: tuple[Problem, ...] = ()
    """What is wrong with it before anything is built."""


_Files: TypeAlias = dict[str, Source]


@dataclass(frozen=True, slots=True)
class _ActiveSet:
    """What was in force when it last had proven itself: for a roll-back."""

    plugins: tuple[Plugin, ...]
    versions: tuple[tuple[SourceState, Version | None, float], ...]


class Reloader:
    """Keeps the registry in force in step with what the sources hold.

    `clock` (seconds since the epoch) is only told to people; `step` gets its own time. `settle`, `interval` and
    `rehash` are seconds: how quiet a source must be before it is read, how often it is looked at, and how often all
    contents are hashed though nothing seems to have changed. `max_error_rate` (0..1) rolls a generation back if a
    larger part of its first `first_decisions` decisions had failing expressions (see `observe`).
    `groups` is asked with files as the unit only. `check` is asked about every set that builds, and refuses what nobody
    could run (arguments that a plugin does not take, for example); it is to be quick and to change nothing.
    `warnings` is asked about every set that goes in force, and what it says stands in the status. `file_events` makes
    what shortens the wait, from what is to be called when something may have changed. Without `allow_empty`, a source
    that holds no policy is refused: at start, and later, when what is in force of it stays. `holds_policies` says
    whether a file that compiles holds one, or PolicyParams.
    """

    def __init__(
        self,
        live: Live,
        sources: Sequence[Mount | str | os.PathLike[str]],
        build: Build,
        *,
        python_plugins: Iterable[Plugin] = (),
        clock: Callable[[], float] = time.time,
        state_dir: str | os.PathLike[str] | Store | None = None,
        settle: float = 0.05,
        interval: float = 1.0,
        rehash: float = 60.0,
        invalid_at_start: InvalidAtStart = InvalidAtStart.REFUSE,
        reload_unit: ReloadUnit = ReloadUnit.SOURCE,
        groups: Groups | None = None,
        check: Take | None = None,
        allow_empty: bool = True,
        holds_policies: Callable[[Source], bool] = lambda _: True,
        warnings: Warn | None = None,
        max_error_rate: float | None = None,
        first_decisions: int = FIRST_DECISIONS,
        file_events: Callable[[Callable[[], None]], FileEvents] = FileEvents,
        log: logging.Logger = _LOG,
    ) -> None:
        mounts = [source if isinstance(source, Mount) else Mount(source) for source in sources]
        _refuse_overlaps(mounts)
        if invalid_at_start is InvalidAtStart.LAST_GOOD and state_dir is None:
            raise PolicyError([Problem("to start on the last good set, a directory that keeps it is needed",
                                       help="name one with `--state-dir`", code="missing-state")])
        self._live = live
        self._sources = tuple(SourceState(mount) for mount in mounts)
        self._build = build
        self._python_plugins = tuple(python_plugins)
        self._clock = clock
        self._store = Store(state_dir) if isinstance(state_dir, str | os.PathLike) else state_dir
        self._settle = settle
        self._interval = interval
        self._rehash = rehash
        self._invalid_at_start = invalid_at_start
        self._unit = reload_unit
        self._groups = groups
        self._check = check
        self._allow_empty = allow_empty
        self._holds_policies = holds_policies
        self._warnings = warnings
        self._told: dict[str, list[str]] = {}
        self._prepare: Take | None = None
        self._max_error_rate = max_error_rate
        self._first_decisions = first_decisions
        self._plugins: tuple[Plugin, ...] = ()
        self._previous: _ActiveSet | None = None
        self._dirty = False
        self._again: float | None = None
        """When what could not be checked, for no fault of its own, is tried again."""
        self._look_took = 0.0
        """About how long it takes to see whether a source has changed."""
        self._stepping: float | None = None
        """Since when the thread has been at work; None while it waits."""
        self._unsaved = self._untold = False
        self._save_at = float("-inf")
        self._state_trouble = ""
        self._alarm = ""
        self._stuck = False
        self._last_success: float | None = None
        self._last_failure: float | None = None
        self._successes = self._failures = 0
        self._history = History()
        self._restored: int | None = None
        self._asked: queue.SimpleQueue[tuple[Callable[[float], GenerationRecord], Future[GenerationRecord]]] = (
            queue.SimpleQueue())
        self._overdue: queue.SimpleQueue[tuple[Plugin, str]] = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._counted = (0, 0, 0)  # generation, decisions, errors
        self._make_file_events = file_events
        self._log = log
        self._file_events: FileEvents | None = None
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = Status(live.registry.generation, live.registry.digest,
                              tuple(self._source_status(state) for state in self._sources))

    # What others ask.

    def status(self) -> Status:
        """Return how things stand after the last look; may be asked from any thread, and never waits."""
        return self._status

    @property
    def seconds_at_work(self) -> float:
        """For how long the thread that reloads has been at work; 0 while it waits. May be asked from any thread."""
        since = self._stepping
        return 0.0 if since is None else time.monotonic() - since

    @property
    def registry(self) -> Registry:
        """What is in force; may be asked from any thread."""
        return self._live.registry

    def observe(self, generation: int, decisions: int, errors: int) -> None:
        """Count decisions made under a generation, and how many of them had an expression that failed.

        May be called from any thread. What is told about any generation but the one in force is ignored.
        """
        with self._counting:
            if generation != self._live.registry.generation:
                return
            counted, before, failed = self._counted
            if counted != generation:
                before = failed = 0
            if before < self._first_decisions:
                self._counted = generation, before + decisions, failed + errors
        if self._failing():
            self._woken.set()

    def report_overdue(self, plugin: Plugin, why: str) -> None:
        """Go back to the last set without this document, which keeps decisions from ending; from any thread.

        Done at the next look, unless another version of the document is in force by then. `why` is for people. The
        content of the file is not put in force again until it is changed. Where there is nothing to go back to,
        `status` says so. A Python plugin is in every set, so nothing is done about it.
        """
        self._overdue.put((plugin, why))
        self._woken.set()

    def prepare_with(self, prepare: Take) -> None:
        """From the next set on, have `prepare` called before it is put in force, in the thread that reloads.

        What it raises keeps what runs in force, and is told as the fault of what changed.
        """
        self._prepare = prepare

    # One look.

    def begin(self, now: float) -> Registry:
        """Read all sources for the first time and put them in force; return what is in force.

        Raises `PolicyError` with everything that is wrong, unless the last good set can (and may) be used.
        """
        problems: list[Problem] = []
        for state in self._sources:
            reading = state.mount.read()
            for _ in range(_FIRST_LOOKS):
                if reading.torn:
                    reading = state.mount.read()
            self._take(state, reading, now)
            # What changed within the same tick of the file system's clock would not show in the next stamp.
            state.rehash_at = now + self._interval
            state.desired, state.desired_since = state.observed, now
            if reading.torn:
                state.stamp, state.changed_at = None, now
                state.trouble = (Problem(f"`{state.mount.path}` changes while it is read", code="unsettled"),)
            problems += state.trouble
            if reading.version is not None:
                problems += reading.version.problems
        whole = not problems and all(state.observed is not None for state in self._sources)
        files = {source.name: source for state in self._sources if state.observed is not None
                 for source in state.observed.files.values()}
        plugins: tuple[Plugin, ...] = ()
        held: Mapping[SourceState, Saved] = self._held() if whole else {}
        try:
            plugins, held = self._with_held(files, held)
        except PolicyError as error:
            whole = False
            problems += error.problems
        else:  # only now: what was not compiled is not read here
            emptied = [state for state in self._sources if state not in held and self._is_emptied(state.observed)]
            problems += [_emptied(state) for state in emptied]
            whole = whole and not emptied
        if whole:
            for state in self._sources:
                state.active, state.active_since = state.observed, self._clock()
                if state in held:
                    self._hold(state, held[state], now)
            self._swap(plugins)
            self._succeeded()
            self._remember()
        elif self._invalid_at_start is InvalidAtStart.REFUSE:
            raise PolicyError(problems)
        elif self._invalid_at_start is InvalidAtStart.WAIT:
            self._apply()
        else:
            self._resume(problems, now)
        self._dirty = False
        self._finish(now)
        return self._live.registry

    def _held(self) -> dict[SourceState, Saved]:
        """Return the last good versions of sources that are empty now and were not when they last ran.

        Right after a start an empty directory is a mount that is not there yet, or a wish: it is looked at twice. And
        those of sources that still hold what was gone back from.
        """
        if self._store is None:
            return {}
        try:
            saved = self._store.load({state.mount.path: state.mount for state in self._sources})
        except PolicyError:
            return {}  # there is nothing to hold on to
        return {state: each for state in self._sources
                if state.observed is not None and (each := saved.get(state.mount.path)) is not None
                and (each.blocked == state.observed.digest
                     or (not state.observed.hashes and bool(each.version.hashes)))}

    def _with_held(
        self, files: _Files, held: Mapping[SourceState, Saved],
    ) -> tuple[tuple[Plugin, ...], Mapping[SourceState, Saved]]:
        """Compile the files together with what is held, or without it where that does not run any more."""
        if held:
            kept = {source.name: source for saved in held.values() for source in saved.version.files.values()}
            try:
                return self._compiled(files | kept), held
            except PolicyError:
                pass
        return self._compiled(files), {}

    @staticmethod
    def _hold(state: SourceState, saved: Saved, now: float) -> None:
        state.active, state.active_since, state.last_good = saved.version, saved.since, True
        state.projected = state.projected or saved.projected
        if state.observed is not None and saved.blocked == state.observed.digest:
            _block(state, Problem("it was gone back from before the last start", code=BLOCKED,
                                     help="it stays out of force until it is changed, or brought back by its hash"))
            return
        state.desired, state.empty_since = None, now

    def step(self, now: float) -> float:
        """Look at every source once, put in force what may be; return when the next look is due.

        `now` is in seconds of any clock that only goes forward. Never raises for what the sources hold.
        """
        if self._failing():
            self._roll_back()
        while not self._overdue.empty():
            self._go_back(*self._overdue.get())
        answers = self._serve(now)
        for state in self._sources:
            self._look(state, now)
        if self._dirty or (self._again is not None and now >= self._again):
            self._apply()
            self._again = now + self._interval if self._unavailable() else None
        due = self._finish(now)
        # Only now: whoever asked may look at the status next.
        for answer in answers:
            answer()
        return due

    def _look(self, state: SourceState, now: float) -> None:
        began = time.monotonic()
        stamp = state.mount.stamp()
        self._look_took = max(self._look_took / 2, time.monotonic() - began)
        if stamp.presence is Presence.DIRECTORY and state.projected:
            # It was a mounted ConfigMap; without `..data` it is what a mount point looks like after an unmount.
            stamp = Stamp(Presence.MISSING, reason="its `..data` is gone, so the volume is no longer mounted")
        if stamp != state.stamp:
            if state.changed_at is None:
                state.flapping_since = now
            state.stamp, state.changed_at = stamp, now
            if not stamp.readable:
                self._take(state, SourceReading(stamp), now)
                return
            state.unmounted = False
        settled = state.changed_at is not None and now >= state.changed_at + self._settle
        # An empty source is a wish only if a second look, an interval later, finds it empty again.
        second = state.empty_since is not None and now >= state.empty_since + self._interval
        if stamp.readable and (settled or (state.changed_at is None and (second or now >= state.rehash_at))):
            self._take(state, state.mount.read(state.observed or state.active), now)

    def _take(self, state: SourceState, reading: SourceReading, now: float) -> None:
        if reading.torn:
            state.stamp, state.changed_at = reading.stamp, now
            return
        state.stamp, state.changed_at, state.flapping_since = reading.stamp, None, None
        state.rehash_at = now + self._rehash
        version = reading.version
        if version is None:
            state.unmounted = reading.stamp.presence is Presence.MISSING
            state.empty_since = None
            state.observed = None
            state.warnings = ()
            state.trouble = (Problem(
                f"`{state.mount.path}` cannot be read: {reading.stamp.reason}",
                help="mount or restore it" if state.unmounted
                else "name several smaller directories" if reading.stamp.marks == (errno.E2BIG,)
                else "give the process the right to read it",
                code="unmounted" if state.unmounted else "unreadable-source"),)
            self._failed()
            return
        state.unmounted, state.trouble, state.warnings = False, (), reading.warnings
        state.projected = state.projected or reading.stamp.presence is Presence.PROJECTED
        state.observed = version
        # Looked at twice before it is desired, and not again after that.
        if not version.hashes and state.active is not None and state.active.hashes and (
                state.desired is None or state.desired.hashes):
            if state.empty_since is None:
                state.empty_since = now
            if now < state.empty_since + self._interval:
                return
        state.empty_since = None
        if state.desired is None or version.digest != state.desired.digest:
            kept = {version.digest, *(_content_key(state, name, version) for name in version.hashes)}
            state.blocked = {key: problem for key, problem in state.blocked.items() if key in kept}
            state.overdue = {key: problem for key, problem in state.overdue.items() if key in kept}
            state.desired, state.desired_since = version, now
            self._dirty = True

    # Building and swapping.

    def _apply(self) -> None:
        self._dirty = False
        files = {source.name: source for state in self._sources if state.active is not None
                 for source in state.active.files.values()}
        accepted, refused, plugins = self._select(files, self._units())
        if accepted:
            before = _ActiveSet(self._plugins, tuple((w, w.active, w.active_since) for w in self._sources))
            generation, proven = self._live.registry.generation, self._proven()
            try:
                self._swap(plugins)
            except PolicyError as error:
                refused += [(unit, error.problems) for unit in accepted]
            else:
                self._accept(accepted)
                self._remember()
                # What has not proven itself is nothing to go back to: the last generation that has stays the one.
                if self._max_error_rate is not None and self._live.registry.generation != generation and proven:
                    self._previous = before
        pending = self._pending()
        for state in self._sources:
            state.problems = ()
            if state.desired is not None and state not in pending:
                state.last_good = state.mixed = False
        for unit, problems in refused:
            for state in unit.state:  # several files of it may be refused for the same reason
                state.problems = tuple(dict.fromkeys((*state.problems, *problems)))
        failed = [problem for _, problems in refused for problem in problems if problem.code != BLOCKED]
        if failed:
            self._failed()
        elif accepted or not refused:
            self._succeeded()
        if not refused and not self._stuck:
            self._alarm = ""  # what was rolled back is not published any more

    def _unavailable(self) -> bool:
        return any(problem.code == UNAVAILABLE for state in self._sources for problem in state.problems)

    def _units(self) -> list[_Unit]:
        if self._unit is ReloadUnit.FILE:
            return self._file_units()
        units = []
        for state in self._pending():
            assert state.desired is not None
            changes = {state.mount.name_of(relative): source
                       for relative, source in _changes(state.active or EMPTY, state.desired).items()}
            blocked = state.blocked.get(state.desired.digest)
            overdue = [problem for relative in state.desired.files
                      if (problem := state.overdue.get(_content_key(state, relative, state.desired))) is not None
                      and problem is not blocked]
            problems = (*state.desired.problems, *((blocked,) if blocked else ()), *overdue)
            units.append(_Unit((state,), changes, state.desired_since, problems))
        return units

    def _pending(self) -> list[SourceState]:
        return [state for state in self._sources if state.desired is not None
                and (state.active is None or state.desired.digest != state.active.digest)]

    def _is_emptied(self, version: Version | None, refused: Collection[str] = ()) -> bool:
        """Return whether a version that compiles holds no policy although it must: no file, only empty ones, or tests.

        Files that are `refused` are something else than nothing, and are not read.
        """
        if self._allow_empty or version is None or version.problems or version.broken:
            return False
        return not any(source.name in refused or self._holds_policies(source) for source in version.files.values())

    def _file_units(self) -> list[_Unit]:
        changes: dict[str, tuple[SourceState, Source | None]] = {}
        faults: dict[str, tuple[Problem, ...]] = {}
        for state in self._pending():
            assert state.desired is not None
            for relative, source in _changes(state.active or EMPTY, state.desired).items():
                key = _content_key(state, relative, state.desired)
                blocked = state.overdue.get(key) or state.blocked.get(key)
                name = state.mount.name_of(relative)
                changes[name] = state, source
                faults[name] = (blocked,) if blocked else ()
            for relative, problem in state.desired.broken.items():
                name = state.mount.name_of(relative)
                changes[name] = state, None
                faults[name] = (problem,)
        together = {name: frozenset({name}) for name in changes}
        if self._groups is not None:
            before = [s for w in self._sources if w.active is not None for s in w.active.files.values()]
            after = list(_merged(before, changes))
            # What referenced each other before counts, too: a document moves with the file that it is cut loose from.
            for group in (*self._groups(before), *self._groups(after)):
                joined = frozenset[str]().union(*(together[name] for name in group if name in together))
                for name in joined:
                    together[name] = joined
        return [
            _Unit(tuple(dict.fromkeys(changes[name][0] for name in sorted(names))),
                  {name: changes[name][1] for name in sorted(names)},
                  min(changes[name][0].desired_since for name in names),
                  tuple(problem for name in sorted(names) for problem in faults[name]))
            for names in sorted(set(together.values()), key=sorted)
        ]

    def _select(
        self, files: _Files, units: Sequence[_Unit],
    ) -> tuple[list[_Unit], list[tuple[_Unit, tuple[Problem, ...]]], tuple[Plugin, ...]]:
        """Find as many units as build together on top of `files`, the older ones first; the rest is refused."""
        accepted: list[_Unit] = []
        refused = [(unit, unit.problems) for unit in units if unit.problems]
        pending = [unit for unit in units if not unit.problems]
        plugins = self._plugins
        # All at once, since they may need each other; then without those that are at fault themselves.
        while pending:
            try:
                plugins = self._compiled(_with(files, pending))
            except PolicyError as error:
                named = {problem.span.root().name for problem in error.problems
                          if problem.span is not None and problem.severity is Severity.ERROR}
                at_fault = [unit for unit in pending if not named.isdisjoint(unit.changes)]
                if len(pending) == 1:
                    return accepted, [*refused, (pending[0], error.problems)], plugins
                if not at_fault or len(at_fault) == len(pending):
                    break
                refused += [(unit, _own(error.problems, unit)) for unit in at_fault]
                pending = [unit for unit in pending if unit not in at_fault]
            else:
                emptied = [(unit, told) for unit in pending if (told := self._emptied_in(unit, refused))]
                if not emptied:
                    return pending, refused, plugins
                refused += emptied
                pending = [unit for unit in pending if unit not in [unit for unit, _ in emptied]]
        # One by one: what does not fit is the fault of the one that comes later.
        pending.sort(key=lambda unit: unit.since)
        found = True
        while found:
            found = False
            for unit in list(pending):
                try:
                    plugins = self._compiled(_with(files, [*accepted, unit]))
                except PolicyError:
                    continue
                pending.remove(unit)
                if told := self._emptied_in(unit, refused):
                    refused.append((unit, told))
                    continue
                accepted.append(unit)
                found = True
        for unit in pending:
            try:
                self._compiled(_with(files, [*accepted, unit]))
            except PolicyError as error:
                refused.append((unit, error.problems))
        return accepted, refused, plugins

    def _emptied_in(self, unit: _Unit, refused: Iterable[tuple[_Unit, object]]) -> tuple[Problem, ...]:
        """Return what is wrong with a unit that compiles, and that empties sources which may not be empty."""
        names = {name for other, _ in refused for name, source in other.changes.items() if source is not None}
        return tuple(_emptied(state) for state in unit.state if self._is_emptied(state.desired, names))

    def _compiled(self, files: _Files) -> tuple[Plugin, ...]:
        """Return all plugins of these files and the Python plugins.

        Raises `PolicyError`, also for what is our own fault: no reload may end the thread that reloads.
        """
        owners = {name: state.mount.path for state in self._sources
                  for version in (state.active, state.desired, state.observed) if version is not None
                  for name in (source.name for source in version.files.values())}
        try:
            plugins = [*self._python_plugins]
            for plugin in self._build([files[name] for name in sorted(files)]):
                name = plugin.span.root().name if plugin.span is not None else ""
                plugins.append(plugin if plugin.source else replace(plugin, source=owners.get(name, name)))
            registry = Registry.of(plugins, generation=0)  # names that are taken twice
            if self._check is not None:
                self._check(registry)
        except PolicyError:
            raise
        except Exception as error:
            raise _our_fault("compiling the policies", error) from error
        return tuple(plugins)

    def _accept(self, units: Iterable[_Unit]) -> None:
        wall = self._clock()
        for state in dict.fromkeys(w for unit in units for w in unit.state):
            assert state.desired is not None
            if self._unit is ReloadUnit.SOURCE:
                state.active = state.desired
            else:
                taken = frozenset(name for unit in units for name in unit.changes)
                state.active = _mixed(state.mount, state.active or EMPTY, state.desired, taken)
            state.active_since = wall
            state.mixed = state.active.digest != state.desired.digest
            state.last_good = state.mixed and state.last_good

    def _swap(self, plugins: tuple[Plugin, ...]) -> None:
        """Put plugins in force; raises `PolicyError` if they cannot run, and then nothing has changed."""
        try:
            self._live.replace(lambda: plugins, self._prepare)
        except PolicyError:
            raise
        except Exception as error:
            raise _our_fault("putting the policies in force", error) from error
        self._plugins = plugins
        self._unsaved, self._save_at, self._untold = True, float("-inf"), True
        self._alarm, self._stuck = "", False

    # When things go wrong.

    def _resume(self, problems: list[Problem], now: float) -> None:
        """Start on the last good set, and take over from the sources what fits."""
        assert self._store is not None
        try:
            saved = self._store.load({state.mount.path: state.mount for state in self._sources})
            _refuse_unknown(self._sources, saved)
            plugins = self._compiled({source.name: source for each in saved.values()
                                      for source in each.version.files.values()})
        except PolicyError as error:
            raise PolicyError([*problems, *error.problems]) from None
        self._failed()
        for state in self._sources:
            each = saved[state.mount.path]
            state.active, state.active_since, state.last_good = each.version, each.since, True
            if state.observed is not None and not state.observed.hashes and each.version.hashes:
                self._hold(state, each, now)
        self._swap(plugins)
        self._apply()

    def _failing(self) -> bool:
        """Whether the generation in force has failed too often among its first decisions."""
        generation, decisions, errors = self._counted
        if self._max_error_rate is None or generation != self._live.registry.generation:
            return False
        # Before the count is full, only what no later decision can make good again.
        return errors > self._max_error_rate * max(decisions, self._first_decisions)

    def _proven(self) -> bool:
        """Whether nothing speaks against keeping the generation in force as a good one."""
        generation, decisions, _ = self._counted
        counted = decisions if generation == self._live.registry.generation else 0
        return self._max_error_rate is None or self._previous is None or counted >= self._first_decisions

    def _roll_back(self) -> None:
        generation, decisions, errors = self._counted
        with self._counting:
            self._counted = (0, 0, 0)
        failed = f"{errors} of the first {decisions} decisions under generation {generation} had failing expressions"
        self._failed()
        previous = self._previous
        if previous is None:
            self._alarm, self._stuck = f"{failed}, and there is no generation to go back to", True
            return
        self._previous = None
        try:
            self._swap(previous.plugins)
        except PolicyError as error:
            why = "; ".join(problem.message for problem in error.problems)
            self._alarm = f"{failed}, and what was in force before cannot be put in force again: {why}"
            self._stuck = True
            return
        for state, version, since in previous.versions:
            if state.active is not None and version is not state.active:
                problem = Problem(f"{failed}, so it was rolled back", code="rolled-back",
                                  help="look at the errors in metrics and verdicts, and edit it")
                state.problems = (problem,)
                state.blocked = {state.active.digest: problem} | {
                    _content_key(state, relative, state.active): problem
                    for relative in _changes(version or EMPTY, state.active)}
            state.active, state.active_since = version, since
            state.mixed = self._unit is ReloadUnit.FILE and version is not None
        self._alarm = f"{failed}: rolled back to what was in force before"
        self._history.mark(generation, failed)
        self._remember()

    def _go_back(self, plugin: Plugin, why: str) -> None:
        """Put the newest earlier version of the document's source in force in which its file was another one."""
        registry = self._live.registry
        running = registry.plugins.get((plugin.framework, plugin.name))
        if running is None or running.digest != plugin.digest or running.span is None:
            return
        self._failed()
        place = self._holding(running.span.root().name)
        if place is None:
            return
        state, relative = place
        active, path = state.active or EMPTY, state.mount.path
        problem = Problem(f"{why}, so it was rolled back", running.span, code=OVERDUE,
                          help="edit the document: this content of its file stays out of active")
        for record in reversed(self._history.generations[:-1]):
            version = record.versions.get(path)
            if version is None or record.failed or version.hashes.get(relative) == active.hashes[relative]:
                continue
            files = {source.name: source for each in self._sources if each.active is not None
                     for source in (version if each is state else each.active).files.values()}
            try:
                self._swap(self._compiled(files))
            except PolicyError:
                continue  # it does not go with what the other sources hold now
            state.overdue[_content_key(state, relative, active)] = problem
            if state.desired is not None and state.desired.digest == active.digest:
                state.blocked[active.digest] = problem
                state.problems = (problem,)
            state.active, state.active_since = version, self._clock()
            state.mixed = self._unit is ReloadUnit.FILE
            self._previous = None
            self._history.mark(registry.generation, why)
            self._remember()
            self._alarm = f"{why}: rolled back to what was in force before"
            self._dirty = self._unit is ReloadUnit.FILE  # the other files may move on
            return
        self._alarm, self._stuck = f"{why}, and there is no generation without it to go back to", True

    def _holding(self, name: str) -> tuple[SourceState, str] | None:
        """Return the source in whose version in force a file is, and its name there."""
        for state in self._sources:
            for relative, source in (state.active or EMPTY).files.items():
                if source.name == name:
                    return state, relative
        return None

    # What people ask for.

    def restore(self, wanted: str = "") -> Future[GenerationRecord]:
        """Put an earlier generation in force again, at the next look; may be called from any thread.

        `wanted` is a number, the beginning of a hash, or empty for the one before (see `History.find`). What the
        sources hold now stays out of force until they are changed. The future yields what was brought back, or raises
        `PolicyError`; then nothing has changed.
        """
        return self._ask(lambda _: self._restore(self._history.find(wanted)))

    def publish(self, path: str, files: Mapping[str, bytes], *, over: str = "") -> Future[GenerationRecord]:
        """Make a source hold exactly these files and put them in force, at the next look; from any thread.

        `over` is the digest of the registry that they are meant to replace: where another one is in force by then, or
        somebody has just changed the source, nothing is written. The future yields what is in force then. It raises
        `PolicyError` where the files are not written (and then nothing has changed) or where what is written is not
        put in force; `status` says why, too.
        """
        return self._ask(lambda now: self._publish(path, files, over, now))

    def _ask(self, request: Callable[[float], GenerationRecord]) -> Future[GenerationRecord]:
        future: Future[GenerationRecord] = Future()
        self._asked.put((request, future))
        self._woken.set()
        return future

    def _serve(self, now: float) -> list[Callable[[], None]]:
        """Do what was asked for; return what tells those who asked."""
        answers: list[Callable[[], None]] = []
        while not self._asked.empty():
            request, future = self._asked.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answers.append(partial(future.set_result, request(now)))
            except PolicyError as error:
                answers.append(partial(future.set_exception, error))
            except Exception as error:  # whoever asked is told, and looking goes on
                answers.append(partial(future.set_exception, _our_fault("what was asked for", error)))
        return answers

    def _restore(self, record: GenerationRecord) -> GenerationRecord:
        plugins = self._compiled({source.name: source for version in record.versions.values()
                                  for source in version.files.values()})
        self._swap(plugins)
        self._previous = None
        wall = self._clock()
        for state in self._sources:
            version = record.versions.get(state.mount.path, EMPTY)
            if state.active is None or state.active.digest != version.digest:
                state.active_since = wall
            state.active, state.last_good, state.problems, state.blocked = version, False, (), {}
            state.overdue = {}
            state.mixed = False
            if state.desired is not None and state.desired.digest != version.digest:
                _block(state, Problem(
                    f"generation {record.generation} was brought back, with another version of `{state.mount.path}`",
                    code=BLOCKED, help="this one stays out of force until it is changed, or brought back by its hash"))
        self._restored = record.generation if record.restored is None else record.restored
        self._remember(self._restored)
        return self._history.generations[-1]

    def _publish(self, path: str, files: Mapping[str, bytes], over: str, now: float) -> GenerationRecord:
        state = next(each for each in self._sources if each.mount.path == path)
        if over:
            found = state.mount.read(state.observed or state.active).version
            seen = state.observed
            if self._live.registry.digest != over or found is None or seen is None or found.digest != seen.digest:
                raise PolicyError([Problem(f"what is in force, or what `{path}` holds, has just been changed: nothing "
                                           "was published", code="changed")])
        publish(state.mount, files)
        state.blocked = {}
        reading = state.mount.read(state.observed or state.active)
        if reading.torn:
            reading = state.mount.read(state.observed or state.active)
        self._take(state, reading, now)
        if self._pending():
            self._apply()
        if state.active is None or reading.version is None or state.active.digest != reading.version.digest:
            problems = (*state.trouble, *state.problems)
            raise PolicyError(problems or [Problem(f"`{path}` is written, and not in force yet", code="unsettled")])
        return self._history.generations[-1]

    def _remember(self, restored: int | None = None) -> None:
        """Take note of what is in force now, and which generation it brought back."""
        registry = self._live.registry
        versions = {state.mount.path: state.active for state in self._sources if state.active is not None}
        self._history.add(GenerationRecord(registry.generation, registry.digest, self._clock(), versions, restored))

    def _save(self, now: float) -> None:
        if self._store is None or not self._unsaved or now < self._save_at or not self._proven():
            return
        try:
            self._store.save({state.mount.path: Saved(state.active, state.active_since, state.projected,
                                                        _blocked_digest(state))
                              for state in self._sources if state.active is not None})
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._state_trouble = (f"the last good set cannot be kept in `{self._store.path}`: {reason.lower()}; "
                                   "a restart may find an older one or none")
            self._save_at = now + self._rehash
        else:
            self._state_trouble, self._unsaved = "", False

    # Telling.

    def _succeeded(self) -> None:
        self._last_success = self._clock()
        self._successes += 1

    def _failed(self) -> None:
        self._last_failure = self._clock()
        self._failures += 1

    def _tell(self) -> None:
        """Keep what is to be said about the files in force, by file."""
        self._told = {}
        files = [source for state in self._sources if state.active is not None
                 for source in state.active.files.values()]
        for problem in self._warnings(files) if self._warnings is not None else ():
            if problem.span is not None:
                text = f"{problem.span}: {problem.message}" + (f" ({problem.help})" if problem.help else "")
                self._told.setdefault(problem.span.root().name, []).append(text)

    def _finish(self, now: float) -> float:
        self._save(now)
        if self._untold:
            self._untold = False
            self._tell()
        file_events = self._file_events
        warnings = [self._alarm, self._state_trouble, file_events.trouble if file_events is not None else ""]
        registry, before = self._live.registry, self._status
        held = any(problem.code == BLOCKED for state in self._sources for problem in state.problems)
        self._status = Status(
            registry.generation, registry.digest, tuple(self._source_status(each, now) for each in self._sources),
            self._last_success, self._last_failure, tuple(text for text in warnings if text),
            file_events is not None and file_events.working, self._successes, self._failures,
            self._alarm if self._stuck else "", self._restored if held else None, self._history.generations)
        write_changes(before, self._status, registry, self._log)
        due = [now + self._interval]
        for state in self._sources:
            if state.changed_at is not None:
                due.append(state.changed_at + self._settle)
            if state.empty_since is not None and state.empty_since + self._interval > now:
                due.append(state.empty_since + self._interval)
        return min(due)

    def _source_status(self, state: SourceState, now: float = 0.0) -> SourceStatus:
        warnings = [*state.warnings]
        if state.flapping_since is not None and now - state.flapping_since >= _FLAPPING * self._settle:
            warnings.append(f"`{state.mount.path}` keeps changing and is read only once it is quiet "
                            f"for {self._settle:g} s")
        if state.observed is not None and not state.observed.hashes:
            again = "; looking again" if state.empty_since is not None else ""
            warnings.append(f"`{state.mount.path}` holds no policy files{again}")
        active = state.active
        for source in active.files.values() if active is not None else ():
            warnings += self._told.get(source.name, ())
        return SourceStatus(
            state.mount.path, active.digest if active else None, state.active_since if active else None,
            state.observed.digest if state.observed else None, state.trouble + state.problems, tuple(warnings),
            state.unmounted, state.last_good, state.mixed)

    # Running.

    def run(self, stop: threading.Event) -> None:
        """Look again and again until `stop` is set (then at the latest after one interval); `begin` came before."""
        self._file_events = file_events = self._make_file_events(self._woken.set)
        alert_until = float("-inf")
        try:
            while not stop.is_set():
                hinted = self._woken.is_set()
                self._woken.clear()
                file_events.watch([state.mount.path for state in self._sources])
                due = self._step_gently(time.monotonic())
                now = time.monotonic()
                if hinted:
                    alert_until = now + _ALERT_S
                if now < alert_until:
                    due = min(due, now + max(_ALERT_INTERVAL_S, _ALERT_SHARE * self._look_took))
                self._woken.wait(max(_SHORTEST_WAIT_S, due - now))
        finally:
            file_events.close()

    def _step_gently(self, now: float) -> float:
        self._stepping = now
        try:
            with GENTLY:
                return self.step(now)
        finally:
            self._stepping = None

    def start(self) -> None:
        """Begin, unless that was done, and keep looking in a thread of its own; raises what `begin` raises.

        What is in memory by then is kept out of garbage collection from now on (`gc.freeze`).
        """
        if all(state.stamp is None for state in self._sources):
            self.begin(time.monotonic())
        # What hundreds of compiled documents consist of lives on; looking through it takes a collection 50 ms, and
        # the decision in which that falls due has to wait for it.
        gc.unfreeze()  # of what a server before this one in the same process has left
        gc.collect()
        gc.freeze()
        self._thread = threading.Thread(target=self.run, args=(self._stop,), name="reload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what is in force stays in force."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        gc.unfreeze()


def _emptied(state: SourceState) -> Problem:
    return Problem(f"`{state.mount.path}` holds no policy", code=EMPTIED,
                   help="put the policies back, or start with `--allow-empty` where that is meant")


def _our_fault(doing: str, error: Exception) -> PolicyError:
    return PolicyError([Problem(f"{doing} failed: {type(error).__name__}: {error}",
                                help="this is a fault of koord-policy, not of the policies", code="internal")])


def _refuse_overlaps(mounts: Sequence[Mount]) -> None:
    real = [os.path.realpath(mount.path) for mount in mounts]
    problems = [
        Problem(f"`{mounts[other].path}` and `{mounts[index].path}` are two sources, but one holds the other",
                help="name only one of them", code="overlapping-sources")
        for index, one in enumerate(real) for other in range(index)
        if os.path.commonpath([one, real[other]]) in (one, real[other])
    ]
    if problems:
        raise PolicyError(problems)


def _refuse_unknown(sources: Iterable[SourceState], saved: Mapping[str, Saved]) -> None:
    unknown = [Problem(f"the last good set knows no `{state.mount.path}`", code="missing-state")
               for state in sources if state.mount.path not in saved]
    if unknown:
        raise PolicyError(unknown)


def _changes(before: Version, after: Version) -> dict[str, Source | None]:
    """Return the usable files that differ, by relative name; None for those that are gone."""
    changed: dict[str, Source | None] = {
        name: source for name, source in after.files.items() if before.hashes.get(name) != after.hashes[name]}
    changed.update((name, None) for name in before.files if name not in after.hashes)
    return changed


def _block(state: SourceState, problem: Problem) -> None:
    """Keep out what a source holds, until it holds something else."""
    if state.desired is None:
        state.desired = state.observed
    assert state.desired is not None
    state.problems = (problem,)
    state.blocked = {state.desired.digest: problem} | {
        _content_key(state, relative, state.desired): problem
        for relative in _changes(state.active or EMPTY, state.desired)}


def _blocked_digest(state: SourceState) -> str:
    """Return the digest of the version that is kept out; empty where none is."""
    digest = state.desired.digest if state.desired is not None else ""
    return digest if digest in state.blocked else ""


def _content_key(state: SourceState, relative: str, version: Version) -> str:
    return f"{state.mount.name_of(relative)} {version.hashes.get(relative, '')}"


def _with(files: _Files, units: Iterable[_Unit]) -> _Files:
    result = dict(files)
    for unit in units:
        for name, source in unit.changes.items():
            if source is None:
                result.pop(name, None)
            else:
                result[name] = source
    return result


def _merged(before: Iterable[Source], changes: Mapping[str, tuple[SourceState, Source | None]]) -> Iterable[Source]:
    yield from (source for source in before if source.name not in changes)
    yield from (source for _, source in changes.values() if source is not None)


def _mixed(mount: Mount, active: Version, desired: Version, taken: Collection[str]) -> Version:
    """Return the version in active with the taken files (by full name) as they are desired."""
    files, hashes = dict(active.files), dict(active.hashes)
    for relative in (*active.hashes, *desired.hashes):
        if mount.name_of(relative) not in taken:
            continue
        if relative in desired.files:
            files[relative], hashes[relative] = desired.files[relative], desired.hashes[relative]
        else:
            files.pop(relative, None)
            hashes.pop(relative, None)
    return Version.of(files, hashes)


def _own(problems: Iterable[Problem], unit: _Unit) -> tuple[Problem, ...]:
    return tuple(each for each in problems if each.span is not None and each.span.root().name in unit.changes)
