"""States of a node for tests of QoS plugins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.agent.states_informer.callbacks import StateCallbacks
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.states import CallbackTarget, StateCallback, StateType


@dataclass(slots=True)
class FakeStates:
    """States that a test sets. `send` calls the callbacks of a type at once; their exceptions are raised."""

    node: Mapping[str, Any] | None = None
    node_slo: Mapping[str, Any] | None = None
    pods: tuple[PodInfo, ...] = ()
    topology: Mapping[str, Any] | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    pods_age: float = 0.0
    pods_max_age: float = 60.0
    ages: Mapping[str, float] = field(default_factory=dict)
    callbacks: StateCallbacks = field(default_factory=StateCallbacks)

    @property
    def pods_stale(self) -> bool:
        """Return whether the pods are older than `pods_max_age`."""
        return self.pods_age > self.pods_max_age

    def age(self, kind: str) -> float:
        """Return the age of a kind in `ages`; of one that is not there, 0 if it is known, else infinity."""
        if kind == "Pod":
            return self.pods_age
        known = {"Node": self.node, "NodeSLO": self.node_slo, "NodeResourceTopology": self.topology}.get(kind)
        return self.ages.get(kind, math.inf if known is None else 0.0)

    def register_callback(self, state_type: StateType, name: str, description: str, callback: StateCallback) -> None:
        """Register a callback, which only `send` calls."""
        self.callbacks.register(state_type, name, description, callback)

    def unregister_callback(self, state_type: StateType, name: str) -> None:
        """Remove a callback."""
        self.callbacks.unregister(state_type, name)

    def send(self, state_type: StateType) -> None:
        """Call the callbacks of a type with the state as it is."""
        spec = (self.node_slo or {}).get("spec") or {}
        state: Mapping[str, Any] | None = {
            StateType.NODE_SLO: spec or None, StateType.NODE_TOPOLOGY: self.topology,
            StateType.NODE_METADATA: self.node,
        }.get(state_type)
        target = CallbackTarget(self.pods, tuple(spec.get("hostApplications") or ()))
        for each in self.callbacks.registered(state_type):
            each.callback(state_type, state, target)
