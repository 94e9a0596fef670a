"""The parts of a node agent that its daemon is made of, as protocols: the other folders of the agent implement them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment, Evictions, Host
from koordpolicy.engine.framework.states import States

from .resource_executor.results import AdjustmentResult


class AgentClock(Protocol):
    """The two clocks of an agent: what is due is decided by the monotonic one, what is measured has wall time."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        ...

    def wall(self) -> int:
        """Return nanoseconds since the epoch; may jump."""
        ...


class SystemClock:
    """The machine's clocks (implements `AgentClock`)."""

    def monotonic(self) -> float:
        """Return the seconds of the monotonic clock."""
        return time.monotonic()

    def wall(self) -> int:
        """Return the nanoseconds since the epoch."""
        return time.time_ns()


class UsageReadings(Protocol):
    """The statistics half of a node's readings at one time: see `Readings` and `NodeReadings` for the methods."""

    @property
    def collect_interval(self) -> int: ...  # noqa: D102 - see the class

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float: ...  # noqa: D102 - see the class
    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float: ...  # noqa: D102 - see the class

    def container_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float: ...  # noqa: D102 - see the class

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float: ...  # noqa: D102 - see the class

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float: ...  # noqa: D102 - see the class
    def measured(self, what: str, name: str, statistic: str, window: int) -> dict[str, float]: ...  # noqa: D102 - see the class
    def age(self) -> int: ...  # noqa: D102 - see the class


class UsageStore(Protocol):
    """The metric cache."""

    def at(self, now: int) -> UsageReadings:
        """Return the measurements until a time, in nanoseconds since the epoch."""
        ...


class NodeObjects(Protocol):
    """The states of the node: its objects, and the pods of its kubelet."""

    @property
    def node(self) -> Mapping[str, Any] | None:
        """The Node; None if it is not known."""
        ...

    @property
    def node_slo(self) -> Mapping[str, Any] | None:
        """The effective NodeSLO; None if there is none."""
        ...

    @property
    def topology(self) -> Mapping[str, Any] | None:
        """The NodeResourceTopology; None if there is none."""
        ...

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node, with container ids."""
        ...


class AppliesAdjustments(Protocol):
    """The executor of writes; times are in nanoseconds of the monotonic clock. It logs what fails."""

    def apply(self, adjustments: Sequence[Adjustment], now: int) -> Sequence[AdjustmentResult]:
        """Write the files of the adjustments, in order."""
        ...

    def restore(self, now: int, paths: Iterable[str] | None = None) -> Sequence[object]:
        """Give these files (by path on the machine), or all in the journal, their original values back."""
        ...

    def recover_again(self, now: int) -> Sequence[object]:
        """Give the files whose recovery failed their original values back, if it is time for another attempt."""
        ...


class EvictionQueue(Protocol):
    """The evictor. It never waits, and logs what becomes of a request; nothing is evicted by an old list of pods."""

    @property
    def evictions(self) -> Evictions:
        """The pods that are leaving, and those that cannot be evicted now."""
        ...

    def evict(self, pod: PodInfo, adjustment: Adjustment) -> None:
        """Begin an eviction."""
        ...


@dataclass(frozen=True, slots=True)
class PeriodicCollector:
    """A collector of measurements, called at its interval (seconds) with the time in ns since the epoch."""

    name: str
    interval: float
    collect: Callable[[int], object]


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of one node's agent.

    `files` returns the files for one round of a strategy: each is read at most once in it. Collectors that are due
    together run in their order. `is_synced` says whether node and pods are known and measured, `run_callbacks` runs
    what waits for a change. `journaled` returns the paths of the files whose original values are in the journal, of
    this process and of one that died. `claims` returns the volumes that claims are bound to.
    """

    node: str
    host: Host
    states: States
    usage: UsageStore
    files: Callable[[], Mapping[str, str]]
    executor: AppliesAdjustments
    evictor: EvictionQueue
    collectors: Sequence[PeriodicCollector] = ()
    is_synced: Callable[[], bool] = lambda: True
    run_callbacks: Callable[[], object] = lambda: None
    claims: Callable[[], Mapping[str, str]] = dict
    journaled: Callable[[], frozenset[str]] = frozenset
    clock: AgentClock = field(default_factory=SystemClock)
