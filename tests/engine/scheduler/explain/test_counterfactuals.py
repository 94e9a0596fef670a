"""Each counterfactual that is reported makes the node pass."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, filter_only
from koordpolicy.engine.scheduler.explain.counterfactuals import counterfactuals, passing
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import Source

NOW = 1_767_355_200_000_000_000


def document(*filters, name="rules", **spec):
    if filters:
        spec["filter"] = [{"name": f"r{place}", "expression": text} for place, text in enumerate(filters)]
    return json.dumps({
        "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": name},
        "spec": spec,
    })


def scheduler_of(cluster, *documents, enabled=()):
    plugins = compile_documents(load([Source("p.yaml", text) for text in documents]))
    live = Live(Registry.of((*builtins(), *plugins), generation=1))
    spec = ProfileSpec(enabled=tuple(map(PluginChoice, enabled)))
    return Scheduler(cluster, live, Settings((spec,)), clock=lambda: NOW)


def node(name="n", cpu="4", labels=None, pods="10", **spec):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}}}


def pod(name="p", cpu="1", on="", labels=None, resources=None, **spec):
    requests = {"cpu": cpu, "memory": "1Gi", **(resources or {})}
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": labels or {}},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": requests}}], **({"nodeName": on} if on else {}),
            **spec,
        },
    }


def metric(name="n", cpu="3", memory="1Gi"):
    usage = {"resources": {"cpu": cpu, "memory": memory}}
    return {"kind": "NodeMetric", "metadata": {"name": name},
            "status": {"updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": usage}}}


def found(objects, asked, *documents, enabled=(), on="n", **rest):
    """Return the texts of the counterfactuals for a node, having checked that each of them works."""
    cluster = Cluster(objects)
    scheduler = scheduler_of(cluster, *documents, enabled=enabled)
    info = PodInfo.of(asked)
    snapshot, profile = cluster.snapshot(NOW), scheduler.profile_of(info)
    told = counterfactuals(profile, info, snapshot, on, **rest)
    before = repr((asked, objects))
    for each in told:
        names = passing(profile, each, snapshot)
        assert (each.node in names) if each.node else names
    assert repr((asked, objects)) == before
    return [[edit.text for edit in each.edits] for each in told]


def test_a_hot_node_says_how_much_less_it_would_have_to_use():
    rule = document("usage.cpu * 100 / allocatable.cpu < 65")
    assert found([node(), metric()], pod(), rule) == [
        ["used 0.401 cores less cpu (2.599 instead of 3 cores)"],
        ["had 0.616 cores more cpu (4.616 instead of 4 cores)"],
    ]


def test_what_is_short_is_requested_less_given_up_or_added():
    objects = [node(), pod("big", "2", "n"), pod("small", "1500m", "n")]
    assert found(objects, pod(cpu="1500m")) == [
        ["requested 1 core less cpu (0.5 instead of 1.5 cores)"],
        ["gave up shop/small, which requests 1.5 cores cpu"],
        ["had 1 core more cpu (5 instead of 4 cores)"],
    ]


def test_taints_cordons_and_selectors_can_be_met_from_both_sides():
    taint = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
    assert found([node(taints=[taint])], pod()) == [
        ["tolerated the taint gpu=a100:NoSchedule"], ["had no taint gpu=a100:NoSchedule"],
    ]
    assert found([node(unschedulable=True)], pod()) == [
        ["tolerated the taint node.kubernetes.io/unschedulable:NoSchedule"], ["were not cordoned"],
    ]
    assert found([node()], pod(nodeSelector={"disk": "ssd"})) == [
        ["had the label disk=ssd"], ["had no node selector disk=ssd"],
    ]


def test_a_zone_is_no_label_that_anybody_gives_a_node():
    zone = "topology.kubernetes.io/zone"
    assert found([node(labels={zone: "a"})], pod(nodeSelector={zone: "b"})) == [[f"had no node selector {zone}=b"]]
    assert found([node(labels={zone: "a"})], pod(), document(f"node.metadata.labels['{zone}'] == 'b'")) == []


def test_pods_that_come_back_at_once_are_not_given_up():
    agent = pod("agent", "3", "n")
    agent["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "agent"}]
    critical = pod("critical", "1", "n", priorityClassName="system-node-critical")
    assert found([node(), agent, critical], pod()) == [["had 1 core more cpu (5 instead of 4 cores)"]]


def test_a_full_node_gives_up_a_pod():
    assert found([node(pods="1"), pod("other", "1", "n")], pod()) == [
        ["gave up shop/other"], ["had 1 more pods (2 instead of 1)"],
    ]


def test_a_pod_of_another_class_is_none_that_the_document_is_about():
    rule = document("usage.cpu < 1000", match={"pods": {"priorityClasses": ["koord-prod", "koord-mid"]}})
    assert found([node(), metric()], pod(), rule)[:1] == [["were of the priority class koord-batch"]]
    rule = document("usage.cpu < 1000", match={"pods": {"qosClasses": ["LS"]}})
    assert ["had the label koordinator.sh/qosClass=BE"] in found([node(), metric()], pod(), rule)


def test_several_refusals_need_several_changes():
    rule = document("podInfo.qosClass == 'BE'", "requests.cpu <= 500")
    assert found([node(unschedulable=True)], pod(), rule, most=1) == [[
        "tolerated the taint node.kubernetes.io/unschedulable:NoSchedule",
        "had the label koordinator.sh/qosClass=BE",
        "requested 0.5 cores less cpu (0.5 instead of 1 core)",
    ]]


def test_of_an_alternative_the_smaller_change_is_told_first():
    rule = document("requests.cpu <= 900 || requests.cpu > 8000 || node.metadata.labels.big == 'yes'")
    assert found([node(cpu="64")], pod(), rule)[:2] == [
        ["requested 0.1 cores less cpu (0.9 instead of 1 core)"], ["had the label big=yes"],
    ]


def test_load_aware_scheduling_says_what_it_would_need():
    objects = [node(), metric(cpu="3900m")]
    texts = found(objects, pod(), enabled=("LoadAwareScheduling",))
    assert texts[0][0].startswith("used 2.1")
    assert texts[0][0].endswith(" instead of 3.9 cores)")


def test_gpus_are_freed_asked_for_less_or_of_any_model():
    gpus = {**node(), "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "2"}}}
    held = pod("held", on="n", resources={"nvidia.com/gpu": "1"})
    assert found([gpus, held], pod(resources={"nvidia.com/gpu": "2"}))[:2] == [
        ["requested 1 less nvidia.com/gpu (1 instead of 2)"], ["gave up shop/held, which requests 1 nvidia.com/gpu"],
    ]


def test_a_pod_that_is_refused_as_a_whole_is_changed_until_some_node_takes_it():
    rule = document(preFilter=[{"name": "small", "expression": "requests.cpu <= 2000"}])
    assert found([node("a"), node("b")], pod(cpu="3"), rule, on="") == [
        ["requested 1 core less cpu (2 instead of 3 cores)"],
    ]


@pytest.mark.parametrize("text", [
    "metricAge < 10", "node.metadata.name == 'other'", "pod.metadata.namespace == 'x'", "false",
    "now < timestamp('2020-01-01T00:00:00Z')",
    "node.metadata.labels['a'].matches('^x+$')", "usage.cpu < 1 && usage.cpu > 2",
])
def test_what_cannot_be_changed_or_has_no_solution_is_not_told(text):
    assert found([node(), metric()], pod(), document(text)) == []


def test_a_pod_that_may_run_on_named_nodes_only_could_go_without_that():
    field = {"key": "metadata.name", "operator": "In", "values": ["other"]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [field]}]}}}
    assert found([node(), node("other")], pod(affinity=affinity)) == [["had no required node affinity"]]


def test_the_search_is_bounded():
    rule = document(*(f"node.metadata.labels.l{place} == 'x'" for place in range(9)))
    assert found([node()], pod(), rule, trials=20) == []


class Broken:
    """A plugin whose advice raises."""

    def filter_node(self, state, pod, snapshot, row):
        return Refusal("never", "no")

    def counterfactuals(self, pod, snapshot, row):
        raise RuntimeError("no advice")


def test_advice_that_fails_is_no_advice(kit):
    cluster = Cluster([node()])
    scheduler = Scheduler(cluster, Live(Registry.of([kit.plugin("Broken", Broken())], generation=1)), clock=lambda: NOW)
    info = PodInfo.of(pod())
    assert counterfactuals(scheduler.profile_of(info), info, cluster.snapshot(NOW), "n") == ()


AMOUNT = st.integers(min_value=0, max_value=8000)
COMPARISON = st.one_of(
    st.builds(
        "usage.cpu * {} / allocatable.cpu {} {}".format, st.sampled_from([1, 100]), st.sampled_from(["<", "<=", ">"]),
        st.integers(0, 120),
    ),
    st.builds("requests.cpu {} {}".format, st.sampled_from(["<", "<=", ">=", "=="]), AMOUNT),
    st.builds("requests.cpu + requested.cpu {} {}".format, st.sampled_from(["<", "<="]), AMOUNT),
    st.builds("requested.cpu * 2 - {} < usage.cpu".format, AMOUNT),
    st.builds("node.metadata.labels.tier {} '{}'".format, st.sampled_from(["==", "!="]), st.sampled_from(["a", "b"])),
    st.builds("pod.metadata.labels.tier in {}".format, st.sampled_from(["['a']", "['b', 'c']", "[]"])),
    st.builds("podInfo.qosClass {} 'BE'".format, st.sampled_from(["==", "!="])),
    st.just("!nodeInfo.unschedulable"), st.just("nodeInfo.pods < 2"), st.just("'x' in node.metadata.labels"),
)
EXPRESSION = st.recursive(COMPARISON, lambda inner: st.one_of(
    st.builds("({}) && ({})".format, inner, inner), st.builds("({}) || ({})".format, inner, inner),
    st.builds("!({})".format, inner), st.builds("nodeInfo.pods > 1 ? ({}) : ({})".format, inner, inner),
), max_leaves=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=EXPRESSION, used=AMOUNT, wanted=AMOUNT, held=st.lists(AMOUNT, max_size=3), cordoned=st.booleans())
def test_every_counterfactual_that_is_reported_makes_its_node_pass(text, used, wanted, held, cordoned):
    labels = {"tier": "a"}
    objects = [
        node(labels=labels, **({"unschedulable": True} if cordoned else {})), metric(cpu=f"{used}m"),
        *(pod(f"held-{place}", f"{amount}m", "n") for place, amount in enumerate(held)),
    ]
    cluster = Cluster(objects)
    scheduler = scheduler_of(cluster, document(text))
    info = PodInfo.of(pod(cpu=f"{wanted}m", labels=labels))
    snapshot, profile = cluster.snapshot(NOW), scheduler.profile_of(info)
    for counterfactual in counterfactuals(profile, info, snapshot, "n", trials=25):
        changed, view = info, snapshot
        for edit in counterfactual.edits:
            changed, view = edit.apply(changed, view, "n")
        assert filter_only(profile, changed, view).passed.tolist() == [0]
