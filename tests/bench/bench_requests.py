"""The needs of the servers of deploy/: resident memory and processor time on the control plane of `make e2e`.

Each server runs alone, with the arguments of its manifest but those of TLS, webhooks and readers' rights. Meanwhile ten
pods per second come and as many go, a node's measurements are reported once a minute, Prometheus reads metrics every
15 seconds (of the console, a viewer its views every 3), and half-way a policy is added. Pods come for the scheduler or,
with the extender, for kube-scheduler; else they are bound already. Memory is that of the server with the processes that
it starts, in proportion where they share it. The agent's figures are those of `bench_agent`.
`KOORD_POLICY_REQUESTS_BENCH` chooses the extent, such as `sizes=100 pods=10 seconds=120 servers=manager`; `pods` is the
number on each node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp

from ..e2e.control_plane import ControlPlane, free_ports
from ..e2e.custom_resources import ALL, COLOCATION_PROFILE, NODE_METRIC, define
from ..e2e.roles import NAMESPACE, create_definitions, manifests, pod_spec
from ..process_figures import processor_time
from .descheduler_cluster import node_metrics, pods
from .figure import Figure
from .live_load import ROOT, Api, api_of, built, kube_scheduler, node_name, pod, running, until_ready

_POLICIES: Final = {"scheduler": "scheduler", "extender": "scheduler", "descheduler": "descheduler"}
_SERVERS: Final = ("scheduler", "extender", "descheduler", "manager", "console")
_LEFT_OUT: Final = ("--tls-", "--client-ca", "--authentication-kubeconfig", "--host-name", "--webhook-bind")
_ARRIVALS_PER_S: Final = 10
_LIVES_S: Final = 20
_READY_S: Final = 300.0
_VIEWS: Final = ("versions", "overview", "servers", "waiting")


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run."""

    sizes: tuple[int, ...] = (100, 1000)
    pods: int = 10
    seconds: int = 120
    servers: tuple[str, ...] = _SERVERS

    @staticmethod
    def of(text: str) -> Extent:
        """Return the extent that a text of `name=value` words gives; values are separated by commas."""
        values = dict(word.split("=", 1) for word in text.split())
        sizes = tuple(map(int, values.pop("sizes", "100,1000").split(",")))
        servers = tuple(values.pop("servers", ",".join(_SERVERS)).split(","))
        return Extent(sizes=sizes, servers=servers, **{name: int(value) for name, value in values.items()})


def main() -> Iterator[Figure]:
    """Yield memory and processor time of each server, for each size of the cluster."""
    binary, extent = built(), Extent.of(os.environ.get("KOORD_POLICY_REQUESTS_BENCH", ""))
    for nodes in extent.sizes:
        with TemporaryDirectory() as folder, ControlPlane(binary, Path(folder)) as control_plane:
            define(control_plane.admin, *ALL, COLOCATION_PROFILE)
            create_definitions(control_plane.admin, "policies")
            cluster = Cluster(control_plane, Path(folder), nodes, nodes * extent.pods)
            asyncio.run(cluster.fill())
            for name in extent.servers:
                yield from asyncio.run(cluster.measured(name, extent.seconds))


class Cluster:
    """A cluster under its usual changes."""

    def __init__(self, control_plane: ControlPlane, directory: Path, nodes: int, pods: int) -> None:
        self._plane = control_plane
        self._directory = directory
        self._nodes = nodes
        self._pods = pods
        self._reports: dict[str, dict[str, Any]] = {}

    async def fill(self) -> None:
        """Create nodes, running pods of 200 workloads, and measurements."""
        async with api_of(self._plane) as api:
            await api.add_nodes(self._nodes)
            await api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            made = list(pods(self._nodes, self._pods))
            for namespace in sorted({each["metadata"]["namespace"] for each in made}):
                await api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

            async def run(item: dict[str, Any]) -> None:
                metadata, status = item["metadata"], item["status"]
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
                spec = {name: value for name, value in item["spec"].items() if name != "priority"}
                # The volume of the account's token is without its sources, which the API server wants.
                spec["volumes"] = [each for each in spec["volumes"] if "projected" not in each]
                await api.request("POST", path, {**item, "spec": spec, "metadata": {
                    name: value for name, value in metadata.items() if name != "uid"}})
                containers = [{"image": "example/main", "imageID": "", **each} for each in status["containerStatuses"]]
                await api.patch(f"{path}/{metadata['name']}/status", {
                    "status": {**status, "containerStatuses": containers}})

            for first in range(0, len(made), 2000):
                await asyncio.gather(*map(run, made[first:first + 2000]))
            for item in node_metrics(made):
                name = item["metadata"]["name"]
                self._reports[name] = item["status"]
                await api.request("POST", NODE_METRIC.path(), {
                    "apiVersion": NODE_METRIC.api_version, "kind": NODE_METRIC.kind, "metadata": {"name": name},
                    "spec": {}})
                await self._report(api, name)

    async def _report(self, api: Api, name: str) -> None:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await api.patch(f"{NODE_METRIC.path('', name)}/status", {"status": {**self._reports[name], "updateTime": at}})

    async def measured(self, name: str, seconds: int) -> list[Figure]:
        """Return the figures of a server over so many seconds after it is ready."""
        directory = self._directory / name
        policies = directory / "policies"
        if name in _POLICIES:
            shutil.copytree(ROOT / "policies" / _POLICIES[name], policies)
        port, *others = free_ports(3)
        command = _command(name, directory, port, others)
        os.environ["KUBECONFIG"] = str(self._plane.kubeconfig())
        url = f"http://127.0.0.1:{port}"
        async with api_of(self._plane) as api, aiohttp.ClientSession() as session:
            namespace = f"load-{name}"
            await api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            with contextlib.ExitStack() as stack:
                process = stack.enter_context(running(command, self._plane))
                began = time.monotonic()
                await until_ready(f"{url}/{'' if name == 'console' else 'readyz'}", process, _READY_S)
                print(f"{name} is ready after {time.monotonic() - began:.0f} s", file=sys.stderr)
                start = _processor(process.pid)
                if name == "extender":
                    stack.enter_context(running(kube_scheduler(self._plane, url), self._plane))
                scheduler = {"scheduler": "koord-policy", "extender": "default-scheduler"}.get(name)
                async with _background(self._arrivals(api, namespace, scheduler), self._reporting(api),
                                       _reading(session, url, name)):
                    samples = await _sampled(process, seconds, lambda: _add_policy(policies))
            await api.remove(namespace)
        label = f"{name}, {self._nodes} nodes, {self._pods} pods"
        return [
            Figure(f"{label}: memory", median(samples.memory[len(samples.memory) // 2:]), "MiB"),
            Figure(f"{label}: memory, peak", max(samples.memory), "MiB"),
            Figure(f"{label}: processor", samples.processor_s / samples.seconds * 1000, "millicores"),
            Figure(f"{label}: processor, of the start", start, "s"),
        ]

    async def _arrivals(self, api: Api, namespace: str, scheduler: str | None) -> None:
        path, start = f"/api/v1/namespaces/{namespace}/pods", time.monotonic()
        number = 0
        while True:
            await asyncio.sleep(max(0.0, start + number / _ARRIVALS_PER_S - time.monotonic()))
            item = pod(number, node=None if scheduler else node_name(number % self._nodes))
            if scheduler:
                item["spec"]["schedulerName"] = scheduler
            await api.request("POST", path, item)
            if number >= _LIVES_S * _ARRIVALS_PER_S:
                gone = pod(number - _LIVES_S * _ARRIVALS_PER_S)["metadata"]["name"]
                await api.request("DELETE", f"{path}/{gone}?gracePeriodSeconds=0")
            number += 1

    async def _reporting(self, api: Api) -> None:
        names, start, number = list(self._reports), time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0.0, start + number * 60 / len(names) - time.monotonic()))
            await self._report(api, names[number % len(names)])
            number += 1


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements of a server and its children while it worked."""

    memory: list[float]
    """MiB, once a second."""
    processor_s: float
    seconds: float


def _command(name: str, directory: Path, port: int, others: list[int]) -> list[str]:
    """Return the command of a server with the arguments of its manifest, with places of this machine."""
    [container] = pod_spec(name)["containers"]
    for item in manifests(name):
        if item["kind"] == "ConfigMap":
            (directory / "config").mkdir(parents=True)
            for file, text in item["data"].items():
                (directory / "config" / file).write_text(text)
    (directory / "state").mkdir(parents=True, exist_ok=True)
    free = iter(others)
    words = []
    for word in container["args"]:
        option, _, value = word.partition("=")
        if word.startswith(_LEFT_OUT):
            continue
        if value.startswith("0.0.0.0:"):
            words.append(f"{option}=127.0.0.1:{port if option == '--bind' else next(free)}")
        else:
            words.append(word.replace("/etc/koord-policy", str(directory)).replace(
                "/var/lib/koord-policy", str(directory / "state")))
    return [sys.executable, "-m", "koordpolicy", *words]


@contextlib.asynccontextmanager
async def _background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let these work meanwhile; an error of theirs is raised at the end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        failed = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise RuntimeError(f"the load ended: {failed[0]!r}")


async def _reading(session: aiohttp.ClientSession, url: str, name: str) -> None:
    """Read what is usually read of a server, again and again."""
    paths = [f"api/v1/{view}" for view in _VIEWS] if name == "console" else ["metrics"]
    while True:
        for path in paths:
            async with session.get(f"{url}/{path}") as answer:
                await answer.read()
        await asyncio.sleep(3 if name == "console" else 15)


async def _sampled(process: subprocess.Popen[bytes], seconds: int, half_way: Callable[[], None]) -> Samples:
    """Sample a process once a second; in the middle something is done."""
    before, began = _processor(process.pid), time.monotonic()
    memory = list[float]()
    for second in range(seconds):
        if second == seconds // 2:
            half_way()
        await asyncio.sleep(max(0.0, began + second - time.monotonic()))
        memory.append(_memory(process.pid))
    return Samples(memory, _processor(process.pid) - before, time.monotonic() - began)


def _add_policy(policies: Path) -> None:
    """Add a policy, if there are any: one of them under another name."""
    for path in sorted(policies.glob("*.yaml"))[:1]:
        (policies / "added.yaml").write_text(re.sub(r"(?m)^  name: (\S+)$", r"  name: \1-again", path.read_text()))


def _processor(pid: int) -> float:
    """Return the seconds of processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return processor_time(pid) + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Return the resident MiB of a process and its children; what several share is counted once."""
    kib = 0
    for each in _family(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
            kib += int(text.partition("\nPss:")[2].split()[0])
    return kib / 1024


def _family(pid: int) -> set[int]:
    """Return a process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, more = {pid}, True
    while more:
        children = {each for each, parent in parents.items() if parent in found} - found
        found |= children
        more = bool(children)
    return found
