"""The rounds that CPUEvict and memoryEvict have in common: arguments, settings, cool-down and the choice of evictions.

A strategy evicts by one or more features of koordlet, each behind its own feature gate. It returns evictions as if they
succeeded; which ones did not is in the readings of the next round.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.agent.pod_facts import PodFacts
from koordpolicy.engine.agent.qos_manager.evictions import (
    LEAVING_FOR,
    EvictionCandidate,
    EvictionTask,
    ExecutionResult,
    PriorityOrder,
    ReleaseTarget,
    eviction_id,
    execute_tasks,
    is_terminating,
    priority_request,
    request_contribution,
    requested_up_to,
)
from koordpolicy.engine.agent.qos_manager.node_slo import node_name, node_slo
from koordpolicy.engine.agent.qos_manager.rounds import read_seconds, refuse_unknown
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings

NOT_CONFIGURED: Final = "ResourceThresholdStrategy not config"
MOST_PRIORITY: Final = 7999
"""The largest priority of the band koord-mid: pods above are never evicted for their requests."""
RequestRelease: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Any], int, int], dict[str, int]]
"""Returns the requests to release by resource, of requested and allocatable amounts, threshold and lower bound."""
_SECOND: Final = 1_000_000_000
_HARD: Final = "hardThresholdPercent"
_ARGUMENTS: Final = ("intervalSeconds", "coolTimeSeconds", "features", _HARD)


@dataclass(frozen=True, slots=True)
class EvictionArgs:
    """The arguments of an eviction strategy; times in nanoseconds."""

    interval: int = _SECOND
    cool_time: int = 0
    """The time after an eviction in which there is no other."""
    features: frozenset[str] = frozenset()
    """The features whose gate is on."""
    hard_threshold: int | None = None
    """The node's usage in percent from which pods evicted for usage are deleted past a PodDisruptionBudget.

    It is compared with the node's threshold of evictions in each round, as the NodeSLO has that one.
    """

    @staticmethod
    def of(args: Mapping[str, Any], known: Sequence[str], cool_seconds: float) -> EvictionArgs:
        """Read plain arguments; `known` are the strategy's features, `cool_seconds` is the default of the cool-down.

        Raises:
            ValueError: an unknown argument or feature, or a value out of range.
        """
        refuse_unknown(args, _ARGUMENTS)
        features = args.get("features", [])
        if not isinstance(features, (list, tuple)) or not all(isinstance(each, str) for each in features):
            raise ValueError("`features` must be a list of names")
        others = sorted(set(features) - set(known))
        if others:
            raise ValueError(f"unknown feature `{others[0]}`: known are {', '.join(f'`{name}`' for name in known)}")
        hard = args.get(_HARD)
        if hard is not None and (type(hard) is not int or not 0 < hard <= 100):
            raise ValueError("`hardThresholdPercent` must be a whole number from 1 to 100")
        return EvictionArgs(
            read_seconds(args, "intervalSeconds", 1), read_seconds(args, "coolTimeSeconds", cool_seconds, zero=True),
            frozenset(features), hard,
        )


class SettingError(ValueError):
    """A feature's settings in the NodeSLO are missing or invalid; the message says which."""


class ThresholdSection:
    """`spec.resourceUsedThresholdWithBE` of a NodeSLO, or None if it has none."""

    def __init__(self, section: Mapping[str, Any] | None) -> None:
        self.present = section is not None
        self._fields: Mapping[str, Any] = section or {}

    def number(self, name: str) -> int | None:
        """Return a whole number; None if the field is not set. Raises `SettingError` for any other value."""
        value = self._fields.get(name)
        if value is not None and type(value) is not int:
            raise SettingError(f"`{name}` must be a whole number, not {value!r}")
        return value

    def text(self, name: str) -> str:
        """Return a text; empty if the field is not set."""
        return str(self._fields.get(name) or "")

    @property
    def enabled(self) -> object:
        """The field `enable` as it is."""
        return self._fields.get("enable")


def check_lower(lower: int, threshold: int) -> None:
    """Raise `SettingError` if the lower bound of a threshold is not below it."""
    if lower >= threshold:
        raise SettingError(f"lower percent({lower}) should less than threshold percent({threshold})")


def check_request_priority(section: ThresholdSection) -> int:
    """Return the priority up to which pods are evicted for their requests; raise `SettingError` if it is invalid."""
    threshold = section.number("allocatableEvictPriorityThreshold")
    if threshold is None:
        raise SettingError("AllocatableEvictPriorityThreshold not config")
    if threshold > MOST_PRIORITY:
        raise SettingError(
            f"priorityThresholdPercent({threshold}) should less than {MOST_PRIORITY},"
            " koor-prod pods should not be killed")
    return threshold


def check_usage_priority(section: ThresholdSection) -> int:
    """Return the priority up to which pods are evicted for the node's usage; raise `SettingError` if there is none."""
    threshold = section.number("evictEnabledPriorityThreshold")
    if threshold is None:
        raise SettingError("EvictEnabledPriorityThreshold not config")
    return threshold


def read_request_bounds(section: ThresholdSection, resource: str, feature: str, least: str) -> tuple[int, int, int]:
    """Return threshold and lower bound of requests, in percent, and the priority up to which pods count.

    The settings are named by the `resource`, in koordlet's errors by the `feature`; `least` is its word for a bound
    of 0.

    Raises:
        SettingError: they are invalid.
    """
    if not section.present:
        raise SettingError(NOT_CONFIGURED)
    threshold = section.number(f"{resource}AllocatableEvictThresholdPercent")
    if threshold is None:
        raise SettingError(f"{feature}ThresholdPercent not config")
    if threshold < 0:
        raise SettingError(f"threshold percent({threshold}) should {least} than 0")
    lower = section.number(f"{resource}AllocatableEvictLowerPercent")
    if lower is None:
        raise SettingError(f"{feature}LowerPercent not config")
    check_lower(lower, threshold)
    return threshold, lower, check_request_priority(section)


@dataclass(slots=True)
class NodeCooling:
    """The latest evictions of a strategy on a node, and the time that its cool-down counts from; in nanoseconds."""

    last: int
    before: int
    """The time of the last eviction before the latest round that evicted."""
    evicted_at: dict[str, int] = field(default_factory=dict)
    """Times of evictions by `eviction_id`, of the last two minutes."""
    latest: frozenset[str] = frozenset()
    """The evictions of the latest round that evicted."""

    def update(self, readings: Readings) -> None:
        """Forget evictions that are long ago or were refused; if all of the latest were refused, so is its time."""
        now = readings.now
        refused = readings.evictions.refused.keys() | readings.evictions.protected.keys()
        if self.latest and self.latest <= refused:
            self.last, self.latest = self.before, frozenset()
        self.evicted_at = {
            each: time for each, time in self.evicted_at.items() if each not in refused and now - time < LEAVING_FOR
        }


class EvictionStrategy(ABC):
    """A strategy that evicts pods to release one resource of a node."""

    name: str
    resource: str
    """`cpu` or `memory`."""
    features: tuple[str, ...]
    """The features that it evicts by, in order."""
    cool_seconds: float
    waits_first: bool
    """True if the cool-down also runs from the first round on."""

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self.args = EvictionArgs.of(args, self.features, self.cool_seconds)
        log = getattr(handle, "log", None)
        self._log = log if isinstance(log, logging.Logger) else logging.getLogger(f"koordpolicy.qos.{self.name}")
        self.states: dict[str, NodeCooling] = {}
        """By the node's name."""
        self._warned: dict[tuple[str, str], str] = {}
        self._requests = PodFacts(lambda pod: priority_request(pod, self.resource))

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self.args.interval

    @abstractmethod
    def task(self, feature: str, section: ThresholdSection, readings: Readings, capacity: int) -> EvictionTask | None:
        """Return the feature's task, or None if nothing is to be released.

        `capacity` is the node's, above 0. Raises `SettingError` if the settings are invalid, and `EvaluationError` if
        a value is unknown; the other features go on.
        """

    @abstractmethod
    def node_percent(self, readings: Readings, capacity: int) -> int:
        """Return the node's usage in whole percent of its capacity; raise `EvaluationError` if it is unknown."""

    def task_by_requests(
        self, feature: str, readings: Readings, bounds: tuple[int, int, int], release_of: RequestRelease,
        usage_factor: int = 1,
    ) -> EvictionTask | None:
        """Return the task of a feature that evicts for requests, or None if nothing is to be released.

        `bounds` are threshold, lower bound and priority; `usage_factor` multiplies the usage of candidates.
        """
        threshold, lower, priority = bounds
        allocatable = (readings.node.get("status") or {}).get("allocatable") or {}
        release = release_of(
            requested_up_to(self._requests.of(readings.pods), priority), allocatable, threshold, lower)
        if not release:
            return None
        order = PriorityOrder(feature, self.resource, priority, ReleaseTarget.REQUESTS, usage_factor)
        return EvictionTask(
            reason_of(feature), order.candidates(readings), release, ReleaseTarget.REQUESTS,
            request_contribution(self.resource, release), feature)

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Return the evictions of this round."""
        node = node_name(readings)
        state = self.states.get(node)
        if state is None:
            started = readings.now if self.waits_first else readings.now - self.args.cool_time
            state = self.states[node] = NodeCooling(started, started)
        state.update(readings)
        if readings.now - state.last < self.args.cool_time:
            return ()
        result = self._execute(readings, state)
        chosen = frozenset(eviction_id(each.candidate.pod) for each in result.evictions)
        if chosen:
            state.before, state.last, state.latest = state.last, readings.now, chosen
            state.evicted_at |= dict.fromkeys(chosen, readings.now)
        return tuple(
            Adjustment(
                "evict", each.candidate.pod.key, f"{each.task.reason}, kill pod: {each.candidate.pod.name}",
                each.task.feature,
                {"target": each.task.target.value, "toRelease": dict(each.task.to_release),
                 "releases": dict(each.releases)},
                past_budget=each.task.past_budget,
            )
            for each in result.evictions
        )

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Return nothing: an eviction cannot be reverted."""
        return ()

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return the task of each feature, the pods that the round would evict, and the rest of the cool-down."""
        section = read_section(readings)
        if not section.enabled:
            return (Finding("state", "disabled in the NodeSLO: `resourceUsedThresholdWithBE.enable` is false"),)
        found: list[Finding] = []
        state = self.states.get(node_name(readings))
        rest = state.last + self.args.cool_time - readings.now if state is not None else 0
        if rest > 0:
            found.append(Finding("state", f"cooling down for {rest / _SECOND:g}s more", facts={"nanoseconds": rest}))
        capacity = self._capacity(readings)
        for feature in self.features:
            if feature not in self.args.features:
                found.append(Finding("state", f"{feature}: its feature gate is off"))
                continue
            try:
                task = self.task(feature, section, readings, capacity)
            except (SettingError, EvaluationError) as error:
                found.append(Finding("state", f"{feature}: {error}"))
                continue
            if task is None:
                found.append(Finding("state", f"{feature}: nothing to release"))
                continue
            amounts = ", ".join(f"{amount} of {name}" for name, amount in sorted(task.to_release.items()))
            found.append(Finding(
                "target", f"{feature}: {amounts or 'nothing'} to release, {len(task.candidates)} candidates",
                facts={"feature": feature, "toRelease": dict(task.to_release),
                       "candidates": [each.pod.key for each in task.candidates]},
            ))
        return tuple(found)

    def _execute(self, readings: Readings, state: NodeCooling) -> ExecutionResult:
        section = read_section(readings)
        if not section.enabled:
            return ExecutionResult()
        capacity = self._capacity(readings)
        tasks: list[EvictionTask] = []
        problems: list[str] = []
        active = [feature for feature in self.features if feature in self.args.features]
        for feature in active:
            try:
                task = self.task(feature, section, readings, capacity)
            except SettingError as error:
                problems.append(self._warn(node_name(readings), feature, str(error)))
                continue
            except EvaluationError:
                continue  # without a metric the feature releases nothing
            self._warned.pop((node_name(readings), feature), None)
            if task is not None:
                tasks.append(task)
        if active and len(problems) == len(active):
            raise EvaluationError("; ".join(problems), reason="InvalidSettings")
        view = readings.evictions

        def is_leaving(pod: PodInfo) -> bool:
            each = eviction_id(pod)
            return is_terminating(pod) or each in view.leaving or each in state.evicted_at

        def evict(task: EvictionTask, candidate: EvictionCandidate) -> bool:
            return view.permits(eviction_id(candidate.pod), past_budget=task.past_budget)

        return execute_tasks(tasks, is_leaving, evict)

    def _warn(self, node: str, feature: str, message: str) -> str:
        """Log settings that are invalid, once until they change; return the message."""
        text = f"{feature}: {message}"
        if self._warned.get((node, feature)) != message:
            self._warned[node, feature] = message
            self._log.warning("node %s: %s", node, text)
        return text

    def _capacity(self, readings: Readings) -> int:
        capacity = (readings.node.get("status") or {}).get("capacity") or {}
        amount = canonical_amount(self.resource, capacity.get(self.resource, "0"), f"status.capacity.{self.resource}")
        if amount <= 0:
            raise EvaluationError(f"node `{node_name(readings)}` has no capacity of {self.resource}")
        return amount

    def hard_threshold(self, readings: Readings, threshold: int) -> int | None:
        """Return the usage in percent from which budgets are passed, if there is one; always above `threshold`.

        One that is not above the node's `threshold` of evictions by usage would let every eviction pass budgets: it
        counts as the next percent, and is logged once until the settings change.
        """
        hard = self.args.hard_threshold
        if hard is None or hard > threshold:
            self._warned.pop((node_name(readings), _HARD), None)
            return hard
        self._warn(node_name(readings), _HARD, (
            f"{hard} is not above the threshold of evictions: budgets are passed above {threshold} percent"))
        return threshold + 1

    def is_past(self, hard: int | None, readings: Readings, capacity: int) -> bool:
        """Return whether the node's usage reaches the hard threshold, if there is one."""
        return hard is not None and self.node_percent(readings, capacity) >= hard


def reason_of(feature: str) -> str:
    """Return koordlet's reason for the evictions of a feature."""
    return f"trigger by koordlet feature {feature}"


def read_section(readings: Readings) -> ThresholdSection:
    """Return the thresholds of the node's NodeSLO.

    Raises:
        EvaluationError: there is no NodeSLO, or it does not say whether the thresholds are enabled.
    """
    thresholds = node_slo(readings).sub("resourceUsedThresholdWithBE")
    section = ThresholdSection(None if thresholds is None else thresholds.values)
    if not isinstance(section.enabled, bool):
        raise EvaluationError(
            f"the NodeSLO of `{node_name(readings)}` does not say `resourceUsedThresholdWithBE.enable`")
    return section
