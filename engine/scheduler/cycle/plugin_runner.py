"""Runs the plugins of a profile for one pod: preFilters, filters and scores, with the transformers before and after.

`plugin_calls` has the calls themselves, and the contract of their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, IgnoredErrors, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import (
    SKIP_SHAPE,
    AfterFilter,
    AfterPreFilter,
    BeforeFilter,
    BeforePreFilter,
    BeforeScore,
    Changed,
    CycleState,
    FindOneNode,
    OnlyNodes,
    Plan,
    PreferNodes,
    Skip,
)

from ..observe.metrics_recorder import POINT_NAMES, PointTimer
from ..profiles.profile import Active, Profile
from ..queue.nominator import Nominations
from ..result_cache.combined_result import CombinedResult, among
from ..result_cache.refusals import recomputed, step_of
from ..result_cache.result_cache import ResultCache
from ..verdict.verdict import NOWHERE, DeferredSteps, Failure, Filtered, PodRejection, Scored
from .plugin_calls import (
    call_filter,
    call_plugin,
    call_score,
    failure_of,
    invalid_answer,
    refusing,
    refusing_all,
    secured,
)

_FEW: Final = 64
"""Up to this number of rows plugins run uncached: caching results for all nodes does not pay off."""

_NO_ROW: Final = np.zeros(0, np.bool_)

OTHER_NODES = "node(s) didn't satisfy plugin(s) [{}]"
"""The reason of nodes that preFilters excluded; names all plugins that excluded any (kube-scheduler's words)."""
_NO_NODE: Final = "node(s) didn't satisfy plugin {}"
_NO_COMMON_NODE: Final = "node(s) didn't satisfy plugin(s) [{}] simultaneously"


class PlacedTogether:
    """The key of the cycle state for the UIDs of pods whose nominations are ignored for this one."""


class Phase:
    """The key of the cycle state for the current point, for plugins that need it."""


@dataclass(slots=True)
class PluginRunner:
    """Runs the plugins of one profile for one pod, and collects their results."""

    profile: Profile
    state: CycleState
    pod: PodInfo
    snapshot: Snapshot
    exhaustive: bool = False
    """True if every filter runs over every node, for explanations."""
    failures: list[Failure] = field(default_factory=list)
    found: list[Filtered] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    """The plugins whose preFilter skipped the pod."""
    _rest: DeferredSteps[Filtered] | None = None
    """The results of filters that follow those of `found`."""
    _results: ResultCache | None = None
    timer: PointTimer | None = None
    """Measures the decision, if it is observed."""

    @property
    def steps(self) -> Sequence[Filtered]:
        """The results of preFilters and filters, in their order."""
        if self._rest is None:
            return tuple(self.found)
        before, rest = tuple(self.found), self._rest
        if not before:
            return rest
        failed = rest.failed or any(step.answer.errors for step in before)
        return DeferredSteps(lambda: chain(before, rest), failed=failed)

    def run_pre_filters(self, rows: Rows) -> tuple[PodRejection | None, Rows]:
        """Run all plugins that precede the filters; return the pod's rejection or None, and the remaining rows."""
        for active in self.profile.having(BeforePreFilter):
            refusal = self._run_transformer(active, Point.PRE_FILTER, "before_pre_filter")
            if refusal is not None:
                return refusal, NOWHERE
        refusal, rows = self.run_pre_filter_plugins(rows)
        if refusal is not None:
            return refusal, NOWHERE
        for active in self.profile.having(AfterPreFilter):
            refusal = self._run_check(active, Point.PRE_FILTER, "after_pre_filter", rows)
            if refusal is not None:
                return refusal, NOWHERE
        for active in self.profile.having(FindOneNode)[:1]:
            refusal, rows = self._find_one_node(active, rows)
            if refusal is not None:
                return refusal, NOWHERE
        for active in self.profile.having(BeforeFilter):
            refusal = self._run_transformer(active, Point.FILTER, "before_filter", rows)
            if refusal is not None:
                return refusal, NOWHERE
        return None, rows

    def run_pre_filter_plugins(self, rows: Rows) -> tuple[PodRejection | None, Rows]:
        """Run the preFilters; return the pod's rejection or None, and the remaining rows."""
        everything = rows
        errors: list[tuple[str, EvaluationError]] = []
        self.state[IgnoredErrors] = errors
        left_out: list[tuple[Active, Rows]] = []
        common: AbstractSet[str] | None = None
        of_shape = self.profile.skipped(Point.PRE_FILTER, self.pod.shape())
        self.skipped |= of_shape
        for active in self.profile.pre_filters:
            if active.plugin.name in self.skipped:  # in a what-if the same plugins are skipped again
                continue
            answer = self._run_pre_filter(active, errors)
            if answer is None:
                continue
            if isinstance(answer, Skip):
                self.skipped.add(active.name)
                if answer is SKIP_SHAPE:
                    of_shape.add(active.name)
            elif isinstance(answer, OnlyNodes):
                inside = self._inside(answer.names, rows)
                left_out.append((active, rows[~inside]))
                if active.enforced:
                    rows = rows[inside]
                    common = answer.names if common is None else common & answer.names
                    if not common:
                        return self._left_no_node(left_out), NOWHERE
            elif active.enforced:
                return (active.name, Point.PRE_FILTER, answer), NOWHERE
            else:
                # Without enforcement, the rejection is recorded as a refusal of every node.
                self._note(active, refusing_all(answer, self.snapshot.size), everything, everything)
        if left_out:
            self._note_left_out(left_out)
        return None, rows

    def run_filters(self, rows: Rows, nominations: Nominations | None = None) -> Rows:
        """Run the filters over rows; return the rows that pass.

        A node with nominated pods of equal or higher priority must pass twice, with and without those pods. Each such
        node is tried alone, as if no other node had nominated pods.
        """
        rivals: Mapping[str, NodeChange] = {}
        if nominations is not None:
            rivals = nominations.rivals(self.pod, self.snapshot, self.state.get(PlacedTogether, frozenset()))
        contested = np.isin(rows, [self.snapshot.index[node] for node in rivals]) if rivals else _NO_ROW
        if len(contested) and contested.any():
            beside = [self._passing_with_nominated(some, rivals) for some in self._trial_groups(rows[contested])]
            rows = np.sort(np.concatenate((rows[~contested], *beside)))
        self._rest = None
        if self._is_cacheable(rows):
            return self._run_cached_filters(rows)
        everything = rows
        for active in self.profile.filters:
            if not len(rows) and not self.exhaustive:
                break
            if active.name in self.skipped:
                continue
            tested = everything if self.exhaustive else rows
            answer = self._run_filter(active, tested)
            refused, left = _split(answer.passed, tested)
            if len(refused) or answer.errors:
                self._note(active, answer, tested, refused)
            if active.enforced and len(refused):
                rows = left if tested is rows else np.setdiff1d(rows, refused, assume_unique=True)
        return rows

    def _trial_groups(self, rows: Rows) -> Sequence[Rows]:
        """Split rows into groups that are tried at once: single rows if preFilters read several nodes, else all
        together.
        """
        if self.skipped.issuperset(active.name for active in self.profile.pre_filters):
            return (rows,)
        return np.split(rows, len(rows))

    def _passing_with_nominated(self, rows: Rows, rivals: Mapping[str, NodeChange]) -> Rows:
        """Return the rows that pass with their nominated pods added."""
        names = map(self.snapshot.names.__getitem__, rows.tolist())
        view = self.snapshot.overlay({name: rivals[name] for name in names})
        beside = PluginRunner(self.profile, self.state.clone(), self.pod, view, self.exhaustive, self.failures,
                              self.found, set(self.skipped))
        refusal, _ = beside.run_pre_filter_plugins(rows)
        if refusal is not None:
            self._note_whole(refusal, rows)
            return NOWHERE
        return beside.run_filters(rows)

    def _run_cached_filters(self, rows: Rows) -> Rows:
        """Do the same as `run_filters`, with results of the result cache."""
        skipped = frozenset(self.skipped)
        actives = self.profile.without(Point.FILTER, skipped)
        cached = self._of_cluster().combined_result(Point.FILTER, skipped, rows)
        errors = cached.errors(rows)
        # By row the index of the first filter that refuses it. None while it equals the group's.
        first = None if len(rows) == len(cached.values) else cached.values[rows]
        others: dict[int, tuple[Answer, Rows, Rows]] = {}
        for place, active in cached.uncached:
            tested = cached.left_before(place) if first is None else rows[(first < 0) | (first > place)]
            if not len(tested):
                continue
            answer = self._run_filter(active, tested)
            refused, _ = _split(answer.passed, tested)
            if len(refused) or answer.errors:
                others[place] = answer, tested, refused
            if active.enforced and len(refused):
                if first is None:
                    first = cached.values.copy()
                first[np.searchsorted(rows, refused)] = place
        passed = cached.left_before(len(actives)) if first is None else rows[first < 0]
        if len(passed) < len(rows) or errors or others:
            shown = cached.share() if first is None else first
            # A reference to `self` would make a cycle, which only the garbage collector frees, once per pod.
            state, pod, snapshot = self.state, self.pod, self.snapshot

            def work_out() -> Iterator[Filtered]:
                cache_keys = dict(zip(cached.places, cached.cache_keys, strict=True))
                numbers = np.bincount(shown + 1, minlength=len(actives) + 1)[1:].tolist()
                tested = rows
                for place, active in enumerate(actives):
                    if place in others:
                        answer, tested_now, refused = others[place]
                        yield step_of(active, secured(active, answer), answer.errors, tested_now, refused)
                    elif place in cache_keys and (numbers[place] or place in errors):
                        here = (shown == place).nonzero()[0]
                        refused = here if len(rows) == snapshot.size else rows[here]
                        if any(numbers[:place]):
                            # As an unsigned number -1, which stands for no filter, is larger than any index.
                            tested = rows[shown.view(np.uint16) >= place]
                        failed = among(errors.get(place, {}), tested)
                        if len(refused) or failed:
                            cache_key = cache_keys[place]
                            if failed:  # these rows are refused for another reason
                                cache_key = cache_key._replace(refusal=None)
                            answer = recomputed(active, cache_key, state, pod, snapshot, refused=refused)
                            yield step_of(active, secured(active, answer), failed, tested, refused)

            failed = bool(errors) or any(answer.errors for answer, _, _ in others.values())
            self._rest = DeferredSteps(work_out, failed=failed)
        return passed

    def _is_cacheable(self, rows: Rows) -> bool:
        """Return whether the result cache pays: the decision is about all nodes of the cluster, without an overlay."""
        snapshot = self.snapshot
        large = len(rows) > _FEW and snapshot.size >= snapshot.cluster.cache_results_from
        return large and not self.exhaustive and not snapshot.overridden

    def _of_cluster(self) -> ResultCache:
        results = self._results
        # A transformer may have replaced the pod since.
        if results is None or not results.is_about(self.pod, self.snapshot):
            self._results = results = ResultCache(
                self.profile, self.state, self.pod, self.snapshot,
                None if self.timer is None else self.timer.plugins)
        return results

    def find_feasible_nodes(self, rows: Rows, nominations: Nominations | None) -> tuple[PodRejection | None, Rows]:
        """Run all filters; return the pod's rejection or None, and the feasible rows.

        If the pod's nominated node is feasible, it is the only one.
        """
        nominated = self._nominated(rows, nominations)
        if len(nominated) and not self.exhaustive:
            before = len(self.found)
            if len(self.run_filters(nominated, nominations)):
                return None, nominated
            del self.found[before:]  # its filters run again with those of the other nodes
        for active in self.profile.having(PreferNodes)[:1]:
            preferred = self._first_preferred_node(active, rows, nominations)
            if len(preferred):
                return None, preferred
        rows = self.run_filters(rows, nominations)
        for active in self.profile.having(AfterFilter):
            refusal = self._run_check(active, Point.FILTER, "after_filter", rows)
            if refusal is not None:
                return refusal, NOWHERE
        return None, rows

    def score_nodes(self, rows: Rows) -> tuple[PodRejection | None, Sequence[Scored], NDArray[np.int64]]:
        """Run the scorers; return the pod's rejection or None, the scores, and the weighted totals in row order."""
        if not len(rows):
            return None, (), np.zeros(0, np.int64)
        of_shape = self.profile.skipped(Point.PRE_SCORE, self.pod.shape())
        idle, timer = set(of_shape), self.timer
        for active in self.profile.at[Point.PRE_SCORE]:
            if active.plugin.name in idle:
                continue
            call = self._measured(active, Point.PRE_SCORE, active.instance.pre_score)
            answer = call_plugin(
                self.failures, active, Point.PRE_SCORE, call, self.state, self.pod, self.snapshot, rows, kinds=(Skip,),
            )
            if isinstance(answer, Skip):
                idle.add(active.name)
                if answer is SKIP_SHAPE:
                    of_shape.add(active.name)
            elif answer is not None:
                return (active.name, Point.PRE_SCORE, answer), (), np.zeros(len(rows), np.int64)
        if timer is not None:
            timer.end(POINT_NAMES[Point.PRE_SCORE])
        for active in self.profile.having(BeforeScore):
            refusal = self._run_transformer(active, Point.SCORE, "before_score", rows)
            if refusal is not None:
                return refusal, (), np.zeros(len(rows), np.int64)
        found: dict[int, tuple[Active, Scores]] = {}
        cached: CombinedResult | None = None
        if not self._is_cacheable(rows):
            totals = np.zeros(len(rows), np.int64)
            others = list(enumerate(self.profile.without(Point.SCORE, frozenset(idle))))
        else:
            cached = self._of_cluster().combined_result(Point.SCORE, frozenset(idle), rows)
            totals = cached.totals(rows)
            others = cached.uncached
        for place, active in others:
            scores = self._run_score(active, rows)
            found[place] = active, scores
            if active.enforced:
                chosen = scores.values[rows]
                totals = totals + (chosen if active.weight == 1 else chosen * active.weight)
        if cached is None:
            return None, tuple([scored(*each) for each in found.values()]), totals
        errors = cached.errors(rows)
        lent = [(place, active, column.lend())
                for place, active, column in zip(cached.places, cached.actives, cached.columns, strict=True)]
        size, uniform = self.snapshot.size, cached.uniform

        def work_out() -> Iterable[Scored]:
            answers = {place: (active, Scores(_of_all_rows(*scores, size), errors.get(place, {})))
                       for place, active, scores in lent}
            for place, active, score in uniform:
                answers[place] = active, Scores(np.full(size, score, np.int8))
            return (scored(*each) for _, each in sorted((answers | found).items(), key=lambda item: item[0]))

        failed = any(errors.values()) or any(scores.errors for _, scores in found.values())
        return None, DeferredSteps(work_out, failed=failed), totals

    def _nominated(self, rows: Rows, nominations: Nominations | None) -> Rows:
        node = None if nominations is None else nominations.node_of(self.pod)
        index = None if node is None else self.snapshot.index.get(node)
        return NOWHERE if index is None else rows[rows == index]

    def _first_preferred_node(self, active: Active, rows: Rows, nominations: Nominations | None) -> Rows:
        answer = call_plugin(
            self.failures, active, Point.FILTER, active.instance.prefer_nodes, self.state, self.pod, self.snapshot,
            rows, kinds=(Skip, tuple, list),
        )
        if isinstance(answer, Skip | Refusal):
            return NOWHERE
        for name in answer or ():
            row = self.snapshot.index.get(name) if isinstance(name, str) else None
            one = rows[rows == row] if row is not None else NOWHERE
            if len(one):
                before = len(self.found)
                if len(self.run_filters(one, nominations)):
                    return one
                del self.found[before:]
        return NOWHERE

    def _find_one_node(self, active: Active, rows: Rows) -> tuple[PodRejection | None, Rows]:
        answer = call_plugin(
            self.failures, active, Point.PRE_FILTER, active.instance.find_one_node,
            self.state, self.pod, self.snapshot, rows, kinds=(Plan, Skip),
        )
        if isinstance(answer, Skip):
            return None, rows
        if isinstance(answer, Refusal):
            return (active.name, Point.PRE_FILTER, answer), NOWHERE
        if answer is None:
            answer = invalid_answer(self.failures, active, Point.PRE_FILTER, None)
            return (active.name, Point.PRE_FILTER, answer), NOWHERE
        node = answer.nodes.get(self.pod.key, "")
        row = self.snapshot.index.get(node)
        if row is None:
            message = f"the plan sends the pod to `{node}`, which does not exist" if node else "the plan has no node"
            return (active.name, Point.PRE_FILTER, Refusal("", message, Code.ERROR)), NOWHERE
        planned = rows[rows == row]
        if not len(planned):
            refusal = Refusal("", f"the plan sends the pod to `{node}`, which preFilters left out", Code.UNRESOLVABLE)
            return (active.name, Point.PRE_FILTER, refusal), NOWHERE
        return None, planned

    def _inside(self, names: AbstractSet[str], rows: Rows) -> NDArray[np.bool_]:
        """Return which of the rows have one of the names; names without a node are ignored."""
        index = self.snapshot.index
        return np.isin(rows, np.array([index[name] for name in names if name in index], np.intp))

    def _note_left_out(self, left_out: Sequence[tuple[Active, Rows]]) -> None:
        """Record the nodes that preFilters excluded; the enforced ones share one reason."""
        together = _listed(active for active, _ in left_out if active.enforced)
        for active, rows in left_out:
            if len(rows):
                reason = OTHER_NODES.format(together if active.enforced else active.name)
                refusal = Refusal("", reason, Code.UNRESOLVABLE)
                self._note(active, refusing(refusal, rows, self.snapshot.size), rows, rows)

    def _left_no_node(self, left_out: Sequence[tuple[Active, Rows]]) -> PodRejection:
        """Return the rejection of a pod for which the preFilters have no node in common."""
        self._note_left_out(left_out)
        enforced = [active for active, _ in left_out if active.enforced]
        words = _NO_NODE if len(enforced) == 1 else _NO_COMMON_NODE
        return enforced[-1].name, Point.PRE_FILTER, Refusal("", words.format(_listed(enforced)), Code.UNRESOLVABLE)

    def _note(self, active: Active, answer: Answer, tested: Rows, refused: Rows) -> None:
        plugin = active.plugin
        self.found.append(Filtered(plugin.name, plugin.origin, secured(active, answer), tested, refused,
                                   plugin.enforcement))

    def _note_whole(self, refusal: PodRejection, rows: Rows) -> None:
        name, _, reason = refusal
        active = next(each for each in self.profile.pre_filters if each.name == name)
        self._note(active, refusing(reason, rows, self.snapshot.size), rows, rows)

    # Calls of plugins

    def _run_pre_filter(self, active: Active, errors: list[tuple[str, EvaluationError]]) -> Any:
        """Run one preFilter; its ignored errors are moved from `errors`, which is empty before and after."""
        call = self._measured(active, Point.PRE_FILTER, active.instance.pre_filter)
        answer = call_plugin(
            self.failures, active, Point.PRE_FILTER, call, self.state, self.pod, self.snapshot, kinds=(OnlyNodes, Skip),
        )
        if isinstance(answer, Refusal) and answer.error is not None and answer.rule:
            errors.append((answer.rule, answer.error))
        if errors:
            self.failures += (failure_of(active, Point.PRE_FILTER, error.message, rule) for rule, error in errors)
            errors.clear()
        return answer

    def _run_filter(self, active: Active, rows: Rows) -> Answer:
        call = self._measured(active, Point.FILTER, active.instance.filter)
        return call_filter(
            self.failures, active, call, state=self.state, pod=self.pod, snapshot=self.snapshot, rows=rows)

    def _run_score(self, active: Active, rows: Rows) -> Scores:
        call = self._measured(active, Point.SCORE, active.instance.score)
        return call_score(
            self.failures, active, call, state=self.state, pod=self.pod, snapshot=self.snapshot, rows=rows)

    def _measured(self, active: Active, point: Point, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a plugin's method that reports its duration, if plugins are measured; else the method itself."""
        plugins = None if self.timer is None else self.timer.plugins
        return call if plugins is None else plugins.measured(active.name, point, call)

    def _run_transformer(self, active: Active, point: Point, method: str, *rows: Rows) -> PodRejection | None:
        answer = call_plugin(
            self.failures, active, point, getattr(active.instance, method), self.state, self.pod, self.snapshot, *rows,
            kinds=(Changed,),
        )
        if isinstance(answer, Changed):
            if answer.snapshot is not None and answer.snapshot.size != self.snapshot.size:
                return active.name, point, invalid_answer(self.failures, active, point, answer.snapshot)
            self.pod = answer.pod or self.pod
            self.snapshot = answer.snapshot or self.snapshot
            return None
        return None if answer is None else (active.name, point, answer)

    def _run_check(self, active: Active, point: Point, method: str, rows: Rows) -> PodRejection | None:
        answer = call_plugin(
            self.failures, active, point, getattr(active.instance, method), self.state, self.pod, self.snapshot, rows,
            kinds=(),
        )
        return None if answer is None else (active.name, point, answer)


def _of_all_rows(rows: Rows | None, values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return values of some rows (None: of all) with a value for each row."""
    if rows is None:
        return values
    found = np.zeros(size, values.dtype)
    found[rows] = values
    return found


def _listed(actives: Iterable[Active]) -> str:
    return " ".join(sorted({active.name for active in actives}))


def scored(active: Active, scores: Scores) -> Scored:
    """Return a scorer's result with its weight."""
    plugin = active.plugin
    return Scored(plugin.name, plugin.origin, active.weight, scores, plugin.enforcement)


def _split(passed: NDArray[np.bool_], tested: Rows) -> tuple[Rows, Rows]:
    """Split rows into refused and passed ones."""
    chosen = passed if len(tested) == len(passed) else passed[tested]
    if np.logical_and.reduce(chosen):
        return tested[:0], tested
    return tested[~chosen], tested[chosen]
