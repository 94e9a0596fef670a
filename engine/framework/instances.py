"""What outlives a generation: the instances of plugins.

A generation is a list of plugins; running it takes instances. An instance is known by the profile, the name, the digest
and the args of its plugin, so the next generation takes over each one whose plugin and args are the same, with all
that it remembers. It ends when no generation that is in force or still held uses it any more. Timers and detectors of
documents' items are not instances: the frameworks that count with them keep them by document and item.
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

from koordpolicy.engine.framework.handle import Closeable, Startable

from .border import must_be_survived
from .points import Framework
from .registry import Plugin, Registry

_Key: TypeAlias = tuple[str, Framework, str, str, str]


def _key(profile: str, plugin: Plugin, args: Mapping[str, Any]) -> _Key:
    # Args are plain data; what JSON cannot say (a date that YAML reads) is told apart by its text.
    text = json.dumps(args, sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return profile, plugin.framework, plugin.name, plugin.digest, digest


def _log(key: _Key, error: BaseException) -> None:
    logging.getLogger(__name__).error("closing the plugin `%s` of profile `%s` failed", key[2], key[0], exc_info=error)


class Lease:
    """Holds a generation's instances: for a decision, or for a pod that waits; given back once, however often asked."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the generation back; its instances may end with this."""
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
    """Hands out the instances of a generation that is about to run: those that exist, and new ones for the rest."""

    def __init__(self, existing: Mapping[_Key, Any], lock: threading.Lock, handle: Callable[[str, str], Any]) -> None:
        self._existing = existing
        self._lock = lock
        self._handle = handle
        self.made: dict[_Key, Any] = {}
        self.handles: dict[_Key, Any] = {}
        self.asked: set[_Key] = set()

    def get(self, profile: str, plugin: Plugin, args: Mapping[str, Any]) -> Any:
        """Return the instance that this profile runs; a new one is made and started. Raises what those raise."""
        key = _key(profile, plugin, args)
        with self._lock:  # what is asked for does not end meanwhile, see `Instances._ended`
            self.asked.add(key)
            if key in self._existing:
                return self._existing[key]
        if key not in self.made:
            self.handles[key] = handle = self._handle(profile, plugin.name)
            self.made[key] = instance = plugin.make(args, handle)
            if isinstance(instance, Startable):
                instance.start()
        return self.made[key]


class Instances:
    """The instances of one framework's plugins; `handle` makes what one is given, of the profile's and its own name.

    `preparing` makes the instances of a generation that is to come, `adopt` makes a generation the current one, and
    `lease` holds one. An instance ends (`Closeable.close`) when the generations that use it are neither prepared nor
    current nor held. An instance whose closing fails is told to `failed` and keeps no other from closing. All of this
    may be called from any thread; instances are made and closed outside the lock.
    """

    def __init__(
        self, handle: Callable[[str, str], Any], *, failed: Callable[[_Key, BaseException], None] = _log,
        released: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """`released` is told which handle nobody uses any more."""
        self._handle = handle
        self._failed = failed
        self._released = released
        self._handles: dict[_Key, Any] = {}
        self._lock = threading.Lock()
        self._adopting = threading.Lock()
        self._instances: dict[_Key, Any] = {}
        self._used: dict[int, frozenset[_Key]] = {}
        self._held: dict[int, int] = {}
        self._current: int | None = None
        self._prepared: int | None = None
        self._adoption: Adoption | None = None

    @contextlib.contextmanager
    def preparing(self, registry: Registry) -> Iterator[Adoption]:
        """Make the instances of this generation: those that the block asks for, kept until another one is prepared.

        If the block raises, what it made is closed again, and what was prepared before stays so.
        """
        with self._adopting:
            with self._lock:
                self._adoption = adoption = Adoption(self._instances, self._lock, self._handle)
            try:
                yield adoption
            except BaseException:
                with self._lock:
                    self._adoption = None
                    self._handles |= adoption.handles
                    ended = self._ended()
                self._close(adoption.made | ended)
                raise
            with self._lock:
                self._adoption = None
                self._instances |= adoption.made
                self._handles |= adoption.handles
                self._prepared = registry.generation
                self._used[registry.generation] = frozenset(adoption.asked)
                ended = self._ended()
            self._close(ended)

    def adopt(self, registry: Registry) -> None:
        """Make the generation that was prepared last the current one; raises `LookupError` for any other one."""
        with self._lock:
            if self._prepared != registry.generation:
                raise LookupError(f"generation {registry.generation} is not prepared")
            self._current, self._prepared = self._prepared, None
            ended = self._ended()
        self._close(ended)

    @contextlib.contextmanager
    def adopting(self, registry: Registry) -> Iterator[Adoption]:
        """Prepare this generation and make it the current one when the block ends.

        If the block raises, what it made is closed again and the generation before stays the current one.
        """
        with self.preparing(registry) as adoption:
            yield adoption
        self.adopt(registry)

    def lease(self, registry: Registry) -> Lease:
        """Hold the instances of a generation that was adopted, until the lease is released.

        Raises `LookupError` for a generation that was never adopted or whose instances have ended.
        """
        generation = registry.generation
        with self._lock:
            if generation not in self._used:
                raise LookupError(f"generation {generation} is not running")
            self._held[generation] = self._held.get(generation, 0) + 1
        return Lease(lambda: self._release(generation))

    def close(self) -> None:
        """Close all instances, whoever holds them: the process ends."""
        with self._lock:
            ended = dict(self._instances)
            self._instances.clear()
            self._used.clear()
            self._current = self._prepared = None
        self._close(ended)

    def _release(self, generation: int) -> None:
        with self._lock:
            self._held[generation] -= 1
            if self._held[generation]:
                return
            del self._held[generation]
            ended = self._ended()
        self._close(ended)

    def _ended(self) -> dict[_Key, Any]:
        self._used = {generation: keys for generation, keys in self._used.items()
                      if generation in (self._current, self._prepared) or generation in self._held}
        asked = self._adoption.asked if self._adoption is not None else set[_Key]()
        kept = asked.union(*self._used.values())
        return {key: self._instances.pop(key) for key in list(self._instances) if key not in kept}

    def _close(self, instances: Mapping[_Key, Any]) -> None:
        for key, instance in instances.items():
            if isinstance(instance, Closeable):
                try:
                    instance.close()
                except BaseException as error:  # the fault of one plugin is no reason to leak the others
                    must_be_survived(error)
                    self._failed(key, error)
            handle = self._handles.pop(key, None)
            if handle is not None:
                self._released(handle)
