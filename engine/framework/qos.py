"""What plugins of the QoS manager fulfil, and what they read and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What a QoS plugin wants done on a node: an action by its kind, what it is done to, and why.

    `values` are the numbers that led to it, for people. `writes` are the control group files to write, in this order,
    each with its text; an empty tuple for actions that write none. An eviction's `subject` is the pod's key. `recovers`
    marks what gives back an earlier adjustment.
    """

    kind: str
    subject: str
    reason: str
    item: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    writes: tuple[tuple[str, str], ...] = ()
    recovers: bool = False


class Readings(Protocol):
    """One node at one moment: its objects, what was measured on it up to then, and its control group files.

    Usages are in canonical units (cpu in milli-cores, all else in base units). `statistic` is `avg`, `p50`, `p90`,
    `p95`, `p99`, `last` or `count`; `window` reaches back from `now`, in nanoseconds (0: two collection intervals). A
    usage that was not measured within the window raises `EvaluationError` with reason `NoMetric`: it is never 0.
    """

    @property
    def now(self) -> int:
        """The moment, in nanoseconds since the epoch."""
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
        """Return the object of that kind with the node's name (`NodeSLO`, `NodeResourceTopology`), if there is one."""
        ...

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what the node used."""
        ...

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what the pod used."""
        ...

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what a declared host application used."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """Asked once per interval and node: what is to be adjusted for the sake of the quality of service."""

    @property
    def interval(self) -> int:
        """How long the QoS manager waits between two rounds, in nanoseconds, above 0."""
        ...

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Return what to do now; raises `EvaluationError` where that cannot be told, and then nothing is done."""
        ...

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Return what gives back all that this strategy changed on the node; idempotent."""
        ...
