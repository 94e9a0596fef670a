"""Runs the plugins of a profile for one pod: preFilters, filters and scores, with the transformers before and after.

An exception of a plugin, or a result that violates its protocol, becomes that plugin's failure here and nowhere else;
its effect is that of an error at the point, see `engine.framework.points`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived, sound
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Answer, Code, IgnoredErrors, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import (
    SKIP_SHAPE,
    AfterFilter,
    AfterPreFilter,
    AwaitObjects,
    BeforeFilter,
    BeforePreFilter,
    BeforeScore,
    Changed,
    CycleState,
    Deferred,
    FindOneNode,
    Nomination,
    OnlyNodes,
    Plan,
    PreferNodes,
    Skip,
    Wait,
)

from ..observe.metrics_recorder import POINT_NAMES, PointTimer
from ..profiles.profile import Active, Profile
from ..profiles.rowwise import failed
from ..queue.nominator import Nominations
from ..result_cache.combined_result import CombinedResult, among
from ..result_cache.refusals import recomputed, step_of
from ..result_cache.result_cache import ResultCache
from ..verdict.verdict import NOWHERE, DeferredSteps, Failure, Filtered, PodRejection, Scored, in_fixed_words

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
                self._note(active, _refusing_all(answer, self.snapshot.size), everything, everything)
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
                        yield step_of(active, _secured(active, answer), answer.errors, tested_now, refused)
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
                            yield step_of(active, _secured(active, answer), failed, tested, refused)

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
            call = active.instance.pre_score
            if timer is not None and timer.plugins is not None:
                call = timer.plugins.measured(active.name, Point.PRE_SCORE, call)
            answer = guarded(
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
        answer = guarded(
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
        answer = guarded(
            self.failures, active, Point.PRE_FILTER, active.instance.find_one_node,
            self.state, self.pod, self.snapshot, rows, kinds=(Plan, Skip),
        )
        if isinstance(answer, Skip):
            return None, rows
        if isinstance(answer, Refusal):
            return (active.name, Point.PRE_FILTER, answer), NOWHERE
        if answer is None:
            return (active.name, Point.PRE_FILTER, odd_answer(self.failures, active, Point.PRE_FILTER, None)), NOWHERE
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
                said = OTHER_NODES.format(together if active.enforced else active.name)
                refusal = Refusal("", said, Code.UNRESOLVABLE)
                self._note(active, _refusing(refusal, rows, self.snapshot.size), rows, rows)

    def _left_no_node(self, left_out: Sequence[tuple[Active, Rows]]) -> PodRejection:
        """Return the rejection of a pod for which the preFilters have no node in common."""
        self._note_left_out(left_out)
        enforced = [active for active, _ in left_out if active.enforced]
        words = _NO_NODE if len(enforced) == 1 else _NO_COMMON_NODE
        return enforced[-1].name, Point.PRE_FILTER, Refusal("", words.format(_listed(enforced)), Code.UNRESOLVABLE)

    def _note(self, active: Active, answer: Answer, tested: Rows, refused: Rows) -> None:
        plugin = active.plugin
        self.found.append(Filtered(plugin.name, plugin.origin, _secured(active, answer), tested, refused,
                                   plugin.enforcement))

    def _note_whole(self, refusal: PodRejection, rows: Rows) -> None:
        name, _, reason = refusal
        active = next(each for each in self.profile.pre_filters if each.name == name)
        self._note(active, _refusing(reason, rows, self.snapshot.size), rows, rows)

    # Calls of plugins

    def _run_pre_filter(self, active: Active, errors: list[tuple[str, EvaluationError]]) -> Any:
        """Run one preFilter; its ignored errors are moved from `errors`, which is empty before and after."""
        call = active.instance.pre_filter
        if self.timer is not None and self.timer.plugins is not None:
            call = self.timer.plugins.measured(active.name, Point.PRE_FILTER, call)
        answer = guarded(
            self.failures, active, Point.PRE_FILTER, call, self.state, self.pod, self.snapshot, kinds=(OnlyNodes, Skip),
        )
        if isinstance(answer, Refusal) and answer.error is not None and answer.rule:
            errors.append((answer.rule, answer.error))
        if errors:
            self.failures += (_failure(active, Point.PRE_FILTER, error.message, rule) for rule, error in errors)
            errors.clear()
        return answer

    def _run_filter(self, active: Active, rows: Rows) -> Answer:
        size, point = self.snapshot.size, Point.FILTER  # the point is read off the stack: see `watchdog`
        try:
            call = active.instance.filter
            if self.timer is not None and self.timer.plugins is not None:
                call = self.timer.plugins.measured(active.name, point, call)
            answer: Answer = call(self.state, self.pod, self.snapshot, rows)
            _check_kind(answer, Answer)
            _check_shape(answer.passed, np.bool_, len(rows), size)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self.failures.append(_failure(active, point, describe(error)))
            return _refusing_all(_refusal_for(error), size)
        return answer

    def _run_score(self, active: Active, rows: Rows) -> Scores:
        size, point = self.snapshot.size, Point.SCORE  # the point is read off the stack: see `watchdog`
        try:
            call = active.instance.score
            if self.timer is not None and self.timer.plugins is not None:
                call = self.timer.plugins.measured(active.name, point, call)
            scores: Scores = call(self.state, self.pod, self.snapshot, rows)
            _check_kind(scores, Scores)
            _check_shape(scores.values, np.int64, len(rows), size)
            scores = scores.spread(rows, size)
        except BaseException as error:  # the border between framework and plugin
            must_be_survived(error)
            self.failures.append(_failure(active, point, describe(error)))
            return Scores(np.zeros(size, np.int64))
        chosen = scores.values[rows]
        if chosen.min() < 0 or chosen.max() > HIGHEST_SCORE:
            return _without_outliers(scores, rows)
        return scores

    def _run_transformer(self, active: Active, point: Point, method: str, *rows: Rows) -> PodRejection | None:
        answer = guarded(
            self.failures, active, point, getattr(active.instance, method), self.state, self.pod, self.snapshot, *rows,
            kinds=(Changed,),
        )
        if isinstance(answer, Changed):
            if answer.snapshot is not None and answer.snapshot.size != self.snapshot.size:
                return active.name, point, odd_answer(self.failures, active, point, answer.snapshot)
            self.pod = answer.pod or self.pod
            self.snapshot = answer.snapshot or self.snapshot
            return None
        return None if answer is None else (active.name, point, answer)

    def _run_check(self, active: Active, point: Point, method: str, rows: Rows) -> PodRejection | None:
        answer = guarded(
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


def guarded(
    failures: list[Failure], active: Active, point: Point, call: Callable[..., Any], *arguments: object,
    kinds: tuple[type, ...] | None = None,
) -> Any:
    """Return a plugin's result; an exception is recorded as its failure and returned as a refusal.

    So is a result that is neither None nor a refusal nor of one of the `kinds`; with `kinds` None any result is valid.
    """
    try:
        answer = call(*arguments)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        failures.append(_failure(active, point, describe(error)))
        return _refusal_for(error)
    if answer is None or kinds is None:
        return answer
    if isinstance(answer, Refusal):
        try:
            return sound(answer)
        except TypeError as error:
            failures.append(_failure(active, point, describe(error)))
            return _refusal_for(error)
    if isinstance(answer, kinds) and _is_sound(answer):
        return answer
    return odd_answer(failures, active, point, answer)


def odd_answer(failures: list[Failure], active: Active, point: Point, answer: object) -> Refusal:
    """Record a malformed result as the plugin's failure; return the refusal that replaces it."""
    try:
        shown = repr(answer)
    except BaseException as error:  # the plugin's own class
        must_be_survived(error)
        shown = type(answer).__name__
    message = f"the answer must be what the protocol of `{point.value}` says, not {shown}"
    failures.append(_failure(active, point, message))
    return Refusal("", message, Code.ERROR)


def _is_sound(answer: object) -> bool:
    """Return whether a result of the right class has valid fields: a plugin's author may have no type checker."""
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
            return isinstance(answer.node, str) and all(isinstance(each, PodInfo) for each in answer.victims)
        case _:
            return True


class NodeRefusals:
    """The nodes' refusals of a pod, as postFilters see them (implements `framework.scheduler.Refused`)."""

    def __init__(
        self, runner: PluginRunner, refusal: PodRejection | None, rows: Rows, nominations: Nominations | None,
    ) -> None:
        self._runner = runner
        self._refusal = refusal
        self._rows = rows
        self._nominations = nominations

    def code(self, row: int) -> Code:
        """Return the code of the node's first refusal."""
        return self.reason(row).code

    def reason(self, row: int) -> Refusal:
        """Return the node's first refusal; raises `KeyError` for a node that was not refused."""
        if self._refusal is not None:
            return self._refusal[2]
        for step in self._steps():
            if row in step.refused:
                return step.answer.explain(row)
        raise KeyError(row)

    def resolvable(self) -> Rows:
        """Return the rows that were refused with `Unschedulable`."""
        if self._refusal is not None:
            return self._rows if self._refusal[2].code is Code.UNSCHEDULABLE else NOWHERE
        found: dict[int, bool] = {}
        for step in self._steps():
            for row, helped in _resolvable(step):
                found.setdefault(row, helped)
        return np.array(sorted(row for row, helped in found.items() if helped), np.intp)

    def passes(self, changed: Snapshot, rows: Rows) -> Rows:
        """Return the rows that would pass all filters in another snapshot."""
        return self._run_filters_on(changed, rows)[2]

    def why_not(self, changed: Snapshot, row: int) -> tuple[str, ...]:
        """Return the reasons why a node would refuse the pod in another snapshot; empty if it would not."""
        rows = np.array([row], np.intp)
        runner, refusal, passed = self._run_filters_on(changed, rows)
        if refusal is not None:
            return (refusal[2].message,)
        if len(passed):
            return ()
        first = next(step for step in _enforced(runner) if row in step.refused)
        return tuple(in_fixed_words(first, rows))

    def _run_filters_on(self, changed: Snapshot, rows: Rows) -> tuple[PluginRunner, PodRejection | None, Rows]:
        was = self._runner
        runner = PluginRunner(was.profile, was.state.clone(), was.pod, changed, skipped=set(was.skipped))
        refusal, rows = runner.run_pre_filter_plugins(rows)
        return runner, refusal, runner.run_filters(rows, self._nominations) if refusal is None else NOWHERE

    def _steps(self) -> list[Filtered]:
        return _enforced(self._runner)


def _enforced(runner: PluginRunner) -> list[Filtered]:
    enforced = {each.name for each in runner.profile.filters if each.enforced}
    enforced |= {each.name for each in runner.profile.pre_filters if each.enforced}
    return [step for step in runner.steps if step.plugin in enforced]


def scored(active: Active, scores: Scores) -> Scored:
    """Return a scorer's result with its weight."""
    plugin = active.plugin
    return Scored(plugin.name, plugin.origin, active.weight, scores, plugin.enforcement)


def _resolvable(step: Filtered) -> list[tuple[int, bool]]:
    if step.answer.codes is None:
        return [(row, step.answer.explain(row).code is Code.UNSCHEDULABLE) for row in step.refused.tolist()]
    codes = step.answer.codes(step.refused)
    return [(row, code is Code.UNSCHEDULABLE) for code, rows in codes.items() for row in rows.tolist()]


def _refusal_for(error: BaseException) -> Refusal:
    return Refusal("", describe(error), Code.ERROR, failed(error))


def _check_kind(answer: object, required: type) -> None:
    if not isinstance(answer, required):
        raise TypeError(f"the answer must be of the kind `{required.__name__}`, not {type(answer).__name__}")


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


def _secured(active: Active, answer: Answer) -> Answer:
    """Return an answer whose explanations never raise; those of documents never do."""
    if active.plugin.span is not None:
        return answer
    it = _Secured(answer)
    return Answer(
        answer.passed, it.explain, answer.errors, None if answer.reasons is None else it.reasons,
        None if answer.codes is None else it.codes, None if answer.rules is None else it.rules,
        None if answer.brief is None else it.brief,
    )


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


def _refusing_all(refusal: Refusal, size: int) -> Answer:
    return Answer(np.zeros(size, np.bool_), lambda _: refusal, reasons=lambda rows: {refusal.message: rows},
                  codes=lambda rows: {refusal.code: rows})


def _refusing(refusal: Refusal, refused: Rows, size: int) -> Answer:
    passed = np.ones(size, np.bool_)
    passed[refused] = False
    return replace(_refusing_all(refusal, size), passed=passed)


def _failure(active: Active, point: Point, message: str, rule: str = "") -> Failure:
    return Failure(active.name, active.plugin.origin, point, message, rule=rule)


def _split(passed: NDArray[np.bool_], tested: Rows) -> tuple[Rows, Rows]:
    """Split rows into refused and passed ones."""
    chosen = passed if len(tested) == len(passed) else passed[tested]
    if np.logical_and.reduce(chosen):
        return tested[:0], tested
    return tested[~chosen], tested[chosen]
