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
DEVICES: Final = MetricSpec(
    "koord_policy_node_devices", _G, "1 for each GPU and RDMA adapter that is healthy, 0 for one that is not",
    ("node", "type", "minor", "name", "address", "driver", "numa_node"))
GPU_CORE: Final = MetricSpec(
    "koord_policy_node_gpu_core_usage", _G, "Percent of the time in which a GPU was busy, where sysfs has it",
    ("node", "minor"))
GPU_MEMORY: Final = MetricSpec(
    "koord_policy_node_gpu_memory_bytes", _G, "Memory of a GPU: used, total, where sysfs has it",
    ("node", "minor", "type"))
COLLECTOR_FAILURES: Final = MetricSpec(
    "koord_policy_collector_failures_total", _C, "Files of measurements that were missing or malformed", ("collector",))
METRIC_CACHE_BYTES: Final = MetricSpec("koord_policy_metric_cache_bytes", _G, "Memory of the measurements")

COLLECTION: Final = (
    START_TIME, NODE_CPU_INFO, NODE_NUMA_INFO, NODE_STORAGE_INFO, NODE_USED_CPU, NODE_USED_MEMORY, APPLICATION_USAGE,
    POD_PSI, CONTAINER_PSI, LLC_OCCUPANCY, MEMORY_BANDWIDTH, DEVICES, GPU_CORE, GPU_MEMORY, COLLECTOR_FAILURES,
    METRIC_CACHE_BYTES,
)
"""The rows of what the agent collects."""

_CONTAINER: Final = ("node", "pod_namespace", "pod_name", "container_id", "container_name")
POD_EVICTION: Final = MetricSpec("koordlet_pod_eviction", _G, "Pods evicted, by reason", ("node", "reason"))
POD_EVICTION_DETAIL: Final = MetricSpec(
    "koordlet_pod_eviction_detail", _G, "Evictions of a pod", ("node", "pod_namespace", "pod_name", "reason"))
BE_SUPPRESS: Final = MetricSpec(
    "koordlet_be_suppress_cpu_cores", _G, "CPU to which best-effort pods are limited: cpuset, cfsQuota",
    ("node", "type"))
LS_USED: Final = MetricSpec(
    "koordlet_be_suppress_ls_used_cpu_cores", _G, "CPU that pods which are not best-effort use, when best-effort pods "
    "are limited", ("node",))
BE_USED: Final = MetricSpec(
    "koordlet_be_suppress_be_used_cpu_cores", _G, "CPU that best-effort pods use, when they are limited", ("node",))
SHARE_POOL: Final = MetricSpec(
    "koordlet_cpuset_share_pool_cpu_cores", _G, "CPUs that pods without CPUs of their own share", ("node",))
BE_SHARE_POOL: Final = MetricSpec(
    "koordlet_cpuset_be_share_pool_cpu_cores", _G, "CPUs that best-effort pods share", ("node",))
SHARE_POOL_CPUS: Final = MetricSpec(
    "koordlet_cpuset_share_pool_info", _G, "1 for each CPU that pods share", ("node", "cpu"))
BE_SHARE_POOL_CPUS: Final = MetricSpec(
    "koordlet_cpuset_be_share_pool_info", _G, "1 for each CPU that best-effort pods share", ("node", "cpu"))
SCALED_BURST: Final = MetricSpec(
    "koordlet_container_scaled_cfs_burst_us", _G, "CFS burst that a strategy has set", _CONTAINER)
SCALED_QUOTA: Final = MetricSpec(
    "koordlet_container_scaled_cfs_quota_us", _G, "CFS quota that a strategy has set", _CONTAINER)
WRITE_MILLISECONDS: Final = MetricSpec(
    "koordlet_resource_update_duration_milliseconds", MetricType.HISTOGRAM, "Duration of writes of files",
    ("type", "status"), (0.1, 0.5, 1, 2, 5, 10, 50, 100))
KUBELET_SECONDS: Final = MetricSpec(
    "koordlet_kubelet_request_duration_seconds", MetricType.HISTOGRAM, "Duration of requests to the kubelet",
    ("verb", "path", "code"), (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 3, 10))
ROUNDS: Final = MetricSpec("koord_policy_agent_rounds_total", _C, "Rounds of a strategy", ("plugin",))
ROUND_SECONDS: Final = MetricSpec(
    "koord_policy_agent_round_seconds_total", _C, "Time that the rounds of a strategy took", ("plugin",))
ADJUSTMENTS: Final = MetricSpec(
    "koord_policy_agent_adjustments_total", _C, "Adjustments that a strategy requested", ("plugin", "kind"))
ERRORS: Final = MetricSpec(
    "koord_policy_agent_errors_total", _C, "Errors of rounds; NoMetric: a value was not measured",
    ("plugin", "reason"))
WRITES: Final = MetricSpec("koord_policy_agent_writes_total", _C, "Writes of files by their outcome", ("status",))
FAILURES: Final = MetricSpec(
    "koord_policy_agent_failures_total", _C, "Failures of the agent's own parts", ("part",))
READY: Final = MetricSpec("koord_policy_agent_ready", _G, "1 once strategies run")
GENERATION: Final = MetricSpec("koord_policy_agent_generation", _G, "Number of the active set of policies")
PODS_AGE: Final = MetricSpec("koord_policy_agent_pods_age_seconds", _G, "Age of the list of pods")

DECISIONS: Final = (
    POD_EVICTION, POD_EVICTION_DETAIL, BE_SUPPRESS, LS_USED, BE_USED, SCALED_BURST, SCALED_QUOTA, WRITE_MILLISECONDS,
    KUBELET_SECONDS, SHARE_POOL, BE_SHARE_POOL, SHARE_POOL_CPUS, BE_SHARE_POOL_CPUS, ROUNDS, ROUND_SECONDS, ADJUSTMENTS,
    ERRORS, WRITES, FAILURES, READY, GENERATION, PODS_AGE,
)
"""The rows of strategies, writes and evictions, and of the agent itself."""

_RESOURCE: Final = ("resource", "unit")
_CONTAINER_RESOURCE: Final = (
    "node", *_RESOURCE, "pod_uid", "pod_name", "pod_namespace", "container_id", "container_name")
NODE_METRIC_NODE: Final = MetricSpec(
    "koordlet_node_metric_node_usage", _G, "Usage of the node in the last report", ("node", *_RESOURCE))
NODE_METRIC_SYSTEM: Final = MetricSpec(
    "koordlet_node_metric_system_usage", _G, "Usage outside of pods and host applications in the last report",
    ("node", *_RESOURCE))
NODE_METRIC_NUMA: Final = MetricSpec(
    "koordlet_node_metric_numa_node_usage", _G, "Usage of a NUMA node", ("node", "numa_node_id", *_RESOURCE))
NODE_METRIC_NUMA_SYSTEM: Final = MetricSpec(
    "koordlet_node_metric_numa_system_usage", _G, "Usage of a NUMA node outside of pods and host applications",
    ("node", "numa_node_id", *_RESOURCE))
PREDICTED_RECLAIMABLE: Final = MetricSpec(
    "koordlet_node_predicted_resource_reclaimable", _G, "What prod pods request and will not use, by prediction",
    ("node", "predictor", *_RESOURCE))
PREDICTED_PEAK: Final = MetricSpec(
    "koordlet_node_predicted_resource_peak", _G, "What will be used at the peak, with the margin, by prediction",
    ("node", "predictor", *_RESOURCE))
PROD_RECLAIMABLE: Final = MetricSpec(
    "koordlet_node_priority_resource_reclaimable", _G, "What pods of a priority class leave to others, as reported",
    ("node", "priority", *_RESOURCE))
ALLOCATABLE: Final = MetricSpec(
    "koordlet_node_resource_allocatable", _G, "Batch and mid resources of the node: milli-cores, bytes",
    ("node", *_RESOURCE))
CONTAINER_REQUESTS: Final = MetricSpec(
    "koordlet_container_resource_requests", _G, "Batch and mid resources that a container requests",
    _CONTAINER_RESOURCE)
CONTAINER_LIMITS: Final = MetricSpec(
    "koordlet_container_resource_limits", _G, "Batch and mid resources to which a container is limited",
    _CONTAINER_RESOURCE)

REPORTS: Final = (
    NODE_METRIC_NODE, NODE_METRIC_SYSTEM, NODE_METRIC_NUMA, NODE_METRIC_NUMA_SYSTEM, PREDICTED_RECLAIMABLE,
    PREDICTED_PEAK, PROD_RECLAIMABLE, ALLOCATABLE, CONTAINER_REQUESTS, CONTAINER_LIMITS,
)
"""The rows of what the agent reports, and of what is published about its node."""

EXTERNAL: Final = (
    POD_PSI, CONTAINER_PSI, LLC_OCCUPANCY, MEMORY_BANDWIDTH, PROD_RECLAIMABLE, ALLOCATABLE, CONTAINER_REQUESTS,
    CONTAINER_LIMITS,
)
"""The rows of koordlet's /external-metrics, those of workloads; /internal-metrics has all others, and /metrics both."""


def _named(specs: tuple[MetricSpec, ...]) -> str:
    return ", ".join(f"`{spec.name}`" for spec in specs)


NOTE: Final = (
    "koordlet's counters have names without `_total`, which a counter of the text format cannot have: their type is "
    "gauge here.\nA usage that was not measured within two intervals of its collector has no series, and pressures are "
    "those of 10 seconds\n(`avg10`).\n"
    "\nkoordlet's two halves of /metrics are served too: /external-metrics has\n"
    f"{_named(EXTERNAL[:3])},\n{_named(EXTERNAL[3:6])},\n{_named(EXTERNAL[6:])}; /internal-metrics has all others.\n"
)
"""The remark of the page on these rows."""
