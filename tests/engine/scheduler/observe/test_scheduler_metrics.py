"""A loop that is measured has kube-scheduler's metrics, with their types, labels and buckets."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle import measuring
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.scheduler.observe.counters import Counters
from koordpolicy.engine.scheduler.observe.metrics_recorder import event_label
from koordpolicy.engine.scheduler.observe.policy_metrics import plugin_counters
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import Wait
from koordpolicy.testing import FakeClock

SECOND = 1_000_000_000
KUBE_SCHEDULER = """
schedule_attempts_total counter result,profile
scheduling_attempt_duration_seconds histogram result,profile 0.001 2 15
scheduling_algorithm_duration_seconds histogram - 0.001 2 15
pod_scheduling_sli_duration_seconds histogram attempts 0.01 2 20
pod_scheduling_attempts histogram - 1 2 5
pod_scheduled_after_flush_total counter -
framework_extension_point_duration_seconds histogram extension_point,status,profile 0.0001 2 12
plugin_execution_duration_seconds histogram plugin,extension_point,status 0.00001 1.5 20
plugin_evaluation_total counter plugin,extension_point,profile
queueing_hint_execution_duration_seconds histogram plugin,event,hint 0.00001 1.5 20
event_handling_duration_seconds histogram event 0.0001 2 12
inflight_events gauge event
pending_pods gauge queue
queue_incoming_pods_total counter queue,event
unschedulable_pods gauge plugin,profile
cache_size gauge type
goroutines gauge operation
permit_wait_duration_seconds histogram result 0.001 2 15
preemption_victims histogram - 1 2 7
preemption_attempts_total counter -
preemption_goroutines_duration_seconds histogram result 0.01 2 20
preemption_goroutines_execution_total counter result
async_api_call_execution_total counter call_type,result
async_api_call_execution_duration_seconds histogram call_type,result 0.001 2 15
pending_async_api_calls gauge call_type
batch_attempts_total counter profile,result
batch_cache_flushed_total counter profile,reason
get_node_hint_duration_seconds histogram hinted,profile 0.00001 2 12
store_schedule_results_duration_seconds histogram profile 0.00001 2 12
volume_binder_cache_requests_total counter operation
volume_scheduling_stage_error_total counter operation
"""
"""Of kube-scheduler 1.36 without its prefix: name, type, labels, and the first bucket, factor and number of buckets."""


class Gate:
    """Lets a pod wait for a permit until its test says so; refuses what has no label."""

    def __init__(self):
        self.handle = None

    def permit(self, state, pod, snapshot, row):
        return Wait(10 * SECOND) if pod.name == "waits" else None

    def filter(self, state, pod, snapshot, rows):
        raise ValueError("a fault of the plugin")


def node(name, cpu="4"):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {
        "cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def pod(name, cpu="1", priority=0, **rest):
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], "priority": priority}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": spec | rest}


def measured(*objects, plugins=()):
    """Return a loop with two of Kubernetes' plugins and its metrics, with every attempt sampled."""
    clock = FakeClock(1_700_000_000 * SECOND)
    cluster = Cluster(objects)
    live = Live(Registry.of((*builtins(), *plugins), generation=1))
    names = ("NodeResourcesFit", "DefaultPreemption", *(each.name for each in plugins))
    profile = ProfileSpec(enabled=tuple(map(PluginChoice, names)), named_only=True)
    loop = SchedulingLoop(cluster, live, Settings((profile,)), clock=clock)
    metrics = measuring.measure(loop, clock=clock)
    metrics._sample = lambda: 0.0
    return loop, metrics, clock


def samples(metrics):
    """Return the values of all samples by name and labels."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(metrics.registry.text().decode())
            for sample in family.samples}


def value(metrics, name, **labels):
    return samples(metrics).get((f"scheduler_{name}", tuple(sorted(labels.items()))), 0)


def test_l45_every_metric_of_kube_scheduler_has_its_type_labels_and_buckets():
    rows = {spec.name: spec for spec in table.SCHEDULER}
    for line in KUBE_SCHEDULER.split("\n")[1:-1]:
        name, kind, labels, *buckets = line.split()
        spec = rows[f"scheduler_{name}"]
        assert (spec.type.value, ",".join(spec.labels) or "-") == (kind, labels), name
        assert len(spec.buckets) == (int(buckets[2]) if buckets else 0), name
        for number, bound in enumerate(spec.buckets):
            assert abs(bound / (float(buckets[0]) * float(buckets[1]) ** number) - 1) < 1e-12


def test_l45_every_row_of_the_table_is_in_the_output_and_nothing_else():
    _, metrics, _ = measured(node("a"))
    text = metrics.registry.text().decode()
    found = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE ")}
    of_policies = {spec.name for spec in table.POLICIES} - {
        table.EXPRESSION_EVALUATIONS.name, table.RULE_REFUSALS.name}
    assert found == {spec.name: "gauge" if spec.type.value == "info" else spec.type.value for spec in table.SCHEDULER
                     if spec.name not in of_policies}, "a loop without a reloader has no metrics of sources"


def test_l45_a_success_is_counted():
    loop, metrics, clock = measured(node("a"))
    loop.scheduler.cluster.upsert(pod("p"))
    clock.now += 2 * SECOND
    verdict = loop.schedule_one()
    assert verdict.node == "a"
    profile = {"profile": "default-scheduler"}
    assert value(metrics, "schedule_attempts_total", result="scheduled", **profile) == 1
    assert value(metrics, "scheduling_attempt_duration_seconds_count", result="scheduled", **profile) == 1
    assert value(metrics, "scheduling_algorithm_duration_seconds_count") == 1
    assert value(metrics, "pod_scheduling_sli_duration_seconds_count", attempts="1") == 1
    assert value(metrics, "pod_scheduling_attempts_sum") == 1
    assert value(metrics, "queue_incoming_pods_total", queue="active", event="UnschedulablePodAdd") == 1
    for point in ("PreFilter", "Filter", "Reserve", "Bind", "PostBind"):
        assert value(metrics, "framework_extension_point_duration_seconds_count", extension_point=point,
                     status="Success", **profile) == 1, point
    fit = {"plugin": "NodeResourcesFit", "extension_point": "Filter"}
    assert value(metrics, "plugin_evaluation_total", **fit, **profile) == 1
    assert value(metrics, "plugin_execution_duration_seconds_count", status="Success", **fit) == 1
    assert [value(metrics, "cache_size", type=kind) for kind in ("nodes", "pods", "assumed_pods")] == [1, 1, 0]
    assert value(metrics, "event_handling_duration_seconds_count", event="UnschedulablePodAdd") == 1


def test_l45_a_failure_is_counted_and_the_gauges_follow_the_pod():
    loop, metrics, clock = measured(node("a"))
    cluster = loop.scheduler.cluster
    cluster.upsert(pod("big", cpu="8"))
    assert loop.schedule_one().node is None
    profile = {"profile": "default-scheduler"}
    assert value(metrics, "schedule_attempts_total", result="unschedulable", **profile) == 1
    assert value(metrics, "unschedulable_pods", plugin="NodeResourcesFit", **profile) == 1
    assert value(metrics, "pending_pods", queue="unschedulable") == 1
    assert value(metrics, "queue_incoming_pods_total", queue="unschedulable", event="ScheduleAttemptFailure") == 1
    assert value(metrics, "preemption_attempts_total") == 1
    assert samples(metrics)["koord_policy_refusals_total", (("plugin", "NodeResourcesFit"),)] == 1
    cluster.upsert(node("a", cpu="16"))
    assert value(metrics, "queue_incoming_pods_total", queue="backoff", event="NodeUpdateNodeAllocatable") == 1
    clock.now += 2 * SECOND
    assert loop.schedule_one().node == "a"
    assert value(metrics, "queue_incoming_pods_total", queue="active", event="BackoffComplete") == 1
    assert value(metrics, "unschedulable_pods", plugin="NodeResourcesFit", **profile) == 0
    assert value(metrics, "pod_scheduling_sli_duration_seconds_sum", attempts="2") == 2
    assert value(metrics, "pod_scheduled_after_flush_total") == 0


def test_a_refused_pod_that_is_deleted_is_not_counted_any_more():
    loop, metrics, _ = measured(node("a"))
    loop.scheduler.cluster.upsert(pod("big", cpu="8"))
    loop.schedule_one()
    loop.scheduler.cluster.delete("Pod", "default/big")
    assert value(metrics, "unschedulable_pods", plugin="NodeResourcesFit", profile="default-scheduler") == 0


def test_l33_a_pod_that_is_scheduled_without_an_event_is_counted():
    loop, metrics, clock = measured(node("a"))
    loop.scheduler.cluster.upsert(pod("big", cpu="8"))
    loop.schedule_one()
    loop.scheduler.cluster._listeners = ()  # the event is missed
    loop.scheduler.cluster.upsert(node("a", cpu="16"))
    clock.now += 301 * SECOND
    assert loop.schedule_one().node == "a"
    assert value(metrics, "queue_incoming_pods_total", queue="active", event="UnschedulableTimeout") == 1
    assert value(metrics, "pod_scheduled_after_flush_total") == 1


def test_l45_a_preemption_is_counted_with_its_victims():
    small = [pod(f"small-{number}", cpu="2", nodeName="a") for number in range(2)]
    loop, metrics, _ = measured(node("a"), *small)
    loop.scheduler.cluster.upsert(pod("urgent", cpu="4", priority=10))
    assert loop.schedule_one().nomination is not None
    assert value(metrics, "preemption_attempts_total") == 1
    assert [value(metrics, f"preemption_victims_{part}") for part in ("count", "sum")] == [1, 2]
    assert value(metrics, "framework_extension_point_duration_seconds_count", extension_point="PostFilter",
                 status="Success", profile="default-scheduler") == 1


def gate(instance, point):
    return Plugin("Gate", Framework.SCHEDULER, (point,), lambda args, handle: instance, "test", "gate")


def test_the_time_for_which_a_permit_holds_a_pod_is_measured():
    loop, metrics, clock = measured(node("a"), plugins=[gate(Gate(), Point.PERMIT)])
    loop.scheduler.cluster.upsert(pod("waits"))
    assert loop.schedule_one().waiting
    assert value(metrics, "framework_extension_point_duration_seconds_count", extension_point="Permit", status="Wait",
                 profile="default-scheduler") == 1
    assert value(metrics, "cache_size", type="assumed_pods") == 1
    clock.now += 11 * SECOND
    loop.schedule_one()
    assert value(metrics, "permit_wait_duration_seconds_count", result="Unschedulable") == 1
    assert value(metrics, "schedule_attempts_total", result="unschedulable", profile="default-scheduler") == 1


def test_the_failure_of_a_plugin_is_counted():
    loop, metrics, _ = measured(node("a"), plugins=[gate(Gate(), Point.FILTER)])
    loop.scheduler.cluster.upsert(pod("p"))
    loop.schedule_one()
    assert value(metrics, "plugin_execution_duration_seconds_count", plugin="Gate", extension_point="Filter",
                 status="Error") == 1
    assert samples(metrics)[
        "koord_policy_expression_errors_total", (("plugin", "Gate"), ("point", "filter"), ("rule", ""))] == 1


def test_most_attempts_do_not_measure_plugins():
    loop, metrics, _ = measured(node("a"))
    metrics._sample = lambda: 0.1
    loop.scheduler.cluster.upsert(pod("p"))
    loop.schedule_one()
    assert value(metrics, "plugin_execution_duration_seconds_count", plugin="NodeResourcesFit",
                 extension_point="Filter", status="Success") == 0


def test_an_event_has_the_name_that_kube_scheduler_gives_it():
    tainted = node("a") | {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    free, placed = PodInfo.of(pod("p")), PodInfo.of(pod("p", nodeName="a"))
    assert [event_label(event) for event in (
        Event("Node", "a", None, node("a")), Event("Node", "a", node("a"), tainted),
        Event("Node", "a", node("a"), None),
        Event("Node", "a", node("a"), node("a", cpu="2")), Event("Node", "a", node("a"), node("a")),
        Event("Pod", "p", None, pod("p"), None, free), Event("Pod", "p", pod("p"), pod("p"), free, free),
        Event("Pod", "p", pod("p"), pod("p"), free, placed), Event("Pod", "p", pod("p"), None, placed, None),
        Event("Device", "a", {}, {}),
    )] == ["NodeAdd", "NodeUpdateNodeTaint", "NodeDelete", "NodeUpdateNodeAllocatable", "NodeUpdate",
           "UnschedulablePodAdd", "UnschedulablePodUpdate", "AssignedPodAdd", "AssignedPodDelete", "DeviceUpdate"]


def test_what_a_built_in_plugin_counts_as_a_row_has_the_rows_name_and_its_labels():
    counters, name, slow = Counters(), "scheduler_volume_scheduling_stage_error_total", "scheduler_scheduling_timeout"
    assert [(each.spec.name, list(each.series)) for each in plugin_counters(counters, table.BY_PLUGINS)] == [
        (name, []), (slow, [])]
    counters(name, operation="bind")
    counters(slow, profile="batch")
    counters(name, 2, operation="predicate")
    counters("mine")
    assert [(each.spec.name, sorted(each.series)) for each in plugin_counters(counters, table.BY_PLUGINS)] == [
        (name, [(("bind",), 1), (("predicate",), 2)]), (slow, [(("batch",), 1)]),
        ("koord_policy_plugin_mine_total", [((), 1)])]


def test_a_counter_with_other_labels_than_the_row_of_its_name_is_a_plugins_own():
    counters, name = Counters(), "scheduler_volume_scheduling_stage_error_total"
    counters(name, volume="disk")
    assert [(each.spec.name, list(each.series)) for each in plugin_counters(counters, table.BY_PLUGINS)] == [
        (name, []), ("scheduler_scheduling_timeout", []), (f"koord_policy_plugin_{name}", [(("disk",), 1)])]
