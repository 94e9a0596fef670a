"""The models of the cluster map and of its nodes."""

from __future__ import annotations

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
    nodes: list[str]
    grouping: str
    """`zone`, `region`, `none`, or a label's key."""
    groupings: list[str]
    """The groupings that are offered: the label keys with few values."""
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
    pods: list[PodLine]
    opinions: list[Opinion]
    opinions_left_out: int = 0
