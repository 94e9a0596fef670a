from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.framework import TOO_SMALL, aggregate, run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles

from .conftest import evicted, kept, node, pod
from .fake_plugins import OBJECTS, REGISTRY, Everyone


def run(*specs: DeschedulerProfileSpec, objects=OBJECTS, **given):
    Everyone.log.clear()
    return run_cycle(build_profiles(specs, REGISTRY, dry_run=True), Cluster(objects).snapshot(), generation=7, **given)


def test_every_candidate_says_what_would_evict_it_or_what_stopped_it():
    result = run(
        DeschedulerProfileSpec("p", balance=("Everyone",), filter=("KeepsWeb",)),
        limits=CycleLimits(per_node=1, total=5),
        objects=[*OBJECTS, pod("broken", "b")],
    )
    assert result.to_json() == {
        "generation": 7, "dryRun": True, "nodes": 2,
        "evicted": [
            {
                "pod": "d/x", "node": "a", "profile": "p", "plugin": "Everyone", "evicted": True, "rule": "all",
                "reason": "because",
            },
            {
                "pod": "e/z", "node": "b", "profile": "p", "plugin": "Everyone", "evicted": True, "rule": "all",
                "reason": "because",
            },
        ],
        "kept": [
            {
                "pod": "d/web", "node": "a", "profile": "p", "plugin": "Everyone", "evicted": False,
                "stoppedBy": "KeepsWeb", "stoppedRule": "web", "message": "web stays",
            },
            {"pod": "d/y", "node": "a", "profile": "p", "plugin": "Everyone", "evicted": False, "rule": "all",
             "stoppedBy": "limits", "message": "at most 1 pods of one node per cycle"},
            {
                "pod": "d/broken", "node": "b", "profile": "p", "plugin": "Everyone", "evicted": False,
                "stoppedBy": "KeepsWeb", "stoppedRule": "error", "message": "cannot tell",
            },
        ],
        "failures": [{"profile": "p", "plugin": "KeepsWeb", "subject": "d/broken", "message": "cannot tell"}],
        "nodeNotes": [],
    }


def test_an_answer_that_is_no_refusal_is_the_fault_of_the_filter_and_keeps_the_pod():
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone",), filter=("Babbles",), args={"Babbles": {"veto": True}})
    result = run(spec)
    message = "the answer must be a refusal or None, not bool"
    assert ([each.to_json() for each in result.failures], evicted(result), result.error) == ([
        {"profile": "p", "plugin": "Babbles", "subject": key, "message": message}
        for key in ("d/web", "d/x", "d/y", "e/z")
    ], [], "")
    assert {(each.stopped_by, each.stopped_rule, each.message) for each in result.kept} == {
        ("Babbles", "error", message)}


def test_an_eviction_that_raises_is_the_fault_of_the_evict_plugin_and_the_others_are_tried():
    profiles = build_profiles([DeschedulerProfileSpec("p", deschedule=("Everyone",), evict=("Babbles",))], REGISTRY,
                              dry_run=False)
    result = run_cycle(profiles, Cluster(OBJECTS).snapshot(), dry_run=False)
    assert ([each.to_json() for each in result.failures], result.error) == ([
        {"profile": "p", "plugin": "Babbles", "rule": "all", "subject": key, "message": "the API server is away"}
        for key in ("d/web", "d/x", "d/y", "e/z")
    ], "")
    assert {(each.stopped_by, each.message) for each in result.kept} == {("Babbles", "the eviction failed")}


def test_all_deschedule_plugins_of_all_profiles_run_before_any_balance_plugin():
    run(
        DeschedulerProfileSpec("p", deschedule=("Everyone",), balance=("Second",)),
        DeschedulerProfileSpec("q", deschedule=("Everyone",)),
    )
    assert Everyone.log == ["deschedule", "deschedule", "balance"]


def test_a_failing_plugin_stops_no_other_of_its_profile_but_the_cycle_after_it():
    spec = DeschedulerProfileSpec(
        "p", deschedule=("Everyone", "Second"), balance=("Second",), args={"Everyone": {"fail": True}},
    )
    result = run(spec, DeschedulerProfileSpec("q", deschedule=("Second",)))
    assert (Everyone.log, result.error, evicted(result)) == (
        ["deschedule", "deschedule"], "no way", ["web", "x", "y", "z"],
    )


def test_a_pod_is_evicted_once_per_cycle():
    result = run(DeschedulerProfileSpec("p", balance=("Everyone", "Second")))
    assert (evicted(result), set(kept(result).values())) == (["web", "x", "y", "z"], {("Everyone", "evicted")})


def test_nodes_that_are_not_ready_or_not_selected_are_none_of_its_business():
    objects = [*OBJECTS, node("c", ready="Unknown"), node("e", unschedulable=True), pod("u", "c"), pod("v", "e")]
    everyone = DeschedulerProfileSpec("p", balance=("Everyone",))
    assert evicted(run(everyone, objects=objects)) == ["web", "x", "y", "z", "v"]
    only = {"matchLabels": {"name": "b"}}
    assert evicted(run(DeschedulerProfileSpec("p", only, balance=("Everyone",)), objects=objects)) == ["z"]
    assert run(everyone, objects=objects, node_selector=only).error == TOO_SMALL


def test_a_cluster_of_one_node_is_left_alone():
    result = run(DeschedulerProfileSpec("p", balance=("Everyone",)), objects=[node("a"), pod("x", "a")])
    assert (result.outcomes, result.error) == ((), TOO_SMALL)


def test_errors_are_told_together_and_each_once():
    assert [aggregate(each) for each in ([], ["a"], ["a", "b", "a"])] == ["", "a", "[a, b]"]
