"""The manager of a live cluster: its connections, informers, workers, Lease and end.

```
 I/O thread: informers, reconciliations, writes, events     election thread: the Lease, on its own connection
 listener threads: webhooks; health and metrics
```
All replicas answer webhooks; only the leader writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.event_recorder import EventRecorder, end_recording
from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.leader_election import Ended, LeaderElection, LeaseSettings
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import ObjectReference
from koordpolicy.engine.client.transport import RequestObserver
from koordpolicy.engine.client.transports import Transports
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.kubernetes.vocabulary import SLO_CONFIG

from .objects import CONFIG_MAPS, FOLLOWED, ManagedObjects
from .reconciler import NodeReconciler, WriteRefused
from .work_queue import WorkQueue

if TYPE_CHECKING:
    from .certificate_rotation import CertificateRotation, CertificateSettings

_LOG: Final = logging.getLogger(__name__)

USER_AGENT: Final = "koord-policy/manager"
CONTROLLER: Final = "koord-policy-manager"
QPS: Final = 30.0
BURST: Final = 50
WORKERS: Final = 8
SYNC_S: Final = 60.0
"""Seconds between two reconciliations of a node without news: measurements become stale without an event."""
_NODE_KINDS: Final = frozenset({"Node", "NodeMetric", "NodeSLO", "NodeResourceTopology"})
_FAULT_REASON: Final = "SLOCfgUnmarshalFailed"
_RELEASE_S: Final = 3.0
_CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """The settings of a manager."""

    namespace: str = "koordinator-system"
    """The namespace of the ConfigMap."""
    config_map: str = SLO_CONFIG
    lease: LeaseSettings | None = None
    """None to write without a Lease: then this must be the only manager."""
    qps: float = QPS
    burst: int = BURST
    sync_s: float = SYNC_S
    certificates: CertificateSettings | None = None
    """The certificates that the manager makes itself; None if they are files."""
    parity: bool = False
    """As Koordinator: pods without a report do not count in `maxUsageRequest`."""


class ManagerServer:
    """One manager. `run` it once; `stop` may be called from any thread, or a signal handler."""

    def __init__(
        self, connect: Callable[[], Connection], settings: ManagerSettings, *, requests: RequestObserver | None = None,
        ready: Callable[[], None] = lambda: None, context: ssl.SSLContext | None = None,
    ) -> None:
        """`connect` returns a new connection; its errors are raised here. `requests` measures requests.

        `ready` is called once, in the loop, when all lists have arrived. `context` is that of the webhooks' listener,
        for certificates that the manager makes itself.
        """
        self.settings = settings
        self.objects = ManagedObjects()
        self.io = IoThread()
        self._ready = ready
        self._stop = threading.Event()
        self._ended = threading.Event()
        """Set once the work has ended."""
        self._lost = False
        self._transports = transports = Transports.of(
            connect, USER_AGENT, rate=settings.qps, burst=settings.burst, observer=requests)
        self.recorder = EventRecorder(transports.events)
        lease = settings.lease
        self.election = None if lease is None else LeaderElection(
            connect, lease, user_agent=USER_AGENT, on_started=self._started_leading, on_stopped=self._stopped_leading,
            events=self.recorder, controller=CONTROLLER)
        self.reconciler = NodeReconciler(
            self.objects, ClusterWriter(transports.writes), now=transports.watches.server_clock.nanoseconds,
            may_write=self.leads, parity=settings.parity)
        self.certificates = self._rotation(context)
        self.informers = {
            each.resource.kind: Informer(
                transports.watches, each.resource, self._deliver, listed=self._look_at_sync,
                namespace=settings.namespace if each.resource is CONFIG_MAPS else "",
                field_selector=f"metadata.name={settings.config_map}" if each.resource is CONFIG_MAPS else None)
            for each in FOLLOWED}
        self._config_key = f"{settings.namespace}/{settings.config_map}"
        self._had_config = False
        self._faults = RepeatedFaults()
        self._synced = False
        self.queue = WorkQueue()

    def _rotation(self, context: ssl.SSLContext | None) -> CertificateRotation | None:
        if self.settings.certificates is None or context is None:
            return None
        from .certificate_rotation import CertificateRotation  # noqa: PLC0415 - of an extra

        return CertificateRotation(self._transports.writes, self.settings.certificates, context, leads=self.leads)

    @property
    def synced(self) -> bool:
        """True once all lists have arrived."""
        return self._synced

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._stop.is_set()

    def leads(self) -> bool:
        """Return True while this process may write; for any thread."""
        return not self.stopping and (self.election is None or self.election.leads())

    def stop(self) -> None:
        """Let `run` end."""
        self._stop.set()

    def run(self) -> Ended:
        """Work until `stop` is called or the Lease is lost.

        Raises the error that ends the work: a process that led and did nothing would keep others from leading.
        """
        self.io.start()
        try:
            self._transports.close_with(self.io)
            work = self.io.submit(self._work())
            work.add_done_callback(lambda _: self._stop.set())
            recording = self.io.spawn(self.recorder.run(), "to record events")
            self._stop.wait()
            if not work.cancel():
                work.result()
            self._ended.wait(_CLOSE_S)  # another manager writes as soon as the Lease is released
            self._release()  # before the last events, as one of them is about the Lease
            if not self._lost:
                end_recording(self.io, self.recorder, recording)
        finally:
            self._release()
            self.io.close(_CLOSE_S)
        return Ended.LOST_LEASE if self._lost else Ended.STOPPED

    def _release(self) -> None:
        if self.election is not None:
            self.election.release(_RELEASE_S)

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self.informers.values():
                    tasks.create_task(informer.run())
                for _ in range(WORKERS):
                    tasks.create_task(self._reconcile())
                tasks.create_task(self._sweep())
                if self.certificates is not None:
                    tasks.create_task(self.certificates.run())
        finally:
            self._ended.set()

    async def _reconcile(self) -> None:
        while True:
            name = await self.queue.take()
            try:
                if self.leads():
                    await self.reconciler.reconcile(name)
                self.queue.done(name)
            except asyncio.CancelledError:
                raise
            except WriteRefused as error:
                if self._faults.is_due(str(error), name):
                    _LOG.warning("node %s: %s", name, error)
                self.queue.failed(name)
            except ValueError as error:
                if self._faults.is_due(str(error), name):
                    _LOG.warning("node %s: its objects cannot be used: %s", name, error)
                self.queue.done(name)
            except Exception:
                _LOG.exception("node %s could not be reconciled", name)
                self.queue.failed(name)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sync_s)
            self._add_all()

    def _add_all(self) -> None:
        if self._synced:
            names = {key for kind in ("Node", "NodeSLO", "NodeMetric") for key in self.objects.keys(kind)}
            for name in sorted(names):
                self.queue.add(name)

    def _deliver(self, changes: Sequence[Change]) -> None:
        self.objects.apply(changes, self._changed)

    def _changed(self, kind: str, key: str) -> None:
        if kind == "ConfigMap":
            if key == self._config_key and self._synced:
                self._configure()
        elif kind in _NODE_KINDS and self._synced:
            self.queue.add(key)

    def _look_at_sync(self) -> None:
        """Begin once all needed kinds are listed, or known to be absent."""
        if self._synced:
            return
        views = [self.informers[kind].view for kind in self.informers]
        if all(view.synced or view.absent for view in views):
            self._synced = True
            self._configure()
            self._add_all()
            self._ready()
            if self.election is not None:
                self.election.start()

    def _configure(self) -> None:
        item = self.objects.object("ConfigMap", self._config_key)
        data = None if item is None else dict(item.get("data") or {})
        changed = self.reconciler.configure(data, deleted=item is None and self._had_config)
        self._had_config = self._had_config or item is not None
        faults = {key: str(fault) for key, fault in self.reconciler.slo.faults.items()}
        if item is not None and self.reconciler.colocation.fault:
            faults["colocation-config"] = self.reconciler.colocation.fault
        for key, fault in faults.items():
            _LOG.warning("`%s` of %s %s: its previous value is used", key, self._config_key, fault)
        if self.leads():
            self._record(faults)
        if changed:
            self._add_all()

    def _record(self, faults: dict[str, str]) -> None:
        item = self.objects.object("ConfigMap", self._config_key)
        if item is None:
            return
        reference = ObjectReference(CONFIG_MAPS, self.settings.namespace, self.settings.config_map,
                                    str((item.get("metadata") or {}).get("uid") or ""))
        for key, fault in faults.items():
            self.recorder.record(
                reference, type="Warning", reason=_FAULT_REASON, action=f"Parse {key}", controller=CONTROLLER,
                note=f"`{key}` {fault}: its previous value is used")

    def _started_leading(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.io.call_soon(self._lead)

    def _lead(self) -> None:
        if self.certificates is not None:
            self.certificates.wake()
        self._configure()
        self._add_all()

    def _stopped_leading(self) -> None:
        if self.election is not None and not self.stopping:
            self._lost = True
            self._stop.set()
