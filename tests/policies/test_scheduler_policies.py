from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Kind, load_paths
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import Problems

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = sorted([
    *(path for path in (POLICIES / "scheduler").glob("*.yaml") if not path.name.endswith(".test.yaml")),
    *(POLICIES / "trace").glob("*/policy.yaml"),
])
NOW = 1_800_000_000
MB = 2**20
BATCH = {"kubernetes.io/batch-cpu": "8000", "kubernetes.io/batch-memory": "8Gi"}
MODEL = "alibabacloud.com/gpu-card-model"


def compiled(*paths):
    loaded = load_paths(paths, source_name="shipped")
    problems = Problems(list(loaded.problems))
    plugins = compile_documents(loaded.of(Kind.SCHEDULER), problems)
    assert problems.found == []
    return plugins


def node(name, *, zone="", cpu="10", memory="10Gi", gpus=0, images=(), taints=(), **resources):
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **resources}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)},
        "status": {
            "allocatable": allocatable,
            "images": [{"names": [f"{each}:latest"], "sizeBytes": 500 * MB} for each in images],
        },
    }


def metric(name, cpu, memory="1Gi"):
    return {
        "kind": "NodeMetric", "metadata": {"name": name},
        "status": {"updateTime": datetime.fromtimestamp(NOW - 10, UTC).isoformat().replace("+00:00", "Z"),
                   "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": memory}}}},
    }


def pod(name="p", *, cpu="1", memory="1Gi", labels=None, annotations=None, images=("app",), **spec):
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    containers = [
        {"name": f"c{index}", "image": image, "resources": resources if index == 0 else {}}
        for index, image in enumerate(images)
    ]
    return PodInfo.of({
        "kind": "Pod", "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"containers": containers, **spec},
    })


def gpu(count, milli):
    return {"alibabacloud.com/gpu-count": str(count), "alibabacloud.com/gpu-milli": str(milli)}


def decide(cluster, wanted, *names, profile="default-scheduler", folder="scheduler"):
    paths = [POLICIES / folder / f"{name}.yaml" for name in names]
    live = Live(Registry.of([*PLUGINS, *compiled(*paths)], generation=1))
    # Built-in plugins filter, and GPUs are shared, but the policies' own scores decide.
    spec = ProfileSpec(
        profile, (PluginChoice("GpuShare"),), {Point.SCORE: frozenset(plugin.name for plugin in PLUGINS)},
    )
    scheduler = Scheduler(cluster, live, Settings((spec,)), clock=lambda: NOW * 10**9)
    verdict = scheduler.decide(wanted, exhaustive=True)
    assert verdict.errors() == ()
    return verdict


def scores(verdict, plugin):
    return {name: verdict.score_of(name).get(plugin) for name, _ in sorted(verdict.best())}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(POLICIES)))
def test_every_shipped_policy_is_valid_and_says_what_it_is_for(path):
    (plugin,) = compiled(path)
    assert plugin.description


def test_packing_and_spreading_are_never_active_together_by_themselves():
    plugins = compiled(POLICIES / "scheduler")
    for name in ("default-scheduler", "koord-scheduler", "packing", "spreading"):
        live = Live(Registry.of([*PLUGINS, *plugins], generation=1))
        profile = Scheduler(Cluster(), live, Settings((ProfileSpec(name),))).profiles[0]
        assert len({"best-fit-packing", "least-allocated"} & set(profile.plugins())) == 1, name


@pytest.fixture
def uneven():
    cluster = Cluster([node("a"), node("b"), node("c")])
    cluster.assume(pod("one", cpu="4", memory="4Gi"), "a")
    cluster.assume(pod("two", cpu="8", memory="2Gi"), "b")
    return cluster


def test_best_fit_packing_prefers_the_fullest_node(uneven):
    verdict = decide(uneven, pod(), "best-fit-packing", profile="packing")
    assert (verdict.node, scores(verdict, "best-fit-packing")) == ("b", {"a": 50, "b": 60, "c": 10})


def test_least_allocated_prefers_the_emptiest_node(uneven):
    verdict = decide(uneven, pod(), "least-allocated")
    assert (verdict.node, scores(verdict, "least-allocated")) == ("c", {"a": 50, "b": 40, "c": 90})


def best_effort(name, cpu, memory):
    asked = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
    return PodInfo.of({
        "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": asked, "limits": asked}}]},
    })


@pytest.mark.parametrize(("name", "profile", "chosen", "expected"), [
    ("least-allocated", "default-scheduler", "b", {"a": 25, "b": 75}),
    ("best-fit-packing", "packing", "a", {"a": 75, "b": 25}),
])
def test_best_effort_pods_are_spread_and_packed_by_the_batch_resources(name, profile, chosen, expected):
    cluster = Cluster([node("a", **BATCH), node("b", **BATCH), node("none")])
    cluster.assume(best_effort("one", "4000", "4Gi"), "a")
    cluster.assume(pod("prod", cpu="9", memory="9Gi"), "b")  # it does not take what best-effort pods are promised
    verdict = decide(cluster, best_effort("p", "2000", "2Gi"), name, profile=profile)
    assert (verdict.node, scores(verdict, name)) == (chosen, expected)


@pytest.fixture
def measured():
    return Cluster([
        node("cool"), node("hot"), node("full"), node("unknown"),
        metric("cool", "2"), metric("hot", "7"), metric("full", "1", "9500Mi"),
    ])


def test_prod_pods_keep_off_hot_nodes_and_prefer_cool_ones(measured):
    verdict = decide(measured, pod(priorityClassName="koord-prod", priority=9500), "keep-off-hot-nodes")
    assert (verdict.node, scores(verdict, "keep-off-hot-nodes")) == ("cool", {"cool": 80, "unknown": 0})
    assert {each.reason: each.nodes for each in verdict.refusals()} == {
        "cpu usage is 70%, the watermark is 65%": ("hot",), "memory usage is 92%, the watermark is 90%": ("full",)}
    assert verdict.reasons() == {
        "cpu usage is not below the watermark": 1, "memory usage is not below the watermark": 1}


def test_hot_nodes_are_good_enough_for_other_pods(measured):
    verdict = decide(measured, pod(priorityClassName="koord-batch", priority=5500), "keep-off-hot-nodes")
    assert verdict.reasons() == {}
    assert set(scores(verdict, "keep-off-hot-nodes").values()) == {0}


def test_a_pod_goes_to_the_zone_that_it_prefers():
    cluster = Cluster([node("a", zone="x"), node("b", zone="y"), node("c")])
    label = "policy.koordinator.sh/preferred-zone"
    assert scores(decide(cluster, pod(labels={label: "y"}), "prefer-zone"), "prefer-zone") == {"a": 0, "b": 100, "c": 0}
    assert scores(decide(cluster, pod(), "prefer-zone"), "prefer-zone") == {"a": 0, "b": 0, "c": 0}


def test_nodes_that_have_the_images_come_first():
    cluster = Cluster([node("a"), node("b", images=["app"]), node("c", images=["app", "sidecar"])])
    verdict = decide(cluster, pod(images=("app", "sidecar")), "image-locality", profile="documents")
    assert (verdict.node, scores(verdict, "image-locality")) == ("c", {"a": 0, "b": 15, "c": 24})


@pytest.mark.parametrize(("having", "score"), [(1, 2), (5, 23), (10, 48)])
def test_an_image_that_few_nodes_have_draws_less(having, score):
    cluster = Cluster([node(f"n{number}", images=["app"] if number < having else []) for number in range(10)])
    verdict = decide(cluster, pod(), "image-locality", profile="documents")
    assert scores(verdict, "image-locality") == {f"n{number}": score if number < having else 0 for number in range(10)}


def test_nobody_prefers_a_node_for_images_that_are_nowhere():
    verdict = decide(Cluster([node("a"), node("b", images=["other"])]), pod(), "image-locality", profile="documents")
    assert scores(verdict, "image-locality") == {"a": 0, "b": 0}


def test_pods_that_tolerate_a_dedicated_node_prefer_it():
    cluster = Cluster([node("a"), node("b", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])])
    tolerant = pod(tolerations=[{"key": "team", "value": "x"}])
    assert scores(decide(cluster, tolerant, "prefer-dedicated-nodes"), "prefer-dedicated-nodes") == {"a": 0, "b": 100}
    assert decide(cluster, pod(), "prefer-dedicated-nodes").node == "a"


def test_pods_without_gpus_leave_gpu_nodes_alone():
    cluster = Cluster([node("a", gpus=2), node("b")])
    assert scores(decide(cluster, pod(), "spare-gpu-nodes"), "spare-gpu-nodes") == {"a": 0, "b": 100}
    assert scores(decide(cluster, pod(annotations=gpu(1, 500)), "spare-gpu-nodes"), "spare-gpu-nodes") == {"a": 100}


@pytest.fixture
def trace():
    """a: idle; b: 300 of device 0 free, 7 idle; c: 600 free and 1 idle."""
    cluster = Cluster([node("a", cpu="64", gpus=8), node("b", cpu="64", gpus=8), node("c", cpu="64", gpus=2)])
    cluster.assume(pod("one", cpu="4", annotations=gpu(1, 700)), "b", (0,))
    cluster.assume(pod("two", cpu="16", annotations=gpu(1, 400)), "c", (0,))
    return cluster


def test_the_best_fit_of_the_trace_study_weighs_what_is_left_in_absolute_terms(trace):
    verdict = decide(trace, pod(cpu="8", annotations=gpu(1, 500)), "best-fit/policy", folder="trace")
    # 100 x (1 - cpu left / 128 / 2 - gpu left / 8 / 2): a 56 and 7.5, b 52 and 6.8, c 40 and 1.1
    assert scores(verdict, "trace-best-fit") == {"a": 31, "b": 37, "c": 77}


def test_the_dot_product_of_the_trace_study_weighs_what_is_free_with_what_is_wanted(trace):
    verdict = decide(trace, pod(cpu="32", annotations=gpu(2, 1000)), "dot-product/policy", folder="trace")
    # 100 x (1 - (free / 128 x 32 / 128 + free / 8 x 2 / 8) / 2): c has no two free devices
    assert scores(verdict, "trace-dot-product") == {"a": 81, "b": 82}


def test_gpu_packing_takes_shared_devices_before_free_ones_before_idle_nodes(trace):
    def asked(count, milli):
        return scores(
            decide(trace, pod(annotations=gpu(count, milli)), "gpu-packing/policy", folder="trace"),
            "trace-gpu-packing",
        )

    assert asked(1, 300) == {"a": 25, "b": 97, "c": 94}
    assert asked(1, 700) == {"a": 25, "b": 49, "c": 49}
    assert asked(2, 1000) == {"a": 25, "b": 48}
    assert scores(
        decide(trace, pod(), "gpu-packing/policy", folder="trace"), "trace-gpu-packing",
    ) == {"a": 0, "b": 0, "c": 0}


def test_reasons_that_are_counted_are_those_that_are_explained(measured):
    verdict = decide(measured, pod(priorityClassName="koord-prod", priority=9500), "keep-off-hot-nodes")
    explained = {name: [refusal.message for _, refusal in verdict.why_not(name)] for name in ("hot", "full")}
    assert explained == {
        "hot": ["cpu usage is 70%, the watermark is 65%"], "full": ["memory usage is 92%, the watermark is 90%"]}
    assert {each.reason: each.nodes for each in verdict.refusals()} == {
        reasons[0]: (name,) for name, reasons in explained.items()}
