"""kube-scheduler with the extender and `policies/scheduler`, beside kube-scheduler alone, on one control plane.

Pods bound per second are measured as in `bench_live`, in turns. Then calls of /filter and /prioritize with the names of
all nodes are timed at the client, one pair after the other, while 500 objects per second change.
`KOORD_POLICY_EXTENDER_BENCH` chooses what is measured, such as `nodes=1000 turns=3 large=5000`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from ..e2e.control_plane import ControlPlane, free_ports
from .figure import Figure
from .live_load import ROOT, Api, Turn, api_of, built, kube_scheduler, node_name, pod, running, throughput

_CHANGES_PER_S: Final = 500
_CHANGERS: Final = 16
_SETTINGS: Final = {"nodes": 1000, "turns": 3, "pods": 1000, "large": 5000, "seconds": 30}
_READY_S: Final = 120.0


def main() -> Iterator[Figure]:
    """Yield throughput with and without the extender, and the times of calls among changes."""
    binary = built()
    words = (word.split("=", 1) for word in os.environ.get("KOORD_POLICY_EXTENDER_BENCH", "").split())
    settings = _SETTINGS | {name: int(value) for name, value in words}
    with TemporaryDirectory() as folder, ControlPlane(binary, Path(folder)) as control_plane:
        yield from asyncio.run(_throughputs(control_plane, settings["nodes"], settings["turns"], settings["pods"]))
    with TemporaryDirectory() as folder, ControlPlane(binary, Path(folder)) as control_plane:
        yield from asyncio.run(_calls(control_plane, settings["large"], settings["seconds"]))


async def _throughputs(control_plane: ControlPlane, nodes: int, turns: int, pods: int) -> list[Figure]:
    alone, extended = list[Turn](), list[Turn]()
    async with api_of(control_plane) as api:
        await api.add_nodes(nodes)
        for number in range(turns):
            for with_extender in (False, True) if number % 2 == 0 else (True, False):
                if not with_extender:
                    alone.append(await throughput(api, kube_scheduler(control_plane), control_plane, pods))
                    continue
                async with _extender(control_plane) as url:
                    extended.append(await throughput(api, kube_scheduler(control_plane, url), control_plane, pods))
    label = f"live extender, {nodes} nodes"
    ratios = [with_it.pods_per_second / one.pods_per_second for with_it, one in zip(extended, alone, strict=True)]
    return [
        Figure(f"{label}: kube-scheduler alone", median(turn.pods_per_second for turn in alone), "pods/s"),
        Figure(f"{label}: kube-scheduler with it", median(turn.pods_per_second for turn in extended), "pods/s"),
        Figure(f"{label}: with it / alone", median(ratios), "times", 0.5, more_is_better=True),
    ]


async def _calls(control_plane: ControlPlane, nodes: int, seconds: int) -> list[Figure]:
    async with api_of(control_plane) as api, _extender(control_plane) as url:
        await api.add_nodes(nodes)
        namespace = await api.namespace()
        names = [node_name(number) for number in range(nodes)]
        await api.all(f"/api/v1/namespaces/{namespace}/pods", [
            pod(number, node=names[number]) for number in range(min(nodes, 1000))])
        times, changed = list[float](), list[int]()
        changing = asyncio.create_task(_change(api, namespace, min(nodes, 1000), changed))
        async with aiohttp.ClientSession(url) as session:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                asked = json.dumps({"Pod": _unbound(len(times)), "NodeNames": names}).encode()
                for verb in ("filter", "prioritize"):
                    started = time.monotonic()
                    async with session.post(f"/{verb}", data=asked) as answer:
                        await answer.read()
                        assert answer.status == 200, answer.status
                    times.append(time.monotonic() - started)
                await asyncio.sleep(0.02)
        changing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await changing
    times.sort()
    label = f"live extender, {nodes} nodes, {_CHANGES_PER_S} changes/s"
    return [
        Figure(f"{label}: calls", len(times), "calls"),
        Figure(f"{label}: changed", len(changed) / seconds, "1/s"),
        Figure(f"{label}: a call, p99", times[len(times) * 99 // 100] * 1e3, "ms", 20),
        Figure(f"{label}: a call, longest", times[-1] * 1e3, "ms", 100),
    ]


def _unbound(number: int) -> dict[str, object]:
    asked = pod(number)
    metadata = {**asked["metadata"], "namespace": "default", "uid": f"uid-{number}", "name": f"asked-{number}"}
    return {**asked, "metadata": metadata}


async def _change(api: Api, namespace: str, pods: int, done: list[int]) -> None:
    """Change labels of pods at a constant rate, until cancelled; `done` grows by each pod that was changed."""
    start, numbers = time.monotonic(), itertools.count()

    async def work() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, start + number / _CHANGES_PER_S - time.monotonic()))
            path = f"/api/v1/namespaces/{namespace}/pods/{pod(number % pods)['metadata']['name']}"
            await api.patch(path, {"metadata": {"labels": {"turn": str(number)}}})
            done.append(number)

    async with asyncio.TaskGroup() as workers:
        for _ in range(_CHANGERS):
            workers.create_task(work())


@asynccontextmanager
async def _extender(control_plane: ControlPlane) -> AsyncIterator[str]:
    """A running extender that is ready; yields its URL."""
    os.environ["KUBECONFIG"] = str(control_plane.kubeconfig())
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", url.removeprefix("http://"),
               "--cluster", "kube", "--policies", str(ROOT / "policies" / "scheduler")]
    with running(command, control_plane):
        async with aiohttp.ClientSession(url) as session:
            end = time.monotonic() + _READY_S
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("/readyz") as answer:
                        if answer.status == 200:
                            break
                if time.monotonic() > end:
                    raise TimeoutError("the extender is not ready")
                await asyncio.sleep(0.2)
        yield url
