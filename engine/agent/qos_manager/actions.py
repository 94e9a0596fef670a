"""The kinds of actions of QoSPlugins, in one table, with their implementations.

An action never changes a machine here: it yields `Adjustment`s, with the control group files to write or the pod to
evict. A kind that documents may name but that is not implemented yet is refused with its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.kinds import lacking
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.compile import CompiledQoS, EffectProgram, EvictProgram, SuppressCPUProgram
from koordpolicy.engine.documents import EvictionRelease
from koordpolicy.engine.evaluation.sort_order import sort_key
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.source import PolicyError, Problem

from .action_kinds import ActionContext, ActionKind, Adjustments, Recovery, recover_nothing
from .evictions import eviction_allowed, request_of
from .suppression import (
    best_effort_cpus,
    choose_best_effort_cpus,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
    topology_of,
)


def suppress_cpu(program: SuppressCPUProgram, context: ActionContext) -> Adjustments:
    """Limit the node's best-effort tier to the target in milli-cores; return no adjustment if it already is."""
    amount, readings = int(context.number(program.target, "target")), context.readings
    if program.policy == "CFSQuota":
        writes = set_quota(amount, readings.files, _capacity(readings))
    else:
        topology = topology_of(readings)
        cpus = choose_best_effort_cpus(amount, best_effort_cpus(readings.files), topology)
        writes = set_cpus(cpus, readings.files, topology) if cpus else ()
    if not writes:
        return ()
    reason = f"best-effort pods may use {amount}m of cpu"
    values = {"target": amount, "policy": program.policy, **context.values_read(program.target)}
    return (Adjustment("suppressCPU", context.subject.name, reason, context.item, values, writes),)


def recover_cpu(program: SuppressCPUProgram, recovery: Recovery) -> Adjustments:
    """Revert `suppress_cpu`."""
    readings = recovery.readings
    if program.policy == "CFSQuota":
        writes = recover_quota(readings.files)
    else:
        writes = recover_cpus(readings.files, topology_of(readings))
    if not writes:
        return ()
    values = {"policy": program.policy}
    return (Adjustment("suppressCPU", recovery.subject, recovery.reason, recovery.item, values, writes, recovers=True),)


def evict(program: EvictProgram, context: ActionContext) -> Adjustments:
    """Evict candidates in order until their usage or requests reach the amount; without a release, only the first one.

    Pods that are already leaving count towards the amount and are not evicted again.
    """
    readings, item = context.readings, context.item
    for lack in lacking({context.compiled.name: context.compiled.reads}, readings.snapshot.cluster):
        raise EvaluationError(f"no pod is evicted, as {lack.message}", reason="Lacking")
    target = context.number(program.amount, "amount") if program.amount is not None else 0.0
    candidates, evicted = _candidates(program, context), context.memory.on_their_way_out(readings.now)
    criteria = ", ".join(rule.name for rule in program.criteria) or item
    release = program.release
    if release is None:
        if any(pod.key in evicted for pod in candidates):
            return ()
        return tuple(Adjustment("evict", pod.key, f"evicted by {criteria}", item) for pod in candidates[:1])
    released, found = 0.0, []
    for pod in (*(p for p in candidates if p.key in evicted),
                *(p for p in candidates if p.key not in evicted)):
        if released >= target:
            break
        try:
            amount = _counts_for(pod, release, readings)
        except EvaluationError:
            continue  # the released amount of a pod that was not measured is unknown
        released += amount
        if pod.key not in evicted:
            reason = f"evicted by {criteria} to release {target:g} of {release.resource}, {released:g} so far"
            values = {"released": amount, "toRelease": target, "resource": release.resource}
            found.append(Adjustment("evict", pod.key, reason, item, values))
    return tuple(found)


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


def _capacity(readings: Readings) -> int:
    capacity = (readings.node.get("status") or {}).get("capacity") or {}
    return canonical_amount("cpu", capacity.get("cpu", "0"), "status.capacity.cpu")


ACTION_KINDS: Final[Mapping[type[EffectProgram], ActionKind]] = {
    SuppressCPUProgram: ActionKind("suppressCPU", suppress_cpu, recover_cpu),
    EvictProgram: ActionKind("evict", evict, recover_nothing),
}
"""The implemented kinds of actions, by their compiled effect. Kinds that documents may name but that are not here are
refused as not available yet."""


def refuse_unavailable(plugin: CompiledQoS) -> None:
    """Raise `PolicyError` with the position of every action of a kind that is not available yet."""
    available = {action.name for action in plugin.actions if type(action.effect) in ACTION_KINDS}
    problems = [
        Problem(
            f"action `{action.name}`: this kind is not available yet", action.span,
            f"available are {', '.join(f'`{each.key}`' for each in ACTION_KINDS.values())}", code="not-available",
        )
        for action in plugin.spec.actions if action.name not in available
    ]
    if problems:
        raise PolicyError(problems)
