"""The models of the overview."""

from __future__ import annotations

from .model import Model
from .servers import KindAge


class Waiting(Model, frozen=True, kw_only=True, rename="camel"):
    """A pending pod with the reason."""

    pod: str
    node: str | None
    """The node that it would get now; null if no node takes it."""
    message: str


class Gauge(Model, frozen=True, kw_only=True, rename="camel"):
    """One resource of the whole cluster."""

    resource: str
    unit: str
    allocatable: int
    requested: int
    used: int | float


class ClusterOverview(Model, frozen=True, kw_only=True, rename="camel"):
    """The state of the cluster and of the policies."""

    now: str
    source: str
    nodes: int
    unschedulable: int
    measured: int
    running: int
    pending: int
    gauges: list[Gauge]
    policies: dict[str, int]
    """The number of policies by kind."""
    digest: str
    """A hash of the files: of their names and texts."""
    errors: int
    warnings: int
    decided: int
    """The number of pending pods that were decided about: those of the highest priority."""
    waiting: list[Waiting]
    """Of these, pods without a node first."""
    waiting_left_out: int
    lacking: list[str]
    """Kinds that plugins read and that the dump lacks."""
    kinds: list[KindAge] = []
    """The watches of a cluster that is followed, those at fault and the oldest first."""
