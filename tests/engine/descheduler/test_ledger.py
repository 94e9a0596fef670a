"""The ledger of the cycles that several replicas run together."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.ledger import (
    EXPIRES,
    MOST,
    CycleLedger,
    Ledger,
    LedgerEntry,
    StoredLedger,
    encoded,
    ledger_of,
    owner_of,
)
from koordpolicy.engine.framework.points import Refusal

from .conftest import NOW, pod
from .ledgers import Store

SECOND = 1_000_000_000


def info(name: str, node: str = "a") -> PodInfo:
    return PodInfo.of(pod(name, node, metadata={"uid": f"uid-{name}"}))


class Replica:
    """Reserves evictions against a limit of the whole cycle."""

    def __init__(self, store: Store, name: str, most: int = 100, now: Callable[[], int] = lambda: NOW) -> None:
        self.counted: list[str] = []
        self.most = most
        self.ledger = CycleLedger(store, store.load(), name, now)
        self.ledger.begin(self.count)

    def count(self, entry: LedgerEntry) -> None:
        self.counted.append(entry.pod)

    def over(self) -> str:
        return "at most some pods" if len(self.counted) >= self.most else ""

    def reserve(self, each: PodInfo) -> Refusal | None:
        refusal = self.ledger.reserve(each, self.over, self.count)
        if refusal is None:
            self.counted.append(each.key)
        return refusal


def two(most: int = 100) -> tuple[Store, Replica, Replica]:
    store = Store()
    store.open("one", "two")
    return store, Replica(store, "one", most), Replica(store, "two", most)


def entries(store: Store) -> list[tuple[str, str, bool]]:
    return [(each.pod, each.by, each.made) for each in store.ledger.entries]


def test_replicas_count_the_evictions_of_each_other_and_keep_one_limit():
    store, one, other = two(most=2)
    assert (one.reserve(info("x")), other.reserve(info("y"))) == (None, None)
    assert one.reserve(info("z")) == Refusal("", "at most some pods")
    assert (one.counted, entries(store)) == (["d/x", "d/y"], [("d/x", "one", False), ("d/y", "two", False)])


def test_an_eviction_that_was_refused_is_given_back_with_the_next_write():
    store, one, other = two(most=2)
    one.reserve(info("x"))
    one.ledger.record_outcome(info("x"), made=False)
    one.reserve(info("y"))
    one.ledger.record_outcome(info("y"), made=True)
    assert entries(store) == [("d/y", "one", False)]
    assert one.ledger.finish("")
    assert (entries(store), store.ledger.finished) == ([("d/y", "one", True)], {"one": ""})
    assert other.reserve(info("z")) is None


def test_a_pod_that_another_replica_evicts_is_left_alone():
    _, one, other = two()
    one.reserve(info("x"))
    refused = Refusal("leaving", "its eviction was requested before, maybe by another replica")
    assert (other.reserve(info("x")), one.reserve(info("x"))) == (refused, refused)


def test_a_replica_that_missed_the_begin_of_another_cycle_reserves_nothing():
    store, one, other = two()
    other.reserve(info("x"))  # so that the first one's version is old
    store.open("two", now=NOW + 60 * SECOND)
    assert one.reserve(info("y")) == Refusal("cycle-over", "another cycle has begun meanwhile")
    assert one.ledger.finish("")  # nothing is to be written any more
    assert store.ledger.finished == {}


def test_a_ledger_that_was_lost_ends_the_cycle():
    store, one, other = two()
    other.reserve(info("x"))
    store.text = encoded(Ledger())
    store.open("two", now=NOW + SECOND)
    assert store.ledger.cycle == 1
    assert one.reserve(info("y")) == Refusal("cycle-over", "another cycle has begun meanwhile")


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_write_without_an_answer_reserves_once(carried_out: bool):
    store, one, _ = two(most=1)
    store.faults = [(OSError("there was no answer"), carried_out)]
    assert one.reserve(info("x")) is None
    assert (entries(store), one.reserve(info("y"))) == ([("d/x", "one", False)], Refusal("", "at most some pods"))


def test_a_ledger_that_cannot_be_written_refuses_with_the_reason():
    store, one, _ = two()
    store.faults = [(OSError("forbidden: no"), False)] * 20
    assert one.reserve(info("x")) == Refusal(
        "ledger", "the ledger of the replicas cannot be written: forbidden: no")
    assert entries(store) == []


@pytest.mark.parametrize(("fault", "refused"), [
    ("write", "the ledger of the replicas cannot be written: forbidden: no"),
    ("read", "the ledger of the replicas cannot be read: there was no answer"),
])
def test_a_store_that_fails_costs_a_share_as_many_requests_however_many_pods_follow(fault: str, refused: str):
    def requests(pods: int) -> int:
        store, one, _ = two()
        store.faults, store.requests = [(OSError("forbidden: no"), False)] * 1_000, []
        store.unreadable = "there was no answer" if fault == "read" else ""
        assert [one.reserve(info(f"x{number}")) for number in range(pods)] == [Refusal("ledger", refused)] * pods
        return len(store.requests)

    assert requests(30) == requests(300) < 60


def test_the_end_of_a_share_is_tried_again_later_by_a_store_that_fails():
    store, one, _ = two()
    store.faults, store.requests = [(OSError("forbidden: no"), False)], []
    assert not one.ledger.finish("")
    assert (store.requests, store.ledger.finished) == (["save", "load"], {})
    assert one.ledger.finish("")
    assert store.ledger.finished == {"one": ""}


def test_the_end_of_a_share_is_tried_again_at_once_after_another_replica_wrote():
    store, one, other = two()
    assert (other.ledger.finish(""), one.ledger.finish("")) == (True, True)
    assert store.ledger.finished == {"one": "", "two": ""}


def test_a_replica_that_others_forestall_again_and_again_reserves_for_every_pod():
    store, one, other = two(most=1_000)
    save, forestalled = store.save, iter(range(200))

    def after_the_other(ledger: Ledger, version: str) -> StoredLedger:
        if ledger.entries[-1].by == "one" and next(forestalled, 0) % 10:
            other.reserve(info(f"y{len(store.ledger.entries)}"))
        return save(ledger, version)

    store.save = after_the_other
    assert [one.reserve(info(f"x{number}")) for number in range(20)] == [None] * 20
    assert Counter(by for _, by, _ in entries(store)) == {"one": 20, "two": 171}


def test_what_a_dead_replica_reserved_counts_until_it_expires():
    store, one, _ = two()
    one.reserve(info("x"))
    one.ledger.record_outcome(info("x"), made=True)
    one.reserve(info("y"))  # it ends before it records the outcome of this one
    store.open("two", now=NOW + EXPIRES - 1)
    assert entries(store) == [("d/y", "one", False)]
    assert Replica(store, "two", most=1).reserve(info("z")) == Refusal("", "at most some pods")
    store.open("two", now=NOW + EXPIRES)
    assert entries(store) == []


def test_a_ledger_has_a_size():
    store, one, _ = two()
    many = tuple(LedgerEntry(f"d/{number}", str(number), "a", "two", NOW, made=True) for number in range(MOST))
    store.save(Ledger(1, "one", NOW, ("one", "two"), {}, many), str(store.version))
    one = Replica(store, "one", most=MOST + 1)
    assert one.reserve(info("x")) == Refusal("", "replicas evict at most 2000 pods together in a cycle")
    assert len(store.text) < 1_000_000


def test_a_ledger_is_read_as_it_was_written():
    entry = LedgerEntry("d/x", "u", "a", "one", NOW, made=True)
    ledger = Ledger(3, "one", NOW, ("one", "two"), {"two": "odd"}, (entry,))
    assert ledger_of(encoded(ledger)) == ledger


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"format": "koord-policy/eviction-ledger/1"}',
    encoded(Ledger()).replace('"entries":[]', '"entries":[["a"]]'),
    encoded(Ledger()).replace('"members":[]', '"members":[1]'),
])
def test_what_is_no_ledger_is_refused(text: str):
    with pytest.raises(ValueError, match=r"format|types|Expecting"):
        ledger_of(text)


def test_a_member_that_ends_moves_only_its_own_nodes():
    nodes = [f"node-{number}" for number in range(3000)]
    before = {node: owner_of(node, ("one", "two", "three")) for node in nodes}
    after = {node: owner_of(node, ("one", "three")) for node in nodes}
    assert all(after[node] == before[node] for node in nodes if before[node] != "two")
    assert all(900 < count < 1100 for count in Counter(before.values()).values())
    assert owner_of("x", ()) == ""


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_replicas_that_are_killed_anywhere_keep_the_limit_and_evict_no_pod_twice(seed: int, most: int):
    """Replicas in random order, some killed between their reservation and the eviction, some writes without answer."""
    chance = random.Random(seed)
    store, now = Store(), NOW
    names, alive = ["one", "two", "three"], {"one", "two", "three"}
    sent: list[tuple[int, str]] = []
    late: list[tuple[int, str]] = []
    for cycle in range(1, 4):
        now += 30 * SECOND
        store.faults = []
        members = tuple(name for name in names if name in alive) or ("four",)
        store.open(*members, now=now)
        moment = now
        running = {name: Replica(store, name, most, lambda moment=moment: moment) for name in members}
        asked: dict[str, Any] = {name: [info(f"p{number}") for number in range(12)] for name in members}
        while running:
            name = chance.choice(sorted(running))
            replica, pods = running[name], asked[name]
            if not pods:
                replica.ledger.finish("")
                del running[name]
                continue
            each = pods.pop(chance.randrange(len(pods)))
            if any(key == each.key for _, key in sent):
                continue  # its cluster shows that the pod leaves
            if chance.random() < 0.2:
                store.faults.append((OSError("there was no answer"), chance.random() < 0.5))
            if replica.reserve(each) is not None:
                continue
            match chance.choice(["made", "made", "refused", "killed", "killed late"]):
                case "made":
                    sent.append((cycle, each.key))
                    replica.ledger.record_outcome(each, made=True)
                case "refused":
                    replica.counted.remove(each.key)
                    replica.ledger.record_outcome(each, made=False)
                case "killed":
                    alive.discard(name)
                    del running[name]
                case _:
                    late.append((cycle, each.key))  # the request arrives in the next cycle
                    alive.discard(name)
                    del running[name]
        sent += [(cycle, key) for begun, key in late if begun == cycle - 1]
    assert all(count <= most for count in Counter(cycle for cycle, _ in sent).values())
    assert all(count == 1 for count in Counter(key for _, key in sent).values())
