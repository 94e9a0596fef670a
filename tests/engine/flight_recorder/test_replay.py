from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.records import (
    FORMAT,
    Changed,
    Concluded,
    Decided,
    Existing,
    Gap,
    Header,
    Idle,
    Policies,
    RecordedChoice,
    RecordedProfile,
    RecordedSettings,
    Started,
    Touched,
    encode,
)
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.segments import SegmentFile
from koordpolicy.engine.flight_recorder.settings import recorded_settings, settings_from
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.kubernetes.release import release
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import PolicyError

from .recordings import PACK, SECOND, SPREAD, START, Recorded, make_node, make_pod, registry_of


def replayed(directory: Path, *texts: str, points: int = 4):
    recording = FlightRecording.open(directory)
    overview = recording.overview()
    return replay(recording, overview, Live(registry_of(*texts)), settings_from(overview.first.settings),
                  clock=time.perf_counter, points=points)


def placements(result):
    return {pod.pod: pod.replayed and pod.replayed[0] for pod in result.pods}


def test_the_policies_that_decided_decide_the_same(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b", "8")], SPREAD)
    for number in range(6):
        run.cluster.upsert(make_pod(f"p{number}", "1500m"))
        run.schedule()
        run.after(1)
        for key in run.placed:
            run.confirm(key)
        run.schedule()
    run.close()
    result = replayed(tmp_path, SPREAD)
    assert result.counts() == {"same": 6, "elsewhere": 0, "later": 0, "sooner": 0, "never": 0, "onlyReplayed": 0,
                               "neither": 0}
    assert placements(result) == run.placed
    assert result.decisions == result.recorded_decisions
    assert result.use == result.recorded_use
    assert result.use.cpu > 0


def test_other_policies_place_elsewhere_and_the_difference_is_counted(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b")], SPREAD)
    for number in range(4):
        run.cluster.upsert(make_pod(f"p{number}"))
        run.schedule()
        run.after(1)
    run.close()
    result = replayed(tmp_path, PACK)
    assert run.placed == {"default/p0": "a", "default/p1": "b", "default/p2": "a", "default/p3": "b"}
    assert placements(result) == dict.fromkeys(run.placed, "a")
    assert [(pod.pod, pod.changes) for pod in result.differing] == [
        ("default/p1", ("elsewhere",)), ("default/p3", ("elsewhere",)),
    ]


REFUSE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: no-small}
spec:
  filter:
  - {name: large, expression: "requests.cpu >= 2000", message: too small}
"""


def test_a_pod_that_the_policies_refuse_never_runs_and_says_why(tmp_path):
    run = Recorded(tmp_path, [make_node("a")])
    run.cluster.upsert_all([make_pod("small"), make_pod("large", "3")])
    run.schedule()
    run.after(30)
    run.cluster.delete("Pod", "default/small")
    run.schedule()
    run.close()
    result = replayed(tmp_path, REFUSE)
    (never,) = result.differing
    assert (never.pod, never.changes, never.reasons) == ("default/small", ("never",), {"too small": 1})
    assert never.ended == START + 30 * SECOND
    assert result.waiting == 0


def test_a_pod_waits_longer_where_the_policies_fill_the_only_node_that_fits_it(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b", "3")], SPREAD)
    run.cluster.upsert(make_pod("first", "3"))
    run.schedule()
    assert run.placed == {"default/first": "a"}
    run.after(5)
    run.cluster.upsert(make_pod("second", "3"))
    run.schedule()
    run.after(100)
    run.cluster.delete("Pod", "default/first")
    run.schedule()
    run.after(100)
    run.close()
    keep_off_b = REFUSE.replace("requests.cpu >= 2000", "node.metadata.name != 'b'").replace("too small", "not there")
    result = replayed(tmp_path, keep_off_b)
    (second,) = result.differing
    assert (second.pod, second.changes, second.delay) == ("default/second", ("elsewhere", "later"), 100.0)
    waits = result.waits()
    assert (waits[0].most, waits[1].most) == (0.0, 100.0)


def test_a_pod_that_others_bound_stays_where_they_bound_it(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b"), make_pod("old", "1", "b")], SPREAD)
    run.cluster.upsert(make_pod("daemon", "2", "a"))
    run.schedule()
    run.cluster.upsert(make_pod("p"))
    run.schedule()
    run.close()
    result = replayed(tmp_path, PACK)
    assert run.placed == {"default/p": "b"}
    assert placements(result) == {"default/p": "a"}
    assert result.use.running == 3


def test_pods_of_other_schedulers_are_not_scheduled(tmp_path):
    run = Recorded(tmp_path, [make_node("a")], settings=Settings((ProfileSpec("mine"),), foreign_pods=False))
    run.cluster.upsert(make_pod("theirs", schedulerName="another"))
    run.cluster.upsert(make_pod("ours", schedulerName="mine"))
    run.schedule()
    run.close()
    assert placements(replayed(tmp_path)) == {"default/ours": "a"}


def test_pods_that_another_replica_bound_stay_there(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b")])
    run.cluster.upsert(make_pod("theirs"))
    run.after(1)
    run.cluster.upsert(make_pod("theirs", node="b"))
    run.after(1)
    run.cluster.upsert(make_pod("ours", "3500m"))
    run.schedule()
    run.close()
    result = replayed(tmp_path)
    assert placements(result) == run.placed == {"default/ours": "a"}
    assert result.use == result.recorded_use


def test_a_backoff_that_ends_while_the_recorded_scheduler_is_idle_is_followed(tmp_path):
    run = Recorded(tmp_path, [make_node("a", "2")])
    run.cluster.upsert(make_pod("p"))
    run.schedule()
    run.after(1)
    run.cluster.upsert(make_node("tainted-later"))
    run.schedule()
    run.after(120)
    run.close()
    result = replayed(tmp_path, REFUSE.replace("requests.cpu >= 2000", "node.metadata.name != 'a'"))
    (pod,) = result.differing
    assert pod.replayed is not None
    # Its first attempt fails at the start; a second after that its back-off ends, and the new node has come by then.
    assert (pod.replayed[0], pod.replayed[1] - START) == ("tainted-later", SECOND)


def test_victims_of_a_preemption_go_in_the_replay_too(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_pod("low", "3", "a")])
    run.cluster.upsert(make_pod("high", "3", priority=100))
    (verdict,) = run.schedule()
    assert verdict.nomination is not None
    assert run.client is not None
    assert run.client.preempted == ["default/low"]
    run.after(10)
    run.cluster.delete("Pod", "default/low")
    run.schedule()
    run.after(10)
    run.schedule()
    run.close()
    assert run.placed == {"default/high": "a"}
    result = replayed(tmp_path)
    assert placements(result) == run.placed
    assert result.counts()["same"] == 1
    assert [(each.pod, each.by) for each in result.recorded_evictions] == [("default/low", "preemption")]
    assert [(each.pod, each.node, each.by) for each in result.evictions] == [("default/low", "a", "preemption")]


def test_a_preemption_without_an_api_server_is_the_schedulers_own(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_pod("low", "3", "a")], live_cluster=False)
    run.cluster.upsert(make_pod("high", "3", priority=100))
    run.schedule()
    run.after(10)
    run.schedule()
    run.close()
    assert run.placed == {"default/high": "a"}
    same = replayed(tmp_path)
    assert placements(same) == run.placed
    refusing = replayed(tmp_path, REFUSE.replace("requests.cpu >= 2000", "pod.metadata.name != 'high'"))
    assert placements(refusing) == {"default/high": None}
    assert refusing.evictions == ()
    assert refusing.use.running == 1  # nobody preempted it


def test_a_pod_whose_node_is_deleted_in_the_replay_only_returns(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b")], SPREAD)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    for name in ("p0", "p1"):
        pod = make_pod(name)
        run.cluster.upsert({**pod, "metadata": {**pod["metadata"], "ownerReferences": [owner]}})
        run.schedule()
        run.after(1)
    run.cluster.delete("Pod", "default/p0")
    run.cluster.delete("Node", "a")
    run.schedule()
    run.after(60)
    run.close()
    assert run.placed == {"default/p0": "a", "default/p1": "b"}
    result = replayed(tmp_path, PACK)
    assert placements(result) == {"default/p0": "a", "default/p1": "a"}
    (gone,) = result.evictions
    assert (gone.pod, gone.node, gone.reason) == ("default/p1", "a", "the node a was deleted")
    assert gone.again == gone.time


def test_a_later_segment_continues_the_one_before_it(tmp_path):
    run = Recorded(tmp_path, [make_node("a"), make_node("b")], SPREAD)
    for number in range(8):
        run.cluster.upsert(make_pod(f"p{number}", "500m"))
        run.recorder._sink.state_needed = number % 2 == 1
        run.schedule()
        run.after(1)
    run.close()
    assert len(list(tmp_path.glob("*.segment"))) == 5
    result = replayed(tmp_path, SPREAD)
    assert (result.segments, result.gaps, result.notes) == (5, (), ())
    assert placements(result) == run.placed
    first = min(tmp_path.glob("*.segment"))
    first.unlink()
    later = {key: node for key, node in run.placed.items() if key not in ("default/p0", "default/p1")}
    assert placements(replayed(tmp_path, SPREAD)) == later


OPERATIONS = st.lists(st.tuples(
    st.sampled_from(["pod", "pod", "pod", "confirm", "delete", "finish", "node", "lose", "wait", "decide", "touch"]),
    st.integers(0, 7), st.sampled_from([0, 0, 0.001, 0.4, 1, 3, 20]),
), min_size=5, max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATIONS, tie_break=st.sampled_from(["first", "random"]),
       policy=st.sampled_from(["", SPREAD, PACK]))
def test_the_same_policies_give_the_same_placements_whatever_happened(operations, tie_break, policy):
    texts = (policy,) if policy else ()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run = Recorded(directory, [make_node("n0"), make_node("n1", "2"), make_pod("old", "1", "n0")], *texts,
                       settings=Settings(tie_break=tie_break, seed=7))
        numbers = itertools.count()
        for operation, number, seconds in operations:
            run.after(seconds)
            pods = sorted(run.cluster.objects("Pod"))
            some = pods[number % len(pods)] if pods else None
            if operation == "pod":
                run.cluster.upsert(make_pod(f"p{next(numbers)}", f"{500 + 400 * number}m", priority=number % 3))
            elif operation == "confirm" and some in run.placed:
                run.confirm(some)
            elif operation == "delete" and some is not None:
                run.cluster.delete("Pod", some)
            elif operation == "finish" and some is not None:
                run.cluster.upsert({**run.cluster.object("Pod", some), "status": {"phase": "Succeeded"}})
            elif operation == "node":
                run.cluster.upsert(make_node(f"n{number}", str(1 + number % 4)))
            elif operation == "lose" and number > 1:
                run.cluster.delete("Node", f"n{number}")
            elif operation == "touch" and "n0" in run.cluster.index:
                run.cluster.upsert(dict(run.cluster.object("Node", "n0")))
            elif operation == "decide":
                run.schedule(1)
                continue
            if number % 2:
                run.schedule()
        run.close()
        result = replayed(directory, *texts)
        assert [pod for pod in result.pods if pod.recorded != pod.replayed] == []
        assert {pod.pod for pod in result.pods if pod.replayed} == run.placed.keys()
        assert result.decisions == result.recorded_decisions
        assert result.use == result.recorded_use


def test_an_empty_directory_is_no_recording(tmp_path):
    with pytest.raises(PolicyError, match="there is no segment of a flight recording"):
        FlightRecording.open(tmp_path)


ODD = st.recursive(st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.text(max_size=5),
                   lambda each: st.lists(each, max_size=3) | st.dictionaries(
                       st.sampled_from(["kind", "metadata", "spec", "status", "name", "uid", "nodeName", "a/b", ""]),
                       each, max_size=4), max_leaves=8)
TIMES = st.integers(START, START + 10 * SECOND)
KEYS = st.sampled_from(["default/p", "default/old", "n0", "", "x/y/z"])
KINDS = st.sampled_from(["Pod", "Node", "Namespace", "", "Reservation", "NodeMetric", "Device"])
VALID = st.sampled_from(
    [make_node("n0"), make_node("n1", "2"), make_pod("p"), make_pod("p", "1", "n0"), make_pod("old")])


def changed(time, item, own):
    namespace = "default/" if item["kind"] == "Pod" else ""
    return Changed(time, item["kind"], namespace + item["metadata"]["name"], item, own)


RECORDS = st.one_of(
    st.builds(Changed, TIMES, KINDS, KEYS, ODD | VALID, st.booleans()),
    st.builds(changed, TIMES, VALID, st.booleans()),
    st.builds(Touched, TIMES, KINDS, KEYS, st.booleans()),
    st.builds(Decided, TIMES, KEYS, st.text(max_size=3), st.text(max_size=3), st.integers(-5, 5),
              st.none() | st.sampled_from(["n0", "n1", "gone", ""]), st.integers(-5, 5)),
    st.builds(Concluded, TIMES, KEYS, st.text(max_size=3), st.none() | st.just("n0")),
    st.builds(Idle, TIMES), st.builds(Gap, TIMES, st.integers(-1, 5)),
    st.builds(Policies, TIMES, st.integers(), st.text(max_size=3), st.just({})),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(existing=st.lists(ODD | VALID, max_size=4), records=st.lists(RECORDS, max_size=12))
def test_whatever_a_segment_holds_is_replayed_or_left_out(existing, records):
    with tempfile.TemporaryDirectory() as name:
        segment = SegmentFile(Path(name) / "20260101T000000.000000000Z.segment")
        for record in (
            Header(FORMAT, "1", "r", 1, START, None, None, RecordedSettings([RecordedProfile("default-scheduler")])),
            *(Existing(item, "n0" if number % 2 else "") for number, item in enumerate(existing)), Started(START, 1),
            *records,
        ):
            segment.add(encode(record))
        segment.close()
        result = replayed(Path(name))
        assert set(result.counts().values()) != set()
        result.to_json()


@pytest.mark.parametrize("change", [
    {"tie_break": "coin"}, {"profiles": []}, {"initial_backoff": 0}, {"longest_backoff": -1}, {"kubernetes": "0.1"},
    {"binding_timeout": 2**63}, {"profiles": [RecordedProfile("p", [RecordedChoice("x", points=["never"])])]},
])
def test_settings_that_cannot_be_used_are_refused(change):
    recorded = msgspec.structs.replace(RecordedSettings([RecordedProfile("default-scheduler")]), **change)
    with pytest.raises(ValueError, match=r"recorded|release|followed|never"):
        settings_from(recorded)


def test_settings_are_recorded_as_they_are():
    given = Settings(
        (ProfileSpec("a", (PluginChoice("x", 3, {"y": 1}, frozenset({Point.SCORE})),), {None: frozenset({"*"}),
                     Point.FILTER: frozenset({"z"})}, {"x": {"w": [1]}}, named_only=True),),
        "random", 7, frozenset({"G"}), 2_000_000, 3_000_000, 4_000_000, foreign_pods=False, kubernetes=release("1.35"))
    assert settings_from(recorded_settings(given)) == given
