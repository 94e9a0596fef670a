"""The kinds of actions of QoSPlugins, in one table, with their implementations.

An action never changes a machine here: it yields `Adjustment`s, with the control group files to write or the pod to
evict. A kind that documents may name but that is not implemented yet is refused with its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.compile import CompiledQoS, EffectProgram, EvictProgram, SuppressCPUProgram
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.source import PolicyError, Problem

from .action_kinds import ActionContext, ActionKind, Adjustments, Recovery, recover_nothing
from .evict_action import evict
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
