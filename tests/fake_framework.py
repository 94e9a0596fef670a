"""A scheduler that decides nothing: it holds a cluster, tells plugins of events, and notes what they do."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster, Snapshot
from koordpolicy.engine.plugins import Event, Handle
from koordpolicy.engine.scheduler.reservations import ReservePods

_TABLE = {plugin.name: plugin for plugin in PLUGINS}


class FakeFramework:
    """Nodes, pods and other objects, and the plugins made over them by `make`; every change is told to them at once."""

    def __init__(self, *objects: Mapping[str, Any], gates: Collection[str] = (), now: int = 0) -> None:
        self.cluster = Cluster()
        self.time = now
        self.gates = frozenset(gates)
        self.told: list[tuple[frozenset[str], Callable[[Event], None]]] = []
        self.plugins: list[Any] = []
        self.reserve_pods = ReservePods(self.upsert, lambda key: self.delete("Pod", key))
        self.waiting = FakeWaiting()
        self.queue = FakeQueue(self)
        self.nominator = FakeNominator()
        self.client = FakeClient(self)
        for item in objects:
            self.upsert(item)

    # What happens in the cluster

    def upsert(self, item: Mapping[str, Any]) -> None:
        """Add or change an object."""
        metadata = item["metadata"]
        namespace = metadata.get("namespace") or ("default" if item["kind"] == "Pod" else "")
        key = f"{namespace}/{metadata['name']}" if namespace else metadata["name"]
        old, old_pod = self.cluster.object(item["kind"], key), self._pod(item["kind"], key)
        self.cluster.upsert(item)
        self._tell(Event(item["kind"], key, old, item, old_pod, self._pod(item["kind"], key)))

    def delete(self, kind: str, key: str) -> None:
        """Remove an object."""
        old, old_pod = self.cluster.object(kind, key), self._pod(kind, key)
        self.cluster.delete(kind, key)
        self._tell(Event(kind, key, old, None, old_pod, None))

    def assume(self, pod: PodInfo, node: str) -> None:
        """Place a pod, as the scheduler does before it asks to reserve."""
        self.cluster.assume(pod, node)
        self._tell(Event("Pod", pod.key, pod.object, pod.object, pod, pod.on(node), assumed=True))

    def forget(self, pod: PodInfo) -> None:
        """Take back what `assume` did."""
        self.cluster.forget(pod.key)
        known = self.cluster.pod(pod.key)
        self._tell(Event("Pod", pod.key, pod.object, known.object if known else None, pod, known, assumed=True))

    def _pod(self, kind: str, key: str) -> PodInfo | None:
        return self.cluster.pod(key) if kind == "Pod" else None

    def _tell(self, event: Event) -> None:
        for kinds, callback in self.told:
            if event.kind in kinds:
                callback(event)
        self.reserve_pods.on_event(event)

    # What plugins are given

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Tell what is known, nodes before other objects and pods last, and all that comes."""
        for kind in sorted(kinds, key=lambda kind: (kind == "Pod", kind != "Node")):
            for key, item in list(self.cluster.objects(kind).items()):
                callback(Event(kind, key, None, item, None, self._pod(kind, key)))
        self.told.append((frozenset(kinds), callback))

    def handle(self, name: str = "plugin") -> Handle:
        """Return a handle whose every part is this framework's."""

        def peers(capability: Any) -> Any:
            return tuple(plugin for plugin in self.plugins if isinstance(plugin, capability))

        return Handle(
            "koord-scheduler", self.snapshot, lambda: self.time, logging.getLogger(name), events=self,
            waiting=self.waiting, queue=self.queue, nominator=self.nominator, client=self.client, peers=peers,
            feature_gates=self.gates,
        )

    def make(self, name: str, **args: Any) -> Any:
        """Return a built-in plugin with v1 arguments."""
        plugin = _TABLE[name]
        assert plugin.check_args is not None
        made = plugin.make(plugin.check_args(args), self.handle(name))
        self.plugins.append(made)
        return made

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is."""
        return self.cluster.snapshot(self.time)

    @property
    def rows(self) -> Any:
        """All row numbers."""
        return np.arange(self.snapshot().size, dtype=np.intp)

    def pod(self, key: str) -> PodInfo:
        """Return a pod by key."""
        found = self.cluster.pod(key)
        assert found is not None, key
        return found


class FakeWaiting:
    """The pods that a permit holds: a test adds keys; what happened to them is noted."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.allowed: list[str] = []
        self.rejected: dict[str, str] = {}

    def keys(self) -> tuple[str, ...]:
        """Return the keys."""
        return tuple(self.held)

    def allow(self, key: str, plugin: str) -> bool:
        """Let a pod go on."""
        if key not in self.held:
            return False
        self.held.remove(key)
        self.allowed.append(key)
        return True

    def reject(self, key: str, plugin: str, message: str) -> bool:
        """Send a pod back."""
        if key not in self.held:
            return False
        self.held.remove(key)
        self.rejected[key] = message
        return True


class FakeQueue:
    """The queue: the pods without a node wait in it; activations are noted."""

    def __init__(self, framework: FakeFramework) -> None:
        self._framework = framework
        self.activated: list[str] = []

    def activate(self, keys: Collection[str]) -> None:
        """Note that these pods are to be tried."""
        self.activated.extend(sorted(keys))

    def pods(self) -> tuple[PodInfo, ...]:
        """Return all pods that wait."""
        return self._framework.cluster.pending


class FakeNominator:
    """Promises by pod key."""

    def __init__(self) -> None:
        self.promises: dict[str, tuple[PodInfo, str]] = {}

    def nominated(self, node: str) -> tuple[PodInfo, ...]:
        """Return who was promised the node."""
        return tuple(pod for pod, promised in self.promises.values() if promised == node)

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Promise."""
        self.promises[pod.key] = (pod, node)

    def withdraw(self, pod: PodInfo) -> None:
        """Take back."""
        self.promises.pop(pod.key, None)


class FakeClient:
    """The API server: what is written is noted, and shows in the cluster."""

    def __init__(self, framework: FakeFramework) -> None:
        self._framework = framework
        self.patches: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        self.bound: dict[str, str] = {}
        self.evicted: dict[str, str] = {}
        self.failures: list[OSError] = []
        self.answer: Mapping[str, Any] | None = None

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Note a patch, or fail as often as there are failures."""
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append((copy.deepcopy(original), copy.deepcopy(modified)))
        return self.answer

    def bind(self, pod: PodInfo, node: str) -> None:
        """Note a binding."""
        self.bound[pod.key] = node

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Note an eviction."""
        self.evicted[pod.key] = reason

    def delete(self, item: Mapping[str, Any]) -> None:
        """Delete an object."""
        metadata = item["metadata"]
        namespace = metadata.get("namespace")
        self._framework.delete(item["kind"], f"{namespace}/{metadata['name']}" if namespace else metadata["name"])
