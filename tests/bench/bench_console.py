"""The cost of the console's viewers for a running scheduler, in turns on one control plane (that of `make e2e`).

The scheduler binds pods without a console, with one over it and a viewer, and with 50. A viewer does what the overview
does: it waits for changes, and then loads servers, waiting pods and the overview. Console and viewers share the cores
with the scheduler here, so that pods per second say little. Judged is the share of one processor that the scheduler
takes for the calls when it has bound all pods: so much less it has for decisions while it is busy.
`KOORD_POLICY_CONSOLE_BENCH` chooses the extent, such as `nodes=500 turns=1 pods=1000`.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from ..e2e.control_plane import ControlPlane, free_ports
from ..process_figures import processor_time
from .figure import Figure
from .live_load import ROOT, Api, api_of, built, koord_policy, pod, running, until_ready

_VIEWERS: Final = (0, 1, 50)
_BOUND: Final = 5.0
_CALM_S: Final = 20.0
_READY_S: Final = 120.0
_BIND_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run."""

    nodes: int = 1000
    turns: int = 3
    pods: int = 2000

    @staticmethod
    def of(text: str) -> Extent:
        """Return the extent that a text of `name=value` words gives."""
        return Extent(**{name: int(value) for name, value in (word.split("=", 1) for word in text.split())})


@dataclass(frozen=True, slots=True)
class Load:
    """The measurements of one turn."""

    cpu_ms: float
    """Processor time of the scheduler per pod."""
    calm: float
    """Percent of a processor that it takes without anything to decide."""
    pods_per_second: float
    views: int
    """Answers that the viewers got."""


def main() -> Iterator[Figure]:
    """Yield the processor time per pod by the number of viewers, and the ratio that is judged."""
    extent = Extent.of(os.environ.get("KOORD_POLICY_CONSOLE_BENCH", ""))
    with TemporaryDirectory() as folder, ControlPlane(built(), Path(folder)) as control_plane:
        turns = asyncio.run(_measured(control_plane, extent))
    for viewers, found in turns.items():
        name = f"{viewers} viewer{'s' if viewers > 1 else ''}" if viewers else "no console"
        yield Figure(f"console: scheduler, {name}", median(each.cpu_ms for each in found), "ms of processor per pod")
        yield Figure(f"console: calm scheduler, {name}", median(each.calm for each in found), "% of a processor")
        yield Figure(f"console: throughput, {name}", median(each.pods_per_second for each in found), "pods/s",
                     more_is_better=True)
        if viewers:
            yield Figure(f"console: answers, {name}", median(each.views for each in found), "answers")
    for viewers in _VIEWERS[1:]:
        more = [one.calm - none.calm for none, one in zip(turns[0], turns[viewers], strict=True)]
        yield Figure(f"console: cost of {viewers} viewer{'s' if viewers > 1 else ''}", median(more),
                     "% of a processor", _BOUND)


async def _measured(control_plane: ControlPlane, extent: Extent) -> dict[int, list[Load]]:
    found: dict[int, list[Load]] = {each: [] for each in _VIEWERS}
    async with api_of(control_plane) as api:
        await api.add_nodes(extent.nodes)
        for turn in range(extent.turns):
            for viewers in _VIEWERS[turn % len(_VIEWERS):] + _VIEWERS[:turn % len(_VIEWERS)]:
                found[viewers].append(await _turn(api, control_plane, extent.pods, viewers))
    return found


async def _turn(api: Api, control_plane: ControlPlane, pods: int, viewers: int) -> Load:
    namespace = await api.namespace()
    (port,) = free_ports(1)
    command = [*koord_policy(control_plane, (ROOT / "policies" / "scheduler",)), "--bind", f"127.0.0.1:{port}"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    with running(command, control_plane) as process:
        await until_ready(f"http://127.0.0.1:{port}/readyz", process, _READY_S)
        async with _looking(f"http://127.0.0.1:{port}", viewers) as count:
            seconds, began = processor_time(process.pid), time.monotonic()
            await api.all(path, [pod(number) for number in range(pods)])
            while (await api.request("GET", f"{path}?fieldSelector=spec.nodeName%3D&limit=1"))["items"]:
                if process.poll() is not None or time.monotonic() - began > _BIND_S:
                    raise TimeoutError(f"{process.args!r} did not bind all pods in {_BIND_S:g} s")
                await asyncio.sleep(0.1)
            seconds, took = processor_time(process.pid) - seconds, time.monotonic() - began
            await asyncio.sleep(_CALM_S / 4)  # events of the last pods are written
            calm, began = processor_time(process.pid), time.monotonic()
            await asyncio.sleep(_CALM_S)
            calm = 100 * (processor_time(process.pid) - calm) / (time.monotonic() - began)
            views = count()
    await api.remove(namespace)
    return Load(1000 * seconds / pods, calm, pods / took, views)


class _Count:
    """Counts answers."""

    def __init__(self) -> None:
        self.answers = 0

    def __call__(self) -> int:
        return self.answers


@asynccontextmanager
async def _looking(endpoint: str, viewers: int) -> AsyncIterator[_Count]:
    """Run a console over a scheduler, with viewers; without viewers there is no console."""
    count = _Count()
    if not viewers:
        yield count
        return
    command = [sys.executable, "-m", "koordpolicy", "console", "--cluster", "kube", "--policies",
               str(ROOT / "policies" / "scheduler"), "--endpoints", endpoint, "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as console:
        try:
            assert console.stdout is not None
            line = await asyncio.to_thread(console.stdout.readline)
            found = re.search(r"http://\S+(?=/\n)", line)
            if found is None:
                raise RuntimeError(f"{command!r} printed {line!r}")
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                tasks = [asyncio.create_task(_view(session, f"{found[0]}/api/v1", count)) for _ in range(viewers)]
                try:
                    yield count
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            console.terminate()


async def _view(session: aiohttp.ClientSession, url: str, count: _Count) -> None:
    """Load the overview, and what has changed of it."""
    known: dict[str, str] = {}
    next_overview = 0.0
    while True:
        async with session.get(f"{url}/versions", params=known) as answer:
            if answer.status != 200:
                await asyncio.sleep(5)
                continue
            now = {name: str(value) for name, value in (await answer.json()).items()}
        names = ["servers", "waiting"] if now["servers"] != known.get("servers") else []
        if now["cluster"] != known.get("cluster") and time.monotonic() >= next_overview:
            next_overview = time.monotonic() + 3
            names.append("overview")
        known = now
        for name in names:
            async with session.get(f"{url}/{name}") as answer:
                await answer.read()
                count.answers += answer.status == 200
