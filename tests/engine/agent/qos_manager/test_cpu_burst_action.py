"""The action `cpuBurst` makes the writes of koordlet's strategy, and gives them back."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.cpu_burst.plugin import CPUBurst
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.qos_manager.documents import DocumentStrategy
from koordpolicy.engine.agent.qos_manager.strategy_state import StrategyState
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.source import PolicyError, Source
from tests.builtin_plugins.qos.readings import HOST, SECOND, container, running_pod, slo
from tests.engine.agent.conftest import NODE

CASES = Path(os.environ.get("KOORD_POLICY_CASES", "")) / "qos_shared.json"
TEXT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: burst}}
spec:
  interval: 1s
  forEach: {subject}
  actions:
  - name: burst
    cpuBurst: {{{fields}}}
"""


def strategy(fields: str = "policy: Auto", subject: str = "node") -> DocumentStrategy:
    (plugin,) = compile_documents(load([Source("a.yaml", TEXT.format(fields=fields, subject=subject))]))
    made = plugin.make({}, None)
    assert isinstance(made, CompiledQoS)
    return DocumentStrategy(made)


def recorded(pods: tuple[PodInfo, ...], rounds: list[tuple[float, float, float]], **section: Any) -> MetricsRecording:
    """Return samples a second apart: the node's usage, and usage and throttling of each container."""
    of = MetricsRecording(nodes={"n": NODE}, pods={"n": {pod.key: pod for pod in pods}}, hosts={"n": HOST},
                          times=[second * SECOND for second in range(len(rounds))])
    of.objects["NodeSLO", "n"] = slo(cpuBurstStrategy=section)["NodeSLO"]
    node = of.series["n", "node", "n"] = {"cpu": MetricSeries()}
    for second, (usage, used, throttled) in enumerate(rounds):
        node["cpu"].add(second * SECOND, usage)
        for pod in pods:
            for each in pod.object["spec"]["containers"]:
                series = of.series.setdefault(("n", "container", f"{pod.key}/{each['name']}"), {})
                series.setdefault("cpu", MetricSeries()).add(second * SECOND, used)
                series.setdefault("throttled", MetricSeries()).add(second * SECOND, throttled)
    return of


def files_of(pods: tuple[PodInfo, ...]) -> dict[str, str]:
    found = {}
    for pod in pods:
        directory = f"burstable/pod{pod.uid}"
        limits = [int(each["resources"]["limits"]["cpu"]) * 100_000 for each in pod.object["spec"]["containers"]]
        found |= {f"{directory}/cpu.cfs_burst_us": "0", f"{directory}/cpu.cfs_quota_us": str(sum(limits))}
        for each, limit in zip(pod.object["spec"]["containers"], limits, strict=True):
            found |= {f"{directory}/{each['name']}/cpu.cfs_burst_us": "0",
                      f"{directory}/{each['name']}/cpu.cfs_quota_us": str(limit)}
    return found


def rounds_of(made: Any, recording: MetricsRecording, files: dict[str, str]) -> list[list[tuple[str, str]]]:
    found = []
    for time in recording.times:
        adjustments = made.adjust(RecordedReadings(recording, "n", time, files))
        found.append([write for each in adjustments for write in each.writes])
        files |= dict(found[-1])
    return found


LIMITS = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=3)
ROUNDS = st.lists(st.tuples(st.floats(0, 16_000), st.floats(0, 10_000), st.sampled_from((0.0, 0.5))), max_size=8)
POLICIES = {"Auto": "auto", "CPUBurstOnly": "cpuBurstOnly", "CFSQuotaBurstOnly": "cfsQuotaBurstOnly"}


@given(limits=LIMITS, rounds=ROUNDS, policy=st.sampled_from(tuple(POLICIES)), burst=st.integers(1, 2000),
       quota=st.integers(100, 500), threshold=st.integers(0, 100), period=st.integers(-1, 5))
@settings(max_examples=50)
def test_document_and_strategy_make_the_same_writes_and_give_all_back(
    limits, rounds, policy, burst, quota, threshold, period,
):
    pods = tuple(
        running_pod(f"p{number}", *(container(f"c{place}", limits={"cpu": str(cores)})
                                    for place, cores in enumerate(of_pod)))
        for number, of_pod in enumerate(limits)
    )
    recording = recorded(
        pods, rounds, policy=POLICIES[policy], cpuBurstPercent=burst, cfsQuotaBurstPercent=quota,
        sharePoolThresholdPercent=threshold, cfsQuotaBurstPeriodSeconds=period,
    )
    limited = f", cfsQuotaBurstPeriod: {period}s" if period >= 0 else ""
    document = strategy(f'policy: {policy}, cpuBurstPercent: "{burst}", cfsQuotaBurstPercent: "{quota}", '
                        f'sharePoolThresholdPercent: "{threshold}"{limited}')
    files, same = files_of(pods), files_of(pods)
    assert rounds_of(document, recording, files) == rounds_of(CPUBurst({}), recording, same)
    for each in document.recover(RecordedReadings(recording, "n", len(rounds) * SECOND, files)):
        assert each.recovers
        files |= dict(each.writes)
    assert files == files_of(pods)


def test_a_static_burst_that_the_kernel_refuses_is_tried_again_after_a_minute_or_with_another_value():
    pods = (running_pod("p", container("c", limits={"cpu": "2"})),)
    document, tries = strategy('policy: CPUBurstOnly, cpuBurstPercent: "usage.cpu > 5000 ? 50 : 100"'), []
    usages = [1000.0] * 125 + [9000.0] * 20
    recording, files = recorded(pods, [(usage, 0.0, 0.0) for usage in usages]), files_of(pods)
    for time in recording.times:
        for each in document.adjust(RecordedReadings(recording, "n", time, files)):
            tries.append((time // SECOND, each.writes[0][1]))
    assert tries == [(0, "200000"), (61, "200000"), (122, "200000"), (130, "100000")]


def test_memory_that_is_cleared_is_as_before_the_first_round():
    pods = (running_pod("p", container("c", limits={"cpu": "2"})),)
    document = strategy()
    assert any(rounds_of(document, recorded(pods, [(9000.0, 100.0, 0.5)], policy="auto"), files_of(pods)))
    assert document.memory != StrategyState()
    document.memory.clear()
    assert document.memory == StrategyState()


SAYABLE = [case for case in (json.loads(CASES.read_text())["cases"] if CASES.is_file() else ())
           if case["point"] in ("cpu_burst_cfs_burst", "cpu_burst_cfs_quota")
           and case["config"].get("policy") in POLICIES.values()
           and not any(name.endswith(("cpu.max", "cpu.max.burst")) for name in case["inputs"]["files_before"])]
"""The golden cases that the language can say: a document has no policy `none`, and files have names of v1."""
USAGE = {"idle": 1000.0, "cooling": 7500.0, "overload": 9000.0, "unknown": None}


@pytest.mark.parametrize("case", SAYABLE, ids=lambda case: case["id"])
def test_a_document_passes_the_golden_cases_of_the_strategy(case):
    config, inputs, metrics = case["config"], case["inputs"], case.get("metrics") or {}
    given_pod = copy.deepcopy(case["pods"][0])
    given_pod["status"].setdefault("phase", "Running")
    given_pod |= {"kind": "Pod", "spec": {**given_pod["spec"], "nodeName": "n"}}
    (of_case,) = pods = (PodInfo.of(given_pod),)
    usage = USAGE[inputs.get("node_state", "unknown")]
    recording = recorded(pods, [], **config)
    recording.times = [0]
    recording.series["n", "node", "n"] = {} if usage is None else {"cpu": MetricSeries([0], [usage])}
    for resource, key, scale in (
        ("cpu", "container_cpu_used", 1000), ("throttled", "container_throttled_ratio_last", 1),
    ):
        for name, value in (metrics.get(key) or {}).items():
            series = recording.series.setdefault(("n", "container", f"{of_case.key}/{name}"), {})
            series[resource] = MetricSeries([0], [value * scale])
    policy = next(own for own, koordlets in POLICIES.items() if koordlets == config["policy"])
    period = config.get("cfsQuotaBurstPeriodSeconds", -1)
    fields = [f"policy: {policy}"]
    fields += [f'{name}: "{config[name]}"' for name in ("cpuBurstPercent", "cfsQuotaBurstPercent") if name in config]
    fields += [f"cfsQuotaBurstPeriod: {period}s"] if period >= 0 else []
    prefix = RecordedReadings(recording, "n", 0, {}).directory(of_case)
    files = {f"{prefix}{name.removeprefix('pod')}": text for name, text in inputs["files_before"].items()}
    rounds_of(strategy(", ".join(fields)), recording, files)
    assert files == {f"{prefix}{name.removeprefix('pod')}": text for name, text in case["expect"]["files"].items()}


def test_each_pod_may_be_its_own_subject_with_its_own_percentages():
    pods = (running_pod("web", container("main", limits={"cpu": "2"})),)
    document = strategy('policy: CPUBurstOnly, cpuBurstPercent: "limits.cpu / 10"', "pod")
    (found,) = rounds_of(document, recorded(pods, [(1000, 1000, 0)]), files_of(pods))
    assert found == [("burstable/podweb-uid/main/cpu.cfs_burst_us", "400000"),
                     ("burstable/podweb-uid/cpu.cfs_burst_us", "400000")]


def test_best_effort_pods_are_left_alone():
    pods = (running_pod("train", container("main", limits={"cpu": "2"}), qos="BE"),)
    files = {name.replace("burstable", "besteffort"): text for name, text in files_of(pods).items()}
    assert rounds_of(strategy(), recorded(pods, [(1000, 1000, 0.5)]), files) == [[]]


@pytest.mark.parametrize(("field", "percent"), [
    ("cpuBurstPercent", "0"), ("cpuBurstPercent", "10001"), ("cfsQuotaBurstPercent", "99"),
    ("sharePoolThresholdPercent", "101"),
])
def test_a_constant_percentage_out_of_range_is_an_error_of_the_document(field, percent):
    with pytest.raises(PolicyError, match=rf"`{field}` is {percent}, and must be from"):
        strategy(f'{field}: "{percent}"')


def test_a_computed_percentage_out_of_range_is_an_error_of_the_round():
    pods = (running_pod("web", container("main", limits={"cpu": "2"})),)
    readings = RecordedReadings(recorded(pods, [(1000, 1000, 0)]), "n", 0, files_of(pods))
    report = strategy('cpuBurstPercent: "usage.cpu * 100"').run(readings)
    assert [(each.reason, each.message) for each in report.errors] == [
        ("InvalidSettings", "`cpuBurstPercent` of `burst` is 100000, and must be from 1 to 10000"),
    ]


def test_a_container_alone_is_no_subject():
    with pytest.raises(PolicyError, match="`cpuBurst` sets a whole pod"):
        strategy(subject="container")
