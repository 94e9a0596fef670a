"""CPUBurst: lets containers that are throttled use more CPU than their limit while the node has some left.

The behaviour is koordlet's (cpu_burst.go); it reads `spec.cpuBurstStrategy` of the node's NodeSLO and the pods'
annotation `koordinator.sh/cpuBurst`. The arithmetic is in `engine.agent.qos_manager.bursting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.bursting import (
    BurstConfig,
    BurstLimiters,
    BurstPod,
    QuotaBurst,
    QuotaChange,
    StaticBurst,
    burst_pod,
    excluded_cpu,
    may_burst,
    node_state,
    overlay_config,
    recover_writes,
    shared_usage,
)
from koordpolicy.engine.agent.qos_manager.node_slo import node_name, node_slo
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.qos_manager.suppression import Writes
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import CPU_BURST_ANNOTATION

DEFAULTS: Final[Mapping[str, Any]] = {
    "policy": "none", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1,
    "sharePoolThresholdPercent": 50,
}
"""koordlet's defaults of `cpuBurstStrategy`."""

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CPUBurstArgs:
    """The arguments of the strategy; its settings are in the NodeSLO."""

    interval: int = _SECOND
    """The interval between two rounds, in nanoseconds."""
    seed: int = 0
    """The seed of the first tokens of containers whose burst is limited in time."""

    @staticmethod
    def of(args: Mapping[str, Any]) -> CPUBurstArgs:
        """Read plain arguments.

        Raises:
            ValueError: an unknown argument, or one out of range.
        """
        interval, seed = read_interval(args, ("seed",)), args.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError("`seed` must be a whole number")  # noqa: TRY004 - a complaint about content
        return CPUBurstArgs(interval, seed)


@dataclass(slots=True)
class _PodEntry:
    """The facts derived from one version of a pod; `burst` is None if its CPU may not burst.

    `excluded` is the request of a pod whose CPU does not count as shared, in milli-cores, None for all other pods.
    """

    pod: PodInfo
    burst: BurstPod | None
    config: BurstConfig
    excluded: int | None
    static: StaticBurst = field(default_factory=StaticBurst)
    quota: QuotaBurst = field(default_factory=QuotaBurst)


@dataclass(slots=True)
class _NodeState:
    """The strategy's state on one node."""

    limiters: BurstLimiters
    section: Mapping[str, Any] = field(default_factory=dict)
    entries: dict[str, _PodEntry] = field(default_factory=dict)


class CPUBurst:
    """The strategy, with the token buckets of containers on each node."""

    name = "CPUBurst"

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self._args = CPUBurstArgs.of(args)
        self._nodes: dict[str, _NodeState] = {}

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._args.interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Set static bursts and quotas of all pods whose CPU may burst."""
        section = _section(readings)
        if section is None:
            return ()
        node = self._update(readings, section)
        state = self._state(readings, node)
        now, files, found = readings.now, readings.files, []
        version = readings.host.cgroup_version
        for entry in node.entries.values():
            pod = entry.burst
            if pod is None:
                continue
            if writes := entry.static.writes(pod, entry.config, files, version=version, now=now):
                found.append(_burst(entry, writes))
            if changes := entry.quota.changes(pod, entry.config, state, node.limiters, readings):
                found.append(_quota(entry, changes, state))
        node.limiters.recycle(now)
        return found

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Set bursts to 0 and quotas to the limits."""
        reason = "the strategy does not run any more"
        found = [
            Adjustment("cpuBurst", pod.key, reason, writes=writes, recovers=True)
            for pod in readings.pods if may_burst(pod) and (writes := recover_writes(pod, readings))
        ]
        self._nodes.pop(node_name(readings), None)
        return found

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the state of the shared CPUs, and the number of pods by policy."""
        section = _section(readings)
        if section is None:
            return (Finding("state", "the NodeSLO has no `cpuBurstStrategy`"),)
        node = self._update(readings, section)
        usage, total = shared_usage(readings, _excluded(node), self._args.interval)
        state = node_state(usage, total, section["sharePoolThresholdPercent"])
        used = "was not measured" if usage is None else f"is {int(usage)}m of {int(total)}m"
        policies: dict[str, int] = {}
        for entry in node.entries.values():
            if entry.burst is not None:
                policies[entry.config.policy] = policies.get(entry.config.policy, 0) + 1
        pods = ", ".join(f"{count} by `{policy}`" for policy, count in sorted(policies.items())) or "none"
        return (
            Finding("state", f"{state}: the usage of shared CPUs {used}, the threshold "
                             f"{section['sharePoolThresholdPercent']}%", facts={"nodeState": state}),
            Finding("pods", f"pods whose CPU may burst: {pods}", facts={"policies": policies}),
        )

    def _update(self, readings: Readings, section: Mapping[str, Any]) -> _NodeState:
        """Return the node's state, with an entry for the current version of each pod."""
        name = node_name(readings)
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _NodeState(BurstLimiters(self._args.seed))
        if node.section != section:
            node.section, node.entries = section, {}
        entries, pods = node.entries, readings.pods
        for pod in pods:
            entry = entries.get(pod.key)
            if entry is None or entry.pod is not pod:
                entries[pod.key] = _entry(pod, section, readings)
        if len(entries) > len(pods):
            keys = {pod.key for pod in pods}
            node.entries = {key: entry for key, entry in entries.items() if key in keys}
        return node

    def _state(self, readings: Readings, node: _NodeState) -> str:
        usage, total = shared_usage(readings, _excluded(node), self._args.interval)
        return node_state(usage, total, node.section["sharePoolThresholdPercent"])


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    CPUBurstArgs.of(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> CPUBurst:
    """Make the strategy for one profile."""
    return CPUBurst(args, handle)


def _section(readings: Readings) -> Mapping[str, Any] | None:
    """Return the node's settings with koordlet's defaults; None if the NodeSLO has none."""
    section = node_slo(readings).sub("cpuBurstStrategy")
    if section is None:
        return None
    found = {**DEFAULTS, **{name: value for name, value in section.values.items() if value is not None}}
    try:
        BurstConfig.of(found)
    except ValueError as error:
        raise EvaluationError(f"`cpuBurstStrategy` of the NodeSLO: {error}", reason="InvalidSettings") from None
    threshold = found["sharePoolThresholdPercent"]
    if isinstance(threshold, bool) or not isinstance(threshold, int):
        raise EvaluationError("`cpuBurstStrategy.sharePoolThresholdPercent` must be a whole number, "
                              f"not {threshold!r}", reason="InvalidSettings")
    return found


def _entry(pod: PodInfo, section: Mapping[str, Any], readings: Readings) -> _PodEntry:
    annotations = (pod.object.get("metadata") or {}).get("annotations") or {}
    config, burst = BurstConfig(), None
    if may_burst(pod):
        config = BurstConfig.of(overlay_config(section, annotations.get(CPU_BURST_ANNOTATION)))
        try:
            burst = burst_pod(pod, readings.directory)
        except ValueError:
            burst = None  # a malformed limit affects its own pod only
    return _PodEntry(pod, burst, config, excluded_cpu(pod))


def _excluded(node: _NodeState) -> list[tuple[str, int]]:
    return [(key, entry.excluded) for key, entry in node.entries.items() if entry.excluded is not None]


def _burst(entry: _PodEntry, writes: Writes) -> Adjustment:
    percent, policy = entry.config.cpu_burst_percent, entry.config.policy
    reason = f"the policy `{policy}` has no static burst"
    if entry.config.is_static:
        reason = f"containers may save up {percent}% of their limit for a burst"
    return Adjustment("cpuBurst", entry.pod.key, reason, values={"policy": policy, "percent": percent or 0},
                      writes=writes)


def _quota(entry: _PodEntry, changes: list[QuotaChange], state: str) -> Adjustment:
    texts = [f"{each.container.key.rpartition('/')[2]} {each.operation} from {each.before} to {each.after}"
             for each in changes]
    values: dict[str, object] = {"nodeState": state, "policy": entry.config.policy}
    values |= {each.container.key.rpartition("/")[2]: each.after for each in changes}
    return Adjustment("cfsQuotaBurst", entry.pod.key, f"CFS quota on a node that is {state}: {', '.join(texts)}",
                      values=values, writes=tuple(write for each in changes for write in each.writes))
