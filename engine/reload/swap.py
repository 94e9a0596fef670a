"""Builds sets of policies and activates them, all or nothing; rolls back to earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Source

from .history import GenerationRecord, History
from .mount import EMPTY, Version
from .probation import Probation
from .select import Selection
from .source_state import Files, ReloadUnit, Sources, SourceState, active_files
from .status import BLOCKED, OVERDUE, VersionCounts

Stage: TypeAlias = Callable[[Registry], None]
"""Called with a registry; raises `PolicyError` if it cannot run."""


class Build(Protocol):
    """Compiles the files of all sources together; raises `PolicyError` with all problems."""

    def __call__(self, sources: Sequence[Source], /) -> Iterable[Plugin]:
        """Return the plugins of these files."""
        ...


@dataclass(frozen=True, slots=True)
class _ActiveSet:
    """A former active set, for a rollback."""

    registry: Registry
    versions: tuple[tuple[str, Version | None, float], ...]
    """The path of each source, its active version, and since when."""


class Swapper:
    """The only writer of the active state: the registry of `live` and the active version of each source.

    `check` is called with every set that builds, and refuses sets that cannot run (arguments that a plugin does not
    take, for example); it must be fast and change nothing. `activated` is called after each activation. Each method
    that activates a set either succeeds as a whole or changes nothing.
    """

    def __init__(
        self, live: Live, sources: Sources, build: Build, *, python_plugins: Iterable[Plugin],
        check: Stage | None, probation: Probation, history: History, outcomes: VersionCounts,
        activated: Callable[[], None],
    ) -> None:
        self._live = live
        self._sources = sources
        self._build = build
        self._python_plugins = tuple(python_plugins)
        self._check = check
        self._probation = probation
        self._history = history
        self._outcomes = outcomes
        self._activated = activated
        self._previous: _ActiveSet | None = None
        """The last set that has passed its probation, while the active one has not."""
        self._staged: Registry | None = None
        """The registry that was staged last."""
        self._preliminary = False
        """True if nobody published the active set, so that it is no target of rollbacks."""
        self.stage: Stage | None = None
        """Called with each registry before it is activated; raises `PolicyError` if it cannot run."""
        self.alarm = ""
        """The last rollback, or the failure of one, with the reason; empty if there was none."""
        self.stuck = False
        """True if the active generation fails and there is none to roll back to."""
        self.restored: int | None = None
        """The generation that was restored last."""

    @property
    def proven(self) -> bool:
        """True if the active generation may enter the history: it has passed its probation, or has none."""
        return self._previous is None or self._probation.passed

    def build(self, files: Files) -> Registry:
        """Return the registry of these files and the Python plugins; its generation is given when it is activated.

        Raises only `PolicyError`, also for internal errors: no reload may end the reloading thread.
        """
        owners = {file.name: source.path for source in self._sources
                  for version in (source.active, source.desired, source.observed) if version is not None
                  for file in version.files.values()}
        try:
            plugins = [*self._python_plugins]
            for plugin in self._build([files[name] for name in sorted(files)]):
                name = plugin.span.root().name if plugin.span is not None else ""
                plugins.append(plugin if plugin.source else replace(plugin, source=owners.get(name, name)))
            registry = Registry.of(plugins, generation=0)
            if self._check is not None:
                self._check(registry)
        except PolicyError:
            raise
        except Exception as error:
            raise our_fault("compiling the policies", error) from error
        return registry

    def build_and_stage(self, files: Files) -> Registry:
        """Return the registry of these files, staged under its generation; raises `PolicyError` if it cannot run."""
        registry = self._live.numbered(self.build(files))
        if self.stage is not None:
            try:
                self.stage(registry)
            except PolicyError:
                raise
            except Exception as error:
                raise our_fault("activating the policies", error) from error
        self._staged = registry
        return registry

    def activate(self, registry: Registry, *, preliminary: bool = False) -> None:
        """Make a registry the active one, staged unless that was done last; raises `PolicyError` if it cannot run.

        Another one follows a `preliminary` one at once; it is no target of rollbacks.
        """
        try:
            self._live.activate(registry, None if registry is self._staged else self.stage)
        except PolicyError:
            raise
        except Exception as error:
            raise our_fault("activating the policies", error) from error
        self._staged, self._preliminary = None, preliminary
        self.alarm, self.stuck = "", False
        self._activated()

    def swap(self, selection: Selection[Registry]) -> None:
        """Activate a selection; raises `PolicyError` if it cannot run."""
        if selection.built is None:
            return
        before = _ActiveSet(self._live.registry, tuple((s.path, s.active, s.active_since) for s in self._sources))
        proven = self.proven and not self._preliminary
        self.activate(selection.built)
        now = self._outcomes.clock()
        for path, version in selection.versions.items():
            source = self._sources[path]
            assert source.desired is not None
            mixed = version.digest != source.desired.digest
            self._sources.put(replace(
                source, active=version, active_since=now, mixed=mixed, last_good=mixed and source.last_good))
        self.record()
        # Only a generation that has passed its probation is a target of rollbacks; otherwise the last such one remains
        # the target.
        if self._probation.limited and self._live.registry.generation != before.registry.generation and proven:
            self._previous = before

    def record(self, restored: int | None = None) -> GenerationRecord:
        """Add the active generation to the history, with the generation that it restored."""
        registry = self._live.registry
        versions = {source.path: source.active for source in self._sources if source.active is not None}
        self._history.add(GenerationRecord(
            registry.generation, registry.digest, self._outcomes.clock(), versions, restored))
        return self._history.generations[-1]

    def roll_back_failing(self) -> None:
        """Roll back to the last set that passed its probation, as the active generation has failed its own."""
        failed, generation = self._probation.end(), self._live.registry.generation
        self._outcomes.failed()
        previous, self._previous = self._previous, None
        if previous is None:
            self._raise_alarm(f"{failed}, and there is no generation to roll back to")
            return
        try:
            self.activate(previous.registry)
        except PolicyError as error:
            why = "; ".join(problem.message for problem in error.problems)
            self._raise_alarm(f"{failed}, and the set that was active before cannot be activated again: {why}")
            return
        for path, version, since in previous.versions:
            source = self._sources[path]
            if source.active is not None and version is not source.active:
                source = source.blocking_version(source.active, version, Problem(
                    f"{failed}, so it was rolled back", code="rolled-back",
                    help="look at the errors in metrics and verdicts, and edit it"))
            self._sources.put(replace(source, active=version, active_since=since,
                                      mixed=source.unit is ReloadUnit.FILE and version is not None))
        self.alarm = f"{failed}: rolled back to what was active before"
        self._history.mark(generation, failed)
        self.record()

    def roll_back_overdue(self, plugin: Plugin, why: str) -> bool:
        """Activate the newest earlier version of a document's source that holds another content of its file.

        Does nothing if another version of the document is active by now. Returns whether it rolled back.
        """
        registry = self._live.registry
        running = registry.plugins.get((plugin.framework, plugin.name))
        if running is None or running.digest != plugin.digest or running.span is None:
            return False
        self._outcomes.failed()
        place = self._place_of(running.span.root().name)
        if place is None:
            return False
        source, relative, active = place
        for earlier in reversed(self._history.generations[:-1]):
            version = earlier.versions.get(source.path)
            if version is None or earlier.failed or version.hashes.get(relative) == active.hashes[relative]:
                continue
            files = active_files(each for each in self._sources if each is not source)
            files.update((file.name, file) for file in version.files.values())
            try:
                self.activate(self.build(files))
            except PolicyError:
                continue  # it does not build together with the other sources' current files
            problem = Problem(f"{why}, so it was rolled back", running.span, code=OVERDUE,
                              help="edit the document: this content of its file is blocked")
            blocked = replace(source, overdue={**source.overdue, source.content_key(relative, active): problem})
            if source.desired is not None and source.desired.digest == active.digest:
                blocked = replace(blocked, blocked={**source.blocked, active.digest: problem}, problems=(problem,))
            self._sources.put(replace(blocked, active=version, active_since=self._outcomes.clock(),
                                      mixed=source.unit is ReloadUnit.FILE))
            self._previous = None
            self._history.mark(registry.generation, why)
            self.record()
            self.alarm = f"{why}: rolled back to what was active before"
            return True
        self._raise_alarm(f"{why}, and there is no generation without it to roll back to")
        return False

    def restore(self, record: GenerationRecord) -> GenerationRecord:
        """Activate an earlier generation and block the sources' current versions; raises `PolicyError` if it cannot
        run.

        A generation that itself restored one counts as that one.
        """
        origin = record.generation if record.restored is None else record.restored
        self.activate(self.build({file.name: file for version in record.versions.values()
                                  for file in version.files.values()}))
        self._previous = None
        now = self._outcomes.clock()
        for source in self._sources:
            version = record.versions.get(source.path, EMPTY)
            unchanged = source.active is not None and source.active.digest == version.digest
            restored = replace(
                source, active=version, active_since=source.active_since if unchanged else now, last_good=False,
                mixed=False, problems=(), blocked={}, overdue={})
            if source.desired is not None and source.desired.digest != version.digest:
                restored = restored.blocking(Problem(
                    f"generation {origin} was brought back, with another version of `{source.path}`",
                    code=BLOCKED, help="this one is blocked until it is changed, or it is restored by its hash"))
            self._sources.put(restored)
        self.restored = origin
        return self.record(origin)

    def _raise_alarm(self, why: str) -> None:
        self.alarm, self.stuck = why, True

    def _place_of(self, name: str) -> tuple[SourceState, str, Version] | None:
        """Return the source in whose active version a file is, the file's name there, and that version."""
        for source in self._sources:
            if source.active is not None:
                for relative, file in source.active.files.items():
                    if file.name == name:
                        return source, relative, source.active
        return None


def our_fault(doing: str, error: Exception) -> PolicyError:
    """Return the `PolicyError` that replaces an internal error."""
    return PolicyError([Problem(f"{doing} failed: {type(error).__name__}: {error}",
                                help="this is a fault of koord-policy, not of the policies", code="internal")])
