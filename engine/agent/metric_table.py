"""The table of the agent's metrics (docs/metrics.md): koordlet's begin with `koordlet_`, with its labels."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.serving.instruments import MetricSpec, MetricType

_C, _G = MetricType.COUNTER, MetricType.GAUGE

START_TIME: Final = MetricSpec("koordlet_start_time", _G, "Time at which the agent started", ("node",))
NODE_CPU_INFO: Final = MetricSpec(
    "koordlet_collect_node_cpu_info_status", _G, "Readings of the processors: succeeded, failed", ("node", "status"))
NODE_NUMA_INFO: Final = MetricSpec(
    "koordlet_collect_node_numa_info_status", _G, "Readings of the NUMA nodes: succeeded, failed", ("node", "status"))
NODE_STORAGE_INFO: Final = MetricSpec(
    "koordlet_collect_node_local_storage_info_status", _G, "Readings of the local storage: succeeded, failed",
    ("node", "status"))
NODE_USED_CPU: Final = MetricSpec("koordlet_node_used_cpu_cores", _G, "CPU that the node uses", ("node",))
NODE_USED_MEMORY: Final = MetricSpec(
    "koordlet_node_used_memory_bytes", _G, "Memory that the node uses, without page cache", ("node",))
APPLICATION_USAGE: Final = MetricSpec(
    "koordlet_host_application_resource_usage", _G, "Usage of host applications: cpu in cores, memory in bytes",
    ("node", "host_application_name", "resource", "priority_class", "qos"))
POD_PSI: Final = MetricSpec(
    "koordlet_pod_psi", _G, "Percent of the time in which some or all tasks of a pod waited for cpu, mem or io",
    ("node", "pod_uid", "pod_name", "pod_namespace", "psi_resource_type", "psi_precision", "psi_degree",
     "cpu_full_supported"))
CONTAINER_PSI: Final = MetricSpec(
    "koordlet_container_psi", _G, "Percent of the time in which some or all tasks of a container waited",
    ("node", "container_id", "container_name", "pod_uid", "pod_name", "pod_namespace", "psi_resource_type",
     "psi_precision", "psi_degree", "cpu_full_supported"))
LLC_OCCUPANCY: Final = MetricSpec(
    "koordlet_resctrl_llc_occupancy", _G, "Bytes of a last-level cache that a QoS class occupies",
    ("node", "cache_id", "qos"))
MEMORY_BANDWIDTH: Final = MetricSpec(
    "koordlet_resctrl_memory_bandwidth", _G, "Bytes per second that a QoS class moves: total, local",
    ("node", "cache_id", "qos", "mb_type"))
COLLECTOR_FAILURES: Final = MetricSpec(
    "koord_policy_collector_failures_total", _C, "Files of measurements that were missing or malformed", ("collector",))
METRIC_CACHE_BYTES: Final = MetricSpec("koord_policy_metric_cache_bytes", _G, "Memory of the measurements")

COLLECTION: Final = (
    START_TIME, NODE_CPU_INFO, NODE_NUMA_INFO, NODE_STORAGE_INFO, NODE_USED_CPU, NODE_USED_MEMORY, APPLICATION_USAGE,
    POD_PSI, CONTAINER_PSI, LLC_OCCUPANCY, MEMORY_BANDWIDTH, COLLECTOR_FAILURES, METRIC_CACHE_BYTES,
)
"""The rows of what the agent collects."""

NOTE: Final = (
    "koordlet's counters have names without `_total`, which a counter of the text format cannot have: their type is "
    "gauge here.\nA usage that was not measured within two intervals of its collector has no series, and pressures are "
    "those of 10 seconds\n(`avg10`).\n"
)
"""The remark of the page on these rows."""
