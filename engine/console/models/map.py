"""The models of the cluster map and of its nodes."""

from __future__ import annotations

from typing import Any

from .evictions import PlannedEviction
from .model import Model


class Group(Model, frozen=True, kw_only=True, rename="camel"):
    """Nodes that are drawn together."""

    name: str
    nodes: int


class Colouring(Model, frozen=True, kw_only=True, rename="camel"):
    """A colouring of the map that is offered by name."""

    name: str
    expression: str
    unit: str = ""


class MapView(Model, frozen=True, kw_only=True, rename="camel"):
    """The nodes of the cluster map, by row; rows are sorted by name."""

    now: str
    """The time of the snapshot, RFC 3339."""
    layout: int
    """A number for these nodes in this order; a `ColourView` with another number is about other rows."""
    nodes: list[str]
    grouping: str
    """`zone`, `region`, `none`, or a label's key."""
    groupings: list[str]
    """The groupings that are offered: the label keys with few values."""
    groupings_left_out: int
    groups: list[Group]
    group_of: list[int]
    """The group of each row."""
    colourings: list[Colouring]


class ColourView(Model, frozen=True, kw_only=True, rename="camel"):
    """The value of an expression on each node, for the map.

    Either `numbers` or `classes` and `codes` have one entry per row: null and -1 where the expression failed.
    """

    expression: str
    type: str
    layout: int = 0
    """The `layout` of the map that it colours."""
    numbers: list[int | float | None] = []
    lowest: int | float | None = None
    highest: int | float | None = None
    classes: list[str] = []
    codes: list[int] = []
    failed: int = 0
    failure: str = ""
    """The commonest error."""


class Amount(Model, frozen=True, kw_only=True, rename="camel"):
    """One resource of a node: cpu in milli-cores, all else in base units."""

    resource: str
    unit: str
    allocatable: int
    requested: int
    used: int | float | None = None


class PodLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod in a list."""

    key: str
    node: str = ""
    qos_class: str = ""
    priority_band: str = ""
    requests: dict[str, int] = {}


class Opinion(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of all plugins about one pending pod and one node."""

    pod: str
    passed: bool
    plugin: str = ""
    """The first plugin that refused the node, or the pod as a whole."""
    rule: str = ""
    reason: str = ""


class Taint(Model, frozen=True, kw_only=True, rename="camel"):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeCondition(Model, frozen=True, kw_only=True, rename="camel"):
    """A condition of a node."""

    type: str
    status: str
    reason: str = ""


class DeviceLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A device of a node. Shares are percentages of the device."""

    type: str
    minor: int
    healthy: bool
    free: float | None
    """The share that no pod holds; null for devices that are not GPUs."""
    pods: list[str]
    """The pods that hold a part of it."""


class NodeDetails(Model, frozen=True, kw_only=True, rename="camel"):
    """One node."""

    name: str
    zone: str
    region: str
    unschedulable: bool
    measured: bool
    metric_age: float | None
    """Seconds; null if it never had a metric."""
    labels: dict[str, str]
    taints: list[Taint]
    conditions: list[NodeCondition]
    amounts: list[Amount]
    device_model: str
    """The model of its GPUs; empty if it is not known."""
    devices: list[DeviceLine]
    pods: list[PodLine]
    opinions: list[Opinion]
    opinions_left_out: int = 0


class NodePolicy(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a policy for scheduling or descheduling for one node."""

    policy: str
    framework: str
    """`scheduler` or `descheduler`."""
    enforcement: str
    document: bool
    """True for a policy document, false for a plugin in Python."""
    refused: int = 0
    """The number of pending pods to which a scheduling policy refuses the node."""
    pods: int = 0
    """The number of pending pods over which `refused` was counted."""
    score: float | None = None
    """The mean of its scores of the node, 0 to 100, for pods that the node could take."""
    role: str = ""
    """The role of the node for a descheduling policy: `source`, `target`, `waiting`, `unmeasured`; empty for none."""
    reason: str = ""


class NodePolicies(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of all policies for one node."""

    node: str
    policies: list[NodePolicy]
    evicted: list[PlannedEviction]
    """The pods that a cycle of the descheduler would evict from it now."""
    qos: dict[str, Any] | None
    """A tree of findings, as `koord-policy explain --qos` has; null for a node without a current metric."""
