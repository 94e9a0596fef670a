"""The states of the node that an agent runs on, followed on the API server and the kubelet.

All network is on the I/O thread; states may be read from any thread, as each is replaced as a whole. Callbacks run in
the agent's own thread, by `run_callbacks`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import operator
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.pacing import Backoff, TokenBucket
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.cluster.kinds import FieldSets
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.states import CallbackTarget, StateCallback, StateType

from .callbacks import StateCallbacks
from .claims import ClaimVolumes
from .kubelet import Kubelet, KubeletError, KubeletObserver
from .node_objects import (
    DEVICE,
    NODE,
    NODE_METRIC,
    NODE_SLO,
    NODE_TOPOLOGY,
    OBJECTS,
    OPTIONAL,
    FollowedObject,
    is_same_but_version,
    metadata_of,
    projection_of,
)
from .pods import PodReader, pod_projection, sorted_pods
from .settings import FROM_API, MAX_AGE_S, StatesSettings
from .state_store import PODS, StateStore, StoredState

_LOG: Final = logging.getLogger(__name__)

_STORED: Final = (NODE, NODE_SLO)
_PLEG_RATE: Final = 5.0
_PLEG_BURST: Final = 10
_SAVE_DELAY_S: Final = 1.0
_SAVE_INTERVAL_S: Final = 60.0


class StatesInformer:
    """The states of one node, see `States`. `start` it once; it ends with the I/O thread."""

    def __init__(
        self, io: IoThread, transport: Transport, settings: StatesSettings, *,
        effective_spec: Callable[[Mapping[str, Any]], Mapping[str, Any] | None], reads: FieldSets | None = None,
        store: StateStore | None = None, wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
        kubelet_observer: KubeletObserver | None = None,
    ) -> None:
        """Restore what is stored. `transport` belongs to the loop of `io`.

        `effective_spec` returns the spec of a NodeSLO with all defaults, of one that was received; it raises
        `ValueError` if that is malformed. `reads` are the fields of Nodes and Pods that plugins read besides. `wake` is
        called from other threads when `run_callbacks` has something to do. `clock` measures ages, `now` is this
        machine's time, both in seconds. `kubelet_observer` is called with each request to the kubelet.
        """
        self.settings = settings
        self.callbacks = StateCallbacks(wake)
        self._io = io
        self._transport = transport
        self._effective_spec = effective_spec
        self._store = store
        self._clock = clock
        self._now = now
        reads = reads or {}
        self._followed = {kind: FollowedObject(projection_of(fields, reads.get(kind, frozenset())))
                          for kind, fields in OBJECTS.items() if kind not in OPTIONAL or kind in settings.follow}
        self._node_slo: Mapping[str, Any] | None = None
        self._received_spec: Any = None
        self._reader = PodReader(pod_projection(reads), mirrors=settings.pods_from == FROM_API)
        self._pods: dict[str, PodInfo] = {}
        self._sorted: tuple[PodInfo, ...] = ()
        self._pods_heard = -math.inf
        self._pods_fault = ""
        self._pods_informer: Informer | None = None
        self._pods_listed = False
        """True once the first list of pods was delivered."""
        self._claims = ClaimVolumes(transport, io.spawn)
        self._listeners: list[Callable[[str], None]] = []
        self._more_states: dict[str, Callable[[], Any]] = {}
        self.stored: dict[str, StoredState] = {}
        """The states that were restored."""
        # In the event loop:
        self._kubelet: Kubelet | None = None
        self._kubelet_observer = kubelet_observer
        self._triggered = asyncio.Event()
        self._changed = asyncio.Event()
        self._restore()

    # States, for any thread

    @property
    def node(self) -> Mapping[str, Any] | None:
        """The Node."""
        return self._followed[NODE].object

    @property
    def node_slo(self) -> Mapping[str, Any] | None:
        """The NodeSLO with its effective spec."""
        return self._node_slo

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node."""
        return self._sorted

    @property
    def topology(self) -> Mapping[str, Any] | None:
        """The NodeResourceTopology."""
        return self._followed[NODE_TOPOLOGY].object

    @property
    def device(self) -> Mapping[str, Any] | None:
        """The Device without its status; None if there is none, or it is not followed."""
        return self.object(DEVICE)

    @property
    def node_metric(self) -> Mapping[str, Any] | None:
        """The NodeMetric without its status; None if there is none."""
        return self._followed[NODE_METRIC].object

    @property
    def claims(self) -> Mapping[str, str]:
        """The volumes of the pods' claims; one that is not known is read after it was looked up."""
        return self._claims

    @property
    def pods_age(self) -> float:
        """The age of the pods."""
        live = self._pods_informer.view.heard if self._pods_informer is not None and self._pods_listed else 0.0
        return max(0.0, self._clock() - (live or self._pods_heard))

    @property
    def pods_max_age(self) -> float:
        """The age in seconds above which pods are stale."""
        return self.settings.pods_max_age or MAX_AGE_S[self.settings.pods_from]

    @property
    def pods_stale(self) -> bool:
        """True if nobody may be evicted, as the pods may be others by now."""
        return self.pods_age > self.pods_max_age

    @property
    def faults(self) -> dict[str, str]:
        """The error of each kind that is not followed at present."""
        found = {kind: each.informer.view.fault if each.informer is not None else "" for kind, each in
                 self._followed.items()}
        pods = self._pods_informer.view.fault if self._pods_informer is not None else self._pods_fault
        return {kind: fault for kind, fault in (*found.items(), (PODS, pods)) if fault}

    @property
    def synced(self) -> bool:
        """True once Node and pods are known, and whether there is a NodeSLO; restored states count."""
        slo = self._followed[NODE_SLO]
        return (self.node is not None and self.pods_age < math.inf
                and (slo.object is not None or (slo.informer is not None and (
                    slo.informer.view.lists > 0 or slo.informer.view.absent))))

    def age(self, kind: str) -> float:
        """Return the age of a state."""
        return self.pods_age if kind == PODS else max(0.0, self._clock() - self._followed[kind].heard)

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the object of the node's name of a kind; None for other kinds."""
        return self._node_slo if kind == NODE_SLO else (
            self._followed[kind].object if kind in self._followed else None)

    def register_callback(self, state_type: StateType, name: str, description: str, callback: StateCallback) -> None:
        """Register a callback; it is called soon if the state is known already, as after a start from the disk."""
        self.callbacks.register(state_type, name, description, callback)
        known, state = self._current(StateType(state_type))
        if known and (state is not None or (state_type == StateType.PODS and self.pods)):
            self.callbacks.send(state_type)

    def unregister_callback(self, state_type: StateType, name: str) -> None:
        """Remove a callback."""
        self.callbacks.unregister(state_type, name)

    def run_callbacks(self) -> int:
        """Call what was registered for states that have changed; for the agent's thread. Return the number of calls."""
        return self.callbacks.run(self._current, self._target)

    def pod_started(self) -> None:
        """List the pods of the kubelet at once: a new pod's control group was seen. May be called from any thread."""
        self._io.call_soon(self._triggered.set)

    async def kubelet_configuration(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kubelet's configuration; for the event loop. Raises `KubeletError`."""
        return await self._reached_kubelet().configuration(node)

    def _reached_kubelet(self) -> Kubelet:
        if self._kubelet is None:
            self._kubelet = Kubelet(self.settings.kubelet, self._transport.connection, self._kubelet_observer)
        return self._kubelet

    # Life

    def start(self) -> None:
        """Begin to follow the states."""
        self._io.on_close(self._close)
        for kind in self._followed:
            self._spawn(self._follow(kind), f"to follow {kind}")
        if self.settings.pods_from == FROM_API:
            self._spawn(self._follow_pods(), "to follow pods")
        else:
            self._spawn(self._list_pods(), "to list pods")
        if self._store is not None:
            self._spawn(self._save_repeatedly(), "to store states")

    def require(self, reads: FieldSets) -> None:
        """Decode these fields of Nodes and Pods besides, after a change of the policies; for any thread.

        Objects are read again only if some of the fields are new.
        """
        self._io.call_soon(self._require, reads)

    def _require(self, reads: FieldSets) -> None:
        node = self._followed[NODE]
        wider = projection_of(OBJECTS[NODE], reads.get(NODE, frozenset()))
        if not node.projection.covers(wider):
            node.projection |= wider
            if node.informer is not None:
                node.informer.relist()
        if self._reader.use(pod_projection(reads)):
            if self._pods_informer is not None:
                self._pods_informer.relist()
            self._triggered.set()

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call a function in the event loop with the kind of each change; before `start`."""
        self._listeners.append(listener)

    def store_also(self, name: str, state: Callable[[], Any]) -> None:
        """Store a further state, as plain data; `state` is called in the event loop. Before `start`."""
        self._more_states[name] = state

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], what: str) -> None:
        self._io.spawn(coroutine, what)

    async def _close(self) -> None:
        if self._kubelet is not None:
            await self._kubelet.close()
        if self._store is not None:
            self._write(self._store.encode(self._states_to_store()))

    def _current(self, state_type: StateType) -> tuple[bool, Mapping[str, Any] | None]:
        if state_type is StateType.NODE_SLO:
            return (False, None) if self._node_slo is None else (True, self._node_slo["spec"])
        return True, {StateType.NODE_TOPOLOGY: self.topology, StateType.NODE_METADATA: self.node}.get(state_type)

    def _target(self) -> CallbackTarget:
        spec = (self._node_slo or {}).get("spec") or {}
        applications = spec.get("hostApplications")
        return CallbackTarget(self._sorted, tuple(applications) if isinstance(applications, list) else ())

    # Objects of the API server, in the event loop

    async def _follow(self, kind: str) -> None:
        followed = self._followed[kind]
        followed.informer = Informer(
            self._transport, BY_KIND[kind], partial(self._deliver, kind), now=self._clock,
            field_selector=f"metadata.name={self.settings.node}")
        await followed.informer.run()

    def _deliver(self, kind: str, changes: Sequence[Change]) -> None:
        followed = self._followed[kind]
        for change in changes:
            if change.name != self.settings.node:
                continue  # of a server that does not know the selector
            if change.deleted or change.raw is None:
                self._deleted(kind)
                continue
            try:
                item = followed.projection.decode(change.raw)
            except (ValueError, RecursionError) as error:
                self._fault(kind, f"the {kind} cannot be read, and is left as it was: {error}")
                continue
            item["apiVersion"], item["kind"] = BY_KIND[kind].api_version, kind
            self._apply(kind, item)

    def _deleted(self, kind: str) -> None:
        if kind in _STORED:
            _LOG.warning("the %s `%s` was deleted: its last state stays in use", kind, self.settings.node)
            return
        self._followed[kind].object = None
        self._notify(kind)

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        followed = self._followed[kind]
        before = followed.object
        if kind == NODE_SLO and not self._merge(item):
            return
        followed.object = item
        followed.fault = ""
        if kind == NODE_TOPOLOGY and not is_same_but_version(before, item):
            self.callbacks.send(StateType.NODE_TOPOLOGY)
        if kind == NODE and any(metadata_of(before).get(name) != metadata_of(item).get(name)
                                for name in ("labels", "annotations")):
            self.callbacks.send(StateType.NODE_METADATA)
        if kind == NODE and before is None:
            self._triggered.set()
        self._notify(kind)

    def _merge(self, item: dict[str, Any]) -> bool:
        """Set the effective NodeSLO; return False if the received one is malformed."""
        spec = item.get("spec") or {}
        if self._node_slo is not None and spec == self._received_spec:
            self._node_slo = {**item, "spec": self._node_slo["spec"]}
            return True
        try:
            merged = self._effective_spec(spec)
        except (ValueError, TypeError, RecursionError) as error:
            self._fault(NODE_SLO, f"the NodeSLO is malformed, and the last one stays in use: {error}")
            return False
        self._received_spec = spec
        self._node_slo = {**item, "spec": merged}
        self.callbacks.send(StateType.NODE_SLO)
        return True

    def _fault(self, kind: str, why: str) -> None:
        if self._followed[kind].fault != why:
            _LOG.warning("%s", why)
        self._followed[kind].fault = why

    def _notify(self, kind: str) -> None:
        self._changed.set()
        for listener in self._listeners:
            listener(kind)

    # Pods, in the event loop

    async def _follow_pods(self) -> None:
        self._pods_informer = Informer(
            self._transport, BY_KIND[PODS], self._deliver_pods, now=self._clock, listed=self._end_pods,
            field_selector=f"spec.nodeName={self.settings.node}")
        await self._pods_informer.run()

    def _deliver_pods(self, changes: Sequence[Change]) -> None:
        for change in changes:
            key = f"{change.namespace}/{change.name}"
            if change.deleted or change.raw is None:
                self._pods.pop(key, None)
                continue
            self._pods |= self._reader.read_all([change.raw], self._pods, whole=False)
        if self._pods_informer is not None and self._pods_informer.view.lists:
            self._set_pods(self._pods)

    def _end_pods(self) -> None:
        if self._pods_informer is not None and not self._pods_informer.view.absent:
            # Restored pods that the informer has not delivered are gone.
            known = {f"{namespace}/{name}" for namespace, name in self._pods_informer.known()}
            self._set_pods({key: pod for key, pod in self._pods.items() if key in known})

    async def _list_pods(self) -> None:
        kubelet = self._reached_kubelet()
        bucket = TokenBucket(_PLEG_RATE, _PLEG_BURST)
        backoff = Backoff()
        interval = self.settings.kubelet.interval
        while True:
            self._triggered.clear()
            if self.node is None and not self.settings.kubelet.address:
                self._pods_fault = "the Node, which has the kubelet's address, is not known yet"
                delay = interval  # its arrival triggers
            else:
                delay = interval if await self._list_pods_once(kubelet) else min(interval, backoff.next())
            try:
                async with asyncio.timeout(delay):
                    await self._triggered.wait()
                await bucket.take()  # many pods that start together are one list
            except TimeoutError:
                pass

    async def _list_pods_once(self, kubelet: Kubelet) -> bool:
        try:
            raws = await kubelet.pods(self.node)
        except KubeletError as error:
            raws, fault = [], str(error)
        else:
            fault = "" if raws or not self._pods else "its list is empty, as it is while the kubelet starts"
        if fault:
            if fault != self._pods_fault:
                _LOG.warning("the pods cannot be read from the kubelet, the last ones stay in use: %s", fault)
            self._pods_fault = fault
            return False
        if self._pods_fault:
            _LOG.info("the kubelet lists its pods again")
        self._pods_fault = ""
        self._set_pods(self._reader.read_all(raws, self._pods))
        return True

    def _set_pods(self, pods: dict[str, PodInfo]) -> None:
        self._pods = pods
        ordered = sorted_pods(pods)
        if len(ordered) != len(self._sorted) or any(map(operator.is_not, ordered, self._sorted)):
            self._sorted = ordered
        # Not before: who sees that the pods are fresh must see the pods.
        self._pods_heard, self._pods_listed = self._clock(), True
        self.callbacks.send(StateType.PODS)
        self._notify(PODS)
        self._claims.retain(self._sorted)

    # The disk

    def _restore(self) -> None:
        if self._store is None:
            return
        self.stored = self._store.load()
        for kind in _STORED:
            stored = self.stored.get(kind)
            if stored is None or not isinstance(stored.object, dict):
                continue
            self._followed[kind].restored = self._restored_at(stored)
            self._apply(kind, stored.object)
        pods = self.stored.get(PODS)
        if pods is not None and isinstance(pods.object, list):
            for item in pods.object:
                try:
                    pod = self._reader.of(item)
                except (ValueError, RecursionError, AttributeError) as error:
                    _LOG.warning("a stored pod is left out: %s", error)
                    continue
                self._pods[pod.key] = pod
            self._sorted = sorted_pods(self._pods)
            self._pods_heard = self._restored_at(pods)
            self.callbacks.send(StateType.PODS)
        if self.stored:
            _LOG.info("restored from `%s`: %s", self._store.path, ", ".join(
                f"{kind} ({max(0.0, self._now() - each.heard):.0f} s old)" for kind, each in self.stored.items()))

    def _restored_at(self, stored: StoredState) -> float:
        """Return when a stored state was heard of, by `clock`; a time in the future (the clock was set back) counts as
        infinitely old.
        """
        age = self._now() - stored.heard
        return self._clock() - age if age >= 0 else -math.inf

    def _states_to_store(self) -> dict[str, StoredState]:
        found = {}
        now, clock = self._now(), self._clock()
        for kind in _STORED:
            followed = self._followed[kind]
            item = followed.object
            if item is not None and followed.heard > -math.inf:
                found[kind] = StoredState(now - (clock - followed.heard), item)
        if self.pods_age < math.inf:
            found[PODS] = StoredState(now - self.pods_age, [pod.object for pod in self._sorted])
        for name, state in self._more_states.items():
            found[name] = StoredState(now, state())
        return found

    async def _save_repeatedly(self) -> None:
        assert self._store is not None
        while True:
            try:
                async with asyncio.timeout(_SAVE_INTERVAL_S):
                    await self._changed.wait()
                    await asyncio.sleep(_SAVE_DELAY_S)
            except TimeoutError:
                pass  # what is stored has the time at which each state was last heard of
            self._changed.clear()
            content = self._store.encode(self._states_to_store())
            await asyncio.to_thread(self._write, content)
            await asyncio.sleep(_SAVE_DELAY_S)

    def _write(self, content: bytes) -> None:
        assert self._store is not None
        try:
            self._store.write(content)
        except OSError as error:
            _LOG.warning("the states cannot be stored in `%s`: %s", self._store.path, error.strerror or error)
