"""Selects the changes of the sources that can be active together, with reasons against the others: a pure function.

`select` reads the states of the sources and changes nothing. Its result depends on them, on the rules, and on the sets
of files that `build` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .mount import EMPTY, Version
from .source_state import Files, ReloadUnit, SourceState, active_files, changed_files, mixed_version
from .status import EMPTIED

T = TypeVar("T")

Groups: TypeAlias = Callable[[Sequence[Source]], Iterable[Collection[str]]]
"""Returns the names of files that must change together, as they reference each other."""

HoldsPolicies: TypeAlias = Callable[[Source], bool]


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """The files that belong together, and whether a source may hold no policy (then `holds_policies` is None)."""

    groups: Groups = field(default=lambda _: ())
    holds_policies: HoldsPolicies | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChangeSet:
    """Changes that are activated together or not at all."""

    sources: tuple[SourceState, ...]
    files: Mapping[str, Source | None]
    """The changed files by full name; None for one that was deleted."""
    since: float
    """The time at which they were first desired."""
    contents: Mapping[str, str]
    """The hash of each changed file by its full name; empty text for one that was deleted."""
    problems: tuple[Problem, ...] = ()
    """Their problems that are known before a build."""
    parts: tuple[ChangeSet, ...] = ()
    """The changes per file, if there are several files and the reload unit is the file."""

    @classmethod
    def of(cls, parts: Sequence[ChangeSet]) -> ChangeSet:
        """Return the changes of several files together."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            tuple(dict.fromkeys(source for part in parts for source in part.sources)),
            {name: file for part in parts for name, file in part.files.items()}, min(part.since for part in parts),
            {name: digest for part in parts for name, digest in part.contents.items()},
            tuple(problem for part in parts for problem in part.problems), tuple(parts))

    def split(self, at_fault: AbstractSet[str], active: Files) -> tuple[ChangeSet, ChangeSet] | None:
        """Return the changes of the files at fault and those of the others; None if these must not be active alone.

        Beside them an active version of a file at fault would decide: a combination that nobody published.
        """
        wrong = [part for part in self.parts if not at_fault.isdisjoint(part.files)]
        rest = [part for part in self.parts if part not in wrong]
        if not wrong or not rest or any(name in active for part in wrong for name in part.files):
            return None
        return ChangeSet.of(wrong), ChangeSet.of(rest)


@dataclass(frozen=True, slots=True, eq=False)
class RejectedChanges:
    """Changes that are not activated, with the reasons."""

    changes: ChangeSet
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Selection(Generic[T]):
    """The next set: the result of `build` (None if nothing changes), and the refused changes."""

    accepted: tuple[ChangeSet, ...]
    refused: tuple[RejectedChanges, ...]
    versions: Mapping[str, Version]
    """The next active versions of the sources that change, by path."""
    built: T | None


def select(
    sources: Sequence[SourceState], build: Callable[[Files], T], rules: SelectionRules,
) -> Selection[T]:
    """Return the pending changes that build together with the active files; older ones have precedence.

    `build` takes files by name and returns a set, or raises `PolicyError` with its problems.
    """
    files = active_files(sources)
    changes = [*_changes_of_sources(each for each in sources if each.unit is ReloadUnit.SOURCE),
               *_changes_of_files(sources, rules.groups)]
    refused = [RejectedChanges(each, each.problems) for each in changes if each.problems]
    candidates = [each for each in changes if not each.problems]
    for each in [each for each in refused if each.changes.parts]:
        known = {name for part in each.changes.parts if part.problems for name in part.files}
        if (split := each.changes.split(known, files)) is not None:
            refused[refused.index(each)] = RejectedChanges(split[0], split[0].problems)
            candidates.append(split[1])
    accepted, built = _together(files, candidates, refused, build, rules)
    if accepted and built is None:
        accepted, built = _one_by_one(files, accepted, refused, build, rules)
    return Selection(tuple(accepted), tuple(refused), _next_versions(accepted), built)


def is_emptied(
    version: Version | None, holds_policies: HoldsPolicies | None, refused: Collection[str] = (),
) -> bool:
    """Return whether a valid version holds no policy although it must: no file, only empty ones, or only tests.

    Files that are `refused` count as non-empty, and are not read.
    """
    if holds_policies is None or version is None or version.broken:
        return False
    return not any(file.name in refused or holds_policies(file) for file in version.files.values())


def emptied(source: SourceState) -> Problem:
    """Return the problem with a source that holds no policy."""
    why = "".join(f": {each}" for each in source.read_warnings)
    return Problem(f"`{source.path}` holds no policy{why}", code=EMPTIED,
                   help="put the policies back, or start with `--allow-empty` where that is meant")


def _together(
    files: Files, pending: list[ChangeSet], refused: list[RejectedChanges], build: Callable[[Files], T],
    rules: SelectionRules,
) -> tuple[list[ChangeSet], T | None]:
    """Build all changes at once, since they may need each other, then without the changes that contain errors.

    Returns the remaining changes with the set that was built, or without a set if errors name none or all of them.
    """
    while pending:
        try:
            built = build(_with(files, pending))
        except PolicyError as error:
            if (split := _split(files, pending, error.problems, refused)) is not None:
                pending = split
                continue
            if len(pending) == 1:
                refused.append(RejectedChanges(pending[0], error.problems))
                return [], None
            at_fault = _at_fault(pending, error.problems)
            if not at_fault or len(at_fault) == len(pending):
                return pending, None
            refused += [RejectedChanges(each, _problems_in(each, error.problems)) for each in at_fault]
            pending = [each for each in pending if each not in at_fault]
        else:
            empty = [RejectedChanges(each, why) for each in pending if (why := _emptied_by(each, refused, rules))]
            if not empty:
                return pending, built
            refused += empty
            pending = [each for each in pending if all(each is not refusal.changes for refusal in empty)]
    return [], None


def _one_by_one(
    files: Files, pending: list[ChangeSet], refused: list[RejectedChanges], build: Callable[[Files], T],
    rules: SelectionRules,
) -> tuple[list[ChangeSet], T | None]:
    """Add one change after the other, older ones first, as long as the set builds; refuse the rest."""
    pending = sorted(pending, key=lambda each: each.since)
    accepted: list[ChangeSet] = []
    built: T | None = None
    errors: dict[ChangeSet, tuple[Problem, ...]] = {}
    progress = True
    while progress:
        progress = False
        for each in list(pending):
            try:
                candidate = build(_with(files, [*accepted, each]))
            except PolicyError as error:
                errors[each] = error.problems
                continue
            pending.remove(each)
            if why := _emptied_by(each, refused, rules):
                refused.append(RejectedChanges(each, why))
                continue
            accepted.append(each)
            built, progress = candidate, True
        for each in () if progress else list(pending):
            split = _split(files, [each], errors[each], refused)
            if split is not None:
                pending[pending.index(each)], progress = split[0], True
    # No change was accepted in the last round, so its errors are those of each change with all accepted ones.
    refused += [RejectedChanges(each, errors[each]) for each in pending]
    return accepted, built


def _split(
    files: Files, pending: Sequence[ChangeSet], problems: Sequence[Problem], refused: list[RejectedChanges],
) -> list[ChangeSet] | None:
    """Split the files at fault off the changes that may be active without them, and refuse these files; None if no
    change can be split.
    """
    named = _named(problems)
    parts = {each: split for each in pending if (split := each.split(named, files)) is not None}
    refused += [RejectedChanges(wrong, _problems_in(wrong, problems)) for wrong, _ in parts.values()]
    return [parts[each][1] if each in parts else each for each in pending] if parts else None


def _changes_of_sources(sources: Iterable[SourceState]) -> list[ChangeSet]:
    changes = []
    for source in sources:
        desired = source.desired
        if desired is None or not source.pending:
            continue
        files = {source.reader.name_of(relative): file
                 for relative, file in changed_files(source.active or EMPTY, desired).items()}
        blocked = source.blocked.get(desired.digest)
        overdue = [problem for relative in desired.files
                   if (problem := source.overdue.get(source.content_key(relative, desired))) is not None
                   and problem is not blocked]
        problems = (*desired.problems, *((blocked,) if blocked else ()), *overdue)
        contents = {source.reader.name_of(relative): desired.hashes.get(relative, "")
                    for relative in changed_files(source.active or EMPTY, desired)}
        changes.append(ChangeSet((source,), files, source.desired_since, contents, problems))
    return changes


@dataclass(frozen=True, slots=True)
class _ChangedFile:
    source: SourceState
    file: Source | None
    digest: str
    """The hash of the file; empty text if it was deleted or cannot be used."""
    problem: Problem | None


def _changes_of_files(sources: Sequence[SourceState], groups: Groups) -> list[ChangeSet]:
    changed = _changed_files(each for each in sources if each.unit is ReloadUnit.FILE)
    refused = _refused_again(sources, changed)
    # A change that was refused before holds up no later one, even of a file that it references.
    together = {name: frozenset({name}) for name in changed if name not in refused}
    before = list(active_files(sources).values())
    after = [*(file for file in before if file.name not in changed),
             *(each.file for each in changed.values() if each.file is not None)]
    # References of the active files count, too: a document changes together with a file that it no longer references.
    for group in (*groups(before), *groups(after)) if changed else ():
        joined = frozenset[str]().union(*(together[name] for name in group if name in together))
        for name in joined:
            together[name] = joined
    parts = {name: ChangeSet((each.source,), {name: each.file}, each.source.desired_since, {name: each.digest},
                             () if each.problem is None else (each.problem,)) for name, each in changed.items()}
    return [ChangeSet.of([parts[name] for name in names])
            for names in sorted({tuple(sorted(group)) for group in (*together.values(), *refused.values())})]


def _refused_again(
    sources: Iterable[SourceState], changed: Mapping[str, _ChangedFile],
) -> dict[str, frozenset[str]]:
    """Return the files that were refused before with the same contents, and the files that were refused with each."""
    return {
        name: frozenset(refused.contents) for source in sources for name, refused in source.refused.items()
        if all(each in changed and changed[each].digest == digest for each, digest in refused.contents.items())
    }


def _changed_files(sources: Iterable[SourceState]) -> dict[str, _ChangedFile]:
    changed: dict[str, _ChangedFile] = {}
    for source in sources:
        desired = source.desired
        if desired is None or not source.pending:
            continue
        for relative, file in changed_files(source.active or EMPTY, desired).items():
            key = source.content_key(relative, desired)
            problem = source.overdue.get(key) or source.blocked.get(key)
            changed[source.reader.name_of(relative)] = _ChangedFile(
                source, file, desired.hashes.get(relative, ""), problem)
        for relative, problem in desired.broken.items():
            changed[source.reader.name_of(relative)] = _ChangedFile(source, None, desired.hashes[relative], problem)
    return changed


def _next_versions(accepted: Iterable[ChangeSet]) -> dict[str, Version]:
    accepted = tuple(accepted)
    names = frozenset(name for each in accepted for name in each.files)
    versions = {}
    for source in dict.fromkeys(source for each in accepted for source in each.sources):
        assert source.desired is not None
        versions[source.path] = source.desired if source.unit is ReloadUnit.SOURCE else mixed_version(
            source.reader, source.active or EMPTY, source.desired, names)
    return versions


def _emptied_by(changes: ChangeSet, refused: Iterable[RejectedChanges], rules: SelectionRules) -> tuple[Problem, ...]:
    """Return the problems of sources that valid changes would leave without policies."""
    names = {name for refusal in refused for name, file in refusal.changes.files.items() if file is not None}
    return tuple(emptied(source) for source in changes.sources
                 if is_emptied(source.desired, rules.holds_policies, names))


def _at_fault(pending: Iterable[ChangeSet], problems: Iterable[Problem]) -> list[ChangeSet]:
    named = _named(problems)
    return [each for each in pending if not named.isdisjoint(each.files)]


def _named(problems: Iterable[Problem]) -> frozenset[str]:
    """Return the names of the files that errors are in."""
    return frozenset(problem.span.root().name for problem in problems
                     if problem.span is not None and problem.severity is Severity.ERROR)


def _problems_in(changes: ChangeSet, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(each for each in problems if each.span is not None and each.span.root().name in changes.files)


def _with(files: Files, changes: Iterable[ChangeSet]) -> Files:
    result = dict(files)
    for each in changes:
        for name, file in each.files.items():
            if file is None:
                result.pop(name, None)
            else:
                result[name] = file
    return result
