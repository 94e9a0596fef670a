"""The state of documents' strategies between rounds: timers of thresholds, effects of actions, leaving pods."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeAlias

from koordpolicy.engine.compile import ActionProgram, ThresholdProgram
from koordpolicy.engine.framework.qos import Evictions

from ..pod_facts import PodFacts
from .bursting import BurstLimiters, PodBurst
from .evictions import LEAVING_FOR
from .resctrl import TaskSchedule

StateKey: TypeAlias = tuple[str, str, str]
"""The key of a threshold or action, the node's name and the subject's name."""


@dataclass(slots=True)
class Timer:
    """The timer of a threshold: since when its expression is true, whether it holds, when it last began and ceased to
    hold (in ns).
    """

    since: int | None = None
    holds: bool = False
    ceased: int | None = None
    began: int | None = None

    def update(self, true: bool, threshold: ThresholdProgram, now: int) -> bool:
        """Update the timer with the expression's value; return whether the threshold holds."""
        if not true:
            self.since = None
            if self.holds and (self.began is None or now - self.began >= threshold.hold_for_ns):
                self.ceased, self.holds = now, False
            return self.holds
        if self.since is None:
            self.since = now
        cold = self.ceased is None or now - self.ceased >= threshold.cool_down_ns
        if not self.holds and cold and now - self.since >= threshold.for_ns:
            self.began, self.holds = now, True
        return self.holds


@dataclass(slots=True)
class AppliedAction:
    """An action that has an effect on a node: `originals` are the texts of its files before its first change."""

    action: ActionProgram
    originals: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class LatestEvictions:
    """The latest evictions of an action for one subject; times in nanoseconds, None if there were none."""

    time: int | None = None
    before: int | None = None
    """The time of the evictions before the latest ones."""
    pods: frozenset[str] = frozenset()
    """By `eviction_id`."""

    def note(self, pods: frozenset[str], now: int) -> None:
        """Record evictions."""
        self.before, self.time, self.pods = self.time, now, pods

    def update(self, view: Evictions) -> None:
        """Forget the latest evictions if all of them were refused, so that others are chosen at once."""
        if self.pods and self.pods <= view.refused.keys() | view.protected.keys():
            self.time, self.pods = self.before, frozenset()


@dataclass(slots=True)
class StrategyState:
    """The state that survives generations: timers of thresholds, effects of actions, leaving pods."""

    timers: dict[StateKey, Timer] = field(default_factory=dict)
    applied: dict[StateKey, AppliedAction] = field(default_factory=dict)
    evicted: dict[str, int] = field(default_factory=dict)
    """Times of evictions by `eviction_id`."""
    evictions: dict[StateKey, LatestEvictions] = field(default_factory=dict)
    failing: dict[StateKey, int] = field(default_factory=dict)
    task_schedules: dict[tuple[str, str], TaskSchedule] = field(default_factory=dict)
    """The schedules of `resctrl` actions, by key of the action and QoS class; each distinguishes nodes by itself."""
    limiters: dict[StateKey, BurstLimiters] = field(default_factory=dict)
    burst_pods: dict[StateKey, PodFacts[PodBurst | ValueError | None]] = field(default_factory=dict)
    """The pods of `cpuBurst` actions, with the files and limits of their containers, and their static bursts."""

    def clear(self) -> None:
        """Forget everything, as before the first round."""
        for each in fields(self):
            getattr(self, each.name).clear()

    def leaving(self, now: int) -> frozenset[str]:
        """Return the pods that were evicted within two minutes, by `eviction_id`."""
        self.evicted = {pod: time for pod, time in self.evicted.items() if now - time < LEAVING_FOR}
        return frozenset(self.evicted)
