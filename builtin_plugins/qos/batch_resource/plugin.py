"""BatchResource: CPU shares, CFS quota and memory limit of best-effort pods, by their batch resources.

The behaviour is that of koordlet's runtime hook (batchresource), by reconciling alone: the kubelet knows nothing of
batch resources, so without it these pods have no limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.memory_qos import is_active
from koordpolicy.engine.agent.qos_manager.reconciling import (
    INTERVAL_SECONDS,
    DesiredFile,
    FileReconciler,
    started_containers,
)
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH_CPU,
    BATCH_MEMORY,
    BE,
    CPU_NORMALIZATION_RATIO_ANNOTATION,
    raw_qos_class,
)

UNLIMITED: Final = -1
_SHARES: Final = (2, 262_144)
_QUOTA_OF_MILLI: Final = 100
"""Microseconds of a period of 100 ms for one milli-core."""
_SMALLEST_QUOTA: Final = 1_000


def shares_of(milli: int) -> int:
    """Return the CPU shares of a request."""
    return min(max(milli * 1024 // 1000, _SHARES[0]), _SHARES[1])


def quota_of(limits: Sequence[int], ratio: float) -> int:
    """Return the CFS quota of containers with those limits in milli-cores; -1 if one has none (0).

    `ratio` is the node's CPU normalization: how much faster it is than the CPU that requests are written for.
    """
    if not all(limits):
        return UNLIMITED
    quota = max(sum(limits) * _QUOTA_OF_MILLI, _SMALLEST_QUOTA)
    return math.ceil(quota / ratio) if ratio > 1 else quota


def memory_limit_of(limits: Sequence[int]) -> int:
    """Return the memory limit of containers with those limits in bytes; -1 if one has none (0)."""
    return sum(limits) if all(limits) else UNLIMITED


def normalization_ratio(node: Mapping[str, Any]) -> float:
    """Return the node's CPU normalization ratio; 1 without one, or if it cannot be read."""
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    try:
        ratio = float(annotations.get(CPU_NORMALIZATION_RATIO_ANNOTATION, 1))
    except (TypeError, ValueError):
        return 1.0
    return ratio if math.isfinite(ratio) and ratio > 0 else 1.0


class BatchResource:
    """The reconciler of batch resources."""

    name = "BatchResource"

    def __init__(self, args: Mapping[str, Any], handle: object = None) -> None:
        self._interval = read_interval(args, default=INTERVAL_SECONDS)
        self._files = FileReconciler("batchResource")

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Set shares, quotas and memory limits of best-effort pods and their containers.

        While BECPUSuppress limits the whole tier by a CFS quota, pods have none of their own.
        """
        slo = readings.object("NodeSLO") or {}
        threshold = (slo.get("spec") or {}).get("resourceUsedThresholdWithBE") or {}
        unlimited = threshold.get("enable") is True and threshold.get("cpuSuppressPolicy") == "cfsQuota"
        ratio = normalization_ratio(readings.node)
        desired = tuple(
            file for pod in readings.pods if is_active(pod) and raw_qos_class(pod.object) == BE
            for file in _desired(pod, readings, ratio, unlimited=unlimited)
        )
        return self._files.reconcile(readings, desired, "batch resources of the pod")

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Restore the former values."""
        return self._files.recover(readings)


def _desired(pod: PodInfo, readings: Readings, ratio: float, *, unlimited: bool) -> Iterator[DesiredFile]:
    containers = (pod.object.get("spec") or {}).get("containers") or ()
    try:
        amounts = {str(each.get("name")): _amounts(each) for each in containers}
    except ValueError:
        return  # an amount that nobody can read costs its own pod only
    if not any(any(each) for each in amounts.values()):
        return
    yield from _files(pod.key, readings.directory(pod), [*amounts.values()], ratio, unlimited=unlimited)
    for each in started_containers(pod):
        directory = readings.directory(pod, each["name"])
        yield from _files(pod.key, directory, [amounts[each["name"]]], ratio, unlimited=unlimited)


def _files(
    owner: str, directory: str, amounts: Sequence[tuple[int, int, int]], ratio: float, *, unlimited: bool,
) -> Iterator[DesiredFile]:
    requests, limits, memory = zip(*amounts, strict=True)
    quota = UNLIMITED if unlimited else quota_of(limits, ratio)
    for name, value in (
        ("cpu.shares", shares_of(sum(requests))), ("cpu.cfs_quota_us", quota),
        ("memory.limit_in_bytes", memory_limit_of(memory)),
    ):
        yield DesiredFile(owner, f"{directory}/{name}", str(value))


def _amounts(container: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the batch CPU request and limit (milli-cores) and the batch memory limit of a container, 0 without one."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return (
        max(canonical_amount(BATCH_CPU, requests.get(BATCH_CPU, "0"), BATCH_CPU), 0),
        max(canonical_amount(BATCH_CPU, limits.get(BATCH_CPU, "0"), BATCH_CPU), 0),
        max(canonical_amount(BATCH_MEMORY, limits.get(BATCH_MEMORY, "0"), BATCH_MEMORY), 0),
    )


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args, default=INTERVAL_SECONDS)
    return args


def make(args: Mapping[str, Any], handle: object) -> BatchResource:
    """Make the strategy for one profile."""
    return BatchResource(args, handle)
