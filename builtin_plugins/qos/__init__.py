"""The Python-coded strategies of the QoS manager, in one table.

Modules are imported when a plugin is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.framework.file_sets import CONTAINER, POD, TIER, TIERS, FileSet
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.kubernetes.kernel_settings import (
    KERNEL_SETTINGS,
    MEMCG_REAP_BACKGROUND,
    MIN_FREE_KBYTES,
    PAGECACHE_LIMIT_ENABLED,
    SCHED_GROUP_IDENTITY_ENABLED,
    SCHED_IDLE_SAVER_WMARK,
    WATERMARK_SCALE_FACTOR,
)
from koordpolicy.engine.kubernetes.vocabulary import BE, BURST_CLASSES, LSE, LSR

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

_SUPPRESSION_FILES: Final = (
    FileSet.of(("besteffort",), ("cpu.cfs_quota_us",)),
    FileSet.of(("besteffort",), ("cpuset.cpus",), (TIER, POD, CONTAINER)),
)
_RESCTRL_FILES: Final = (FileSet.of(("resctrl/LSR", "resctrl/LS", "resctrl/BE"), ("schemata",)),)
_LIMITS: Final = (
    *(f"blkio.throttle.{name}_device" for name in ("read_iops", "read_bps", "write_iops", "write_bps")),
    "blkio.cost.weight",
)
_BLKIO_FILES: Final = (
    FileSet.of(("besteffort",), _LIMITS, (TIER, POD)),
    FileSet.of(("guaranteed", "burstable"), _LIMITS, (POD,)),
    FileSet.of(("root",), ("blkio.cost.qos", "blkio.cost.model")),
)
_SYSTEM_FILES: Final = FileSet.host((
    *(KERNEL_SETTINGS[name].file for name in (
        MIN_FREE_KBYTES, WATERMARK_SCALE_FACTOR, MEMCG_REAP_BACKGROUND, SCHED_GROUP_IDENTITY_ENABLED,
        SCHED_IDLE_SAVER_WMARK, PAGECACHE_LIMIT_ENABLED,
    )),
    "sys/kernel/debug/sched_features",
))
_BURST_FILES: Final = (
    FileSet.of(TIERS, ("cpu.cfs_burst_us",), (POD, CONTAINER), labels=BURST_CLASSES),
    FileSet.of(("guaranteed", "burstable"), ("cpu.cfs_quota_us",), (POD, CONTAINER), labels=BURST_CLASSES),
)
_MEMORY_FILES: Final = (FileSet.of(TIERS, (f"memory.{name}" for name in (
    "min", "low", "high", "wmark_ratio", "wmark_scale_factor", "wmark_min_adj", "priority", "use_priority_oom",
    "oom.group", "pagecache_limit.enable", "pagecache_limit.size", "pagecache_limit.sync",
)), (TIER, POD, CONTAINER)),)

_OBJECTS: Final = (Read("Node", fields=frozenset()), Read("Pod", fields=frozenset(
    ("spec", "volumes", *path) for path in (
        ("name",), ("persistentVolumeClaim",), ("ephemeral", "metadata"), ("csi", "driver")))))
"""Strategies read the fields of Nodes and pods that the whole agent reads, and the claims that a pod mounts."""
_IDENTITY: Final = frozenset({
    *((*_QOS, of_class, "cpuQOS", name) for of_class in ("lsrClass", "lsClass", "beClass")
      for name in ("enable", "groupIdentity")),
    (*_QOS, "policies", "cpuPolicy"), (*_APPLICATIONS, "name"), (*_APPLICATIONS, "qos"),
    ("spec", "systemStrategy", "schedGroupIdentityEnabled"),
})
_IDENTITY_FILES: Final = (
    FileSet.of((*TIERS, "applications"), ("cpu.bvt_warp_ns",), (TIER, POD)),
    *FileSet.host((KERNEL_SETTINGS[SCHED_GROUP_IDENTITY_ENABLED].file, "proc/sys/kernel/sched_core")),
)
_CPUSET_FILES: Final = (
    FileSet.of(TIERS, ("cpuset.cpus",), (CONTAINER,)),
    FileSet.of(("guaranteed", "burstable"), ("cpu.cfs_quota_us",), (POD, CONTAINER), labels=(LSE, LSR)),
)
_BATCH: Final = frozenset((*_THRESHOLDS, name) for name in ("enable", "cpuSuppressPolicy"))
_BATCH_FILES: Final = (
    FileSet.of(TIERS, ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"), (POD, CONTAINER), labels=(BE,)),
)


def _plugin(
    name: str, module: str, description: str, *, enabled: bool, reads: tuple[Read, ...], gates: tuple[str, ...] = (),
    writes: tuple[FileSet, ...] = (),
) -> Plugin:
    def make(args: Mapping[str, Any], handle: Any) -> Any:
        return import_module(f".{module}", __name__).make(args, handle)

    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = import_module(f".{module}", __name__).check_args(args)
        return checked

    return Plugin(
        name, Framework.QOS, (Point.STRATEGY,), make, origin="built-in", digest=f"built-in/{name}/1",
        description=description, enabled=enabled, check_args=check_args, reads=(*reads, *_OBJECTS), writes=writes,
        gates=gates,
    )


PLUGINS: Final[tuple[Plugin, ...]] = (
    _plugin("BECPUSuppress", "cpu_suppress.plugin",
            "Keeps a node's CPU usage near a threshold by bounding all best-effort pods together.", enabled=False,
            reads=(Read("NodeSLO", fields=_SUPPRESSION),), writes=_SUPPRESSION_FILES),
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
            reads=(Read("NodeSLO", fields=_RESCTRL),), writes=_RESCTRL_FILES),
    _plugin("BlkIOReconcile", "blkio_reconcile.plugin",
            "Limits the block devices of best-effort pods, of single pods, and of the node.", enabled=False,
            reads=(Read("NodeSLO", fields=_BLKIO),), writes=_BLKIO_FILES),
    _plugin("SystemConfig", "system_reconcile.plugin",
            "Writes settings of the kernel, and restores them.", enabled=False,
            reads=(Read("NodeSLO", fields=_SYSTEM),), writes=_SYSTEM_FILES),
    _plugin("CPUBurst", "cpu_burst.plugin",
            "Lets throttled containers use more CPU than their limit while the node has some left.", enabled=False,
            reads=(Read("NodeSLO", fields=frozenset((*_BURST, name) for name in (
                "policy", "cpuBurstPercent", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds",
                "sharePoolThresholdPercent",
            ))),), writes=_BURST_FILES),
    _plugin("CgroupReconcile", "cgroup_reconcile.plugin",
            "Protects the memory of pods by their QoS class: minimum, low, high and watermarks of control groups.",
            enabled=False, reads=(Read("NodeSLO", fields=_MEMORY),), writes=_MEMORY_FILES),
    _plugin("GroupIdentity", "group_identity.plugin",
            "Sets the scheduling priority of tiers, pods and host applications on kernels that have it.",
            enabled=False, reads=(Read("NodeSLO", fields=_IDENTITY),), writes=_IDENTITY_FILES),
    _plugin("CPUSetAllocator", "cpuset_allocator.plugin",
            "Sets the CPUs of containers as the scheduler allocated them, or those that pods share.",
            enabled=False, reads=(Read("NodeResourceTopology"),), writes=_CPUSET_FILES),
    _plugin("BatchResource", "batch_resource.plugin",
            "Sets CPU shares, CFS quotas and memory limits of best-effort pods by their batch resources.",
            enabled=False, reads=(Read("NodeSLO", fields=_BATCH),), writes=_BATCH_FILES),
)
