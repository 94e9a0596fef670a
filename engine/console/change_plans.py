"""The effects of promotions and rollbacks on each server, before and after: from the answers of the servers.

Pure functions. Servers may answer anything: an answer that is not understood counts as a refusal.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.scheduler.extender.admin import DECISIONS, MOST_DIFFERENCES
from koordpolicy.engine.texts import first_of

from .models.changes import (
    ChangeableServer,
    ChangePlan,
    ChangesView,
    DiffLine,
    EarlierGeneration,
    FileDiff,
    GenerationDifference,
    PlannedServer,
    ServerResult,
    ShadowCounts,
    ShadowExample,
)

T = TypeVar("T")

PROMOTE: Final = "promote"
ROLLBACK: Final = "rollback"
UNSETTLED: Final = frozenset({"changed", "unsettled", "other-active", "not-enough", "shadow-invalid"})
"""Codes of refusals by a server that may be about to read the new version from its directory."""
_MOST_LINES: Final = 5_000
_LONGEST_LINE: Final = 500
_LONGEST_TEXT: Final = 1_000
_MOST_FILES: Final = 500
_MOST_EXAMPLES: Final = 5
_MOST_NAMES: Final = 5
_KINDS: Final = {"+": "added", "-": "removed", " ": "same", "@": "place"}


class _Example(msgspec.Struct, rename="camel"):
    pod: str = ""
    verb: str = ""
    nodes: int = 0
    gained: list[str] = []
    lost: list[str] = []
    why: list[str] = []
    gained_left_out: int = 0
    lost_left_out: int = 0


class _Comparison(msgspec.Struct, rename="camel"):
    decisions: int = 0
    same: int = 0
    differs: int = 0
    error: int = 0
    skipped: int = 0
    examples: list[_Example] = []
    examples_left_out: int = 0


class _FileChange(msgspec.Struct):
    file: str
    before: str | None
    after: str | None


class _Change(msgspec.Struct, rename="camel"):
    """The answer of /promote or /rollback, of a dry run or not."""

    hash: str = ""
    active: str = ""
    path: str = ""
    restored: int | None = None
    generation: int | None = None
    comparison: _Comparison | None = None
    changes: list[_FileChange] = []
    changes_left_out: list[str] = []
    code: str = ""


class _Past(msgspec.Struct):
    digest: str
    since: float
    failed: str = ""


class _Policies(msgspec.Struct):
    generation: int
    digest: str
    restored: int | None = None
    history: list[_Past] = []


class _Shadow(_Comparison):
    ready: bool = False
    hash: str = ""


class _Status(msgspec.Struct):
    policies: _Policies
    shadow: _Shadow | None = None


class _Changed(msgspec.Struct):
    state: str = ""
    after: str = ""


class _Entry(msgspec.Struct):
    """The entry of the audit log at the end of a change."""

    phase: str
    user: str
    action: str
    servers: list[_Changed]


def changes_view(answers: Sequence[EndpointAnswer], audit: Sequence[dict[str, Any]] = ()) -> ChangesView:
    """Return the servers and their generations, from answers of /status and the entries of the audit log."""
    makers = {each.after: entry for entry in (_read(found, _Entry) for found in audit)
              if entry is not None and entry.phase == "end"
              for each in entry.servers if each.state == "changed" and each.after}
    servers, generations = [], dict[str, EarlierGeneration]()
    for each in answers:
        status = _read(each.data, _Status) if each.ok else None
        if status is None:
            servers.append(ChangeableServer(endpoint=each.endpoint, error=_text(
                each.error or "its policies are not loaded yet, or it is no koord-policy that has any")))
            continue
        policies, shadow = status.policies, status.shadow
        servers.append(ChangeableServer(
            endpoint=each.endpoint, generation=policies.generation, hash=_text(policies.digest),
            restored=policies.restored, shadow=_text(shadow.hash) if shadow is not None and shadow.ready else "",
            comparison=None if shadow is None else _counts(shadow)))
        for past in {past.digest: past for past in reversed(policies.history)}.values():
            known = generations.get(past.digest)
            active = int(past.digest == policies.digest)
            generations[past.digest] = EarlierGeneration(
                hash=_text(past.digest), since=max(past.since, 0.0 if known is None else known.since),
                servers=1 + (0 if known is None else known.servers),
                active=active + (0 if known is None else known.active),
                failed=_text(past.failed) or ("" if known is None else known.failed),
                by=_text(makers[past.digest].user) if past.digest in makers else "",
                action=_text(makers[past.digest].action) if past.digest in makers else "")
    return ChangesView(
        servers=servers, generations=sorted(generations.values(), key=lambda each: (-each.since, each.hash)),
        decisions=DECISIONS, max_differences=MOST_DIFFERENCES)


def holder_of(answers: Sequence[EndpointAnswer], *hashes: str) -> tuple[str, str]:
    """Return the first server whose history has generations of these hashes, and the hash of its active one.

    Raises:
        ValueError: no server has all of them.
    """
    for each in answers:
        status = _read(each.data, _Status) if each.ok else None
        if status is not None and {*hashes} <= {past.digest for past in status.policies.history}:
            return each.endpoint, status.policies.digest
    raise ValueError(f"no server has both of {' and '.join(_text(each) for each in hashes)} in its history")


def difference_of(endpoint: str, before: str, after: str, active: str,
                  answers: Mapping[str, EndpointAnswer]) -> GenerationDifference:
    """Return the difference of two generations, from dry runs of rollbacks to them, by hash.

    A dry run has the texts of the files that differ from the active generation, of the hash `active`; that one needs no
    answer.

    Raises:
        ValueError: the server refuses one, or runs something else meanwhile.
    """
    sides: list[dict[str, _FileChange]] = []
    left_out: dict[str, None] = {}
    for digest in (before, after):
        if digest == active:
            sides.append({})
            continue
        change = _read(answers[digest].data, _Change) if answers[digest].ok else None
        if change is None:
            raise ValueError(_text(_why(answers[digest])))
        if (change.active, change.hash) != (active, digest):
            raise ValueError("the server has changed its policies meanwhile: try again")
        sides.append({each.file: each for each in change.changes})
        left_out |= dict.fromkeys(change.changes_left_out)
    one, other = sides
    changes = [_FileChange(name, one[name].after if name in one else other[name].before,
                           other[name].after if name in other else one[name].before)
               for name in sorted((one.keys() | other.keys()) - left_out.keys())]
    differing = _Change(changes=[each for each in changes if each.before != each.after],
                        changes_left_out=list(left_out))
    files, files_left_out = _files(differing)
    return GenerationDifference(endpoint=_text(endpoint), before=_text(before), after=_text(after),
                                files=files, files_left_out=files_left_out)


def plan_of(
    action: str, to: str, answers: Sequence[EndpointAnswer], bounds: Mapping[str, float] = MappingProxyType({}),
) -> ChangePlan:
    """Return the effect of a change, from the answers to its dry run with these bounds, which it confirms, too."""
    servers = [_planned(action, each) for each in answers]
    return ChangePlan(action=action, to=to, servers=servers, confirm=_confirmation(action, to, servers, bounds))


def result_of(answer: EndpointAnswer, after: str) -> ServerResult:
    """Return the result of a change to the policies of a hash, from a server's answer."""
    change = _read(answer.data, _Change)
    if answer.ok and change is not None and change.hash:
        return ServerResult(endpoint=answer.endpoint, state="changed", generation=change.generation,
                            hash=_text(change.hash))
    if change is not None and after and change.active == after and change.code in ("in-force", "other-active"):
        return ServerResult(endpoint=answer.endpoint, state="changed", hash=after,
                            message="it has read the directory that another server wrote")
    return ServerResult(endpoint=answer.endpoint, state="failed" if answer.code else "unknown",
                        message=_text(_why(answer)))


def follows(answer: EndpointAnswer, after: str) -> ServerResult | None:
    """Return a server's result if an answer of /status says that the policies of a hash are active; else None."""
    status = _read(answer.data, _Status) if answer.ok else None
    if status is None or status.policies.digest != after:
        return None
    return ServerResult(endpoint=answer.endpoint, state="changed", generation=status.policies.generation, hash=after,
                        message="it has read the directory that another server wrote")


def outcome_of(results: Sequence[ServerResult]) -> str:
    """Return `complete`, `partial` or `none`."""
    changed = [each.state == "changed" for each in results]
    return "complete" if changed and all(changed) else "partial" if any(changed) else "none"


def _planned(action: str, answer: EndpointAnswer) -> PlannedServer:
    change = _read(answer.data, _Change)
    if change is None or (answer.ok and not (change.hash and change.active)):
        return PlannedServer(endpoint=answer.endpoint, state="refused",
                             message=_text(_why(answer)))
    state = "changes"
    if not answer.ok:
        unconcerned = answer.code == 404 or change.code == "no-shadow"
        state = "unconcerned" if unconcerned else "unchanged" if _runs(change, answer.error) else "refused"
    files, files_left_out = _files(change) if state in ("changes", "refused") else ([], 0)
    return PlannedServer(
        endpoint=answer.endpoint, state=state, message="" if answer.ok else _text(_why(answer)),
        before=_text(change.active),
        after=_text(change.hash), path=_text(change.path), generation=change.restored,
        comparison=None if change.comparison is None or action == ROLLBACK else _counts(change.comparison),
        files=files, files_left_out=files_left_out)


def _why(answer: EndpointAnswer) -> str:
    return answer.error or "what it answers is not understood"


def _runs(change: _Change, error: str) -> bool:
    """Return whether a server refuses a change since it runs that version."""
    return change.code == "in-force" or (change.code == "no-such-generation" and error.endswith("is active"))


def _confirmation(
    action: str, to: str, servers: Sequence[PlannedServer], bounds: Mapping[str, float],
) -> str:
    changed = [each for each in servers if each.state == "changes"]
    if not changed:
        return ""
    parts = [action, to, *sorted(bounds.items()),
             *(part for each in servers for part in (each.endpoint, each.state, each.before, each.after))]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _files(change: _Change) -> tuple[list[FileDiff], int]:
    """Return the differences of the files, the first lines of them, and the number of files that are left out."""
    found, lines_left = [], _MOST_LINES
    for each in change.changes[:_MOST_FILES]:
        before, after = _lines(each.before), _lines(each.after)
        state = "added" if each.before is None else "removed" if each.after is None else "replaced"
        # The comparison takes time in proportion to the product of the lines.
        if len(before) + len(after) > lines_left:
            note = f"too long to be shown: {len(before)} lines before, {len(after)} after"
            found.append(FileDiff(file=_text(each.file), state=state, lines=[], note=note))
            continue
        lines_left -= len(before) + len(after)
        lines = [DiffLine(kind=_KINDS[line[0]], text=_line(line if line[0] == "@" else line[1:]))
                 for line in list(difflib.unified_diff(before, after, lineterm=""))[2:]]
        note = "" if lines else "it differs by the end of its last line only"
        found.append(FileDiff(file=_text(each.file), state=state, lines=lines, note=note))
    names, left_out = first_of(
        [*change.changes_left_out, *(each.file for each in change.changes[_MOST_FILES:])], _MOST_FILES)
    return found + [FileDiff(file=_text(name), state="replaced", lines=[], note="too long to be shown")
                    for name in names], left_out


def _lines(text: str | None) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _line(text: str) -> str:
    return visible(text[:_LONGEST_LINE]) + ("…" if len(text) > _LONGEST_LINE else "")


def _text(text: str) -> str:
    return visible(text[:_LONGEST_TEXT])


def _counts(found: _Comparison) -> ShadowCounts:
    examples, examples_left_out = first_of(found.examples, _MOST_EXAMPLES)
    return ShadowCounts(
        decisions=found.decisions, same=found.same, differs=found.differs, error=found.error, skipped=found.skipped,
        examples=[_example(each) for each in examples],
        examples_left_out=examples_left_out + max(0, found.examples_left_out))


def _example(found: _Example) -> ShadowExample:
    gained, gained_left_out = first_of(found.gained, _MOST_NAMES)
    lost, lost_left_out = first_of(found.lost, _MOST_NAMES)
    why, why_left_out = first_of(found.why, _MOST_NAMES)
    return ShadowExample(
        pod=_text(found.pod), verb=_text(found.verb), nodes=found.nodes, gained=[*map(_text, gained)],
        gained_left_out=gained_left_out + max(0, found.gained_left_out), lost=[*map(_text, lost)],
        lost_left_out=lost_left_out + max(0, found.lost_left_out), why=[*map(_text, why)], why_left_out=why_left_out)


def _read(data: dict[str, Any], kind: type[T]) -> T | None:
    """Return plain data as a struct; None if it has another form."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return None
