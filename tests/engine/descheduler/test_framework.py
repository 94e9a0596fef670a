from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.framework import (
    TOO_SMALL,
    DeschedulerProfileSpec,
    EvictionLimiter,
    EvictionLimits,
    aggregate,
    build_profiles,
    run_cycle,
)
from koordpolicy.engine.framework.points import Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.plugin import python_plugin

from .conftest import evicted, kept, node, pod


class Everyone:
    """Evicts all pods of its nodes that no filter keeps."""

    log: list[str] = []  # noqa: RUF012 - one test, one log

    def __init__(self, args, handle):
        self.args = args

    def deschedule(self, snapshot, rows, evictor):
        self.log.append("deschedule")
        self._all(snapshot, rows, evictor)

    def balance(self, snapshot, rows, evictor):
        self.log.append("balance")
        self._all(snapshot, rows, evictor)

    def _all(self, snapshot, rows, evictor):
        if self.args.get("fail"):
            raise RuntimeError("no way")
        for row in rows:
            for each in snapshot.pods(row):
                if evictor.filter(each) is None and evictor.pre_eviction_filter(each) is None:
                    evictor.evict(each, "because", rule="all")


class KeepsWeb:
    def __init__(self, args, handle):
        pass

    def eviction_filter(self, pod, snapshot):
        if pod.name == "broken":
            raise RuntimeError("cannot tell")
        return Refusal("web", "web stays") if pod.name == "web" else None


REGISTRY = Registry.of([
    *PLUGINS, python_plugin("Everyone", Framework.DESCHEDULER, Everyone),
    python_plugin("Second", Framework.DESCHEDULER, Everyone),
    python_plugin("KeepsWeb", Framework.DESCHEDULER, KeepsWeb, points=[Point.EVICTION_FILTER]),
], generation=7)
OBJECTS = [node("a"), node("b"), pod("web", "a"), pod("x", "a"), pod("y", "a"), pod("z", "b", namespace="e")]


def run(*specs: DeschedulerProfileSpec, objects=OBJECTS, **given):
    Everyone.log.clear()
    return run_cycle(build_profiles(specs, REGISTRY, dry_run=True), Cluster(objects).snapshot(), generation=7, **given)


def test_every_candidate_says_what_would_evict_it_or_what_stopped_it():
    result = run(
        DeschedulerProfileSpec("p", balance=("Everyone",), filter=("KeepsWeb",)),
        limits=EvictionLimits(per_node=1, total=5),
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


def test_limits_count_nodes_namespaces_and_all():
    limiter = EvictionLimiter(EvictionLimits(per_node=2, per_namespace=3, total=4))
    answers = []
    for on, namespace in (("a", "x"), ("a", "x"), ("a", "x"), ("b", "x"), ("c", "x"), ("", "y"), ("", "z")):
        answers.append(limiter.refusal(on, namespace))
        if not answers[-1]:
            limiter.done(on, namespace)
    assert answers == [
        "", "", "at most 2 pods of one node per cycle", "", "at most 3 pods of one namespace per cycle", "",
        "at most 4 pods per cycle",
    ]
    assert EvictionLimiter(EvictionLimits(total=0)).refusal("a", "x") == "at most 0 pods per cycle"


def test_every_fault_of_every_profile_is_told_at_once():
    with pytest.raises(PolicyError) as caught:
        build_profiles([
            DeschedulerProfileSpec(
                "p", balance=("LowNodeLoda", "KeepsWeb"), deschedule=("Everyone", "Everyone"),
                disabled=frozenset({"Secnd", "*", "Second"}), args={"LowNodeLoda": {}, "Everone": {}, "Second": {}},
            ),
            DeschedulerProfileSpec(
                "p", evict=("MigrationController",), args={"LowNodeLoad": {"numberOfNodes": -1}},
                balance=("LowNodeLoad",),
            ),
            DeschedulerProfileSpec("", evict=("MigrationController", "DefaultEvictor")),
        ], REGISTRY, dry_run=False)
    assert [(problem.message, problem.help) for problem in caught.value.problems] == [
        ("descheduler name is needed", "give each profile a `name`"),
        ("duplicate profile with descheduler name `p`", ""),
        (
            "profile ``: plugin `DefaultEvictor` does not extend EvictPlugin plugin",
            "evictions are not available yet, but dry runs are",
        ),
        ("profile ``: plugin `MigrationController` does not extend EvictPlugin plugin",
         "evictions are not available yet, but dry runs are"),
        ("profile `p`: BalancePlugin `LowNodeLoda` does not exist", "did you mean `LowNodeLoad`?"),
        ("profile `p`: initializing plugin `LowNodeLoad`: numberOfNodes: must be greater than or equal to 0", ""),
        ("profile `p`: it disables the plugin `Secnd`, which does not exist", "did you mean `Second`?"),
        ("profile `p`: it has arguments for the plugin `Everone`, which does not exist", "did you mean `Everyone`?"),
        ("profile `p`: no evict plugin is enabled", ""),
        ("profile `p`: plugin `Everyone` already registered as `DeschedulePlugin`", ""),
        ("profile `p`: plugin `KeepsWeb` does not extend BalancePlugin plugin", ""),
        ("profile `p`: plugin `MigrationController` does not extend EvictPlugin plugin",
         "evictions are not available yet, but dry runs are"),
    ]


def test_errors_are_told_together_and_each_once():
    assert [aggregate(each) for each in ([], ["a"], ["a", "b", "a"])] == ["", "a", "[a, b]"]


def test_a_plugin_is_given_the_profile_the_cluster_and_the_moment():
    seen = []

    class Asks:
        def __init__(self, args, handle):
            self.handle = handle

        def balance(self, snapshot, rows, evictor):
            handle = self.handle
            seen.append((handle.profile, handle.snapshot().names, handle.now(), handle.log.name))

    registry = Registry.of([python_plugin("Asks", Framework.DESCHEDULER, Asks)], generation=1)
    snapshot = Cluster(OBJECTS).snapshot(7)
    profiles = build_profiles(
        [DeschedulerProfileSpec("p", balance=("Asks",))], registry, dry_run=True, snapshot=lambda: snapshot,
    )
    run_cycle(profiles, snapshot)
    assert seen == [("p", ["a", "b"], 7, "koordpolicy.descheduler.p")]
