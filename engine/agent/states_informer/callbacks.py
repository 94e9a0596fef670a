"""Callbacks of states: registered by type, sent from any thread, and run in the agent's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.framework.states import CallbackTarget, StateCallback, StateType

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegisteredCallback:
    """A callback with its name and its purpose."""

    name: str
    description: str
    callback: StateCallback


class StateCallbacks:
    """The callbacks of all types. `send` coalesces: a type that waits already is not sent twice."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` is called, in the sender's thread, if a type with callbacks begins to wait; it must not block."""
        self._wake = wake
        self._lock = threading.Lock()
        self._registered: dict[StateType, tuple[RegisteredCallback, ...]] = dict.fromkeys(StateType, ())
        self._waiting: set[StateType] = set()
        self.failures = 0
        """The number of calls that raised an exception."""

    def register(self, state_type: StateType, name: str, description: str, callback: StateCallback) -> None:
        """Register a callback; raise `ValueError` for an unknown type, or a name that the type has already."""
        try:
            known = StateType(state_type)
        except ValueError:
            raise ValueError(
                f"callback `{name}`: there is no state `{state_type}`, only {', '.join(StateType)}") from None
        with self._lock:
            if any(each.name == name for each in self._registered[known]):
                raise ValueError(f"`{known}` has a callback `{name}` already: choose another name")
            self._registered[known] += (RegisteredCallback(name, description, callback),)

    def unregister(self, state_type: StateType, name: str) -> None:
        """Remove a callback of a type; do nothing if there is none of this name."""
        with self._lock:
            self._registered[state_type] = tuple(
                each for each in self._registered[state_type] if each.name != name)

    def registered(self, state_type: StateType) -> tuple[RegisteredCallback, ...]:
        """Return the callbacks of a type, in order."""
        return self._registered[state_type]

    def send(self, state_type: StateType) -> None:
        """Let the callbacks of a type run soon."""
        with self._lock:
            if state_type in self._waiting or not self._registered[state_type]:
                return
            self._waiting.add(state_type)
        self._wake()

    @property
    def waiting(self) -> bool:
        """True if `run` has something to do."""
        return bool(self._waiting)

    def run(
        self, current: Callable[[StateType], tuple[bool, Mapping[str, Any] | None]],
        target: Callable[[], CallbackTarget],
    ) -> int:
        """Run the callbacks of the types that were sent; return how many were called.

        `current` returns whether a type's state is known, and the state as it is now: callbacks of a type that is not
        known are left out.
        """
        called = 0
        for state_type in StateType:
            with self._lock:
                if state_type not in self._waiting:
                    continue
                self._waiting.discard(state_type)
                registered = self._registered[state_type]
            known, state = current(state_type)
            if not known:
                continue
            where = target()
            for each in registered:
                called += 1
                try:
                    each.callback(state_type, state, where)
                except Exception:  # of a plugin: it costs itself
                    self.failures += 1
                    _LOG.exception("the callback `%s` of %s failed", each.name, state_type)
        return called
