"""Loops between descheduling and scheduling policies: pods are evicted from the nodes that scheduling prefers.

Each policy is an interval of shares of the allocatable: a descheduling policy evicts above a share, or from nodes below
one, and filters admit nodes below or above others. A loop needs nodes in both intervals, and a score that prefers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from koordpolicy.engine.compile import CompiledDescheduler, CompiledScheduler
from koordpolicy.engine.documents import DeschedulerType, NodeMatch, PodMatch
from koordpolicy.engine.documents.overlaps import are_apart, nodes_meet, pods_meet
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.source import Span

from .across import DRAIN, PLACE, Pairs, first_listed, score_directions, utilization_levels
from .subject import LintSubject, Violation, Whole, span_of
from .watermarks import Leaf, watermarks


@dataclass(frozen=True, slots=True)
class _Bound:
    """Nodes with more than a share of an amount, or (`below`) with less, that a policy clears or admits."""

    leaf: Leaf
    percent: Fraction
    below: bool
    who: str
    span: Span
    pods: PodMatch | None
    nodes: NodeMatch | None
    profiles: frozenset[str] | None = None

    def meets(self, pods: PodMatch | None, nodes: NodeMatch | None) -> bool:
        return pods_meet(self.pods, pods) and nodes_meet(self.nodes, nodes)


def eviction_loops(whole: Whole) -> Iterator[Violation]:
    """Find scores that prefer nodes which a descheduling policy clears and no filter refuses."""
    pairs, admitted = Pairs(), list(_admitted(whole))
    cleared = list(_cleared(whole))
    for subject in whole.of(CompiledScheduler):
        if subject.spec.enforcement is not Enforcement.ENFORCE:
            continue
        liked = score_directions(subject)
        others = pairs.of(subject.document.span, cleared if liked else ())
        yield from first_listed(_loops(subject, liked, others, admitted))
    yield from pairs.reported()


def _loops(
    subject: LintSubject, liked: Mapping[Leaf, tuple[int, Span]], cleared: Iterable[_Bound], admitted: Iterable[_Bound],
) -> Iterator[Violation]:
    match = subject.spec.match
    for clears in cleared:
        slope, span = liked.get(clears.leaf, (0, subject.document.span))
        prefers = slope < 0 if clears.below else slope > 0
        if not prefers or not clears.meets(match.pods, match.nodes):
            continue
        low, high, limits = _feasible(clears, subject, admitted)
        if low < high:
            yield _violation(subject, clears, span, limits)


def _feasible(
    clears: _Bound, subject: LintSubject, admitted: Iterable[_Bound],
) -> tuple[float | Fraction, float | Fraction, list[_Bound]]:
    """Return the interval of shares that is cleared and that no filter refuses, and the filters that limit it.

    A filter counts if it may apply to the same pods and nodes, so that the interval is rather too small than too large.
    """
    low: float | Fraction = Fraction(0) if clears.below else clears.percent
    high: float | Fraction = clears.percent if clears.below else math.inf
    limits: list[_Bound] = []
    for bound in admitted:
        if bound.leaf != clears.leaf or not bound.meets(subject.spec.match.pods, subject.spec.match.nodes):
            continue
        if not bound.meets(clears.pods, clears.nodes) or are_apart(bound.profiles, subject.spec.profiles):
            continue
        if bound.below and bound.percent < high:
            high, limits = bound.percent, [*(each for each in limits if not each.below), bound]
        elif not bound.below and bound.percent > low:
            low, limits = bound.percent, [*(each for each in limits if each.below), bound]
    return low, high, limits


def _violation(subject: LintSubject, clears: _Bound, span: Span, limits: list[_Bound]) -> Violation:
    amount, resource = clears.leaf
    more, other = ("less", "more") if clears.below else ("more", "less")
    have = f"{'use' if amount == 'usage' else 'have requests of'} {more} {resource}"
    where = f"from those {'below' if clears.below else 'above'} {_percent(clears)}"
    # Of a policy that evicts above a share, the filter below a higher one shows how far pods return.
    admits = "".join(
        f", {each.who} admits them {'up to' if each.below else 'from'} {_percent(each)}" for each in limits)
    return Violation(
        f"`{subject.document.name}` prefers nodes that {have}{admits}, and {clears.who} evicts {where}: "
        "evicted pods come back", span,
        f"prefer nodes with {other}, or let a filter refuse those {'below' if clears.below else 'above'} "
        f"{_percent(clears)}",
        (clears.span, *(each.span for each in limits)),
    )


def _percent(bound: _Bound) -> str:
    return f"{float(bound.percent):g} %"


def _cleared(whole: Whole) -> Iterator[_Bound]:
    """Yield the shares from which policies evict: sources of documents, and thresholds of configurations."""
    for level in utilization_levels(whole):
        if level.role == DRAIN and level.subject is None:
            yield _Bound(("usage", level.resource), level.percent, False, level.who, level.span, level.pods,
                         level.nodes)
    for subject in whole.of(CompiledDescheduler):
        compiled = subject.compiled
        assert isinstance(compiled, CompiledDescheduler)
        if compiled.spec.type is DeschedulerType.BALANCE:
            yield from _bounds(subject, "source")


def _admitted(whole: Whole) -> Iterator[_Bound]:
    """Yield the shares that filters admit."""
    for level in utilization_levels(whole):
        if level.role == PLACE and level.subject is None:
            yield _Bound(("usage", level.resource), level.percent, True, level.who, level.span, level.pods, level.nodes)
    for subject in whole.of(CompiledScheduler):
        yield from _bounds(subject, "filter")


def _bounds(subject: LintSubject, role: str) -> Iterator[_Bound]:
    if subject.spec.enforcement is not Enforcement.ENFORCE:
        return
    match = subject.spec.match
    for placed in subject.placed:
        if placed.role == role:
            for mark in watermarks(subject.as_written.of(placed.checked)):
                yield _Bound(
                    (mark.amount, mark.resource), mark.percent, mark.below, f"`{subject.document.name}`",
                    span_of(mark.checked, mark.node), match.pods, match.nodes, subject.spec.profiles,
                )
