"""The status of Reservations: conditions, and the transitions to available, expired and succeeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.extensions.reservations import ENDED, allocated_uid, reserve_pod, written

from ..allocation.annotations import annotations_of, json_object

RESIZE: Final = "scheduling.koordinator.sh/reservation-resize-allocatable"

Json = Mapping[str, Any]


def with_conditions(item: Json, now: int, **conditions: tuple[str, str, str]) -> dict[str, Any]:
    """Return a Reservation with these conditions (status, reason, message); conditions that it has are unchanged."""
    status = dict(item.get("status") or {})
    written = [dict(each) for each in status.get("conditions") or ()]
    at = rfc3339(now)
    for kind, (value, reason, message) in conditions.items():
        new = {"type": kind, "status": value, "reason": reason, **({"message": message} if message else {})}
        known = next((each for each in written if each.get("type") == kind), None)
        if known is None:
            written.append({**new, "lastProbeTime": at, "lastTransitionTime": at})
        elif {key: value for key, value in known.items() if not key.startswith("last")} != new:
            moved = at if known.get("status") != value else known.get("lastTransitionTime", at)
            written[written.index(known)] = {**new, "lastProbeTime": at, "lastTransitionTime": moved}
    return {**item, "status": {**status, "conditions": written}}


def available(item: Json, node: str, now: int) -> dict[str, Any]:
    """Return a Reservation that is available on a node, with the requests of its template as `allocatable`.

    Raises:
        ValueError: the template, or the annotation that gives other amounts, cannot be read.
    """
    bare = {key: value for key, value in item.items() if key != "status"}
    allocatable = ResourceList(reserve_pod(bare).requests)
    if annotations_of(item).get(RESIZE):
        allocatable |= resource_list(json_object(annotations_of(item), RESIZE), "resources", "resources")
    ready = with_conditions(item, now, Scheduled=("True", "Scheduled", ""), Ready=("True", "Available", ""))
    status = {**ready["status"], "phase": "Available", "nodeName": node, "allocatable": written(allocatable)}
    return {**item, "status": status}


def expired(item: Json, now: int) -> dict[str, Any]:
    """Return a Reservation as expired."""
    failed = with_conditions(item, now, Ready=("False", "Expired", ""))
    return {**failed, "status": {**failed["status"], "phase": "Failed"}}


def is_expired(item: Json, now: int) -> bool:
    """Return whether a Reservation has expired; a `ttl` of 0 means never, whatever `expires` is."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if status.get("phase") in ENDED:
        return False
    ttl = parse_duration(spec["ttl"]) if spec.get("ttl") is not None else None
    if ttl == 0:
        return False
    if spec.get("expires") and nanoseconds(spec["expires"], "spec.expires") < now:
        return True
    created = item["metadata"].get("creationTimestamp")
    return ttl is not None and bool(created) and now - nanoseconds(created, "metadata.creationTimestamp") > ttl


def expires_at(item: Json) -> int | None:
    """Return the expiration time of a Reservation (ns since the epoch), or None."""
    spec = item.get("spec") or {}
    ttl = parse_duration(spec["ttl"]) if spec.get("ttl") is not None else None
    if ttl == 0:
        return None
    moments = [nanoseconds(spec["expires"], "spec.expires")] if spec.get("expires") else []
    created = item["metadata"].get("creationTimestamp")
    if ttl is not None and created:
        moments.append(nanoseconds(created, "metadata.creationTimestamp") + ttl)
    return min(moments, default=None)


def synced(item: Json, pods: Iterable[PodInfo] | None, now: int) -> Json:
    """Return a Reservation that has a node with its current status; the object itself if nothing changes.

    `pods` are those of its node, None if the node was deleted. With `allocateOnce` the phase becomes Succeeded when the
    current owners or the allocated amounts change, even if the last owner has left (as in Koordinator).
    """
    status = item.get("status") or {}
    if not status.get("nodeName") or status.get("phase") in ENDED:
        return item
    if pods is None or is_expired(item, now):
        return expired(item, now)
    uid = item["metadata"].get("uid") or item["metadata"]["name"]
    owners = sorted((pod for pod in pods if allocated_uid(pod.object) == uid), key=lambda pod: pod.uid)
    names = resource_list(status, "allocatable", "status")
    allocated = ResourceList()
    for pod in owners:
        for name in names:
            if name in pod.requests:
                allocated[name] += pod.requests[name]
    current = [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in owners]
    before = [{key: each.get(key, "") for key in ("namespace", "name", "uid")}
              for each in status.get("currentOwners") or ()]
    if current == before and _same(resource_list(status, "allocated", "status"), allocated):
        return item
    changed = {**item, "status": {**status, "currentOwners": current, "allocated": written(allocated)}}
    once = (item.get("spec") or {}).get("allocateOnce")
    if once is None or once:
        changed = with_conditions(changed, now, Ready=("False", "Succeeded", ""))
        changed["status"]["phase"] = "Succeeded"
    return changed


def _same(left: ResourceList, right: ResourceList) -> bool:
    return all(left[name] == right[name] for name in {*left, *right})
