"""The models of a node's timeline: usage, and what the agent changed."""

from __future__ import annotations

from .model import Model


class UsageLine(Model, frozen=True, kw_only=True, rename="camel"):
    """The usage of a class of pods, or of the whole node, over time."""

    name: str
    """`node` or a QoS class."""
    values: list[float | None]
    """By span, in milli-cores or bytes; null where nothing was measured."""


class ChangedFile(Model, frozen=True, kw_only=True, rename="camel"):
    """A file that the agent wrote."""

    file: str
    before: str | None
    """Null if it is unknown."""
    after: str


class NodeChangeLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A change that the agent made on the node, or would have made."""

    time: float
    """In seconds since the epoch."""
    source: str
    """`recording` if the strategies were replayed, `audit` if it is of the agent's audit log."""
    plugin: str
    kind: str
    subject: str
    reason: str
    item: str
    files: list[ChangedFile]
    more: int
    """The number of further files."""
    recovers: bool
    enforced: bool


class NodeTimeView(Model, frozen=True, kw_only=True, rename="camel"):
    """The timeline of one node. Times are in seconds since the epoch."""

    sources: int
    """The number of recordings and agents; 0 if the console has none."""
    complete: bool
    """False while sources are read for the first time."""
    node: str
    """Empty if nothing is known of any node."""
    nodes: list[str]
    start: float
    end: float
    times: list[float]
    width: float
    cpu: list[UsageLine]
    memory: list[UsageLine]
    limit: list[float | None]
    """By span: the CPU that suppressions leave to best-effort pods at its end, in milli-cores; null for no limit."""
    cpu_allocatable: float | None
    memory_allocatable: float | None
    changes: list[NodeChangeLine]
    """In the shown time, oldest first."""
    changes_left_out: int
    problems: list[str]
    problems_left_out: int
