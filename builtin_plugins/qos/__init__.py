"""The Python-coded strategies of the QoS manager, in one table.

Modules are imported when a plugin is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin

_THRESHOLDS: Final = ("spec", "resourceUsedThresholdWithBE")
_APPLICATIONS: Final = ("spec", "hostApplications")
_SUPPRESSION: Final = frozenset({
    *((*_THRESHOLDS, name) for name in (
        "enable", "cpuSuppressThresholdPercent", "cpuSuppressMinPercent", "cpuSuppressPolicy",
    )),
    (*_APPLICATIONS, "name"), (*_APPLICATIONS, "qos"), (*_APPLICATIONS, "cgroupPath", "base"),
})
_CPU_EVICTION: Final = frozenset((*_THRESHOLDS, name) for name in (
    "enable", "cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent",
    "cpuEvictBEUsageThresholdPercent", "cpuEvictTimeWindowSeconds", "cpuEvictPolicy", "cpuEvictThresholdPercent",
    "cpuEvictLowerPercent", "cpuAllocatableEvictThresholdPercent", "cpuAllocatableEvictLowerPercent",
    "evictEnabledPriorityThreshold", "allocatableEvictPriorityThreshold",
))
_MEMORY_EVICTION: Final = frozenset((*_THRESHOLDS, name) for name in (
    "enable", "memoryEvictThresholdPercent", "memoryEvictLowerPercent", "memoryAllocatableEvictThresholdPercent",
    "memoryAllocatableEvictLowerPercent", "evictEnabledPriorityThreshold", "allocatableEvictPriorityThreshold",
))
_QOS: Final = ("spec", "resourceQOSStrategy")
_RESCTRL: Final = frozenset(
    (*_QOS, of_class, "resctrlQOS", name) for of_class in ("lsrClass", "lsClass", "beClass")
    for name in ("enable", "catRangeStartPercent", "catRangeEndPercent", "mbaPercent")
)
_IO_FIELDS: Final = (
    "readIOPS", "writeIOPS", "readBPS", "writeBPS", "ioWeightPercent",
    "readLatencyPercent", "readLatency", "writeLatencyPercent", "writeLatency", "enableUserModel",
    "modelReadBPS", "modelReadSeqIOPS", "modelReadRandIOPS", "modelWriteBPS", "modelWriteSeqIOPS", "modelWriteRandIOPS",
)
_BLKIO: Final = frozenset({
    *((*_QOS, of_class, "blkioQOS", "blocks", *path) for of_class in ("beClass", "cgroupRoot")
      for path in (("name",), ("type",), *(("ioCfg", name) for name in _IO_FIELDS))),
    *((*_QOS, of_class, "blkioQOS", "enable") for of_class in ("lsrClass", "lsClass", "beClass", "cgroupRoot")),
})
_SYSTEM: Final = frozenset(("spec", "systemStrategy", name) for name in (
    "minFreeKbytesFactor", "watermarkScaleFactor", "memcgReapBackGround", "schedGroupIdentityEnabled",
    "schedIdleSaverWmark", "pageCacheLimitEnabled", "schedFeatures",
))

_MEMORY: Final = frozenset(
    (*_QOS, of_class, "memoryQOS", name) for of_class in ("lsrClass", "lsClass", "beClass", "systemClass")
    for name in (
        "enable", "minLimitPercent", "lowLimitPercent", "throttlingPercent", "wmarkRatio", "wmarkScalePermill",
        "wmarkMinAdj", "priorityEnable", "priority", "oomKillGroup", "pageCacheEnable", "pageCacheLimitPercent",
        "pageCacheLimitSize", "pageCacheReclaimSync",
    )
)
_BURST: Final = ("spec", "cpuBurstStrategy")


def _plugin(
    name: str, module: str, description: str, *, enabled: bool, reads: tuple[Read, ...], gates: tuple[str, ...] = (),
) -> Plugin:
    def make(args: Mapping[str, Any], handle: Any) -> Any:
        return import_module(f".{module}", __name__).make(args, handle)

    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = import_module(f".{module}", __name__).check_args(args)
        return checked

    return Plugin(
        name, Framework.QOS, (Point.STRATEGY,), make, origin="built-in", digest=f"built-in/{name}/1",
        description=description, enabled=enabled, check_args=check_args, reads=reads, gates=gates,
    )


PLUGINS: Final[tuple[Plugin, ...]] = (
    _plugin("BECPUSuppress", "cpu_suppress.plugin",
            "Keeps a node's CPU usage near a threshold by bounding all best-effort pods together.", enabled=False,
            reads=(Read("NodeSLO", fields=_SUPPRESSION),)),
    _plugin("CPUEvict", "cpu_evict.plugin",
            "Evicts pods of a node whose CPU is short: by satisfaction of best-effort pods, requests or usage.",
            enabled=False, reads=(Read("NodeSLO", fields=_CPU_EVICTION),),
            gates=("BECPUEvict", "CPUAllocatableEvict", "CPUEvict")),
    _plugin("memoryEvict", "memory_evict.plugin",
            "Evicts pods of a node that is short of memory, by usage or requests.",
            enabled=False, reads=(Read("NodeSLO", fields=_MEMORY_EVICTION),),
            gates=("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")),
    _plugin("RdtResctrl", "resctrl_reconcile.plugin",
            "Gives each QoS class a range of the last-level cache and a share of the memory bandwidth.", enabled=False,
            reads=(Read("NodeSLO", fields=_RESCTRL),)),
    _plugin("BlkIOReconcile", "blkio_reconcile.plugin",
            "Limits the block devices of best-effort pods, of single pods, and of the node.", enabled=False,
            reads=(Read("NodeSLO", fields=_BLKIO),)),
    _plugin("SystemConfig", "system_reconcile.plugin",
            "Writes settings of the kernel, and restores them.", enabled=False,
            reads=(Read("NodeSLO", fields=_SYSTEM),)),
    _plugin("CPUBurst", "cpu_burst.plugin",
            "Lets throttled containers use more CPU than their limit while the node has some left.", enabled=False,
            reads=(Read("NodeSLO", fields=frozenset((*_BURST, name) for name in (
                "policy", "cpuBurstPercent", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds",
                "sharePoolThresholdPercent",
            ))),)),
    _plugin("CgroupReconcile", "cgroup_reconcile.plugin",
            "Protects the memory of pods by their QoS class: minimum, low, high and watermarks of control groups.",
            enabled=False, reads=(Read("NodeSLO", fields=_MEMORY),)),
)
