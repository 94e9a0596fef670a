"""Informers and a client for the objects of a cluster, limited to what a plugin declares.

A scheduler plugin declares the kinds that it reads (`Read`), and the fields that it patches (`Write`). The rights of a
scheduler follow from these declarations, so nothing else is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from koordpolicy.engine.cluster.kinds import FieldPath

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.events import Event
    from koordpolicy.engine.cluster.snapshot import Snapshot

Json: TypeAlias = Mapping[str, Any]
ALWAYS_READ: Final = frozenset({"Node", "Pod"})
"""The kinds that every plugin reads, whether it declares fields of them or not."""


class ReportsEvents(Protocol):
    """The part of `handle.Events` that informers use."""

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Call back for every change of objects of these kinds."""
        ...


class PatchesObjects(Protocol):
    """The part of `handle.Client` that the client of plugins uses."""

    def patch(self, original: Json, modified: Json) -> Json | None:
        """Change an object from `original` to `modified` by one merge patch."""
        ...


@dataclass(frozen=True, slots=True)
class Write:
    """The fields of a kind that a scheduler plugin patches; those below `status` need the right to patch the status."""

    kind: str
    fields: frozenset[FieldPath]
    """The paths of the fields, each with everything below it."""

    def covers(self, path: FieldPath) -> bool:
        """Return whether a field is one of them, or below one."""
        return any(path[:length] in self.fields for length in range(1, len(path) + 1))


@dataclass(frozen=True, slots=True)
class DeclaredAccess:
    """The kinds that a plugin declares to read, and the fields that it declares to patch."""

    plugin: str = ""
    reads: frozenset[str] | None = None
    """None for all kinds, which plugins may read that are made without a registry, as in tests."""
    patches: tuple[Write, ...] = ()

    def check_read(self, kind: str) -> None:
        """Raise `ValueError` for a kind that the plugin does not declare."""
        if self.reads is not None and kind not in self.reads | ALWAYS_READ:
            raise ValueError(f'the plugin `{self.plugin}` does not declare that it reads {kind}: add `Read("{kind}")` '
                             "to the `reads` of its `python_plugin`")

    def check_patch(self, kind: str, fields: Json) -> None:
        """Raise `ValueError` for a field that the plugin does not declare; without a registry all are."""
        if self.reads is None:
            return
        for path in _leaves(fields):
            if not any(write.kind == kind and write.covers(path) for write in self.patches):
                raise ValueError(f"the plugin `{self.plugin}` does not declare that it patches `{'.'.join(path)}` of "
                                 f"{kind}: add a `Write` to the `patches` of its `python_plugin`")


UNRESTRICTED: Final = DeclaredAccess()
"""The access of plugins that are made without a registry."""


class KindInformer:
    """The objects of one kind, and their changes, as the scheduler sees them between decisions."""

    def __init__(self, kind: str, events: ReportsEvents, snapshot: Callable[[], Snapshot]) -> None:
        self.kind: Final = kind
        self._events = events
        self._snapshot = snapshot

    def get(self, key: str) -> Json | None:
        """Return an object by `namespace/name` or `name`, or None; must not be changed. Only while a plugin is called
        in the scheduling thread, as `Handle.snapshot`.
        """
        item = self._snapshot().object(self.kind, key)
        return None if item is None or self._is_finished(item) else item

    def all(self) -> Mapping[str, Json]:
        """Return all objects by key, where `get` may be called; neither the mapping nor the objects may be changed."""
        found = self._snapshot().objects(self.kind)
        return found if self.kind != "Pod" else {
            key: item for key, item in found.items() if not self._is_finished(item)}

    def _is_finished(self, item: Json) -> bool:
        return self.kind == "Pod" and (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def on(
        self, *, added: Callable[[Json], None] = lambda _: None,
        updated: Callable[[Json, Json], None] = lambda *_: None, deleted: Callable[[Json], None] = lambda _: None,
    ) -> None:
        """Call back for each object that is added, for each that changes (the object before and now), and for each that
        is deleted, in the scheduling thread, between decisions; the callbacks must not block.

        Existing objects are added first. An object that was replaced by another of its name is deleted, then the other
        one is added. A deleted object is passed as it was last seen, which may be an older version of it. A pod that
        has finished is deleted; one that the scheduler assumes on a node has not changed. An exception is logged and
        stops no other callback.
        """
        def call(event: Event) -> None:
            if event.assumed:
                return
            old, new = (None if item is None or self._is_finished(item) else item for item in (event.old, event.new))
            if old is not None and new is not None:
                updated(old, new)
            elif new is not None:
                added(new)
            elif old is not None:
                deleted(old)

        self._events.on((self.kind,), call)


class ObjectClient:
    """Changes objects of the cluster. For the scheduling thread, and for calls on workers."""

    def __init__(self, access: DeclaredAccess, client: PatchesObjects) -> None:
        self._access = access
        self._client = client

    def patch(self, item: Json, fields: Json) -> None:
        """Change these fields of an object by one merge patch: None removes a field, lists are replaced as a whole.

        `item` is the object as an informer or a snapshot has it; nothing is sent if it has the fields already. Only an
        object with its UID is changed, never a later one of its name. Fields below `status` go to that subresource.

        In the scheduling thread of a live scheduler the patch is queued: patches of one object arrive in order, and a
        failure is logged. On a worker it waits for the answer.

        Raises:
            ValueError: the plugin does not declare that it patches a field.
            OSError: the server did not accept it; not in the scheduling thread.
        """
        self._access.check_patch(str(item.get("kind")), fields)
        changed = _merged(item, fields)
        if changed != item:
            self._client.patch(item, changed)


def _merged(item: Any, patch: Any) -> Any:
    """Return an object after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(item) if isinstance(item, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


def _leaves(fields: Json, above: FieldPath = ()) -> Iterator[FieldPath]:
    for name, value in fields.items():
        path = (*above, name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path
