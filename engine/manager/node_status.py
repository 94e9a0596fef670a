"""The publication of batch and mid resources: what differs enough to be written, and the patches for it.

Only the resource names of this manager are written; all other fields of a node belong to others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    BATCH_CPU,
    BATCH_MEMORY,
    CPU_NORMALIZATION_RATIO_ANNOTATION,
    MID_CPU,
    MID_MEMORY,
    ORIGIN_ALLOCATABLE_ANNOTATION,
    THIRD_PARTY_ALLOCATIONS_ANNOTATION,
)

from .node_resources import Amounts, amounts_of

_LOG: Final = logging.getLogger(__name__)

OWNED: Final = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)
"""The resource names that this manager writes."""
_BATCH: Final = (BATCH_CPU, BATCH_MEMORY)
_HIGHEST_RATIO: Final = 5.0

Published = Mapping[str, int | None]
"""The amount of each owned resource; None for one that the node must not have."""


def published_resources(
    node: Mapping[str, Any], batch: Amounts | None, mid: Amounts | None,
) -> tuple[dict[str, int | None], dict[str, int]]:
    """Return the resources to publish, and the batch resources before the allocations of others were subtracted.

    None for `batch` or `mid` removes them. Batch CPU is multiplied by the node's CPU normalisation ratio.
    """
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    found: dict[str, int | None] = dict.fromkeys(OWNED)
    origin: dict[str, int] = {}
    if batch is not None:
        cpu = batch.get("cpu", 0)
        ratio = normalization_ratio(annotations)
        origin = {BATCH_CPU: int(cpu * ratio) if ratio > 1 else cpu, BATCH_MEMORY: batch.get("memory", 0)}
        taken = third_party_allocations(annotations)
        found.update({name: max(0, amount - taken.get(name, 0)) for name, amount in origin.items()})
    if mid is not None:
        found.update({MID_CPU: mid.get("cpu", 0), MID_MEMORY: mid.get("memory", 0)})
    return found, origin


def normalization_ratio(annotations: Mapping[str, Any]) -> float:
    """Return the CPU normalisation ratio of a node, 1 to 5; 1 without one, or for one that cannot be read."""
    try:
        ratio = float(annotations.get(CPU_NORMALIZATION_RATIO_ANNOTATION, 1))
    except (TypeError, ValueError):
        return 1.0
    return ratio if 1.0 <= ratio <= _HIGHEST_RATIO else 1.0


def third_party_allocations(annotations: Mapping[str, Any]) -> dict[str, int]:
    """Return the batch resources that other systems have allocated on a node, such as YARN; none if unreadable."""
    text = annotations.get(THIRD_PARTY_ALLOCATIONS_ANNOTATION)
    if not text:
        return {}
    found: dict[str, int] = dict.fromkeys(_BATCH, 0)
    try:
        for each in json.loads(text).get("allocations") or ():
            resources = each.get("resources") or {} if each.get("priority") == BATCH else {}
            for name in _BATCH:
                if name in resources:
                    found[name] += canonical_amount(name, resources[name], name)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        _LOG.warning("the annotation %s cannot be read, and is left out: %s", THIRD_PARTY_ALLOCATIONS_ANNOTATION, error)
        return {}
    return found


def differs(current: int | None, desired: int | None, threshold: float) -> bool:
    """Return whether an amount has to be written: it appears, disappears, or changes by more than the threshold."""
    if current is None or desired is None:
        return current is not desired
    return abs(desired - current) > current * threshold


def current_resources(node: Mapping[str, Any], field: str) -> dict[str, int | None]:
    """Return the owned resources of a node's `capacity` or `allocatable`; None for absent and unreadable ones."""
    amounts = (node.get("status") or {}).get(field) or {}
    found: dict[str, int | None] = {}
    for name in OWNED:
        try:
            found[name] = canonical_amount(name, amounts[name], name) if name in amounts else None
        except ValueError:
            found[name] = None
    return found


def status_patch(
    node: Mapping[str, Any], desired: Published, threshold: float, *, exact: bool = False,
) -> dict[str, Any] | None:
    """Return the merge patch of a node's status, or None if nothing has to be written.

    If one resource differs by more than `threshold` (a ratio), or with `exact` at all, all are written.
    """
    fields = ("capacity", "allocatable")
    current = {field: current_resources(node, field) for field in fields}
    limit = 0.0 if exact else threshold
    if not any(differs(current[field][name], desired[name], limit) for field in fields for name in OWNED):
        return None
    patch: dict[str, Any] = {}
    for field in fields:
        changed = {
            name: None if desired[name] is None else str(desired[name])
            for name in OWNED if current[field][name] != desired[name]}
        if changed:
            patch[field] = changed
    return {"status": patch}


def origin_patch(node: Mapping[str, Any], origin: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the merge patch of the annotation with the batch resources before others' allocations, or None."""
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    text = None if not origin else json.dumps(
        {"resources": {name: str(amount) for name, amount in origin.items()}}, separators=(",", ":"))
    if annotations.get(ORIGIN_ALLOCATABLE_ANNOTATION) == text:
        return None
    return {"metadata": {"annotations": {ORIGIN_ALLOCATABLE_ANNOTATION: text}}}


# -- NUMA zones --------------------------------------------------------------------------------------------------------


def zone_capacities(topology: Mapping[str, Any] | None) -> dict[int, dict[str, int]]:
    """Return cpu and memory of each NUMA zone of a NodeResourceTopology that has them, by its number."""
    found = {}
    for zone in (topology or {}).get("zones") or ():
        number = _zone_number(zone)
        if number is None:
            continue
        held = {each.get("name"): each.get("capacity") for each in zone.get("resources") or ()}
        if held.get("cpu") is not None and held.get("memory") is not None:
            found[number] = amounts_of({name: str(held[name]) for name in ("cpu", "memory")})
    return found


def _zone_number(zone: Mapping[str, Any]) -> int | None:
    name = str(zone.get("name") or "")
    number = name.removeprefix("node-")
    return int(number) if number != name and number.isascii() and number.isdecimal() else None


def zones_with(
    topology: Mapping[str, Any], batch: Mapping[int, Amounts] | None, threshold: float, *, exact: bool = False,
) -> list[dict[str, Any]] | None:
    """Return all zones of a NodeResourceTopology with their batch resources, or None if nothing has to be written.

    None for `batch` removes them.
    """
    changed = False
    zones: list[dict[str, Any]] = []
    for zone in topology.get("zones") or ():
        number = _zone_number(zone)
        desired = None if batch is None or number is None else batch.get(number)
        resources, differ = _zone_resources(zone.get("resources") or (), desired, 0.0 if exact else threshold)
        changed = changed or differ
        zones.append({**zone, "resources": resources} if resources or "resources" in zone else dict(zone))
    return zones if changed else None


def _zone_resources(
    resources: Sequence[Mapping[str, Any]], desired: Amounts | None, threshold: float,
) -> tuple[list[dict[str, Any]], bool]:
    amounts = {} if desired is None else {BATCH_CPU: desired["cpu"], BATCH_MEMORY: desired["memory"]}
    current: dict[str, int | None] = dict.fromkeys(_BATCH)
    updated = []
    for each in resources:
        name = str(each.get("name"))
        if name in current:
            try:
                current[name] = canonical_amount(name, str(each.get("allocatable")), name)
            except ValueError:
                current[name] = None
        else:
            updated.append(dict(each))
    differ = any(differs(current[name], amounts.get(name), threshold) for name in _BATCH)
    for name, amount in amounts.items():
        text = str(amount)
        updated.append({"name": name, "capacity": text, "allocatable": text, "available": text})
    return updated, differ
