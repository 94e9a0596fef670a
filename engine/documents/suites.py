"""The internal form of a PolicyTest: fixtures, cases and expectations."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.source import Source, Span

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

EVERY_OTHER: Final = "*"
"""The key of expectations by node for all nodes that no other key names."""


def _nothing() -> Mapping[str, Any]:
    return _NOTHING


class ExpectedResult(enum.Enum):
    """The expected result of a check. An error is not a failure, and a row that was not evaluated has not passed."""

    PASS = "pass"  # noqa: S105 - no password
    SKIP = "skip"
    FAIL = "fail"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected result of one subject: a node's name, a pod's, `*`, or empty if there is only one result.

    `rule` names the check that fails or errs; `message` and `reason` (of an error) are compared if they are given.
    """

    subject: str
    result: ExpectedResult
    span: Span = field(repr=False)
    rule: str = ""
    message: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreExpectation:
    """The expected score of a node, `low` to `high`, both included; or `result` is SKIP or ERROR (of item `rule`)."""

    subject: str
    span: Span = field(repr=False)
    low: int = 0
    high: int = 0
    result: ExpectedResult = ExpectedResult.PASS
    rule: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRefusal:
    """The plugin that must refuse a node in a whole cycle, and its rule (empty: any)."""

    subject: str
    plugin: str
    rule: str
    span: Span = field(repr=False)


@dataclass(frozen=True, slots=True)
class MeasuredPeriod:
    """A period with the same measurements; without usage nothing is measured."""

    for_ns: int
    usage: Mapping[str, Any] | None = None
    pods: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    containers: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    """By the pod's name and the container's: `web/main`."""
    best_effort: Mapping[str, Any] = field(default_factory=_nothing)
    """CPU of the best-effort tier: `usage`, `request`, `realLimit`."""


@dataclass(frozen=True, slots=True)
class ActionExpectation:
    """An expected QoS action; fields that are None are not compared."""

    item: str
    span: Span = field(repr=False)
    kind: str | None = None
    subject: str | None = None
    values: Mapping[str, Any] = field(default_factory=_nothing)
    writes: Mapping[str, str] | None = None
    """Files with their text; others may be written too."""
    recovers: bool = False


@dataclass(frozen=True, slots=True)
class ErrorExpectation:
    """An expected error of an item's expression, and (if given) its subject, reason and message."""

    item: str
    span: Span = field(repr=False)
    subject: str | None = None
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class RoundExpectation:
    """The expected results of the rounds from `at_ns` to `until_ns` (both included) after the first; None: any."""

    at_ns: int
    until_ns: int
    span: Span = field(repr=False)
    true: frozenset[str] | None = None
    """The thresholds whose expression is true."""
    holds: frozenset[str] | None = None
    actions: tuple[ActionExpectation, ...] | None = None
    errors: tuple[ErrorExpectation, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedVeto:
    """The expected veto of a candidate's eviction: a rule, a plugin, or `plugin/rule`."""

    subject: str
    by: str
    span: Span = field(repr=False)
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedEviction:
    """The expected choice of an EvictionFilter for a pod: mode and grace period, or a part of the error's message."""

    subject: str
    mode: str | None
    grace_period_s: int | None
    span: Span = field(repr=False)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """The expected role of a node: source, target, waiting or unmeasured; or none of them."""

    subject: str
    role: str
    span: Span = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProblemExpectation:
    """An expected problem of a document; `message` is a part of its text. Fields that are None are not compared."""

    span: Span = field(repr=False)
    message: str | None = None
    code: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Invalid:
    """Documents that must be rejected, given as text or as a file, and all the problems that must be reported."""

    text: Source | None
    file: str | None
    problems: tuple[ProblemExpectation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: its differences from the suite, and its expectations. None means the suite's, or no expectation."""

    __test__ = False
    name: str
    span: Span = field(repr=False)
    description: str = ""
    plugin: str | None = None
    beside: tuple[str, ...] = ()
    """Other plugins that take part in a descheduling cycle."""
    profile: str | None = None
    now_ns: int | None = None
    seed: int | None = None
    params: Mapping[str, Any] = field(default_factory=_nothing)
    pod: str | None = None
    pod_given: Mapping[str, Any] | None = None
    """The pod as a fixture of this case alone."""
    nodes: tuple[str, ...] | None = None
    """The existing nodes; None for all of the fixtures."""
    overlay: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    """Merge patches for fixtures: under `nodes` and `pods`, by name."""
    pre_enqueue: Expectation | None = None
    pre_filter: Expectation | None = None
    filter: tuple[Expectation, ...] = ()
    score: tuple[ScoreExpectation, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    """Nodes, best first; those in one group share a score."""
    place: tuple[str, ...] | None = None
    """The nodes of which one must be chosen; empty if none may be chosen."""
    refused: tuple[ExpectedRefusal, ...] = ()
    metrics: tuple[MeasuredPeriod, ...] = ()
    cgroups: Mapping[str, str] = field(default_factory=_nothing)
    rounds: tuple[RoundExpectation, ...] = ()
    eviction_filter: tuple[Expectation, ...] = ()
    eviction: tuple[ExpectedEviction, ...] = ()
    cycles: int = 1
    every_ns: int = 60_000_000_000
    evicts: tuple[str, ...] | None = None
    evicted_count: int | None = None
    keeps: tuple[ExpectedVeto, ...] = ()
    roles: tuple[Role, ...] = ()
    errors: tuple[ErrorExpectation, ...] = ()
    expect_invalid: Invalid | None = None


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that is equivalent to the original, and the reason."""

    at: str
    change: str
    because: str
    span: Span = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fixtures:
    """The fixtures of a suite's cases; files are relative to the suite."""

    files: tuple[str, ...] = ()
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    pods: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    objects: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSpec:
    """The spec of a PolicyTest. `policies` are files and directories relative to it; None means the default ones."""

    __test__ = False
    policies: tuple[str, ...] | None = None
    plugin: str | None = None
    profile: str | None = None
    now_ns: int = 0
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=_nothing)
    fixtures: Fixtures = Fixtures()
    metrics: tuple[MeasuredPeriod, ...] = ()
    cgroups: Mapping[str, str] = field(default_factory=_nothing)
    host: Mapping[str, Any] = field(default_factory=_nothing)
    """The machine: the fields of `Host` in camel case."""
    cases: tuple[Case, ...] = ()
    survivors: tuple[Survivor, ...] = ()
