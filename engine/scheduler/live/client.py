"""The client of a live scheduler: binds, patches, evicts and preempts at the API server.

All requests are made in the event loop of the I/O thread. In the deciding thread no method waits: what plugins write
there is queued, object by object in order. Each write carries the UID of its object.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from koordpolicy.engine.client.event_recorder import EventRecorder
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.object_patches import (
    NotLeadingError,
    ObjectPatches,
    WriteFailedError,
    need_done,
    reference_of,
)
from koordpolicy.engine.client.patches import merge_patch
from koordpolicy.engine.client.resources import ObjectReference, pod_reference
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.client.writes import ClusterWriter, PodCondition, WriteResult, WriteStatus
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods
from koordpolicy.engine.framework.handle import StalePodError
from koordpolicy.engine.source import PolicyError

from .pod_status import PodStatuses

_LOG: Final = logging.getLogger(__name__)

BINDINGS_AT_ONCE: Final = 32
"""Bindings that wait for their answers at the same time: more connections make neither side faster."""
BIND_S: Final = 55.0
_LOOKS_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The delays between attempts to read a pod whose binding has an unknown outcome; the last one is repeated."""
_STALE: Final = frozenset({
    WriteStatus.GONE, WriteStatus.REPLACED, WriteStatus.ALREADY_ASSIGNED, WriteStatus.TERMINATING})
PREEMPTED_BY: Final = "{name}: preempting to accommodate a higher priority pod"

_Write: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Preemption:
    """The victims of one preemptor on a node."""

    preemptor: PodInfo
    node: str
    victim: PodInfo
    marked: Mapping[str, Any]
    """The victim's object in the cluster, as it is assumed to be deleted."""

    def unmarked(self, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the object of the cluster without the assumption; None if it is not the victim's, or has none."""
        metadata, marked_metadata = known.get("metadata") or {}, self.marked.get("metadata") or {}
        if any(metadata.get(name) != marked_metadata.get(name) for name in ("uid", "deletionTimestamp")):
            return None
        return {**known, "metadata": {name: value for name, value in metadata.items() if name != "deletionTimestamp"}}


class LiveClient:
    """Implements `Client`, `AsyncBinder`, `ClearsNominations` and `Deletes` of `framework.handle`."""

    def __init__(
        self, io: IoThread, transport: Transport, recorder: EventRecorder, *, clock: Callable[[], int],
        may_write: Callable[[], bool] = lambda: True, wake: Callable[[], None] = lambda: None,
        bindings_at_once: int = BINDINGS_AT_ONCE, bind_s: float = BIND_S,
    ) -> None:
        """`transport` and `recorder` belong to the loop of `io`. Before each write `may_write` is called, in any
        thread, and `wake` after results that `take_failed_preemptions` returns. `clock` returns the time in nanoseconds
        since the epoch.

        A binding fails after `bind_s` seconds and is not sent any more. That must be less than the scheduler's limit
        for a binding cycle: the room of a pod must not be free while its binding may still arrive.
        """
        self.recorder = recorder
        self.statuses = PodStatuses(io, ClusterWriter(transport), may_write)
        self._io = io
        self._transport = transport
        self._writer = ClusterWriter(transport)
        self._patches = ObjectPatches(self._writer, clock)
        self._may_write = may_write
        self._wake = wake
        self._clock = clock
        self._slots = asyncio.Semaphore(bindings_at_once)
        self._bind_s = bind_s
        self._owner: int | None = None
        self._cluster: Cluster | None = None
        self._chains: dict[tuple[str, str, str], deque[tuple[object, _Write]]] = {}
        """The writes of plugins in the deciding thread, by object, in order; for the loop."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_preemptions: deque[Preemption] = deque()
        self._victims = LeavingPods(clock)
        """The victims of preemptions; for the deciding thread."""

    def own(self, cluster: Cluster) -> None:
        """Record that the calling thread decides on this cluster: no method waits there."""
        self._owner, self._cluster = threading.get_ident(), cluster
        cluster.listen(self._victims.note)

    # Binding

    def bind(self, pod: PodInfo, node: str) -> None:
        """Bind the pod to the node and wait for the answer; for bind plugins on workers."""
        self._io.submit(self.bind_async(pod, node, {})).result()

    async def bind_async(self, pod: PodInfo, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod to the node, with these annotations, and record the event `Scheduled`.

        If no answer arrives, the pod is read until the server says whether it was bound.
        """
        reference = pod_reference(pod.namespace, pod.name, pod.uid)
        try:
            async with asyncio.timeout(self._bind_s):
                await self.statuses.drain(pod.uid)
                async with self._slots:
                    self._check_leadership()
                    result = await self._writer.bind(reference, node, annotations=annotations)
                    if result.status is WriteStatus.UNKNOWN:
                        result = await self._find_out(reference, node, result)
        except TimeoutError:
            raise OSError(f"the API server has not answered within {self._bind_s:g} s") from None
        # A repeated request may find that the first one was carried out.
        if not result.done and not (result.status is WriteStatus.ALREADY_ASSIGNED and result.node == node):
            raise (StalePodError(result.message) if result.status in _STALE else WriteFailedError(result))
        self.recorder.record(
            reference, type="Normal", reason="Scheduled", action="Binding", controller=scheduler_of(pod),
            note=f"Successfully assigned {pod.key} to {node}")

    async def read_node(self, reference: ObjectReference) -> str | None:
        """Return the node that the API server has for the pod; empty without one, None if the pod is gone.

        Raises `OSError` if there is no answer.
        """
        try:
            found = json.loads(await self._transport.request("GET", reference.path()))
        except ApiError as error:
            if error.code == 404:
                return None
            raise OSError(str(error)) from error
        except (ConnectionFailed, PolicyError, ValueError) as error:
            raise OSError(str(error)) from error
        if (found.get("metadata") or {}).get("uid") != reference.uid:
            return None
        return str((found.get("spec") or {}).get("nodeName") or "")

    async def _find_out(self, reference: ObjectReference, node: str, result: WriteResult) -> WriteResult:
        """Return the outcome of a binding without an answer: the pod is read until there is one."""
        attempt = 0
        while True:
            await asyncio.sleep(_LOOKS_S[min(attempt, len(_LOOKS_S) - 1)])
            attempt += 1
            try:
                found = await self.read_node(reference)
            except OSError:
                continue  # the time limit ends this
            if found is None:
                return WriteResult(WriteStatus.GONE, "the pod is gone")
            if found == node:
                return WriteResult(WriteStatus.DONE)
            if found:
                return WriteResult(WriteStatus.ALREADY_ASSIGNED, f'is already assigned to node "{found}"', node=found)
            return result

    def _check_leadership(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more")

    # Preemption

    def preempt(self, pod: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Mark the pod as disrupted and delete it, in the background; for the deciding thread.

        The cluster shows the pod as being deleted from now on, so that no further victims are chosen meanwhile.
        """
        metadata = pod.object.get("metadata") or {}
        if metadata.get("deletionTimestamp"):
            return
        assert self._cluster is not None
        known = self._cluster.object("Pod", pod.key)
        marked = self._victims.add(known or pod.object)
        if known is None:
            self._victims.drop(pod.uid)
        else:
            self._cluster.upsert(marked)
        self._io.spawn(self._preempt(Preemption(preemptor, node, pod, marked)), f"the preemption of {pod.key}")

    def revise(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an object as the cluster should have it: a victim whose deletion is under way is still shown as being
        deleted, although the server reports an earlier change of it. For the deciding thread.
        """
        return self._victims.revise(item)

    async def _preempt(self, preemption: Preemption) -> None:
        pod, preemptor = preemption.victim, preemption.preemptor
        reference = pod_reference(pod.namespace, pod.name, pod.uid)
        name = scheduler_of(preemptor)
        condition = PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", PREEMPTED_BY.format(name=name))
        try:
            self._check_leadership()
            result = await self._writer.patch_pod_status(reference, condition=condition)
            if result.done:
                self._check_leadership()
                result = await self._writer.delete(reference)
            if result.status in {WriteStatus.GONE, WriteStatus.REPLACED}:
                return  # it ended by itself
            if not result.done:
                raise WriteFailedError(result)
        except OSError as error:
            _LOG.error("%s could not be preempted by %s: %s", pod.key, preemptor.key, error, extra={"pod": pod.key})
            self._failed_preemptions.append(preemption)
            self._wake()
            return
        self.recorder.record(
            reference, type="Normal", reason="Preempted", action="Preempting", controller=name,
            related=pod_reference(preemptor.namespace, preemptor.name, preemptor.uid),
            note=f"Preempted by pod {preemptor.uid} on node {preemption.node}")

    def take_failed_preemptions(self) -> Sequence[Preemption]:
        """Return the victims that could not be deleted since the last call; for the deciding thread."""
        found: list[Preemption] = []
        while self._failed_preemptions:
            failed = self._failed_preemptions.popleft()
            self._victims.drop(failed.victim.uid)
            found.append(failed)
        return found

    def clear_nomination(self, pod: PodInfo) -> None:
        """Clear the nominated node in the pod's status."""
        self.statuses.write(pod, nominated_node="")

    # Other writes of plugins

    def patch(self, original: Mapping[str, Any], modified: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Change an object by the difference, its status by the subresource, and return it as the server has it then.

        If only `modified` has a `resourceVersion`, the patch is refused if the object has another one. In the deciding
        thread the patch is queued, its failure is logged, and None is returned.
        """
        patch = merge_patch(original, modified)
        if not patch:
            return None
        reference, answers = reference_of(original), list[bytes | None]()

        async def write() -> None:
            answers.append(await self._patches.patch(reference, original, modified))

        self._do(reference, patch, write, "changed")
        decides = threading.get_ident() == self._owner  # then the answer comes later, if at all
        answer = None if decides or not answers else answers[-1]
        return json.loads(answer) if answer else None

    def evict(self, pod: PodInfo, reason: str) -> None:
        """Evict the pod if its disruption budgets allow it; in the deciding thread this is queued."""
        reference = pod_reference(pod.namespace, pod.name, pod.uid)

        async def evict() -> None:
            result = await self._writer.evict(reference)
            if result.status not in {WriteStatus.GONE, WriteStatus.REPLACED}:
                need_done(result)

        _LOG.info("%s is evicted: %s", pod.key, reason, extra={"pod": pod.key})
        self._do(reference, "evict", evict, "evicted")

    def delete(self, item: Mapping[str, Any]) -> None:
        """Delete an object; in the deciding thread this is queued."""
        reference = reference_of(item)

        async def delete() -> None:
            result = await self._writer.delete(reference)
            if result.status not in {WriteStatus.GONE, WriteStatus.REPLACED}:
                need_done(result)

        self._do(reference, "delete", delete, "deleted")

    def _do(self, reference: ObjectReference, content: object, write: _Write, verb: str) -> None:
        """Make a write: in the deciding thread later, elsewhere now."""
        if threading.get_ident() == self._owner:
            self._io.call_soon(self._chain, reference, content, write, verb)
        else:
            self._io.submit(self._permitted(write)).result()

    async def _permitted(self, write: _Write) -> None:
        self._check_leadership()
        await write()

    def _chain(self, reference: ObjectReference, content: object, write: _Write, verb: str) -> None:
        key = reference.resource.kind, reference.namespace, reference.name
        chain = self._chains.get(key)
        if chain is not None:
            # A controller repeats what it wants until the cluster shows it.
            if chain[-1][0] != content:
                chain.append((content, write))
            return
        self._chains[key] = deque([(content, write)])
        self._keep(asyncio.get_running_loop().create_task(self._run_chain(key, verb)))

    async def _run_chain(self, key: tuple[str, str, str], verb: str) -> None:
        chain = self._chains[key]
        try:
            while chain:
                try:
                    await self._permitted(chain[0][1])
                except OSError as error:
                    _LOG.warning("%s %s was not %s: %s", key[0], "/".join(filter(None, key[1:])), verb, error,
                                 extra={"pod": "/".join(key[1:])} if key[0] == "Pod" else None)
                chain.popleft()
        finally:
            del self._chains[key]

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def scheduler_of(pod: PodInfo) -> str:
    """Return the name of the scheduler that the pod names, which is that of its profile."""
    return str((pod.object.get("spec") or {}).get("schedulerName") or "default-scheduler")
