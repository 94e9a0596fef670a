from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.live.activation import ProfileActivator
from koordpolicy.engine.descheduler.live.loop import LiveDescheduler
from koordpolicy.engine.descheduler.live.memory import ConfigMapMemoryStore, CycleMemory
from koordpolicy.engine.descheduler.proof.memory import UselessEvictionMemory
from koordpolicy.engine.descheduler.proof.store import KEY
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.descheduler import EvictionResult, EvictOptions
from koordpolicy.engine.framework.handle import Nothing
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import PolicyError, Problem, Source

from ..conftest import NOW, metric, node, pod
from .config_maps import PATH, ConfigMaps

SECOND = 1_000_000_000
FULL = UselessEvictionMemory().with_loop(("d/ReplicaSet/r", "a"), "a loop", NOW)


def test_a_config_map_is_made_read_and_changed():
    server = ConfigMaps()
    store = ConfigMapMemoryStore(server.key(KEY))
    assert store.load() == UselessEvictionMemory()
    store.save(FULL)
    assert store.load() == FULL
    store.save(UselessEvictionMemory())
    assert store.load() == UselessEvictionMemory()


def test_what_another_process_remembers_is_merged_and_not_overwritten():
    server = ConfigMaps()
    memory = CycleMemory(ConfigMapMemoryStore(server.key(KEY)))
    memory.begin()
    other = ConfigMapMemoryStore(server.key(KEY))
    other.load()
    other.save(FULL.with_eviction(PodInfo.of(pod("web", "b", metadata={"uid": "web"})), NOW))
    mine = UselessEvictionMemory().with_loop(("d/ReplicaSet/r", "c"), "mine", NOW)
    memory.end(mine, dry_run=False)
    merged = other.load()
    assert set(merged.useless) == {("d/ReplicaSet/r", "a"), ("d/ReplicaSet/r", "c")}
    assert ([each.uid for each in merged.watched], memory.begin()) == (["web"], merged)


def test_a_damaged_config_map_is_replaced(caplog: pytest.LogCaptureFixture):
    server = ConfigMaps()
    server.write(PATH, {KEY: "{"})
    memory = CycleMemory(ConfigMapMemoryStore(server.key(KEY)))
    assert memory.begin() == UselessEvictionMemory()
    assert "the ConfigMap `n/m` is no memory of evictions" in caplog.text
    memory.end(FULL, dry_run=False)
    assert ConfigMapMemoryStore(server.key(KEY)).load() == FULL


class OddStore:
    """A store whose reads and writes fail with `fault`."""

    def __init__(self, memory: UselessEvictionMemory, fault: Exception | None = None) -> None:
        self.memory = memory
        self.fault = fault
        self.saves = 0

    def load(self) -> UselessEvictionMemory:
        if self.fault is not None:
            raise self.fault
        return self.memory

    def save(self, memory: UselessEvictionMemory) -> None:
        if self.fault is not None:
            raise OSError("it is away")
        self.memory, self.saves = memory, self.saves + 1


def test_a_store_that_cannot_be_read_is_not_written_and_tried_again():
    store = OddStore(FULL, OSError("it is away"))
    memory = CycleMemory(store)
    assert memory.begin() is None
    memory.end(None, dry_run=False)
    store.fault = None
    assert (memory.begin(), store.saves) == (FULL, 0)


def test_a_damaged_store_is_replaced():
    store = OddStore(FULL, PolicyError([Problem("it is damaged")]))
    memory = CycleMemory(store)
    assert memory.begin() == UselessEvictionMemory()
    store.fault = None
    memory.end(UselessEvictionMemory(), dry_run=False)
    assert (store.memory, store.saves) == (UselessEvictionMemory(), 1)


def test_only_changes_of_cycles_that_evict_are_written_and_failures_are_tried_again():
    store = OddStore(UselessEvictionMemory())
    memory = CycleMemory(store)
    memory.end(memory.begin(), dry_run=False)
    memory.end(FULL, dry_run=True)
    assert (store.saves, memory.begin()) == (0, FULL)
    store.fault = OSError("it is away")
    memory.end(FULL, dry_run=False)
    store.fault = None
    memory.end(FULL, dry_run=False)
    assert (store.saves, store.memory) == (1, FULL)


def test_a_new_leader_reads_the_store_again():
    store = OddStore(UselessEvictionMemory())
    memory = CycleMemory(store)
    memory.begin()
    store.memory = FULL
    assert memory.begin() == UselessEvictionMemory()
    memory.forget()
    assert memory.begin() == FULL


class Listed:
    """A feed that has delivered everything; it is its own barrier."""

    synced = passed = True
    views: Mapping[str, Any] = {}

    def apply(self, cluster: Cluster, budget: float) -> bool:
        return False

    def barrier(self) -> Listed:
        return self

    def compare(self) -> None:
        pass


class Evicting(Nothing):
    """A client that evicts."""

    def __init__(self, *, loses: bool = False) -> None:
        """With `loses` the Lease is lost during the first eviction."""
        self.evicted: list[str] = []
        self.leads = True
        self._loses = loses

    def evict(self, pod: PodInfo, reason: str) -> None:
        self.evicted.append(pod.key)
        self.leads = not self._loses

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        self.evict(pod, options.reason)
        return EvictionResult.EVICTED


DRAIN = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: drain}
spec:
  type: Balance
  nodes: {source: "usage.cpu * 100 / allocatable.cpu > 50"}
  until: usage.cpu * 100 / allocatable.cpu <= 50
"""


def cycle(store: OddStore, name: str, created: str, after_s: int, client: Evicting | None = None) -> list[str]:
    """Run one cycle of a new process over a hot node with one pod, and return the evicted pods."""
    client = client or Evicting()
    objects = [node("a"), node("b"), pod(name, "a", metadata={"uid": name, "creationTimestamp": created}),
               metric("a", {name: "6000m"})]
    cluster, now = Cluster(objects), NOW + after_s * SECOND
    registry = Registry.of([*PLUGINS, *compile_documents(load([Source("drain.yaml", DRAIN)]))], generation=1)
    configuration = config.read_plain({"profiles": [{"plugins": {
        "evict": {"disabled": [{"name": "MigrationController"}], "enabled": [{"name": "DefaultEvictor"}]},
        "filter": {"disabled": [{"name": "MigrationController"}]},
    }}]})
    activator = ProfileActivator(Live(registry), lambda: configuration, snapshot=lambda: cluster.snapshot(now),
                                 client=client)
    descheduler = LiveDescheduler(
        cluster, activator, feed=Listed(), client=client, leaving=LeavingPods(lambda: now), clock=lambda: now,
        once=True, memory=CycleMemory(store), leads=lambda: client.leads)
    assert descheduler.run() is Ended.STOPPED
    assert descheduler.view.last is not None
    assert descheduler.view.last.result.error == ""
    return client.evicted


def test_a_pod_that_came_back_stays_after_a_restart_until_its_cool_down_ends():
    store = OddStore(UselessEvictionMemory())
    assert cycle(store, "web-1", "2026-01-01T10:00:00Z", 0) == ["d/web-1"]
    assert cycle(store, "web-2", "2026-01-01T12:00:01Z", 60) == []
    assert [each.streak for each in store.memory.useless.values()] == [1]
    assert cycle(store, "web-2", "2026-01-01T12:00:01Z", 120) == []


def test_a_process_that_lost_the_lease_in_a_cycle_does_not_write_over_the_memory_of_the_next_leader():
    store = OddStore(UselessEvictionMemory())
    assert cycle(store, "web-1", "2026-01-01T10:00:00Z", 0, Evicting(loses=True)) == ["d/web-1"]
    assert store.saves == 0
