"""The states of a node for one plugin, whose callbacks end with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.states import StateCallback, States, StateType


class PluginStates:
    """States that register callbacks under the plugin's name (implements `States`), so that plugins choose freely."""

    def __init__(self, states: States, plugin: str) -> None:
        self._states = states
        self._plugin = plugin
        self._registered: list[tuple[StateType, str]] = []
        self._ended = False

    @property
    def node(self) -> Mapping[str, Any] | None:
        """The Node; None until it is known."""
        return self._states.node

    @property
    def node_slo(self) -> Mapping[str, Any] | None:
        """The NodeSLO of the node with its effective spec; None until there is one."""
        return self._states.node_slo

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node, by key."""
        return self._states.pods

    @property
    def topology(self) -> Mapping[str, Any] | None:
        """The NodeResourceTopology of the node; None until there is one."""
        return self._states.topology

    @property
    def claims(self) -> Mapping[str, str]:
        """The names of the volumes that the claims of these pods are bound to."""
        return self._states.claims

    @property
    def pods_age(self) -> float:
        """The age of `pods`, in seconds."""
        return self._states.pods_age

    @property
    def pods_stale(self) -> bool:
        """True if `pods` is too old to evict by it."""
        return self._states.pods_stale

    def age(self, kind: str) -> float:
        """Return the age of the state of a kind, in seconds."""
        return self._states.age(kind)

    def register_callback(self, state_type: StateType, name: str, description: str, callback: StateCallback) -> None:
        """Register a callback; raise `ValueError` as `States` does, and after the plugin has ended."""
        if self._ended:
            raise ValueError(f"callback `{name}`: `{self._plugin}` has ended")
        full = f"{self._plugin}/{name}"
        self._states.register_callback(state_type, full, description, callback)
        self._registered.append((StateType(state_type), full))

    def unregister_callback(self, state_type: StateType, name: str) -> None:
        """Remove a callback of the plugin."""
        entry = state_type, f"{self._plugin}/{name}"
        if entry in self._registered:
            self._registered.remove(entry)
            self._states.unregister_callback(*entry)

    def withdraw(self) -> None:
        """Remove all callbacks of the plugin, which has ended."""
        self._ended = True
        while self._registered:
            self._states.unregister_callback(*self._registered.pop())
