from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.engine.agent.daemon import Agent, Conclusion
from koordpolicy.engine.agent.node_recorder import NodeRecorder
from koordpolicy.engine.agent.parts import AgentParts, PeriodicCollector
from koordpolicy.engine.agent.qos_manager.evictions import EvictionMemory
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.agent.recording import load
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load as load_documents
from koordpolicy.engine.framework.qos import Adjustment, Host, Processor, Storage
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import Source
from koordpolicy.engine.testing.agent import FakeExecutor, FakeMetricCache
from koordpolicy.engine.testing.states import FakeStates

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND + 123_456_789
QUOTA, SHARES = "besteffort/cpu.cfs_quota_us", "burstable/podU/cpu.shares"
NODE = {"kind": "Node", "metadata": {"name": "n"},
        "status": {"capacity": {"cpu": "10"}, "allocatable": {"cpu": "10", "memory": "10Gi"}}}
POD = {"kind": "Pod", "metadata": {"name": "web", "namespace": "d", "uid": "U"},
       "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
HOST = Host(processors=(Processor(0, 0, 0, 0), Processor(1, 0, 0, 0)), flags=frozenset({"rdt_a"}), cbm_mask="ff",
            storage=Storage(devices={"/dev/vda": "8:0"}))
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: squeeze}
spec:
  interval: 1s
  forEach: node
  window: 3s
  thresholds:
  - {name: pressed, expression: "usage.cpu > 5000", for: 2s}
  actions:
  - name: squeeze
    when: thresholds.pressed
    suppressCPU: {target: 6500 - nonBestEffortUsage.cpu, policy: CFSQuota}
    otherwise: Recover
"""


class View(Mapping[str, str]):
    """Files that know which of them were looked up, as those of a machine do."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)
        self.looked_up: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        self.looked_up[name] = self._files[name]
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class NoEvictor:
    evictions = EvictionMemory().view(0)

    def evict(self, pod: PodInfo, adjustment: Adjustment) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> int:
        # Collections come some milliseconds late, unlike each time.
        return START + round(self.seconds * SECOND) + round(self.seconds * 7919) % 9 * 1_000_000


def registry() -> Registry:
    return Registry.of(compile_documents(load_documents([Source("p.yaml", POLICY)])), generation=1)


def run(path: Path, usages: list[tuple[int, int]], **options: Any) -> list[tuple[Adjustment, ...]]:
    """Run a live agent over usages of the node and of its pod, each for a second; return the adjustments by round."""
    clock, metrics, executor = Clock(), FakeMetricCache("n"), FakeExecutor({QUOTA: "-1", SHARES: "1024"})
    states = FakeStates(node=NODE, pods=(PodInfo.of(POD),))
    recorder = NodeRecorder(path, "n", interval=1.0, host=lambda: HOST, **options)
    rounds: list[tuple[Adjustment, ...]] = []

    def collect(now: int) -> None:
        node, pod = usages[min(int(clock.seconds), len(usages) - 1)]
        metrics.append("node", "n", "cpu", now, node + 0.25)
        metrics.append("pod", "d/web", "cpu", now, pod + 0.125)
        recorder.sample(now, states, metrics.at(now), lambda: ())

    def conclude(conclusion: Conclusion, readings: Any) -> None:
        recorder.concluded(conclusion, readings)
        rounds.append(conclusion.report.adjustments)

    parts = AgentParts("n", HOST, states, metrics, lambda: View(executor.files), executor, NoEvictor(),
                       collectors=(PeriodicCollector("all", 1.0, collect),), clock=clock)
    live = Live()
    live.activate(registry())
    agent = Agent(parts, live, Manager(on_node=True), observers=[conclude])
    while clock.seconds < len(usages):
        clock.seconds = agent.step()
    recorder.close()
    return rounds


def said(adjustments: Any) -> list[tuple[str, Any, Any]]:
    return [(each.reason, each.writes, each.recovers) for each in adjustments]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 4_000)), min_size=3, max_size=30))
def test_a_replay_of_a_live_run_makes_the_same_adjustments(tmp_path_factory, usages):
    path = tmp_path_factory.mktemp("recorded") / "metrics.jsonl"
    lived = run(path, usages)
    replayed = [each.adjustments for each in replay(path, registry())]
    assert list(map(said, replayed)) == list(map(said, lived))


def test_a_recording_has_the_machine_and_the_files_that_were_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert any(run(path, [(9000, 1000)] * 6))
    recording = load(path)
    assert (recording.hosts, recording.files) == ({"n": HOST}, {"n": {QUOTA: "-1"}})
    assert [pod.key for pod in recording.pods["n"].values()] == ["d/web"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_are_rotated_by_size_and_each_is_complete(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run(path, [(9000, 1000)] * 40, file_bytes=2000, most_files=3)
    found = sorted(tmp_path.iterdir())
    assert len(found) == 3
    for each in found:
        recording = load(each)
        assert (list(recording.nodes), recording.interval, len(recording.times) > 2) == (["n"], SECOND, True)


def test_a_changed_object_begins_a_new_file(tmp_path):
    path, metrics = tmp_path / "metrics.jsonl", FakeMetricCache("n")
    recorder = NodeRecorder(path, "n", interval=1.0, host=Host)
    states = FakeStates(node=NODE, node_slo={"metadata": {"name": "n"}, "spec": {"a": 1}})
    for second, spec in enumerate(({"a": 1}, {"a": 1}, {"a": 2})):
        states.node_slo = {"metadata": {"name": "n", "resourceVersion": str(second)}, "spec": spec}
        metrics.measure("node", "n", START + second * SECOND, cpu="1")
        recorder.sample(START + second * SECOND, states, metrics.at(START + second * SECOND), lambda: ())
    recorder.close()
    specs = [next(json.loads(line)["spec"] for line in each.read_text().splitlines() if "NodeSLO" in line)
             for each in sorted(tmp_path.iterdir())]
    assert specs == [{"a": 1}, {"a": 2}]


def test_a_disk_that_cannot_be_written_ends_the_recording_only(tmp_path, caplog):
    assert any(run(tmp_path / "missing" / "metrics.jsonl", [(9000, 1000)] * 6))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("key", ["usage", "pods"])
def test_amounts_in_canonical_units_are_read_as_they_are(tmp_path, key):
    path = tmp_path / "metrics.jsonl"
    amounts: Any = {"cpu": 1234.5} if key == "usage" else {"d/web": {"cpu": 1234.5}}
    path.write_text("\n".join(json.dumps(each) for each in (
        NODE, POD, {"time": "0s", "node": "n", "canonical": True, key: amounts})))
    recording = load(path)
    (series,) = [found for found in recording.series.values() if "cpu" in found]
    assert list(series["cpu"].between(0, 1)) == [1234.5]
