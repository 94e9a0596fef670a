"""Writes to an API server: bind, patch, delete and evict, each safe to have arrived twice or too late.

Each write carries the UID of its object, so that it cannot hit a later one of the same name. None raises for an answer
or a lost connection: the result says what is known of the write.
"""

from __future__ import annotations

import asyncio
import enum
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.source import PolicyError

from .resources import ApiResource, ObjectReference
from .transport import MERGE_PATCH, RETRIES, ApiError, ConnectionFailed, Transport

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_DELAYS_S: Final = (0.01, 0.05, 0.25)
_DELAY_JITTER: Final = 0.1
_BUDGET_CAUSE: Final = "DisruptionBudget"
_BUDGET: Final = re.compile(
    r'disruption budget (\S+) |poddisruptionbudgets\.policy "([^"]+)" is forbidden|'
    r'PodDisruptionBudget "([^"]+)" due to')
"""Finds the name of a budget in the message of a refusal: by the budget itself, for its status, or for conflicts."""
_ASSIGNED: Final = re.compile(r'is already assigned to node "([^"]*)"')
_SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"


class WriteStatus(enum.StrEnum):
    """The result of a write."""

    DONE = "done"
    UNCHANGED = "unchanged"
    """Nothing was sent: the object already has these values."""
    GONE = "gone"
    """404: the object, or its namespace, does not exist."""
    REPLACED = "replaced"
    """409, or 422 for a patch: the object of that name has another UID."""
    CONFLICT = "conflict"
    """409 for another reason."""
    ALREADY_ASSIGNED = "already-assigned"
    """Of a binding: the pod has a node; `WriteResult.node` names it."""
    TERMINATING = "terminating"
    """Of a binding: the pod is being deleted."""
    GATED = "gated"
    """Of a binding: the pod has scheduling gates."""
    PDB_BLOCKED = "pdb-blocked"
    """Of an eviction: a PodDisruptionBudget, `WriteResult.budget`, permits none now."""
    PDB_STALE = "pdb-stale"
    """Of an eviction: the status of a PodDisruptionBudget is not up to date; try after `WriteResult.retry_after`."""
    MULTI_PDB = "multi-pdb"
    """Of an eviction: several PodDisruptionBudgets select the pod, so the server never evicts it."""
    THROTTLED = "throttled"
    """429 for another reason: the server has too many requests."""
    FORBIDDEN = "forbidden"
    """401 or 403: roles, quotas or admission do not permit it."""
    REFUSED = "refused"
    """Any other refusal, such as an invalid object or a failure of the server or of a webhook."""
    UNREACHABLE = "unreachable"
    """There was no connection, or there are no credentials: the server has not seen the write."""
    UNKNOWN = "unknown"
    """No answer arrived: the server may have carried the write out, or may still do so."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of one write."""

    status: WriteStatus
    message: str = ""
    """The message of the server or of the connection's failure; empty if the write is done."""
    attempts: int = 1
    retry_after: float | None = None
    """Seconds that the server asks to wait before the next attempt."""
    budget: str = ""
    """Name of the PodDisruptionBudget that refused an eviction."""
    node: str = ""
    """The node that a pod is already assigned to."""
    answer: bytes = field(default=b"", repr=False, compare=False)
    """The object as the server has it after a patch, its creation or replacement, as JSON; empty otherwise."""

    @property
    def done(self) -> bool:
        """True if the object is as the write wants it."""
        return self.status in {WriteStatus.DONE, WriteStatus.UNCHANGED}


@dataclass(frozen=True, slots=True)
class PodCondition:
    """A condition of a pod's status."""

    type: str
    status: str
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    """The pod's `metadata.generation` that the condition describes; None to leave it out."""


class ClusterWriter:
    """Writes objects through one transport. Belongs to the transport's event loop."""

    def __init__(
        self, transport: Transport, *, now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        """`now` returns seconds since the epoch, `jitter` numbers in [0, 1)."""
        self._transport = transport
        self._now = now
        self._sleep = sleep
        self._jitter = jitter

    async def bind(
        self, pod: ObjectReference, node: str, *, annotations: Mapping[str, str] | None = None,
    ) -> WriteResult:
        """Assign a pod to a node, and merge `annotations` into the pod's in the same step.

        The server also sets PodScheduled=True and clears `nominatedNodeName`; it does not check that the node exists. A
        binding is not repeated: after UNKNOWN the watch of pods shows whether it was carried out. If the transport
        repeated it as the server asked, ALREADY_ASSIGNED to the same node may mean that the first attempt succeeded.
        """
        metadata: dict[str, Any] = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        return await self._once("POST", pod.path("binding"), {
            "apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": node}})

    async def patch_pod_status(
        self, pod: ObjectReference, *, condition: PodCondition | None = None, nominated_node: str | None = None,
        current: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Set a condition and the nominated node of a pod; an empty `nominated_node` clears it, None leaves it.

        `current` is the pod's status as last seen: if it says the same, nothing is sent; if only the reason or message
        of the condition differs, its `lastTransitionTime` stays. The patch has no resourceVersion, so the last writer
        of a condition wins. Conflicts, failures of the server (500, 503) and broken connections are repeated 3 times,
        after 10, 50 and 250 ms.
        """
        status = pod_status_patch(
            current or {}, condition=condition, nominated_node=nominated_node, now=int(self._now() * 1e9))
        if status is None:
            return WriteResult(WriteStatus.UNCHANGED, attempts=0)
        return await self._repeated(
            "PATCH", pod.path("status"), {"metadata": {"uid": pod.uid}, "status": status}, _STRATEGIC)

    async def merge_patch(
        self, target: ObjectReference, patch: Mapping[str, Any], *, subresource: str | None = None,
        resource_version: str | None = None, strategic: bool = False,
    ) -> WriteResult:
        """Change an object by a JSON merge patch, in which lists are replaced as a whole and None deletes a field.

        If `strategic`, the patch is a strategic merge patch, which only Kubernetes' own kinds have: lists such as
        conditions are merged by their keys. With `resource_version` the object must not have changed since: a conflict
        is returned at once then. Otherwise repeats are those of `patch_pod_status`.
        """
        metadata = dict(patch.get("metadata") or {})
        if target.uid:
            metadata["uid"] = target.uid
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        body = {**patch, **({"metadata": metadata} if metadata else {})}
        content_type = _STRATEGIC if strategic else MERGE_PATCH
        if resource_version is not None:
            return await self._once("PATCH", target.path(subresource), body, content_type)
        return await self._repeated("PATCH", target.path(subresource), body, content_type)

    async def create(
        self, resource: ApiResource, item: Mapping[str, Any], *, namespace: str = "", retries: int = RETRIES,
    ) -> WriteResult:
        """Create an object; CONFLICT if there is one of its name. Not repeated if the outcome is unknown, and
        otherwise `retries` times at most, as the server asks.
        """
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
        return await self._once("POST", resource.path(namespace or None), body, retries=retries)

    async def replace(
        self, resource: ApiResource, item: Mapping[str, Any], *, subresource: str | None = None,
    ) -> WriteResult:
        """Replace an object, or a subresource of it, by `item` if it has the resourceVersion and the UID of `item`.

        CONFLICT if it was changed since, also by this request if its first answer was lost. It is sent once.
        """
        metadata = item["metadata"]
        reference = ObjectReference(resource, str(metadata.get("namespace") or ""), str(metadata["name"]))
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
        return await self._once("PUT", reference.path(subresource), body, retries=0)

    async def delete(
        self, target: ObjectReference, *, grace_s: int | None = None, propagation: str | None = None,
        dry_run: bool = False, retries: int = RETRIES, more: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Delete an object if it still has its UID. A pod exists until its node has stopped it.

        `grace_s` overrides a pod's grace period; `propagation` is Foreground, Background or Orphan; `more` are further
        DeleteOptions. It is repeated `retries` times at most, as the server asks.
        """
        options = _delete_options(target, grace_s, dry_run=dry_run, more=more)
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self._once(
            "DELETE", target.path(), {"apiVersion": "v1", "kind": "DeleteOptions", **options}, retries=retries)

    async def evict(
        self, pod: ObjectReference, *, grace_s: int | None = None, dry_run: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> WriteResult:
        """Evict a pod if it still has its UID and its PodDisruptionBudget permits it; returns without waiting.

        DONE means that the deletion has begun. Budgets do not protect a pod that is pending, ended or being deleted.
        `more` are further DeleteOptions. It is sent once, whatever the answer is.
        """
        return await self._once("POST", pod.path("eviction"), {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": _delete_options(pod, grace_s, dry_run=dry_run, more=more)}, retries=0)

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any], content_type: str = "application/json",
        *, retries: int = RETRIES,
    ) -> WriteResult:
        try:
            answer = await self._transport.request(
                method, path, body=json.dumps(body).encode(), content_type=content_type, retries=retries)
        except (ApiError, ConnectionFailed, PolicyError) as error:
            return _result(error)
        created = method == "POST" and body.get("kind") not in ("Binding", "Eviction")
        return WriteResult(WriteStatus.DONE, answer=answer if method in ("PATCH", "PUT") or created else b"")

    async def _repeated(self, method: str, path: str, body: Mapping[str, Any], content_type: str) -> WriteResult:
        """Send a write that may be carried out more than once, 4 times at most."""
        data, attempts = json.dumps(body).encode(), 0
        while True:
            attempts += 1
            try:
                answer = await self._transport.request(method, path, body=data, content_type=content_type)
            except (ApiError, ConnectionFailed, PolicyError) as error:
                result = replace(_result(error), attempts=attempts)
                if attempts > len(_DELAYS_S) or not _repeatable(error, result):
                    return result
            else:
                return WriteResult(WriteStatus.DONE, attempts=attempts, answer=answer)
            await self._sleep(_DELAYS_S[attempts - 1] * (1.0 + _DELAY_JITTER * self._jitter()))


def pod_status_patch(
    current: Mapping[str, Any], *, condition: PodCondition | None, nominated_node: str | None, now: int,
) -> dict[str, Any] | None:
    """Return the strategic merge patch of a pod's status, or None if `current` needs no change; `now` is in ns.

    Conditions are merged by their type.
    """
    patch: dict[str, Any] = {}
    if condition is not None:
        before: Mapping[str, Any] = next(
            (each for each in current.get("conditions") or () if each.get("type") == condition.type), {})
        desired: dict[str, Any] = {
            "type": condition.type, "status": condition.status, "reason": condition.reason or None,
            "message": condition.message or None}
        if condition.observed_generation is not None:
            desired["observedGeneration"] = condition.observed_generation
        if any(before.get(key) != value for key, value in desired.items()):
            if before.get("status") != condition.status:
                desired["lastTransitionTime"] = rfc3339(now)
            patch["conditions"] = [desired]
    if nominated_node is not None and nominated_node != (current.get("nominatedNodeName") or ""):
        patch["nominatedNodeName"] = nominated_node or None
    return patch or None


def _delete_options(
    target: ObjectReference, grace_s: int | None, *, dry_run: bool, more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    options: dict[str, Any] = {key: value for key, value in (more or {}).items() if key not in {"apiVersion", "kind"}}
    if target.uid:
        options["preconditions"] = {**(options.get("preconditions") or {}), "uid": target.uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    return options


def _result(error: ApiError | ConnectionFailed | PolicyError) -> WriteResult:
    if isinstance(error, PolicyError):
        return WriteResult(WriteStatus.UNREACHABLE, str(error))
    if isinstance(error, ConnectionFailed):
        return WriteResult(WriteStatus.UNREACHABLE if error.refused else WriteStatus.UNKNOWN, error.fault.message)
    status = _status(error)
    texts = (error.message, *error.cause_messages)
    budget, node = "", None
    if status in {WriteStatus.PDB_BLOCKED, WriteStatus.PDB_STALE}:
        budget = _budget_in(texts)
    elif status is WriteStatus.ALREADY_ASSIGNED:
        node = _ASSIGNED.search(error.message)
    message = "; ".join(text for text in texts if text) or str(error)
    return WriteResult(status, message, retry_after=error.retry_after,
                       budget=budget, node=node.group(1) if node else "")


def _budget_in(texts: Iterable[str]) -> str:
    """Return the name of the PodDisruptionBudget that a refusal is about; empty if it names none."""
    found = next((found for text in texts if (found := _BUDGET.search(text))), None)
    return "" if found is None else next(name for name in found.groups() if name)


def _status(error: ApiError) -> WriteStatus:
    """Return the status of a refusal: by its code, and by its text where the server has one code for several."""
    if error.code == 409:
        return next((status for pattern, status in _CONFLICTS if pattern in error.message), WriteStatus.CONFLICT)
    if error.code == 422 and _UID_CHANGED in error.message:
        return WriteStatus.REPLACED
    if error.code in {403, 504} and _budget_in((error.message,)):
        return WriteStatus.PDB_BLOCKED if error.code == 403 else WriteStatus.PDB_STALE
    if error.code == 429 and _BUDGET_CAUSE in error.causes:
        return WriteStatus.PDB_BLOCKED if error.retry_after is None else WriteStatus.PDB_STALE
    if error.code == 500 and _SEVERAL_BUDGETS in error.message:
        return WriteStatus.MULTI_PDB
    return _BY_CODE.get(error.code, WriteStatus.REFUSED)


_CONFLICTS: Final = (
    ("UID in precondition", WriteStatus.REPLACED),
    ("UID in the precondition", WriteStatus.REPLACED),
    ("is already assigned to node", WriteStatus.ALREADY_ASSIGNED),
    ("is being deleted", WriteStatus.TERMINATING),
    ("has non-empty .spec.schedulingGates", WriteStatus.GATED),
)
_UID_CHANGED: Final = "metadata.uid: Invalid value"
_BY_CODE: Final = {
    401: WriteStatus.FORBIDDEN, 403: WriteStatus.FORBIDDEN, 404: WriteStatus.GONE, 429: WriteStatus.THROTTLED}


def _repeatable(error: ApiError | ConnectionFailed | PolicyError, result: WriteResult) -> bool:
    """Return whether a failure is likely to pass soon; where the server named a time, the transport has repeated it."""
    if isinstance(error, ApiError):
        return error.retry_after is None and (result.status is WriteStatus.CONFLICT or error.code in {500, 503})
    return isinstance(error, ConnectionFailed) and (error.refused or error.broken)
