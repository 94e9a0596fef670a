"""The replay of a small trace against the study's formulas, written out node by node."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.sources.trace import Trace, TraceNode, TracePod, generate
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.fragmentation import fragment, typical_pods
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.scheduler.trace_profile import trace_profile
from koordpolicy.engine.source import Problems

POLICIES = Path(__file__).parents[2] / "policies" / "trace"
KNOWING = ("FragmentationGradient", "trace-gpu-worth")


def small_trace():
    draw = random.Random(11)
    nodes = [
        TraceNode(
            f"n{number:02}", draw.choice([32_000, 64_000, 96_000]), 262_144, draw.choice([1, 2, 4, 8]),
            draw.choice(["T4", "G2"]),
        )
        for number in range(30)
    ]
    pods = []
    for number in range(200):
        gpus, milli = draw.choice([(0, 0), (1, 1000), (1, 1000), (2, 1000), (4, 1000), (1, 460), (1, 250), (1, 810)])
        models = ("T4",) if gpus and draw.random() < 0.2 else ()
        pods.append(
            TracePod(
                f"p{number:03}", draw.choice([1000, 4000, 8000, 11_300]), draw.choice([4096, 16_384]), gpus, milli,
                models,
            ),
        )
    return Trace(tuple(nodes), tuple(pods))


class Node:
    def __init__(self, node):
        self.name, self.model = node.name, node.model
        self.cpu, self.memory, self.free, self.kinds = node.cpu_milli, node.memory_mib, [1000] * node.gpus, set()

    def fits(self, pod):
        enough = pod.cpu_milli <= self.cpu and pod.memory_mib <= self.memory
        devices = not pod.gpus or sum(free >= pod.gpu_milli for free in self.free) >= pod.gpus
        return enough and devices and (not pod.models or self.model in pod.models)

    def devices(self, pod):
        fitting = [minor for minor, free in enumerate(self.free) if free >= pod.gpu_milli]
        return sorted(fitting, key=lambda minor: self.free[minor])[: pod.gpus] if pod.gpus else []


def kind(pod):
    return "share" if pod.gpu_milli < 1000 else pod.gpus


def best_fit(node, pod, typical):
    left = (node.cpu - pod.cpu_milli) / 128_000 * 0.5 + (sum(node.free) - pod.gpu_total) / 8000 * 0.5
    return int(100 * (1 - left)), node.devices(pod)


def dot_product(node, pod, typical):
    product = node.cpu / 128_000 * (pod.cpu_milli / 128_000) + sum(node.free) / 8000 * (pod.gpu_total / 8000)
    return int(100 * (1 - product / 2)), node.devices(pod)


def gpu_clustering(node, pod, typical):
    company = 25
    if kind(pod) in node.kinds:
        company = 75 if len(node.kinds) == 1 else 50
    elif node.kinds:
        company = 0
    return (company + 25 * (8000 - sum(node.free)) // 8000 if pod.gpus else 0), node.devices(pod)


def gpu_packing(node, pod, typical):
    devices = node.devices(pod)
    whole = sum(free == 1000 for free in node.free)
    used = sum(node.free[minor] == 1000 for minor in devices)
    if not pod.gpus:
        score = 0
    elif whole == len(node.free):
        score = max(33 - whole, whole)
    elif used:
        score = max(50 - used, 33)
    else:
        score = max(100 - sum(node.free[minor] * 100 // 1000 for minor in devices) // 10, 50)
    return score, devices


def gradient(node, pod, typical):
    before = fragment(typical, node.cpu, node.free, node.model)[0]
    best = (-1, [])
    share = pod.gpus == 1 and pod.gpu_milli < 1000
    for devices in [
        [minor] for minor, free in enumerate(node.free) if free >= pod.gpu_milli
    ] if share else [node.devices(pod)]:
        after = [free - pod.gpu_milli if minor in devices else free for minor, free in enumerate(node.free)]
        change = before - fragment(typical, node.cpu - pod.cpu_milli, after, node.model)[0]
        best = max(best, (int(100 / (1 + math.exp(-change / 1000))), devices), key=lambda each: each[0])
    return best


def worth(cpu, free, model, typical):
    """Return the worth of free GPUs to the next pods (docs/beyond-fgd.md), computed pod by pod."""
    wanting = [pod for pod in typical if pod.gpus]
    total = sum(pod.probability for pod in wanting)
    first = many = 0.0
    for pod in wanting:
        large = [amount for amount in free if amount >= pod.gpu_milli]
        if len(large) < pod.gpus or (pod.models and model not in pod.models):
            continue
        size = pod.gpus * pod.gpu_milli
        first += pod.probability * sum(large) * (cpu >= pod.cpu_milli)
        many += pod.probability / total * size * min(
            sum(amount // pod.gpu_milli for amount in large) // pod.gpus, cpu / pod.cpu_milli,
        )
    return first + many


def gpu_worth(node, pod, typical):
    devices = node.devices(pod)
    after = [free - pod.gpu_milli if minor in devices else free for minor, free in enumerate(node.free)]
    loss = worth(node.cpu, node.free, node.model, typical) - worth(
        node.cpu - pod.cpu_milli, after, node.model, typical,
    ) - pod.gpu_total
    if pod.gpus and set(node.free) == {1000}:
        loss += 15 * (len(node.free) - pod.gpus)
    # Which of two sums of the same numbers is larger is not what this is about.
    return int(min(100, max(0, 75 - round(loss, 6) / 40))), devices


def replayed(score, workload, typical):
    nodes, placed = [Node(node) for node in workload.nodes], {}
    for pod in workload.pods:
        fitting = [node for node in nodes if node.fits(pod)]
        if not fitting:
            continue
        scored = [score(node, pod, typical) for node in fitting]
        best = max(range(len(fitting)), key=lambda place: scored[place][0])
        node, devices = fitting[best], scored[best][1]
        node.cpu -= pod.cpu_milli
        node.memory -= pod.memory_mib
        for minor in devices:
            node.free[minor] -= pod.gpu_milli
        if pod.gpus:
            node.kinds.add(kind(pod))
        placed[pod.name] = node.name
    return placed


@pytest.mark.parametrize(("score", "folder", "plugin"), [
    (best_fit, "best-fit", ""), (dot_product, "dot-product", ""), (gpu_packing, "gpu-packing", ""),
    (gpu_clustering, "", "GpuClustering"), (gradient, "", "FragmentationGradient"),
    (gpu_worth, "gpu-worth", "trace-gpu-worth"),
])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_pod_runs_where_the_studys_formulas_put_it(score, folder, plugin, seed):
    trace = small_trace()
    typical = typical_pods(trace.pods)
    problems = Problems()
    documents = load_paths([POLICIES / folder]).documents if folder else ()
    plugins = compile_documents(documents, problems)
    assert problems.found == []
    args = {"typicalPods": [each.to_json() for each in typical]} if plugin in KNOWING else {}
    enabled = (PluginChoice(plugin, args=args),) if plugin else ()
    workload = generate(trace, seed=seed, tune=1.3)
    live = Live(Registry.of([*PLUGINS, *plugins], generation=1))
    profile = trace_profile(ProfileSpec(enabled=enabled), (), live.registry.of_framework(Framework.SCHEDULER))
    result = simulate(workload, live, Settings((profile,)), clock=lambda: 0.0)
    assert result.placed == replayed(score, workload, typical)
    assert result.errors == ()
    assert result.failed > 0, "a trace that everything fits into says little"
