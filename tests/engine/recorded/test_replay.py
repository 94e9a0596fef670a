from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS as DESCHEDULER
from koordpolicy.builtin_plugins.scheduler import PLUGINS as SCHEDULER
from koordpolicy.engine.cluster.sources.trace import ClusterRecording, Stay, TraceNode, TracePod
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler.config import default
from koordpolicy.engine.descheduler.proof.verdicts import ProofResult
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.recorded.figures import Amounts, NeverRan, RecordedEviction, Step, StoppedEviction, Waits
from koordpolicy.engine.recorded.replay import Descheduling, Leave, replay, stretched, thinned
from koordpolicy.engine.source import Source

S = 1_000_000_000
ONE_NODE = (TraceNode("a", 4000, 1024, 0),)
EVICT = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: move-along}
spec:
  type: Deschedule
  criteria:
  - {name: chosen, expression: "pod.metadata.name == 'first' && nodeInfo.name == 'a'"}
"""


def stay(name, cpu, created, deleted, gpu=0, qos=""):
    pod = TracePod(name, cpu * 1000, 0, 1 if gpu else 0, gpu)
    return Stay(pod, created, deleted, qos)


def run(*stays, nodes=ONE_NODE, text="", **options):
    plugins = compile_documents(load([Source("policy.yaml", text)])) if text else ()
    live = Live(Registry.of([*SCHEDULER, *DESCHEDULER, *plugins], generation=1))
    result = replay(ClusterRecording(tuple(nodes), stays), live, clock=lambda: 0.0, **options)
    assert result.errors == ()
    return result


def pending(result):
    return [(step.time / S, step.running, step.pending) for step in result.steps]


def test_a_pod_waits_until_another_one_has_left():
    result = run(stay("first", 4, 0, 100), stay("second", 3, 10, 300))
    assert result.waits == Waits(2, 45.0, 0.0, 90.0, 90.0, 90.0, 90.0)
    assert result.steps == [
        Step(0, Amounts(4000), 1, 0), Step(10 * S, Amounts(4000), 1, 1), Step(100 * S, Amounts(3000), 1, 0),
        Step(300 * S, Amounts(), 0, 0),
    ]
    assert (
        result.arrivals, result.never_ran, result.evictions, result.end, result.decisions,
    ) == (2, (), (), 300 * S, 3)


def test_a_pod_that_failed_twice_backs_off_for_two_seconds():
    result = run(stay("first", 3, 0, 12), stay("small", 1, 0, 11), stay("second", 4, 10, 20))
    assert pending(result) == [(0, 2, 0), (10, 2, 1), (11, 1, 1), (12, 0, 1), (13, 1, 0), (20, 0, 0)]
    assert result.decisions == 5


def test_who_came_first_is_tried_first():
    result = run(stay("first", 4, 0, 100), stay("second", 4, 10, 200), stay("third", 4, 20, 150))
    assert result.waits.pods == 2
    assert result.never_ran == (NeverRan("third", 130.0, True, {"Insufficient cpu": 1}),)


def test_a_pod_leaves_when_it_was_deleted_also_while_it_waits():
    result = run(stay("first", 4, 0, 100), stay("second", 4, 10, 50))
    assert pending(result) == [(0, 1, 0), (10, 1, 1), (50, 1, 0), (100, 0, 0)]
    assert result.never_ran == (NeverRan("second", 40.0, True, {"Insufficient cpu": 1}),)


def test_a_pod_may_stay_for_as_long_as_it_did_instead():
    result = run(stay("first", 4, 0, 100), stay("second", 4, 10, 50), stay("huge", 5, 20, 30), leave=Leave.AFTER_RUN)
    assert pending(result) == [(0, 1, 0), (10, 1, 1), (20, 1, 2), (100, 1, 1), (140, 0, 1)]
    (huge,) = result.never_ran
    assert (huge.pod, huge.left, huge.reasons) == ("huge", False, {"Insufficient cpu": 1})


def test_the_end_comes_when_those_who_wait_have_been_tried_with_all_that_was_left_free():
    result = run(stay("huge", 5, 20, 30), leave=Leave.AFTER_RUN)
    assert (result.start, result.end, result.decisions) == (20 * S, 20 * S, 1)


def test_who_comes_and_goes_at_once_has_run():
    result = run(stay("first", 4, 7, 7), stay("second", 4, 7, 20))
    assert (result.waits, result.never_ran) == (Waits(2, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0), ())
    assert pending(result) == [(7, 0, 1), (8, 1, 0), (20, 0, 0)]


def test_devices_are_given_back():
    gpus = (TraceNode("a", 4000, 1024, 1, "T4"),)
    result = run(stay("first", 1, 0, 100, gpu=600), stay("second", 1, 0, 200, gpu=600), nodes=gpus)
    assert [(step.time / S, step.used.gpu) for step in result.steps] == [(0, 600), (100, 600), (200, 0)]
    assert result.capacity == Amounts(4000, 1024, 1000)


def test_whom_the_descheduler_evicts_goes_back_to_the_queue():
    nodes = (TraceNode("a", 4000, 1024, 0), TraceNode("b", 2000, 1024, 0))
    result = run(stay("first", 2, 0, 400), stay("big", 4, 10, 300), nodes=nodes, text=EVICT,
                 descheduling=Descheduling(default(), 60))
    assert result.descheduler_errors == ()
    (eviction,) = result.evictions
    assert eviction == RecordedEviction(
        60.0, "first", "a", "move-along", "chosen", "chosen", 0.0, eviction.proof)
    assert pending(result) == [(0, 1, 0), (10, 1, 1), (60, 2, 0), (300, 1, 0), (400, 0, 0)]
    assert (result.waits, result.waits_again) == (
        Waits(2, 25.0, 0.0, 50.0, 50.0, 50.0, 50.0), Waits(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    )
    assert result.cycles == 7


def test_what_keeps_the_descheduler_from_its_work_is_told_once():
    result = run(stay("first", 2, 0, 400), text=EVICT, descheduling=Descheduling(default(), 60))
    assert (result.cycles, result.evictions) == (7, ())
    assert result.descheduler_errors == (
        "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation",
    )


PREFER_A = """
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: prefer-a}
spec:
  score: [{name: a, expression: "nodeInfo.name == 'a' ? 100 : 0"}]
"""
TWO_NODES = (TraceNode("a", 4000, 1024, 0), TraceNode("b", 4000, 1024, 0))


def with_proof(effect):
    return f'{EVICT}  proof: "{effect}"\n{PREFER_A}'


def test_an_eviction_that_would_not_help_is_not_made_and_listed_once_with_the_number_of_cycles():
    stays, options = stay("first", 2, 0, 200), {"nodes": TWO_NODES, "descheduling": Descheduling(default(), 60)}
    result = run(stays, text=with_proof("Enforce"), **options)
    (useless,) = result.useless
    assert (result.cycles, result.evictions) == (4, ())
    assert useless == StoppedEviction(60.0, "first", "a", "move-along", "chosen", useless.proof, 3)
    assert (useless.proof.result, useless.proof.effect) == (ProofResult.LOOP, Proof.ENFORCE)
    assert useless.proof.message == (
        "default/first would come back to a: move-along (chosen) evicts from it, and profile default-scheduler prefers "
        "it by prefer-a (100 there, 0 on b, weight 1)")
    assert run(stays, text=with_proof("Enforce"), **options) == result


@pytest.mark.parametrize("effect", [Proof.WARN, Proof.OFF])
def test_an_eviction_that_is_made_although_it_does_not_help_has_its_proof(effect):
    result = run(stay("first", 2, 0, 100), text=with_proof(effect.value), nodes=TWO_NODES,
                 descheduling=Descheduling(default(), 60))
    assert [(each.time, each.proof.result, each.proof.effect) for each in result.evictions] == [
        (60.0, ProofResult.LOOP, effect)]
    assert result.useless == ()
    assert result.to_json(1)["evictions"][0]["proof"] == result.evictions[0].proof.to_json()


def test_an_eviction_that_helps_is_made_with_proof():
    prefers_b = with_proof("Enforce").replace("nodeInfo.name == 'a' ? 100", "nodeInfo.name == 'b' ? 100")
    # At first only node a has room: the other pod leaves b before the next cycle.
    result = run(stay("big", 4, 0, 30), stay("first", 2, 10, 100), text=prefers_b, nodes=TWO_NODES,
                 descheduling=Descheduling(default(), 60))
    (eviction,) = result.evictions
    assert (eviction.time, eviction.again, eviction.proof.result, eviction.proof.node) == (
        60.0, 0.0, ProofResult.HELPS, "b")
    assert result.useless == ()


def test_a_victim_of_a_preemption_has_no_proof_in_the_plain_data():
    assert "proof" not in RecordedEviction(1.0, "p", "n", "preemption", "", "why", None).to_json()


def test_who_is_evicted_may_wait_for_long():
    nodes = (TraceNode("a", 4000, 1024, 0), TraceNode("b", 1000, 1024, 0))
    stays = stay("first", 2, 0, 400), stay("big", 4, 10, 300)
    descheduling = Descheduling(default(), 60)
    result = run(*stays, nodes=nodes, text=EVICT, descheduling=descheduling)
    assert [(each.time, each.again) for each in result.evictions] == [(60.0, 240.0), (360.0, 0.0)]
    in_parts = run(*stays, nodes=nodes, text=EVICT, descheduling=descheduling, leave=Leave.AFTER_RUN)
    assert [(each.time, each.again) for each in in_parts.evictions] == [
        (60.0, 290.0), (360.0, 0.0), (420.0, 0.0), (480.0, 0.0), (540.0, 0.0), (600.0, 0.0), (660.0, 0.0),
    ]
    assert (in_parts.end, pending(in_parts)[-1]) == (690 * S, (690, 0, 0))


def test_who_comes_back_has_devices_of_his_own_and_gives_them_back():
    nodes = tuple(TraceNode(name, 4000, 1024, 1, "T4") for name in "ab")
    stays = stay("first", 1, 0, 100, gpu=600), stay("second", 1, 70, 90, gpu=600), stay("third", 1, 80, 120, gpu=400)
    result = run(*stays, nodes=nodes, text=EVICT, descheduling=Descheduling(default(), 60))
    assert [each.again for each in result.evictions] == [0.0]
    assert (result.waits, result.never_ran) == (Waits(3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), ())
    assert [(step.time / S, step.used.gpu) for step in result.steps] == [
        (0, 600), (70, 1200), (80, 1600), (90, 1000), (100, 400), (120, 0),
    ]


def test_the_qos_class_of_the_list_is_a_label_of_the_pod():
    text = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: no-best-effort}
spec:
  filter:
  - {name: not-here, expression: "podInfo.qosClass != 'BE'"}
"""
    result = run(stay("first", 1, 0, 10, qos="BE"), stay("second", 1, 0, 10, qos="Burstable"), text=text)
    assert [each.pod for each in result.never_ran] == ["first"]


def test_the_time_of_the_recording_is_what_policies_see():
    text = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: later}
spec:
  filter:
  - {name: from-noon, expression: "now >= timestamp('1970-01-01T12:00:00Z')"}
"""
    result = run(stay("first", 1, 11 * 3600, 20 * 3600), text=text)
    assert result.waits.mean == 3600


def test_the_same_recording_comes_to_the_same():
    stays = [stay(f"p{number}", 1 + number % 3, number * 7 % 50, 60 + number * 13 % 90) for number in range(40)]
    assert run(*stays) == run(*stays)


def test_a_share_of_a_cluster_has_some_of_each_kind():
    nodes = [TraceNode(f"n{number}", 1000 if number % 4 else 2000, 1, 0) for number in range(8)]
    assert [each.name for each in thinned(nodes, 0.5)] == ["n0", "n1", "n2", "n3"]
    assert [each.name for each in thinned(nodes, 0.01)] == ["n0", "n1"]
    assert thinned(nodes, 1) == tuple(nodes)


def test_a_recording_can_be_stretched():
    recording = ClusterRecording((), (stay("first", 1, 10, 20),))
    assert stretched(recording, 2.5) == ClusterRecording((), (stay("first", 1, 10, 35),))
    assert stretched(recording, 1) is recording


@pytest.mark.parametrize("leave", list(Leave))
def test_a_recording_of_nobody_is_over_at_once(leave):
    result = run(leave=leave)
    assert (result.arrivals, result.start, result.end, result.series(10)) == (0, 0, 0, ())
    assert replace(result.use()) == result.most()
