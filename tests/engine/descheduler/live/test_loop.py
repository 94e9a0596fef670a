"""The loop of a live descheduler: when cycles run, when not, and what runs between them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.ledger import owner_of
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.live.activation import ProfileActivator
from koordpolicy.engine.descheduler.live.loop import CycleReport, LiveDescheduler
from koordpolicy.engine.descheduler.live.shards import ShardedCycles
from koordpolicy.engine.framework.descheduler import EvictionResult
from koordpolicy.engine.framework.handle import NOTHING, EvictionRefusedError
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.plugin import python_plugin

from ..conftest import node, pod
from ..ledgers import Store

SECOND = 1_000_000_000
START = 1_767_268_800 * SECOND


@dataclass
class Script:
    """The happenings of the rounds, and the record of what was done: the plugins write here."""

    now: int = START
    jump: int = 0
    """The time by which the clock was set, in ns."""
    rounds: list[Any] = field(default_factory=list)
    """Of each round a function to call before it; after the last one the loop is stopped."""
    log: list[str] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
    synced: bool = True
    leads: bool = True
    passed: bool = True
    refuses: bool = False
    silent: bool = False
    next_step: int | None = None
    loop: Any = None
    leaving: Any = None

    # A feed

    @property
    def views(self) -> dict[str, KindView]:
        return {kind: KindView(heard, "the connection broke") for kind, heard in self.heard.items()}

    def apply(self, cluster: Cluster, _budget: float) -> bool:
        if not self.rounds:
            self.loop.stop()
            return False
        act = self.rounds.pop(0)
        if act is not None:
            act(cluster)
        return True

    def barrier(self) -> Script:
        self.log.append("barrier")
        return self

    def compare(self) -> None:
        pass


class Evicts:
    """Evicts every pod of the nodes, and carries it out."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def deschedule(self, snapshot: Any, rows: Any, evictor: Any) -> None:
        found = [each.name for row in rows for each in snapshot.pods(row)
                 if not each.object["metadata"].get("deletionTimestamp") and evictor.evict(each, "because")]
        self.script.log.append(f"cycle at {(self.script.now - START) / SECOND:g}: {', '.join(found)}".rstrip(": "))

    def eviction_filter(self, pod: Any, snapshot: Any) -> None:
        pass

    def evict(self, pod: Any, reason: str) -> EvictionResult:
        if self.script.refuses:
            raise EvictionRefusedError("the budget web permits none", "pdb-blocked")
        if self.script.silent:
            raise EvictionRefusedError("there was no answer", "unknown", may_leave=True)
        self.script.leaving.add_later(pod.object)
        return EvictionResult.EVICTED


class EvictsAndSteps(Evicts):
    """Works between the cycles, too."""

    def background_step(self, snapshot: Any) -> int | None:
        self.script.log.append(f"step at {(snapshot.now - START) / SECOND:g}")
        return self.script.next_step


class EvictsPerNode(EvictsAndSteps):
    """Looks at each node alone."""

    decides_per_node = True


def run(script: Script, *rounds: Any, once: bool = False, made: type[Evicts] = Evicts, reads: tuple[Read, ...] = (),
        shards: ShardedCycles | None = None, **changes: Any) -> tuple[Ended, list[CycleReport]]:
    """Run rounds with a configuration; time stands still unless a round moves it."""
    cluster = Cluster([node("a"), node("b"), pod("web", "a")])
    script.leaving = LeavingPods(lambda: script.now)
    plugin = python_plugin("Evicts", Framework.DESCHEDULER, lambda args, handle: made(script),
                           points=[Point.DESCHEDULE, Point.EVICTION_FILTER])
    plain = config.read_plain({"profiles": [{"name": "p", "plugins": {
        "deschedule": {"enabled": [{"name": "Evicts"}]},
        **{point: {"disabled": [{"name": "*"}], "enabled": [{"name": "Evicts"}]} for point in ("evict", "filter")}}}]})
    given = replace(plain, **{"interval": 10 * SECOND, **changes})
    live = Live(Registry.of([*PLUGINS, replace(plugin, reads=(*plugin.reads, *reads))], generation=1))
    activator = ProfileActivator(live, lambda: given, snapshot=lambda: cluster.snapshot(script.now), client=NOTHING)
    reports: list[CycleReport] = []
    seen = type("Seen", (), {"observe": staticmethod(reports.append)})
    loop = script.loop = LiveDescheduler(
        cluster, activator, feed=script, client=NOTHING, leaving=script.leaving, leads=lambda: script.leads,
        ticks=lambda: script.now,
        gave_up=lambda: not script.leads and bool(reports), clock=lambda: script.now + script.jump,
        wall=lambda: script.now / 1e9, longest_staleness_s=180.0, once=once, observers=[seen], shards=shards)
    script.rounds = list(rounds)
    return loop.run(), reports


def at(script: Script, seconds: float) -> Any:
    def act(_: Cluster) -> None:
        script.now = START + int(seconds * SECOND)

    return act


def test_cycles_begin_at_fixed_times_and_a_late_one_delays_none():
    script = Script()
    ended, reports = run(
        script, None, at(script, 9.9), at(script, 10), at(script, 26), at(script, 35.9), at(script, 36))
    assert script.log == ["barrier", "cycle at 0: web", "cycle at 10", "cycle at 26", "cycle at 36"]
    assert (ended, [each.number for each in reports]) == (Ended.STOPPED, [1, 2, 3, 4])
    assert [each.pod for each in reports[0].result.evicted] == ["d/web"]


def test_an_evicted_pod_is_shown_as_leaving_before_the_watch_shows_it():
    script, shown = Script(), []
    run(script, None, lambda cluster: shown.append(cluster.object("Pod", "d/web")["metadata"]["deletionTimestamp"]))
    assert shown == ["2026-01-01T12:00:00Z"]


@pytest.mark.parametrize(("once", "interval", "seconds"), [(True, 10, 0), (False, 0, 100)])
def test_one_cycle_is_run_with_once_and_with_an_interval_of_zero(once: bool, interval: int, seconds: float):
    script = Script()
    _, reports = run(script, None, at(script, seconds), at(script, seconds), once=once, interval=interval * SECOND)
    assert len(reports) == 1
    assert len(script.rounds) == (2 if once else 0)  # without once the process stays


def test_nothing_runs_before_all_is_listed_led_and_seen():
    script = Script(synced=False, leads=False, passed=False)

    def become(name: str) -> Any:
        def act(_: Cluster) -> None:
            assert script.log in ([], ["barrier"])
            setattr(script, name, True)

        return act

    run(script, None, become("synced"), become("leads"), None, become("passed"), None)
    assert script.log == ["barrier", "cycle at 0: web"]


def test_a_leader_that_gave_up_ends_at_once():
    script = Script()

    def lose(_: Cluster) -> None:
        script.leads, script.now = False, START + 10 * SECOND

    ended, reports = run(script, None, lose, None, None)
    assert (ended, len(reports)) == (Ended.LOST_LEASE, 1)


def test_no_cycle_looks_at_objects_that_are_too_old(caplog: pytest.LogCaptureFixture):
    script = Script(heard={"Node": START / 1e9, "Pod": START / 1e9 - 181, "Namespace": 1.0})
    _, reports = run(script, None)
    why = "nothing was heard of Pod objects for 181 s, more than 180 s: the connection broke"
    assert (script.log, reports[0].stale, reports[0].result.error) == (["barrier"], (why,), why)
    assert caplog.messages == [f"Error descheduling pods: {why}"]


def test_a_plugin_that_reads_a_kind_which_the_cluster_lacks_evicts_nothing():
    script = Script()

    def without(cluster: Cluster) -> None:
        cluster.kinds = frozenset({"Node", "Pod"})

    _, (report,) = run(script, without, reads=(Read("NodeMetric"),))
    assert [(each.plugin, each.kinds) for each in report.result.lacks] == [("Evicts", ("NodeMetric",))]
    assert [each.decision.stopped_rule for each in report.result.staying] == ["lacking"]


def test_a_refused_eviction_is_the_outcome_of_its_pod_and_no_failure():
    _, (report,) = run(Script(refuses=True), None)
    (kept,) = report.result.staying
    assert (kept.decision.stopped_by, kept.decision.stopped_rule, kept.decision.message) == (
        "Evicts", "pdb-blocked", "the budget web permits none")
    assert report.result.failures == ()


def test_an_eviction_without_an_answer_counts_against_the_limits():
    _, (report,) = run(Script(silent=True), lambda cluster: cluster.upsert(pod("worker", "a")),
                       limits=CycleLimits(total=1))
    assert [(pod, of.stopped_by, of.stopped_rule, of.message) for pod, _, of in report.result.staying] == [
        ("d/web", "Evicts", "unknown", "there was no answer"), ("d/worker", "limits", "", "at most 1 pod per cycle")]


def test_a_dry_run_evicts_nothing_and_counts():
    script = Script(refuses=True)
    _, (report,) = run(script, None, dry_run=True, made=EvictsAndSteps)
    assert [each.pod for each in report.result.evicted] == ["d/web"]
    assert script.log == ["barrier", "cycle at 0: web"]  # nor does a background controller, which writes, work


def test_background_controllers_are_stepped_at_their_time_and_after_changes_of_what_they_read():
    script = Script(next_step=START + 5 * SECOND)

    def change(cluster: Cluster) -> None:
        at(script, 1)(cluster)
        cluster.upsert({"kind": "PodMigrationJob", "metadata": {"name": "one"}})

    run(script, None, at(script, 0.5), change, at(script, 1.05), at(script, 4.9), at(script, 5), interval=0,
        made=EvictsAndSteps, reads=(Read("PodMigrationJob"),))
    assert script.log == ["barrier", "cycle at 0: web", "step at 0", "step at 1", "step at 5"]


def test_a_step_that_fails_is_logged_and_tried_again_a_second_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
):
    script = Script()

    def fail(self: Any, snapshot: Any) -> None:
        script.log.append(f"step at {(snapshot.now - START) / SECOND:g}")
        raise ValueError("odd")

    monkeypatch.setattr(EvictsAndSteps, "background_step", fail)
    caplog.set_level(logging.ERROR)
    run(script, None, at(script, 0.9), at(script, 1), interval=0, made=EvictsAndSteps)
    assert script.log[2:] == ["step at 0", "step at 1"]
    assert caplog.messages == ["a step of a background controller failed"] * 2


def test_a_clock_that_is_set_delays_no_cycle_and_no_step():
    script = Script(next_step=START + 5 * SECOND)

    def set_back(_: Cluster) -> None:
        script.now, script.jump = START + 5 * SECOND, -3600 * SECOND
        script.next_step = None

    _, reports = run(script, None, set_back, at(script, 10), made=EvictsAndSteps)
    assert script.log == ["barrier", "cycle at 0: web", "step at 0", "step at -3595", "cycle at 10"]
    assert [each.began - START / 1e9 for each in reports] == [0, -3590]


def test_background_controllers_wait_while_what_they_read_is_too_old(caplog: pytest.LogCaptureFixture):
    script = Script(heard={"Reservation": START / 1e9 - 181})

    def hear(_: Cluster) -> None:
        script.now, script.heard = START + SECOND, {"Reservation": START / 1e9}

    run(script, None, hear, interval=0, made=EvictsAndSteps, reads=(Read("Reservation"),))
    assert script.log == ["barrier", "step at 1"]
    assert caplog.messages[-1].startswith("background controllers wait: nothing was heard of Reservation objects")


@pytest.mark.parametrize(("passed", "dry_run"), [(False, False), (True, True)])
def test_the_thread_does_not_spin_before_the_barrier_and_in_a_dry_run(passed: bool, dry_run: bool):
    script, waits = Script(passed=passed, next_step=START), []
    run(script, None, at(script, 1), lambda _: waits.append(script.loop._idle_s()), interval=0, made=EvictsAndSteps,
        dry_run=dry_run)
    assert waits == [1.0]


def shards_of(script: Script, store: Store, name: str, *holders: str) -> ShardedCycles:
    return ShardedCycles(store, name, holders=lambda: holders, shard=lambda: name if name in holders else "",
                         clock=lambda: script.now, ticks=lambda: script.now)


def test_a_leader_alone_runs_both_parts_of_a_shared_cycle_as_one_and_the_background_controllers():
    script, store = Script(), Store()
    shards = shards_of(script, store, "one", "one")
    _, reports = run(script, None, at(script, 1), at(script, 10), at(script, 11), shards=shards, made=EvictsPerNode)
    # One barrier of the leadership, and one before each part.
    assert script.log == ["barrier", "barrier", "cycle at 0: web", "step at 0", "barrier", "barrier", "cycle at 10",
                          "barrier"]
    assert [([each.pod for each in report.result.evicted], report.result.error) for report in reports] == [
        (["d/web"], ""), ([], "")]
    assert (store.ledger.cycle, store.ledger.finished) == (2, {"one": ""})


def test_a_member_runs_its_share_only_and_no_background_controller():
    script, store = Script(leads=False), Store()
    store.open("two", "one", now=START)
    shards = shards_of(script, store, "one", "one", "two")
    _, reports = run(script, None, at(script, 1), at(script, 10), shards=shards, made=EvictsPerNode)
    owned = ["d/web"] if owner_of("a", ("two", "one")) == "one" else []
    assert [[each.pod for each in report.result.evicted] for report in reports] == [owned]
    assert not any(each.startswith("step") for each in script.log)
    assert store.ledger.finished == {"one": ""}


def test_a_part_waits_until_all_evictions_before_it_are_seen():
    script, store = Script(leads=False), Store()
    store.open("one", now=START)

    def unseen(_: Cluster) -> None:
        script.passed = False

    def seen(_: Cluster) -> None:
        script.passed = True

    shards = shards_of(script, store, "one", "one")
    _, reports = run(script, unseen, at(script, 1), seen, None, shards=shards, made=EvictsPerNode)
    assert script.log == ["barrier", "barrier", "cycle at 1: web"]
    assert len(reports) == 1


def test_a_shared_cycle_without_one_of_its_shares_ends_with_the_replica_that_is_missing():
    script, store = Script(), Store()
    holders = ["one", "two"]
    shards = ShardedCycles(store, "one", holders=lambda: holders, shard=lambda: "one", clock=lambda: script.now,
                           ticks=lambda: script.now)

    def end(_: Cluster) -> None:
        script.now = START + 2 * SECOND
        holders.remove("two")

    _, reports = run(script, None, end, at(script, 4), shards=shards, made=EvictsPerNode)
    assert [report.result.error for report in reports] == [
        "the share of two was not finished: it has lost its Lease"]
