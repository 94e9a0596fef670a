"""The handle that every plugin receives when it is made, and the protocols of its life cycle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from koordpolicy.engine.kubernetes.release import NEWEST, Release

from .object_access import UNRESTRICTED, DeclaredAccess, KindInformer, ObjectClient

if TYPE_CHECKING:
    import logging

    from koordpolicy.engine.cluster.events import Event
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot

    from .descheduler import EvictionResult, EvictOptions

_Capability = TypeVar("_Capability")


@runtime_checkable
class Startable(Protocol):
    """A plugin that is started after it is made and before it is first called."""

    def start(self) -> None:
        """Set up; called once. If it raises, the generation that requires the plugin does not become active."""
        ...


@runtime_checkable
class Closeable(Protocol):
    """A plugin that is closed after the last decision that leases its generation."""

    def close(self) -> None:
        """Release what the instance holds; called once."""
        ...


class Count(Protocol):
    """Adds to a counter of the framework's metrics; a new name begins at 0."""

    def __call__(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add `amount` (0 or more) to the counter `name` under these labels."""
        ...


class Events(Protocol):
    """Notifies plugins of changes in the cluster."""

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Call back for every change of objects of these kinds, in the scheduling thread, between decisions.

        Existing objects are reported first, as if they were new: nodes before pods. There are no calls after the
        plugin was closed.
        """
        ...


class WaitingPods(Protocol):
    """The pods that permit plugins hold."""

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the waiting pods, oldest first."""
        ...

    def allow(self, key: str, plugin: str) -> bool:
        """Allow the pod on behalf of this plugin; return whether it was waiting."""
        ...

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Reject the pod, which loses its node; return whether it was waiting."""
        ...


class Queue(Protocol):
    """The part of the scheduling queue that plugins use."""

    def activate(self, keys: Collection[str]) -> None:
        """Move these pods to the active queue, whatever they wait for."""
        ...

    def pods(self) -> tuple[PodInfo, ...]:
        """Return all pods that wait for a decision, including gated ones."""
        ...


class Nominator(Protocol):
    """The nominated nodes of pods, while victims terminate there."""

    def nominated(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods nominated for the node."""
        ...

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nominate the pod for the node; replaces an earlier nomination."""
        ...

    def withdraw(self, pod: PodInfo) -> None:
        """Withdraw the pod's nomination, if there is one."""
        ...


class StalePodError(OSError):
    """A binding was refused as the pod is not what the scheduler knows: gone, replaced, being deleted, or assigned.

    The pod is not tried again before the cluster reports what it is now.
    """


class EvictionRefusedError(OSError):
    """An eviction was refused, which is no fault of the plugin that carries it out; `rule` names the kind of refusal,
    such as `pdb-blocked`.
    """

    def __init__(self, message: str, rule: str, *, retry_after_s: float = 0.0, may_leave: bool = False) -> None:
        """`retry_after_s` is the time in seconds for which further attempts are refused in any case. `may_leave` is
        true if no answer arrived, so that the pod may leave all the same: such an eviction counts against limits.
        """
        super().__init__(message)
        self.rule = rule
        self.retry_after_s = retry_after_s
        self.may_leave = may_leave


class Client(Protocol):
    """Writes to the API server, or to its substitute in simulations and tests; all methods raise `OSError` on failure.

    A scheduler with workers calls `bind` and `patch` in any thread, several at once. In the deciding thread a client of
    a live cluster waits for nothing: it queues the write, logs its failure, and returns None.
    """

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Change an object from `original` to `modified` by one merge patch; none if they are equal.

        Returns the new object, or None if that is not known.
        """
        ...

    def bind(self, pod: PodInfo, node: str) -> None:
        """Bind the pod to the node."""
        ...

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Evict the pod if its disruption budgets allow it."""
        ...

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Delete the pod on that node in favour of the preemptor, even if that violates its disruption budgets.

        As in kube-scheduler, the choice of victims has respected budgets as far as possible. The condition
        `DisruptionTarget` with the reason `PreemptionByScheduler`, set before, marks pods that are being preempted.
        A pod that no longer exists is not an error.
        """
        ...


@runtime_checkable
class Deletes(Protocol):
    """A client that can also delete objects."""

    def delete(self, item: Mapping[str, Any]) -> None:
        """Delete an object; one that no longer exists is not an error. Raises `OSError` on failure."""
        ...


@runtime_checkable
class EvictsWithOptions(Protocol):
    """A client that evicts pods in several modes, and says how each eviction ended: that of a live descheduler."""

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        """Evict the pod by the mode of the options, through the eviction subresource if they name none.

        Raises `EvictionRefusedError` if the pod stays.
        """
        ...


@runtime_checkable
class Simulated(Protocol):
    """A client without a live cluster: no controller, kubelet or provisioner acts on what is written."""

    simulated: bool


@runtime_checkable
class AsyncBinder(Protocol):
    """A client that binds in an event loop, so that a binding occupies no thread while it waits for its answer."""

    async def bind_async(self, pod: PodInfo, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod to the node, and merge the annotations into the pod's in the same write.

        Raises `StalePodError` if the pod is not what the scheduler knows, `OSError` on any other failure.
        """
        ...


@runtime_checkable
class ClearsNominations(Protocol):
    """A client that writes the nominated nodes of pods."""

    def clear_nomination(self, pod: PodInfo) -> None:
        """Clear `status.nominatedNodeName` of a pod that lost it to a pod of higher priority; never waits."""
        ...


class Nothing:
    """A framework without events, waiting pods, queue, nominations and client; all its methods do nothing."""

    simulated = True

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Nothing changes."""

    def keys(self) -> tuple[str, ...]:
        """Nothing waits."""
        return ()

    def allow(self, key: str, plugin: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing waits."""
        return False

    def reject(self, key: str, plugin: str, message: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing waits."""
        return False

    def activate(self, keys: Collection[str]) -> None:
        """Nothing waits."""

    def pods(self) -> tuple[PodInfo, ...]:
        """Nothing waits."""
        return ()

    def nominated(self, node: str) -> tuple[PodInfo, ...]:  # noqa: ARG002 - the protocol's
        """Nothing is nominated."""
        return ()

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nothing is nominated."""

    def withdraw(self, pod: PodInfo) -> None:
        """Nothing is nominated."""

    def patch(
        self, original: Mapping[str, Any], modified: Mapping[str, Any],  # noqa: ARG002 - the protocol's
    ) -> Mapping[str, Any] | None:
        """Nothing is written."""
        return None

    def bind(self, pod: PodInfo, node: str) -> None:
        """Nothing is written."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Nothing is written."""

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Nothing is written."""


NOTHING: Final = Nothing()


def _uncounted(_name: str, _amount: float = 1, /, **_labels: str) -> None:
    return


def _no_peers(_capability: type[_Capability]) -> tuple[_Capability, ...]:
    return ()


class Peers(Protocol):
    """Finds the plugins of the same profile that have a capability."""

    def __call__(self, capability: type[_Capability], /) -> tuple[_Capability, ...]:
        """Return the profile's plugins that implement the protocol, in order; only valid while a plugin is called."""
        ...


@dataclass(frozen=True, slots=True)
class Handle:
    """A plugin's access to its framework: `factory(args, handle)`.

    `profile` is empty in the QoS manager, which has none. `snapshot` returns the current cluster (the snapshot of a
    decision is passed as an argument instead); only valid while a plugin is called, never while it is made or started,
    which happens concurrently with decisions. `now` is the framework's clock, in nanoseconds since the epoch; `seed`
    seeds all randomness of a run. The fields after `seed` belong to the scheduler; elsewhere they do nothing.
    """

    profile: str
    snapshot: Callable[[], Snapshot]
    now: Callable[[], int]
    log: logging.Logger
    count: Count = _uncounted
    seed: int = 0
    events: Events = NOTHING
    waiting: WaitingPods = NOTHING
    queue: Queue = NOTHING
    nominator: Nominator = NOTHING
    client: Client = NOTHING
    peers: Peers = _no_peers
    feature_gates: frozenset[str] = frozenset()
    """The names of the enabled feature gates."""
    kubernetes: Release = NEWEST
    """The release of Kubernetes whose kube-scheduler the plugin follows where releases differ."""
    access: DeclaredAccess = UNRESTRICTED
    """The kinds that the plugin declares to read, and the fields that it declares to patch."""

    def informer(self, kind: str) -> KindInformer:
        """Return the objects of a kind, and their changes; may be called while the plugin is made.

        Raises:
            ValueError: the plugin does not declare that it reads the kind.
        """
        self.access.check_read(kind)
        return KindInformer(kind, self.events, self.snapshot)

    @property
    def objects(self) -> ObjectClient:
        """The client for the fields that the plugin declares that it patches."""
        return ObjectClient(self.access, self.client)
