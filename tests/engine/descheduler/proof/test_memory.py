from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.proof.memory import (
    FORMAT,
    CoolDownSettings,
    UselessEvictionMemory,
    memory_of,
)
from koordpolicy.engine.descheduler.proof.store import LARGEST, FileMemoryStore, encoded
from koordpolicy.engine.source import PolicyError

from ..conftest import NOW, node, pod

MINUTE = 60_000_000_000
PLACE = ("d/ReplicaSet/r", "a")


def item(name: str, on: str = "a", at: str = "2026-01-01T10:00:00Z") -> dict[str, Any]:
    return pod(name, on, metadata={"creationTimestamp": at, "uid": name})


def info(name: str = "web", on: str = "a") -> PodInfo:
    return PodInfo.of(item(name, on))


def after(memory: UselessEvictionMemory, minutes: int, *pods: dict[str, Any]) -> UselessEvictionMemory:
    return memory.observed(Cluster([node("a"), node("b"), *pods]).snapshot(NOW + minutes * MINUTE))


def test_a_pod_that_comes_back_to_its_node_makes_the_eviction_useless():
    memory = after(UselessEvictionMemory().with_eviction(info(), NOW), 2, item("web-2", "a", "2026-01-01T12:00:05Z"))
    cool = memory.cool_down(info("web-2"), NOW + 2 * MINUTE)
    assert cool is not None
    assert cool.until == NOW + 12 * MINUTE
    assert cool.message == ("cool-down until 2026-01-01T12:12:00Z after a useless eviction: d/web-2 came back to a "
                            "within 120 s of the eviction")
    assert memory.watched == ()
    assert memory.cool_down(info(on="b"), NOW + 2 * MINUTE) is None
    assert memory.cool_down(info(), cool.until) is None


@pytest.mark.parametrize("others", [
    [item("web", "a")],
    [item("older", "a", "2026-01-01T11:59:59Z")],
    [item("elsewhere", "b", "2026-01-01T12:00:05Z")],
    [pod("of-another", "a", metadata={
        "creationTimestamp": "2026-01-01T12:00:05Z", "ownerReferences": [{"kind": "ReplicaSet", "name": "other"}]})],
])
def test_other_pods_are_no_return(others: list[dict[str, Any]]):
    watched = UselessEvictionMemory().with_eviction(info(), NOW)
    assert after(watched, 2, *others) == watched
    assert after(watched, 10, *others) == UselessEvictionMemory()


def test_one_returned_pod_counts_for_one_of_several_evictions():
    memory = UselessEvictionMemory().with_eviction(info("one"), NOW).with_eviction(info("two"), NOW)
    back = item("back", "a", "2026-01-01T12:00:01Z")
    found = after(memory, 1, back)
    assert (found.useless[PLACE].streak, len(found.watched)) == (1, 1)
    assert after(memory_of(found.to_json()), 2, back) == found
    both = after(found, 3, back, item("too", "a", "2026-01-01T12:00:02Z"))
    assert (both.useless[PLACE].streak, both.watched) == (2, ())


def test_an_eviction_that_helped_ends_no_cool_down_that_began_after_it():
    memory = UselessEvictionMemory().with_eviction(info(), NOW).with_loop(PLACE, "a loop", NOW + MINUTE)
    assert after(memory, 10).useless == memory.useless


def test_each_further_useless_eviction_doubles_the_cool_down_up_to_the_longest():
    memory, waits = UselessEvictionMemory(), []
    for _ in range(9):
        memory = memory.with_loop(PLACE, "a loop", NOW)
        waits.append((memory.useless[PLACE].until - NOW) // MINUTE)
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 1440]


def test_an_eviction_that_helped_ends_the_streak():
    memory = UselessEvictionMemory().with_loop(PLACE, "a loop", NOW).with_eviction(info(), NOW + 20 * MINUTE)
    assert PLACE in after(memory, 29).useless
    assert after(memory, 30) == UselessEvictionMemory()


def test_places_are_forgotten_a_day_after_their_cool_down():
    memory = UselessEvictionMemory().with_loop(PLACE, "a loop", NOW)
    assert PLACE in after(memory, 24 * 60 + 9).useless
    assert after(memory, 24 * 60 + 10) == UselessEvictionMemory()


def test_pods_without_owner_are_not_remembered():
    bare = PodInfo.of(pod("bare", "a", metadata={"ownerReferences": []}))
    memory = UselessEvictionMemory()
    assert memory.with_eviction(bare, NOW) == memory.with_loop(("", "a"), "a loop", NOW) == memory


def test_the_oldest_places_and_evictions_are_dropped_first():
    memory = UselessEvictionMemory(settings=CoolDownSettings(most=2))
    for number, on in enumerate(("a", "b", "c")):
        memory = memory.with_loop(("d/ReplicaSet/r", on), "a loop", NOW + number).with_eviction(info(on, on), NOW)
    assert [node for _, node in memory.useless] == ["b", "c"]
    assert [each.uid for each in memory.watched] == ["b", "c"]


def full() -> UselessEvictionMemory:
    return UselessEvictionMemory().with_loop(PLACE, "a loop", NOW).with_eviction(info(), NOW)


def test_a_memory_survives_its_stores(tmp_path: Path):
    store = FileMemoryStore(tmp_path / "memory.json")
    assert store.load() == UselessEvictionMemory()
    store.save(full())
    assert store.load() == full()


def test_a_memory_that_is_too_large_for_a_config_map_loses_its_oldest_parts():
    memory = UselessEvictionMemory()
    for number in range(500):
        memory = memory.with_loop((f"{number}{'w' * 1_000}", "n" * 1_000), "m" * 400, NOW + number)
    content = encoded(memory)
    kept = memory_of(json.loads(content))
    assert len(content) <= LARGEST
    assert list(kept.useless)[-1] == list(memory.useless)[-1]


@pytest.mark.parametrize(("change", "reason"), [
    ({"format": "other/1"}, f"`format` must be `{FORMAT}`"),
    ({"useless": {}}, "`useless` must be a list"),
    ({"useless": ["x"]}, "`useless[0]` must be a mapping"),
    ({"useless": [{"streak": True}]}, "`useless[0].streak` must be a whole number above 0"),
    ({"useless": [{"streak": 1, "workload": "w", "node": 1}]}, "`useless[0].since` must be a text"),
    ({"watched": [{"workload": "w", "node": "n", "uid": "u", "at": "noon"}]},
     "`watched[0].at`: `noon` is not a timestamp: write it as 2006-01-02T15:04:05Z"),
])
def test_a_damaged_memory_is_refused_with_the_field(change: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        memory_of({"format": FORMAT, "useless": [], "watched": [], **change})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_refused_with_advice(content: bytes, tmp_path: Path):
    path = tmp_path / "memory.json"
    path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        FileMemoryStore(path).load()
    problem, = caught.value.problems
    assert problem.message.startswith(f"the file `{path}` is no memory of evictions: ")
    assert problem.help == "remove it to begin with an empty one; cool-downs that it held are lost"


def test_two_memories_are_merged_by_place_and_the_newer_entry_counts():
    other = ("n/ReplicaSet/other", "a")
    mine = full().with_loop(other, "mine", NOW)
    theirs = UselessEvictionMemory().with_loop(other, "first", NOW + 1).with_loop(other, "theirs", NOW + 2)
    merged = mine.merged_with(theirs)
    assert {place: (each.streak, each.message) for place, each in merged.useless.items()} == {
        PLACE: (1, "a loop"), other: (2, "theirs")}
    assert merged.watched == mine.watched
    assert theirs.merged_with(mine) == merged
