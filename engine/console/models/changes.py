"""The models of changes to running servers: promotions and rollbacks."""

from __future__ import annotations

from .model import Model


class DiffLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A line of a difference between two texts."""

    kind: str
    """`added`, `removed`, `same`, or `place` for the line numbers of the part that follows."""
    text: str


class FileDiff(Model, frozen=True, kw_only=True, rename="camel"):
    """The difference of one policy file."""

    file: str
    state: str
    """`added`, `removed` or `replaced`."""
    lines: list[DiffLine]
    note: str = ""
    """The reason why lines are left out; empty if none are."""


class ShadowExample(Model, frozen=True, kw_only=True, rename="camel"):
    """A decision for which the shadow would have answered otherwise."""

    pod: str
    verb: str
    nodes: int
    gained: list[str]
    gained_left_out: int = 0
    lost: list[str]
    lost_left_out: int = 0
    why: list[str]
    why_left_out: int = 0


class ShadowCounts(Model, frozen=True, kw_only=True, rename="camel"):
    """The comparison of a shadow with the active policies of its server."""

    decisions: int
    same: int
    differs: int
    error: int
    skipped: int
    examples: list[ShadowExample]
    examples_left_out: int


class PlannedServer(Model, frozen=True, kw_only=True, rename="camel"):
    """The effect of a change on one server."""

    endpoint: str
    state: str
    """`changes`, `unchanged` if it runs that version already, `unconcerned` if it has none of this, or `refused`."""
    message: str = ""
    """The reason, of a server that is not changed."""
    before: str = ""
    """The hash of the active policies."""
    after: str = ""
    path: str = ""
    """The directory that a promotion writes."""
    generation: int | None = None
    """The generation that a rollback activates again."""
    comparison: ShadowCounts | None = None
    files: list[FileDiff] = []
    files_left_out: int = 0


class ChangePlan(Model, frozen=True, kw_only=True, rename="camel"):
    """The effect of a promotion or a rollback, to be confirmed."""

    action: str
    """`promote` or `rollback`."""
    to: str
    servers: list[PlannedServer]
    confirm: str
    """A hash of what would be changed, which confirms it; empty if nothing would be."""


class ServerResult(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a change on one server."""

    endpoint: str
    state: str
    """`changed`, `unchanged` if it is not concerned, `failed`, `unknown` if no answer arrived, or `skipped`."""
    message: str = ""
    generation: int | None = None
    hash: str = ""


class ChangeResult(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a change; of all servers, also of those that the plan had left out."""

    outcome: str
    """`complete`, `partial` or `none`."""
    servers: list[ServerResult]
    audit: str = ""
    """The reason why the result is not in the audit log; empty if it is."""


class ChangeableServer(Model, frozen=True, kw_only=True, rename="camel"):
    """A server with policies, and what its shadow found."""

    endpoint: str
    error: str = ""
    """The reason why it does not answer."""
    generation: int | None = None
    hash: str = ""
    restored: int | None = None
    """The generation that a rollback brought back."""
    shadow: str = ""
    """The hash of the policies in its shadow; empty without a valid one."""
    comparison: ShadowCounts | None = None


class EarlierGeneration(Model, frozen=True, kw_only=True, rename="camel"):
    """A set of policies that servers may return to."""

    hash: str
    since: float
    """The time when a server activated it last, in seconds since the epoch."""
    servers: int
    """The number of servers that have it in their history."""
    active: int
    """The number of servers on which it is active."""
    failed: str = ""
    """The reason why a server rolled it back."""
    by: str = ""
    """The user who made it active through the console last, as the audit log says; empty if it does not."""
    action: str = ""
    """The action of that user: `promote` or `rollback`; empty as above."""


class GenerationDifference(Model, frozen=True, kw_only=True, rename="camel"):
    """The difference between the policies of two generations, as a server has them."""

    endpoint: str
    before: str
    """The hash of one of them."""
    after: str
    """The hash of the other one."""
    files: list[FileDiff]
    """The files that differ."""
    files_left_out: int = 0


class ChangesView(Model, frozen=True, kw_only=True, rename="camel"):
    """The servers, and the generations that they may return to, newest first."""

    servers: list[ChangeableServer]
    generations: list[EarlierGeneration]
    comparable: bool = False
    """True if two generations can be compared."""
    decisions: int
    """The default of the decisions that must have been compared."""
    max_differences: float
    """The default of the part of them that may differ."""
