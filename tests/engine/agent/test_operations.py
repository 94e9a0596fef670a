from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST

from koordpolicy.engine.agent.audit import AuditEvent, AuditLog, AuditPages, AuditSettings
from koordpolicy.engine.agent.counts import AgentCounts
from koordpolicy.engine.agent.daemon import Conclusion
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metric_table import EXTERNAL
from koordpolicy.engine.agent.operations import AgentOperations, DecisionMetrics
from koordpolicy.engine.agent.prediction.predictor import Prediction
from koordpolicy.engine.agent.qos_manager.documents import RoundReport
from koordpolicy.engine.agent.qos_manager.evictor import AttemptOutcome, EvictionAttempt
from koordpolicy.engine.agent.resource_executor.results import AdjustmentResult, FileWriteResult, FileWriteStatus
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.serving import process_metrics


@dataclass
class Daemon:
    ready: bool = True
    seconds_in_pass: float = 0.0


@dataclass
class Node:
    agent: Daemon = field(default_factory=Daemon)
    states: Any = field(default_factory=lambda: SimpleNamespace(pods_age=3.0, topology=None, pods=(), node=None))
    reported_usage: Any = field(default_factory=dict)
    prediction: Prediction = field(default_factory=Prediction)
    advisor: Any = None
    cache: Any = field(default_factory=lambda: MetricCache("n"))
    settings: Any = field(default_factory=lambda: SimpleNamespace(node="n"))

    def faults(self) -> str:
        return "the pods are not known"


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr("koordpolicy.engine.agent.operations.CollectionMetrics", lambda _: SimpleNamespace(
        collect=lambda: ()))
    node: Any = Node()
    log = AuditLog(AuditSettings(tmp_path), clock=lambda: 0.0)
    for number in range(3):
        log.add(AuditEvent(10**18, "node", "CPUBurst", f"event {number}"))
    counts = AgentCounts()
    counts.add("rounds", "Squeeze")
    problems: list[str] = []
    operations = AgentOperations(
        node, DecisionMetrics("n", counts), generation=lambda: 7, problems=lambda: "".join(problems),
        pages=AuditPages(log, clock=lambda: 0.0))
    url = operations.listen("127.0.0.1", 0)
    yield SimpleNamespace(url=url, node=node, problems=problems)
    operations.close()


def get(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def test_a_ready_agent_is_healthy(served):
    assert [get(f"{served.url}/{path}")[:2] for path in ("healthz", "livez", "readyz")] == [(200, "ok")] * 3


def test_an_agent_whose_states_are_not_known_is_not_ready_and_says_why(served):
    served.node.agent.ready = False
    status, text, _ = get(f"{served.url}/readyz")
    assert (status, "states failed: the pods are not known" in text) == (503, True)
    assert get(f"{served.url}/livez")[0] == 200


def test_invalid_policies_make_it_not_ready(served):
    served.problems.append("line 3: no such field")
    assert get(f"{served.url}/readyz")[0] == 503


def test_a_pass_that_hangs_makes_it_unhealthy(served):
    served.node.agent.seconds_in_pass = 31.0
    status, text, _ = get(f"{served.url}/healthz")
    assert (status, "a pass of rounds has not ended for 31 s" in text) == (503, True)


def test_metrics_are_koordlets_beside_our_own(served):
    _, text, _ = get(f"{served.url}/metrics")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    own = [line for line in lines if line.split()[0] not in {spec.name for spec in process_metrics.TABLE}]
    assert len(lines) - len(own) == len(process_metrics.TABLE)
    assert own == [
        'koord_policy_agent_rounds_total{plugin="Squeeze"} 1.0', "koord_policy_agent_ready 1.0",
        "koord_policy_agent_generation 7.0", "koord_policy_agent_pods_age_seconds 3.0",
    ]


def test_koordlets_halves_of_the_metrics_are_those_of_workloads_and_all_others(served):
    served.node.states.node = {"status": {"allocatable": {"kubernetes.io/batch-cpu": "1500"}}}

    def lines(path: str) -> list[str]:
        status, text, headers = get(f"{served.url}/{path}")
        assert (status, headers["Content-Type"]) == (200, CONTENT_TYPE_LATEST)
        volatile = {spec.name for spec in process_metrics.TABLE}
        return sorted(line for line in text.splitlines() if line.split()[0] not in volatile)

    external = lines("external-metrics")
    assert [line for line in external if line[0] != "#"] == [
        'koordlet_node_resource_allocatable{node="n",resource="kubernetes.io/batch-cpu",unit="integer"} 1500.0']
    assert {line.split()[2] for line in external if line.startswith("# TYPE")} <= {spec.name for spec in EXTERNAL}
    internal = lines("internal-metrics")
    assert 'koord_policy_agent_rounds_total{plugin="Squeeze"} 1.0' in internal
    assert sorted(external + internal) == lines("metrics")


def test_usage_of_tiers_and_shared_cpus_have_koordlets_metrics(served):
    pods = [PodInfo.of({"kind": "Pod", "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": qos}},
                        "spec": {"containers": [{"name": "c"}]}}) for name, qos in (("web", "LS"), ("train", "BE"))]
    annotations = {"node.koordinator.sh/cpu-shared-pools": '[{"cpuset": "0-1"}, {"cpuset": "4"}]',
                   "node.koordinator.sh/be-cpu-shared-pools": '[{"cpuset": "x"}]'}
    served.node.states = SimpleNamespace(
        pods_age=3.0, pods=pods, node=None, topology={"metadata": {"annotations": annotations}})
    for name, used in (("default/web", 1500.0), ("default/train", 250.0)):
        served.node.cache.append("pod", name, "cpu", time.time_ns(), used)
    lines = [line for line in get(f"{served.url}/metrics")[1].splitlines() if line.startswith("koordlet_")]
    assert lines == [
        'koordlet_be_suppress_ls_used_cpu_cores{node="n"} 1.5', 'koordlet_be_suppress_be_used_cpu_cores{node="n"} 0.25',
        'koordlet_cpuset_share_pool_cpu_cores{node="n"} 3.0',
        *(f'koordlet_cpuset_share_pool_info{{cpu="{cpu}",node="n"}} 1.0' for cpu in (0, 1, 4)),
    ]


def test_events_come_as_lines_with_a_token_in_a_header(served):
    status, text, headers = get(f"{served.url}/events?size=2")
    assert (status, [json.loads(line)["message"] for line in text.splitlines()]) == (200, ["event 2", "event 1"])
    status, text, headers = get(f"{served.url}/events?size=2&pageToken={headers['Next-Page-Token']}")
    assert ([json.loads(line)["message"] for line in text.splitlines()], "Next-Page-Token" in headers) == (
        ["event 0"], False)


def test_events_come_as_json_if_that_is_accepted(served):
    _, text, _ = get(f"{served.url}/events", Accept="application/json")
    found = json.loads(text)
    assert ([each["message"] for each in found["Events"]], found["NextPageToken"]) == (
        ["event 2", "event 1", "event 0"], "")


@pytest.mark.parametrize(("query", "status"), [("size=0", 400), ("size=x", 400), ("pageToken=old", 409)])
def test_a_wrong_page_is_refused(served, query, status):
    assert get(f"{served.url}/events?{query}")[0] == status


def test_limits_and_evictions_have_koordlets_metrics():
    metrics = DecisionMetrics("n", AgentCounts())
    pod = PodInfo.of({"kind": "Pod", "metadata": {"name": "web", "namespace": "d", "uid": "U"},
                      "spec": {"containers": [{"name": "c"}]},
                      "status": {"containerStatuses": [{"name": "c", "containerID": "containerd://1"}]}})
    report = RoundReport((
        Adjustment("suppressCPU", "n", "", writes=(("besteffort/cpu.cfs_quota_us", "150000"),
                                                   ("besteffort/podU/cpu.cfs_quota_us", "900"))),
        Adjustment("cpuBurst", "d/web/c", "", writes=(("burstable/podU/c/cpu.cfs_burst_us", "900"),)),
        Adjustment("cpuBurst", "d/old/c", "", writes=(("burstable/podOLD/c/cpu.cfs_burst_us", "1"),)),
    ))
    readings: Any = SimpleNamespace(pods=(pod,))
    metrics.concluded(Conclusion(0, "n", "P", report, True), readings)
    metrics.concluded(Conclusion(0, "n", "P", report, False), readings)
    metrics.attempted(EvictionAttempt("P", "d", "web", "U", "full", "", AttemptOutcome.EVICTED))
    metrics.attempted(EvictionAttempt("P", "d", "web", "U", "full", "", AttemptOutcome.BLOCKED))
    found = {metric.spec.name: series for metric in metrics.collect() for series in metric.series}
    assert found == {
        "koordlet_pod_eviction": (("n", "full"), 1),
        "koordlet_pod_eviction_detail": (("n", "d", "web", "full"), 1),
        "koordlet_be_suppress_cpu_cores": (("n", "cfsQuota"), 1.5),
        "koordlet_container_scaled_cfs_burst_us": (("n", "d", "web", "containerd://1", "c"), 900),
    }


def test_the_limit_of_best_effort_pods_is_that_of_the_file_which_limits_them_now():
    metrics = DecisionMetrics("n", AgentCounts())

    def limit(*writes: tuple[str, str], recovers: bool = False, status: FileWriteStatus = FileWriteStatus.WRITTEN):
        adjustment = Adjustment("suppressCPU", "n", "", writes=writes, recovers=recovers)
        results = tuple(FileWriteResult(file, text, status) for file, text in writes)
        metrics.concluded(Conclusion(0, "n", "P", RoundReport((adjustment,)), True, (
            AdjustmentResult(adjustment, results),)), SimpleNamespace(pods=()))
        return {labels[1]: amount for metric in metrics.collect() for labels, amount in metric.series}

    quota, cpus = "besteffort/cpu.cfs_quota_us", "besteffort/cpuset.cpus"
    assert limit((quota, "415000")) == {"cfsQuota": 4.15}
    assert limit((quota, "5000"), status=FileWriteStatus.FAILED) == {"cfsQuota": 4.15}
    assert limit((quota, "-1"), recovers=True) == {}
    assert limit((cpus, "0-2,8"), ("besteffort/podU/cpuset.cpus", "0")) == {"cpuset": 4}
    assert limit((quota, "200000")) == {"cpuset": 4, "cfsQuota": 2}
    assert limit((cpus, "0-15"), recovers=True) == {"cfsQuota": 2}
