"""The status of objects of our kinds: the result for each, and the patch that reports it.

`status_of` is a pure function of an object and the state of its source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.source import Problem, first_problems

from .api_source import CRD, ObjectSource, PolicyObject
from .history import MOST_GENERATIONS
from .source_state import SourceState
from .status import BLOCKED, OVERDUE

_LOG: Final = logging.getLogger(__name__)

Patch: TypeAlias = dict[str, Any]
"""A JSON merge patch of a status: None deletes a field."""

_MOST_ERRORS: Final = 20
_LONGEST: Final = 1000
_RETRY_S: Final = 10.0
_ROLLED_BACK: Final = frozenset((BLOCKED, OVERDUE, "rolled-back"))
_FIELDS: Final = ("observedGeneration", "hash", "activeGeneration", "activeHash", "conditions", "errors")


def status_of(each: PolicyObject, state: SourceState, generations: Mapping[str, int], now: int) -> Patch | None:
    """Return the status that an object should have, or None while its newest content was not considered yet.

    `generations` are those of its contents that were active, by hash; `now` is in nanoseconds since the epoch. A
    condition that does not change its status keeps the time of its last transition.
    """
    relative = f"{each.kind}/{each.name}"
    name = state.reader.name_of(relative)
    observed = state.observed
    if (observed is None or state.desired is None or observed.digest != state.desired.digest
            or observed.hashes.get(relative) != each.digest):
        return None
    active = state.active.hashes.get(relative) if state.active is not None else None
    is_active = active is not None and active == each.digest
    problems = () if is_active else _problems(relative, name, state)
    if not is_active and not problems:
        return None  # it is selected in the next pass
    generation = each.generation if is_active else _generation(active, generations, each.status)
    reason, message = _summary(problems, generation, each.generation, is_active=is_active)
    condition = {"type": "Active", "status": str(is_active), "reason": reason, "message": message,
                 "observedGeneration": each.generation}
    condition["lastTransitionTime"] = _since(condition, each.status) or rfc3339(now)
    return {
        "observedGeneration": each.generation, "hash": each.digest or None, "activeGeneration": generation,
        "activeHash": active or None, "conditions": [condition],
        "errors": [_error(problem, name) for problem in first_problems(problems, _MOST_ERRORS)] or None,
    }


def is_written(status: Mapping[str, Any], desired: Patch) -> bool:
    """Return whether a status is as desired."""
    return all(status.get(field) == desired[field] for field in _FIELDS)


def _problems(relative: str, name: str, state: SourceState) -> Sequence[Problem]:
    assert state.observed is not None
    if name in state.refused:
        return state.refused[name].problems
    key = state.content_key(relative, state.observed)
    blocked = state.overdue.get(key) or state.blocked.get(key)
    return (blocked,) if blocked is not None else ()


def _generation(active: str | None, generations: Mapping[str, int], status: Mapping[str, Any]) -> int | None:
    """Return the generation of the active content, if it is known."""
    if active is None or active in generations:
        return generations.get(active or "")
    found = status.get("activeGeneration")
    return found if status.get("activeHash") == active and isinstance(found, int) else None


def _summary(
    problems: Sequence[Problem], active: int | None, newest: int, *, is_active: bool,
) -> tuple[str, str]:
    """Return reason and message of the condition."""
    if is_active:
        return "Active", f"generation {newest} decides"
    first = problems[0]
    field = first.span.field if first.span is not None else None
    message = f"{field}: {first.message}" if field else first.message
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more)"
    if active is not None:
        message += f"; generation {active} stays active"
    return "RolledBack" if any(each.code in _ROLLED_BACK for each in problems) else "Invalid", message[:_LONGEST]


def _since(condition: Mapping[str, Any], status: Mapping[str, Any]) -> str | None:
    """Return the time since which a condition has its status; None if it is new."""
    conditions = status.get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, dict) and each.get("type") == condition["type"] and (
                each.get("status") == condition["status"] and isinstance(each.get("lastTransitionTime"), str)):
            return str(each["lastTransitionTime"])
    return None


def _error(problem: Problem, name: str) -> dict[str, str]:
    """Return a problem of an object as an entry of its `status.errors`."""
    found = {"message": problem.message[:_LONGEST], "help": problem.help[:_LONGEST], "code": problem.code}
    if problem.span is not None:
        found["field"] = problem.span.field or ""
        place = problem.span.place
        if place[0] != name:
            is_object = place[0].startswith(f"{CRD}:")
            found["object"] = place[0].removeprefix(f"{CRD}:") if is_object else str(problem.span)
    return {key: text for key, text in found.items() if text}


class Result(Protocol):
    """The result of a write, see `client.writes.WriteResult`."""

    @property
    def done(self) -> bool:
        """True if the object is as the write wants it."""
        ...

    @property
    def message(self) -> str:
        """The reason if it is not."""
        ...


Write: TypeAlias = Callable[[str, str, str, Patch], "Future[Any]"]
"""Merges a patch into the status of an object: kind, name, UID and patch."""


@dataclass(slots=True)
class _Written:
    """The last patch that was sent for an object."""

    uid: str
    patch: Patch
    sequence: int
    """The delivery of the object that the patch was computed of."""
    future: Future[Any]
    retry_at: float = 0.0


class StatusWriter:
    """Writes the status of the objects of a source, if it differs, while this process `leads`.

    `published` is called after each pass, in the reloading thread. `clock` is monotonic and in seconds, `now` in
    nanoseconds since the epoch.
    """

    def __init__(
        self, source: ObjectSource, write: Write, leads: Callable[[], bool], *,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._source = source
        self._write = write
        self._leads = leads
        self._clock = clock
        self._now = now
        self._generations: dict[str, dict[str, int]] = {}
        """The generations of contents that were active, by object and hash."""
        self._written: dict[str, _Written] = {}
        self._settled: tuple[SourceState, int, bool] | None = None
        """The state and delivery for which every status is written."""

    def published(self, states: Sequence[SourceState]) -> None:
        """Bring the status of all objects up to date with the state of their source."""
        state = next((each for each in states if each.reader is self._source), None)
        leads = self._leads()
        sequence = self._source.sequence
        if state is None or self._settled == (state, sequence, leads):
            return
        objects = self._source.objects
        settled = True
        for relative, each in objects.items():
            desired = status_of(each, state, self._generations.get(relative, {}), self._now())
            if desired is None:
                settled = False
                continue
            self._remember(relative, desired)
            if leads and not is_written(each.status, desired):
                settled &= self._send(relative, each, desired)
        for deleted in {*self._generations, *self._written} - objects.keys():
            self._generations.pop(deleted, None)
            self._written.pop(deleted, None)
        self._settled = (state, sequence, leads) if settled else None

    def _remember(self, relative: str, desired: Patch) -> None:
        digest, generation = desired["activeHash"], desired["activeGeneration"]
        if digest is not None and generation is not None:
            known = self._generations.setdefault(relative, {})
            known.pop(digest, None)
            known[digest] = generation  # the newest one is the last
            if len(known) > MOST_GENERATIONS:
                del known[next(iter(known))]

    def _send(self, relative: str, each: PolicyObject, desired: Patch) -> bool:
        """Send a patch unless it is on its way; return whether nothing remains to be done."""
        sent = self._written.get(relative)
        if sent is not None and sent.uid == each.uid:
            if not sent.future.done():
                return False
            failure = _failure(sent.future)
            if failure and self._clock() < sent.retry_at:
                return False
            if not failure and sent.sequence == each.sequence and _same(sent.patch, desired):
                return False  # it is written, and will be delivered
            if failure and not sent.retry_at:
                _LOG.warning("the status of %s `%s` cannot be written: %s", each.kind, each.name, failure)
                sent.retry_at = self._clock() + _RETRY_S
                return False
        try:
            future = self._write(each.kind, each.name, each.uid, desired)
        except RuntimeError:  # the thread that writes was closed
            return True
        self._written[relative] = _Written(each.uid, desired, each.sequence, future)
        return False


def _failure(future: Future[Any]) -> str:
    """Return why a write failed; empty if it did not."""
    if future.cancelled():
        return "it was cancelled"
    error = future.exception()
    if error is not None:
        return f"{type(error).__name__}: {error}"
    result: Result = future.result()
    return "" if result.done else result.message or "it was refused"


def _same(one: Patch, other: Patch) -> bool:
    """Return whether two patches differ at most in times."""
    def timeless(patch: Patch) -> Patch:
        return patch | {"conditions": [
            {key: value for key, value in each.items() if key != "lastTransitionTime"} for each in patch["conditions"]]}

    return timeless(one) == timeless(other)
