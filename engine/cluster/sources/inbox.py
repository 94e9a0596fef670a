"""The entries of a feed's inbox: what the event loop delivers to the thread that owns the cluster, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from koordpolicy.engine.client.projection import Projection

from .changes import Key


class Barrier:
    """Passed when all changes that the API server had accepted before are applied, or after a time limit.

    A new leader must not decide before: it might not see the last bindings of the one before it.
    """

    def __init__(self, kinds: Iterable[str], deadline: float, clock: Callable[[], float]) -> None:
        self._left = set(kinds)
        self._deadline = deadline
        self._clock = clock

    @property
    def complete(self) -> bool:
        """True once all these changes are applied."""
        return not self._left

    @property
    def passed(self) -> bool:
        """True once it is complete, or its time is over."""
        return self.complete or self._clock() >= self._deadline

    def note(self, kind: str) -> None:
        """Take note that all changes of a kind are applied."""
        self._left.discard(kind)


class ChangedObject(NamedTuple):
    """A change of one object: its new state, or None for a deletion."""

    key: Key
    uid: str
    object: dict[str, Any] | None
    finished: bool = False
    """True for a pod that has finished, and for the deletion of one."""
    is_sound: bool = False
    """True if the object passes `check_object`, and its parts, which may be those of others too, never change."""


class ChangedObjects(NamedTuple):
    """Changes that arrived together."""

    arrived: float
    items: Sequence[ChangedObject]


class ListEnded(NamedTuple):
    """The end of a list: all changes before it were delivered."""

    kind: str
    projection: Projection
    absent: bool


class KindStopped(NamedTuple):
    """The end of the changes of a kind that nobody reads any more."""

    kind: str


class KnownVersions(NamedTuple):
    """UID and version of the objects that an informer had delivered before."""

    kind: str
    known: Mapping[tuple[str, str], tuple[str, str]]


class ReadObject(NamedTuple):
    """An object that was read beside its informer."""

    item: ChangedObject


class BarrierReached(NamedTuple):
    """A barrier: all changes before it were delivered."""

    barrier: Barrier
    kind: str


InboxEntry: TypeAlias = ChangedObjects | ListEnded | KindStopped | KnownVersions | ReadObject | BarrierReached
