"""Runtime of SchedulerPlugin documents: `DocumentScheduler`, which filters and scores all nodes at once.

It implements the protocols `PreFilter`, `Filter` and `Score`. Everything that does not change from pod to pod
(programs, match, params) is fixed when it is made; values that one decision needs more than once are in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.analysis import is_pure, split_reads
from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.check.cost import estimate
from koordpolicy.engine.cel.check.environment import Scope
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.scalar.values import EvaluationError, Timestamp
from koordpolicy.engine.cel.vector.bound_plan import BoundPlan, Known
from koordpolicy.engine.cel.vector.encoding import key_of, value_at
from koordpolicy.engine.cel.vector.frame import Frame, Rows
from koordpolicy.engine.cel.vector.plan import evaluate, plan_of
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import is_of_shape, pod_facts, pod_values
from koordpolicy.engine.cluster.snapshot import NodeFrame, Snapshot
from koordpolicy.engine.documents import Normalize, Over
from koordpolicy.engine.framework.points import (
    HIGHEST_SCORE,
    Answer,
    CacheKey,
    Code,
    FailurePolicy,
    IgnoredErrors,
    Point,
    Refusal,
    Scores,
    are_scores,
)

from .aggregation import Facts, summarize
from .programs import AggregateProgram, CompiledScheduler, Rule, ScoreProgram
from .selection import NODE_PATHS, accepts_pod, exempt, node_mask

State: TypeAlias = MutableMapping[object, Any]
"""The state of one decision (`CycleState`)."""

_Booleans = NDArray[np.bool_]
_Integers = NDArray[np.int64]

_EXACT_DOUBLES: Final = 2.0**63
_SAFE: Final = 2**63 // (HIGHEST_SCORE + 1)
_MOST_VALUES: Final = 12
CONDITIONS: Final = "matchConditions"
"""The rule name of errors of conditions: if one fails, it is not known whether the document matches the row."""
_MOST_CACHE_KEYS: Final = 256
_NOT_COMPUTED: Final = CacheKey("not computed yet", frozenset())
_FEW: Final = 100
"""Messages of up to this many rows are computed row by row."""


_EXEMPT: Final = CacheKey("exempt", frozenset(), stable_for_shape=True)
"""The cache key of all pods that a document does not match: every node passes."""
_EXEMPT_NOW: Final = _EXEMPT._replace(stable_for_shape=False)
_NO_FACTS: Final = Facts()
_MEASURED: Final = frozenset(("usage", "estimated"))
_OF_THE_POD: Final = frozenset(("pod", "podInfo", "requests", "limits"))


class _Shared:
    """The key of the cycle state for the pod's variables, shared by all documents."""


@dataclass(slots=True)
class EvaluationContext:
    """The inputs of one document's expressions in one decision, and which nodes the document matches.

    `error` is that of a condition that does not read the node; `condition_errors` are those of the others, by row.
    """

    frame: NodeFrame
    values: Mapping[str, object]
    matches: bool
    error: EvaluationError | None
    nodes: _Booleans | None
    """The nodes that the document matches; None for all."""
    condition_errors: dict[int, EvaluationError]
    pod: PodInfo
    snapshot: Snapshot

    def errors(self, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
        """Return the errors of the conditions at the rows."""
        if self.error is not None:
            return {CONDITIONS: dict.fromkeys(rows.tolist(), self.error)}
        if not self.condition_errors:
            return {}
        found = {row: self.condition_errors[row] for row in rows.tolist() if row in self.condition_errors}
        return {CONDITIONS: found} if found else {}


@dataclass(slots=True)
class Evaluations:
    """Counters of one expression since its plugin was made: evaluated and failed rows.

    Written by the scheduling thread; any thread may read.
    """

    point: str
    """Its key in the document."""
    rule: str
    program: Program
    evaluated: int = 0
    failed: int = 0
    _cost: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `cost` is the upper bound of one evaluation, in Kubernetes' units."""
        if self._cost < 0:
            self._cost = estimate(self.program.checked).high
        return {"point": self.point, "rule": self.rule, "evaluations": self.evaluated, "errors": self.failed,
                "cost": self._cost}


RowEvaluator: TypeAlias = Callable[[Snapshot, Rows], "NDArray[Any] | None"]
"""Computes the results of rows: one bool or int64 for each, or None; see `CacheKey.vectorized`."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of one point's results: what they are computed from."""

    of_pod: tuple[Path, ...]
    """The paths of the pod that the programs read."""
    programs: tuple[Program, ...]
    always: frozenset[Path]
    """The paths of the node that are read whatever the pod is."""
    evaluator_of: Callable[[NodeFrame], RowEvaluator | None]
    """Returns the row evaluator for all pods whose values at `of_pod` are those of a frame; None if there is none."""
    stable_for_shape: bool
    """True if a pod's shape alone decides its cache key."""
    refusal: Refusal | None = None
    """The refusal of each refused row, without values, if the document has one rule in fixed words."""
    cache_keys: dict[Hashable, CacheKey | None] = field(default_factory=dict)
    """The computed cache keys, by the pod's values at `of_pod`."""

    def cache_key(self, key: Hashable, frame: NodeFrame) -> CacheKey | None:
        """Return the cache key of pods with these values at `of_pod`; None if the results depend on the time too.

        The pod's values may decide an expression before it reads the age of a metric: then it does not depend on it.
        """
        paths = self.always.union(*(plan_of(program.checked).reads(frame) for program in self.programs))
        if any(path[0] == "metricAge" or path == ("nodeInfo",) for path in paths):
            return None
        return CacheKey(key, paths, vectorized=self.evaluator_of(frame), stable_for_shape=self.stable_for_shape,
                        refusal=self.refusal)


def _no_evaluator(_: NodeFrame) -> None:
    return None


_NOT_COLLECTED: Final = Dependencies((), (), frozenset(), _no_evaluator, stable_for_shape=False)


class DocumentScheduler:
    """A scheduler plugin made of a SchedulerPlugin document and its params. Immutable, and bound to no cluster."""

    def __init__(self, compiled: CompiledScheduler, params: Mapping[str, Any]) -> None:
        self.name = compiled.document.name
        self.params = params
        self._compiled = compiled
        self._spec = compiled.spec
        self._ignore = compiled.spec.failure_policy is FailurePolicy.IGNORE
        of_pods = compiled.spec.match.pods
        self._match_is_stable = of_pods is None or of_pods.namespace_selector is None
        self._filter_dependencies: Dependencies | None = _NOT_COLLECTED
        self._score_dependencies: Dependencies | None = _NOT_COLLECTED
        named = [
            *((CONDITIONS, each.name, each.program) for each in compiled.conditions),
            *(("preEnqueue", each.name, each.program) for each in compiled.pre_enqueue),
            *(("preFilter", each.name, each.program) for each in compiled.pre_filter),
            *(("filter", each.name, each.program) for each in compiled.filter),
            *(("score", each.item.name, each.program) for each in compiled.score),
        ]
        self.evaluations = {id(program): Evaluations(point, rule, program) for point, rule, program in named}
        """By the identity of the program."""

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must wait, or None."""
        return self._check_pod(self._compiled.pre_enqueue, {}, pod, snapshot)

    def pre_filter(self, state: State, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod cannot be placed at all, or None; the preEnqueue rules are checked again."""
        rules = (*self._compiled.pre_enqueue, *self._compiled.pre_filter)
        return self._check_pod(rules, state, pod, snapshot)

    def filter(self, state: State, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Return which nodes the pod may run on: those that pass every rule, and those that the document ignores."""
        if exempt(self._spec.match.pods, pod):
            return Answer(np.ones(len(rows), np.bool_))
        context = self._context(state, pod, snapshot)
        if context.error is not None and not self._ignore:
            refusal = Refusal(CONDITIONS, context.error.message, Code.ERROR, context.error)
            return Answer(np.zeros(len(rows), np.bool_), lambda _: refusal, context.errors(rows))
        if not context.matches or context.error is not None:
            return Answer(np.ones(len(rows), np.bool_), errors=context.errors(rows))
        return _FilterEvaluation(self, context, snapshot.size).run(rows)

    def score(self, state: State, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return the weighted mean of the items, 0 for nodes that the document does not match."""
        context = self._context(state, pod, snapshot)
        if not context.matches or context.error is not None:
            return Scores(np.zeros(len(rows), np.int64), context.errors(rows))
        matching = rows if context.nodes is None else rows[context.nodes[rows]]
        weights = 0
        items: dict[str, _Integers] = {}
        raws: dict[str, NDArray[Any]] = {}
        errors = context.errors(matching)
        for each in self._compiled.score:
            values, faults, raws[each.item.name] = self._evaluate_item(each, context, matching)
            if faults:
                errors[each.item.name] = faults
            if faults and self._ignore:
                continue
            items[each.item.name] = values
            weights += each.item.weight
        if len(items) == 1:
            total = next(iter(items.values()))
        else:
            total = np.zeros(len(matching), np.int64)
            for each in self._compiled.score:
                if each.item.name in items:
                    total += items[each.item.name] * each.item.weight
            if weights > 1:
                total //= weights
        scores = Scores(total, errors, items, raws)
        return scores if matching is rows else scores.spread(np.searchsorted(rows, matching), len(rows))

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return what the result about a node depends on: all that its expressions read of the pod and of the node.

        None if it depends on more than that: other nodes (aggregates, normalised scores, items that are omitted for
        all nodes if they fail on one), the time, an impure function.
        """
        found = self._filter_dependencies if point is Point.FILTER else self._score_dependencies
        if found is _NOT_COLLECTED:
            found = self._dependencies_at(point)
            if point is Point.FILTER:
                self._filter_dependencies = found
            else:
                self._score_dependencies = found
        if found is None:
            return None
        match = self._spec.match.pods
        if (point is Point.FILTER and exempt(match, pod)) or not accepts_pod(match, pod, snapshot):
            return _EXEMPT if self._match_is_stable else _EXEMPT_NOW
        key = tuple([_key_at(pod, path) for path in found.of_pod])
        cache_key = found.cache_keys.get(key, _NOT_COMPUTED)
        if cache_key is _NOT_COMPUTED:
            frame = snapshot.frame({**pod_values(pod), "params": self.params})
            if len(found.cache_keys) >= _MOST_CACHE_KEYS:
                found.cache_keys.clear()
            cache_key = found.cache_keys[key] = found.cache_key(key, frame)
        return cache_key

    def _dependencies_at(self, point: Point) -> Dependencies | None:
        """Return the dependencies of the results at a point; None if those are more than the pod and the node."""
        compiled = self._compiled
        rules: list[Rule | ScoreProgram] = [*compiled.conditions]
        if point is Point.FILTER:
            rules += compiled.filter
        elif self._ignore or any(each.item.normalize is not Normalize.IDENTITY for each in compiled.score):
            return None
        else:
            rules += compiled.score
        programs = tuple(each.program for each in rules)
        found = (split_reads(program.checked, program.checked.reads)[1] for program in programs)
        reads = frozenset[Path]().union(*found)
        of_pod = {path for path in reads if path[0] != "params"}
        if any(path[0] not in _OF_THE_POD for path in of_pod) or not all(is_pure(each.checked) for each in programs):
            return None
        always = frozenset[Path]() if self._spec.match.nodes is None else NODE_PATHS
        evaluator_of: Callable[[NodeFrame], RowEvaluator | None] = _no_evaluator
        if not compiled.conditions and self._spec.match.nodes is None:
            evaluator_of = self._vectorized_filter if point is Point.FILTER else self._vectorized_score
        stable = self._match_is_stable and all(is_of_shape(path) for path in of_pod)
        refusal: Refusal | None = None
        if point is Point.FILTER and len(compiled.filter) == 1 and compiled.filter[0].message_program is None:
            rule = compiled.filter[0]
            refusal = Refusal(rule.name, message_of(rule), rule.code)
        return Dependencies(tuple(sorted(of_pod)), programs, always, evaluator_of, stable, refusal)

    def _vectorized_filter(self, frame: NodeFrame) -> RowEvaluator | None:
        """Return the evaluator of the filter for pods as in the frame; None if numeric columns are not enough."""
        counters, columns = self._bind_columns(self._compiled.filter, frame)
        if columns is None:
            return None

        def passed(snapshot: Snapshot, rows: Rows) -> _Booleans | None:
            found = columns(snapshot, rows)
            if found is None:
                return None
            all_good = found[0]
            counters[0].evaluated += len(rows)
            for good, count in zip(found[1:], counters[1:], strict=True):
                count.evaluated += int(np.count_nonzero(all_good))
                all_good &= good
            return all_good

        return passed

    def _vectorized_score(self, frame: NodeFrame) -> RowEvaluator | None:
        """Return the evaluator of the score for pods as in the frame; None if numeric columns are not enough."""
        counters, columns = self._bind_columns(self._compiled.score, frame)
        if columns is None:
            return None
        weights = [each.item.weight for each in self._compiled.score]

        def scored(snapshot: Snapshot, rows: Rows) -> _Integers | None:
            found = columns(snapshot, rows)
            if found is None or not all(_in_range(values) for values in found):
                return None
            for count in counters:
                count.evaluated += len(rows)
            scores: list[_Integers] = [values.astype(np.int64, copy=False) for values in found]
            if len(scores) == 1:
                return scores[0]
            total = scores[0] * weights[0]
            for each, weight in zip(scores[1:], weights[1:], strict=True):
                total += each * weight
            return total // sum(weights)

        return scored

    def _bind_columns(
        self, rules: Sequence[Rule | ScoreProgram], frame: NodeFrame,
    ) -> tuple[list[Evaluations], Callable[[Snapshot, Rows], list[NDArray[Any]] | None] | None]:
        """Return the rules' counters, and a function that computes their values for pods as in the frame.

        The function reads numeric columns only; it is None if a rule requires more than that, or there are no rules.
        """
        plans: list[BoundPlan] = []
        for rule in rules:
            found = plan_of(rule.program.checked).bind(frame)
            if found is None:
                return [], None
            plans.append(found)

        def columns(snapshot: Snapshot, rows: Rows) -> list[NDArray[Any]] | None:
            frame, values = snapshot.frame({}), []
            known: Known = {}
            for each in plans:
                computed = each.values(frame, rows, known)
                if computed is None:
                    return None
                values.append(computed)
            return values

        return [self.evaluations[id(rule.program)] for rule in rules], columns if plans else None

    def depends_on(self, rules: frozenset[str]) -> frozenset[Path]:
        """Return what these rules read of the pod, the node and the time, and what `match` and conditions read."""
        compiled = self._compiled
        candidates = [*compiled.conditions, *compiled.pre_enqueue, *compiled.pre_filter, *compiled.filter]
        programs = [rule.program for rule in candidates if rule.name in rules or rule in compiled.conditions]
        found = frozenset[Path]().union(*(program.checked.reads for program in programs))
        if any(path[0] == "aggregates" for path in found):
            of_all = [each for each in compiled.aggregates if ("aggregates", each.name) in found
                      or ("aggregates",) in found]
            inner = [each for one in of_all for each in (one.program, one.group_by) if each is not None]
            found = found.union(*(program.checked.reads for program in inner))
            programs += inner
        if self._spec.match.nodes is not None:
            found |= {("node", "metadata")}
        if self._spec.match.pods is not None and self._spec.match.pods.namespace_selector is not None:
            found |= {("objects", "Namespace")}
        if any(path[0] in _MEASURED for path in found) and (
                self._ignore or any(path[0] == "aggregates" for path in found)):
            found |= {("metricAge",)}  # an expired metric is omitted then
        if not all(is_pure(program.checked) for program in programs):
            found |= {("now",)}
        return found

    def concerns(self, state: State, pod: PodInfo, snapshot: Snapshot) -> _Booleans:
        """Return the nodes that the document matches for the pod: `match` and `matchConditions` hold without errors."""
        context = self._context(state, pod, snapshot)
        if not context.matches or context.error is not None:
            return np.zeros(snapshot.size, np.bool_)
        nodes = np.ones(snapshot.size, np.bool_) if context.nodes is None else context.nodes.copy()
        nodes[list(context.condition_errors)] = False
        return nodes

    def failed_conditions(
        self, state: State, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Mapping[int, EvaluationError]:
        """Return the errors of `matchConditions` for the pod, by row."""
        return self._context(state, pod, snapshot).errors(rows).get(CONDITIONS, {})

    @property
    def compiled(self) -> CompiledScheduler:
        """The programs."""
        return self._compiled

    def inputs(self, state: State, pod: PodInfo, snapshot: Snapshot, program: Program, row: int | None) -> Inputs:
        """Return the inputs of a program of this document at a row (None: of the pod alone), for explanations."""
        return Inputs(self._context(state, pod, snapshot).frame, program, row)

    @property
    def ignores_errors(self) -> bool:
        """True if a failed expression is omitted (`failurePolicy: Ignore`)."""
        return self._ignore

    def _check_pod(
        self, rules: tuple[Rule, ...], state: State, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | None:
        if not rules or exempt(self._spec.match.pods, pod):
            return None
        context = self._context(state, pod, snapshot)
        ignored: list[tuple[str, EvaluationError]] = state.setdefault(IgnoredErrors, [])
        if context.error is not None:
            if not self._ignore:
                return Refusal(CONDITIONS, context.error.message, Code.ERROR, context.error)
            ignored.append((CONDITIONS, context.error))
            return None
        if not context.matches:
            return None
        for rule in rules:
            counters = self.evaluations[id(rule.program)]
            counters.evaluated += 1
            try:
                if rule.program.evaluate(bindings_of(rule.program, context.frame, None)) is True:
                    continue
            except EvaluationError as error:
                counters.failed += 1
                if self._ignore:
                    ignored.append((rule.name, error))
                    continue
                return Refusal(rule.name, error.message, Code.ERROR, error)
            return refusal_of(rule, context.frame, None)
        return None

    def _context(self, state: State, pod: PodInfo, snapshot: Snapshot) -> EvaluationContext:
        known = state.get(self)
        # A what-if runs on a clone of the state, and a transformer may change the pod: then it is computed again.
        if isinstance(known, EvaluationContext) and known.snapshot is snapshot and known.pod is pod:
            return known
        of, shared = state.get(_Shared, (None, {}))
        if of is not pod:
            shared = {**pod_values(pod), "now": Timestamp(snapshot.now)}
            state[_Shared] = pod, shared
        facts = Facts() if self._compiled.aggregates else _NO_FACTS
        values = {**shared, "params": self.params, "aggregates": facts}
        frame = snapshot.frame(values)
        matches = accepts_pod(self._spec.match.pods, pod, snapshot)
        context = EvaluationContext(frame, values, matches, None, None, {}, pod, snapshot)
        if context.matches:
            context.nodes = node_mask(self._spec.match.nodes, self._compiled.document.digest, snapshot)
            if self._compiled.aggregates:
                found = summarize(self._compiled.aggregates, lambda each: _frame_of(each, snapshot, context))
                facts.update(found)
                facts.errors.update(found.errors)
            self._apply_conditions(context)
        state[self] = context
        return context

    def _apply_conditions(self, context: EvaluationContext) -> None:
        """Narrow the matching nodes: a false condition wins over a failed one, as in Kubernetes."""
        for rule in self._compiled.conditions:
            counters = self.evaluations[id(rule.program)]
            if rule.program.checked.scope is not Scope.ROW:
                counters.evaluated += 1
                try:
                    if rule.program.evaluate(bindings_of(rule.program, context.frame, None)) is not True:
                        context.matches, context.error = False, None
                        return
                except EvaluationError as error:
                    counters.failed += 1
                    context.error = context.error or error
                continue
            column = evaluate(rule.program, context.frame)
            counters.evaluated += context.frame.size
            counters.failed += len(column.errors)
            holds = column.values.astype(np.bool_)
            if column.errors:
                holds = holds.copy()
                holds[list(column.errors)] = True
                context.condition_errors.update(column.errors)
            context.nodes = holds if context.nodes is None else context.nodes & holds
        if context.nodes is not None and context.condition_errors:
            matches = context.nodes
            context.condition_errors = {row: each for row, each in context.condition_errors.items() if matches[row]}

    def _evaluate_item(
        self, each: ScoreProgram, context: EvaluationContext, rows: Rows,
    ) -> tuple[_Integers, dict[int, EvaluationError], NDArray[Any]]:
        """Return an item's normalised values (0 where it failed), the errors by row, and the raw values."""
        if not len(rows):
            return np.zeros(0, np.int64), {}, np.zeros(0, np.int64)
        counters = self.evaluations[id(each.program)]
        counters.evaluated += len(rows)
        column = evaluate(each.program, context.frame, None if len(rows) == context.frame.size else rows)
        errors = dict(column.errors)
        counters.failed += len(errors)
        requested, chosen = rows, column.values
        skipped = errors.keys() | context.condition_errors.keys()
        if skipped:
            there = ~np.isin(rows, list(skipped))
            rows, chosen = rows[there], chosen[there]
        chosen, rows = _integers(chosen, rows, errors)
        if len(rows):
            chosen = normalize(chosen, each.item.normalize)
            if not are_scores(chosen):
                outside = (chosen < 0) | (chosen > HIGHEST_SCORE)
                for row, score in zip(rows[outside].tolist(), chosen[outside].tolist(), strict=True):
                    errors[row] = EvaluationError(
                        f"`{each.item.name}` is {score}, outside 0..{HIGHEST_SCORE}", reason="ScoreRange",
                    )
                rows, chosen = rows[~outside], chosen[~outside]
        if len(rows) == len(requested):
            return chosen, errors, column.values
        values: _Integers = np.zeros(len(requested), np.int64)
        values[np.searchsorted(requested, rows)] = chosen
        return values, errors, column.values


@dataclass(slots=True)
class _FilterEvaluation:
    """One evaluation of a filter: remembers which rule refused which row, so that reasons are computed on demand."""

    plugin: DocumentScheduler
    context: EvaluationContext
    size: int

    def run(self, rows: Rows) -> Answer:
        context, ignores = self.context, self.plugin.ignores_errors
        passed: _Booleans = np.ones(len(rows), np.bool_)
        remaining = rows if context.nodes is None else rows[context.nodes[rows]]
        refused_by: NDArray[np.int16] | None = None
        errors = context.errors(remaining)
        # An error that is ignored refuses nothing: a later rule may, for a reason of its own.
        blamed: dict[int, EvaluationError] = {}
        for unknown in errors.values():
            failed = np.isin(remaining, list(unknown))
            passed[np.searchsorted(rows, remaining[failed])] = ignores
            remaining = remaining[~failed]
            if not ignores:
                blamed.update(unknown)
        rules, counters = self.plugin.compiled.filter, self.plugin.evaluations
        for number, rule in enumerate(rules):
            if not len(remaining):
                break
            counters[id(rule.program)].evaluated += len(remaining)
            column = evaluate(rule.program, context.frame, None if len(remaining) == self.size else remaining)
            good: _Booleans = column.values.astype(np.bool_, copy=False)
            if column.errors:
                counters[id(rule.program)].failed += len(column.errors)
                good = good.copy()
                good[np.isin(remaining, list(column.errors))] = ignores
                errors[rule.name] = column.errors
                if not ignores:
                    blamed.update(column.errors)
            if np.logical_and.reduce(good):
                continue
            bad = remaining[~good]
            passed[np.searchsorted(rows, bad)] = False
            if refused_by is None:
                refused_by = np.full(self.size, -1, np.int16)
            refused_by[bad] = number
            remaining = remaining[good]
        numbers, frame = refused_by, context.frame

        def explain(row: int) -> Refusal:
            number = -1 if numbers is None else int(numbers[row])
            if number < 0:
                error = blamed[row]
                return Refusal(CONDITIONS, error.message, Code.ERROR, error)
            return refusal_of(rules[number], frame, row, blamed.get(row))

        def ruled(refused: Rows) -> tuple[Rows, list[tuple[Rule, Rows]]]:
            """Return the failed rows, and the refused rows by rule."""
            failed = np.isin(refused, list(blamed)) if blamed else np.zeros(len(refused), np.bool_)
            places = np.full(len(refused), -1, np.int16) if numbers is None else numbers[refused]
            split = ((rule, refused[~failed & (places == number)]) for number, rule in enumerate(rules))
            return refused[failed], [(rule, mine) for rule, mine in split if len(mine)]

        def grouped(refused: Rows, words: Callable[[Rule, NodeFrame, Rows], Mapping[str, Rows]]) -> dict[str, Rows]:
            groups: dict[str, list[Rows]] = {}
            failed, split = ruled(refused)
            for row in failed.tolist():
                groups.setdefault(blamed[row].message, []).append(np.array([row], np.intp))
            for rule, mine in split:
                for text, found in words(rule, frame, mine).items():
                    groups.setdefault(text, []).append(found)
            return {text: found[0] if len(found) == 1 else np.sort(np.concatenate(found))
                    for text, found in groups.items()}

        def codes(refused: Rows) -> dict[Code, Rows]:
            failed, split = ruled(refused)
            groups: dict[Code, list[Rows]] = {Code.ERROR: [failed]} if len(failed) else {}
            for rule, mine in split:
                groups.setdefault(rule.code, []).append(mine)
            return {code: np.sort(np.concatenate(found)) for code, found in groups.items()}

        def names(refused: Rows) -> frozenset[str]:
            failed, split = ruled(refused)
            found = {rule.name for rule, _ in split}
            return frozenset(found | {CONDITIONS, *errors} if len(failed) else found)

        return Answer(passed, explain, errors, lambda refused: grouped(refused, messages_of), codes, names,
                      lambda refused: grouped(refused, _fixed_message))


def _in_range(values: NDArray[Any]) -> bool:
    """Return whether all values are within 0..100 once doubles are truncated."""
    if values.dtype == np.int64:
        return are_scores(values)
    return bool((values >= 0).all() and (values < HIGHEST_SCORE + 1).all())


@lru_cache(maxsize=256)
def _key_at(pod: PodInfo, path: Path) -> Hashable:
    """Return the key of a value of the pod; cached, because many documents read the same values in turn."""
    return key_of(value_at(pod_values(pod)[path[0]], path[1:]))


class Inputs(Mapping[str, object]):
    """The variables of a program at a row of a frame; reading one that has no value raises `EvaluationError`."""

    __slots__ = ("_frame", "_program", "_row")

    def __init__(self, frame: NodeFrame, program: Program, row: int | None) -> None:
        self._frame = frame
        self._program = program
        self._row = row

    def __getitem__(self, name: str) -> object:
        if self._program.checked.environment.variables[name].scope is not Scope.ROW:
            return self._frame.value(name)
        if self._row is None:
            raise KeyError(name)
        return self._frame.row_value(name, self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._program.variables)

    def __len__(self) -> int:
        return len(self._program.variables)


def bindings_of(program: Program, frame: NodeFrame, row: int | None) -> dict[str, object]:
    """Return the variables that a program reads, at a row of a frame.

    Raises `EvaluationError` where one of them has no value there.
    """
    variables = program.checked.environment.variables
    found: dict[str, object] = {}
    for name in program.variables:
        if variables[name].scope is Scope.ROW:
            assert row is not None
            found[name] = frame.row_value(name, row)
        else:
            found[name] = frame.value(name)
    return found


def messages_of(rule: Rule, frame: NodeFrame, rows: Rows) -> dict[str, Rows]:
    """Return the messages of `refusal_of` for rows (at least one) that a rule refused without an error, in one pass."""
    if rule.message_program is None:
        return _fixed_message(rule, frame, rows)
    groups: dict[str, list[int]] = {}
    column = None if len(rows) <= _FEW else evaluate(rule.message_program, frame, rows)
    for place, row in enumerate(rows.tolist()):
        if column is None:
            text = _written(rule.message_program, frame, row)
        else:
            text = "" if row in column.errors else str(column.values[place]).strip()
        groups.setdefault(text or message_of(rule), []).append(row)
    return {text: np.array(found, np.intp) for text, found in groups.items()}


def _written(program: Program, frame: NodeFrame, row: int | None) -> str:
    try:
        return str(program.evaluate(bindings_of(program, frame, row))).strip()
    except EvaluationError:
        return ""  # a failed message must not hide the refusal


def _fixed_message(rule: Rule, _: NodeFrame, rows: Rows) -> dict[str, Rows]:
    return {message_of(rule): rows}


def message_of(rule: Rule) -> str:
    """Return a rule's message where none is computed."""
    return rule.message or f"`{one_line(rule.expression.text)}` is false"


def refusal_of(rule: Rule, frame: NodeFrame, row: int | None, error: EvaluationError | None = None) -> Refusal:
    """Return the refusal of a rule, with its message and the values of its sub-expressions."""
    if error is not None:
        return Refusal(rule.name, error.message, Code.ERROR, error, values_of(rule.program, frame, row))
    message = "" if rule.message_program is None else _written(rule.message_program, frame, row)
    return Refusal(rule.name, message or message_of(rule), rule.code, values=values_of(rule.program, frame, row),
                   brief=message_of(rule) if message else "")


def one_line(text: str) -> str:
    """Return a text on one line, with runs of blanks collapsed, cut to 200 characters."""
    short = " ".join(text.split())
    return short if len(short) <= 200 else f"{short[:200]}..."


def values_of(program: Program, frame: NodeFrame, row: int | None) -> tuple[tuple[str, object], ...]:
    """Return the sub-expressions of a program that have a scalar value, with those values, in source order."""
    try:
        bindings = bindings_of(program, frame, row)
    except EvaluationError:
        return ()
    found: dict[str, object] = {}
    for node, text, value in explain(program, bindings):
        if node is program.checked.root or isinstance(value, Mapping | list | tuple):
            continue
        shown = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        found.setdefault(one_line(text), shown)
        if len(found) == _MOST_VALUES:
            break
    return tuple(found.items())


def _integers(
    chosen: NDArray[Any], rows: Rows, errors: dict[int, EvaluationError],
) -> tuple[_Integers, Rows]:
    """Return the rows and their values as integers, doubles truncated; other values become errors and are omitted."""
    if chosen.dtype == np.int64:
        return chosen, rows
    numbers = chosen.astype(np.float64)
    good = np.isfinite(numbers) & (np.abs(numbers) < _EXACT_DOUBLES)
    if not good.all():
        for row, number in zip(rows[~good].tolist(), numbers[~good].tolist(), strict=True):
            errors[row] = EvaluationError(f"the score is {number}, not a number that counts", reason="ScoreRange")
        rows, chosen, numbers = rows[good], chosen[good], numbers[good]
    if chosen.dtype == np.object_:  # ints and doubles mixed: an int must not lose digits
        return np.array([int(each) for each in chosen.tolist()], np.int64), rows
    return np.trunc(numbers).astype(np.int64), rows


def normalize(values: _Integers, how: Normalize) -> _Integers:
    """Return values (at least one) normalised to 0..100; see `documents.Normalize` for the formulas."""
    if how is Normalize.IDENTITY:
        return values
    low, high = int(values.min()), int(values.max())
    reverse = how in (Normalize.MAX_REVERSE, Normalize.MIN_MAX_REVERSE)
    by_max = how in (Normalize.MAX, Normalize.MAX_REVERSE)
    offset, span = (0, high) if by_max else (low, high - low)
    if by_max and high <= 0 and not (reverse and low == 0):
        return values  # a largest value of 0 changes nothing, and negative ones are out of range
    if span == 0:
        return np.full(len(values), HIGHEST_SCORE if reverse else 0, np.int64)
    if max(abs(low), abs(high), span) >= _SAFE:
        scaled = np.array([HIGHEST_SCORE * (each - offset) // span for each in values.tolist()], np.int64)
    else:
        scaled = HIGHEST_SCORE * (values - offset) // span
    return HIGHEST_SCORE - scaled if reverse else scaled


def _frame_of(aggregate: AggregateProgram, snapshot: Snapshot, context: EvaluationContext) -> tuple[Frame, Rows | None]:
    """Return the rows that an aggregate runs over: the nodes that the document matches, or the pods on them."""
    nodes = None if context.nodes is None else np.flatnonzero(context.nodes)
    if aggregate.over is Over.NODES:
        return context.frame, nodes
    programs = [each for each in (aggregate.program, aggregate.group_by) if each is not None]
    names = {name for program in programs for name in program.variables}
    declared = programs[0].checked.environment.variables if programs else {}
    of_pod = {name: read for name, read in _OF_POD.items() if name in names}
    of_node = [name for name in names if declared[name].scope is Scope.ROW and name not in of_pod]
    rows: list[dict[str, object]] = []
    for row in range(snapshot.size) if nodes is None else nodes.tolist():
        pods = snapshot.pods(row)
        if not pods:
            continue
        shared = {name: _value_or_error(context.frame, name, row) for name in of_node}
        rows.extend({**shared, **{name: read(pod) for name, read in of_pod.items()}} for pod in pods)
    return RowFrame(rows, context.values), None


def _object_of(pod: PodInfo) -> object:
    return pod.object


_OF_POD: Final[Mapping[str, Callable[[PodInfo], object]]] = {"existingPod": _object_of, "existingPodInfo": pod_facts}


def _value_or_error(frame: NodeFrame, name: str, row: int) -> object:
    try:
        return frame.row_value(name, row)
    except EvaluationError as error:
        return error
