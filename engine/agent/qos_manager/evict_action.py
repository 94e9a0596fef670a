"""The action `evict` of QoSPlugins: candidates in order until enough is released, with a cool-down.

Evictions are chosen as if they succeeded; the readings of the next rounds say which were refused, and then the next
candidate takes the pod's place.
"""

from __future__ import annotations

from collections.abc import Iterator

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.kinds import lacking
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import EvictProgram
from koordpolicy.engine.documents import EvictionRelease
from koordpolicy.engine.evaluation.sort_order import sort_key
from koordpolicy.engine.framework.qos import Adjustment, Readings

from .action_kinds import ActionContext, Adjustments
from .evictions import eviction_allowed, eviction_id, is_terminating, request_of
from .strategy_state import LatestEvictions, StrategyState


def evict(program: EvictProgram, context: ActionContext) -> Adjustments:
    """Evict candidates in order until their usage or requests reach the amount; without a release, only the first one.

    Pods that are already leaving count towards the amount and are not evicted again. Within the cool-down none is
    evicted.
    """
    readings, memory = context.readings, context.memory
    for lack in lacking({context.compiled.name: context.compiled.reads}, readings.variables):
        raise EvaluationError(f"no pod is evicted, as {lack.message}", reason="Lacking")
    key = context.action.key, context.view.node, context.subject.name
    latest = memory.evictions.setdefault(key, LatestEvictions())
    latest.update(readings.evictions)
    if latest.time is not None and readings.now - latest.time < program.cool_down_ns:
        return ()
    past_budget = program.past_budget is not None and program.past_budget.evaluate(context.subject.bindings) is True
    chosen = tuple(_choose(program, context, past_budget=past_budget))
    if chosen:
        latest.note(frozenset(eviction_id(pod) for pod, _ in chosen), readings.now)
        memory.evicted |= {eviction_id(pod): readings.now for pod, _ in chosen}
    return tuple(adjustment for _, adjustment in chosen)


def leaving_pods(memory: StrategyState, readings: Readings) -> frozenset[str]:
    """Return the pods that count as leaving, by `eviction_id`."""
    view = readings.evictions
    own = memory.leaving(readings.now) - view.refused.keys() - view.protected.keys()
    return own | view.leaving | {eviction_id(pod) for pod in readings.pods if is_terminating(pod)}


def _choose(
    program: EvictProgram, context: ActionContext, *, past_budget: bool,
) -> Iterator[tuple[PodInfo, Adjustment]]:
    readings, item = context.readings, context.item
    target = context.number(program.amount, "amount") if program.amount is not None else 0.0
    candidates, leaving = _candidates(program, context), leaving_pods(context.memory, readings)
    staying = [
        pod for pod in candidates if eviction_id(pod) not in leaving
        and readings.evictions.permits(eviction_id(pod), past_budget=past_budget)
    ]
    criteria = ", ".join(rule.name for rule in program.criteria) or item
    release = program.release
    if release is None:
        if all(eviction_id(pod) not in leaving for pod in candidates):
            for pod in staying[:1]:
                yield pod, Adjustment("evict", pod.key, f"evicted by {criteria}", item, past_budget=past_budget)
        return
    released = 0.0
    for pod in (*(each for each in candidates if eviction_id(each) in leaving), *staying):
        if released >= target:
            break
        try:
            amount = _counts_for(pod, release, readings)
        except EvaluationError:
            continue  # the released amount of a pod that was not measured is unknown
        released += amount
        if eviction_id(pod) not in leaving:
            reason = f"evicted by {criteria} to release {target:g} of {release.resource}, {released:g} so far"
            values = {"released": amount, "toRelease": target, "resource": release.resource}
            yield pod, Adjustment("evict", pod.key, reason, item, values, past_budget=past_budget)


def _candidates(program: EvictProgram, context: ActionContext) -> list[PodInfo]:
    """Return the candidates for eviction, in order; a pod for which an expression fails stays."""
    gate, found = context.compiled.spec.feature_gate, []
    for pod in context.subject.pods:
        if gate and not eviction_allowed(pod.object, gate):
            continue
        bindings = context.view.of_pod(pod)
        try:
            if all(rule.program.evaluate(bindings) is True for rule in program.criteria):
                found.append((sort_key(program.sort, bindings), pod))
        except EvaluationError as error:
            context.report(pod.key, error)
    return [pod for _, pod in sorted(found, key=lambda each: each[0])]


def _counts_for(pod: PodInfo, release: EvictionRelease, readings: Readings) -> float:
    if release.measure == "Requests":
        return request_of(pod, release.resource)[1]
    return readings.pod_usage(pod.key, release.resource)
