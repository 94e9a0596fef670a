"""Shipped documents that say what a built-in plugin does give the built-in's answers, on random clusters too."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Kind, load_paths
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.kubernetes.release import KUBERNETES_1_36, RELEASES
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import EVERYTHING, PluginChoice, ProfileSpec
from koordpolicy.engine.source import Problems

POLICIES = Path(__file__).parents[2] / "policies" / "scheduler"
TWINS = {
    "TaintToleration": "taint-toleration", "NodeAffinity": "node-affinity", "ImageLocality": "image-locality",
    "NodeResourcesBalancedAllocation": "balanced-allocation", "NodeResourcesFitPlus": "node-resources-fit-plus",
    "ScarceResourceAvoidance": "scarce-resource-avoidance", "LoadAwareScheduling": "load-aware-scheduling",
}
STRATEGIES_OF_FIT = {"LeastAllocated": "least-allocated", "MostAllocated": "best-fit-packing"}
"""The documents that score as NodeResourcesFit does, by its strategy."""
NOW = 1_800_000_000
MIB = 2**20
GPU = "example.com/gpu"
KEYS, VALUES = ("zone", "pool"), ("a", "b")
LOAD = {"filterExpiredNodeMetrics": False}


def compiled():
    loaded = load_paths(
        [POLICIES / f"{name}.yaml" for name in (*TWINS.values(), *STRATEGIES_OF_FIT.values())],
        source_name="shipped",
    )
    problems = Problems(list(loaded.problems))
    plugins = compile_documents(loaded.of(Kind.SCHEDULER), problems)
    assert problems.found == []
    return plugins


LIVE = Live(Registry.of([*PLUGINS, *compiled()], generation=1))


def answers(cluster, pod, name, args, kubernetes=None):
    """Return why each node is refused, and the scores of the others, as one plugin alone gives them."""
    profile = ProfileSpec("documents", (PluginChoice(name, args=args),), {None: frozenset({EVERYTHING})})
    scheduler = Scheduler(cluster, LIVE, Settings((profile,), kubernetes=kubernetes), clock=lambda: NOW * 10**9)
    verdict = scheduler.decide(pod, exhaustive=True)
    assert verdict.errors() == ()
    if verdict.refusal is not None:
        return dict.fromkeys(verdict.names, verdict.refusal[2].message), {}
    refused = {node: tuple((each.message, each.code) for _, each in verdict.why_not(node)) for node in verdict.names}
    return refused, {node: verdict.score_of(node).get(name, 0) for node in verdict.names if not refused[node]}


def same(cluster, pod, name, args=None, params=None, kubernetes=None):
    built_in = answers(cluster, pod, name, args or {}, kubernetes)
    assert answers(cluster, pod, TWINS[name], params or {}) == built_in
    return built_in


# Random clusters

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
taints = st.lists(st.builds(
    lambda key, value, effect: {"key": key, "effect": effect, **({"value": value} if value else {})},
    st.sampled_from(KEYS),
    st.sampled_from(("", *VALUES)), st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))), max_size=3)
tolerations = st.lists(st.one_of(
    st.builds(
        lambda key, value, effect: {
            "key": key, "operator": "Equal", "value": value, **({"effect": effect} if effect else {}),
        },
        st.sampled_from(KEYS), st.sampled_from(VALUES), st.sampled_from(("", "NoSchedule", "PreferNoSchedule")),
    ),
    st.builds(lambda key: {"key": key, "operator": "Exists"}, st.sampled_from(KEYS)), st.just({"operator": "Exists"}),
), max_size=2)
requirements = st.builds(
    lambda key, operator, value: {
        "key": key, "operator": operator, **({"values": [value]} if operator in ("In", "NotIn") else {}),
    },
    st.sampled_from(KEYS), st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")), st.sampled_from(VALUES))
named = st.builds(lambda names: {"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]},
                  st.lists(st.sampled_from(("n0", "n1")), min_size=1, max_size=2))
node_terms = st.one_of(st.lists(requirements, max_size=2).map(lambda each: {"matchExpressions": each}), named)
affinities = st.fixed_dictionaries({}, optional={
    "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
        {"nodeSelectorTerms": st.lists(node_terms, max_size=2)},
    ),
    "preferredDuringSchedulingIgnoredDuringExecution": st.lists(
        st.fixed_dictionaries({"weight": st.integers(1, 100), "preference": node_terms}), max_size=3),
})
images = st.sampled_from(("app", "app:1", "registry:5000/app", "db", "db:latest"))
amounts = st.sampled_from((None, 0, 1, 100, 333, 1000))
requests = st.builds(
    lambda cpu, memory, gpu: {
        **({} if cpu is None else {"cpu": f"{cpu}m"}), **({} if memory is None else {"memory": str(memory * MIB)}),
        **({GPU: str(gpu)} if gpu else {}),
    },
    amounts, amounts, st.sampled_from((0, 0, 1)))
containers = st.builds(
    lambda image, amount: {"name": "c", "image": image, "resources": {"requests": amount}}, images, requests,
)
sidecars = st.builds(
    lambda each, restart: {**each, **({"restartPolicy": "Always"} if restart else {})}, containers, st.booleans(),
)
pod_levels = st.one_of(st.just({}), st.builds(
    lambda cpu, memory: {"resources": {"requests": {"cpu": f"{cpu}m", "memory": str(memory * MIB)}}},
    st.sampled_from((100, 2000)), st.sampled_from((1, 2000))))
"""Amounts of a whole pod, or none."""


def make_node(name, its_labels, its_taints, its_images, cpu, memory, gpu):
    allocatable = {"cpu": f"{cpu}m", "memory": str(memory), "pods": "10", **({GPU: str(gpu)} if gpu else {})}
    return {"kind": "Node", "metadata": {"name": name, "labels": its_labels}, "spec": {"taints": its_taints},
            "status": {"allocatable": allocatable, "images": [
                {"names": [image, f"{image}@sha256:0"], "sizeBytes": size} for image, size in its_images.items()]}}


def make_pod(name, its_containers, node="", **spec):
    named = [{**each, "name": f"c{place}"} for place, each in enumerate(its_containers)]
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2027-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": {"name": name}, "status": {"conditions": [placed] if node else []},
            "spec": {"containers": named, **({"nodeName": node} if node else {}), **spec}}


@st.composite
def clusters(draw):
    nodes = [make_node(
        f"n{place}", draw(labels), draw(taints),
        draw(st.dictionaries(st.sampled_from(("app:latest", "app:1", "registry:5000/app:latest", "db:latest")),
                             st.sampled_from((1, 30 * MIB, 700 * MIB, 3000 * MIB)))),
        draw(st.sampled_from((0, 250, 4000))), draw(st.sampled_from((0, 1000, 10**9))), draw(st.sampled_from((0, 2))),
    ) for place in range(draw(st.integers(1, 5)))]
    pods = [
        make_pod(
            f"p{place}", draw(st.lists(containers, min_size=1, max_size=2)), f"n{draw(st.integers(0, len(nodes) - 1))}",
            initContainers=draw(st.lists(sidecars, max_size=2)), **draw(pod_levels),
        )
        for place in range(draw(st.integers(0, 6)))
    ]
    return Cluster([*nodes, *pods])


@settings(max_examples=40, deadline=None)
@given(clusters(), tolerations)
def test_taints_and_tolerations_mean_the_same(cluster, those):
    same(cluster, PodInfo.of(make_pod("new", [{}], tolerations=those)), "TaintToleration")


@settings(max_examples=40, deadline=None)
@given(clusters(), affinities, labels)
def test_node_affinity_takes_and_prefers_the_same_nodes(cluster, affinity, selector):
    pod = PodInfo.of(make_pod("new", [{}], nodeSelector=selector, affinity={"nodeAffinity": affinity}))
    refused, scores = answers(cluster, pod, "NodeAffinity", {})
    found, twins = answers(cluster, pod, "node-affinity", {})
    # Names select nodes before the filters are called; the reasons of the nodes that are left out differ.
    assert ({node for node, why in found.items() if why}, twins) == (
        {node for node, why in refused.items() if why}, scores,
    )


@settings(max_examples=40, deadline=None)
@given(clusters(), st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2))
def test_images_draw_alike(cluster, those, inits):
    same(cluster, PodInfo.of(make_pod("new", those, initContainers=inits)), "ImageLocality", {"sizes": "EachNode"})


@settings(max_examples=40, deadline=None)
@given(clusters(), st.lists(containers, min_size=1, max_size=2), st.booleans(), st.sampled_from(RELEASES))
def test_balance_is_the_same_for_two_and_for_three_resources(cluster, those, three, kubernetes):
    names = ["cpu", "memory", *([GPU] if three else [])]
    same(cluster, PodInfo.of(make_pod("new", those)), "NodeResourcesBalancedAllocation",
         {"resources": [{"name": name, "weight": 1} for name in names]},
         {"resources": names, "relative": kubernetes == KUBERNETES_1_36}, kubernetes)


STRATEGIES = st.dictionaries(
    st.sampled_from(("cpu", "memory", GPU)),
    st.fixed_dictionaries(
        {"type": st.sampled_from(("LeastAllocated", "MostAllocated", "Other")), "weight": st.integers(0, 3)},
    ),
)


@settings(max_examples=40, deadline=None)
@given(clusters(), st.lists(containers, min_size=1, max_size=2), st.lists(sidecars, max_size=3), STRATEGIES)
def test_strategies_pack_and_spread_alike(cluster, those, inits, strategies):
    same(
        cluster, PodInfo.of(make_pod("new", those, initContainers=inits)), "NodeResourcesFitPlus",
        {"resources": strategies}, {"resources": [{"name": name, **each} for name, each in strategies.items()]},
    )


@settings(max_examples=80, deadline=None)
@given(clusters(), st.lists(containers, min_size=1, max_size=2), st.lists(sidecars, max_size=3), pod_levels,
       st.sampled_from(sorted(STRATEGIES_OF_FIT)))
def test_pods_are_spread_and_packed_as_by_node_resources_fit_also_those_without_requests(
    cluster, those, inits, pod_level, strategy,
):
    pod = PodInfo.of(make_pod("new", those, initContainers=inits, **pod_level))
    refused, scores = answers(cluster, pod, "NodeResourcesFit", {"scoringStrategy": {
        "type": strategy, "resources": [{"name": name, "weight": 1} for name in ("cpu", "memory")]}})
    _, of_document = answers(cluster, pod, STRATEGIES_OF_FIT[strategy], {})
    # The documents filter nothing.
    assert {node: score for node, score in of_document.items() if not refused[node]} == scores


@settings(max_examples=40, deadline=None)
@given(
    clusters(), st.lists(containers, min_size=1, max_size=2),
    st.lists(st.sampled_from((GPU, "memory", "none")), max_size=2),
)
def test_scarce_resources_are_spared_alike(cluster, those, scarce):
    same(
        cluster, PodInfo.of(make_pod("new", those)), "ScarceResourceAvoidance", {"resources": scarce},
        {"resources": scarce},
    )


def metric(name, cpu, memory, pods=()):
    usage = {"nodeUsage": {"resources": {"cpu": f"{cpu}m", "memory": str(memory)}}}
    return {
        "kind": "NodeMetric", "metadata": {"name": name},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {
            "updateTime": "2027-01-15T08:00:00Z", "nodeMetric": usage,
            "podsMetric": [
                {"name": each, "namespace": "default", "podUsage": {"resources": {"cpu": "10m", "memory": "10"}}}
                for each in pods
            ],
        },
    }


@settings(max_examples=40, deadline=None)
@given(clusters(), st.lists(requests, min_size=1, max_size=2), requests,
       st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 5000), st.integers(0, 10**9))), min_size=5, max_size=5),
       st.sampled_from((20, 65)))
def test_load_keeps_pods_off_alike_where_the_metrics_show_all_pods(cluster, those, limits, usages, threshold):
    snapshot = cluster.snapshot()
    for name, usage in zip(snapshot.names, usages, strict=False):
        if usage is not None:
            cluster.upsert(metric(name, usage[0], usage[1], [pod.name for pod in snapshot.pods(snapshot.index[name])]))
    wanted = [{"resources": {"requests": each, "limits": limits}} for each in those]
    same(
        cluster, PodInfo.of(make_pod("new", wanted)), "LoadAwareScheduling",
        {**LOAD, "usageThresholds": {"cpu": threshold, "memory": 95}}, {"thresholds": {"cpu": threshold, "memory": 95}},
    )


def test_no_twin_is_active_where_no_profile_asks_for_it():
    for name in ("default-scheduler", "koord-scheduler", "kube-scheduler", "packing", "spreading"):
        profile = Scheduler(Cluster(), LIVE, Settings((ProfileSpec(name),))).profiles[0]
        assert not set(TWINS.values()) & set(profile.plugins()), name


def test_the_profile_that_asks_for_twins_gets_all_of_them():
    profile = Scheduler(
        Cluster(), LIVE, Settings((ProfileSpec("documents", disabled={None: frozenset(TWINS)}),)),
    ).profiles[0]
    assert set(TWINS.values()) <= set(profile.plugins())
    assert not set(TWINS) & set(profile.plugins())


def test_a_copy_under_the_built_ins_name_takes_its_place(tmp_path):
    text = (POLICIES / "taint-toleration.yaml").read_text()
    text = text.replace("name: taint-toleration", "name: TaintToleration").replace(
        "  profiles: [documents]\n", "  replaces: true\n",
    )
    (tmp_path / "own.yaml").write_text(text)
    problems = Problems()
    plugins = compile_documents(load_paths([tmp_path], source_name="own").of(Kind.SCHEDULER), problems)
    assert problems.found == []
    live = Live(Registry.of([*PLUGINS, *plugins], generation=1))
    profile = Scheduler(Cluster(), live, Settings((ProfileSpec(),))).profiles[0]
    assert [each.plugin.origin for each in profile.filters if each.name == "TaintToleration"] == [plugins[0].origin]
