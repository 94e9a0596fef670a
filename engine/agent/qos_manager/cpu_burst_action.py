"""The action `cpuBurst` of documents: CPU burst of the containers of a subject's pods."""

from __future__ import annotations

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import PERCENTAGES, CPUBurstProgram
from koordpolicy.engine.framework.qos import Adjustment

from ..logical_directory import logical_directory
from ..pod_facts import PodFacts
from .action_kinds import ActionContext, Adjustments, Recovery
from .bursting import (
    BurstConfig,
    BurstLimiters,
    PodBurst,
    burst_pod,
    may_burst,
    node_state,
    recover_writes,
)

_DEFAULTS = {"cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300, "sharePoolThresholdPercent": 50}
_SECOND = 1_000_000_000


def burst(program: CPUBurstProgram, context: ActionContext) -> Adjustments:
    """Set static bursts and quotas of the subject's pods.

    Best-effort pods and those with their own CPUs are left alone. A pod whose limits cannot be read is reported, and
    costs only itself.
    """
    readings, subject, period = context.readings, context.subject, program.cfs_quota_burst_period_ns
    config = BurstConfig(
        program.policy, _percentage(program.cpu_burst_percent, "cpuBurstPercent", context),
        _percentage(program.cfs_quota_burst_percent, "cfsQuotaBurstPercent", context),
        -1 if period is None else period // _SECOND,
    )
    threshold = _percentage(program.share_pool_threshold_percent, "sharePoolThresholdPercent", context)
    state = node_state(*context.view.shared_cpu, threshold)
    limiters = context.memory.limiters.setdefault(context.key, BurstLimiters())
    facts = context.memory.burst_pods.setdefault(context.key, PodFacts(_burst_pod))
    found: list[Adjustment] = []
    for pod, of_pod in zip(subject.pods, facts.of(subject.pods), strict=True):
        if of_pod is None:
            continue
        if isinstance(of_pod, ValueError):
            context.report(pod.key, EvaluationError(str(of_pod)))
            continue
        values: dict[str, object] = {"policy": config.policy, "nodeState": state}
        texts, writes = [], list(of_pod.static.writes(
            of_pod.pod, config, readings.files, version=readings.host.cgroup_version, now=readings.now))
        if writes:
            texts.append(f"static bursts of {config.cpu_burst_percent}% of the limits")
        for change in of_pod.quota.changes(of_pod.pod, config, state, limiters, readings):
            name = change.container.key.rpartition("/")[2]
            writes += change.writes
            values[name] = change.after
            texts.append(f"quota of {name} {change.operation} from {change.before} to {change.after}")
        if writes:
            reason = f"on a node that is {state}: {', '.join(texts)}"
            found.append(Adjustment("cpuBurst", pod.key, reason, context.item, values, tuple(writes)))
    limiters.recycle(readings.now)
    return tuple(found)


def _burst_pod(pod: PodInfo) -> PodBurst | ValueError | None:
    """Return a pod whose CPU may burst, or why its limits cannot be read; None for any other pod."""
    if not may_burst(pod):
        return None
    try:
        return PodBurst(burst_pod(pod, logical_directory))
    except ValueError as error:
        return error


def recover_burst(program: CPUBurstProgram, recovery: Recovery) -> Adjustments:  # noqa: ARG001 - one signature for all
    """Set bursts to 0 and quotas to the limits, of the pods whose files the action had changed."""
    readings, found = recovery.readings, []
    for pod in readings.pods:
        directory = readings.directory(pod)
        if not any(file.startswith(f"{directory}/") for file in recovery.originals):
            continue
        writes = recover_writes(pod, readings)
        if writes:
            found.append(Adjustment("cpuBurst", pod.key, recovery.reason, recovery.item, {}, writes, recovers=True))
    return tuple(found)


def _percentage(program: Program | None, name: str, context: ActionContext) -> int:
    if program is None:
        return _DEFAULTS[name]
    value = int(context.number(program, name))
    least, most = PERCENTAGES[name]
    if not least <= value <= most:
        raise EvaluationError(f"`{name}` of `{context.item}` is {value}, and must be from {least} to {most}",
                              reason="InvalidSettings")
    return value
