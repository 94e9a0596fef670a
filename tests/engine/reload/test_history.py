from __future__ import annotations

import pytest

from koordpolicy.engine.reload import Version
from koordpolicy.engine.reload.history import GenerationRecord, History
from koordpolicy.engine.source import PolicyError, Source


def record(generation: int, digest: str = "", *, text: str = "x", restored: int | None = None) -> GenerationRecord:
    version = Version.of({"a.yaml": Source("p/a.yaml", text)}, {"a.yaml": f"hash of {digest or generation}"})
    return GenerationRecord(generation, digest or f"digest{generation}", float(generation), {"p": version}, restored)


def history(*kept: GenerationRecord, **limits: int) -> History:
    made = History(**limits)
    for each in kept:
        made.add(each)
    return made


def refused(made: History, wanted: str = "") -> str:
    with pytest.raises(PolicyError) as caught:
        made.find(wanted)
    return caught.value.problems[0].message


def test_the_oldest_are_forgotten() -> None:
    assert [each.generation for each in history(*map(record, range(1, 6)), most=3).generations] == [3, 4, 5]


def test_text_is_bounded_but_for_what_is_in_force() -> None:
    large = record(3, text="y" * 50)
    assert [each.generation for each in history(record(1), record(2), large, characters=10).generations] == [1, 2, 3]
    bounded = history(record(1), large, record(4), record(5), characters=10)
    assert [each.generation for each in bounded.generations] == [4, 5]


def test_a_generation_whose_files_moved_is_kept_once_at_their_new_place() -> None:
    moved = GenerationRecord(2, "digest2", 9.0, {"p": record(7).versions["p"]})
    kept = history(record(1), record(2), moved).generations
    assert [(each.generation, each.since, each.versions["p"].digest) for each in kept] == [
        (1, 1.0, record(1).versions["p"].digest), (2, 2.0, record(7).versions["p"].digest)]


def test_the_one_before_is_the_newest_that_decided_otherwise_and_did_not_fail() -> None:
    made = history(record(1), record(2), record(3), record(4))
    assert made.find().generation == 3
    made.mark(3, "it failed")
    assert made.find().generation == 2
    assert refused(history(record(1))) == "there is nothing before generation 1 to roll back to"


def test_after_going_back_the_one_before_is_before_what_was_brought_back() -> None:
    assert history(record(1), record(2), record(3), record(4, "digest2", restored=2)).find().generation == 1


def test_a_generation_is_named_by_its_number_or_the_beginning_of_a_hash() -> None:
    made = history(record(1, "aaaaaabbb"), record(2, "aaaaaaccc"), record(3, "dddddd"))
    assert made.find("1").generation == 1
    assert made.find("aaaaaac").generation == 2
    assert made.find(record(1, "aaaaaabbb").versions["p"].digest[:8]).generation == 1
    assert refused(made, "aaaaaa") == "`aaaaaa` may be any of the generations 1, 2"
    assert refused(made, "aaa") == "no generation `aaa` is in the history"
    assert refused(made, "3") == "generation 3 is active"
