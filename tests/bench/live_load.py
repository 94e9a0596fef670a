"""A cluster under load for benchmarks of live schedulers: its API, the schedulers as processes, and pods to bind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from ..e2e.build import CannotBuild, cached_binary
from ..e2e.control_plane import ControlPlane
from ..process_figures import memory_mib, processor_time
from .figure import Missing

ROOT: Final = Path(__file__).resolve().parents[2]
_AT_ONCE: Final = 64
_LIMIT_S: Final = 300.0
_ALL_RIGHTS: Final = {  # kube-scheduler's user has its own flow in the server's fairness, but cannot read our kinds
    "metadata": {"name": "bench"}, "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}]}


def built() -> Path:
    """Return the control plane's binary; raises `Missing` if it is not there."""
    try:
        binary = cached_binary()
    except CannotBuild as error:
        raise Missing(str(error)) from None
    if not binary.exists():
        raise Missing("there is no control plane yet: `make e2e` builds it")
    return binary


@dataclass(frozen=True, slots=True)
class Turn:
    """The measurements of one scheduler in one turn."""

    pods_per_second: float
    """From the first binding to the last."""
    ready_s: float
    """From the start of the process to its first binding."""
    memory_mib: float
    """The peak of the process's resident memory."""
    cpu_s: float
    """Processor time of the process, its start included."""
    events: float
    """Scheduled events per pod: less than 1 if some were dropped."""


def kube_scheduler(control_plane: ControlPlane, extender: str | None = None) -> list[str]:
    """Return the command of kube-scheduler, with the extender at a URL if there is one."""
    kubeconfig = control_plane.kubeconfig("system:kube-scheduler")
    configuration = kubeconfig.with_suffix(".config.json")
    configuration.write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False}, **({} if extender is None else {"extenders": [{
            "urlPrefix": extender, "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1,
            "nodeCacheCapable": True, "httpTimeout": "10s"}]})}))
    return [str(cached_binary()), "kube-scheduler", f"--config={configuration}", "--secure-port=0"]


def koord_policy(control_plane: ControlPlane, policies: Sequence[Path]) -> list[str]:
    os.environ["KUBECONFIG"] = str(control_plane.kubeconfig("system:kube-scheduler"))
    return [sys.executable, "-m", "koordpolicy", "scheduler", "--cluster", "kube", "--leader-elect=false",
            "--kube-api-qps", "0", "--scheduler-name", "default-scheduler",
            *(word for path in policies for word in ("--policies", str(path)))]


async def warm_up(api: Api, command: list[str], control_plane: ControlPlane) -> None:
    """Let a scheduler bind one pod: then its files are in memory, and its modules are compiled."""
    namespace = await api.namespace()
    await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(0))
    bound: dict[str, float] = {}
    async with api.bindings(namespace, bound):
        with running(command, control_plane) as process:
            await until(lambda: len(bound) > 0, process)
    await api.remove(namespace)


async def throughput(api: Api, command: list[str], control_plane: ControlPlane, pods: int) -> Turn:
    namespace = await api.namespace()
    await api.all(f"/api/v1/namespaces/{namespace}/pods", [pod(number) for number in range(pods)])
    bound: dict[str, float] = {}
    async with api.bindings(namespace, bound):
        with running(command, control_plane) as process:
            started = time.monotonic()
            await until(lambda: len(bound) >= pods, process)
            times = sorted(bound.values())
            events = await _last_count(lambda: api.scheduled_events(namespace), pods)
            memory, cpu = _usage(process.pid)
    await api.remove(namespace)
    return Turn((pods - 1) / (times[-1] - times[0]), times[0] - started, memory, cpu, events / pods)


async def until(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not done():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process.args!r} did not bind all pods in {_LIMIT_S:g} s")
        await asyncio.sleep(0.05)


async def _last_count(count: Callable[[], Awaitable[int]], most: int) -> int:
    """Return the number of events once it is `most`, or has not grown for 3 s."""
    found, grown = await count(), time.monotonic()
    while found < most and time.monotonic() - grown < 3:
        await asyncio.sleep(0.25)
        now = await count()
        if now > found:
            found, grown = now, time.monotonic()
    return found


class running:  # noqa: N801 - used like a function
    """Runs a scheduler inside of the context; its log lies beside the control plane's."""

    def __init__(self, command: list[str], control_plane: ControlPlane) -> None:
        self._command = command
        self._log = control_plane.certificate_authority.parent / "scheduler.log"

    def __enter__(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment())
        return self._process

    def _environment(self) -> dict[str, str]:
        """Return the environment of a process whose modules are compiled once, as in an image, not at each start."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPYCACHEPREFIX": str(self._log.parent / "bytecode")}

    def __exit__(self, kind: object, *_exception: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if kind is not None:
            print(self._log.read_text(errors="replace")[-3000:], file=sys.stderr)


def _usage(pid: int) -> tuple[float, float]:
    return memory_mib(pid, "VmHWM"), processor_time(pid)


class Api:
    """The load: requests of the cluster's administrator, many at a time."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._namespaces = 0

    async def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send a request and return the decoded answer. Raises RuntimeError for any answer but 2xx."""
        data = None if body is None else json.dumps(body).encode()
        async with self._at_once, self._session.request(
                method, path, data=data, headers={"Content-Type": content_type}) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
            return json.loads(content)

    async def all(self, path: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create objects."""
        await asyncio.gather(*[self.request("POST", path, each) for each in objects])

    async def add_nodes(self, count: int) -> None:
        """Create nodes that take pods, and give kube-scheduler's user all rights."""
        await self.all("/api/v1/nodes", [_node(number) for number in range(count)])
        await self.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _ALL_RIGHTS)
        # The taint is set by admission; the controller that removes it does not run.
        await asyncio.gather(*[
            self.patch(f"/api/v1/nodes/{node_name(number)}", {"spec": {"taints": None}}) for number in range(count)])

    async def patch(self, path: str, change: Mapping[str, Any]) -> None:
        """Send a merge patch."""
        await self.request("PATCH", path, change, "application/merge-patch+json")

    async def namespace(self) -> str:
        """Create a namespace and return its name."""
        self._namespaces += 1
        name = f"bench-{self._namespaces}"
        await self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    async def remove(self, namespace: str) -> None:
        """Delete all pods and events of a namespace; returns when the pods are gone."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        await self.request("DELETE", f"{path}?gracePeriodSeconds=0")
        await self.request("DELETE", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        while (await self.request("GET", f"{path}?limit=1"))["items"]:
            await asyncio.sleep(0.2)

    async def scheduled_events(self, namespace: str) -> int:
        """Return the number of Scheduled events in a namespace."""
        path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason%3DScheduled&resourceVersion=0"
        async with self._session.get(path) as answer:
            return (await answer.read()).count(b'"reason":"Scheduled"')

    @asynccontextmanager
    async def bindings(self, namespace: str, bound: dict[str, float]) -> AsyncIterator[None]:
        """Note when each pod of a namespace is bound, by a watch of the bound ones; times are monotonic seconds."""
        path = f"/api/v1/namespaces/{namespace}/pods?watch=1&fieldSelector=spec.nodeName!%3D"
        # Names alone: the watch takes as little of the machine as it can.
        accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(path, headers=accept, timeout=timeout) as answer:

            async def follow() -> None:
                async for line in answer.content:
                    bound.setdefault(json.loads(line)["object"]["metadata"]["name"], time.monotonic())

            task = asyncio.create_task(follow())
            try:
                yield
            finally:
                task.cancel()


@asynccontextmanager
async def api_of(control_plane: ControlPlane) -> AsyncIterator[Api]:
    kubeconfig = json.loads(control_plane.kubeconfig().read_text())
    token = kubeconfig["users"][0]["user"]["token"]
    context = ssl.create_default_context(cafile=str(control_plane.certificate_authority))
    connector = aiohttp.TCPConnector(ssl=context, limit=_AT_ONCE + 2)
    async with aiohttp.ClientSession(
            control_plane.url, connector=connector, headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield Api(session)


async def until_ready(url: str, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a server answers 200; raises `RuntimeError` if it ends, or takes longer."""
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} is not ready after {seconds:g} s, or ended")
            await asyncio.sleep(0.1)


def node_name(number: int) -> str:
    return f"node-{number:05}"


def _node(number: int) -> dict[str, Any]:
    amounts, name = {"cpu": "32", "memory": "128Gi", "pods": "110"}, node_name(number)
    return {"metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}},
            "status": {"allocatable": amounts, "capacity": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]}}


def pod(number: int, node: str | None = None) -> dict[str, Any]:
    return {"metadata": {"name": f"pod-{number:05}", "labels": {"app": "bench"}}, "spec": {"containers": [{
        "name": "main", "image": "example/main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
        **({} if node is None else {"nodeName": node})}}
