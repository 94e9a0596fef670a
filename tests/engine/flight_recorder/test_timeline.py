"""Timelines of recordings: the numbers over time, bounded memory, and recordings that are still written."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest

from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.segments import Limits
from koordpolicy.engine.flight_recorder.timeline import PolicyChange, Timeline

from .recordings import PACK, SECOND, SPREAD, START, Recorded, make_node, make_pod, registry_of


def timeline_of(directory: Path, **options: int) -> Timeline:
    timeline = Timeline(**options)
    for step in FlightRecording.open(directory).steps():
        timeline.take(step)
    return timeline


def rows(timeline: Timeline, points: int = 100) -> list[tuple[float, ...]]:
    """The spans, with starts in seconds after the beginning."""
    return [((each.start - timeline.start) // SECOND, *astuple(each)[1:]) for each in timeline.spans(0, 2**62, points)]


@pytest.fixture
def morning(tmp_path: Path) -> Path:
    """Two nodes with a pod: at 10 s one is placed and one refused, at 20 s the first one finishes, at 30 s a drain."""
    run = Recorded(tmp_path, [make_node("a"), make_node("b"), make_pod("old", "2", "a")], SPREAD)
    run.after(10)
    run.cluster.upsert(make_pod("new", "1"))
    run.cluster.upsert(make_pod("huge", "64"))
    run.schedule()
    run.confirm("default/new")
    run.now += 10 * SECOND
    run.cluster.upsert({**make_pod("old", "2", "a"), "status": {"phase": "Succeeded"}})
    run.now += 10 * SECOND
    leaving = make_pod("new", "1", run.placed["default/new"])
    leaving["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "Drained"}]
    run.cluster.upsert(leaving)
    run.cluster.upsert({**leaving, "metadata": {**leaving["metadata"], "labels": {"seen": "twice"}}})
    run.cluster.delete("Pod", "default/new")
    run.cluster.delete("Node", "b")
    run.close()
    return tmp_path


def test_the_timeline_counts_pods_decisions_and_evictions_when_they_happened(morning):
    assert rows(timeline_of(morning), 4) == [
        # start, nodes, bound, waiting, cpu, memory, placed, refused, evicted, policies
        (0, 2, 1, 0, 25.0, 0.0, 0, 0, 0, 0),
        (8, 2, 2, 1, 37.5, 0.0, 1, 1, 0, 0),
        (16, 2, 1, 1, 12.5, 0.0, 0, 0, 0, 0),
        (24, 1, 0, 1, 0.0, 0.0, 0, 0, 1, 0),
    ]


def test_a_part_of_the_time_is_shown_with_the_state_before_it(morning):
    timeline = timeline_of(morning)
    found = timeline.spans(START + 12 * SECOND, START + 19 * SECOND, 2)
    assert [((each.start - START) // SECOND, each.bound, each.placed) for each in found] == [(12, 2, 0), (16, 2, 0)]
    assert timeline.spans(START - 50 * SECOND, START - 40 * SECOND, 2)[0].bound == 1


def test_memory_does_not_grow_with_the_time_and_nothing_is_lost(morning):
    coarse = timeline_of(morning, most=4)
    assert (coarse.width, len(coarse.spans(0, 2**62, 100))) == (8 * SECOND, 4)
    assert rows(coarse) == rows(timeline_of(morning), 4)


def test_other_policies_are_named_when_they_become_active(tmp_path):
    run = Recorded(tmp_path, [make_node("a")], SPREAD)
    run.cluster.upsert(make_pod("one"))
    run.schedule()
    first = run.live.registry
    run.now += 60 * SECOND
    run.live.activate(registry_of(PACK, SPREAD.replace("100 - req", "99 - req")))
    run.cluster.upsert(make_pod("two"))
    run.schedule()
    run.close()
    timeline = timeline_of(tmp_path)
    assert timeline.changes == [
        PolicyChange(START, 1, first.digest),
        PolicyChange(START + 60 * SECOND, 2, run.live.registry.digest, ("fullest",), (), ("emptiest",)),
    ]
    assert [each.policies for each in timeline.spans(0, 2**62, 100)][60] == 1


def test_a_recording_is_followed_while_it_is_written(tmp_path):
    run = Recorded(tmp_path, [make_node("a")], SPREAD, limits=Limits(segment_bytes=1))
    steps = FlightRecording(()).follow(tmp_path)
    timeline = Timeline()

    def read_on() -> None:
        for step in iter(lambda: next(steps), None):
            timeline.take(step)

    read_on()
    assert timeline.state is None  # nothing is on the disk yet
    run.close()
    read_on()
    assert (timeline.spans(0, 2**62, 1)[0].nodes, timeline.end) == (1, START)
    later = Recorded(tmp_path, [make_node("a"), make_node("b")], SPREAD)
    later.now += SECOND
    later.cluster.upsert(make_pod("one"))
    later.schedule()
    read_on()
    later.close()
    read_on()
    assert [each.nodes for each in timeline.spans(0, 2**62, 2)] == [2, 2]
    assert (timeline.end, timeline.spans(0, 2**62, 2)[1].placed) == (START + SECOND, 1)


@pytest.mark.parametrize("size", [0, 1, 40, 200, 700])
def test_a_segment_that_grows_is_read_on_from_its_last_whole_block(tmp_path, size):
    run = Recorded(tmp_path / "whole", [make_node("a"), make_pod("old", "1", "a")], SPREAD)
    run.cluster.upsert(make_pod("one"))
    run.schedule()
    run.close()
    [whole] = FlightRecording.open(tmp_path / "whole").segments
    expected = timeline_of(tmp_path / "whole")
    growing = tmp_path / "growing"
    growing.mkdir()
    (growing / whole.name).write_bytes(whole.read_bytes()[:size])
    recording, timeline = FlightRecording(()), Timeline()
    steps = recording.follow(growing)
    for content in (whole.read_bytes()[:size], whole.read_bytes()):
        (growing / whole.name).write_bytes(content)
        for step in iter(lambda: next(steps), None):
            timeline.take(step)
    assert rows(timeline) == rows(expected)
    assert recording.notes == ()


def test_an_empty_and_a_foreign_directory_have_an_empty_timeline(tmp_path):
    (tmp_path / "20260101T000000.000000000Z.segment").write_bytes(b"no segment at all")
    recording = FlightRecording.open(tmp_path)
    assert list(recording.steps()) == []
    assert recording.notes == (
        "`20260101T000000.000000000Z.segment`: it is no segment of a flight recording: the rest of it is left out",)
    assert Timeline().spans(0, 2**62, 10) == ()
