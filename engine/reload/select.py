"""Selects the changes of the sources that can be active together, with reasons against the others: a pure function.

`select` reads the states of the sources and changes nothing. Its result depends on them, on the rules, and on the sets
of files that `build` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .mount import EMPTY, Version
from .source_state import Files, ReloadUnit, SourceState, active_files, changed_files, mixed_version
from .status import EMPTIED

T = TypeVar("T")

Groups: TypeAlias = Callable[[Sequence[Source]], Iterable[Collection[str]]]
"""Returns the names of files that must change together, as one references the other."""

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
    problems: tuple[Problem, ...] = ()
    """Their problems that are known before a build."""


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
    return Problem(f"`{source.path}` holds no policy", code=EMPTIED,
                   help="put the policies back, or start with `--allow-empty` where that is meant")


def _together(
    files: Files, pending: list[ChangeSet], refused: list[RejectedChanges], build: Callable[[Files], T],
    rules: SelectionRules,
) -> tuple[list[ChangeSet], T | None]:
    """Build all changes at once, since they may need each other, then without those with errors of their own.

    Returns the remaining changes with the set that was built, or without a set if errors name none or all of them.
    """
    while pending:
        try:
            built = build(_with(files, pending))
        except PolicyError as error:
            if len(pending) == 1:
                refused.append(RejectedChanges(pending[0], error.problems))
                return [], None
            at_fault = _at_fault(pending, error.problems)
            if not at_fault or len(at_fault) == len(pending):
                return pending, None
            refused += [RejectedChanges(each, _own(error.problems, each)) for each in at_fault]
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
    # No change was accepted in the last round, so its errors are those together with all accepted changes.
    refused += [RejectedChanges(each, errors[each]) for each in pending]
    return accepted, built


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
        changes.append(ChangeSet((source,), files, source.desired_since, problems))
    return changes


@dataclass(frozen=True, slots=True)
class _ChangedFile:
    source: SourceState
    file: Source | None
    problem: Problem | None


def _changes_of_files(sources: Sequence[SourceState], groups: Groups) -> list[ChangeSet]:
    changed = _changed_files(each for each in sources if each.unit is ReloadUnit.FILE)
    together = {name: frozenset({name}) for name in changed}
    before = list(active_files(sources).values())
    after = [*(file for file in before if file.name not in changed),
             *(each.file for each in changed.values() if each.file is not None)]
    # References of the active files count, too: a document changes together with a file that it no longer references.
    for group in (*groups(before), *groups(after)) if changed else ():
        joined = frozenset[str]().union(*(together[name] for name in group if name in together))
        for name in joined:
            together[name] = joined
    changes = []
    for names in sorted({tuple(sorted(group)) for group in together.values()}):
        members = [changed[name] for name in names]
        changes.append(ChangeSet(
            tuple(dict.fromkeys(each.source for each in members)),
            {name: each.file for name, each in zip(names, members, strict=True)},
            min(each.source.desired_since for each in members),
            tuple(each.problem for each in members if each.problem is not None)))
    return changes


def _changed_files(sources: Iterable[SourceState]) -> dict[str, _ChangedFile]:
    changed: dict[str, _ChangedFile] = {}
    for source in sources:
        desired = source.desired
        if desired is None or not source.pending:
            continue
        for relative, file in changed_files(source.active or EMPTY, desired).items():
            key = source.content_key(relative, desired)
            problem = source.overdue.get(key) or source.blocked.get(key)
            changed[source.reader.name_of(relative)] = _ChangedFile(source, file, problem)
        for relative, problem in desired.broken.items():
            changed[source.reader.name_of(relative)] = _ChangedFile(source, None, problem)
    return changed


def _next_versions(accepted: Iterable[ChangeSet]) -> dict[str, Version]:
    accepted = tuple(accepted)
    taken = frozenset(name for each in accepted for name in each.files)
    versions = {}
    for source in dict.fromkeys(source for each in accepted for source in each.sources):
        assert source.desired is not None
        versions[source.path] = source.desired if source.unit is ReloadUnit.SOURCE else mixed_version(
            source.reader, source.active or EMPTY, source.desired, taken)
    return versions


def _emptied_by(changes: ChangeSet, refused: Iterable[RejectedChanges], rules: SelectionRules) -> tuple[Problem, ...]:
    """Return the problems of sources that valid changes would leave without policies."""
    names = {name for refusal in refused for name, file in refusal.changes.files.items() if file is not None}
    return tuple(emptied(source) for source in changes.sources
                 if is_emptied(source.desired, rules.holds_policies, names))


def _at_fault(pending: Iterable[ChangeSet], problems: Iterable[Problem]) -> list[ChangeSet]:
    named = {problem.span.root().name for problem in problems
             if problem.span is not None and problem.severity is Severity.ERROR}
    return [each for each in pending if not named.isdisjoint(each.files)]


def _own(problems: Iterable[Problem], changes: ChangeSet) -> tuple[Problem, ...]:
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
