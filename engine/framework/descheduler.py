"""Protocols of descheduler plugins, and the part of the framework that they see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from koordpolicy.engine.cel.vector.frame import Rows
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot

    from .points import Refusal


class EvictionMode(StrEnum):
    """The way in which a pod leaves its node."""

    EVICTION = "Eviction"
    """Through the eviction subresource, which respects disruption budgets."""
    DELETE = "Delete"
    """A deletion, past disruption budgets."""
    SOFT_EVICTION = "SoftEviction"
    """An annotation of the pod; another component removes it."""
    MIGRATION_JOB = "MigrationJob"
    """A PodMigrationJob, which the migration controller works off."""


class EvictionResult(StrEnum):
    """The result of one eviction."""

    EVICTED = "Evicted"
    REQUESTED = "Requested"
    """Another component removes the pod later. Counts against all limits."""
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class EvictionChoice:
    """The mode and grace period of an eviction; None leaves it to the next filter, and then to the evict plugin."""

    mode: EvictionMode | None = None
    grace_period_s: int | None = None
    """Seconds until its containers are killed, at least 0."""


@dataclass(frozen=True, slots=True)
class EvictOptions:
    """The plugin that evicts a pod, its reason, and the choice of the filters."""

    reason: str
    profile: str
    plugin: str
    rule: str = ""
    """The criterion or the phase that chose the pod."""
    choice: EvictionChoice = EvictionChoice()
    reports_failure: bool = False
    """True to record an event if the API server refuses the eviction."""


class Evictor(Protocol):
    """The part of the framework that a descheduling plugin sees: checks whether pods may be evicted, and evicts them.

    All calls are recorded per candidate, so that a cycle reports which check stopped which pod.
    """

    @property
    def interval(self) -> int:
        """Nanoseconds from the beginning of this cycle to that of the next; 0 if none is planned.

        A plugin that counts consecutive cycles must remember the count for longer than this, as a cycle may be late.
        """
        ...

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        ...

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may not be evicted right now, or None."""
        ...

    def passes_template(self, pod: PodInfo, *, now: bool) -> bool:
        """Return True if `filter`, or with `now` `pre_eviction_filter`, refuses no pod of this one's template.

        Then neither needs to be called for such pods. False does not mean that a pod is refused.
        """
        ...

    def refused(self, pods: Sequence[PodInfo], *, now: bool) -> Sequence[bool]:
        """Return for each pod whether `filter` refuses it, or with `now` `pre_eviction_filter`, as if these were called
        in turn; for many pods it is much faster.
        """
        ...

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Evict the pod (in a dry run: record it) unless a limit stops it; the filters are not run.

        `rule` names the criterion or the phase that chose the pod.
        """
        ...

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Record that the plugin itself decided to keep a candidate that `rule` chose, and why."""
        ...

    def keep_all(self, pods: Iterable[PodInfo], refusal: Refusal, *, rule: str = "") -> None:
        """Record the decision for each of these pods, as `keep` does; for many pods it is much faster."""
        ...

    def observe(self, node: str, role: str, message: str = "") -> None:
        """Record a node's role: `source`, `target`, `waiting` (not a source yet) or `unmeasured`."""
        ...

    def fail(self, rule: str, subject: str, message: str) -> None:
        """Record that a rule failed on a pod or a node."""
        ...

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether no more pods may be evicted from the node in this cycle."""
        ...

    def total_limit_exceeded(self) -> bool:
        """Return whether no more pods at all may be evicted in this cycle."""
        ...

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any], message: str) -> bool:
        """Change an object (cordon a node, annotate a pod); in a dry run only record it.

        `message` describes the change. Returns whether it succeeded, or would be made; False is recorded as a failure.
        """
        ...

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether any plugin evicted the pod in this cycle."""
        ...

    def leaving(self) -> Collection[str]:
        """Return the keys of all pods that any plugin evicted in this cycle."""
        ...

    def leaving_pods(self) -> Sequence[PodInfo]:
        """Return the pods of `leaving` that the cluster has, in order; always the same, growing list. Read-only."""
        ...


@runtime_checkable
class Deschedule(Protocol):
    """Evicts single pods that violate a policy; called before all `Balance` plugins of all profiles."""

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods from the nodes at `rows`; an exception fails this plugin and stops no other one."""
        ...


@runtime_checkable
class DecidesPerNode(Protocol):
    """A Deschedule plugin whose decisions about the pods of a node read that node and its pods only.

    Where several replicas share a cluster, each runs it on its share of the nodes. One that compares nodes, or
    has limits over all of them, is run by the leader alone, as all Balance plugins are.
    """

    decides_per_node: bool


@runtime_checkable
class Balance(Protocol):
    """Evicts pods to balance a set of nodes."""

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods to balance the nodes at `rows`; see `Deschedule` for failures."""
        ...


@runtime_checkable
class EvictionFilter(Protocol):
    """Vetoes evictions of pods that no plugin may ever evict."""

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must not be evicted, or None."""
        ...


@runtime_checkable
class PreEvictionFilter(Protocol):
    """Vetoes single evictions at this time (if no other node takes the pod, for example)."""

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must not be evicted now, or None."""
        ...


@runtime_checkable
class TemplateFilter(Protocol):
    """An eviction filter that decides about all pods of one template at once (see `template_of`)."""

    def passes_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> bool:
        """Return True if `eviction_filter`, or with `now` `pre_eviction_filter`, refuses no pod of this one's template.

        It holds for this snapshot. After False, the filter is called for each pod.
        """
        ...


@runtime_checkable
class RefusesTemplates(Protocol):
    """A template filter that also knows which templates it refuses as a whole."""

    def refuses_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> Refusal | None:
        """Return the refusal that `eviction_filter`, or with `now` `pre_eviction_filter`, returns for each pod of this
        one's template in this snapshot; None if there is none, or pods have different ones.
        """
        ...


@runtime_checkable
class Evict(Protocol):
    """Carries out evictions; a profile has exactly one."""

    def evict(self, pod: PodInfo, reason: str) -> EvictionResult | bool:
        """Evict the pod; True is `EVICTED`, False is `FAILED`. Runs no filter.

        An exception is recorded as this plugin's failure, and the eviction counts as failed.
        """
        ...


@runtime_checkable
class EvictWithOptions(Protocol):
    """An evict plugin that takes options; it need not have `evict`."""

    eviction_modes: Collection[EvictionMode]
    """The modes that it can carry out; a pod for which a filter chose another one stays."""

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult | bool:
        """Evict the pod as the options say, otherwise as `Evict.evict`; called in its place."""
        ...


@runtime_checkable
class BackgroundController(Protocol):
    """A plugin that also works between the cycles of a live descheduler, as the controller of migration jobs does."""

    def background_step(self, snapshot: Snapshot) -> int | None:
        """Do the work that is due at the time of the snapshot; return the time of the next work, in ns since the epoch.

        None if there is no work until objects that the plugin reads change. Called in the thread of the cycles, after
        such changes and at the time that it returned, only while this process may write; it may wait for the API
        server, but not for anything else. After an exception it is called again a second later.
        """
        ...


@runtime_checkable
class ChoosesEviction(Protocol):
    """A filter that chooses how pods are evicted."""

    def choose_eviction(self, pod: PodInfo, snapshot: Snapshot) -> EvictionChoice:
        """Return how the pod is evicted; an exception keeps the pod. Called once per eviction."""
        ...


@runtime_checkable
class PlanEviction(Protocol):
    """An evict plugin with limits of its own, which a dry run is to show."""

    def plan_eviction(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Count an eviction that a dry run does not carry out; return why it would be refused, or None."""
        ...


@runtime_checkable
class ClearsNodes(Protocol):
    """A descheduling plugin that can tell for a single node whether it would evict from it; used by the proofs of
    evictions. For other plugins, a second instance runs a whole cycle for each answer.
    """

    def clears(self, snapshot: Snapshot, rows: Rows, row: int, pod: PodInfo) -> str:
        """Return why a cycle over the nodes at `rows` would evict from the one at `row`, on which `pod` now runs.

        Empty if it would not. Conditions that must last for some time (`anomaly`) count as if they had. The snapshot is
        an overlay. Changes nothing.
        """
        ...


@runtime_checkable
class RestartsPods(Protocol):
    """A descheduling plugin that wants pods restarted, on whichever node: its evictions are never loops."""

    restarts_pods: bool


@runtime_checkable
class ReservesNodes(Protocol):
    """An evict plugin that may reserve a node for the pod's successor before it evicts."""

    def avoids_node(self, pod: PodInfo) -> bool:
        """Return whether a reservation on a node other than the pod's precedes its eviction."""
        ...
