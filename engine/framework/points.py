"""Extension points of the three frameworks, and the results that plugins return there.

The tables of `slots` define what each point means for documents.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.records import fast_init

if TYPE_CHECKING:
    # Imported late: commands that only check documents do not pay for it.
    import numpy as np
    from numpy.typing import NDArray

    from koordpolicy.engine.cel.check.checked_ast import Path
    from koordpolicy.engine.cluster.snapshot import Snapshot


class Framework(enum.Enum):
    """The three plugin systems, named as their configuration files name them."""

    SCHEDULER = "scheduler"
    QOS = "qos"
    DESCHEDULER = "descheduler"


class Point(enum.Enum):
    """An extension point; the value is its key in documents, metrics and verdicts."""

    __hash__ = object.__hash__  # a member is equal to itself only, and `Enum` hashes its name in Python code

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"
    STRATEGY = "strategy"
    EXTENSION = "extension"
    GREY_CONTROL = "greyControl"
    DESCHEDULE = "deschedule"
    BALANCE = "balance"
    EVICTION_FILTER = "evictionFilter"


class Code(enum.Enum):
    """The code of a refusal, as in kube-scheduler's framework."""

    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "PolicyError"


class FailurePolicy(enum.Enum):
    """The effect of an *error* of an expression; a false result is never an error."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class Enforcement(enum.Enum):
    """The enforcement of results: they count, or are reported on the object, or only in status and metrics."""

    ENFORCE = "Enforce"
    WARN = "Warn"
    AUDIT = "Audit"


class Proof(enum.Enum):
    """The effect of the proof of an eviction: an eviction that does not help is not made, is made with a warning, or is
    made.

    The report has the proof in all three cases, if the profiles of the pod's scheduler are known.
    """

    ENFORCE = "Enforce"
    WARN = "Warn"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of one row: the rule of the plugin, its message and, if it failed, its error."""

    rule: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    error: EvaluationError | None = None
    values: tuple[tuple[str, object], ...] = ()
    """Sub-expressions of the rule and their values, for explanations."""
    brief: str = field(default="", compare=False)
    """The message in fixed words, if `message` names this pod or node; else empty."""


Errors: TypeAlias = Mapping[str, Mapping[int, EvaluationError]]
"""Errors by rule (an empty string for the plugin as a whole) and row, whatever the failure policy."""


class IgnoredErrors:
    """The key of the cycle state for a list, to which a preFilter adds the (rule, error) pairs that are ignored."""


def _unexplained(_: int) -> Refusal:
    return Refusal("", "refused, and the plugin does not say why")


@fast_init
@dataclass(frozen=True, slots=True)
class Answer:
    """A filter's result: which rows passed, and why the others did not (computed on demand).

    `passed` has one bool for each requested row, or one for each row of the snapshot (see `spread`); `explain(row)` is
    called for refused rows only.
    """

    passed: NDArray[np.bool_]
    explain: Callable[[int], Refusal] = _unexplained
    errors: Errors = field(default_factory=dict)
    reasons: Callable[[NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Groups refused rows by reason in one pass, for counts; a row may have several reasons. Without it each row is
    explained, and its message is its reason."""
    codes: Callable[[NDArray[np.intp]], Mapping[Code, NDArray[np.intp]]] | None = None
    """Splits refused rows by code in one pass; without it each row is explained."""
    rules: Callable[[NDArray[np.intp]], frozenset[str]] | None = None
    """Returns the names of the rules that refused any of the rows; None if the plugin has no rules."""
    brief: Callable[[NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Like `reasons`, in fixed words: nothing is computed per row. None if that is true of `reasons` too."""

    def spread(self, rows: NDArray[np.intp], size: int) -> Answer:
        """Return this result for `rows` with one bool for each row of a snapshot of that size."""
        if len(self.passed) == size:
            return self
        import numpy as np  # noqa: PLC0415 - not needed to check documents

        passed = np.ones(size, np.bool_)
        passed[rows] = self.passed
        return replace(self, passed=passed)


@dataclass(frozen=True, slots=True)
class Scores:
    """A score plugin's result: int64, 0..100 after normalisation, for each requested row.

    There may be one for each row of the snapshot instead (see `spread`): then the values of other rows are undefined.
    In verdicts the integers may be shorter.
    """

    values: NDArray[np.signedinteger[Any]]
    errors: Errors = field(default_factory=dict)
    items: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Each item's normalised values, where a plugin has several, for the score break-down."""
    raw: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Each item's values before normalisation (under an empty string those of a plugin without items)."""

    def spread(self, rows: NDArray[np.intp], size: int) -> Scores:
        """Return these scores of `rows` with one for each row of a snapshot of that size, including the break-down."""
        if all(len(each) == size for each in (self.values, *self.items.values(), *self.raw.values())):
            return self

        import numpy as np  # noqa: PLC0415 - as above

        def spread(values: NDArray[Any]) -> NDArray[Any]:
            if len(values) == size:
                return values
            found = np.zeros(size, values.dtype)
            found[rows] = values
            return found

        items, raw = ({name: spread(each) for name, each in of.items()} for of in (self.items, self.raw))
        return replace(self, values=spread(self.values), items=items, raw=raw)


class CacheKey(NamedTuple):
    """The dependencies of a plugin's result about a node; results are cached under it.

    `key` is all that the plugin reads of the pod, `paths` all that it reads of the node, as the variables of filters
    (`("allocatable", "cpu")`). A changed value at one of these paths invalidates the node's result. A changed value of
    `epoch` invalidates all results: for dependencies other than the pod and the node, such as an expiry time.
    """

    key: Hashable
    paths: frozenset[Path]
    epoch: Callable[[Snapshot], Hashable] | None = None
    vectorized: Callable[[Snapshot, NDArray[np.intp]], NDArray[Any] | None] | None = None
    """Computes the plugin's result for rows (of no overlay) and every pod with this key, without reasons: one bool or
    int64 for each row, in a new array. Returns None if the plugin itself must be called."""
    stable_for_shape: bool = False
    """True if all pods of one shape (`PodInfo.shape`) always have this key: then it is computed once per shape."""
    reasons: Callable[[Snapshot, NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Returns `Answer.reasons` of refused rows, for filters with `vectorized` whose `Answer` has no `brief`."""
    stable_until: frozenset[Path] | None = None
    """All pods of one shape have this key until a node changes at one of these paths; for keys that depend on nodes."""
    refusal: Refusal | None = None
    """The one refusal of all rows that the filter refuses without an error, without `values`; None if they may
    differ."""
    score: int | None = None
    """The score of every node (0..100): the scorer is not called then. None if nodes may differ."""


HIGHEST_SCORE: Final = 100


def are_scores(values: NDArray[np.int64]) -> bool:
    """Return whether all values (at least one) are within 0..100."""
    return bool(values.view("u8").max() <= HIGHEST_SCORE)  # negative values are very large as unsigned ones
