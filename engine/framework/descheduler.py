"""What plugins of the descheduler fulfil, and what they see of its framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from koordpolicy.engine.cel.vector.frame import Rows
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot

    from .points import Refusal


class Evictor(Protocol):
    """What a descheduling plugin sees of its framework: whether a pod may go, and the way to let it go.

    Everything asked here is remembered per candidate, so that a cycle can say what stopped which pod.
    """

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        ...

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may not be evicted right now, or None."""
        ...

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Evict the pod (in a dry run: note that it would be) unless a limit stops it; does not ask the filters.

        `rule` names the criterion or the phase that chose the pod.
        """
        ...

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Note that a candidate that `rule` chose stays, and why, where the plugin itself decided that."""
        ...

    def observe(self, node: str, role: str, message: str = "") -> None:
        """Note what a node was found to be: `source`, `target`, `waiting` (not a source yet) or `unmeasured`."""
        ...

    def fail(self, rule: str, subject: str, message: str) -> None:
        """Note that a rule failed on a pod or a node."""
        ...

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether no more pods may be evicted from the node in this cycle."""
        ...

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether the pod was evicted in this cycle already, by whichever plugin."""
        ...


@runtime_checkable
class Deschedule(Protocol):
    """Repairs single pods that are wrong where they are; asked before all `Balance` plugins of all profiles."""

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict what must go from the nodes at `rows`; an exception is this plugin's failure and stops no other one."""
        ...


@runtime_checkable
class Balance(Protocol):
    """Optimises over a set of nodes."""

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict what the balance over the nodes at `rows` needs; see `Deschedule` for failures."""
        ...


@runtime_checkable
class EvictionFilter(Protocol):
    """A veto: which pods may never be evicted, whoever asks."""

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must stay, or None."""
        ...


@runtime_checkable
class PreEvictionFilter(Protocol):
    """A veto on this eviction now (no other node takes the pod, for example)."""

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must stay for now, or None."""
        ...


@runtime_checkable
class Evict(Protocol):
    """Carries evictions out; a profile has exactly one."""

    def evict(self, pod: PodInfo, reason: str) -> bool:
        """Evict the pod and return whether that worked; asks no filter."""
        ...
