"""One scenario of requests to an API server, and its recording, which a server on loopback replays.

`tests/e2e/test_api_versions.py` runs it against real servers and records what they answer; `test_api_versions.py` runs
it against the recordings of each supported version of Kubernetes. Both expect the same.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import aiohttp
import msgspec
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.resources import BY_KIND, ApiResource, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import ApiError, Transport
from koordpolicy.engine.client.writes import ClusterWriter, PodCondition, WriteResult

Answers = list[tuple[str, str]]
PODS: Final = BY_KIND["Pod"]
BUDGETS: Final = BY_KIND["PodDisruptionBudget"]
LEASES: Final = ApiResource("Lease", "coordination.k8s.io", "v1", "leases")
_NAMESPACE: Final = "default"
_ANOTHER: Final = "00000000-0000-0000-0000-000000000000"
_BLOCKED: Final = {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1,
                   "expectedPods": 1}

EXPECTED: Final[Answers] = [
    ("bind the pod of another UID", "replaced"), ("bind", "done"),
    ("bind again", "already-assigned to one"), ("bind with gates", "gated"), ("bind an absent pod", "gone"),
    ("delete", "done"), ("bind while it is deleted", "terminating"),
    ("set a condition", "done"), ("set a condition of another UID", "replaced"), ("refused patch", "refused"),
    ("patch an old version", "conflict"),
    ("evict the pod of another UID", "replaced"), ("evict past a stale budget", "pdb-stale by web after 10 s"),
    ("evict past a budget", "pdb-blocked by web"), ("evict a pending pod past a budget", "done"),
    ("evict past two budgets", "multi-pdb"), ("evict", "done"), ("evict an absent pod", "gone"),
    ("create a Lease", "done"), ("create it again", "conflict"), ("write an old version of it", "409 Conflict"),
    ("list a future version", "504 Timeout: too large"),
    ("streamed list", "added deleted-one, added gated, added second; changed gated; deleted gated"),
    ("list in pages", "added deleted-one, added second"),
]


async def run(transport: Transport) -> Answers:
    """Make the requests of the scenario; return the result of each."""
    found: Answers = []
    writer = ClusterWriter(transport)

    async def write(name: str, result: WriteResult) -> WriteResult:
        text = result.status.value
        text += f" to {result.node}" if result.node else ""
        text += f" by {result.budget}" if result.budget else ""
        text += f" after {result.retry_after:g} s" if result.retry_after is not None else ""
        found.append((name, text))
        return result

    async def refused(name: str, method: str, path: str, **more: Any) -> None:
        try:
            await transport.request(method, path, retries=0, **more)
        except ApiError as error:
            found.append((name, f"{error.code} {error.reason}" + (": too large" if error.too_large_version else "")))
        else:
            found.append((name, "done"))

    free, gated = await _pod(writer, "deleted-one"), await _pod(
        writer, "gated", schedulingGates=[{"name": "example.com/gate"}])
    await write("bind the pod of another UID", await writer.bind(pod_reference(_NAMESPACE, free.name, _ANOTHER), "one"))
    await write("bind", await writer.bind(free, "one", annotations={"example.com/a": "b"}))
    await write("bind again", await writer.bind(free, "two"))
    await write("bind with gates", await writer.bind(gated, "one"))
    await write("bind an absent pod", await writer.bind(pod_reference(_NAMESPACE, "absent", _ANOTHER), "one"))
    await write("delete", await writer.delete(free))
    await write("bind while it is deleted", await writer.bind(free, "one"))

    condition = PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available")
    await write("set a condition", await writer.patch_pod_status(gated, condition=condition))
    await write("set a condition of another UID", await writer.patch_pod_status(
        pod_reference(_NAMESPACE, gated.name, _ANOTHER), condition=condition))
    await write("refused patch", await writer.merge_patch(gated, {"spec": {"nodeName": 7}}))
    await write("patch an old version", await writer.merge_patch(
        gated, {"metadata": {"labels": {"a": "b"}}}, resource_version="1"))

    first, second, pending = [await _pod(writer, name, **spec) for name, spec in (
        ("first", {"nodeName": "one"}), ("second", {"nodeName": "one"}), ("pending", {}))]
    for each in (first, second):
        await writer.merge_patch(each, {"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"}]}}, subresource="status")
    await write("evict the pod of another UID", await writer.evict(pod_reference(_NAMESPACE, first.name, _ANOTHER)))
    budget = await _budget(writer, "web")
    await write("evict past a stale budget", await writer.evict(first))
    await writer.merge_patch(budget, {"status": _BLOCKED}, subresource="status")
    await write("evict past a budget", await writer.evict(first))
    await write("evict a pending pod past a budget", await writer.evict(pending))
    other = await _budget(writer, "other")
    await write("evict past two budgets", await writer.evict(first))
    for each in (budget, other):
        await writer.delete(each)
    await write("evict", await writer.evict(first))
    await write("evict an absent pod", await writer.evict(pod_reference(_NAMESPACE, "absent", _ANOTHER)))
    await writer.delete(first, grace_s=0)

    lease = {"metadata": {"name": "scenario"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    await write("create a Lease", await writer.create(LEASES, lease, namespace=_NAMESPACE))
    await write("create it again", await writer.create(LEASES, lease, namespace=_NAMESPACE))
    old = {**lease, "apiVersion": LEASES.api_version, "kind": LEASES.kind,
           "metadata": {"name": "scenario", "resourceVersion": "1"}}
    await refused("write an old version of it", "PUT", LEASES.path(_NAMESPACE, "scenario"),
                  body=json.dumps(old).encode())

    await refused("list a future version", "GET", PODS.path(), query={"resourceVersion": "9000000"})
    found.append(("streamed list", await _streamed(transport, writer, gated)))
    found.append(("list in pages", await _listed(transport)))
    return found


async def _pod(writer: ClusterWriter, name: str, **spec: Any) -> ObjectReference:
    made = await writer.create(PODS, {
        "metadata": {"name": name, "labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "main", "image": "example/main"}], "schedulerName": "nobody", **spec}},
        namespace=_NAMESPACE)
    return pod_reference(_NAMESPACE, name, json.loads(made.answer)["metadata"]["uid"])


async def _budget(writer: ClusterWriter, name: str) -> ObjectReference:
    await writer.create(BUDGETS, {"metadata": {"name": name}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}, namespace=_NAMESPACE)
    return ObjectReference(BUDGETS, _NAMESPACE, name)


async def _streamed(transport: Transport, writer: ClusterWriter, pod: ObjectReference) -> str:
    """Return the changes of a streamed list, of a patch after it, and of a deletion after that."""
    phases: list[list[str]] = [[]]
    listed, ended = asyncio.Event(), asyncio.Event()

    def deliver(changes: Iterable[Change]) -> None:
        phases[-1].extend(_described(changes, "changed" if listed.is_set() else "added"))
        if any(change.deleted for change in changes):
            ended.set()

    def end_list() -> None:
        phases.append([])
        listed.set()

    following = asyncio.create_task(Informer(transport, PODS, deliver, listed=end_list, streaming=True).run())
    try:
        async with asyncio.timeout(60):
            await listed.wait()
            await writer.merge_patch(pod, {"metadata": {"annotations": {"example.com/a": "b"}}})
            await writer.delete(pod, grace_s=0)
            await ended.wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    added, *changes = phases[0], *phases[1]
    return "; ".join([", ".join(sorted(added)), *dict.fromkeys(changes)])


async def _listed(transport: Transport) -> str:
    found: list[str] = []
    listed = asyncio.Event()
    informer = Informer(transport, PODS, lambda changes: found.extend(_described(changes, "added")),
                        listed=listed.set, streaming=False)
    following = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(60):
            await listed.wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return ", ".join(sorted(found))


def _described(changes: Iterable[Change], verb: str) -> list[str]:
    return [f"{'deleted' if change.deleted else verb} {change.name}" for change in changes]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request with its answer."""

    method: str
    path: str
    """With the query, but for `timeoutSeconds`, which clients choose by chance."""
    status: int
    headers: dict[str, str]
    body: str

    @property
    def streams(self) -> bool:
        """True for a watch that began: its connection stays open after the recorded frames."""
        return "watch=" in self.path and self.status == 200 and '"ERROR"' not in self.body


def read_recording(text: bytes) -> list[Exchange]:
    return msgspec.json.decode(text, type=list[Exchange])


def write_recording(exchanges: Sequence[Exchange]) -> bytes:
    return msgspec.json.format(msgspec.json.encode([asdict(each) for each in exchanges]), indent=1) + b"\n"


@asynccontextmanager
async def recording_proxy(target: Connection) -> AsyncIterator[tuple[Connection, list[Exchange]]]:
    """A server that passes requests on to `target`; yields the connection to it, and the exchanges so far."""
    exchanges: list[Exchange] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        header = await target.credentials.header()
        headers = {"Authorization": header or "", "Content-Type": request.headers.get("Content-Type", "")}
        async with session.request(request.method, f"{target.server}{request.path_qs}", data=await request.read(),
                                   headers=headers, ssl=target.tls()) as found:
            kept = {name: found.headers[name] for name in ("Content-Type", "Retry-After") if name in found.headers}
            response = web.StreamResponse(status=found.status, headers=kept)
            await response.prepare(request)
            pieces: list[bytes] = []
            try:
                async for piece in found.content.iter_any():
                    pieces.append(piece)
                    await response.write(piece)
            finally:
                body = b"".join(pieces).decode()
                exchanges.append(Exchange(request.method, _stable(request), found.status, kept, body))
            return response

    async with aiohttp.ClientSession() as session, _server(answer) as url:
        yield Connection(url), exchanges


@asynccontextmanager
async def replayed(exchanges: Iterable[Exchange]) -> AsyncIterator[Connection]:
    """A server that answers as recorded: equal requests by their answers, in order."""
    waiting: dict[tuple[str, str], deque[Exchange]] = defaultdict(deque)
    for each in exchanges:
        waiting[each.method, each.path].append(each)

    async def answer(request: web.Request) -> web.StreamResponse:
        known = waiting[request.method, _stable(request)]
        if not known:
            return web.Response(status=501, text=f"not recorded: {request.method} {_stable(request)}")
        each = known.popleft()
        response = web.StreamResponse(status=each.status, headers=each.headers)
        await response.prepare(request)
        await response.write(each.body.encode())
        if each.streams:
            await asyncio.Event().wait()
        return response

    async with _server(answer) as url:
        yield Connection(url)


@asynccontextmanager
async def _server(answer: Any) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _stable(request: web.Request) -> str:
    query = [(name, value) for name, value in parse_qsl(request.query_string, keep_blank_values=True)
             if name != "timeoutSeconds"]
    return f"{request.path}?{urlencode(query)}" if query else request.path
