"""The first activation: of the sources' policies, of the last good set, or of an empty set."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace

from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Problem

from .mount import EMPTY
from .select import HoldsPolicies, emptied, is_emptied
from .source_state import ReloadUnit, Sources, SourceState, files_of
from .state_store import Saved, Store
from .status import BLOCKED, VersionCounts
from .swap import Swapper
from .watch import Watcher


class InvalidAtStart(enum.Enum):
    """The action if the policies are invalid (or missing) at start."""

    REFUSE = "refuse"
    LAST_GOOD = "last-good"
    WAIT = "wait"
    """Begin with an empty set, and wait for a valid one: for policies in the shadow."""


class Startup:
    """Reads the sources for the first time and activates their policies; `store` has the last good set."""

    def __init__(
        self, sources: Sources, watcher: Watcher, swapper: Swapper, store: Store | None,
        outcomes: VersionCounts, *, invalid_at_start: InvalidAtStart, holds_policies: HoldsPolicies | None,
    ) -> None:
        self._sources = sources
        self._watcher = watcher
        self._swapper = swapper
        self._store = store
        self._outcomes = outcomes
        self._invalid_at_start = invalid_at_start
        self._holds_policies = holds_policies

    def run(self, now: float) -> bool:
        """Activate the first set; return whether later passes may still activate parts of the observed sources.

        Raises `PolicyError` with all problems, unless the last good set can (and may) be used.
        """
        problems = self._watcher.read_first(now)
        valid = not problems and all(source.observed is not None for source in self._sources)
        held: Mapping[str, Saved] = self._held() if valid else {}
        registry: Registry | None = None
        try:
            registry, held = self._build(held)
        except PolicyError as error:
            problems += error.problems
        else:  # files that do not compile must not be passed to `_holds_policies`
            problems += [emptied(source) for source in self._sources
                         if source.path not in held and is_emptied(source.observed, self._holds_policies)]
        if registry is not None and valid and not problems:
            self._activate(registry, held, now)
            return False
        if self._activate_without_objects():
            return True
        if self._invalid_at_start is InvalidAtStart.REFUSE:
            raise PolicyError(problems)
        if self._invalid_at_start is InvalidAtStart.LAST_GOOD:
            self._resume(problems, now)
        return True

    def _activate_without_objects(self) -> bool:
        """Activate the sources of files with the last good objects of a cluster, or with none; return False if that is
        not possible, or objects are not at fault.

        Which of the observed objects are active is selected afterwards, one by one: a server starts whatever people
        have stored in the cluster.
        """
        objects = {each.path: each for each in self._sources if each.reader.unit is ReloadUnit.FILE}
        files = [each for each in self._sources if each.path not in objects]
        if not objects or any(each.observed is None for each in self._sources) or any(
                each.read_problems or (each.observed is not None and each.observed.problems) for each in files):
            return False
        if self._holds_policies is not None and any(
                each.observed is not None and not each.observed.hashes for each in objects.values()):
            return False
        saved = {path: each for path, each in self._loaded().items() if path in objects}
        for last_good in (saved, {}) if saved else ({},):
            try:
                registry = self._swapper.build({file.name: file for file in files_of((
                    *(each.observed for each in files if each.observed is not None),
                    *(each.version for each in last_good.values())))})
            except PolicyError:
                continue
            if any(is_emptied(each.observed, self._holds_policies) for each in files):
                return False
            self._swapper.activate(registry, preliminary=True)
            for each in files:
                self._sources.put(replace(each, active=each.observed, active_since=self._outcomes.clock()))
            for path, each in objects.items():
                if path in last_good:
                    self._sources.put(replace(each, active=last_good[path].version, active_since=last_good[path].since))
                else:
                    self._sources.put(replace(each, active=EMPTY, active_since=self._outcomes.clock()))
            return True
        return False

    def _loaded(self) -> dict[str, Saved]:
        """Return the saved versions by path; none where there is no usable state."""
        if self._store is None:
            return {}
        try:
            return self._store.load({source.path: source.reader for source in self._sources})
        except PolicyError:
            return {}

    def _held(self) -> dict[str, Saved]:
        """Return by path the last good versions of the sources whose observed version must not be activated yet.

        Those are empty directories, which right after a start may not be mounted yet, and blocked versions.
        """
        saved = self._loaded()
        return {source.path: each for source in self._sources
                if source.observed is not None and (each := saved.get(source.path)) is not None
                and (each.blocked == source.observed.digest
                     or (not source.observed.hashes and bool(each.version.hashes)))}

    def _build(self, held: Mapping[str, Saved]) -> tuple[Registry, Mapping[str, Saved]]:
        """Build the observed files together with the held versions, or without them if that fails."""
        observed = {file.name: file for file in files_of(
            source.observed for source in self._sources if source.observed is not None)}
        if held:
            saved_files = {file.name: file for file in files_of(saved.version for saved in held.values())}
            try:
                return self._swapper.build(observed | saved_files), held
            except PolicyError:
                pass
        return self._swapper.build(observed), {}

    def _activate(self, registry: Registry, held: Mapping[str, Saved], now: float) -> None:
        self._swapper.activate(registry)
        for source in self._sources:
            active = replace(source, active=source.observed, active_since=self._outcomes.clock())
            self._sources.put(_held(active, held[source.path], now) if source.path in held else active)
        self._outcomes.succeeded()
        self._swapper.record()

    def _resume(self, problems: list[Problem], now: float) -> None:
        """Activate the last good set."""
        assert self._store is not None
        try:
            saved = self._store.load({source.path: source.reader for source in self._sources})
            _refuse_unknown(self._sources, saved)
            registry = self._swapper.build({
                file.name: file for file in files_of(each.version for each in saved.values())})
        except PolicyError as error:
            raise PolicyError([*problems, *error.problems]) from None
        self._outcomes.failed()
        self._swapper.activate(registry)
        for source in self._sources:
            each = saved[source.path]
            active = replace(source, active=each.version, active_since=each.since, last_good=True)
            held = source.observed is not None and not source.observed.hashes and bool(each.version.hashes)
            self._sources.put(_held(active, each, now) if held else active)


def _held(source: SourceState, saved: Saved, now: float) -> SourceState:
    """Return the state with the last good version, of a source whose observed version is blocked or may become
    intentionally empty.
    """
    held = replace(source, active=saved.version, active_since=saved.since, last_good=True,
                   projected=source.projected or saved.projected)
    if source.observed is not None and saved.blocked == source.observed.digest:
        return held.blocking(Problem("it was rolled back before the last start", code=BLOCKED,
                                     help="it is blocked until the source changes, or it is restored by its hash"))
    return replace(held, desired=None, empty_since=now)


def _refuse_unknown(sources: Iterable[SourceState], saved: Mapping[str, Saved]) -> None:
    unknown = [Problem(f"the last good set does not contain `{source.path}`", code="missing-state")
               for source in sources if source.path not in saved]
    if unknown:
        raise PolicyError(unknown)
