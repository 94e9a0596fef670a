from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Code, Point


def test_cordoned_nodes_take_only_pods_that_tolerate_that(kit):
    cluster = kit.cluster(kit.node("a", unschedulable=True), kit.node("b"))
    plugin = kit.make("NodeUnschedulable")
    assert kit.passed(plugin, kit.pod(), cluster) == ["b"]
    assert kit.reasons(plugin, kit.pod(), cluster) == {"node(s) were unschedulable": ["a"]}
    tolerant = kit.pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert kit.passed(plugin, tolerant, cluster) == ["a", "b"]


def test_an_uncordoned_node_takes_pods_again(kit):
    cluster = kit.cluster(kit.node("a", unschedulable=True), kit.node("b"))
    plugin = kit.make("NodeUnschedulable")
    assert kit.passed(plugin, kit.pod(), cluster) == ["b"]
    cluster.upsert(kit.node("a"))
    assert kit.passed(plugin, kit.pod(), cluster) == ["a", "b"]


def test_a_pod_that_names_its_node_runs_there_or_nowhere(kit):
    cluster, plugin = kit.cluster(kit.node("a"), kit.node("b")), kit.make("NodeName")
    assert kit.passed(plugin, kit.pod(), cluster) == ["a", "b"]
    assert kit.passed(plugin, kit.pod(nodeName="b"), cluster) == ["b"]
    assert kit.passed(plugin, kit.pod(nodeName="x"), cluster) == []


def taint(key, effect, value=""):
    return {"key": key, "effect": effect, "value": value}


@pytest.fixture
def tainted(kit):
    return kit.cluster(
        kit.node("a"), kit.node("b", taints=[taint("gpu", "NoSchedule", "yes")]),
        kit.node("c", taints=[taint("soft", "PreferNoSchedule")]),
        kit.node("d", taints=[taint("soft", "PreferNoSchedule"), taint("softer", "PreferNoSchedule")]),
    )


def test_taints_keep_pods_off_that_do_not_tolerate_them(kit, tainted):
    plugin = kit.make("TaintToleration")
    assert kit.passed(plugin, kit.pod(), tainted) == ["a", "c", "d"]
    refusal = kit.refusal(plugin, kit.pod(), tainted, "b")
    assert (refusal.message, refusal.code) == ("node(s) had untolerated taint(s)", Code.UNRESOLVABLE)
    assert refusal.values == (("taint", taint("gpu", "NoSchedule", "yes")),)
    assert kit.passed(plugin, kit.pod(tolerations=[{"key": "gpu", "value": "yes"}]), tainted) == ["a", "b", "c", "d"]
    assert kit.passed(plugin, kit.pod(tolerations=[{"key": "gpu", "value": "no"}]), tainted) == ["a", "c", "d"]


def test_nodes_with_different_taints_are_refused_for_one_reason(kit):
    cluster = kit.cluster(
        *(kit.node(f"n{number}", taints=[taint(f"k{number}", "NoExecute", "v")]) for number in range(3)),
    )
    assert kit.reasons(kit.make("TaintToleration"), kit.pod(), cluster) == {
        "node(s) had untolerated taint(s)": ["n0", "n1", "n2"],
    }


def test_soft_taints_that_come_later_are_seen(kit, tainted):
    plugin, cluster = kit.make("TaintToleration"), kit.cluster(kit.node("a"), kit.node("b"))
    assert plugin.cache_key(Point.SCORE, kit.pod(), cluster.snapshot()) is not None
    cluster.upsert(kit.node("b", taints=[{"key": "soft", "effect": "PreferNoSchedule"}]))
    assert plugin.cache_key(Point.SCORE, kit.pod(), cluster.snapshot()) is None


def test_soft_taints_cost_score_unless_they_are_tolerated(kit, tainted):
    plugin = kit.make("TaintToleration")
    assert kit.scores(plugin, kit.pod(), tainted) == {"a": 100, "b": 100, "c": 50, "d": 0}
    assert kit.scores(plugin, kit.pod(), tainted, "ac") == {"a": 100, "c": 0}
    tolerant = kit.pod(tolerations=[{"key": "softer", "operator": "Exists"}])
    assert kit.scores(plugin, tolerant, tainted) == {"a": 100, "b": 100, "c": 0, "d": 0}
    hard_only = kit.pod(tolerations=[{"operator": "Exists", "effect": "NoSchedule"}])
    assert kit.scores(plugin, hard_only, tainted) == {"a": 100, "b": 100, "c": 50, "d": 0}


@pytest.fixture
def labelled(kit):
    return kit.cluster(
        kit.node("a", labels={"zone": "x", "cores": "8"}), kit.node("b", labels={"zone": "y", "cores": "64"}),
        kit.node("c"),
    )


def require(*terms):
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}},
        },
    }


def expression(key, operator, *values, field="matchExpressions"):
    return {field: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(("spec", "names"), [
    ({}, ["a", "b", "c"]),
    ({"nodeSelector": {"zone": "x"}}, ["a"]),
    (require(expression("zone", "In", "x", "z")), ["a"]),
    (require(expression("zone", "NotIn", "x")), ["b", "c"]),
    (require(expression("zone", "Exists")), ["a", "b"]),
    (require(expression("zone", "DoesNotExist")), ["c"]),
    (require(expression("cores", "Gt", "8")), ["b"]),
    (require(expression("cores", "Lt", "9")), ["a"]),
    (require(expression("metadata.name", "In", "c", field="matchFields")), ["c"]),
    (require(expression("zone", "In", "x"), expression("zone", "In", "y")), ["a", "b"]),
    (require({}), []),
    ({"nodeSelector": {"zone": "y"}, **require(expression("zone", "In", "x"))}, []),
])
def test_node_selector_and_required_affinity_with_every_operator(kit, labelled, spec, names):
    assert kit.passed(kit.make("NodeAffinity"), kit.pod(**spec), labelled) == names


def test_a_label_that_changes_changes_the_answer(kit, labelled):
    plugin, pod = kit.make("NodeAffinity"), kit.pod(nodeSelector={"zone": "x"})
    assert kit.passed(plugin, pod, labelled) == ["a"]
    labelled.upsert(kit.node("c", labels={"zone": "x"}))
    assert kit.passed(plugin, pod, labelled) == ["a", "c"]


def test_preferred_terms_add_up_and_the_best_node_gets_100(kit, labelled):
    preferred = [
        {"weight": 30, "preference": expression("zone", "Exists")},
        {"weight": 10, "preference": expression("zone", "In", "y")},
        {"weight": 90, "preference": {}},
    ]
    pod = kit.pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})
    plugin = kit.make("NodeAffinity")
    assert kit.scores(plugin, pod, labelled) == {"a": 75, "b": 100, "c": 0}
    assert kit.scores(plugin, pod, labelled, "ac") == {"a": 100, "c": 0}
    assert kit.scores(plugin, kit.pod(), labelled) == {"a": 0, "b": 0, "c": 0}


def test_an_operator_that_there_is_not_is_an_error_of_that_pod_only(kit, labelled):
    with pytest.raises(ValueError, match="operator` is `Near`: write one of In, NotIn"):
        kit.passed(kit.make("NodeAffinity"), kit.pod(**require(expression("zone", "Near", "x"))), labelled)
