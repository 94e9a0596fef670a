"""The built-in defaults of NodeSLOs and of colocation (Koordinator's sloconfig), and the values of disabled features.

Each function returns an object of its own, which the caller may change.
"""

from __future__ import annotations

from typing import Any

from .settings import CLASSES


def threshold() -> dict[str, Any]:
    """Return the default of `resourceUsedThresholdWithBE`."""
    return {"enable": False, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit"}


def cpu_burst() -> dict[str, Any]:
    """Return the default of `cpuBurstStrategy`."""
    return {"policy": "none", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 50}


def system() -> dict[str, Any]:
    """Return the default of `systemStrategy`."""
    return {"totalNetworkBandwidth": "0"}


def cpu_qos(name: str) -> dict[str, Any]:
    """Return the default of a class's `cpuQOS`; of an unknown class, the values of CPU QoS that is off."""
    identity = {"lsrClass": 2, "lsClass": 2, "beClass": -1}.get(name, 0)
    return {"enable": False, "groupIdentity": identity, "schedIdle": 0, "coreExpeller": identity == 2}


def resctrl_qos(name: str) -> dict[str, Any]:
    """Return the default of a class's `resctrlQOS`; of an unknown class, the values of resctrl that is off."""
    end = 30 if name == "beClass" else 100
    return {"enable": False, "catRangeStartPercent": 0, "catRangeEndPercent": end, "mbaPercent": 100}


def memory_qos(name: str) -> dict[str, Any]:
    """Return the default of a class's `memoryQOS`; of an unknown class, the values of memory QoS that is off."""
    ratio, scale, adjustment = {
        "lsrClass": (95, 20, -25), "lsClass": (95, 20, -25), "beClass": (95, 20, 50)}.get(name, (0, 50, 0))
    return {"enable": False, "minLimitPercent": 0, "lowLimitPercent": 0, "throttlingPercent": 0, "wmarkRatio": ratio,
            "wmarkScalePermill": scale, "wmarkMinAdj": adjustment, "priorityEnable": 0, "priority": 0,
            "oomKillGroup": 0}


def network_qos() -> dict[str, Any]:
    """Return the default of each class's `networkQOS`."""
    return {"enable": False, "ingressRequest": 0, "ingressLimit": 0, "egressRequest": 0, "egressLimit": 0}


def resource_qos() -> dict[str, Any]:
    """Return the default of `resourceQOSStrategy`."""
    found: dict[str, Any] = {"policies": {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"}}
    for name in CLASSES:
        disks = {"blkioQOS": {"enable": False}}
        found[name] = disks if name == "cgroupRoot" else {
            "cpuQOS": cpu_qos(name), "resctrlQOS": resctrl_qos(name), "memoryQOS": memory_qos(name), **disks,
            "networkQOS": network_qos()}
    return found


def node_slo_spec() -> dict[str, Any]:
    """Return the default spec of a NodeSLO."""
    return {"resourceUsedThresholdWithBE": threshold(), "resourceQOSStrategy": resource_qos(),
            "cpuBurstStrategy": cpu_burst(), "systemStrategy": system(), "extensions": {}}


def colocation() -> dict[str, Any]:
    """Return the default of `colocation-config`."""
    return {
        "enable": False, "metricAggregateDurationSeconds": 300, "metricReportIntervalSeconds": 60,
        "metricAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
        "metricMemoryCollectPolicy": "usageWithoutPageCache",
        "cpuReclaimThresholdPercent": 60, "cpuCalculatePolicy": "usage",
        "memoryReclaimThresholdPercent": 65, "memoryCalculatePolicy": "usage",
        "degradeTimeMinutes": 15, "updateTimeThresholdSeconds": 300, "resourceDiffThreshold": 0.1,
        "midCPUThresholdPercent": 100, "midMemoryThresholdPercent": 100, "midUnallocatedPercent": 0,
        "midStaticCPUReservedPercent": 0, "midStaticMemoryReservedPercent": 0,
    }
