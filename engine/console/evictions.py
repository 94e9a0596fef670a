"""The views of the descheduler: what one dry cycle would evict now, and why a pod or a node is spared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.explanation import ExplainEvictionRequest, explain_eviction
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult, EvictionOutcome
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.texts import first_of

from .models.evictions import EvictionsView, EvictionView, PlannedEviction, SparedPods
from .state import ConsoleState

_MOST_EVICTIONS: Final = 500
_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class DryCycle:
    """The result of a dry cycle of the descheduler, with its configuration and profiles."""

    configuration: config.DeschedulerConfiguration
    profiles: tuple[DeschedulerProfile, ...]
    result: CycleResult


def dry_cycle(state: ConsoleState) -> DryCycle:
    """Return a cycle over the cluster under the active policies; cached until the state changes.

    Raises:
        PolicyError: the plugins of the descheduler's configuration cannot be made.
        OverdueError: the deadline of the thread passed.
    """
    return state.derived("dry cycle", lambda: _run(state))


def _run(state: ConsoleState) -> DryCycle:
    configuration = state.descheduler or config.default()
    snapshot = state.snapshot
    profiles = build_profiles(configuration.profiles, state.policies.registry, dry_run=True, snapshot=lambda: snapshot,
                              memory=SourceStreaks())
    result = run_cycle(profiles, snapshot, limits=configuration.limits, node_selector=configuration.node_selector)
    return DryCycle(configuration, profiles, result)


def evictions_view(state: ConsoleState) -> EvictionsView:
    """Return the pods that a cycle would evict now, and the reasons why other candidates stay.

    Raises:
        PolicyError: the plugins of the descheduler's configuration cannot be made.
        OverdueError: the deadline of the thread passed.
    """
    cycle = dry_cycle(state)
    spared: dict[tuple[str, str, str], list[str]] = {}
    evicted: list[PlannedEviction] = []
    for each in cycle.result.outcomes:
        decision = each.decision
        if decision.evicted:
            evicted.append(planned(each))
        else:
            why = shortened(decision.message)
            spared.setdefault((decision.plugin, decision.stopped_by, why), []).append(each.pod)
    shown, evicted_left_out = first_of(evicted, _MOST_EVICTIONS)
    reasons, spared_left_out = first_of(sorted(spared.items(), key=lambda item: -len(item[1])), _MOST_REASONS)
    return EvictionsView(
        plugins=[running.name for profile in cycle.profiles for running in (*profile.deschedule, *profile.balance)],
        evicted=list(shown), evicted_left_out=evicted_left_out,
        spared=[SparedPods(plugin=plugin, stopped_by=by, reason=why, pods=len(pods), example=pods[0])
                for (plugin, by, why), pods in reasons],
        spared_left_out=spared_left_out,
        failure=shortened(cycle.result.error))


def planned(outcome: EvictionOutcome) -> PlannedEviction:
    """Return an eviction of a dry cycle as a model."""
    pod, node, decision = outcome
    return PlannedEviction(pod=pod, node=node, plugin=decision.plugin,
                           reason=shortened(decision.reason or decision.rule))


def eviction_view(state: ConsoleState, key: str) -> EvictionView:
    """Return whether a cycle would evict a pod now, and the result of each plugin for it.

    Raises:
        UnknownNameError: there is no such pod.
        PolicyError: the plugins of the descheduler's configuration cannot be made.
        OverdueError: the deadline of the thread passed.
    """
    pod, cycle = state.pod(key), dry_cycle(state)
    evicted, finding = explain_eviction(ExplainEvictionRequest(
        pod, cycle.profiles, state.snapshot, cycle.configuration.limits, cycle.configuration.node_selector,
        result=cycle.result))
    return EvictionView(pod=key, evicted=evicted, explanation=finding.to_json())
