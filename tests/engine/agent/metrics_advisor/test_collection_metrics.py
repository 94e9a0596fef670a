from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.engine.agent.metric_table import COLLECTION
from koordpolicy.engine.agent.metrics_advisor.advisor import AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collection_metrics import CollectionMetrics
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroup, MeasuredGroups
from koordpolicy.engine.framework.qos import Storage
from koordpolicy.engine.serving.instruments import MetricsRegistry

POD = MeasuredGroup("pod", "d/p", "u-1", "p")
CONTAINER = MeasuredGroup("container", "d/p/c", "containerd://ff", "p/c")
APPLICATION = MeasuredGroup("application", "db", "db", "db", "LS", "koord-prod")


def read(metrics: CollectionMetrics) -> dict[str, dict[str, float]]:
    """Return the values by name and labels, out of the text."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(MetricsRegistry(metrics).text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_what_was_measured_is_shown_with_koordlets_names_and_labels(machine):
    advisor = MetricsAdvisor(machine.sources, AdvisorSettings(storage=True), tuple, Storage)
    advisor.node_info.collect(machine.now)
    advisor.node_storage.failures = 2
    machine.sources.subjects = MeasuredGroups((POD,), (CONTAINER,), (APPLICATION,))
    for what, name, resource, value in (
        ("node", "n", "cpu", 1500), ("node", "n", "memory", 4096), ("application", "db", "cpu", 250),
        ("application", "gone", "cpu", 1), ("pod", "d/p", "cpu-pressure-some", 12.5),
        ("pod", "d/p", "memory-pressure-some", 2), ("pod", "d/p", "memory-pressure-full", 1),
        ("pod", "d/gone", "io-pressure-some", 1), ("container", "d/p/c", "io-pressure-some", 3),
        ("container", "d/gone/c", "io-pressure-some", 3), ("resctrl", "LS", "llc-occupancy.0", 512),
        ("resctrl", "BE", "memory-bandwidth.1.total", 1000),
    ):
        machine.cache.append(what, name, resource, machine.now, value)
    found = read(CollectionMetrics(advisor, lambda: machine.now))
    pod = "node=n,pod_name=p,pod_namespace=d,pod_uid=u-1,psi_degree={},psi_precision=avg10,psi_resource_type={}"
    container = "container_id=containerd://ff,container_name=c,cpu_full_supported=false," + pod.format("some", "io")
    size, failures = found.pop("koord_policy_metric_cache_bytes"), found.pop("koord_policy_collector_failures_total")
    assert (size[""], failures["collector=nodestorageinfo"], len(failures)) == (machine.cache.size, 2, 8)
    assert found == {
        "koordlet_start_time": {"node=n": machine.seconds},
        "koordlet_collect_node_cpu_info_status": {"node=n,status=succeeded": 1, "node=n,status=failed": 0},
        "koordlet_collect_node_numa_info_status": {"node=n,status=succeeded": 1, "node=n,status=failed": 0},
        "koordlet_collect_node_local_storage_info_status": {"node=n,status=succeeded": 0, "node=n,status=failed": 2},
        "koordlet_node_used_cpu_cores": {"node=n": 1.5},
        "koordlet_node_used_memory_bytes": {"node=n": 4096},
        "koordlet_host_application_resource_usage": {
            "host_application_name=db,node=n,priority_class=koord-prod,qos=LS,resource=cpu": 0.25},
        "koordlet_pod_psi": {
            "cpu_full_supported=false," + pod.format("some", "cpu"): 12.5,
            "cpu_full_supported=true," + pod.format("some", "mem"): 2,
            "cpu_full_supported=true," + pod.format("full", "mem"): 1,
        },
        "koordlet_container_psi": {container: 3},
        "koordlet_resctrl_llc_occupancy": {"cache_id=0,node=n,qos=LS": 512},
        "koordlet_resctrl_memory_bandwidth": {"cache_id=1,mb_type=total,node=n,qos=BE": 1000},
    }


def test_what_was_not_measured_has_no_series_but_a_name(machine):
    advisor = MetricsAdvisor(machine.sources, AdvisorSettings(), tuple, Storage)
    machine.cache.append("node", "n", "cpu", machine.now, 1500)
    machine.seconds += 3
    metrics = CollectionMetrics(advisor, lambda: machine.now)
    assert "koordlet_node_used_cpu_cores" not in read(metrics)
    assert [metric.spec for metric in metrics.collect()] == list(COLLECTION)
