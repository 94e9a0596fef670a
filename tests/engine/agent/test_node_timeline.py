"""Timelines of nodes: changes of replayed recordings and of audit logs, and usage by class."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine.agent.audit_events import AuditedFile, AuditedRound, AuditEvents, read_message
from koordpolicy.engine.agent.node_timeline import (
    AgentChange,
    WrittenFile,
    audited_change,
    replayed_changes,
    usage_of,
)
from koordpolicy.engine.agent.recording import load
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load as load_documents
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: give-way}
spec:
  interval: 10s
  forEach: node
  window: 10s
  actions:
  - name: squeeze
    when: usage.cpu > 3000
    suppressCPU: {target: "8000 - usage.cpu", policy: CFSQuota}
    otherwise: Recover
"""


def recorded(tmp_path: Path, *samples: str) -> Path:
    pods = [{"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": name,
                                         "labels": {"koordinator.sh/qosClass": qos}},
             "spec": {"nodeName": "n", "containers": [{"name": "main"}]}, "status": {"phase": "Running"}}
            for name, qos in (("web", "LS"), ("api", "LS"), ("batch", "BE"))]
    lines = [{"interval": "5s", "start": "2026-01-01T00:00:00Z"},
             {"kind": "Node", "metadata": {"name": "n"}, "spec": {},
              "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8", "memory": "16Gi"}}},
             *pods, {"files": {"n": {"besteffort/cpu.cfs_quota_us": "-1"}}}]
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + "".join(samples), encoding="utf-8")
    return path


def sample(second: int, cpu: int, **pods: int) -> str:
    return json.dumps({"time": f"{second}s", "node": "n", "canonical": True, "usage": {"cpu": cpu, "memory": 1000},
                       "pods": {f"shop/{name}": {"cpu": used} for name, used in pods.items()}}) + "\n"


def changes_of(path: Path, policy: str = POLICY) -> list[AgentChange]:
    plugins = compile_documents(load_documents([Source("policy.yaml", policy)]))
    recording = load(path, cut_off=True)
    return list(replayed_changes(recording, replay(recording, Registry.of((*builtins(), *plugins), generation=1))))


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    return recorded(tmp_path, *(sample(second, 2000 if second in (0, 5) or second > 22 else 5000, web=1000, api=500,
                                       batch=second) for second in range(0, 40, 5)))


def test_changes_have_what_each_file_had_before_and_why(busy):
    found = changes_of(busy)
    first, *_, last = found
    assert first == AgentChange(
        START + 20 * SECOND, "n", "give-way", "suppressCPU", "n", first.reason, "squeeze",
        (WrittenFile("besteffort/cpu.cfs_quota_us", "-1", "300000"),), target=3000.0)
    assert first.reason == "best-effort pods may use 3000m of cpu"
    assert (last.recovers, last.writes[-1].after) == (True, "-1")
    for earlier, later in itertools.pairwise(found):
        assert later.writes[0].before == earlier.writes[0].after


def test_what_is_only_audited_changes_no_file(busy):
    found = changes_of(busy, POLICY.replace("spec:\n", "spec:\n  enforcement: Audit\n"))
    assert {each.enforced for each in found} == {False}
    assert {each.writes[0].before for each in found} == {"-1"}


def test_usage_is_the_mean_of_a_span_and_the_sum_of_the_pods_of_a_class(busy):
    recording = load(busy)
    usage = usage_of(recording, "n", 0, 2**62, 4)
    assert [(time - START) // SECOND for time in usage.times] == [0, 8, 17, 26]
    assert usage.values["cpu"] == {
        "node": (2000.0, 5000.0, 3500.0, 2000.0), "BE": (2.5, 12.5, 22.5, 32.5), "LS": (1500.0,) * 4}
    assert usage.values["memory"] == {"node": (1000.0,) * 4}


def test_a_span_without_a_measurement_has_no_value_and_not_zero(tmp_path):
    recording = load(recorded(tmp_path, sample(0, 100, web=50), sample(20, 200)))
    usage = usage_of(recording, "n", 0, 2**62, 100)
    assert usage.width == 5 * SECOND
    assert usage.values["cpu"] == {"node": (100.0, None, None, None, 200.0), "LS": (50.0, None, None, None, None)}
    assert usage_of(recording, "n", 2**61, 2**62, 100).times == ()


def test_a_recording_whose_last_line_is_cut_off_is_read_without_it(busy):
    whole = len(load(busy).times)
    busy.write_text(busy.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(PolicyError):
        load(busy)
    assert len(load(busy, cut_off=True).times) == whole - 1


def conclusion(**more: object) -> SimpleNamespace:
    adjustment = Adjustment("suppressCPU", "n", "may use 1 of cpu (no more)", **more)
    writes = [SimpleNamespace(file=f"besteffort/{number}", before="1\n", text="0-1,4", status=SimpleNamespace(
        value="written")) for number in range(10)]
    result = SimpleNamespace(changed=True, adjustment=adjustment, writes=writes)
    return SimpleNamespace(results=[result], node="n", plugin="give-way", time=START)


class Log:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def add(self, event) -> None:
        self.events.append(event.to_json())


def test_an_audited_adjustment_is_read_as_it_was_written():
    log = Log()
    AuditEvents(log).concluded(conclusion(), None)
    assert audited_change(log.events[0], "elsewhere") == AgentChange(
        START, "elsewhere", "give-way", "suppressCPU", "n", "may use 1 of cpu (no more)",
        writes=tuple(WrittenFile(f"besteffort/{number}", "1", "0-1,4") for number in range(8)), more=2)
    AuditEvents(log).concluded(conclusion(recovers=True), None)
    assert audited_change(log.events[1], "n").recovers


def test_an_audited_eviction_is_of_its_pod():
    event = {"createdAt": "2026-01-01T00:00:00.500Z", "type": "pod", "namespace": "shop", "name": "batch",
             "reason": "evictPodByNodeMemoryUsage", "message": "memory at 91%; evicted"}
    assert audited_change(event, "n") == AgentChange(
        START + SECOND // 2, "n", "", "evict", "shop/batch", "evictPodByNodeMemoryUsage: memory at 91%; evicted")


@pytest.mark.parametrize("created", [None, "", "yesterday", "1960-01-01T00:00:00Z", 7, ["x"]])
def test_an_event_without_a_time_is_left_out(created):
    assert audited_change({"createdAt": created, "type": "node", "message": "a: b (c: 1 -> 2)"}, "n") is None


@given(st.text(max_size=200))
def test_any_message_is_read_or_left_as_it_is(text):
    found = read_message(text)
    assert found is None or found.plugin in text
    change = audited_change({"createdAt": "2026-01-01T00:00:00Z", "message": text, "name": text}, "n")
    assert change is not None
    assert change.time == START


def test_a_message_of_several_files_is_split_at_its_files():
    assert read_message("a: b (x: -1 -> 5; y: 8:0 1 -> 8:0 2 and 3 more files)") == AuditedRound(
        "a", "b", (AuditedFile("x", "-1", "5"), AuditedFile("y", "8:0 1", "8:0 2")), 3)
    assert read_message("a: b (no files)") is None
