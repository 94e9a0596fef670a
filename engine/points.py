"""The extension points: who is asked, with what, and what an answer looks like.

One table, `POINTS`, says for every point which framework asks, which rows the question is about, which variables an
expression there sees (type, unit, scope), which type it must have, and what an error means. Compiler, frameworks,
schemas and the generated reference page read it; nothing about a point is written anywhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .cel.values import EvaluationError


class Framework(enum.Enum):
    """The three plugin systems, named as their configuration files name them."""

    SCHEDULER = "scheduler"
    QOS = "qos"
    DESCHEDULER = "descheduler"


class Point(enum.Enum):
    """An extension point; the value is its key in documents, metrics and verdicts."""

    PRE_ENQUEUE = "preEnqueue"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"
    STRATEGY = "strategy"
    DESCHEDULE = "deschedule"
    BALANCE = "balance"
    EVICTION_FILTER = "evictionFilter"


class Code(enum.Enum):
    """Why a node (or a pod) was refused, as kube-scheduler tells it apart."""

    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "PolicyError"


class FailurePolicy(enum.Enum):
    """What an *error* of an expression means; a false result is never an error."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class Enforcement(enum.Enum):
    """Whether an answer counts, is only reported on the object, or only in status and metrics."""

    ENFORCE = "Enforce"
    WARN = "Warn"
    AUDIT = "Audit"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one row was refused: by which rule of the plugin, with which message and (if it failed) which error."""

    rule: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    error: EvaluationError | None = None
    values: tuple[tuple[str, object], ...] = ()
    """Sub-expressions of the rule and what they were, as text and value, where that was asked for."""


def _unexplained(row: int) -> Refusal:
    raise KeyError(row)


@dataclass(frozen=True, slots=True)
class Answer:
    """A filter's answer for all rows: which passed, and (asked only when somebody reads it) why not.

    `passed` has one bool per row of the snapshot; `explain(row)` is called for refused rows only. `errors` holds the
    rows whose evaluation failed, whatever the failure policy made of that.
    """

    passed: NDArray[np.bool_]
    explain: Callable[[int], Refusal] = _unexplained
    errors: Mapping[int, EvaluationError] = field(default_factory=dict)
    reasons: Callable[[NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Groups refused rows by reason in one pass, for those who count and do not read; a row may have several reasons.
    Without it each row is explained, and its message is its reason."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A scorer's answer for all rows: int64, 0..100 after normalisation for the rows that were asked for.

    What stands in rows that were not asked for means nothing.
    """

    values: NDArray[np.int64]
    errors: Mapping[int, EvaluationError] = field(default_factory=dict)
    items: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Each item's normalised values, where a plugin has several, for the score break-down."""


HIGHEST_SCORE: Final = 100
