"""Cost of a whole decision: ten policy documents beside the built-in plugins, from pod to assumed node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from statistics import fmean, median
from typing import Any

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.engine.source import Problems, Source

from .bench_columns import FILTERS, SCORES, cluster_of
from .figure import Figure

_WARM_UP, _PODS = 300, 1500


def main() -> Iterator[Figure]:
    """Yield milliseconds per pod over 5,000 nodes in steady state, pods with distinct requests, no node left out."""
    for name, others, bound in (("ten policies", False, 1.0), ("ten policies and the built-ins", True, None)):
        taken = _measure(5_000, built_ins=others)
        # The median: on a shared machine the mean is that of the neighbours' time slices too.
        yield Figure(f"{name}, 5000 nodes: median", median(taken) * 1e3, "ms/pod", bound)
        yield Figure(f"{name}, 5000 nodes: mean", fmean(taken) * 1e3, "ms/pod")
        yield Figure(f"{name}, 5000 nodes: 99th percentile", sorted(taken)[len(taken) * 99 // 100] * 1e3, "ms/pod")


def _measure(size: int, *, built_ins: bool) -> list[float]:
    cluster, start = cluster_of(size)
    problems = Problems()
    loaded = load([Source("ten.yaml", documents())])
    problems.extend(loaded.problems)
    plugins = compile_documents(loaded.documents, problems)
    problems.raise_errors()
    profile = ProfileSpec(disabled={None: frozenset() if built_ins else frozenset(plugin.name for plugin in PLUGINS)})
    moment = [start]
    live = Live(Registry.of([*PLUGINS, *plugins], generation=1))
    scheduler = Scheduler(cluster, live, Settings((profile,)), clock=lambda: moment[0])
    random = Random(1)
    taken = []
    for pod in [_pod(number, random) for number in range(_WARM_UP + _PODS)]:
        moment[0] += 5_000_000
        started = time.perf_counter()
        verdict = scheduler.schedule(pod)
        taken.append(time.perf_counter() - started)
        assert verdict.node is not None, verdict.summary()
        assert verdict.errors() == ()
    return taken[_WARM_UP:]


def _pod(number: int, random: Random) -> PodInfo:
    requests = {"cpu": f"{random.randrange(100, 4000)}m", "memory": f"{random.randrange(64, 8192)}Mi"}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    if number % 2:
        spec["nodeSelector"] = {"pool": "general"}
    if number % 3 == 0:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return PodInfo.of({"kind": "Pod", "metadata": {"name": f"pod-{number}", "namespace": "shop"}, "spec": spec})


def documents() -> str:
    texts = []
    for point, expressions in (("filter", FILTERS), ("score", SCORES)):
        for number, expression in enumerate(expressions):
            quoted = expression.replace("'", "''")
            texts.append(
                "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
                f"metadata: {{name: {point}-{number}}}\nspec:\n  {point}:\n  - name: only\n    expression: '{quoted}'\n"
                "",
            )
    return "---\n".join(texts)
