"""What every plugin is given when it is made, and how it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from koordpolicy.engine.kubernetes.release import NEWEST, Release

if TYPE_CHECKING:
    import logging

    from koordpolicy.engine.cluster.events import Event
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot

_Capability = TypeVar("_Capability")


@runtime_checkable
class Startable(Protocol):
    """Has something to set up once it is made and before it is asked anything."""

    def start(self) -> None:
        """Set up; called once. If it raises, the generation that wanted the plugin does not run."""
        ...


@runtime_checkable
class Closeable(Protocol):
    """Has something to give back when the last decision that holds its generation is done."""

    def close(self) -> None:
        """Release what the instance holds; called once."""
        ...


class Count(Protocol):
    """Adds to a counter of the framework's metrics; a name that does not exist yet begins at 0."""

    def __call__(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add `amount` (0 or more) to the counter `name` under these labels."""
        ...


class Events(Protocol):
    """Tells plugins what changes in the cluster."""

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Call back for every change of objects of these kinds, in the thread that decides, between decisions.

        What is known already comes first, as if it were new: nodes before pods. Nothing comes after the plugin was
        closed.
        """
        ...


class WaitingPods(Protocol):
    """The pods that a permit holds."""

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the pods that wait, in the order in which they came."""
        ...

    def allow(self, key: str, plugin: str) -> bool:
        """Let the pod go on as far as this plugin goes; return whether it was waiting."""
        ...

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Take the pod's node back; return whether it was waiting."""
        ...


class Queue(Protocol):
    """What plugins may ask of the queue."""

    def activate(self, keys: Collection[str]) -> None:
        """Try these pods soon, whatever they wait for."""
        ...

    def pods(self) -> tuple[PodInfo, ...]:
        """Return all pods that wait for a decision, those that are gated included."""
        ...


class Nominator(Protocol):
    """The nominated nodes of pods, while the victims are leaving them."""

    def nominated(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that are nominated for the node."""
        ...

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nominate the pod for the node, instead of another one."""
        ...

    def withdraw(self, pod: PodInfo) -> None:
        """Withdraw the pod's nomination; none is no error."""
        ...


class Client(Protocol):
    """Writes to the API server, or stands for it in simulations and tests; all raise `OSError` where that fails.

    A scheduler with workers calls `bind` and `patch` in any thread, several at once.
    """

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Change an object so that it is as `modified`: one merge patch, none where nothing differs.

        Returns the object as it is then, or None where that is not known.
        """
        ...

    def bind(self, pod: PodInfo, node: str) -> None:
        """Bind the pod to the node."""
        ...

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Evict the pod, as far as its disruption budgets allow."""
        ...

    def preempt(self, pod: PodInfo, reason: str) -> None:
        """Delete the pod, whose place another one takes, also where that breaks its disruption budgets.

        As kube-scheduler does: whoever chose the victims has spared what budgets guard as far as that was possible.
        Pods that are on their way out already are told apart by the condition `DisruptionTarget` with the reason
        `PreemptionByScheduler`, to be set before. A pod that is gone already is no error.
        """
        ...


@runtime_checkable
class Deletes(Protocol):
    """A client that can also take objects away; what clears up after others looks for this."""

    def delete(self, item: Mapping[str, Any]) -> None:
        """Delete an object; one that is gone already is no error. Raises `OSError` where that fails."""
        ...


class Nothing:
    """Stands for all of a framework where there is none: nothing happens, nothing waits, nothing is nominated."""

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Nothing changes."""

    def keys(self) -> tuple[str, ...]:
        """Nothing waits."""
        return ()

    def allow(self, key: str, plugin: str) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return False

    def reject(self, key: str, plugin: str, message: str) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return False

    def activate(self, keys: Collection[str]) -> None:
        """Nothing waits."""

    def pods(self) -> tuple[PodInfo, ...]:
        """Nothing waits."""
        return ()

    def nominated(self, node: str) -> tuple[PodInfo, ...]:  # noqa: ARG002
        """Nothing is nominated."""
        return ()

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Nothing is nominated."""

    def withdraw(self, pod: PodInfo) -> None:
        """Nothing is nominated."""

    def patch(
        self, original: Mapping[str, Any], modified: Mapping[str, Any],  # noqa: ARG002
    ) -> Mapping[str, Any] | None:
        """Nothing is written."""
        return None

    def bind(self, pod: PodInfo, node: str) -> None:
        """Nothing is written."""

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Nothing is written."""

    def preempt(self, pod: PodInfo, reason: str) -> None:
        """Nothing is written."""


NOTHING: Final = Nothing()


def _uncounted(_name: str, _amount: float = 1, /, **_labels: str) -> None:
    return


def _no_peers(_capability: type[_Capability]) -> tuple[_Capability, ...]:
    return ()


class Peers(Protocol):
    """Finds the plugins of the same profile that have a capability."""

    def __call__(self, capability: type[_Capability], /) -> tuple[_Capability, ...]:
        """Return those that fulfil the protocol, in the profile's order; only while a plugin is asked something."""
        ...


@dataclass(frozen=True, slots=True)
class Handle:
    """What a plugin is given when it is made: `factory(args, handle)`.

    `profile` is empty in the QoS manager, which has none. `snapshot` returns the cluster as it is at the moment (what a
    decision asks about comes as an argument instead); only while a plugin is asked something, never while it is made or
    started, which happens beside running decisions. `now` is the framework's clock, in nanoseconds since the epoch;
    `seed` is what all chance in a run follows from. What comes after `seed` is the scheduler's, and does nothing where
    there is none.
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
    """The names of the feature gates that are on."""
    kubernetes: Release = NEWEST
    """The release of Kubernetes whose kube-scheduler the plugin is to follow, where releases differ."""
