"""The kinds of actions of QoSPlugins, in one table, with their implementations.

An action never changes a machine here: it yields `Adjustment`s, with the control group files to write or the pod to
evict. A kind that documents may name but that is not implemented yet is refused with its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.compile import (
    BlkIOProgram,
    CgroupProgram,
    CompiledQoS,
    CPUBurstProgram,
    EffectProgram,
    EvictProgram,
    ResctrlProgram,
    SuppressCPUProgram,
    SysctlProgram,
)
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from .action_kinds import ActionContext, ActionKind, Adjustments, Recovery, recover_nothing
from .cgroup_action import SETTABLE, recover_file, set_file
from .cpu_burst_action import burst, recover_burst
from .evict_action import evict
from .machine_actions import (
    allocate_cache,
    change_setting,
    limit_device,
    recover_cache,
    recover_device,
    recover_setting,
)
from .suppression import (
    DEAD_BAND_PERCENT,
    best_effort_cpus,
    choose_best_effort_cpus,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
    topology_of,
)
from .written_files import blkio_files, burst_files, cgroup_files, resctrl_files, suppression_files, sysctl_files


def suppress_cpu(program: SuppressCPUProgram, context: ActionContext) -> Adjustments:
    """Limit the node's best-effort tier to the target in milli-cores; return no adjustment if it already is."""
    amount, readings = int(context.number(program.target, "target")), context.readings
    band = program.dead_band_percent
    if program.policy == "CFSQuota":
        quota_band = DEAD_BAND_PERCENT if band is None else band
        writes = set_quota(amount, readings.files, _capacity(readings), dead_band_percent=quota_band)
    else:
        topology = topology_of(readings, context.view.owned_cpus)
        current = best_effort_cpus(readings.files)
        cpus = choose_best_effort_cpus(amount, current, topology, dead_band_percent=band or 0)
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
    SuppressCPUProgram: ActionKind("suppressCPU", suppress_cpu, recover_cpu, suppression_files),
    EvictProgram: ActionKind("evict", evict, recover_nothing),
    ResctrlProgram: ActionKind("resctrl", allocate_cache, recover_cache, resctrl_files),
    BlkIOProgram: ActionKind("blkio", limit_device, recover_device, blkio_files),
    CPUBurstProgram: ActionKind("cpuBurst", burst, recover_burst, burst_files),
    CgroupProgram: ActionKind("cgroup", set_file, recover_file, cgroup_files),
    SysctlProgram: ActionKind("sysctl", change_setting, recover_setting, sysctl_files),
}
"""The kinds of actions, by their compiled effect."""


def refuse_unknown_files(plugin: CompiledQoS) -> None:
    """Raise `PolicyError` with the position of every action that names a control group file which cannot be set."""
    problems = [
        Problem(f"action `{action.name}`: there is no control group file `{action.effect.file}` that can be set",
                action.span, did_you_mean(action.effect.file, SETTABLE), code="unknown-file")
        for action in plugin.actions
        if isinstance(action.effect, CgroupProgram) and action.effect.file not in SETTABLE
    ]
    if problems:
        raise PolicyError(problems)
