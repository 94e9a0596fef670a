"""Calls plugins, and holds their answers to the contract of their extension point.

An exception of a plugin, or an answer that violates its protocol, becomes that plugin's failure here and nowhere else:
it is appended to the `failures` of the caller, and a refusal, or scores of 0, take the place of the answer. The effect
is that of an error at the point, see `engine.framework.points`.

The watchdog reads the running plugin and its point off the stack: each call has an `Active` and a `Point` as variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived, sound
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import (
    AwaitObjects,
    Changed,
    CycleState,
    Deferred,
    Nomination,
    OnlyNodes,
    Plan,
    Skip,
    Wait,
)

from ..profiles.profile import Active
from ..profiles.rowwise import failed
from ..verdict.verdict import Failure


def call_plugin(
    failures: list[Failure], active: Active, point: Point, call: Callable[..., Any], *arguments: object,
    kinds: tuple[type, ...] | None = None,
) -> Any:
    """Return a plugin's answer: None, a refusal or one of the `kinds`; with `kinds` None any answer is valid."""
    try:
        answer = call(*arguments)
        if isinstance(answer, Refusal) and kinds is not None:
            sound(answer)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        failures.append(failure_of(active, point, describe(error)))
        return _refusal_for(error)
    if answer is None or kinds is None or isinstance(answer, Refusal):
        return answer
    if isinstance(answer, kinds) and _has_valid_fields(answer):
        return answer
    return invalid_answer(failures, active, point, answer)


def call_filter(
    failures: list[Failure], active: Active, call: Callable[..., Answer], *, state: CycleState, pod: PodInfo,
    snapshot: Snapshot, rows: Rows,
) -> Answer:
    """Return a filter's answer about some rows; one that fails refuses all nodes."""
    point = Point.FILTER
    try:
        answer = call(state, pod, snapshot, rows)
        _check_kind(answer, Answer)
        _check_shape(answer.passed, np.bool_, len(rows), snapshot.size)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        failures.append(failure_of(active, point, describe(error)))
        return refusing_all(_refusal_for(error), snapshot.size)
    return answer


def call_score(
    failures: list[Failure], active: Active, call: Callable[..., Scores], *, state: CycleState, pod: PodInfo,
    snapshot: Snapshot, rows: Rows,
) -> Scores:
    """Return a scorer's values, one for each row of the snapshot.

    A scorer that fails gives 0 to all nodes. A value outside 0..100 is an error of its row, which gets 0.
    """
    point, size = Point.SCORE, snapshot.size
    try:
        scores = call(state, pod, snapshot, rows)
        _check_kind(scores, Scores)
        _check_shape(scores.values, np.int64, len(rows), size)
        scores = scores.spread(rows, size)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        failures.append(failure_of(active, point, describe(error)))
        return Scores(np.zeros(size, np.int64))
    chosen = scores.values[rows]
    if chosen.min() < 0 or chosen.max() > HIGHEST_SCORE:
        return _without_outliers(scores, rows)
    return scores


def invalid_answer(failures: list[Failure], active: Active, point: Point, answer: object) -> Refusal:
    """Record an invalid answer as the plugin's failure; return the refusal that replaces it."""
    try:
        shown = repr(answer)
    except BaseException as error:  # the plugin's own class
        must_be_survived(error)
        shown = type(answer).__name__
    message = f"the answer must be what the protocol of `{point.value}` says, not {shown}"
    failures.append(failure_of(active, point, message))
    return Refusal("", message, Code.ERROR)


def secured(active: Active, answer: Answer) -> Answer:
    """Return an answer whose explanations never raise; those of documents never do."""
    if active.plugin.span is not None:
        return answer
    it = _Secured(answer)
    return Answer(
        answer.passed, it.explain, answer.errors, None if answer.reasons is None else it.reasons,
        None if answer.codes is None else it.codes, None if answer.rules is None else it.rules,
        None if answer.brief is None else it.brief,
    )


def refusing_all(refusal: Refusal, size: int) -> Answer:
    """Return the answer of a filter that refuses all nodes for one reason."""
    return Answer(np.zeros(size, np.bool_), lambda _: refusal, reasons=lambda rows: {refusal.message: rows},
                  codes=lambda rows: {refusal.code: rows})


def refusing(refusal: Refusal, refused: Rows, size: int) -> Answer:
    """Return the answer of a filter that refuses some nodes for one reason."""
    passed = np.ones(size, np.bool_)
    passed[refused] = False
    return replace(refusing_all(refusal, size), passed=passed)


def failure_of(active: Active, point: Point, message: str, rule: str = "") -> Failure:
    """Return a failure of a plugin at a point, or of one of its rules."""
    return Failure(active.name, active.plugin.origin, point, message, rule=rule)


def _refusal_for(error: BaseException) -> Refusal:
    return Refusal("", describe(error), Code.ERROR, failed(error))


def _has_valid_fields(answer: object) -> bool:
    """Return whether an answer of the right class has valid fields: a plugin's author may have no type checker."""
    match answer:
        case Skip():
            return True
        case OnlyNodes():
            return isinstance(answer.names, AbstractSet) and all(isinstance(name, str) for name in answer.names)
        case Wait():
            return isinstance(answer.timeout, int)
        case Deferred():
            return callable(answer.call)
        case AwaitObjects():
            return (callable(answer.condition) and isinstance(answer.objects, frozenset)
                    and isinstance(answer.timeout, int) and isinstance(answer.timed_out, str))
        case Plan():
            return isinstance(answer.nodes, Mapping)
        case Changed():
            return isinstance(answer.pod, PodInfo | None) and isinstance(answer.snapshot, Snapshot | None)
        case Nomination():
            return (isinstance(answer.node, str) and isinstance(answer.victims, (tuple, list))
                    and all(isinstance(each, PodInfo) for each in answer.victims)
                    and isinstance(answer.message, str))
        case _:
            return True


def _check_kind(answer: object, required: type) -> None:
    if not isinstance(answer, required):
        raise TypeError(f"the answer must be of the kind `{required.__name__}`, not {type(answer).__name__}")


def _check_shape(values: NDArray[Any], required: type[np.generic], expected: int, size: int) -> None:
    if values.dtype != required or values.shape not in {(expected,), (size,)}:
        sizes = f"{size}" if expected == size else f"{expected} or {size}"
        raise TypeError(
            f"the answer must be {sizes} values of {required.__name__}, not {values.dtype} of shape {values.shape}",
        )


def _without_outliers(scores: Scores, rows: Rows) -> Scores:
    values = scores.values.copy()
    errors = dict(scores.errors.get("", {}))
    for row in rows[(values[rows] < 0) | (values[rows] > HIGHEST_SCORE)].tolist():
        message = f"the score {int(values[row])} is outside 0..{HIGHEST_SCORE}"
        errors[row] = EvaluationError(message, reason="ScoreRange")
        values[row] = 0
    return replace(scores, values=values, errors={**scores.errors, "": errors})


class _Secured:
    """The explanations of a plugin's refusals, with fallbacks if the plugin raises."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def explain(self, row: int) -> Refusal:
        try:
            return sound(self._answer.explain(row))
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            return Refusal("", _unknown(error), Code.ERROR, failed(error))

    def reasons(self, rows: Rows) -> Mapping[str, Rows]:
        try:
            return self._answer.reasons(rows) if self._answer.reasons is not None else {}
        except BaseException as error:
            must_be_survived(error)
            return {_unknown(error): rows}

    def brief(self, rows: Rows) -> Mapping[str, Rows]:
        try:
            return self._answer.brief(rows) if self._answer.brief is not None else {}
        except BaseException as error:
            must_be_survived(error)
            return {_unknown(error): rows}

    def codes(self, rows: Rows) -> Mapping[Code, Rows]:
        try:
            return self._answer.codes(rows) if self._answer.codes is not None else {}
        except BaseException as error:
            must_be_survived(error)
            return {Code.ERROR: rows}

    def rules(self, rows: Rows) -> frozenset[str]:
        try:
            return self._answer.rules(rows) if self._answer.rules is not None else frozenset()
        except BaseException as error:
            must_be_survived(error)
            return frozenset()


def _unknown(error: BaseException) -> str:
    return f"why is not known: {describe(error)}"
