"""The live scheduler and kube-scheduler, in turns, on one control plane: etcd and kube-apiserver of `make e2e`.

Both schedulers run as processes without leader election and without a limit of requests, and share the machine's cores
with the control plane. Each is started once before the turns, so that ours is compiled then, as it is in an image.
Throughput is that of plain pods that wait when the scheduler starts, from the first binding to the last one as a watch
shows them, beside which both write a Scheduled event for each pod. Pods that arrive one by one show the latency, and
the watch lag by our histogram. `KOORD_POLICY_LIVE_BENCH` chooses what is measured, such as `sizes=1000 turns=1
pods=2000`; `running=50000` puts so many bound pods on the nodes first, which counts for start and memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ..e2e.control_plane import ControlPlane, free_ports
from .figure import Figure
from .live_load import (
    ROOT,
    Api,
    Turn,
    api_of,
    built,
    koord_policy,
    kube_scheduler,
    node_name,
    pod,
    running,
    throughput,
    until,
    warm_up,
)

_ARRIVALS_PER_S: Final = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """The extent of a run."""

    sizes: Sequence[int] = (1000, 5000)
    turns: int = 5
    pods: int = 2000
    arrivals: int = 1000
    running: int = 0

    @staticmethod
    def of(text: str) -> Settings:
        """Return the settings that a text of `name=value` words gives; `sizes` are separated by commas."""
        values = dict(word.split("=", 1) for word in text.split())
        sizes = tuple(map(int, values.pop("sizes", "1000,5000").split(",")))
        return Settings(sizes, **{name: int(value) for name, value in values.items()})


def main() -> Iterator[Figure]:
    """Yield throughput, start, memory and latency of both schedulers, and the ratios that are judged."""
    binary = built()
    settings = Settings.of(os.environ.get("KOORD_POLICY_LIVE_BENCH", ""))
    for nodes in settings.sizes:
        with TemporaryDirectory() as folder, ControlPlane(binary, Path(folder)) as control_plane:
            yield from asyncio.run(_measured(control_plane, nodes, settings))


async def _measured(control_plane: ControlPlane, nodes: int, settings: Settings) -> list[Figure]:
    rivals: dict[str, Callable[[], list[str]]] = {
        "kube-scheduler": lambda: kube_scheduler(control_plane),
        "koord-policy": lambda: koord_policy(control_plane, ()),
        "koord-policy, policies/scheduler": lambda: koord_policy(control_plane, (ROOT / "policies" / "scheduler",)),
    }
    turns: dict[str, list[Turn]] = {name: [] for name in rivals}
    latencies: dict[str, list[float]] = {name: [] for name in rivals}
    lags: dict[str, float] = {}
    async with api_of(control_plane) as api:
        await api.add_nodes(nodes)
        if settings.running:
            await api.all(f"/api/v1/namespaces/{await api.namespace()}/pods", [
                pod(number, node=node_name(number % nodes)) for number in range(settings.running)])
        for command in rivals.values():
            await warm_up(api, command(), control_plane)
        for number in range(settings.turns):
            order = list(rivals.items())
            for name, command in order if number % 2 == 0 else reversed(order):
                turns[name].append(await throughput(api, command(), control_plane, settings.pods))
        for name, command in rivals.items():
            port = None if name == "kube-scheduler" else free_ports(1)[0]
            bind = () if port is None else ("--bind", f"127.0.0.1:{port}")
            latencies[name], lag = await _latency(api, [*command(), *bind], control_plane, settings.arrivals, port)
            if lag is not None:
                lags[name] = lag
    return list(_figures(nodes, turns, latencies, lags))


def _figures(
    nodes: int, turns: Mapping[str, Sequence[Turn]], latencies: Mapping[str, list[float]], lags: Mapping[str, float],
) -> Iterator[Figure]:
    rival = turns["kube-scheduler"]
    for name, taken in turns.items():
        label = f"live, {nodes} nodes, {name}"
        yield Figure(f"{label}: pods bound", median(turn.pods_per_second for turn in taken), "pods/s")
        yield Figure(f"{label}: start to first binding", median(turn.ready_s for turn in taken), "s")
        yield Figure(f"{label}: memory", median(turn.memory_mib for turn in taken), "MiB")
        yield Figure(f"{label}: processor time", median(turn.cpu_s for turn in taken), "s")
        yield Figure(f"{label}: Scheduled events per pod", median(turn.events for turn in taken), "events")
        yield Figure(f"{label}: creation to binding, p99", _p99(latencies[name]) * 1e3, "ms")
        if name in lags:
            yield Figure(f"{label}: watch lag, p99 at most", lags[name] * 1e3, "ms")
    for name, bound in (("koord-policy", 1.2), ("koord-policy, policies/scheduler", 1.0)):
        pairs = zip(turns[name], rival, strict=True)
        ratios = [ours.pods_per_second / theirs.pods_per_second for ours, theirs in pairs]
        yield Figure(f"live, {nodes} nodes, {name} / kube-scheduler: pods bound", median(ratios), "times", bound,
                     more_is_better=True)
    ours, theirs = turns["koord-policy"], rival
    label = f"live, {nodes} nodes, koord-policy / kube-scheduler"
    yield Figure(f"{label}: start to first binding", _ratio(ours, theirs, lambda turn: turn.ready_s), "times", 1.5)
    yield Figure(f"{label}: memory", _ratio(ours, theirs, lambda turn: turn.memory_mib), "times", 1.0)
    yield Figure(f"{label}: creation to binding, p99",
                 _p99(latencies["koord-policy"]) / _p99(latencies["kube-scheduler"]), "times", 1.0)


def _ratio(ours: Sequence[Turn], theirs: Sequence[Turn], of: Callable[[Turn], float]) -> float:
    return median(of(one) / of(other) for one, other in zip(ours, theirs, strict=True))


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100]


async def _latency(
    api: Api, command: list[str], control_plane: ControlPlane, pods: int, port: int | None,
) -> tuple[list[float], float | None]:
    """Return the seconds from creation to binding of pods that arrive one by one, after the scheduler is ready.

    With the port of our metrics, also the bound below which 99 of 100 changes waited to be applied.
    """
    namespace = await api.namespace()
    path = f"/api/v1/namespaces/{namespace}/pods"
    bound: dict[str, float] = {}
    created: dict[str, float] = {}
    async with api.bindings(namespace, bound):
        with running(command, control_plane) as process:
            await api.request("POST", path, pod(pods))
            await until(lambda: len(bound) == 1, process)
            waiting = []
            start = time.monotonic()
            for number in range(pods):
                await asyncio.sleep(max(0.0, start + number / _ARRIVALS_PER_S - time.monotonic()))
                created[f"pod-{number:05}"] = time.monotonic()
                waiting.append(asyncio.create_task(api.request("POST", path, pod(number))))
            await asyncio.gather(*waiting)
            await until(lambda: len(bound) > pods, process)
            lag = None if port is None else await _watch_lag(port)
    await api.remove(namespace)
    return [bound[name] - at for name, at in created.items()], lag


async def _watch_lag(port: int) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    (family,) = [each for each in text_string_to_metric_families(text) if each.name == "koord_policy_watch_lag_seconds"]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    return next(float(bound) for bound, count in buckets.items() if count >= 0.99 * buckets["+Inf"])
