"""Reservation's binding cycle: a Reservation becomes available, and pods record the reservation that they use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.vocabulary import RESERVATION_ALLOCATED_ANNOTATION
from koordpolicy.engine.scheduler.extensions.reservations import reservation_of
from koordpolicy.plugin import CycleState, Deferred, Handle

from ..allocation.annotations import write_annotation
from .pre_allocation import PreAllocationChoice
from .status import available


def record_in_pods(
    handle: Handle, state: CycleState, reservation: dict[str, Any],
) -> Deferred | None:
    """Write the reservation into the annotations of the pods that it pre-allocates."""
    metadata, client = reservation["metadata"], handle.client
    patches: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
    for taken in state.get(PreAllocationChoice, PreAllocationChoice()).pods:
        item = json.loads(json.dumps(taken.object))
        uid = metadata.get("uid") or metadata["name"]
        write_annotation(item, RESERVATION_ALLOCATED_ANNOTATION, {"name": metadata["name"], "uid": uid})
        patches.append((taken.object, item))

    def patch() -> Refusal | None:
        try:
            for original, modified in patches:
                client.patch(original, modified)
        except OSError as error:
            return Refusal("pre-allocation", str(error), Code.ERROR)
        return None

    return Deferred(patch) if patches else None


def bind_reserve_pod(handle: Handle, pod: PodInfo, node: str) -> Refusal | Deferred:
    """Make the Reservation of a reserve pod available on its node."""
    item = handle.snapshot().object("Reservation", reservation_of(pod))
    if item is None:
        return Refusal("reservation", "reservation not found", Code.ERROR)
    if (item.get("status") or {}).get("phase") == "Failed":
        return Refusal("reservation", "reservation is not active", Code.ERROR)
    try:
        modified = available(item, node, handle.now())
    except ValueError as error:
        return Refusal("reservation", str(error), Code.ERROR)
    client, log = handle.client, handle.log

    def patch() -> Refusal | None:
        try:
            client.patch(item, modified)
        except (OSError, ValueError) as error:
            return Refusal("reservation", str(error), Code.ERROR)
        log.info("Successfully assigned %s to %s", item["metadata"]["name"], node)
        return None

    return Deferred(patch)
