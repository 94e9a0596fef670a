from __future__ import annotations

import logging
import math
import threading

import pytest

from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.flight_recorder.recording import FlightRecording, Resync
from koordpolicy.engine.flight_recorder.records import (
    Changed,
    Concluded,
    Decided,
    Existing,
    Gap,
    Header,
    Idle,
    Policies,
    SegmentEnd,
    Started,
    Touched,
)
from koordpolicy.engine.flight_recorder.segments import SegmentFile, SegmentReader, segments_in
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

from .recordings import SECOND, SPREAD, START, Recorded, make_node, make_pod, registry_of


def records(directory):
    return [record for path in segments_in(directory) for record in SegmentReader(path)]


def test_changes_and_decisions_are_recorded_in_order_with_their_reasons(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b", "8")], SPREAD)
    run.after(1)
    run.cluster.upsert_all([make_pod("p"), make_pod("large", "99")])
    run.schedule()
    run.now += SECOND  # the back-off of the large pod ends only now
    run.confirm("default/p")
    run.cluster.upsert(dict(run.cluster.object("Node", "a")))
    run.cluster.delete("Node", "a")
    run.schedule()
    run.close()
    header, policies, *rest = records(tmp_path)
    assert isinstance(header, Header)
    assert (header.program, header.number, header.time) == ("test", 1, START)
    assert header.kinds is None
    assert isinstance(policies, Policies)
    assert (policies.generation, policies.digest) == (1, run.live.registry.digest)
    assert "emptiest" in policies.plugins
    durations = [record.duration for record in rest if isinstance(record, Decided)]
    assert all(duration > 0 for duration in durations)
    second, third = START + SECOND, START + 2 * SECOND
    bound = make_pod("p", node="b")
    decided = [record for record in rest if isinstance(record, Decided)]
    assert rest == [
        Existing(make_node("a")), Existing(make_node("b", "8")), Started(START, 2),
        Changed(second, "Pod", "default/p", make_pod("p")),
        Changed(second, "Pod", "default/large", make_pod("large", "99")),
        *decided[:2], Idle(second),
        Changed(third, "Pod", "default/p", bound), Touched(third, "Node", "a"), Changed(third, "Node", "a", None),
        decided[2], Idle(third), SegmentEnd(third, last=True),
    ]
    placed, refused = sorted(decided[:2], key=lambda each: each.node is None)
    assert (placed.pod, placed.uid, placed.node, placed.next_node, placed.passed) == (
        "default/p", "uid-p", "b", "a", 2)
    assert placed.score is not None
    assert placed.next_score is not None
    assert placed.score > placed.next_score
    assert (refused.node, refused.score) == (None, None)
    assert refused.reasons == [("NodeResourcesFit", "resources", "Insufficient cpu", 2)]


def test_only_the_recorded_fields_are_written(tmp_path):
    node = make_node("a", secret={"deep": [1, 2]})
    pod = make_pod("p", containers=[{"name": "main", "env": [{"name": "A", "value": "b"}], "image": "i"}])
    run = Recorded(tmp_path, [node, pod, {"kind": "Secret", "metadata": {"name": "s"}},
                              {"kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}}],
                   fields=Fields.parse(["Namespace.metadata.labels"]))
    run.close()
    assert [each.object for each in records(tmp_path) if isinstance(each, Existing)] == [
        make_node("a"), make_pod("p", containers=[{"name": "main", "image": "i"}]),
        {"kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}}]


def test_all_fields_can_be_recorded(tmp_path):
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"x": "y"}}
    run = Recorded(tmp_path, [secret], fields=Fields.parse(["all"]))
    run.close()
    assert [each.object for each in records(tmp_path) if isinstance(each, Existing)] == [secret]


def test_new_policies_are_recorded_and_widen_the_recording(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), {"kind": "Namespace", "metadata": {"name": "n"}}])
    run.cluster.upsert(make_pod("p"))
    run.schedule()
    selecting = SPREAD + "  match: {pods: {namespaceSelector: {matchLabels: {a: b}}}}\n"
    run.live.activate(registry_of(selecting, generation=2))
    run.cluster.upsert(make_pod("q"))
    run.schedule()
    run.recorder._writer.close()  # all is written, and the wider fields are known
    run.recorder._put_state()
    run.recorder._sink.write(list(run.recorder._writer._items))
    run.recorder._sink.close()
    found = records(tmp_path)
    generations = [each.generation for each in found if isinstance(each, Policies)]
    assert generations == [1, 2, 2]
    before, after = (each for each in found if isinstance(each, Header))
    assert before.fields is not None
    assert after.fields is not None
    assert sorted(after.fields.keys() - before.fields.keys()) in (["Namespace"], [])
    assert any(isinstance(each, Existing) and each.object["kind"] == "Namespace" for each in found)


def test_what_the_disk_is_too_slow_for_is_dropped_counted_and_marked(tmp_path, monkeypatch, caplog):
    slow = threading.Event()
    add = SegmentFile.add

    def waiting(self, record):
        slow.wait(60)
        add(self, record)

    monkeypatch.setattr(SegmentFile, "add", waiting)
    run = Recorded(tmp_path, [make_node("a", "99")], capacity=8)
    for number in range(40):
        run.cluster.upsert(make_pod(f"p{number}"))
    run.schedule()
    assert run.recorder.dropped > 20
    slow.set()
    while run.recorder._writer.room < 8:
        run.after(0.01)
    run.after(1)
    run.cluster.upsert(make_pod("last"))
    run.schedule()
    with caplog.at_level(logging.WARNING):
        run.close()
    dropped = run.recorder.dropped
    assert f"the flight recording has gaps: {dropped} records were dropped" in caplog.text
    gaps = [each for each in records(tmp_path) if isinstance(each, Gap)]
    assert sum(each.dropped for each in gaps) == dropped
    recording = FlightRecording.open(tmp_path)
    steps = list(recording.steps())
    assert sum(isinstance(step, Resync) for step in steps) == 1 + len(gaps)
    overview = recording.overview()
    assert [(gap.dropped, gap.why) for gap in overview.gaps] == [
        (each.dropped, "records were dropped") for each in gaps]


def test_a_disk_that_fails_ends_a_segment_and_another_one_begins_later(tmp_path, monkeypatch, caplog):
    run = Recorded(tmp_path, [make_node("a")])
    run.recorder._writer.close()
    sink = run.recorder._sink
    assert sink.segments == 1

    def full(self):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(SegmentFile, "flush", full)
        sink._flushed = 0.0
        sink.write([Idle(1)])
    assert "the flight recording cannot be written, and is tried again: No space left on device" in caplog.text
    assert not sink.state_needed
    sink._failed -= 60
    sink.write([])
    assert sink.state_needed
    run.recorder._put_state()
    sink.write(list(run.recorder._writer._items))
    assert sink.segments == 2
    sink.close()
    assert [gap.why for gap in FlightRecording.open(tmp_path).overview().gaps] == ["a segment was not ended"]
    assert len(segments_in(tmp_path)) == 2


def test_an_object_that_cannot_be_recorded_is_left_out_and_named_once(tmp_path, caplog):
    odd = make_node("odd", number=2**70)
    everything = Fields.parse(["all"])
    with caplog.at_level(logging.WARNING):
        run = Recorded(tmp_path, [make_node("a"), odd], fields=everything)
        run.cluster.upsert({**odd, "more": 1})
        run.close()
    assert [message for message in caplog.messages if "Node `odd`" in message and "is left out" in message] == [
        caplog.messages[0]]
    assert [each.object["metadata"]["name"] for each in records(tmp_path) if isinstance(each, Existing)] == ["a"]


def test_an_observer_that_fails_does_not_stop_the_scheduler(tmp_path, caplog):
    run = Recorded(tmp_path, [make_node("a")])
    run.recorder._put = None  # type: ignore[assignment, method-assign]
    run.cluster.upsert(make_pod("p"))
    (verdict,) = run.schedule()
    assert verdict.node == "a"
    assert "a decision could not be observed" in caplog.text


def test_the_end_of_a_permit_is_recorded(tmp_path):
    run = Recorded(tmp_path, [make_node("a")])
    run.cluster.upsert(make_pod("p"))
    pod = run.cluster.pod("default/p")
    run.recorder.concluded(Verdict(pod, "default-scheduler", 1, ("a",), "a", 0))
    run.close()
    assert [each for each in records(tmp_path) if isinstance(each, Concluded)] == [
        Concluded(START, "default/p", "uid-p", "a")]


@pytest.mark.parametrize(("cut", "notes", "gaps"), [(40, 1, 0), (1_000_000, 0, 0)])
def test_a_segment_that_is_cut_off_leaves_a_gap(tmp_path, monkeypatch, cut, notes, gaps):
    monkeypatch.setattr("koordpolicy.engine.flight_recorder.recorder._FLUSH_S", math.inf)  # a segment is one block
    run = Recorded(tmp_path, [make_node("a", "99")])
    for number in range(30):
        run.cluster.upsert(make_pod(f"p{number}"))
        run.schedule()
        run.after(1)
        if number == 15:
            run.recorder._put_state()
    run.close()
    first, _ = segments_in(tmp_path)
    content = first.read_bytes()
    first.write_bytes(content[:-cut] if cut < len(content) else content)
    overview = FlightRecording.open(tmp_path).overview()
    assert (len(overview.notes), len(overview.gaps)) == (notes, gaps)
    if notes:
        # Its only block is lost: the recording begins with the second segment.
        assert overview.notes == [f"`{first.name}`: its last block is cut off: the rest of it is left out"]
        assert overview.start == START + 16 * SECOND
