"""Protocols of QoS manager plugins, their inputs and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo


@dataclass(frozen=True, slots=True)
class Adjustment:
    """An action that a QoS plugin requests on a node: its kind, its subject and the reason.

    `values` are the numbers that led to it, for people. `writes` are the control group files to write, in this order,
    each with its text; an empty tuple for actions that write none. An eviction's `subject` is the pod's key. `recovers`
    marks an action that reverts an earlier adjustment.
    """

    kind: str
    subject: str
    reason: str
    item: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    writes: tuple[tuple[str, str], ...] = ()
    recovers: bool = False


class Readings(Protocol):
    """The state of one node at one time: its objects, the measurements until then, and its control group files.

    Usages are in canonical units (cpu in milli-cores, all else in base units). `statistic` is `avg`, `p50`, `p90`,
    `p95`, `p99`, `last` or `count`; `window` reaches back from `now`, in nanoseconds (0: two collection intervals). A
    usage that was not measured within the window raises `EvaluationError` with reason `NoMetric`: it is never 0.
    """

    @property
    def now(self) -> int:
        """The time, in nanoseconds since the epoch."""
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
    def files(self) -> Mapping[str, str]:
        """The control group files by logical name (`besteffort/cpu.cfs_quota_us`) with their text."""
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

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return the usage of a declared host application."""
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
