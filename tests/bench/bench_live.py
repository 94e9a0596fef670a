"""The live scheduler and kube-scheduler, in turns, on one control plane: etcd and kube-apiserver of `make e2e`.

Both schedulers run as processes without leader election and without a limit of requests, and share the machine's cores
with the control plane. Throughput is that of plain pods that wait when the scheduler starts, from the first binding to
the last one as a watch shows them, beside which both write a Scheduled event for each pod.
Pods that arrive one by one show the latency, and the watch lag by our histogram. `KOORD_POLICY_LIVE_BENCH` chooses what
is measured, such as `sizes=1000 turns=1 pods=2000`; `running=50000` puts so many bound pods on the nodes first, which
counts for start and memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ..e2e.build import CannotBuild, cached_binary
from ..e2e.control_plane import ControlPlane, free_ports
from .figure import Figure, Missing

_ROOT: Final = Path(__file__).resolve().parents[2]
_AT_ONCE: Final = 64
_LIMIT_S: Final = 300.0
_ARRIVALS_PER_S: Final = 100
_ALL_RIGHTS: Final = {  # kube-scheduler's user has its own flow in the server's fairness, but cannot read our kinds
    "metadata": {"name": "bench"}, "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}]}


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


def main() -> Iterator[Figure]:
    """Yield throughput, start, memory and latency of both schedulers, and the ratios that are judged."""
    try:
        binary = cached_binary()
    except CannotBuild as error:
        raise Missing(str(error)) from None
    if not binary.exists():
        raise Missing("there is no control plane yet: `make e2e` builds it")
    settings = Settings.of(os.environ.get("KOORD_POLICY_LIVE_BENCH", ""))
    for nodes in settings.sizes:
        with TemporaryDirectory() as folder, ControlPlane(binary, Path(folder)) as control_plane:
            yield from asyncio.run(_measured(control_plane, nodes, settings))


async def _measured(control_plane: ControlPlane, nodes: int, settings: Settings) -> list[Figure]:
    rivals: dict[str, Callable[[], list[str]]] = {
        "kube-scheduler": lambda: _kube_scheduler(control_plane),
        "koord-policy": lambda: _koord_policy(control_plane, ()),
        "koord-policy, policies/scheduler": lambda: _koord_policy(control_plane, (_ROOT / "policies" / "scheduler",)),
    }
    turns: dict[str, list[Turn]] = {name: [] for name in rivals}
    latencies: dict[str, list[float]] = {name: [] for name in rivals}
    lags: dict[str, float] = {}
    async with _api(control_plane) as api:
        await api.all("/api/v1/nodes", [_node(number) for number in range(nodes)])
        await api.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _ALL_RIGHTS)
        # The taint is set by admission; the controller that removes it does not run.
        await asyncio.gather(*[api.untaint(f"node-{number:05}") for number in range(nodes)])
        if settings.running:
            await api.all(f"/api/v1/namespaces/{await api.namespace()}/pods", [
                _pod(number, node=f"node-{number % nodes:05}") for number in range(settings.running)])
        for number in range(settings.turns):
            order = list(rivals.items())
            for name, command in order if number % 2 == 0 else reversed(order):
                turns[name].append(await _throughput(api, command(), control_plane, settings.pods))
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


def _kube_scheduler(control_plane: ControlPlane) -> list[str]:
    kubeconfig = control_plane.kubeconfig("system:kube-scheduler")
    configuration = kubeconfig.with_suffix(".config.json")
    configuration.write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False}}))
    return [str(cached_binary()), "kube-scheduler", f"--config={configuration}", "--secure-port=0"]


def _koord_policy(control_plane: ControlPlane, policies: Sequence[Path]) -> list[str]:
    os.environ["KUBECONFIG"] = str(control_plane.kubeconfig("system:kube-scheduler"))
    return [sys.executable, "-m", "koordpolicy", "scheduler", "--cluster", "kube", "--leader-elect=false",
            "--kube-api-qps", "0", "--scheduler-name", "default-scheduler",
            *(word for path in policies for word in ("--policies", str(path)))]


async def _throughput(api: Api, command: list[str], control_plane: ControlPlane, pods: int) -> Turn:
    namespace = await api.namespace()
    await api.all(f"/api/v1/namespaces/{namespace}/pods", [_pod(number) for number in range(pods)])
    bound: dict[str, float] = {}
    async with api.bindings(namespace, bound):
        with _process(command, control_plane) as process:
            started = time.monotonic()
            await _until(lambda: len(bound) >= pods, process)
            times = sorted(bound.values())
            events = await _last_count(lambda: api.scheduled_events(namespace), pods)
            memory, cpu = _usage(process.pid)
    await api.remove(namespace)
    return Turn((pods - 1) / (times[-1] - times[0]), times[0] - started, memory, cpu, events / pods)


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
        with _process(command, control_plane) as process:
            await api.request("POST", path, _pod(pods))
            await _until(lambda: len(bound) == 1, process)
            waiting = []
            start = time.monotonic()
            for number in range(pods):
                await asyncio.sleep(max(0.0, start + number / _ARRIVALS_PER_S - time.monotonic()))
                created[f"pod-{number:05}"] = time.monotonic()
                waiting.append(asyncio.create_task(api.request("POST", path, _pod(number))))
            await asyncio.gather(*waiting)
            await _until(lambda: len(bound) > pods, process)
            lag = None if port is None else await _watch_lag(port)
    await api.remove(namespace)
    return [bound[name] - at for name, at in created.items()], lag


async def _watch_lag(port: int) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    (family,) = [each for each in text_string_to_metric_families(text) if each.name == "koord_policy_watch_lag_seconds"]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    return next(float(bound) for bound, count in buckets.items() if count >= 0.99 * buckets["+Inf"])


async def _until(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
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


class _process:  # noqa: N801 - used like a function
    """Runs a scheduler inside of the context; its log lies beside the control plane's."""

    def __init__(self, command: list[str], control_plane: ControlPlane) -> None:
        self._command = command
        self._log = control_plane.certificate_authority.parent / "scheduler.log"

    def __enter__(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self._process

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
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(status["VmHWM"].split()[0]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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

    async def untaint(self, node: str) -> None:
        """Remove a node's taints."""
        await self.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}, "application/merge-patch+json")

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
async def _api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    kubeconfig = json.loads(control_plane.kubeconfig().read_text())
    token = kubeconfig["users"][0]["user"]["token"]
    context = ssl.create_default_context(cafile=str(control_plane.certificate_authority))
    connector = aiohttp.TCPConnector(ssl=context, limit=_AT_ONCE + 2)
    async with aiohttp.ClientSession(
            control_plane.url, connector=connector, headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield Api(session)


def _node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    name = f"node-{number:05}"
    return {"metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}},
            "status": {"allocatable": amounts, "capacity": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]}}


def _pod(number: int, node: str | None = None) -> dict[str, Any]:
    return {"metadata": {"name": f"pod-{number:05}", "labels": {"app": "bench"}}, "spec": {"containers": [{
        "name": "main", "image": "example/main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
        **({} if node is None else {"nodeName": node})}}
