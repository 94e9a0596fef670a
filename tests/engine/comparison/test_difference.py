from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.difference import ChangeBudget, Difference, difference, spend
from koordpolicy.engine.comparison.eligibility import Cause
from koordpolicy.engine.comparison.outcome import outcome
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source
from tests.output_schemas import check_part

from .conftest import NOW, Policies, document, metric, node, pod

NONE = {
    "moved": 0, "nowPending": 0, "nowPlaced": 0, "nodesLost": 0, "nodesGained": 0, "nowMisfits": 0, "noMisfits": 0,
    "nowEvicted": 0, "notEvicted": 0, "nowSuppressed": 0, "notSuppressed": 0, "otherBounds": 0, "otherBestNode": 0,
    "totalsChanged": 0, "newFaults": 0, "goneFaults": 0,
}


def zone(name: str, expression: str, more: str = "") -> str:
    return document(name, f"{more}\nfilter: [{{name: rule, expression: '{expression}', message: not there}}]")


def compare(old: Registry, new: Registry, cluster: Cluster) -> Difference:
    return difference(outcome(old, cluster, now=NOW), outcome(new, cluster, now=NOW))


def changed(found: Difference) -> dict[str, int]:
    return {name: count for name, count in found.counts.items() if count}


def test_the_same_policies_change_nothing(policies: Policies, cluster: Cluster):
    found = compare(policies(zone("a", "true")), policies(zone("a", "true")), cluster)
    assert (found.counts, found.nothing) == (NONE, True)


def test_who_moves_and_who_waits_is_told_with_the_rule(policies: Policies, cluster: Cluster):
    found = compare(policies(), policies(zone("not-cool", 'nodeInfo.name != "cool"')), cluster)
    cause = Cause("not-cool", "rule", "not there")
    assert [(each.pod, each.old, each.new, each.cause) for each in found.moved] == [
        ("shop/new-1", "cool", "hot", cause),
    ]
    assert [(each.pod, each.node, each.reasons) for each in found.added.waiting] == [
        ("shop/new-2", "hot", {"Insufficient cpu": 2, "not there": 1}),
    ]
    # The pod that is too large was refused there anyway, and the pod of the system is left alone.
    assert [(each.cause, each.pods, each.nodes, each.pairs) for each in found.added.refused] == [
        (cause, ("shop/new-1", "shop/new-2", "shop/new-3", "shop/web-1", "shop/web-2"), ("cool",), 5),
    ]
    assert [(each.pod, each.node) for each in found.added.misfits] == [("shop/web-1", "cool")]
    assert changed(found) == {"moved": 1, "nowPending": 1, "nodesLost": 1, "nowMisfits": 1, "otherBestNode": 5}


def test_what_went_is_told_as_what_came_the_other_way_round(policies: Policies, cluster: Cluster):
    strict, free = policies(zone("not-cool", 'nodeInfo.name != "cool"')), policies()
    forth, back = compare(free, strict, cluster), compare(strict, free, cluster)
    assert back.removed == forth.added
    assert back.added == forth.removed
    assert [(each.pod, each.old, each.new) for each in back.moved] == [("shop/new-1", "hot", "cool")]


def test_an_audited_rule_changes_nothing_and_what_it_would_refuse_is_told(policies: Policies, cluster: Cluster):
    found = compare(policies(), policies(zone("not-cool", 'nodeInfo.name != "cool"', "enforcement: Audit")), cluster)
    assert changed(found) == {}
    # new-1..3, web-1 and web-2: nobody is asked about a node for a pod that is too large for all of them.
    assert [(each.cause.plugin, each.old, each.new) for each in found.watched] == [("not-cool", 0, 5)]


def test_a_watched_veto_is_no_failure(policies: Policies, cluster: Cluster):
    def sets(enforcement: str) -> Registry:
        return policies(document("drain", """
type: Balance
nodes: {source: usage.cpu * 100 / allocatable.cpu > 50}
criteria: [{name: mine, expression: "podInfo.namespace == 'shop'", message: hot}]
""", kind="DeschedulerPlugin"), document("veto", f"""
type: EvictionFilter
enforcement: {enforcement}
criteria: [{{name: never, expression: "false", message: stay}}]
""", kind="DeschedulerPlugin"))

    found = compare(sets("Enforce"), sets("Audit"), cluster)
    assert [each.pod for each in found.added.evicted] == ["shop/web-2"]
    assert found.added.faults == ()


def test_scores_shift_by_plugin_and_in_all(policies: Policies, cluster: Cluster):
    def prefer(score: int, weight: int) -> Registry:
        return policies(document("prefer", f"""
weight: {weight}
score: [{{name: it, expression: "nodeInfo.name == 'hot' ? {score} : 10"}}]"""))

    found = compare(prefer(90, 1), prefer(10, 2), cluster)
    assert [(each.plugin, each.old and (each.old.weight, each.old.high), each.new and (each.new.weight, each.new.high))
            for each in found.rescored] == [("prefer", (1, 90), (2, 10))]
    # new-1..3 may go to `cool` and `hot`; web-1, web-2 and the agent to all three: +10 where it was 10, -70 on `hot`.
    assert (found.totals, found.totals_changed, found.mean_shift) == (2 + 3 + 3, 8, (3 * -70 + 5 * 10) / 8)
    assert [(each.pod, each.pods, each.old, each.new) for each in found.ranked] == [
        ("shop/new-1", 3, "hot", "cool"), ("shop/web-1", 2, "hot", "cool"), ("kube-system/agent", 1, "hot", "small"),
    ]


def test_kinds_of_pods_that_one_of_the_two_tells_apart_are_compared_pod_by_pod(policies: Policies, cluster: Cluster):
    by_name = zone("by-name", 'pod.metadata.name != "new-2"')
    found = compare(policies(), policies(by_name), cluster)
    assert [(each.pods, each.nodes) for each in found.added.refused] == [(("shop/new-2",), ("cool", "hot"))]
    assert [(each.pod, each.node) for each in found.added.waiting] == [("shop/new-2", "hot")]
    assert [(each.pod, each.node) for each in found.removed.waiting] == [("shop/new-3", "hot")]


def test_evictions_and_bounds_come_and_go(policies: Policies):
    def sets(percent: int, target: str) -> Registry:
        return policies(document("drain", f"""
type: Balance
nodes: {{source: usage.cpu * 100 / allocatable.cpu > {percent}}}
criteria: [{{name: mine, expression: "podInfo.namespace == 'shop'", message: it is hot}}]
limits: {{perNode: 1}}
""", kind="DeschedulerPlugin"), document("bound", f"""
interval: 1s
forEach: node
window: 10s
actions: [{{name: it, suppressCPU: {{target: {target}, policy: CFSQuota}}}}]
match: {{nodes: {{names: [hot]}}}}
""", kind="QoSPlugin"))

    nodes = [node("cool"), node("hot")]
    for each in nodes:
        each["status"]["capacity"] = {"cpu": "4"}
    best_effort = pod("batch", "0", "hot", labels={"koordinator.sh/qosClass": "BE"})
    cluster = Cluster([*nodes, metric("cool", "1"), metric("hot", "3"), best_effort])
    found = compare(sets(90, '"1500.0"'), sets(50, '"1000.0"'), cluster)
    assert [(each.pod, each.framework, each.plugin, each.rule, each.reason) for each in found.added.evicted] == [
        ("shop/batch", "descheduler", "drain", "mine", "it is hot"),
    ]
    assert [(each.node, each.old and each.old.values["target"], each.new and each.new.values["target"])
            for each in found.bounds] == [("hot", 1500, 1000)]
    assert changed(found) == {"nowEvicted": 1, "otherBounds": 1}
    assert changed(compare(policies(), sets(90, '"1500.0"'), cluster)) == {"nowSuppressed": 1}


def test_new_failures_are_told_apart_from_old_ones(policies: Policies, cluster: Cluster):
    broken = zone("broken", 'node.metadata.labels["zon"] == "a"')
    found = compare(policies(), policies(broken), cluster)
    assert [(each.plugin, each.rule, each.message) for each in found.added.faults] == [
        ("broken", "rule", "no such key: zon"),
    ]
    assert found.removed.faults == ()


def test_outcomes_of_different_clusters_are_not_compared(policies: Policies, cluster: Cluster):
    with pytest.raises(ValueError, match="different clusters or pods"):
        difference(outcome(policies(), cluster, now=NOW), outcome(policies(), Cluster([node("other")]), now=NOW))


@pytest.mark.parametrize(("text", "told"), [
    ("5", "5"), ("0", "0"), ("1%", "1%"), ("0.5%", "0.5%"), (" 10% ", "10%"), ("100%", "100%"),
])
def test_a_budget_is_a_number_or_a_share(text: str, told: str):
    assert str(ChangeBudget.parse(text)) == told


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", "1%%", "101%", "%", "1e9", "NaN", "1 %", "٣", "9" * 400])
def test_what_is_no_budget_is_refused(text: str):
    with pytest.raises(ValueError, match=r"budget|more than all"):
        ChangeBudget.parse(text)


def test_a_budget_is_spent_by_what_came_and_not_by_what_went(policies: Policies, cluster: Cluster):
    free, strict = policies(), policies(zone("not-cool", 'nodeInfo.name != "cool"'))
    budgets = {
        "moved": ChangeBudget.parse("25%"),
        "pending": ChangeBudget.parse("0"),
        "misfits": ChangeBudget.parse("30%"),
    }
    spent = {
        each.name: (each.count, each.whole, each.within) for each in spend(compare(free, strict, cluster), budgets)
    }
    assert spent == {
        "pods that change node": (1, 4, True), "pods that find no node any more": (1, 4, False),
        "running pods whose node would refuse them now": (1, 3, False),
    }
    assert all(each.within for each in spend(compare(strict, free, cluster), budgets))


@settings(max_examples=30, deadline=None)
@given(
    old=st.lists(st.sampled_from(("cool", "hot", "small")), unique=True),
    new=st.lists(st.sampled_from(("cool", "hot", "small")), unique=True), pods=st.integers(0, 4),
)
def test_what_is_lost_and_gained_is_what_the_rules_say(old: list[str], new: list[str], pods: int):

    def registry(off: list[str]) -> Registry:
        text = zone("off", f"!(nodeInfo.name in {off})".replace("'", '"'))
        return Registry.of(
            (*builtins(), *compile_documents(load([Source("p.yaml", text)], source_name="p"))), generation=1,
        )

    cluster = Cluster([node("cool"), node("hot"), node("small"), *(pod(f"new-{number}") for number in range(pods))])
    found = compare(registry(old), registry(new), cluster)
    lost, gained = (set(one) - set(other) if pods else set() for one, other in ((new, old), (old, new)))
    assert {name for each in found.added.refused for name in each.nodes} == lost
    assert {name for each in found.removed.refused for name in each.nodes} == gained
    assert sum(each.pairs for each in found.added.refused) == len(lost) * pods
    placed = {
        of: sum(each.node is not None for each in side.placements.values())
        for of, side in (("old", found.old), ("new", found.new))
    }
    assert placed["new"] - placed["old"] == len(found.removed.waiting) - len(found.added.waiting)


def draining(proof: str) -> list[str]:
    """A Balance document that clears `hot`, and a SchedulerPlugin that prefers it for pods."""
    return [document("drain", f"""
type: Balance
nodes: {{source: usage.cpu * 100 / allocatable.cpu > 50}}
criteria: [{{name: mine, expression: "podInfo.namespace == 'shop'", message: it is hot}}]
proof: "{proof}"
""", kind="DeschedulerPlugin"), document("pack", """
score: [{name: full, expression: "nodeInfo.name == 'hot' ? 100 : 0"}]
""")]


def proved(policies: Policies, proof: str, *, of: str = "1") -> Difference:
    cluster = Cluster([node("cool"), node("hot"), metric("cool", "1"), metric("hot", "3"), pod("web", of, "hot")])
    old = outcome(policies(*draining(proof)[1:]), cluster, now=NOW, proves=True)
    return difference(old, outcome(policies(*draining(proof)), cluster, now=NOW, proves=True, before=old))


LOOP = ("shop/web would come back to hot: drain (mine) evicts from it, and profile default-scheduler prefers it by "
        "pack (100 there, 0 on cool, weight 1)")


def test_an_eviction_that_would_not_help_is_told_with_both_policies(policies: Policies):
    found = proved(policies, "Enforce")
    assert (found.added.evicted, changed(found)) == ((), {})
    (stays,) = found.added.useless
    assert (stays.pod, stays.plugin, stays.proof and stays.proof.message) == ("shop/web", "drain", LOOP)
    plain = found.to_json()
    check_part("diff", "changes", plain["added"])
    (told,) = plain["added"]["useless"]
    assert (told["proof"]["result"], told["proof"]["effect"], told["proof"]["message"]) == ("loop", "Enforce", LOOP)
    assert plain["added"]["evicted"] == []


@pytest.mark.parametrize("proof", ["Warn", "Off"])
def test_an_eviction_that_is_made_all_the_same_has_its_proof(policies: Policies, proof: str):
    found = proved(policies, proof)
    assert (found.added.useless, changed(found)) == ((), {"nowEvicted": 1})
    (told,) = found.to_json()["added"]["evicted"]
    assert (told["pod"], told["proof"]["result"], told["proof"]["effect"]) == ("shop/web", "loop", proof)


def test_a_proof_that_depends_on_another_scheduler_is_made_anew(policies: Policies):
    cluster = Cluster([node("cool"), node("hot"), metric("cool", "1"), metric("hot", "3"), pod("web", "1", "hot")])
    drain, pack = draining("Enforce")
    away = pack.replace("== 'hot'", "== 'cool'")
    old = outcome(policies(drain, pack), cluster, now=NOW, proves=True)
    found = difference(old, outcome(policies(drain, away), cluster, now=NOW, proves=True, before=old))
    assert ([each.pod for each in found.added.evicted], [each.pod for each in found.removed.useless]) == (
        ["shop/web"], ["shop/web"],
    )
    assert found.to_json()["added"]["evicted"][0]["proof"]["result"] == "helps"


def test_without_a_known_scheduler_nothing_is_proved(policies: Policies):
    cluster = Cluster([node("cool"), node("hot"), metric("hot", "3"), pod("web", "1", "hot")])
    found = compare(policies(), policies(draining("Enforce")[0]), cluster)
    assert [(each.pod, each.proof) for each in found.added.evicted] == [("shop/web", None)]
    assert "proof" not in found.to_json()["added"]["evicted"][0]
