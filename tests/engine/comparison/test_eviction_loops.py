"""Loops between a descheduler and a scheduler: each case is one that was reported, in `eviction_loops/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.placements import SchedulerPlacements
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.successors import successor_of, with_successor, without_pods
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings

from .loop_cluster import BEGIN, LoopCluster, registry_of, run_cycles

CASES = sorted((Path(__file__).parent / "eviction_loops").glob("*.yaml"))
CYCLES = 4


def case_of(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return case


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_evicts_for_ever_without_a_proof_settles_in_two_cycles_with_it(path: Path):
    case = case_of(path)
    assert all(len(result.evicted) for result in run_cycles(case, CYCLES, proof="Off"))
    assert [len(result.evicted) for result in run_cycles(case, CYCLES, proof="Enforce")[2:]] == [0] * (CYCLES - 2)


def test_each_group_of_issues_has_two_cases_that_name_theirs():
    groups = [case_of(path) for path in CASES]
    count = {group: sum(case["group"] == group for case in groups) for group in ("G14", "G15", "G16", "G17")}
    assert (min(count.values()) >= 2, len(groups) >= 10) == (True, True)
    assert all("#" in case["issue"] and case["about"] for case in groups)


def loop_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return the message of the first pod that stays in a case, and its loop."""
    return loop_in(case_of(next(path for path in CASES if path.stem == name)))


def loop_in(case: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    result = run_cycles(case, 1, proof="Enforce")[0]
    kept = next(each for each in result.staying if each.decision.stopped_by == "proof")
    assert kept.decision.proof is not None
    assert kept.decision.proof.loop is not None
    return kept.decision.message, kept.decision.proof.loop.to_json()


def test_a_loop_names_what_evicts_and_the_scorer_that_brings_the_pod_back():
    message, loop = loop_of("g16-scheduler-packs")
    assert message == (
        "shop/web-1 would come back to a: drain-hot (movable) evicts from it, and profile default-scheduler prefers it "
        "by fullest-first (50 there, 10 on b, weight 50)")
    assert loop == {
        "pod": "shop/web-1", "node": "a", "sameNode": True, "evictedBy": "drain-hot (movable)",
        "profile": "default-scheduler",
        "preferredBy": [{"plugin": "fullest-first", "weight": 50, "score": 50, "other": "b", "otherScore": 10}],
    }


def test_a_loop_says_how_many_of_its_scorers_it_does_not_name():
    case = case_of(next(path for path in CASES if path.stem == "g16-scheduler-packs"))
    scorer = case["scheduler"]
    for number, (named, left_out) in ((5, (5, None)), (7, (5, 2))):
        case["scheduler"] = "---\n".join(scorer.replace("fullest-first", f"f{each}") for each in range(number))
        message, loop = loop_in(case)
        assert (len(loop["preferredBy"]), loop.get("preferredByLeftOut")) == (named, left_out)
        assert message.endswith(" and 2 more") == (left_out == 2)


def test_a_loop_names_the_filters_that_leave_no_other_node():
    message, loop = loop_of("g16-soft-taint")
    assert message == (
        "shop/web-1 would come back to a: RemovePodsViolatingNodeTaints evicts from it, and profile default-scheduler "
        "takes it on no other node (1 NodeResourcesFit: Insufficient cpu)")
    assert loop["refused"] == {"NodeResourcesFit: Insufficient cpu": 1}


def test_a_loop_names_the_node_that_would_be_cleared_next():
    message, loop = loop_of("g14-another-node-becomes-hot")
    why = "node is overutilized, node cpu usage(70.00%)>threshold(65.00%)"
    assert message == f"shop/big-1 would run on b, which LowNodeLoad (highThresholds) would clear next: {why}"
    assert (loop["sameNode"], loop["node"], loop["cleared"]) == (False, "b", why)


def test_the_fewest_pods_leave_where_the_document_has_no_order():
    case = {
        "nodes": {"a": {}, "b": {}}, "documents": drain(70),
        "pods": [{"name": name, "usage": usage, "on": ["a"]} for name, usage in (
            ("base", 5_000), ("small", 200), ("tiny", 100), ("large", 2_000), ("right", 1_400),
        )],
    }
    result = run_cycles(case, 1, proof="Enforce")[0]
    assert [each.pod for each in result.evicted] == ["shop/large-1"]
    assert len(run_cycles(case, 1, proof="Off")[0].evicted) == 3


def test_a_pod_that_fits_nowhere_stays_with_the_reasons_of_the_nodes():
    case = {
        "nodes": {"a": {"labels": {"zone": "old"}}, "b": {}, "c": {}}, "documents": drain(60),
        "pods": [{"name": "lost", "usage": 7_000, "on": ["a"], "spec": {"nodeSelector": {"zone": "new"}}}],
    }
    kept = run_cycles(case, 1, proof="Enforce")[0].staying[0]
    assert (kept.decision.stopped_by, kept.decision.stopped_rule) == ("proof", "noNode")
    reasons = {"NodeAffinity: node(s) didn't match Pod's node affinity/selector": 3}
    assert kept.decision.proof is not None
    assert kept.decision.proof.reasons == reasons
    assert kept.decision.message == ("profile default-scheduler finds no node for its successor: "
                            "3 NodeAffinity: node(s) didn't match Pod's node affinity/selector")


def test_an_eviction_that_brings_an_earlier_pod_back_is_a_loop():
    # The first successor goes to b. If the other pod leaves too, a is the emptiest node, and the first one returns.
    case = {
        "nodes": {"a": {}, "b": {}}, "documents": drain(30),
        "pods": [
            {"name": "first", "usage": 1_600, "requests": 1, "on": ["a"]},
            {"name": "second", "usage": 1_600, "requests": 4, "on": ["a"]},
            {"name": "other", "usage": 100, "requests": 2, "on": ["b"]},
        ],
    }
    result = run_cycles(case, 1, proof="Enforce")[0]
    assert [(each.pod, each.node) for each in result.evicted] == [("shop/first-1", "a")]


def drain(percent: int) -> str:
    return f"""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {{name: drain-hot}}
spec:
  type: Balance
  nodes: {{source: "usage.cpu * 100 / allocatable.cpu > {percent}"}}
  until: usage.cpu * 100 / allocatable.cpu <= {percent}
  criteria: [{{name: movable, expression: "pod.metadata.labels.app != 'base'"}}]
"""


@st.composite
def _loads(draw: st.DrawFn) -> dict[str, Any]:
    names = ["a", "b", "c"]
    pods = draw(st.lists(st.tuples(
        st.integers(1, 40), st.integers(1, 30), st.sampled_from(names), st.sampled_from([None, *names]),
    ), min_size=1, max_size=7))
    return {
        "nodes": {name: {} for name in names},
        "pods": [
            {"name": f"w{number}", "usage": usage * 100, "requests": f"{requests}00m", "on": [node],
             "spec": {} if pinned is None else {"nodeSelector": {"kubernetes.io/hostname": pinned}}}
            for number, (usage, requests, node, pinned) in enumerate(pods)
        ],
    }


REGISTRY = registry_of(drain(50))
PROFILES = build_profiles(config.read_plain({"profiles": [{"plugins": {
    point: {"disabled": [{"name": "MigrationController"}]} for point in ("evict", "filter")}}]}).profiles,
    REGISTRY, dry_run=True)


@given(_loads())
@settings(max_examples=25)
def test_no_evicted_pod_would_be_placed_on_its_old_node(case: dict[str, Any]):
    cluster = Cluster(list(LoopCluster.of(case).objects()))
    scheduler = Scheduler(cluster, Live(REGISTRY), Settings(), clock=lambda: BEGIN)
    placements, snapshot = SchedulerPlacements(scheduler), cluster.snapshot(BEGIN)
    result = run_cycle(PROFILES, snapshot, proving=Proving(placements))
    assert {of.proof.effect for _, _, of in result.outcomes if of.proof is not None} <= {Proof.ENFORCE}
    pods = [pod for each in result.evicted if (pod := cluster.pod(each.pod)) is not None]
    overlay = without_pods(snapshot, pods)
    for pod in pods:
        successor = successor_of(pod, BEGIN)
        landing = placements.place(successor, overlay, home=pod.node_name, avoids_home=False)
        assert landing is not None
        assert landing.node not in ("", pod.node_name)
        overlay = with_successor(overlay, successor, landing.node, None)
    scheduler.close()
