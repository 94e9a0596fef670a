"""The feature gates of koordlet: those that switch something here, with their defaults, and those without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GATES: Final[Mapping[str, bool]] = {
    "BECPUSuppress": True, "BECPUManager": False, "BECPUEvict": False, "CPUAllocatableEvict": False, "CPUEvict": False,
    "BEMemoryEvict": False, "MemoryAllocatableEvict": False, "MemoryEvict": False, "CPUBurst": True,
    "CgroupReconcile": False, "RdtResctrl": True, "BlkIOReconcile": False, "SystemConfig": False,
    "PSICollector": False, "ColdPageCollector": False, "ResctrlCollector": False,
    "Accelerators": False, "RDMADevices": False,
    "GroupIdentity": True, "CPUSetAllocator": True, "BatchResource": True,
}
"""koordlet's feature gates of the QoS manager and of collectors, with their defaults; a document may name its own gate,
which is enabled by default."""
_NO_HOOK: Final = "this hook of the container runtime is absent here"
_NO_CPI: Final = "cycles per instruction are not measured"
GATES_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "AuditEvents": "`agent --audit-log-dir` writes the audit log",
    "AuditEventsHTTPHandler": "`agent --http` serves /events if there is an audit log (`--audit-log-dir`)",
    "NodeTopologyReport": "the topology is reported, except in a dry run and with `--own-strategies`",
    "NodeMetricPromMetrics": "the usage that the NodeMetric reports is always in /metrics",
    "CPICollector": _NO_CPI, "Libpfm4": _NO_CPI,
    "HugePageReport": "huge pages are not reported",
    "PerCPUMetric": "the usage of single CPUs is not measured",
    "PodResourcesProxy": "the kubelet's pod resources are not proxied",
    "HamiCoreVGPUMonitor": "virtual GPUs are not measured",
    "CPUNormalization": _NO_HOOK, "CoreSched": _NO_HOOK, "Resctrl": _NO_HOOK, "TCNetworkQoS": _NO_HOOK,
    "TerwayQoS": _NO_HOOK, "GPUEnvInject": _NO_HOOK, "RDMADeviceInject": _NO_HOOK, "OOMScoreAdj": _NO_HOOK,
    "AllAlpha": "name each gate", "AllBeta": "name each gate",
}
"""koordlet's other gates, which are accepted so that its command line can be taken over, with the reason or with what
does the same here."""
