"""Protocols of QoS manager plugins, their inputs and their results.

A strategy is a function of readings: it returns adjustments, and never writes or evicts by itself. So one strategy runs
on a live node, in a dry run, over a recording and in a test, and what it changed can be recorded, explained and
recovered.

Plugins that cannot be such a function have koordlet's life: a `LivingStrategy` and a `QoSExtension` run in a thread of
their own, a `GreyControl` gives pods policies that they do not declare.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import argparse
    import logging
    import threading

    from koordpolicy.engine.cluster.objects.pods import PodInfo

    from .states import States


UNSUPPORTED: Final = "Unsupported"
"""The reason of an `EvaluationError` of a strategy that this machine lacks something for: no fault of its policy."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """An action that a QoS plugin requests on a node: its kind, its subject and the reason.

    `values` are the numbers that led to it, for people. `writes` are the control group files to write, in this order,
    each with its text; an empty tuple for actions that write none. An eviction's `subject` is the pod's key. `recovers`
    marks an action that reverts an earlier adjustment. An eviction with `past_budget` deletes the pod if a
    PodDisruptionBudget refuses its eviction.
    """

    kind: str
    subject: str
    reason: str
    item: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    writes: tuple[tuple[str, str], ...] = ()
    recovers: bool = False
    past_budget: bool = False


@dataclass(frozen=True, slots=True)
class Evictions:
    """The evictions on one node that were requested before a round, by UID of the pod (its key, if it has no UID).

    `leaving` were evicted within the last two minutes, or their request has no answer yet: strategies count them as
    released and do not evict them again. `refused` cannot be evicted now, with the reason: strategies take the next
    candidate instead. `protected` are refused by a PodDisruptionBudget: only an eviction with `past_budget` removes
    them.
    """

    leaving: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    protected: Mapping[str, str] = field(default_factory=dict)

    def permits(self, pod: str, *, past_budget: bool) -> bool:
        """Return whether an eviction of the pod may be requested."""
        return pod not in self.refused and (past_budget or pod not in self.protected)


@dataclass(frozen=True, slots=True)
class Processor:
    """A logical CPU and its position in the topology."""

    cpu: int
    core: int
    socket: int
    numa_node: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The block devices of a node: the numbers (`MAJ:MIN`) of disks, by the names that policies use.

    A volume group's disk is its physical one; `mounts` has the disk of each mount point, `claims` the name of the
    volume that a claim (`namespace/name`) is bound to.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    volume_groups: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """The facts of a machine that do not change while it runs.

    `processors` are in the kernel's order; empty if unknown. `cbm_mask` is the full mask of the last-level cache, in
    hexadecimal without a prefix, and empty where the kernel has no resctrl. `page_size` is in bytes.
    """

    processors: tuple[Processor, ...] = ()
    vendor: str = ""
    flags: frozenset[str] = frozenset()
    cbm_mask: str = ""
    l3_caches: tuple[int, ...] = ()
    cgroup_version: int = 1
    page_size: int = 4096
    storage: Storage = field(default_factory=Storage)


class Readings(Protocol):
    """The state of one node at one time: its objects, the measurements until then, and its control group files.

    Usages are in canonical units (cpu in milli-cores, all else in base units). `statistic` is `avg`, `p50`, `p90`,
    `p95`, `p99`, `last` or `count`; `window` reaches back from `now`, in nanoseconds (0: two collection intervals). A
    usage that was not measured within the window raises `EvaluationError` with reason `NoMetric`: it is never 0.

    Files have logical names: a directory, and the file's name and unit in control groups v1 on both versions
    (`besteffort/cpu.cfs_quota_us`). Directories are `guaranteed`, `burstable`, `besteffort` (Kubernetes' QoS classes),
    below them pods and containers as `directory` names them, `applications/NAME`, and `root` (the root of all control
    groups); files outside of control groups are `resctrl/GROUP/FILE`, `proc/...` and `sys/...`. A file that does not
    exist is not in the mapping.
    """

    @property
    def now(self) -> int:
        """The time, in nanoseconds since the epoch."""
        ...

    @property
    def collect_interval(self) -> int:
        """The time between two collections of usage, in nanoseconds."""
        ...

    @property
    def node(self) -> Mapping[str, Any]:
        """The node as the API server serves it."""
        ...

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node."""
        ...

    @property
    def host(self) -> Host:
        """The machine."""
        ...

    @property
    def files(self) -> Mapping[str, str]:
        """The files by logical name with their text, without the final line break; each is read when looked up."""
        ...

    @property
    def evictions(self) -> Evictions:
        """The earlier evictions on the node, by whichever strategy."""
        ...

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return the logical directory of a pod, or of the container of that name (`besteffort/podUID/main`)."""
        ...

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the object of that kind with the node's name (`NodeSLO`, `NodeResourceTopology`), or None."""
        ...

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the node's usage."""
        ...

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the pod's usage."""
        ...

    def container_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the usage of a container (`namespace/pod/container`).

        The resource `throttled` is the share of CFS periods in which it was throttled, 0 to 1.
        """
        ...

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the usage of a declared host application."""
        ...

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        """Return the CPU of the best-effort tier in milli-cores: its `usage`, `request` or `realLimit`."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A QoS strategy, called once per interval and node."""

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds, above 0."""
        ...

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Return the actions of this round; raises `EvaluationError` if a value is unknown, and then none is taken."""
        ...

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Return the actions that revert all changes of this strategy on the node; idempotent."""
        ...


class Applies(Protocol):
    """Writes adjustments to the node's control group files."""

    def apply(self, adjustments: Sequence[Adjustment]) -> object:
        """Write the files of the adjustments, in order; a file that has its text already is not written.

        A failed write is logged, and stops neither the next one nor the caller. May be called from any thread. In a dry
        run nothing is written.
        """
        ...


class EvictsPods(Protocol):
    """Evicts pods by the API server's eviction, so that disruption budgets are respected."""

    def evict(self, pod: PodInfo, reason: str, message: str = "") -> bool:
        """Evict a pod; return whether it is leaving. May be called from any thread. In a dry run nothing is evicted."""
        ...


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """The access of plugins with a life of their own to the node.

    `readings` returns the node's current readings, and raises `EvaluationError` before the first ones are there.
    `strategies` are the active strategies by name. `options` has the values of the flags that extensions declare.
    `states` has the node's objects and pods with their ages, and calls what is registered there for their changes; the
    callbacks of a plugin end with it. `only_evict_by_api` is always true: containers are never killed through the
    container runtime.
    """

    node: str
    readings: Callable[[], Readings]
    executor: Applies
    evictor: EvictsPods
    strategies: Mapping[str, object]
    log: logging.Logger
    options: argparse.Namespace
    states: States
    only_evict_by_api: bool = True


@runtime_checkable
class LivingStrategy(Protocol):
    """A QoS strategy with a life of its own, as koordlet's are; a `Strategy` is preferred wherever it suffices.

    Its writes and evictions are not recorded and cannot be replayed. A method `recover(readings)` like that of
    `Strategy` is called, if there is one, after it was stopped.
    """

    def enabled(self) -> bool:
        """Return whether it is to run; called once, when the node's objects are known."""
        ...

    def setup(self, context: StrategyContext) -> None:
        """Prepare to run; called once, only if it is enabled. If it raises, the strategy does not run."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, or start that and return at once; called once, in a thread of its own."""
        ...


@runtime_checkable
class QoSExtension(Protocol):
    """An extension of the QoS manager: code with flags and a feature gate of its own, off by default."""

    def init_flags(self, parser: argparse._ArgumentGroup) -> None:
        """Declare the command line flags of the extension; called whatever its gate is."""
        ...

    def setup(self, context: StrategyContext) -> None:
        """Prepare to run; called once, only if the gate is on. If it raises, the extension does not run."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, or start that and return at once; called once, in a thread of its own."""
        ...


class PodPolicy(enum.StrEnum):
    """A policy that a `GreyControl` may give to a pod."""

    CPU_BURST = "CPUBurst"
    """The content of the annotation `koordinator.sh/cpuBurst`."""
    MEMORY_QOS = "MemoryQOS"
    """The content of the annotation `koordinator.sh/memoryQOS`."""


@runtime_checkable
class GreyControl(Protocol):
    """Gives policies to pods that declare none, for example to try one on a share of the pods."""

    def setup(self, context: StrategyContext) -> None:
        """Prepare to run; called once. If it raises, the plugin is left out."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, or start that and return at once; called once, in a thread of its own."""
        ...

    def inject_pod_policy(self, pod: PodInfo, policy: PodPolicy) -> Mapping[str, Any] | None:
        """Return the policy of that kind for the pod, as plain data; None to give none.

        Called once a round for each pod without an annotation of that kind, in the thread of the rounds. The first
        plugin, by order and name, that gives one decides; one that raises is logged and skipped.
        """
        ...
