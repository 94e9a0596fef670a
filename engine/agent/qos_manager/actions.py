"""The kinds of actions of QoSPlugins, in one table, with their implementations.

An action never changes a machine here: it yields `Adjustment`s, with the control group files to write or the pod to
evict. A kind that documents may name but that is not implemented yet is refused with its position.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.compile import CompiledQoS, EvictProgram, SuppressCPUProgram
from koordpolicy.engine.documents import Effect, EvictAction, EvictionRelease, SuppressCPU
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    EVICTION_POLICY_ANNOTATION,
    MID,
    priority_band,
    resource_name,
)
from koordpolicy.engine.source import PolicyError, Problem

from .suppression import (
    CPUSET_FILE,
    Topology,
    choose_best_effort_cpus,
    parse_cpuset,
    read_topology,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
)

AVAILABLE: Final[Mapping[type[Effect], str]] = {SuppressCPU: "suppressCPU", EvictAction: "evict"}
"""The implemented effects, with their key in documents. All others are refused as `not available yet`."""


def refuse_unavailable(plugin: CompiledQoS) -> None:
    """Raise `PolicyError` with the position of every action of a kind that is not available yet."""
    problems = [
        Problem(
            f"action `{action.name}`: this kind is not available yet", action.span,
            f"available are {', '.join(f'`{each}`' for each in AVAILABLE.values())}", code="not-available",
        )
        for action in plugin.spec.actions if type(action.effect) not in AVAILABLE
    ]
    if problems:
        raise PolicyError(problems)


@dataclass(frozen=True, slots=True)
class ActionRound:
    """The inputs of an action in one round: the readings, its numbers, and the candidates of an eviction in order.

    `target` is the evaluated target (milli-cores) or amount to release; `evicted` are the keys of pods that are already
    leaving.
    """

    readings: Readings
    subject: str
    target: float
    candidates: Sequence[PodInfo] = ()
    evicted: frozenset[str] = frozenset()


Effects: TypeAlias = tuple[Adjustment, ...]


def suppress_cpu(program: SuppressCPUProgram, item: str, given: ActionRound) -> Effects:
    """Limit the node's best-effort tier to `target` milli-cores; return no adjustment if it already is."""
    if not math.isfinite(given.target):
        raise EvaluationError(f"the target of `{item}` is not a number of milli-cores: {given.target}")
    amount, readings = int(given.target), given.readings
    if program.policy == "CFSQuota":
        writes = set_quota(amount, readings.files, _capacity(readings))
    else:
        topology = _topology(readings)
        cpus = choose_best_effort_cpus(amount, parse_cpuset(readings.files.get(CPUSET_FILE, "")), topology)
        writes = set_cpus(cpus, readings.files, topology) if cpus else ()
    if not writes:
        return ()
    reason = f"best-effort pods may use {amount}m of cpu"
    values = {"target": amount, "policy": program.policy}
    return (Adjustment("suppressCPU", given.subject, reason, item, values, writes),)


def recover_cpu(program: SuppressCPUProgram, item: str, subject: str, readings: Readings, reason: str) -> Effects:
    """Revert `suppress_cpu`."""
    if program.policy == "CFSQuota":
        writes = recover_quota(readings.files)
    else:
        writes = recover_cpus(readings.files, _topology(readings))
    if not writes:
        return ()
    return (Adjustment("suppressCPU", subject, reason, item, {"policy": program.policy}, writes, recovers=True),)


def evict(program: EvictProgram, item: str, given: ActionRound, criteria: str) -> Effects:
    """Evict candidates in order until their usage or requests reach `target`; without a release, only the first one.

    Pods that are already leaving count towards the target and are not evicted again.
    """
    release = program.release
    if release is None:
        if any(pod.key in given.evicted for pod in given.candidates):
            return ()
        first = given.candidates[:1]
        return tuple(Adjustment("evict", pod.key, f"evicted by {criteria}", item) for pod in first)
    released, found = 0.0, []
    for pod in (*(p for p in given.candidates if p.key in given.evicted),
                *(p for p in given.candidates if p.key not in given.evicted)):
        if released >= given.target:
            break
        try:
            amount = _counts_for(pod, release, given.readings)
        except EvaluationError:
            continue  # the released amount of a pod that was not measured is unknown
        released += amount
        if pod.key not in given.evicted:
            reason = f"evicted by {criteria} to release {given.target:g} of {release.resource}, {released:g} so far"
            values = {"released": amount, "toRelease": given.target, "resource": release.resource}
            found.append(Adjustment("evict", pod.key, reason, item, values))
    return tuple(found)


def _counts_for(pod: PodInfo, release: EvictionRelease, readings: Readings) -> float:
    if release.measure == "Requests":
        return request_of(pod.object, release.resource)[1]
    return readings.pod_usage(pod.key, release.resource)


def eviction_allowed(pod: Mapping[str, Any], policy: str) -> bool:
    """Return whether the pod's eviction policy allows an eviction by that feature: it names the feature, or the pod has
    none. An annotation that is not a JSON list of strings allows nothing.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if EVICTION_POLICY_ANNOTATION not in annotations:
        return True
    try:
        allowed = json.loads(annotations[EVICTION_POLICY_ANNOTATION])
    except (TypeError, ValueError):
        return False
    return isinstance(allowed, list) and all(isinstance(each, str) for each in allowed) and policy in allowed


def request_of(pod: Mapping[str, Any], resource: str) -> tuple[str, int]:
    """Return a pod's request of `cpu` or `memory`: the resource's name in the pod's band, and the amount.

    Batch and mid pods have their own resource names, summed over containers and sidecars; all others follow Kubernetes'
    rule.
    """
    band = priority_band(pod)
    if band not in (BATCH, MID):
        return resource, PodInfo.of(pod).requests[resource]
    name, spec = resource_name(resource, band), pod.get("spec") or {}
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    amounts = [
        canonical_amount(name, ((each.get("resources") or {}).get("requests") or {}).get(name, "0"), name)
        for each in (*(spec.get("containers") or ()), *sidecars)
    ]
    return name, sum(max(amount, 0) for amount in amounts)


def _capacity(readings: Readings) -> int:
    capacity = (readings.node.get("status") or {}).get("capacity") or {}
    return canonical_amount("cpu", capacity.get("cpu", "0"), "status.capacity.cpu")


def _topology(readings: Readings) -> Topology:
    """Return the node's processors, read from its NodeResourceTopology; empty without one."""
    return read_topology(readings.object("NodeResourceTopology") or {}, [pod.object for pod in readings.pods])
