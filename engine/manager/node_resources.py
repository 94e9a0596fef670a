"""Batch and mid resources of a node: what pods of high priority leave over (Koordinator's noderesource).

All amounts are in milli-cores and bytes. The functions are pure: they take what was measured and return amounts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.kubernetes.objects import nanoseconds
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    FREE,
    LSE,
    MID,
    NODE_RESERVATION_ANNOTATION,
    PROD,
    RESOURCE_STATUS_ANNOTATION,
)

RESOURCES: Final = ("cpu", "memory")
_LOW: Final = frozenset((BATCH, FREE))
_ACTIVE: Final = ("Pending", "Running")
_MAX_POLICY: Final = "maxUsageRequest"
_REQUEST_POLICY: Final = "request"
_STATIC: Final = "static"
_MINUTE_NS: Final = 60 * 10**9

Amounts = Mapping[str, int]
"""By `cpu` (milli-cores) and `memory` (bytes); a missing one is 0."""


def amounts_of(resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Return cpu and memory of a resource list, 0 for what it has not.

    Raises:
        ValueError: a quantity cannot be read.
    """
    found = resources or {}
    return {name: canonical_amount(name, found[name], name) if name in found else 0 for name in RESOURCES}


def add(*amounts: Amounts) -> dict[str, int]:
    """Return the sum of amounts."""
    return {name: sum(each.get(name, 0) for each in amounts) for name in RESOURCES}


def largest(*amounts: Amounts) -> dict[str, int]:
    """Return the maximum of amounts, resource by resource."""
    return {name: max(each.get(name, 0) for each in amounts) for name in RESOURCES}


@dataclass(frozen=True, slots=True)
class MeasuredPod:
    """A pod that is bound to the node: its amounts, and its usage if it was reported.

    `zones` are the NUMA nodes of its allocation; empty: it may use all.
    """

    band: str
    qos: str
    request: Amounts
    usage: Amounts | None = None
    active: bool = True
    zones: tuple[int, ...] = ()

    @property
    def high(self) -> bool:
        """True for pods whose room batch pods must not take."""
        return self.active and self.band not in _LOW

    @property
    def used(self) -> Amounts:
        """The usage that counts: without a report the request, and of a pod with exclusive cores their request."""
        if self.usage is None:
            return self.request
        if self.qos == LSE:
            return {"cpu": self.request.get("cpu", 0), "memory": self.usage.get("memory", 0)}
        return self.usage


@dataclass(frozen=True, slots=True)
class NodeMeasurements:
    """The capacity of a node, and the usage of it.

    `dangling` is the usage of reported pods that the API server does not have, by band. `applications` is the usage of
    host applications by band (empty: they are prod). `reclaimable` is predicted to stay unused of prod pods.
    """

    capacity: Amounts
    reserved: Amounts = field(default_factory=dict)
    system: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    pods: Sequence[MeasuredPod] = ()
    dangling: Sequence[tuple[str, Amounts]] = ()
    applications: Sequence[tuple[str, Amounts]] = ()
    reclaimable: Amounts = field(default_factory=dict)


def batch_resources(measured: NodeMeasurements, strategy: Mapping[str, Any], *, parity: bool = False) -> dict[str, int]:
    """Return the batch resources of a node or a NUMA zone.

    With the policy `maxUsageRequest`, pods without a report count with their request; with `parity` they do not count,
    as in Koordinator, which promises too much after the start of pods.
    """
    high = [pod for pod in measured.pods if pod.high]
    dangling = [used for band, used in measured.dangling if band not in _LOW]
    system = largest(add(measured.system, *_applications(measured, _LOW)), measured.reserved)
    requested = add(*(pod.request for pod in high))
    used = add(*(pod.used for pod in high), *dangling)
    counted = [pod for pod in high if pod.usage is not None or not parity]
    most = add(*(largest(pod.request, pod.usage or {}) for pod in counted), *dangling)
    found = {}
    for name, policy in (("cpu", "cpuCalculatePolicy"), ("memory", "memoryCalculatePolicy")):
        capacity = measured.capacity.get(name, 0)
        margin = capacity * (100 - int(strategy.get(f"{name}ReclaimThresholdPercent", 0))) // 100
        chosen = strategy.get(policy)
        if chosen == _MAX_POLICY:
            left = capacity - margin - system[name] - most[name]
        elif chosen == _REQUEST_POLICY and name == "memory":
            left = capacity - margin - measured.reserved.get(name, 0) - requested[name]
        else:
            left = capacity - margin - system[name] - used[name]
        limit = strategy.get("batchCPUThresholdPercent" if name == "cpu" else "batchMemoryThresholdPercent")
        found[name] = max(0, left if limit is None else min(left, capacity * int(limit) // 100))
    return found


def mid_resources(measured: NodeMeasurements, strategy: Mapping[str, Any]) -> dict[str, int]:
    """Return the mid resources of a node: a static part, or what prod pods are predicted to leave unused."""
    system = largest(measured.reserved, add(measured.system, *_applications(measured, _LOW | {MID})))
    prod = add(*(pod.request for pod in measured.pods if pod.active and pod.band == PROD))
    found = {}
    for name, word in (("cpu", "CPU"), ("memory", "Memory")):
        capacity = measured.capacity.get(name, 0)
        if strategy.get("midReclaimMode") == _STATIC:
            left = capacity * int(strategy.get(f"midStatic{word}ReservedPercent", 0)) // 100
        else:
            unused = max(0, capacity - measured.used.get(name, 0))
            unallocated = max(0, capacity - system[name] - prod[name])
            left = min(measured.reclaimable.get(name, 0), unused)
            left += unallocated * int(strategy.get("midUnallocatedPercent", 0)) // 100
        found[name] = max(0, min(left, capacity * int(strategy.get(f"mid{word}ThresholdPercent", 100)) // 100))
    return found


def _applications(measured: NodeMeasurements, without: Iterable[str]) -> list[Amounts]:
    return [used for band, used in measured.applications if band not in without]


def zone_measurements(measured: NodeMeasurements, zones: Mapping[int, Amounts]) -> dict[int, NodeMeasurements]:
    """Split what was measured over NUMA zones, whose capacities are given.

    The system, reservations, host applications and dangling pods are split evenly, a pod over the zones of its
    allocation.
    """
    count = len(zones)

    def share(amounts: Amounts, over: int = count) -> dict[str, int]:
        return {name: -(-amounts.get(name, 0) // over) for name in RESOURCES}

    found = {}
    for zone, capacity in zones.items():
        pods = []
        for pod in measured.pods:
            held = [each for each in pod.zones if each in zones] or list(zones)
            if zone in held:
                usage = None if pod.usage is None else share(pod.usage, len(held))
                pods.append(MeasuredPod(pod.band, pod.qos, share(pod.request, len(held)), usage, pod.active))
        found[zone] = NodeMeasurements(
            capacity, share(measured.reserved), share(measured.system), share(measured.used), pods,
            [(band, share(used)) for band, used in measured.dangling],
            [(band, share(used)) for band, used in measured.applications])
    return found


# -- from objects ------------------------------------------------------------------------------------------------------


def is_stale(metric: Mapping[str, Any] | None, strategy: Mapping[str, Any], now: int) -> bool:
    """Return whether a NodeMetric is missing, was never reported, or is older than the strategy's degrade time.

    `now` is in nanoseconds since the epoch.
    """
    updated = ((metric or {}).get("status") or {}).get("updateTime")
    if not isinstance(updated, str):
        return True
    try:
        at = nanoseconds(updated, "status.updateTime")
    except ValueError:
        return True
    return now - at > int(strategy.get("degradeTimeMinutes", 15)) * _MINUTE_NS


def measurements(
    node: Mapping[str, Any], metric: Mapping[str, Any], pods: Iterable[PodInfo],
) -> NodeMeasurements:
    """Return the measurements of a node's objects.

    Raises:
        ValueError: a quantity of the node or the NodeMetric cannot be read, or the node's usage is missing.
    """
    status = metric.get("status") or {}
    reported = {f"{each.get('namespace')}/{each.get('name')}": each for each in status.get("podsMetric") or ()}
    unknown = dict(reported)
    found = []
    for pod in pods:
        active = (pod.object.get("status") or {}).get("phase") in _ACTIVE
        if not active:
            continue
        unknown.pop(pod.key, None)
        entry = reported.get(pod.key)
        usage = None if entry is None else _usage(entry.get("podUsage"))
        found.append(MeasuredPod(pod.priority_band, pod.qos_class, _request(pod), usage, zones=_zones(pod)))
    info = status.get("nodeMetric")
    if not isinstance(info, Mapping) or not info:
        raise ValueError("`status.nodeMetric` is missing: the usage of the node is unknown")
    return NodeMeasurements(
        capacity=amounts_of((node.get("status") or {}).get("capacity")),
        reserved=reserved_amounts(node),
        system=_usage(info.get("systemUsage")),
        used=_usage(info.get("nodeUsage")),
        pods=found,
        dangling=[(str(each.get("priority") or ""), _usage(each.get("podUsage"))) for each in unknown.values()],
        applications=[(str(each.get("priority") or ""), _usage(each.get("usage")))
                      for each in status.get("hostApplicationMetric") or ()],
        reclaimable=_usage((status.get("prodReclaimableMetric") or {}).get("resource")),
    )


def _usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    return amounts_of((usage or {}).get("resources"))


def _request(pod: PodInfo) -> dict[str, int]:
    return {name: pod.requests.get(name, 0) for name in RESOURCES}


def _zones(pod: PodInfo) -> tuple[int, ...]:
    text = ((pod.object.get("metadata") or {}).get("annotations") or {}).get(RESOURCE_STATUS_ANNOTATION)
    try:
        held = json.loads(text)["numaNodeResources"] if text else ()
        return tuple(int(each["node"]) for each in held or ())
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def reserved_amounts(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the reserved amounts of a node: those that kubelet withholds, or the annotation's reservation if it is
    more.

    An annotation that cannot be read reserves nothing.

    Raises:
        ValueError: a quantity of the node's status cannot be read.
    """
    status = node.get("status") or {}
    capacity, allocatable = amounts_of(status.get("capacity")), amounts_of(status.get("allocatable"))
    kubelet = {name: max(0, capacity[name] - allocatable[name]) for name in RESOURCES}
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(NODE_RESERVATION_ANNOTATION)
    if not text:
        return kubelet
    try:
        written = json.loads(text)
        own = amounts_of(written.get("resources"))
        cpus = _cpu_count(str(written.get("reservedCPUs") or ""))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return kubelet
    if cpus:
        own["cpu"] = cpus * 1000
    return largest(kubelet, own)


def _cpu_count(text: str) -> int:
    """Return how many CPUs a list such as `0-3,8` has."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < 65_536:
            raise ValueError(text)
        cpus.update(range(low, high + 1))
    return len(cpus)
