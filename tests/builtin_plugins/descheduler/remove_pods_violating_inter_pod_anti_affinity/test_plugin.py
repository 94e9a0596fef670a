from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster

from ..deschedule import cycle, evicted, faults, node, pod

NAME = "RemovePodsViolatingInterPodAntiAffinity"
NODES = node("a", zone="x"), node("b", zone="x"), node("c", zone="y")


def avoids(app, key="name", **term):
    terms = [{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **term}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def app(name, on="a", of="web", **more):
    return pod(name, on, labels={"app": of}, **more)


def run(*objects, args=None, **given):
    return evicted(NAME, args or {}, *NODES, *objects, **given)


def test_the_pod_that_declares_the_term_goes_and_its_partner_stays():
    found = cycle(NAME, {}, *NODES, app("web", **avoids("db")), app("db", of="db"))
    assert [(pod, of.reason) for pod, _, of in found.evicted] == [("d/web", "it avoids a pod that has the same name")]


def test_after_an_eviction_the_others_may_violate_nothing_any_more():
    assert run(*(app(name, **avoids("web")) for name in ("one", "two", "three"))) == ["one", "two"]


def test_the_lowest_priority_goes_first_and_none_is_lower_than_any():
    pods = [
        app("high", priority=5, **avoids("web")), app("low", priority=-3, **avoids("web")),
        app("none", **avoids("web")),
    ]
    assert run(*pods) == ["none", "low"]


def test_among_equals_best_effort_goes_first_and_a_pinned_pod_last():
    rule = avoids("web")
    best = app("best-effort", status={"qosClass": "BestEffort"}, **rule)
    pinned = app("pinned", **rule)
    pinned["metadata"]["annotations"] = {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}
    assert run(pinned, app("plain", **rule), best) == ["best-effort", "plain"]


@pytest.mark.parametrize(("key", "on", "gone"), [
    ("zone", "b", True), ("zone", "c", False), ("name", "b", False), ("rack", "a", True), ("rack", "b", False),
])
def test_a_domain_is_a_value_of_the_key_or_a_node_that_lacks_it(key, on, gone):
    assert run(app("it", **avoids("db", key)), app("db", on, of="db")) == ["it"] * gone


@pytest.mark.parametrize(("other", "gone"), [
    (app("it", of="db", namespace="e"), False), (app("db", of="db", namespace="e"), True),
    (app("db", of="db"), False), (app("db", of="db", namespace="e", status={"phase": "Succeeded"}), False),
])
def test_other_namespaces_count_where_the_term_names_them_but_a_pod_of_the_same_name_never(other, gone):
    assert run(app("it", **avoids("db", namespaces=["e"])), other) == ["it"] * gone


def test_a_pod_that_is_not_selected_is_no_conflict_either():
    pods = app("it", **avoids("db", namespaces=["d", "e"])), app("db", of="db", namespace="e")
    assert run(*pods) == ["it"]
    assert run(*pods, args={"namespaces": {"exclude": ["e"]}}) == []
    assert run(*pods, args={"labelSelector": {"matchLabels": {"app": "web"}}}) == []
    assert run(*pods, args={"labelSelector": {"matchLabels": {"app": "db"}}}) == []


def test_a_veto_keeps_the_pod_and_its_partner_still_violates():
    bare = app("bare", kind="", **avoids("web"))
    found = cycle(NAME, {}, *NODES, bare, app("it", **avoids("web")))
    assert ([each.pod for each in found.evicted], [each.pod for each in found.staying]) == (["d/it"], ["d/bare"])


def test_what_another_plugin_evicts_in_the_same_cycle_is_no_conflict():
    old = app("old", of="db", status={"phase": "Running"})
    assert run(app("it", created="2026-01-01T12:00:00Z", **avoids("db")), old, before=("PodLifeTime",)) == ["old"]


def test_pods_that_come_and_go_between_cycles_are_seen():
    cluster = Cluster([*NODES, app("it", **avoids("db"))])
    assert run(cluster=cluster) == []
    cluster.upsert(app("db", of="db"))
    assert run(cluster=cluster) == ["it"]
    cluster.upsert(app("db", of="other"))
    assert run(cluster=cluster) == []


def test_faults_of_arguments_are_reported():
    assert faults(NAME, {"namespaces": {"include": ["a"], "exclude": ["b"]}}) == [
        "namespaces: only one of Include/Exclude namespaces can be set",
    ]
