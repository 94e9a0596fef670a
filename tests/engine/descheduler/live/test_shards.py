"""When which replica runs which part of a cycle."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from koordpolicy.engine.descheduler.ledger import KEY, Ledger, StoredLedger
from koordpolicy.engine.descheduler.live.shards import ConfigMapLedgerStore, PartKind, ShardedCycles, ShardPart

from ..conftest import NOW
from ..ledgers import Store
from .config_maps import PATH, ConfigMaps

SECOND = 1_000_000_000
INTERVAL = 60 * SECOND


@dataclass
class World:
    """Replicas with one ledger; each has the Lease of a shard while it is among the `holders`."""

    store: Store = field(default_factory=Store)
    holders: list[str] = field(default_factory=lambda: ["one", "two"])
    now: int = NOW
    ahead: int = 0
    """By how much the API server's clock is ahead."""

    def replica(self, name: str) -> Replica:
        return Replica(self, name)

    def passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Replica:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.cycles = ShardedCycles(
            world.store, name, holders=lambda: world.holders, shard=lambda: name if name in world.holders else "",
            clock=lambda: world.now + world.ahead, ticks=lambda: world.now)

    def due(self, *, leads: bool = False, interval: int = INTERVAL) -> ShardPart | None:
        self.world.passes(1)
        return self.cycles.due(leads=leads, interval=interval)

    def runs(self, error: str = "", *, leads: bool = False) -> PartKind | None:
        """Runs the part that is due, with that error."""
        part = self.due(leads=leads)
        if part is not None:
            self.cycles.finish(part, error)
        return None if part is None else part.kind


def test_the_leader_begins_a_cycle_and_ends_it_when_all_shares_are_finished():
    world = World()
    leader, member = world.replica("one"), world.replica("two")
    assert member.runs() is None  # only the leader begins
    assert leader.runs(leads=True) is PartKind.SHARE
    assert leader.runs(leads=True) is None  # the other has not finished
    assert member.runs() is PartKind.SHARE
    assert member.runs() is None
    assert leader.runs(leads=True) is PartKind.REST
    assert leader.runs(leads=True) is None
    assert (world.store.ledger.cycle, world.store.ledger.finished) == (1, {"one": "", "two": ""})
    world.passes(60)
    assert [leader.runs(leads=True), member.runs(), leader.runs(leads=True)] == [
        PartKind.SHARE, PartKind.SHARE, PartKind.REST]
    assert leader.cycles.view.to_json() == {
        "lease": "one", "cycle": 2, "opened": leader.cycles.view.opened / 1e9, "leader": "one",
        "members": ["one", "two"], "finished": ["one", "two"], "evictions": 0, "fault": None}


def test_shares_are_disjoint_and_cover_all_nodes():
    world = World()
    first = world.replica("one").due(leads=True)
    second = world.replica("two").due()
    assert first is not None
    assert second is not None
    nodes = [f"node-{number}" for number in range(100)]
    shares = [{node for node in nodes if each.part.owns is not None and each.part.owns(node)}
              for each in (first, second)]
    assert (shares[0] | shares[1], shares[0] & shares[1]) == (set(nodes), set())
    assert all(shares)


def test_nothing_is_balanced_after_a_share_failed_or_was_not_finished():
    world = World()
    leader, member = world.replica("one"), world.replica("two")
    leader.runs(leads=True)
    member.runs("the plugin failed")
    part = leader.due(leads=True)
    assert part is not None
    assert (part.kind, part.error) == (PartKind.CUT_OFF, "the share of two: the plugin failed")
    leader.cycles.finish(part, part.error)
    world.passes(60)
    leader.runs(leads=True)
    world.holders.remove("two")
    part = leader.due(leads=True)
    assert part is not None
    assert (part.kind, part.error) == (PartKind.CUT_OFF, "the share of two was not finished: it has lost its Lease")
    leader.cycles.finish(part, part.error)
    world.passes(60)
    assert [leader.runs(leads=True), leader.runs(leads=True)] == [PartKind.SHARE, PartKind.REST]
    assert world.store.ledger.members == ("one",)  # with all nodes


def test_a_new_leader_begins_the_next_cycle_in_its_time_and_leaves_the_old_one_alone():
    world = World()
    old, new = world.replica("one"), world.replica("two")
    old.runs(leads=True)
    world.holders.remove("one")
    assert [new.runs(leads=True), new.runs(leads=True)] == [PartKind.SHARE, None]
    world.passes(60)
    assert [new.runs(leads=True), new.runs(leads=True)] == [PartKind.SHARE, PartKind.REST]
    assert (world.store.ledger.cycle, world.store.ledger.leader) == (2, "two")


def test_a_clock_that_is_set_back_delays_the_next_cycle_by_one_interval_at_most():
    world = World(holders=["one"])
    leader = world.replica("one")
    assert [leader.runs(leads=True), leader.runs(leads=True)] == [PartKind.SHARE, PartKind.REST]
    world.ahead = -30 * SECOND
    assert leader.runs(leads=True) is None
    world.ahead = -3600 * SECOND
    assert leader.runs(leads=True) is PartKind.SHARE
    assert world.store.ledger.cycle == 2


def test_a_member_that_is_late_does_not_hold_up_the_next_cycle(caplog: pytest.LogCaptureFixture):
    world = World()
    leader, member = world.replica("one"), world.replica("two")
    leader.runs(leads=True)
    late = member.due()
    world.passes(60)
    leader.runs(leads=True)
    assert caplog.messages == [
        "cycle 1 ended without its last part, as these replicas had not finished their shares: two"]
    assert late is not None
    member.cycles.finish(late, "")
    assert world.store.ledger.finished == {"one": ""}  # the end of an old part is none of the new cycle's
    assert member.runs() is PartKind.SHARE


def test_a_leader_without_a_shard_runs_the_rest_and_one_alone_runs_everything():
    world = World()
    leader, member = world.replica("three"), world.replica("one")
    world.holders = ["one"]
    assert leader.runs(leads=True) is None
    assert member.runs() is PartKind.SHARE
    assert leader.runs(leads=True) is PartKind.REST
    world.holders = []
    world.passes(60)
    assert [leader.runs(leads=True), leader.runs(leads=True)] == [PartKind.SHARE, PartKind.REST]


def test_with_an_interval_of_zero_there_is_one_cycle():
    world = World(holders=["one"])
    leader = world.replica("one")
    for kind in (PartKind.SHARE, PartKind.REST):
        part = leader.due(leads=True, interval=0)
        assert part is not None
        assert part.kind is kind
        leader.cycles.finish(part, "")
    world.passes(3600)
    assert leader.due(leads=True, interval=0) is None


def test_a_ledger_that_cannot_be_written_is_tried_again_and_shown(caplog: pytest.LogCaptureFixture):
    world = World(holders=["one"])
    leader = world.replica("one")
    world.store.faults = [(OSError("forbidden: no"), False)] * 2
    assert leader.due(leads=True) is None
    assert leader.cycles.view.fault == "forbidden: no"
    assert leader.due(leads=True) is None  # a pause of 5 s
    world.passes(5)
    leader.due(leads=True)
    assert len(caplog.messages) == 1
    world.passes(5)
    assert leader.runs(leads=True) is PartKind.SHARE
    assert leader.cycles.view.fault == ""


def test_the_end_of_a_part_that_could_not_be_written_is_written_before_anything_else():
    world = World(holders=["one"])
    leader = world.replica("one")
    part = leader.due(leads=True)
    world.store.faults = [(OSError("there was no answer"), False)] * 20
    assert part is not None
    leader.cycles.finish(part, "")
    assert world.store.ledger.finished == {}
    world.store.faults = []
    world.passes(5)
    assert leader.runs(leads=True) is PartKind.REST
    assert world.store.ledger.finished == {"one": ""}


def test_a_damaged_ledger_is_replaced_by_the_next_cycle(caplog: pytest.LogCaptureFixture):
    server = ConfigMaps()
    server.write(PATH, {KEY: "{"})
    store = ConfigMapLedgerStore(server.key(KEY))
    assert [store.load(), store.load()] == [StoredLedger(Ledger(), "1")] * 2
    assert len(caplog.messages) == 1
    ledger = Ledger().next("one", ["one"], NOW)
    assert store.save(ledger, "1") == store.load() == StoredLedger(ledger, "2")
