from __future__ import annotations

import contextlib

import pytest
import yaml

from koordpolicy.engine.agent.metric_cache.series import percentile
from koordpolicy.engine.agent.recording import RecordedReadings, load
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.documents.nodes import read, to_plain
from koordpolicy.engine.framework.qos import Host, Processor, Storage
from koordpolicy.engine.source import PolicyError, Source
from tests.odd_values import with_odd_values

YAML = """\
interval: 2s
start: 2026-01-01T00:00:00Z
objects:
- {kind: Node, metadata: {name: n}, status: {allocatable: {cpu: "4"}}}
- kind: Pod
  metadata: {name: p, namespace: d}
  spec: {nodeName: n, containers: [{name: c}]}
- {kind: NodeSLO, metadata: {name: n}, spec: {}}
files: {n: {besteffort/cpuset.cpus: 0-3}}
samples:
- {time: 0s, node: n, usage: {cpu: 1}, pods: {d/p: {cpu: 500m}}, applications: {a: {cpu: 100m}}}
- {time: 2s, node: n, usage: {cpu: 3}, containers: {d/p/c: {cpu: 400m}}}
- {time: "2026-01-01T00:00:04Z", node: n, usage: {cpu: 2}}
"""
HOSTS = "hosts: {n: {processors: [[0, 0, 0, 0]], flags: [mba], storage: {devices: {/dev/vda: '8:0'}}}}\n"


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "metrics.yaml"
    path.write_text(YAML)
    return load(path)


def at(recording, second: float) -> RecordedReadings:
    return RecordedReadings(recording, "n", recording.start + int(second * 1e9), recording.files["n"])


def test_a_window_holds_what_was_measured_up_to_now_and_nothing_later(recording):
    readings = at(recording, 3)
    assert [readings.node_usage("cpu", statistic, 10**10) for statistic in ("avg", "last", "count", "p90")] == [
        2000, 3000, 2, 1000,
    ]


def test_without_a_window_two_collection_intervals_are_looked_at(recording):
    assert at(recording, 4).pod_usage("d/p", "cpu") == 500
    with pytest.raises(EvaluationError, match="no sample of cpu of pod `d/p` in the window") as caught:
        at(recording, 4.5).pod_usage("d/p", "cpu")
    assert caught.value.reason == "NoMetric"


def test_objects_files_and_the_age_of_the_last_sample_are_at_hand(recording):
    readings = at(recording, 3)
    assert (readings.files, [pod.key for pod in readings.pods], readings.object("NodeSLO")["kind"], readings.age()) == (
        {"besteffort/cpuset.cpus": "0-3"}, ["d/p"], "NodeSLO", 10**9,
    )
    assert readings.application_usage("a", "cpu", window=10**10) == 100
    assert readings.measured("container", "d/p/c", "avg", 10**10) == {"cpu": 400}


def test_the_machine_the_best_effort_tier_and_throttling_are_recorded(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(
        "objects: [{kind: Node, metadata: {name: n}}]\n"
        "hosts: {n: {processors: [[0, 1, 2, 3]], flags: [mba], l3Caches: [0], storage: {devices: {/dev/vda: '8:0'}}}}\n"
        "samples:\n"
        "- {time: 0s, node: n, containers: {d/p/c: {throttled: 0.25}}, bestEffort: {usage: 2, realLimit: 3}}\n",
    )
    recording = load(path)
    readings = RecordedReadings(recording, "n", recording.start, {})
    assert readings.host == Host((Processor(0, 1, 2, 3),), flags=frozenset({"mba"}), l3_caches=(0,),
                                 storage=Storage({"/dev/vda": "8:0"}))
    assert (readings.container_usage("d/p/c", "throttled"), readings.best_effort_cpu("usage"),
            readings.best_effort_cpu("realLimit", "count")) == (0.25, 2000, 1)


def test_every_fault_of_a_recording_is_told_with_its_place(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(
        "objects:\n- {kind: Node, metadata: {name: n}}\n- {kind: Pod, metadata: {name: p}, spec: {containers: []}}\n"
        "samples:\n- {time: 0s, node: x, usage: {cpu: 1}}\n- {time: 1s, node: n, usage: {cpu: 12Zi}}\n"
        "- {time: 2s, node: n, use: {}}\nwhat: 1\n",
    )
    with pytest.raises(PolicyError) as caught:
        load(path)
    assert [(problem.span.place[1], problem.message) for problem in caught.value.problems] == [
        (3, "`objects[1]`: `spec.containers` is missing or empty: a pod has at least one container"),
        (5, "`samples[0]`: there is no node `x` among the objects"),
        (6, "`samples[1]`: `n.cpu`: `12Zi` is not a quantity: write a number and a suffix, like `500m` or `1.5Gi`"),
        (7, ("`samples[2]`: unknown key `use`, known are `time`, `node`, `usage`, `pods`, `containers`, "
             "`applications`, `bestEffort`, `canonical`")),
        (8, "`what`: unknown key, known are `interval`, `start`, `objects`, `files`, `hosts`, `samples`"),
    ]


@pytest.mark.parametrize(("line", "fault"), [
    ("hosts: {n: 5}", "`hosts`: `n` must be a mapping, not 5"),
    ("hosts: {n: {storage: {disks: {}}}}",
     "`hosts`: unknown key `disks`, known are `devices`, `volumeGroups`, `mounts`, `claims`"),
    ("hosts: {n: {storage: {devices: {/dev/vda: 8}}}}", "`hosts`: `storage.devices./dev/vda` must be a text, not 8"),
    ("hosts: {n: {processors: [[0, 1, 2]]}}",
     "`hosts`: `processors[0]` must be four numbers: of the CPU, its core, its socket and its NUMA node"),
    ("hosts: {n: {processors: [[0, .inf, 2, 3]]}}", "`hosts`: `processors[0][1]` must be a whole number, not inf"),
    ("hosts: {n: {flags: mba}}", "`hosts`: `flags` must be a list, not 'mba'"),
    ("samples: [{time: .inf, node: n}]", "`samples[0]`: `time` must be a finite number, not inf"),
    ("samples: [{time: 1e12, node: n}]",
     "`samples[0]`: `time` must be at most 9223372036 seconds, not 1e+12"),
    ("samples: [{time: true, node: n}]", "`samples[0]`: `time` must be a finite number, not True"),
    ("samples: [{time: 1s, node: n, canonical: true, usage: {cpu: .nan}}]",
     "`samples[0]`: `n.cpu` must be a finite number, not nan"),
    ("samples: [{time: 1s, node: n}, {time: 800h, node: n}]",
     ("the samples are from 1970-01-01T00:00:01Z to 1970-02-03T08:00:00Z, and a recording may be of 31 days: correct "
      "`time` of the first or of the last one, or replay a part of it")),
])
def test_a_malformed_fact_or_number_is_told_with_its_path(tmp_path, line, fault):
    path = tmp_path / "m.yaml"
    samples = "" if line.startswith("samples") else "\nsamples: [{time: 0s, node: n}]"
    path.write_text(f"objects: [{{kind: Node, metadata: {{name: n}}}}]\n{line}{samples}\n")
    with pytest.raises(PolicyError) as caught:
        load(path)
    assert [problem.message for problem in caught.value.problems] == [fault]


def test_a_recording_with_an_odd_value_anywhere_is_read_or_refused(tmp_path):
    path = tmp_path / "m.yaml"
    content = to_plain(read(Source("m.yaml", YAML + HOSTS))[0])
    for changed in with_odd_values(content):
        path.write_text(yaml.safe_dump(changed))
        with contextlib.suppress(PolicyError):
            load(path)


def test_a_truncated_line_of_json_is_told_with_its_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"kind": "Node", "metadata": {"name": "n"}}\n{"time": "0s", "node"')
    with pytest.raises(PolicyError, match=r"m.jsonl:2:1: error: line 2 is not JSON"):
        load(path)


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1], 0), ([1], 1.5), ([1], 0.12345)])
def test_a_percentile_of_nothing_or_out_of_range_is_refused(values, fraction):
    with pytest.raises(ValueError, match=r"no values|not a percentile"):
        percentile(values, fraction)


def test_a_percentile_is_an_index_into_the_sorted_values():
    assert [percentile(range(0, 900, 100), fraction) for fraction in (0.5, 0.9, 0.001, 1)] == [300, 700, 0, 800]


def test_a_recording_without_samples_is_refused(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("objects:\n- {kind: Node, metadata: {name: n}}\n")
    with pytest.raises(PolicyError, match="this recording has no samples"):
        load(path)
