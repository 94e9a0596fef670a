from __future__ import annotations

from dataclasses import replace

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.background import BackgroundEvictions
from koordpolicy.engine.descheduler.framework import TOO_SMALL, aggregate, run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.own_facts import IN_PROGRESS, REQUEST_ONLY
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.workload_limits import WorkloadLimits
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.plugin import EvictionChoice, EvictionMode, EvictionResult, Framework, Point, python_plugin

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
             "stoppedBy": "limits", "message": "at most 1 pod of one node per cycle"},
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
    decisions = [each.decision for each in result.staying]
    assert {(each.stopped_by, each.stopped_rule, each.message) for each in decisions} == {
        ("Babbles", "error", message)}


def test_an_eviction_that_raises_is_the_fault_of_the_evict_plugin_and_the_others_are_tried():
    profiles = build_profiles([DeschedulerProfileSpec("p", deschedule=("Everyone",), evict=("Babbles",))], REGISTRY,
                              dry_run=False)
    result = run_cycle(profiles, Cluster(OBJECTS).snapshot(), dry_run=False)
    assert ([each.to_json() for each in result.failures], result.error) == ([
        {"profile": "p", "plugin": "Babbles", "rule": "all", "subject": key, "message": "the API server is away"}
        for key in ("d/web", "d/x", "d/y", "e/z")
    ], "")
    assert {(of.stopped_by, of.message) for _, _, of in result.staying} == {("Babbles", "the eviction failed")}


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


class Server:
    """Evicts with options; a mover takes the pod `x`."""

    eviction_modes = frozenset({EvictionMode.EVICTION, EvictionMode.DELETE})

    def __init__(self, args, handle):
        self.calls = []

    def evict_with_options(self, pod, options):
        self.calls.append((pod.name, options))
        return EvictionResult.REQUESTED if pod.name == "x" else pod.name != "y"


class Chooses:
    """Chooses a mode by the name of the pod."""

    def __init__(self, args, handle):
        pass

    def eviction_filter(self, pod, snapshot):
        return None

    def choose_eviction(self, pod, snapshot):
        if pod.name == "y":
            raise ValueError("no choice")
        return EvictionChoice(EvictionMode.SOFT_EVICTION if pod.name == "z" else EvictionMode.DELETE, 30)


def serve(*specs, objects=OBJECTS, extra=(), **given):
    server = Server({}, None)
    registry = Registry.of([
        *REGISTRY.plugins.values(), *extra,
        python_plugin("Server", Framework.DESCHEDULER, lambda *_: server, points=[Point.EVICTION_FILTER]),
        python_plugin("Chooses", Framework.DESCHEDULER, Chooses, points=[Point.EVICTION_FILTER]),
    ], generation=1)
    profiles = build_profiles(specs, registry, dry_run=False)
    return server, run_cycle(profiles, Cluster(objects).snapshot(), dry_run=False, **given)


def test_a_requested_eviction_counts_against_limits_and_is_not_requested_again():
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone", "Second"), evict=("Server",))
    background = BackgroundEvictions()
    server, result = serve(spec, limits=CycleLimits(total=2), background=background)
    assert [(pod, options.plugin, options.reason, options.rule) for pod, options in server.calls] == [
        ("web", "Everyone", "because", "all"), ("x", "Everyone", "because", "all")]
    assert (evicted(result), [(each.pod, each.decision.message) for each in result.requested]) == (
        ["web"], [("d/x", "another component removes it")])
    assert {of.message for _, _, of in result.staying} == {"at most 2 pods per cycle", "evicted already in this cycle"}
    server, result = serve(spec, limits=CycleLimits(total=2), background=background)
    assert [pod for pod, _ in server.calls] == ["web"]
    assert [(pod, of.message) for pod, _, of in result.requested] == [("d/x", "another component moves it already")]


def test_a_pod_whose_eviction_is_in_progress_counts_from_the_start_of_the_cycle():
    moving = pod("v", "b", metadata={"annotations": {REQUEST_ONLY: "", IN_PROGRESS: ""}})
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone",), evict=("Server",))
    server, result = serve(spec, objects=[*OBJECTS, moving], limits=CycleLimits(per_node=1))
    assert [each for each, _ in server.calls] == ["web"]
    assert [each.pod for each in result.requested] == ["d/v"]


def test_a_pod_that_moves_in_background_and_terminates_counts_once_against_the_limits_of_its_workload():
    owner = [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
    moving = pod("v", "b", metadata={"annotations": {REQUEST_ONLY: "", IN_PROGRESS: ""}, "ownerReferences": owner,
                                     "deletionTimestamp": "2026-01-01T11:00:00Z"})
    other = pod("web", "a", metadata={"ownerReferences": owner})
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone",), evict=("Server",))
    objects = [node("a"), node("b"), moving, other]
    for most, found in ((1, []), (2, ["web"])):
        server, _ = serve(spec, objects=objects, limits=CycleLimits(workloads=WorkloadLimits(per_owner=most)))
        assert [each for each, _ in server.calls] == found


def test_a_requested_eviction_is_forgotten_after_ten_minutes_and_when_its_pod_is_another_one():
    now = 10_000 * 1_000_000_000
    background, cluster = BackgroundEvictions(), Cluster(OBJECTS)
    pods = {each.name: each for each in cluster.snapshot(now).pods(0)}
    background.request(pods["x"], now)
    background.request(replace(pods["y"], uid="former"), now)

    def names(seconds):
        return [each.name for each in background.pods(cluster.snapshot(now + seconds * 1_000_000_000))]

    assert [names(0), names(599), names(600), names(0)] == [["x"], ["x"], [], []]


def test_filters_choose_the_mode_and_a_mode_that_nobody_carries_out_keeps_the_pod():
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone",), filter=("Chooses",), evict=("Server",))
    server, result = serve(spec)
    assert [(name, options.choice) for name, options in server.calls] == [
        ("web", EvictionChoice(EvictionMode.DELETE, 30)), ("x", EvictionChoice(EvictionMode.DELETE, 30))]
    assert [(each.pod, each.decision.mode) for each in result.evicted] == [("d/web", "Delete")]
    assert [(pod, of.stopped_by, of.stopped_rule, of.message) for pod, _, of in result.staying] == [
        ("d/y", "Chooses", "eviction", "no choice"),
        ("e/z", "Server", "eviction", "it cannot evict by `SoftEviction`, only by Delete, Eviction"),
    ]
    result = run(DeschedulerProfileSpec("p", deschedule=("Everyone",), filter=("KeepsWeb",), evict=("Babbles",)))
    assert evicted(result) == ["x", "y", "z"]


def test_the_profile_has_a_grace_period_for_pods_for_which_no_filter_chooses_one():
    spec = DeschedulerProfileSpec("p", deschedule=("Everyone",), evict=("Server",), grace_period_s=5,
                                  reports_failures=True)
    server, _ = serve(spec, objects=OBJECTS[:3])
    assert [(options.choice, options.reports_failure) for _, options in server.calls] == [
        (EvictionChoice(grace_period_s=5), True)]
