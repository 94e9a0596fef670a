"""PodTopologySpread and InterPodAffinity, against references that look at every pod on every node."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.kubernetes.release import NEWEST
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState

TABLE = {plugin.name: plugin for plugin in PLUGINS}
HOSTNAME, ZONE = "kubernetes.io/hostname", "zone"
APPS = ("web", "db", "cache")
SKEWED = "node(s) didn't match pod topology spread constraints"
UNLABELLED = f"{SKEWED} (missing required label)"


# The references: Kubernetes' rules, node by node and pod by pod


def labels_of(item):
    return item["metadata"].get("labels") or {}


def takes(selector, labels):
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions") or ():
        here = labels.get(each["key"])
        good = {"In": here in each.get("values", ()), "NotIn": here not in each.get("values", ()),
                "Exists": here is not None, "DoesNotExist": here is None}[each["operator"]]
        if not good:
            return False
    return True


def spread_eligible(pod, node, constraint, constraints):
    if any(each["topologyKey"] not in labels_of(node) for each in constraints):
        return False
    selector = pod["spec"].get("nodeSelector") or {}
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and any(
        labels_of(node).get(key) != value for key, value in selector.items()
    ):
        return False
    hard = [taint for taint in node["spec"].get("taints") or () if taint["effect"] in ("NoSchedule", "NoExecute")]
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or not hard


def spread_count(pod, others, constraint):
    selector = constraint["labelSelector"]
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        return 0
    return sum(1 for each in others if each["metadata"]["namespace"] == pod["metadata"]["namespace"]
               and not each["metadata"].get("deletionTimestamp") and takes(selector, labels_of(each)))


def spread_reason(pod, node, nodes, on):
    constraints = [
        each for each in pod["spec"]["topologySpreadConstraints"] if each["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    for constraint in constraints:
        key = constraint["topologyKey"]
        if key not in labels_of(node):
            return UNLABELLED
        domains = {}
        for other in nodes:
            if spread_eligible(pod, other, constraint, constraints):
                value = labels_of(other)[key]
                domains[value] = domains.get(value, 0) + spread_count(pod, on[other["metadata"]["name"]], constraint)
        least = min(domains.values(), default=0) if len(domains) >= constraint.get("minDomains", 1) else 0
        mine = int(takes(constraint["labelSelector"], labels_of(pod)))
        if domains.get(labels_of(node)[key], 0) + mine - least > constraint["maxSkew"]:
            return SKEWED
    return ""


def spread_scores(pod, nodes, on):
    constraints = [
        each for each in pod["spec"]["topologySpreadConstraints"] if each["whenUnsatisfiable"] == "ScheduleAnyway"
    ]
    scored = [node for node in nodes if all(each["topologyKey"] in labels_of(node) for each in constraints)]
    raw = {}
    for node in scored:
        total = 0.0
        for constraint in constraints:
            key = constraint["topologyKey"]
            if key == HOSTNAME:
                size, count = len(scored), spread_count(pod, on[node["metadata"]["name"]], constraint)
            else:
                size = len({labels_of(each)[key] for each in scored})
                count = sum(
                    spread_count(pod, on[each["metadata"]["name"]], constraint) for each in nodes
                    if spread_eligible(
                        pod, each, constraint, constraints,
                    ) and labels_of(each)[key] == labels_of(node)[key]
                )
            total += count * math.log(size + 2) + constraint["maxSkew"] - 1
        raw[node["metadata"]["name"]] = math.floor(total + 0.5)
    most, least = max(raw.values(), default=0), min(raw.values(), default=0)
    names = [node["metadata"]["name"] for node in nodes]
    return {
        name: 0 if name not in raw else 100 if most == 0 else 100 * (most + least - raw[name]) // most for name in names
    }


def term_takes(owner, term, other, namespaces):
    own, there = owner["metadata"]["namespace"], other["metadata"]["namespace"]
    named = term.get("namespaces") or ([] if term.get("namespaceSelector") is not None else [own])
    if there not in named and not takes(term.get("namespaceSelector"), namespaces[there]):
        return False
    selector = term["labelSelector"]
    extra = [{"key": key, "operator": operator, "values": [labels_of(owner)[key]]}
             for keys, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
             for key in term.get(keys, ()) if key in labels_of(owner)]
    return takes({**selector, "matchExpressions": [*selector.get("matchExpressions", ()), *extra]}, labels_of(other))


def terms_of(pod, kind, which):
    holder = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return holder.get(f"{which}DuringSchedulingIgnoredDuringExecution") or ()


def same_domain(key, node, other):
    return key in labels_of(node) and labels_of(node)[key] == labels_of(other).get(key)


def affinity_reason(pod, node, nodes, on, namespaces):
    near = terms_of(pod, "podAffinity", "required")
    matching = [(other, each) for other in nodes for each in on[other["metadata"]["name"]]
                if near and all(term_takes(pod, term, each, namespaces) for term in near)]
    if near:
        counted = any(term["topologyKey"] in labels_of(other) for other, _ in matching for term in near)
        if any(term["topologyKey"] not in labels_of(node) for term in near):
            return "node(s) didn't match pod affinity rules"
        alone = not counted and all(term_takes(pod, term, pod, namespaces) for term in near)
        if not alone and any(
            not any(same_domain(term["topologyKey"], node, other) for other, _ in matching) for term in near
        ):
            return "node(s) didn't match pod affinity rules"
    for term in terms_of(pod, "podAntiAffinity", "required"):
        if any(
            term_takes(pod, term, each, namespaces)
            for other in nodes if same_domain(term["topologyKey"], node, other)
            for each in on[other["metadata"]["name"]]
        ):
            return "node(s) didn't match pod anti-affinity rules"
    for other in nodes:
        for each in on[other["metadata"]["name"]]:
            for term in terms_of(each, "podAntiAffinity", "required"):
                if same_domain(term["topologyKey"], node, other) and term_takes(each, term, pod, namespaces):
                    return "node(s) didn't satisfy existing pods anti-affinity rules"
    return ""


def affinity_scores(pod, nodes, on, namespaces, hard=1):
    raw = {}
    for node in nodes:
        total = 0
        for other in nodes:
            for each in on[other["metadata"]["name"]]:
                for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
                    for weighted in terms_of(pod, kind, "preferred"):
                        term = weighted["podAffinityTerm"]
                        if same_domain(term["topologyKey"], node, other) and term_takes(pod, term, each, namespaces):
                            total += sign * weighted["weight"]
                    for weighted in terms_of(each, kind, "preferred"):
                        term = weighted["podAffinityTerm"]
                        if same_domain(term["topologyKey"], node, other) and term_takes(each, term, pod, namespaces):
                            total += sign * weighted["weight"]
                for term in terms_of(each, "podAffinity", "required"):
                    if same_domain(term["topologyKey"], node, other) and term_takes(each, term, pod, namespaces):
                        total += hard
        raw[node["metadata"]["name"]] = total
    most, least = max(raw.values()), min(raw.values())
    return {name: int(100 * ((value - least) / (most - least))) if most > least else 0 for name, value in raw.items()}


# Random clusters

apps = st.sampled_from(APPS)
keys = st.sampled_from((HOSTNAME, ZONE, "rack"))
selectors = st.one_of(
    apps.map(lambda app: {"matchLabels": {"app": app}}),
    st.just({}),
    st.lists(apps, min_size=1, max_size=2).map(
        lambda names: {"matchExpressions": [{"key": "app", "operator": "In", "values": names}]}),
    st.just({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
)
constraints = st.fixed_dictionaries(
    {"topologyKey": keys, "maxSkew": st.integers(1, 2), "labelSelector": selectors},
    optional={
        "nodeAffinityPolicy": st.sampled_from(("Honor", "Ignore")),
        "nodeTaintsPolicy": st.sampled_from(("Honor", "Ignore")),
    },
)
hard = st.builds(
    lambda each, least: {**each, "whenUnsatisfiable": "DoNotSchedule", **({"minDomains": least} if least else {})},
    constraints, st.integers(0, 3),
)
soft = constraints.map(lambda each: {**each, "whenUnsatisfiable": "ScheduleAnyway"})
terms = st.fixed_dictionaries({"topologyKey": keys, "labelSelector": selectors}, optional={
    "namespaces": st.lists(st.sampled_from(("default", "other")), max_size=2),
    "namespaceSelector": st.sampled_from(({}, {"matchLabels": {"team": "a"}})),
    "matchLabelKeys": st.just(["version"]), "mismatchLabelKeys": st.just(["version"]),
})
weighted = st.fixed_dictionaries({"weight": st.integers(1, 100), "podAffinityTerm": terms})
affinities = st.fixed_dictionaries({}, optional={
    kind: st.fixed_dictionaries({}, optional={
        "requiredDuringSchedulingIgnoredDuringExecution": st.lists(terms, max_size=2),
        "preferredDuringSchedulingIgnoredDuringExecution": st.lists(weighted, max_size=2),
    }) for kind in ("podAffinity", "podAntiAffinity")
})


def make_pod(name, app="", namespace="default", version="", node="", leaving=False, **spec):
    labels = {key: value for key, value in (("app", app), ("version", version)) if value}
    metadata = {
        "name": name, "namespace": namespace, "labels": labels,
        **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}),
    }
    return {"kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {}), **spec}}


@st.composite
def clusters(draw, affine=False):
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        labels = {HOSTNAME: f"n{index}"}
        labels |= {key: value for key in (ZONE, "rack") if (value := draw(st.sampled_from(("", "a", "b", "c"))))}
        taints = draw(st.sampled_from(([], [{"key": "t", "effect": "NoSchedule"}])))
        nodes.append({"kind": "Node", "metadata": {"name": f"n{index}", "labels": labels}, "spec": {"taints": taints},
                      "status": {"allocatable": {}}})
    places = st.integers(0, len(nodes) - 1)
    pods = [
        make_pod(
            f"p{index}", draw(apps), draw(st.sampled_from(("default", "other"))), draw(st.sampled_from(("", "1", "2"))),
            f"n{draw(places)}", draw(st.integers(0, 5)) == 0, **({"affinity": draw(affinities)} if affine else {}),
        )
        for index in range(draw(st.integers(0, 8)))
    ]
    return nodes, pods


def make(name, **args):
    return TABLE[name].make(TABLE[name].check_args(args), SimpleNamespace(seed=0, kubernetes=NEWEST))


NAMESPACES = {"default": {"team": "a"}, "other": {"team": "b"}}
OBJECTS = [{"kind": "Namespace", "metadata": {"name": name, "labels": labels}} for name, labels in NAMESPACES.items()]


def placed(nodes, pods):
    on = {node["metadata"]["name"]: [] for node in nodes}
    for pod in pods:
        on[pod["spec"]["nodeName"]].append(pod)
    return on


def views(nodes, pods):
    """The same cluster as it is, as it came to be pod by pod, and as an overlay of one without the last pod."""
    yield Cluster([*nodes, *pods, *OBJECTS]).snapshot()
    if pods:
        *others, last = pods
        cluster = Cluster([*nodes, *others, *OBJECTS])
        without = cluster.snapshot()
        name = last["spec"]["nodeName"]
        yield without.overlay({name: NodeChange(add=[PodInfo.of(last)])})
        cluster.upsert(last)
        key = f"{last['metadata']['namespace']}/{last['metadata']['name']}"
        cluster.upsert(make_pod("more", "web", node=name))
        yield cluster.snapshot().overlay({name: NodeChange(remove=["default/more"])})
        cluster.delete("Pod", "default/more")
        cluster.delete("Pod", key)
        cluster.upsert(last)
        yield cluster.snapshot()


def told(plugin, pod, snapshot):
    """Return why each node is refused (an empty string: it is not)."""
    if plugin.pre_filter(CycleState(), pod, snapshot) in (SKIP, SKIP_SHAPE):
        return dict.fromkeys(snapshot.names, "")
    answer = plugin.filter(CycleState(), pod, snapshot, np.arange(snapshot.size))
    refused = np.flatnonzero(~answer.passed)
    by_reason = {
        snapshot.names[row]: reason for reason, rows in answer.reasons(refused).items() for row in rows.tolist()
    }
    texts = {name: "" if answer.passed[row] else answer.explain(row).message for row, name in enumerate(snapshot.names)}
    assert by_reason == {name: text for name, text in texts.items() if text}
    return texts


def scored(plugin, pod, snapshot):
    rows = np.arange(snapshot.size)
    if plugin.pre_score(CycleState(), pod, snapshot, rows) in (SKIP, SKIP_SHAPE):
        return None
    return dict(zip(snapshot.names, plugin.score(CycleState(), pod, snapshot, rows).values.tolist(), strict=True))


@settings(max_examples=120, deadline=None)
@given(clusters(), st.lists(hard, min_size=1, max_size=2), apps, st.booleans())
def test_spreading_refuses_what_pods_counted_one_by_one_refuse(cluster, wanted, app, selective):
    nodes, pods = cluster
    plugin = make("PodTopologySpread")
    pod = make_pod("new", app, topologySpreadConstraints=wanted, **({"nodeSelector": {ZONE: "a"}} if selective else {}))
    on = placed(nodes, pods)
    expected = {node["metadata"]["name"]: spread_reason(pod, node, nodes, on) for node in nodes}
    for snapshot in views(nodes, pods):
        assert told(plugin, PodInfo.of(pod), snapshot) == expected


@settings(max_examples=120, deadline=None)
@given(clusters(), st.lists(soft, min_size=1, max_size=2), apps)
def test_spreading_scores_what_pods_counted_one_by_one_score(cluster, wanted, app):
    nodes, pods = cluster
    plugin = make("PodTopologySpread")
    pod = make_pod("new", app, topologySpreadConstraints=wanted)
    expected = spread_scores(pod, nodes, placed(nodes, pods))
    for snapshot in views(nodes, pods):
        assert scored(plugin, PodInfo.of(pod), snapshot) == expected


@settings(max_examples=150, deadline=None)
@given(clusters(affine=True), affinities, apps, st.sampled_from(("", "1")))
def test_affinity_refuses_and_scores_what_pods_asked_one_by_one_do(cluster, affinity, app, version):
    nodes, pods = cluster
    plugin = make("InterPodAffinity")
    pod = make_pod("new", app, version=version, affinity=affinity)
    on = placed(nodes, pods)
    reasons = {node["metadata"]["name"]: affinity_reason(pod, node, nodes, on, NAMESPACES) for node in nodes}
    scores = affinity_scores(pod, nodes, on, NAMESPACES)
    for snapshot in views(nodes, pods):
        assert told(plugin, PodInfo.of(pod), snapshot) == reasons
        found = scored(plugin, PodInfo.of(pod), snapshot)
        assert found == scores or (found is None and set(scores.values()) == {0})
