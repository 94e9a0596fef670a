"""A migration controller on a live cluster in the thread of a test, which may end after any of its writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.descheduler.migration_controller.plugin import MigrationController, check_args
from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import fields_read
from koordpolicy.engine.cluster.sources.feed import Feed
from koordpolicy.engine.descheduler.live.evictions import LiveEvictions
from koordpolicy.engine.descheduler.migration.live_api import LiveMigrationApi
from koordpolicy.engine.descheduler.migration.worker import MigrationWorker
from koordpolicy.engine.framework.descheduler import EvictOptions
from tests.killed import end_process

WRITES = ("create_job", "update_job", "update_job_status", "delete_job", "create_reservation", "update_reservation",
          "delete_reservation", "evict")


class KilledApi:
    """Makes the requests of another API, records the writes, and ends the process after one of them."""

    def __init__(self, api: LiveMigrationApi) -> None:
        self.calls: list[str] = []
        self.kill_after = 0
        """The number of writes after which the process ends; 0 for never."""
        self._api = api

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        if name not in WRITES:
            return method

        def write(*args: Any) -> Any:
            self.calls.append(name)
            result = method(*args)
            if len(self.calls) == self.kill_after:
                end_process()
            return result

        return write


class MigrationHost:
    """One process with a migration controller (implements `MigratesPods`); use as a context manager."""

    def __init__(self, kubeconfig: Path, args: dict[str, Any], *, instance: str) -> None:
        self._io = IoThread()
        self._woken = threading.Event()
        self._cluster = Cluster(following_from=256)
        transport, watching, events = (
            Transport(load_connection(None, configuration_file=kubeconfig), rate=0) for _ in range(3))
        self.recorder = EventRecorder(events)
        self._io.start()
        for each in (transport, watching, events):
            self._io.on_close(each.close)
        (declared,) = (plugin for plugin in PLUGINS if plugin.name == MigrationController.name)
        self._feed = Feed(self._io, watching, fields_read(declared.reads), wake=self._woken.set, finished_pods=True)
        evictions = LiveEvictions(self._io, ClusterWriter(transport), events=self.recorder, now=self._feed.now)
        self._cluster.listen(lambda event: event.kind == "PodDisruptionBudget" and event.new is not None
                             and evictions.budget_changed(event.new))
        self.api = KilledApi(LiveMigrationApi(self._io, transport, self.recorder, evictions))
        self.migrations = MigrationWorker(self.api)
        self.identity = instance
        self.job = ""
        """The name of the next job."""
        self.plugin = MigrationController(
            check_args(args), client=self, snapshot=self.snapshot, new_name=lambda: self.job)

    def __enter__(self) -> Self:
        self._recording = self._io.submit(self.recorder.run())
        self._feed.start()
        while not self._feed.synced:
            self._woken.clear()
            if not self._feed.apply(self._cluster, 0.1):
                self._woken.wait(1)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._io.close()

    def snapshot(self) -> Any:
        return self._cluster.snapshot(self._feed.now())

    def see(self, found: Callable[[Any], object], seconds: float = 60.0) -> None:
        """Apply changes, and do nothing else, until the cluster shows something; `found` gets a snapshot."""
        deadline = time.monotonic() + seconds
        while not found(self.snapshot()):
            assert time.monotonic() < deadline, f"not within {seconds:g} s"
            self._woken.clear()
            if not self._feed.apply(self._cluster, 0.1):
                self._woken.wait(0.1)

    def request(self, key: str, job: str) -> None:
        """Evict a pod, as a plugin in a cycle does."""
        snapshot = self.snapshot()
        (pod,) = (pod for row in range(snapshot.size) for pod in snapshot.pods(row) if pod.key == key)
        self.job = job
        assert self.plugin.evict_with_options(pod, EvictOptions("it is hot", "koord-descheduler", "LowNodeLoad"))

    def flush_events(self) -> None:
        self._recording.cancel()
        self._io.submit(self.recorder.flush()).result(30)

    def run(self, act: Callable[[], object], done: Callable[[], object], seconds: float = 60.0) -> None:
        """Work until `done`; `act` is called between two steps: it is what all others do."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"not within {seconds:g} s"
            self._woken.clear()
            self._feed.apply(self._cluster, 0.005)
            snapshot = self.snapshot()
            due = self.plugin.background_step(snapshot)
            act()
            self._woken.wait(min((due - snapshot.now) / 1e9, 0.02))
