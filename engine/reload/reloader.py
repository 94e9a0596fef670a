"""The loop of reloading: observe the sources, select the next set, build it, swap it in, publish the status.

`Reloader.step(now)` is one pass. It never sleeps and reads no clock for its decisions, so that tests can use virtual
time; `start` runs it in its own thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Protocol

from koordpolicy.engine.cluster.kinds import NOT_LISTED
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Source

from .change_requests import ChangeRequests
from .history import GenerationRecord, History
from .journal import write_changes
from .low_latency_gc import LowLatencyGc
from .mount import Mount
from .probation import Probation
from .publish import publish
from .select import RejectedChanges, Selection, SelectionRules, select
from .settings import ReloadSettings
from .source_state import Rejection, ReloadUnit, SourceReader, Sources, SourceState, active_files
from .startup import InvalidAtStart, Startup
from .state_store import StateSaver, Store
from .status import BLOCKED, UNAVAILABLE, ReloadStatus, SourceStatus, VersionCounts
from .swap import Build, Stage, Swapper
from .watch import FileEvents, Waker, Watcher

_LOG: Final = logging.getLogger(__name__)
_DEFAULTS: Final = ReloadSettings()
_PASSING: Final = frozenset({UNAVAILABLE, NOT_LISTED})
"""The codes of problems that pass without a change of a source."""


class PolicyBuilder(Build, Protocol):
    """Builds plugins from files, and returns other facts about files; implemented by `Builder` and `VettedBuild`."""

    def groups(self, sources: Sequence[Source], /) -> Iterable[frozenset[str]]:
        """Return the names of files that must change together; called only with files as the unit."""
        ...

    def holds_policies(self, source: Source, /) -> bool:
        """Return whether a file that builds holds a policy, or PolicyParams."""
        ...

    def warnings(self, sources: Sequence[Source], /) -> Iterable[Problem]:
        """Return warnings about active files, each with its place."""
        ...


class ReloadObserver(Protocol):
    """Lives beside a reloader, such as what follows policies in a cluster and writes their status."""

    def started(self) -> None:
        """Begin to act: the reloader starts its thread."""
        ...

    def published(self, states: Sequence[SourceState], /) -> None:
        """Take the states of the sources after a pass, or after the first activation; must not block."""
        ...

    def closed(self) -> None:
        """End: the reloader has ended."""
        ...


class Reloader:
    """Updates the registry of `live` when the sources change.

    `check` refuses sets that build and cannot run. `state_dir` stores the last good set for a restart. `clock` (seconds
    since the epoch) is for the status only; `step` gets its own time. `file_events` makes a source of file events,
    which shorten the wait, from a function to call on a change. `low_latency` is entered for each pass. `after_reload`
    is called after each pass that activated a set, with the number of blocks of memory that were added meanwhile.
    """

    def __init__(
        self,
        live: Live,
        sources: Sequence[SourceReader | str | os.PathLike[str]],
        builder: PolicyBuilder,
        settings: ReloadSettings = _DEFAULTS,
        *,
        python_plugins: Iterable[Plugin] = (),
        check: Stage | None = None,
        state_dir: str | os.PathLike[str] | Store | None = None,
        clock: Callable[[], float] = time.time,
        file_events: Callable[[Callable[[], None]], FileEvents] = FileEvents,
        low_latency: LowLatencyGc | None = None,
        after_reload: Callable[[int], None] = lambda _: None,
        observers: Iterable[ReloadObserver] = (),
        log: logging.Logger = _LOG,
    ) -> None:
        readers = [Mount(source) if isinstance(source, str | os.PathLike) else source for source in sources]
        mounts = [reader for reader in readers if isinstance(reader, Mount)]
        _refuse_overlaps(mounts)
        if settings.invalid_at_start is InvalidAtStart.LAST_GOOD and state_dir is None:
            raise PolicyError([Problem("to start on the last good set, a directory that keeps it is needed",
                                       help="name one with `--state-dir`", code="missing-state")])
        self._live = live
        self._sources = Sources(readers, settings.unit)
        self._builder = builder
        self._interval = settings.interval
        self._rules = SelectionRules(builder.groups,
                                     None if settings.allow_empty else builder.holds_policies)
        store = Store(state_dir) if isinstance(state_dir, str | os.PathLike) else state_dir
        self._outcomes = VersionCounts(clock)
        self._history = History()
        self._probation = Probation(live, max_error_rate=settings.max_error_rate,
                                    first_decisions=settings.first_decisions)
        self._saver = StateSaver(store, self._sources, retry=settings.rehash)
        self._watcher = Watcher(self._sources, self._outcomes, debounce=settings.debounce, interval=settings.interval,
                                rehash=settings.rehash)
        self._swapper = Swapper(
            live, self._sources, builder, python_plugins=python_plugins, check=check,
            probation=self._probation, history=self._history, outcomes=self._outcomes, activated=self._activated)
        self._startup = Startup(
            self._sources, self._watcher, self._swapper, store, self._outcomes,
            invalid_at_start=settings.invalid_at_start, holds_policies=self._rules.holds_policies)
        self._waker = Waker(file_events, [mount.path for mount in mounts])
        self._requests = ChangeRequests()
        self._overdue: queue.SimpleQueue[tuple[Plugin, str]] = queue.SimpleQueue()
        self._low_latency = low_latency
        self._after_reload = after_reload
        self._observers = tuple(observers)
        self._log = log
        self._retry_at: float | None = None
        """The time at which a set that was refused for other reasons than its content is tried again."""
        self._warnings_dirty = False
        self._warnings: Mapping[str, list[str]] = {}
        """The warnings about active files, by file."""
        self._pass_began: float | None = None
        """The start of the current pass."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = ReloadStatus(live.registry.generation, live.registry.digest,
                              tuple(self._source_status(source, 0.0) for source in self._sources))

    # Thread-safe methods.

    def status(self) -> ReloadStatus:
        """Return the status after the last pass; never waits."""
        return self._status

    @property
    def seconds_at_work(self) -> float:
        """The seconds since the current pass began; 0 between passes."""
        since = self._pass_began
        return 0.0 if since is None else time.monotonic() - since

    @property
    def registry(self) -> Registry:
        """The active registry."""
        return self._live.registry

    def observe(self, generation: int, decisions: int, errors: int) -> None:
        """Count decisions made under a generation, and how many of them had an expression that failed."""
        self._probation.count(generation, decisions, errors)
        if self._probation.failed:
            self._waker.wake()

    def report_overdue(self, plugin: Plugin, why: str) -> None:
        """Roll back, in the next pass, to the last set without this document, which does not return.

        Ignored if another version of the document is active by then, and for Python plugins, which are in every set.
        `why` is the reason in messages. The content of the file is blocked until it is changed. If there is no set to
        roll back to, `status` reports it.
        """
        self._overdue.put((plugin, why))
        self._waker.wake()

    def wake(self) -> None:
        """Let the next pass begin at once."""
        self._waker.wake()

    def restore(self, generation: str = "", *, active: str = "") -> Future[GenerationRecord]:
        """Activate an earlier generation in the next pass.

        `generation` is a number, the beginning of a hash, or empty for the one before (see `History.find`). `active` is
        the digest of the registry that it is meant to replace; empty for any. The current versions of the sources are
        blocked until they are changed. The future yields the active generation, or raises `PolicyError`; then nothing
        is changed.
        """
        return self._submit(lambda _: self._restore(generation, active))

    def earlier(self, generation: str = "") -> GenerationRecord:
        """Return the generation that `restore` would activate; raises `PolicyError` if there is none."""
        return self._history.find(generation)

    def publish(self, path: str, files: Mapping[str, bytes], *, over: str = "") -> Future[GenerationRecord]:
        """Replace the files of a source by these and activate them, in the next pass.

        `over` is the digest of the registry that they are meant to replace: if another one is active by then, or the
        source has changed, nothing is written. The future yields the active generation. It raises `PolicyError` if the
        files are not written (then nothing is changed), or written but not activated; `status` has the reason, too.
        """
        return self._submit(lambda now: self._publish(path, files, over, now))

    def stage_with(self, stage: Stage) -> None:
        """Call `stage` with each registry before it is activated, from the next set on.

        It is called in the reloading thread. If it raises, the active set stays, and the error is a problem of the
        change.
        """
        self._swapper.stage = stage

    # One pass.

    def begin(self, now: float) -> Registry:
        """Read all sources for the first time and activate their policies; return the active registry.

        Raises `PolicyError` with all problems, unless the last good set can (and may) be used.
        """
        if self._startup.run(now):
            self._select_and_swap(now)
            if self._live.registry.generation and not self._history.generations:
                self._swapper.record()
        self._publish_status(now)
        return self._live.registry

    def step(self, now: float) -> float:
        """Make one pass; return when the next one is due.

        `now` is in seconds of a monotonic clock. Never raises for contents of the sources.
        """
        select_again = self._roll_back()
        answers = self._requests.serve(now)
        try:
            self._watcher.observe(now)
            retry = self._retry_at is not None and now >= self._retry_at
            if self._watcher.take_changed() or select_again or retry:
                self._select_and_swap(now)
            self._publish_status(now)
        finally:
            for answer in answers:  # only now: a waiting thread may read the status next
                answer()
        return self._watcher.due(now)

    def _roll_back(self) -> bool:
        """Roll back a failing or hanging generation; return whether other changes may be selected again."""
        if self._probation.failed:
            self._swapper.roll_back_failing()
        rolled_back = False
        while not self._overdue.empty():
            rolled_back |= self._swapper.roll_back_overdue(*self._overdue.get())
        return rolled_back and any(source.unit is ReloadUnit.FILE for source in self._sources)

    def _select_and_swap(self, now: float) -> None:
        """Select the next set, of those that build and can run, and activate it."""
        selection = select(tuple(self._sources), self._swapper.build_and_stage, self._rules)
        try:
            self._swapper.swap(selection)
        except PolicyError as error:  # it could run when it was staged
            refused = (*selection.refused, *(RejectedChanges(each, error.problems) for each in selection.accepted))
            selection = Selection((), refused, {}, None)
        self._record_outcome(selection)
        self._retry_at = now + self._interval if self._unavailable() else None

    def _record_outcome(self, selection: Selection[Registry]) -> None:
        for source in self._sources:
            behind = source.desired is None or source.pending
            self._sources.put(replace(source, problems=(), refused={}, last_good=behind and source.last_good,
                                      mixed=behind and source.mixed))
        for refusal in selection.refused:
            for changed in refusal.changes.sources:  # several of its files may be refused for the same reason
                source = self._sources[changed.path]
                self._sources.put(replace(
                    source, problems=tuple(dict.fromkeys((*source.problems, *refusal.problems))),
                    refused={**source.refused, **dict.fromkeys(refusal.changes.files, Rejection(
                        refusal.changes.contents, refusal.problems))}))
        if any(problem.code != BLOCKED for refusal in selection.refused for problem in refusal.problems):
            self._outcomes.failed()
        elif selection.accepted or not selection.refused:
            self._outcomes.succeeded()
        if not selection.refused and not self._swapper.stuck:
            self._swapper.alarm = ""  # the rolled-back version is no longer in the source

    def _unavailable(self) -> bool:
        return any(problem.code in _PASSING for source in self._sources for problem in source.problems)

    # Requests.

    def _submit(self, request: Callable[[float], GenerationRecord]) -> Future[GenerationRecord]:
        future = self._requests.submit(request)
        self._waker.wake()
        return future

    def _restore(self, generation: str, active: str) -> GenerationRecord:
        current = self._live.registry.digest
        if active and active != current:
            raise PolicyError([Problem(f"`{current}` is active, not `{active[:80]}`: nothing was changed",
                                       code="other-active")])
        return self._swapper.restore(self._history.find(generation))

    def _publish(self, path: str, files: Mapping[str, bytes], over: str, now: float) -> GenerationRecord:
        source = self._sources.get(path)
        if source is None:
            raise PolicyError([Problem(f"`{path}` is not a source of this server", code="unknown-source")])
        if over:
            found, observed = source.reader.read(source.observed or source.active).version, source.observed
            if (self._live.registry.digest != over or found is None or observed is None
                    or found.digest != observed.digest):
                raise PolicyError([Problem(f"the active set, or what `{path}` holds, has just been changed: nothing "
                                           "was published", code="changed")])
        if not isinstance(source.reader, Mount):
            raise PolicyError([Problem(f"`{path}` is no directory: nothing was published", code="not-publishable",
                                       help="write its objects with `kubectl`")])
        publish(source.reader, files)
        self._sources.put(replace(source, blocked={}))
        version = self._watcher.read(path, now).version
        if any(each.pending for each in self._sources):
            self._watcher.take_changed()
            self._select_and_swap(now)
        source = self._sources[path]
        if source.active is None or version is None or source.active.digest != version.digest:
            problems = (*source.read_problems, *source.problems)
            raise PolicyError(problems or [Problem(f"`{path}` is written, and not active yet", code="unsettled")])
        return self._history.generations[-1]

    # The status.

    def _activated(self) -> None:
        self._saver.mark_dirty()
        self._warnings_dirty = True

    def _publish_status(self, now: float) -> None:
        self._saver.save(now, proven=self._swapper.proven)
        if self._warnings_dirty:
            self._warnings_dirty, self._warnings = False, self._collect_warnings()
        registry, before, outcomes, swapper = self._live.registry, self._status, self._outcomes, self._swapper
        blocked = any(problem.code == BLOCKED for source in self._sources for problem in source.problems)
        self._status = ReloadStatus(
            registry.generation, registry.digest, tuple(self._source_status(source, now) for source in self._sources),
            outcomes.last_success, outcomes.last_failure,
            tuple(text for text in (swapper.alarm, self._saver.trouble, self._waker.trouble) if text),
            self._waker.events_working, outcomes.successes, outcomes.failures, swapper.alarm if swapper.stuck else "",
            swapper.restored if blocked else None, self._history.generations)
        write_changes(before, self._status, registry, self._log)
        for observer in self._observers:
            observer.published(tuple(self._sources))

    def _collect_warnings(self) -> dict[str, list[str]]:
        """Return the warnings about active files, by file."""
        found: dict[str, list[str]] = {}
        for problem in self._builder.warnings(list(active_files(self._sources).values())):
            if problem.span is not None:
                text = f"{problem.span}: {problem.message}" + (f" ({problem.help})" if problem.help else "")
                found.setdefault(problem.span.root().name, []).append(text)
        return found

    def _source_status(self, source: SourceState, now: float) -> SourceStatus:
        active, observed = source.active, source.observed
        warnings = self._watcher.warnings_of(source, now)
        for file in active.files.values() if active is not None else ():
            warnings += self._warnings.get(file.name, ())
        # Bundles may differ in nothing but their annotations, and then the observed one is no other version.
        same = active is not None and observed is not None and active.digest == observed.digest
        return SourceStatus(
            source.path, active.digest if active else None, source.active_since if active else None,
            observed.digest if observed else None, source.read_problems + source.problems, tuple(warnings),
            source.unmounted, source.last_good, source.mixed,
            (observed.bundle if same and observed else active.bundle if active else "") or None)

    # Running.

    def run(self, stop: threading.Event) -> None:
        """Run passes until `stop` is set, which takes at most one interval; call `begin` first."""
        try:
            while not stop.is_set():
                self._waker.begin_pass()
                self._pass_began = now = time.monotonic()
                generation, blocks = self._live.registry.generation, sys.getallocatedblocks()
                with self._low_latency or contextlib.nullcontext():
                    due = self.step(now)
                    if self._live.registry.generation != generation:
                        self._after_reload(sys.getallocatedblocks() - blocks)
                self._pass_began = None
                self._waker.wait(due, self._watcher.scan_seconds)
        finally:
            self._pass_began = None
            self._waker.close()
            self._requests.close()

    def start(self) -> None:
        """Call `begin`, unless that was done, and run passes in a new thread; raises the exceptions of `begin`."""
        if all(source.stamp is None for source in self._sources):
            self.begin(time.monotonic())
        if self._low_latency is not None:
            self._low_latency.freeze()
        for observer in self._observers:
            observer.started()
        self._thread = threading.Thread(target=self.run, args=(self._stop,), name="reload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the active set stays active. Requests that it did not execute end with `PolicyError`."""
        self._stop.set()
        self._waker.wake()
        if self._thread is not None:
            self._thread.join()
        self._requests.close()
        for observer in self._observers:
            observer.closed()
        if self._low_latency is not None:
            self._low_latency.unfreeze()


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
