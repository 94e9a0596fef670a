"""Plugin instances, which outlive a generation.

A generation is a list of plugins; running it requires instances. An instance is identified by the profile, the name,
the digest and the args of its plugin, so the next generation reuses each one whose plugin and args are the same, with
its state. It is closed when no active, staged or leased generation uses it. Timers and detectors of documents' items
are not instances: the frameworks that count with them store them by document and item.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from koordpolicy.engine.cluster.owned_columns import Owned
from koordpolicy.engine.framework.handle import Closeable, Startable

from .border import must_be_survived
from .points import Framework
from .registry import Plugin, Registry

_Key: TypeAlias = tuple[str, Framework, str, str, str]
_Make: TypeAlias = Callable[[Plugin, Mapping[str, Any], Any], Any]


def _key(profile: str, plugin: Plugin, args: Mapping[str, Any]) -> _Key:
    # Args are plain data; values without a JSON form (a date that YAML reads) are distinguished by their text.
    text = json.dumps(args, sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return profile, plugin.framework, plugin.name, plugin.digest, digest


def _log(key: _Key, error: BaseException) -> None:
    logging.getLogger(__name__).error("closing the plugin `%s` of profile `%s` failed", key[2], key[0], exc_info=error)


def _make_plainly(plugin: Plugin, args: Mapping[str, Any], handle: Any) -> Any:
    return plugin.make(args, handle)


class Lease:
    """A lease of a generation's instances, for a decision or a waiting pod. Releasing it twice is harmless."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the generation; closes the instances that nothing else uses."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.release()


class Adoption:
    """The instances of a generation that is being staged: existing ones, and new ones for the rest."""

    def __init__(
        self, existing: Mapping[_Key, Any], lock: threading.Lock, handle: Callable[[str, str], Any], make: _Make,
        released: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """`released` is called with the handle of an instance that could not be made."""
        self._existing = existing
        self._lock = lock
        self._handle = handle
        self._make = make
        self._released = released
        self.made: dict[_Key, Any] = {}
        self.handles: dict[_Key, Any] = {}
        self.columns: dict[_Key, Owned] = {}
        self.requested: set[_Key] = set()

    def get(self, profile: str, plugin: Plugin, args: Mapping[str, Any]) -> Any:
        """Return the profile's instance of a plugin; a new one is made and started. Raises whatever those raise."""
        key = _key(profile, plugin, args)
        with self._lock:  # a requested instance is not closed meanwhile, see `Instances._pop_unused`
            self.requested.add(key)
            if key in self._existing:
                return self._existing[key]
        if key not in self.made:
            handle = self._handle(profile, plugin.name)
            with Owned() as columns:
                try:
                    instance = self._make(plugin, args, handle)
                except BaseException:
                    columns.drop()
                    self._released(handle)  # without an instance, nothing would be closed that releases it
                    raise
                self.made[key], self.handles[key], self.columns[key] = instance, handle, columns
                if isinstance(instance, Startable):
                    instance.start()
        return self.made[key]


class Instances:
    """The instances of one framework's plugins; `handle` makes a plugin's handle from the names of profile and plugin.

    `staging` stages a generation, `adopt` makes the staged generation the current one, and `lease` leases one. An
    instance is closed (`Closeable.close`) when no staged, current or leased generation uses it. A failed close is
    reported to `failed` and stops no other one. All methods may be called from any thread; instances are made and
    closed outside the lock.
    """

    def __init__(
        self, handle: Callable[[str, str], Any], *, failed: Callable[[_Key, BaseException], None] = _log,
        released: Callable[[Any], None] = lambda _: None, make: _Make = _make_plainly,
    ) -> None:
        """`released` is called with each handle that is no longer used; `make` makes an instance of a plugin."""
        self._handle = handle
        self._make = make
        self._failed = failed
        self._released = released
        self._handles: dict[_Key, Any] = {}
        self._columns: dict[_Key, Owned] = {}
        self._lock = threading.Lock()
        self._adopting = threading.Lock()
        self._instances: dict[_Key, Any] = {}
        self._used: dict[int, frozenset[_Key]] = {}
        self._leases: dict[int, int] = {}
        self._current: int | None = None
        self._staged: int | None = None
        self._adoption: Adoption | None = None

    @contextlib.contextmanager
    def staging(self, registry: Registry) -> Iterator[Adoption]:
        """Stage this generation: the instances that the block requests, until another generation is staged.

        If the block raises, its new instances are closed, and the generation staged before stays so.
        """
        with self._adopting:
            with self._lock:
                self._adoption = adoption = Adoption(
                    self._instances, self._lock, self._handle, self._make, self._released)
            try:
                yield adoption
            except BaseException:
                with self._lock:
                    self._adoption = None
                    self._handles |= adoption.handles
                    self._columns |= adoption.columns
                    unused = self._pop_unused()
                self._close(adoption.made | unused)
                raise
            with self._lock:
                self._adoption = None
                self._instances |= adoption.made
                self._handles |= adoption.handles
                self._columns |= adoption.columns
                self._staged = registry.generation
                self._used[registry.generation] = frozenset(adoption.requested)
                unused = self._pop_unused()
            self._close(unused)

    def adopt(self, registry: Registry) -> None:
        """Make the staged generation the current one; raises `LookupError` for any other one."""
        with self._lock:
            if self._staged != registry.generation:
                raise LookupError(f"generation {registry.generation} is not staged")
            self._current, self._staged = self._staged, None
            unused = self._pop_unused()
        self._close(unused)

    @contextlib.contextmanager
    def adopting(self, registry: Registry) -> Iterator[Adoption]:
        """Stage this generation and make it the current one when the block ends.

        If the block raises, its new instances are closed and the previous generation stays current.
        """
        with self.staging(registry) as adoption:
            yield adoption
        self.adopt(registry)

    def lease(self, registry: Registry) -> Lease:
        """Lease the instances of an adopted generation.

        Raises `LookupError` for a generation that was never adopted or whose instances are closed.
        """
        generation = registry.generation
        with self._lock:
            if generation not in self._used:
                raise LookupError(f"generation {generation} is not running")
            self._leases[generation] = self._leases.get(generation, 0) + 1
        return Lease(lambda: self._release(generation))

    def close(self) -> None:
        """Close all instances, leased ones too: the process ends."""
        with self._lock:
            unused = dict(self._instances)
            self._instances.clear()
            self._used.clear()
            self._current = self._staged = None
        self._close(unused)

    def _release(self, generation: int) -> None:
        with self._lock:
            self._leases[generation] -= 1
            if self._leases[generation]:
                return
            del self._leases[generation]
            unused = self._pop_unused()
        self._close(unused)

    def _pop_unused(self) -> dict[_Key, Any]:
        self._used = {generation: keys for generation, keys in self._used.items()
                      if generation in (self._current, self._staged) or generation in self._leases}
        requested = self._adoption.requested if self._adoption is not None else set[_Key]()
        used = requested.union(*self._used.values())
        return {key: self._instances.pop(key) for key in list(self._instances) if key not in used}

    def _close(self, instances: dict[_Key, Any]) -> None:
        for key in list(instances):
            # One at a time, since all at once would block decisions until 10,000 documents are freed.
            instance = instances.pop(key)
            if isinstance(instance, Closeable):
                try:
                    instance.close()
                except BaseException as error:  # the failure of one plugin must not leak the others
                    must_be_survived(error)
                    self._failed(key, error)
            columns = self._columns.pop(key, None)
            if columns is not None:
                columns.drop()
            handle = self._handles.pop(key, None)
            if handle is not None:
                self._released(handle)
