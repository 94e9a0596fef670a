"""Runtime of SchedulerPlugin documents: `DocumentScheduler`, which filters and scores all nodes at once.

It implements the protocols `PreFilter`, `Filter` and `Score`. Everything that does not change from pod to pod
(programs, match, params) is fixed when it is made; values that one decision needs more than once are in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.analysis import is_pure, split_reads
from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.check.environment import Scope
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cel.vector.bound_plan import BoundPlan, SelectedRows
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cel.vector.plan import evaluate, plan_of
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import is_of_shape, pending_pod_values
from koordpolicy.engine.cluster.snapshot import NodeFrame, Snapshot
from koordpolicy.engine.compile.programs import CompiledScheduler, Rule, ScoreProgram
from koordpolicy.engine.documents import Normalize
from koordpolicy.engine.evaluation.aggregation import summarize
from koordpolicy.engine.evaluation.facts import Facts
from koordpolicy.engine.evaluation.pod_selection import accepts_pod, exempt
from koordpolicy.engine.evaluation.selection import NODE_PATHS, node_mask
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.object_access import DeclaredAccess
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
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.framework.slots import PENDING_POD_VARIABLES

from .context import CONDITIONS, Booleans, EvaluationContext, Inputs, State, bindings_of, frame_of
from .dependencies import Dependencies, RowEvaluator, key_at, no_evaluator
from .evaluations import Evaluations
from .filtering import FilterEvaluation
from .refusals import message_of, refusal_of
from .scoring import Integers, in_range, integers, normalize

_MOST_CACHE_KEYS: Final = 256
_NOT_COMPUTED: Final = CacheKey("not computed yet", frozenset())
_EXEMPT: Final = CacheKey("exempt", frozenset(), stable_for_shape=True)
"""The cache key of all pods that a document does not match: every node passes."""
_EXEMPT_NOW: Final = _EXEMPT._replace(stable_for_shape=False)
_NO_FACTS: Final = Facts()
_MEASURED: Final = frozenset(("usage", "estimated"))
_NOT_COLLECTED: Final = Dependencies((), (), frozenset(), no_evaluator, stable_for_shape=False)


class _Shared:
    """The key of the cycle state for the pod's variables, shared by all documents."""


class DocumentScheduler:
    """A scheduler plugin made of a compiled SchedulerPlugin with its params. Immutable, and bound to no cluster."""

    def __init__(self, compiled: CompiledScheduler) -> None:
        self.name = compiled.document.name
        self.params = compiled.params
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
        self.evaluations = {id(program): Evaluations.of(point, rule, program) for point, rule, program in named}
        """The counters by the identity of the program."""

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
        return FilterEvaluation(self._compiled.filter, self.evaluations, self._ignore, context, snapshot.size).run(rows)

    def score(self, state: State, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return the weighted mean of the items, 0 for nodes that the document does not match."""
        context = self._context(state, pod, snapshot)
        if not context.matches or context.error is not None:
            return Scores(np.zeros(len(rows), np.int64), context.errors(rows))
        matching = rows if context.nodes is None else rows[context.nodes[rows]]
        weights = 0
        items: dict[str, Integers] = {}
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
        """Return the dependencies of the result about a node: all that its expressions read of the pod and of the node.

        None if there are others: other nodes (aggregates, normalised scores, items that are omitted for all nodes if
        they fail on one), the time, an impure function.
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
        key = tuple([key_at(pod, path) for path in found.of_pod])
        cache_key = found.cache_keys.get(key, _NOT_COMPUTED)
        if cache_key is _NOT_COMPUTED:
            frame = snapshot.frame({**pending_pod_values(pod), "params": self.params})
            if len(found.cache_keys) >= _MOST_CACHE_KEYS:
                found.cache_keys.clear()
            cache_key = found.cache_keys[key] = found.cache_key(key, frame)
        return cache_key

    def _dependencies_at(self, point: Point) -> Dependencies | None:
        """Return the dependencies of the results at a point; None if there are others than the pod and the node."""
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
        of_others = any(path[0] not in PENDING_POD_VARIABLES for path in of_pod)
        if of_others or not all(is_pure(each.checked) for each in programs):
            return None
        always = frozenset[Path]() if self._spec.match.nodes is None else NODE_PATHS
        evaluator_of: Callable[[NodeFrame], RowEvaluator | None] = no_evaluator
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

        def passed(snapshot: Snapshot, rows: Rows) -> Booleans | None:
            found = columns(snapshot, rows)
            if found is None:
                return None
            all_good, left = found[0], len(rows)
            for place, (good, count) in enumerate(zip(found, counters, strict=True)):
                if place:
                    all_good &= good
                passing = int(np.count_nonzero(all_good))
                count.evaluated += left
                count.refused += left - passing
                left = passing
            return all_good

        return passed

    def _vectorized_score(self, frame: NodeFrame) -> RowEvaluator | None:
        """Return the evaluator of the score for pods as in the frame; None if numeric columns are not enough."""
        counters, columns = self._bind_columns(self._compiled.score, frame)
        if columns is None:
            return None
        weights = [each.item.weight for each in self._compiled.score]

        def scored(snapshot: Snapshot, rows: Rows) -> Integers | None:
            found = columns(snapshot, rows)
            if found is None or not all(in_range(values) for values in found):
                return None
            for count in counters:
                count.evaluated += len(rows)
            scores: list[Integers] = [values.astype(np.int64, copy=False) for values in found]
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
            selected, values = SelectedRows(snapshot.frame({}), rows), []
            for each in plans:
                computed = each.values(selected)
                if computed is None:
                    return None
                values.append(computed)
            return values

        return [self.evaluations[id(rule.program)] for rule in rules], columns if plans else None

    def depends_on(self, rules: frozenset[str]) -> frozenset[Path]:
        """Return the paths of the pod, the node and the time that these rules, `match` and conditions read."""
        compiled = self._compiled
        candidates = [*compiled.conditions, *compiled.pre_enqueue, *compiled.pre_filter, *compiled.filter]
        programs = [rule.program for rule in candidates if rule.name in rules or rule in compiled.conditions]
        found = frozenset[Path]().union(*(program.checked.reads for program in programs))
        for each in reversed(compiled.aggregates):  # those that read others are last
            if any(path[0] == "aggregates" and path[1:2] in ((), (each.name,)) for path in found):
                inner = [program for program in (each.program, each.group_by) if program is not None]
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

    def concerns(self, state: State, pod: PodInfo, snapshot: Snapshot) -> Booleans:
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

    def frame(self, state: State, pod: PodInfo, snapshot: Snapshot) -> NodeFrame:
        """Return the frame of this document's expressions over all nodes, for explanations."""
        return self._context(state, pod, snapshot).frame

    def inputs(self, state: State, pod: PodInfo, snapshot: Snapshot, program: Program, row: int | None) -> Inputs:
        """Return the inputs of a program of this document at a row (None: of the pod alone), for explanations."""
        return Inputs(self.frame(state, pod, snapshot), program, row)

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
            counters.refused += 1
            return refusal_of(rule, context.frame, None)
        return None

    def _context(self, state: State, pod: PodInfo, snapshot: Snapshot) -> EvaluationContext:
        known = state.get(self)
        # Recomputed if a what-if runs on a clone of the state, or a transformer changed the pod.
        if isinstance(known, EvaluationContext) and known.snapshot is snapshot and known.pod is pod:
            return known
        of, shared = state.get(_Shared, (None, {}))
        if of is not pod:
            shared = {**pending_pod_values(pod), "now": Timestamp(snapshot.now)}
            state[_Shared] = pod, shared
        facts = Facts() if self._compiled.aggregates else _NO_FACTS
        values = {**shared, "params": self.params, "aggregates": facts}
        frame = snapshot.frame(values)
        matches = accepts_pod(self._spec.match.pods, pod, snapshot)
        context = EvaluationContext(frame, values, matches, None, None, {}, pod, snapshot)
        if context.matches:
            context.nodes = node_mask(self._spec.match.nodes, self._compiled.document.digest, snapshot)
            if self._compiled.aggregates:
                summarize(facts, self._compiled.aggregates, lambda each: frame_of(each, snapshot, context))
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
    ) -> tuple[Integers, dict[int, EvaluationError], NDArray[Any]]:
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
        chosen, rows = integers(chosen, rows, errors)
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
        values: Integers = np.zeros(len(requested), np.int64)
        values[np.searchsorted(requested, rows)] = chosen
        return values, errors, column.values


def make_instance(plugin: Plugin, args: Mapping[str, Any], handle: Handle) -> Any:
    """Return the instance of a scheduler plugin; one that was made of a document is run by `DocumentScheduler`."""
    access = DeclaredAccess(plugin.name, frozenset(read.kind for read in plugin.reads), plugin.patches)
    made = plugin.make(args, replace(handle, access=access))
    return DocumentScheduler(made) if isinstance(made, CompiledScheduler) else made
