from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.prediction.predictor import Prediction
from koordpolicy.engine.agent.report_metrics import ReportMetrics
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.serving.instruments import MetricsRegistry
from koordpolicy.testing import NOW, SECOND


def lines(**more: Any) -> list[str]:
    states: Any = SimpleNamespace(node=more.pop("node", None), pods=more.pop("pods", ()))
    cache = more.pop("cache", MetricCache("n"))
    registry = MetricsRegistry(ReportMetrics("n", states, cache, clock=lambda: NOW, **more))
    return [line.removeprefix("koordlet_") for line in registry.text().decode().splitlines() if line[0] != "#"]


def test_without_reports_there_are_no_series():
    assert lines() == []


def test_the_usage_of_the_last_report_is_in_cores_and_bytes():
    usage = {"nodeUsage": {"resources": {"cpu": "1500m", "memory": "1024"}},
             "systemUsage": {"resources": {"cpu": "250m", "memory": None}}}
    assert lines(usage=lambda: usage) == [
        'node_metric_node_usage{node="n",resource="cpu",unit="core"} 1.5',
        'node_metric_node_usage{node="n",resource="memory",unit="byte"} 1024.0',
        'node_metric_system_usage{node="n",resource="cpu",unit="core"} 0.25']


def test_numa_nodes_have_their_usage():
    cache = MetricCache("n")
    cache.append("numaNode", "0", "cpu", NOW - SECOND, 700.0)
    cache.append("numaNode", "1", "memory", NOW - SECOND, 512.0)
    cache.append("systemNumaNode", "1", "cpu", NOW - SECOND, 30.0)
    assert lines(cache=cache) == [
        'node_metric_numa_node_usage{node="n",numa_node_id="0",resource="cpu",unit="core"} 0.7',
        'node_metric_numa_node_usage{node="n",numa_node_id="1",resource="memory",unit="byte"} 512.0',
        'node_metric_numa_system_usage{node="n",numa_node_id="1",resource="cpu",unit="core"} 0.03']


def test_each_prediction_has_its_reclaimable_amount_and_the_smallest_one_that_of_prod_pods():
    prediction = Prediction({"pods": {"cpu": 2000.0}, "minPredictor": {"cpu": 500.0, "memory": 7.0}},
                            {"pods": {"cpu": 300.0}})
    assert lines(prediction=lambda: prediction) == [
        'node_predicted_resource_reclaimable{node="n",predictor="pods",resource="cpu",unit="core"} 2.0',
        'node_predicted_resource_reclaimable{node="n",predictor="minPredictor",resource="cpu",unit="core"} 0.5',
        'node_predicted_resource_reclaimable{node="n",predictor="minPredictor",resource="memory",unit="byte"} 7.0',
        'node_predicted_resource_peak{node="n",predictor="pods",resource="cpu",unit="core"} 0.3',
        'node_priority_resource_reclaimable{node="n",priority="koord-prod",resource="cpu",unit="core"} 0.5',
        'node_priority_resource_reclaimable{node="n",priority="koord-prod",resource="memory",unit="byte"} 7.0']


def test_batch_and_mid_resources_of_the_node_and_of_containers_have_metrics_and_malformed_ones_none():
    resources = {"requests": {"kubernetes.io/batch-cpu": "500", "cpu": "1"},
                 "limits": {"kubernetes.io/batch-memory": "1Gi", "kubernetes.io/mid-cpu": "many"}}
    pod = PodInfo.of({
        "metadata": {"name": "train", "namespace": "ml", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": resources["requests"]}}]},
        "status": {"containerStatuses": [{"name": "c", "containerID": "containerd://1"}]}})
    pod.object["spec"]["containers"][0]["resources"] = resources
    allocatable = {"cpu": "4", "kubernetes.io/batch-cpu": "1500", "kubernetes.io/mid-memory": [1]}
    ids = 'container_id="containerd://1",container_name="c",node="n",pod_name="train",pod_namespace="ml",pod_uid="u"'
    assert lines(pods=(pod,), node={"status": {"allocatable": allocatable}}) == [
        'node_resource_allocatable{node="n",resource="kubernetes.io/batch-cpu",unit="integer"} 1500.0',
        f'container_resource_requests{{{ids},resource="kubernetes.io/batch-cpu",unit="integer"}} 500.0',
        f'container_resource_limits{{{ids},resource="kubernetes.io/batch-memory",unit="byte"}} 1.073741824e+09']
