"""Moments of a recording: what was known when, reached without reading everything before."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from koordpolicy.engine.cel.values.deadline import OverdueError
from koordpolicy.engine.flight_recorder.moments import Moments
from koordpolicy.engine.flight_recorder.recorded_state import RecordedState, Resync
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.segments import Limits
from koordpolicy.engine.flight_recorder.settings import settings_from
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.source import PolicyError

from .recordings import SECOND, SPREAD, START, Recorded, make_node, make_pod, registry_of

STEPS = 400


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node, and a pod that comes each second: it is placed at once, and its object never shows the node."""
    directory = tmp_path_factory.mktemp("long")
    node = make_node("a", status={"allocatable": {"cpu": "4000", "memory": "8Gi", "pods": "1000"}})
    run = Recorded(directory, [node], SPREAD, live_cluster=False)
    for number in range(STEPS):
        run.now += SECOND
        run.cluster.upsert(make_pod(f"pod-{number}"))
        run.schedule()
    run.close()
    return directory


def content(state: RecordedState) -> tuple[object, ...]:
    return state.objects, state.bound, set(state.decided), state.policies


def folded(directory: Path, time: int) -> RecordedState:
    """The state by reading everything from the beginning."""
    state: RecordedState | None = None
    for step in FlightRecording.open(directory).steps():
        if state is None:
            assert isinstance(step, Resync)
            state = RecordedState(step)
        elif step.time <= time:
            state.apply(step)
    assert state is not None
    return state


def test_a_moment_is_what_all_steps_until_it_result_in(long):
    moments = Moments(long, spacing=50)
    for second in (0, 7, 399, 400, 30, 31, 200):
        time = START + second * SECOND
        assert content(moments.at(time)) == content(folded(long, time)), second
    assert moments.at(START + 7 * SECOND).node_of("default/pod-6") == "a"
    assert moments.at(START + 7 * SECOND).node_of("default/pod-7") == ""


def test_a_caller_that_changes_nothing_does_not_change_other_moments(long):
    moments = Moments(long, spacing=50)
    late, early = moments.at(START + 300 * SECOND), moments.at(START + 10 * SECOND)
    assert (len(late.bound), len(early.bound)) == (300, 10)
    assert len(moments.at(START + 300 * SECOND).bound) == 300


def test_nothing_is_recorded_before_the_beginning(long):
    with pytest.raises(PolicyError) as raised:
        Moments(long).at(START - 1)
    assert raised.value.problems[0].message.startswith("nothing is recorded of this time: the recording begins at 2026")


def test_an_empty_directory_has_no_moments(tmp_path):
    with pytest.raises(PolicyError) as raised:
        Moments(tmp_path).at(START)
    assert raised.value.problems[0].message == "nothing is recorded of this time: it is empty"


def test_a_foreign_file_is_named_and_the_segment_before_it_is_used(tmp_path):
    run = Recorded(tmp_path, [make_node("a")], SPREAD)
    run.close()
    (tmp_path / "20990101T000000.000000000Z.segment").write_bytes(b"\xff" * 1000)
    assert set(Moments(tmp_path).at(2**62).objects) == {("Node", "a")}
    for path in FlightRecording.open(tmp_path).segments:
        path.write_bytes(b"")
    with pytest.raises(PolicyError) as raised:
        Moments(tmp_path).at(2**62)
    assert "`20990101T000000.000000000Z.segment`: it is no segment of a flight recording" in (
        raised.value.problems[0].message)


def test_a_deadline_ends_the_reading_and_the_next_call_goes_on(large):
    moments = Moments(large, spacing=1)
    polls = itertools.count(1)

    def overdue() -> None:
        if next(polls) == 3:
            raise OverdueError

    with pytest.raises(OverdueError):
        moments.at(2**62, overdue)
    read = moments.records_read
    state = moments.at(2**62)
    assert len([key for kind, key in state.objects if kind == "Pod"]) == 3000
    again = moments.records_read - read
    whole = Moments(large)
    whole.at(2**62)
    assert again < whole.records_read


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several blocks in one segment: 3,000 pods of a kilobyte arrive, 100 in a second."""
    directory = tmp_path_factory.mktemp("large")
    run = Recorded(directory, [make_node("a")], SPREAD, capacity=1_000_000)
    for number in range(3000):
        run.now += SECOND // 100
        pod = make_pod(f"pod-{number}", schedulerName="other")
        pod["metadata"]["annotations"] = {"filling": f"{number}" * 250}
        run.cluster.upsert(pod)
    run.close()
    return directory


def test_later_visits_read_from_the_nearest_checkpoint_only(large):
    moments = Moments(large, spacing=100)
    moments.at(START + 29 * SECOND)
    first = moments.records_read
    near = moments.at(START + 28 * SECOND)
    assert len(near.objects) == 2801
    assert moments.records_read - first < first / 2


def test_checkpoints_are_bounded(large):
    moments = Moments(large, spacing=1, most_entries=100)
    moments.at(2**62)
    before = moments.records_read
    assert len(moments.at(START + 20 * SECOND).objects) == 2001
    assert moments.records_read > before


def test_the_decision_about_a_pod_is_found_in_an_earlier_segment(tmp_path):
    run = Recorded(tmp_path, [make_node("a")], SPREAD)
    run.cluster.upsert(make_pod("one"))
    run.schedule()
    run.confirm("default/one")
    run.close()
    later = Recorded(tmp_path, [make_node("a"), make_pod("one", "1", "a")], SPREAD)
    later.now += SECOND
    later.cluster.upsert(make_pod("two", "64"))
    later.schedule()
    later.close()
    moments = Moments(tmp_path)
    one, two = (moments.decision_about(f"default/{name}", START + SECOND) for name in ("one", "two"))
    assert one is not None
    assert (one.node, one.time) == ("a", START)
    assert two is not None
    assert (two.node, two.reasons[0][2]) == (None, "Insufficient cpu")
    assert moments.decision_about("default/two", START) is None
    assert moments.decision_about("default/one", START, uid="another pod of that name") is None


def test_a_part_of_a_recording_is_replayed_as_the_whole_was_decided(long):
    start, end = START + 100 * SECOND, START + 300 * SECOND
    part = FlightRecording.open(long).between(start, end)
    overview = part.overview()
    assert (overview.start, overview.end, overview.decisions) == (start, end, 201)
    result = replay(part, overview, Live(registry_of(SPREAD)), settings_from(overview.first.settings),
                    clock=lambda: 0.0, points=2)
    assert result.counts()["same"] == 201
    assert [(each.running, each.pending) for each in result.recorded_series] == [
        (each.running, each.pending) for each in result.series]
    assert result.recorded_series[0].running > 100


def test_only_the_segments_of_a_part_are_read(tmp_path):
    for second in range(4):
        run = Recorded(tmp_path, [make_node("a")], SPREAD, limits=Limits())
        run.close()
        path = max(tmp_path.glob("*.segment"))
        path.rename(tmp_path / f"20260101T00000{second}.000000000Z.segment")
    recording = FlightRecording.open(tmp_path)
    names = [path.name for path in recording.segments]
    zero = 1_767_225_600 * SECOND
    assert [[path.name for path in recording.between(zero + start, zero + end).segments] for start, end in (
        (SECOND, 2 * SECOND), (SECOND + 1, SECOND + 2), (-5, -1), (9 * SECOND, 10 * SECOND))] == [
        names[1:3], names[1:2], names[:1], names[3:]]
