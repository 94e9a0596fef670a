from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.audit import audit
from koordpolicy.engine.comparison.audit_results import Audit
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from tests.output_schemas import faults_of

from .conftest import NOW, Policies, document, metric, node, pod


def rule(name: str, expression: str, more: str = "") -> str:
    return document(name, f"{more}\nfilter: [{{name: rule, expression: '{expression}', message: no}}]")


def told(found: Audit) -> list[tuple[str, str, str, str, str]]:
    return [(each.level.value, each.what.value, each.policy, each.rule, each.message) for each in found.findings]


def plain_cluster(nodes: int = 4, pods: int = 4) -> Cluster:
    return Cluster([
        *(node(f"n{number}", zone="ab"[number % 2]) for number in range(nodes)),
        *(pod(f"web-{number}", "1", f"n{number % nodes}", labels={"app": "web"}) for number in range(pods)),
    ])


def test_policies_that_do_their_work_are_not_complained_about(policies: Policies):
    found = audit(policies(
        rule("in-a", 'nodeInfo.zone == "a"'),
        document("prefer", 'score: [{name: it, expression: "nodeInfo.pods * 10"}]'),
    ), Cluster([node("x", zone="a"), node("y", zone="b"), pod("web-1", on="x")]), now=NOW)
    assert (found.findings, found.pods, found.nodes) == ((), 1, 2)
    assert [each.to_json() for each in found.policies] == [
        {
            "policy": "in-a", "framework": "scheduler", "enforcement": "Enforce", "origin": "policy.yaml:3",
            "active": True, "pods": 1, "nodes": 2, "exemptPods": 0,
            "rules": [{"rule": "rule", "point": "filter", "asked": 2, "refused": 1, "failed": 0, "stranded": 0}],
        },
        {
            "policy": "prefer", "framework": "scheduler", "enforcement": "Enforce", "origin": "policy.yaml:9",
            "active": True, "pods": 1, "nodes": 2, "exemptPods": 0,
            "rules": [{"rule": "it", "point": "score", "asked": 2, "refused": 0, "failed": 0, "stranded": 0}],
        },
    ]


def test_a_match_that_takes_nothing_is_told(policies: Policies):
    assert told(audit(policies(
        rule("no-pod", "false", "match: {pods: {namespaces: [shp]}}"),
        rule("no-node", "false", "match: {nodes: {labelSelector: {matchLabels: {zone: z}}}}"),
        rule("no-pair", "false", 'matchConditions: [{name: never, expression: "nodeInfo.zone == \'z\'"}]'),
    ), plain_cluster(), now=NOW)) == [
        ("warning", "matches-nothing", "no-node", "", "`match.nodes` takes none of 4 nodes"),
        ("warning", "matches-nothing", "no-pair", "", "`matchConditions` hold for no pod and node"),
        ("warning", "matches-nothing", "no-pod", "", "`match.pods` takes none of 4 pods"),
    ]


def test_pods_of_the_system_do_not_count_for_a_filter_that_leaves_them_alone(policies: Policies):
    cluster = Cluster([node("n"), pod("agent", on="n", namespace="kube-system"),
                       pod("critical", on="n", priorityClassName="system-cluster-critical")])
    assert told(audit(policies(rule("never", "false")), cluster, now=NOW)) == [
        (
            "warning", "matches-nothing", "never", "",
            "`match.pods` takes no pod but 2 pods of the system, which it leaves alone",
        ),
    ]
    named = "match: {pods: {namespaces: [kube-system]}}"
    assert [
        each[1] for each in told(audit(policies(rule("never", "false", named)), cluster, now=NOW))
    ] == ["refuses-everything"]


def test_a_match_that_takes_few_is_a_note(policies: Policies):
    found = audit(
        policies(rule("few", 'nodeInfo.name == "n1"', "match: {nodes: {names: [n0, n1]}}")), plain_cluster(300, 2),
        now=NOW,
    )
    assert told(found) == [("note", "matches-few", "few", "", "it is about 2 of 300 nodes")]
    # Both pods are told where they may run; more than a percent is not few.
    assert told(
        audit(
            policies(rule("few", 'nodeInfo.name == "n1"', "match: {nodes: {names: [n0, n1]}}")), plain_cluster(300, 2),
            now=NOW, few_percent=0.5,
        ),
    ) == []


def test_a_rule_that_refuses_everything_or_nothing_is_told(policies: Policies):
    assert told(audit(policies(rule("all", "false"), rule("none", "true")), plain_cluster(), now=NOW)) == [
        (
            "warning", "refuses-everything", "all", "rule",
            "it refuses all 16 pairs of a pod and a node that it is about",
        ),
        ("note", "refuses-nothing", "none", "rule", "it refuses none of 16 pairs of a pod and a node"),
    ]


def test_what_is_only_watched_refuses_nobody_anything_and_is_a_note(policies: Policies):
    assert told(audit(policies(rule("all", "false", "enforcement: Audit")), plain_cluster(), now=NOW)) == [
        ("note", "refuses-everything", "all", "rule",
         "it refuses all 16 pairs of a pod and a node that it is about (it is only watched: Audit)"),
    ]


def test_a_rule_is_evaluated_although_another_one_refuses_already(policies: Policies):
    two = document("two", """
filter:
- {name: first, expression: nodeInfo.zone == "a", message: no}
- {name: second, expression: nodeInfo.zone == "b", message: no}
""")
    found = audit(policies(two), plain_cluster(), now=NOW)
    assert [(use.name, use.evaluated, use.refused) for use in found.policies[0].rules] == [
        ("first", 16, 8), ("second", 16, 8),
    ]
    assert found.findings == ()


def test_pods_that_a_rule_leaves_no_node_are_named(policies: Policies):
    cluster = Cluster([node("n0", zone="a"), node("n1", zone="b"), pod("ok", on="n0", labels={"zone": "a"}),
                       *(pod(f"lost-{number}", labels={"zone": "z"}) for number in range(4))])
    found = audit(policies(rule("stay", 'nodeInfo.zone == pod.metadata.labels["zone"]')), cluster, now=NOW)
    assert told(found) == [("warning", "strands-pods", "stay", "rule", "it refuses every node to 4 pods of 5")]
    assert found.findings[0].examples == ("shop/lost-0", "shop/lost-1", "shop/lost-2")
    assert (found.findings[0].others, found.findings[0].to_json()["examplesLeftOut"]) == (1, 1)


def test_a_rule_that_fails_is_told_with_how_often(policies: Policies):
    cluster = Cluster([node("n0", zone="a"), node("n1"), pod("web", on="n0")])
    found = audit(policies(
        rule("sometimes", 'node.metadata.labels["zone"] == "a"'), rule("always", 'node.metadata.labels["zon"] == "a"'),
        document("score", 'score: [{name: it, expression: "int(node.metadata.labels[\'zone\'])"}]'),
    ), cluster, now=NOW)
    assert told(found) == [
        ("warning", "fails", "always", "rule", "it fails always: no such key: zon"),
        ("warning", "fails", "score", "it", "it fails always: type conversion error from 'string' to 'int'"),
        ("warning", "fails", "sometimes", "rule", "it fails 1 of 2 times: no such key: zone"),
        ("note", "refuses-nothing", "sometimes", "rule", "it refuses none of 2 pairs of a pod and a node"),
    ]


def test_a_policy_of_a_profile_that_no_pod_meets_is_never_active(policies: Policies):
    found = audit(policies(rule("packing-only", "true", "profiles: [packing]")), plain_cluster(), now=NOW)
    assert told(found) == [
        (
            "warning", "never-active", "packing-only", "",
            "it is active in no profile that is set up here, which decides about no pod",
        ),
    ]


def test_a_score_that_orders_nothing_is_told(policies: Policies):
    flat = document("flat", 'score: [{name: it, expression: "50"}]')
    assert told(audit(policies(flat), plain_cluster(), now=NOW)) == [
        ("warning", "constant-score", "flat", "", "to every pod it says the same of all nodes: 50"),
    ]


def test_expired_metrics_are_told_with_who_reads_them(policies: Policies):
    cluster = Cluster(
        [
            node("fresh"), node("old"), node("never"), metric("fresh", "1"),
            metric("old", "1", at="2026-01-02T11:00:00Z"), pod("web", on="fresh"),
        ],
    )
    reads = rule("reads", "!nodeInfo.measured || usage.cpu * 100 / allocatable.cpu < 20")
    assert told(audit(policies(reads), cluster, now=NOW)) == [
        (
            "warning", "expired-metrics", "", "",
            "the metric of 1 node of 3 is expired, the oldest of 3,600 s; read by `reads`",
        ),
        ("note", "no-metrics", "", "", "1 node of 3 was never measured; read by `reads`"),
    ]


QOS = """
interval: 1s
forEach: node
window: 10s
thresholds: [{name: pressed, expression: "usage.cpu * 2 > allocatable.cpu"}]
actions: [{name: bound, when: thresholds.pressed, suppressCPU: {target: "1000.0", policy: CFSQuota}}]
"""


def test_thresholds_that_are_never_true_and_gates_that_are_off_are_told(policies: Policies):
    cluster = Cluster([node("n"), metric("n", "1"), pod("web", on="n")])
    calm = document("calm", QOS, kind="QoSPlugin")
    off = document("off", f"featureGate: CPUEvict\n{QOS}", kind="QoSPlugin")
    assert told(audit(policies(calm, off), cluster, now=NOW)) == [
        ("warning", "never-active", "off", "", "its feature gate `CPUEvict` is off"),
        ("note", "never-acts", "calm", "pressed", "it is true on none of 1 measured node"),
        ("note", "never-acts", "calm", "bound", "it has nothing to do on 1 measured node"),
    ]


@pytest.mark.parametrize(("proof", "level", "made"), [("Enforce", "warning", 0), ("Warn", "warning", 1),
                                                      ("Off", "note", 1)])
def test_evictions_that_would_not_help_are_told(policies: Policies, proof: str, level: str, made: int):
    drain = document("drain", f"""
type: Balance
nodes: {{source: usage.cpu * 100 / allocatable.cpu > 50}}
criteria: [{{name: any, expression: "true", message: it is hot}}]
proof: "{proof}"
""", kind="DeschedulerPlugin")
    pack = document("pack", "score: [{name: full, expression: \"nodeInfo.name == 'hot' ? 100 : 0\"}]")
    cluster = Cluster([node("cool"), node("hot"), metric("cool", "1"), metric("hot", "3"), pod("web", on="hot")])
    found = audit(policies(drain, pack), cluster, now=NOW, proves=True)
    (useless,) = (each for each in found.findings if each.what.value == "useless-evictions")
    assert (useless.level.value, useless.policy, useless.examples) == (level, "drain", ("shop/web",))
    assert useless.message == (
        f"1 eviction would not help, {made} would be made (`proof: {proof}`): shop/web would come back to hot: drain "
        "(any) evicts from it, and profile default-scheduler prefers it by pack (100 there, 0 on cool, weight 1)"
    )
    assert faults_of("audit", found.to_json()) == []


@pytest.mark.parametrize(("proof", "scheduler", "why"), [
    ("Enforce", "", "no scheduler of the pods is known"), ("Warn", "", "no scheduler of the pods is known"),
    ("Enforce", "another", "no profile for the scheduler `another` is known"), ("Off", "", ""), ("Off", "another", ""),
])
def test_evictions_without_the_proof_that_they_should_have_are_told(
    policies: Policies, proof: str, scheduler: str, why: str,
):
    drain = document("drain", f"""
type: Balance
nodes: {{source: nodeInfo.name == 'hot'}}
criteria: [{{name: any, expression: "true", message: it is there}}]
proof: "{proof}"
""", kind="DeschedulerPlugin")
    web = pod("web", on="hot")
    web["spec"]["schedulerName"] = scheduler or "default-scheduler"
    web["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "web"}]
    cluster = Cluster([node("cool"), node("hot"), web])
    settings = Settings((ProfileSpec("default-scheduler"),), foreign_pods=False)
    found = audit(policies(drain), cluster, now=NOW, settings=settings, proves=bool(scheduler))
    unproved = [each for each in found.findings if each.what.value == "unproved-evictions"]
    assert [(each.level.value, each.policy, each.examples, each.message) for each in unproved] == ([
        ("warning", "drain", ("shop/web",), f"1 eviction would be made without a proof: not proved: {why}"),
    ] if why else [])
    assert found.has_unproved == bool(why)
    assert faults_of("audit", found.to_json()) == []


def test_descheduling_without_a_source_a_target_or_a_candidate_is_told(policies: Policies):
    def moves(name: str, source: int, target: int) -> str:
        return document(name, f"""
type: Balance
nodes: {{source: usage.cpu * 100 / allocatable.cpu > {source}, target: usage.cpu * 100 / allocatable.cpu < {target}}}
criteria: [{{name: any, expression: podUsage.cpu > 0, message: it runs}}]
proof: "Off"
""", kind="DeschedulerPlugin")

    cluster = Cluster(
        [
            node("hot"), node("cool"), metric("hot", "3", pods={"web-1": "2"}), metric("cool", "1"),
            pod("web-1", on="hot"),
        ],
    )
    assert told(
        audit(
            policies(moves("no-source", 90, 50), moves("no-target", 70, 1), moves("works", 70, 50)), cluster, now=NOW,
        ),
    ) == [
        ("warning", "no-target", "no-target", "nodes.target", "no node takes what the sources would give up"),
        ("note", "never-acts", "no-source", "nodes.source", "it is true of none of 2 nodes"),
        (
            "note", "never-acts", "no-target", "",
            "it would evict nobody: 1 candidate stay, mostly because no target node takes it",
        ),
    ]


def test_vetoes_of_everything_and_nothing_are_told(policies: Policies):
    def veto(name: str, expression: str) -> str:
        return document(
            name, f"type: EvictionFilter\ncriteria: [{{name: may-go, expression: '{expression}', message: m}}]",
            kind="DeschedulerPlugin",
        )

    assert told(audit(policies(veto("all", "false"), veto("none", "true")), plain_cluster(), now=NOW)) == [
        ("warning", "refuses-everything", "all", "may-go", "it keeps all 4 pods that it is about from being evicted"),
        ("note", "refuses-nothing", "none", "", "it keeps none of 4 pods from being evicted"),
    ]


def test_a_plugin_in_python_that_somebody_enabled_and_that_orders_nothing_is_told(policies: Policies):
    settings = Settings((ProfileSpec(enabled=(PluginChoice("GpuClustering"),)),))
    assert told(audit(policies(), plain_cluster(), now=NOW, settings=settings)) == [
        ("warning", "constant-score", "GpuClustering", "", "to every pod it says the same of all nodes: 0"),
    ]


def test_a_cycle_that_did_not_run_says_so_and_nothing_of_sources(policies: Policies):
    drain = document(
        "drain", "type: Balance\nnodes: {source: usage.cpu > 0}\ncriteria: [{name: c, expression: 'true', message: m}]",
        kind="DeschedulerPlugin",
    )
    cluster = Cluster([node("only"), metric("only", "1"), pod("web", on="only")])
    assert [each[4] for each in told(audit(policies(drain), cluster, now=NOW))] == [
        "the cycle ended early: the cluster size is 0 or 1 meaning eviction causes service disruption or degradation",
    ]


def test_conditions_that_fail_are_told_also_where_another_policy_refuses_first(policies: Policies):
    failing = "{more}matchConditions: [{{name: team, expression: \"pod.metadata.labels['team'] == 'x'\"}}]"
    cluster = Cluster(
        [node("a", zone="a"), node("b", zone="b"), pod("web-1", on="a"), pod("web-2", on="a", labels={"team": "x"})],
    )
    found = audit(policies(
        rule("nobody", "false"),
        rule("left-out", 'nodeInfo.zone == "a"', failing.format(more="failurePolicy: Ignore\n")),
        rule("refusing", 'nodeInfo.zone == "a"', failing.format(more="")),
    ), cluster, now=NOW)
    assert told(found) == [
        ("warning", "fails", "left-out", "matchConditions", "it fails 2 of 4 times: no such key: team"),
        (
            "warning", "refuses-everything", "nobody", "rule",
            "it refuses all 4 pairs of a pod and a node that it is about",
        ),
        ("warning", "fails", "refusing", "matchConditions", "it fails 2 of 4 times: no such key: team"),
    ]
    rules = [[(each.point, each.evaluated, each.refused, each.failed) for each in of.rules] for of in found.policies]
    assert rules == [
        [("matchConditions", 4, 0, 2), ("filter", 2, 1, 0)], [("filter", 4, 4, 0)],
        [("matchConditions", 4, 0, 2), ("filter", 2, 1, 0)],
    ]


def test_what_fails_for_every_pod_is_one_failure_with_how_often(policies: Policies):
    drain = document(
        "drain",
        "type: Balance\nnodes: {source: 'usage.cpu > 0'}\ncriteria: [{name: used, expression: podUsage.cpu > 0, "
                                                            "message: m}]",
        kind="DeschedulerPlugin",
    )
    cluster = Cluster(
        [
            node("a"), node("b"), metric("a", "1"), metric("b", "0"),
            *(pod(f"web-{number}", on="a") for number in range(3)),
        ],
    )
    assert told(audit(policies(drain), cluster, now=NOW)) == [
        ("warning", "fails", "drain", "used", "it fails 3 times: no metric of the pod, or an expired one"),
        (
            "note", "never-acts", "drain", "",
            (
                "it would evict nobody: 3 candidates stay, mostly because `used` failed: no metric of the pod, or an "
                "expired one"
            ),
        ),
    ]


def test_failures_of_one_rule_are_told_together(policies: Policies):
    drain = document(
        "drain",
        "type: Deschedule\ncriteria: [{name: old, expression: 'int(pod.metadata.labels.app) > 1', message: m}]",
        kind="DeschedulerPlugin",
    )
    cluster = Cluster(
        [
            node("a"), node("b"), pod("x", on="a"), pod("y", on="a", labels={"app": "b"}),
            pod("z", on="a", labels={"app": "c"}),
        ],
    )
    found = [each for each in audit(policies(drain), cluster, now=NOW).findings if each.what.value == "fails"]
    assert [(each.message, each.examples) for each in found] == [
        ("it fails 3 times: mostly type conversion error from 'string' to 'int'", ("shop/y",)),
    ]
