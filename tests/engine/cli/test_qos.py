from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

RECORDING = """\
interval: 1s
objects:
- {apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {cpu: "4", memory: 8Gi}}}
files: {n: {besteffort/cpu.cfs_quota_us: "-1", besteffort/cpu.cfs_period_us: "100000"}}
samples:
- {time: 0s, node: n, usage: {cpu: 1}}
- {time: 1s, node: n, usage: {cpu: 1}}
- {time: 2s, node: n, usage: {cpu: 3}}
- {time: 3s, node: n, usage: {cpu: 3}}
"""
QUOTA = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: bound}
spec:
  interval: 1s
  forEach: node
  window: 1s
  thresholds:
  - {name: busy, expression: usage.cpu > 2500}
  actions:
  - name: squeeze
    when: thresholds.busy
    suppressCPU: {target: "1000", policy: CFSQuota}
"""


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.yaml"
    path.write_text(RECORDING)
    return path


@pytest.fixture
def quota(tmp_path: Path) -> Path:
    path = tmp_path / "quota.yaml"
    path.write_text(QUOTA)
    return path


def test_actions_are_told_with_their_reasons(run: Run, recording: Path, quota: Path):
    done = run("qos", "--replay", recording, "--policies", quota)
    assert (done.exit, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["time", "node", "plugin", "action", "reason", "writes"]  # no action has a subject
    assert lines[1].split()[:4] == ["3s", "n", "bound", "suppressCPU"]
    assert "besteffort/cpu.cfs_quota_us=100000" in lines[1]
    assert lines[-1] == "1 actions and 0 errors in 4 rounds"


def test_json_holds_the_eventful_rounds_or_all(run: Run, recording: Path, quota: Path):
    found = run("qos", "--replay", recording, "--policies", quota, "--output", "json").json
    assert {key: found[key] for key in ("rounds", "actions", "errors")} == {"rounds": 4, "actions": 1, "errors": 0}
    assert ([each["elapsedSeconds"] for each in found["log"]], found["logLeftOut"]) == ([3.0], 3)
    every = run("qos", "--replay", recording, "--policies", quota, "--all", "-o", "json").json
    assert "logLeftOut" not in every
    assert [(each["elapsedSeconds"], each["thresholds"][0]["true"]) for each in every["log"]] == [
        (0.0, False), (1.0, False), (2.0, False), (3.0, True),
    ]


def test_an_error_of_many_rounds_is_one_line(run: Run, recording: Path, quota: Path):
    quota.write_text(QUOTA.replace("usage.cpu > 2500", "usage.memory > 1"))
    lines = run("qos", "--replay", recording, "--policies", quota).out.splitlines()
    assert len([line for line in lines if "busy: " in line]) == 1
    assert lines[1].startswith("0s to 3s  n     bound")


def test_a_malformed_recording_is_invalid(run: Run, recording: Path):
    recording.write_text(RECORDING.replace("time: 1s, node: n", "time: 1s, node: m"))
    done = run("qos", "--replay", recording)
    assert done.exit == 3
    assert f"{recording}:7:3: error: `samples[1]`: there is no node `m` among the objects" in done.err


def test_usage_errors_say_what_to_write(run: Run, recording: Path, tmp_path: Path):
    assert [run("qos", "--replay", *arguments).err for arguments in (
        (tmp_path / "gone",), (tmp_path,), (recording, "--feature-gates", "BECPUSuppress"),
        (recording, "--feature-gates", "BECPUSupress=true"), (recording, "--enable", "BECPUSupress"),
    )] == [
        f"koord-policy: there is no file `{tmp_path}/gone`: `--replay` takes a recording\n",
        f"koord-policy: `{tmp_path}` is a directory: `--replay` takes a recording, a file\n",
        "koord-policy: `--feature-gates BECPUSuppress`: expected NAME=true or NAME=false\n",
        ("koord-policy: `--feature-gates`: there is no feature gate `BECPUSupress`, and no document names it: "
         "did you mean `BECPUSuppress`?\n"),
        "koord-policy: `--enable`: there is no plugin `BECPUSupress`: did you mean `BECPUSuppress`?\n",
    ]


@pytest.fixture
def evicting(tmp_path: Path) -> Path:
    """A recording of a node whose memory is short, with one best-effort pod."""
    path = tmp_path / "evicting.yaml"
    path.write_text("""\
interval: 1s
objects:
- apiVersion: v1
  kind: Node
  metadata: {name: n}
  status: {capacity: {cpu: "4", memory: 8Gi}, allocatable: {cpu: "4", memory: 8Gi}}
- apiVersion: slo.koordinator.sh/v1alpha1
  kind: NodeSLO
  metadata: {name: n}
  spec: {resourceUsedThresholdWithBE: {enable: true, memoryEvictThresholdPercent: 70}}
- apiVersion: v1
  kind: Pod
  metadata: {name: p, namespace: d, uid: u, labels: {koordinator.sh/qosClass: BE}}
  spec: {nodeName: n, containers: [{name: c}]}
  status: {phase: Running}
samples:
- {time: 0s, node: n, usage: {memory: 7Gi}, pods: {d/p: {memory: 1Gi}}}
""")
    return path


@pytest.mark.parametrize("options", [
    ("--enable", "memoryEvict", "--feature-gates", "BEMemoryEvict=true"), ("--feature-gates", "BEMemoryEvict=true"),
    ("--enable", "*", "--feature-gates", "BEMemoryEvict=true,BECPUSuppress=false"),
])
def test_strategies_are_enabled_as_in_the_agent(run: Run, evicting: Path, options: tuple[str, ...]):
    done = run("qos", "--replay", evicting, *options, "--output", "json")
    assert [(action["kind"], action["subject"], action["item"])
            for each in done.json["log"] for action in each["actions"]] == [("evict", "d/p", "BEMemoryEvict")]
    explained = run("explain", "--qos", "n", "--replay", evicting, "--plugin", "memoryEvict", *options)
    assert explained.exit == 0
    assert "BEMemoryEvict" in explained.out


def test_all_strategies_are_those_of_koordlets_gates(run: Run, evicting: Path):
    done = run("qos", "--replay", evicting, "--enable", "*", "--all", "--output", "json")
    assert {each["plugin"] for each in done.json["log"]} == {
        "BECPUSuppress", "BatchResource", "CPUBurst", "CPUSetAllocator", "GroupIdentity", "RdtResctrl"}


def test_a_gate_of_koordlet_without_effect_is_a_warning(run: Run, recording: Path, quota: Path):
    warning = ("warning: `--feature-gates`: koordlet's gate `AuditEvents` has no effect here: `agent --audit-log-dir` "
               "writes the audit log\n")
    gates = ("--feature-gates", "AuditEvents=true,Accelerators=true")
    plain, done = (run("qos", "--replay", recording, "--policies", quota, *more) for more in ((), gates))
    assert (done.exit, done.out, done.err) == (plain.exit, plain.out, warning)
    explained = run("explain", "--qos", "n", "--replay", recording, "--policies", quota, *gates)
    assert (explained.exit, explained.err) == (0, warning)


def test_a_replay_in_which_nothing_runs_says_so(run: Run, recording: Path):
    done = run("qos", "--replay", recording)
    assert (done.exit, done.out) == (0, "0 actions and 0 errors in 0 rounds\n")
    assert done.err == "no plugin ran: name documents with `--policies`, or a built-in plugin with `--enable`\n"


NODE_SLO = "- {kind: NodeSLO, metadata: {name: n}, spec: {systemStrategy: {schedIdleSaverWmark: 1}}}\n"
UNREAD = "`spec` has no effect: no QoS plugin that runs reads it"


@pytest.mark.parametrize("command", [("qos",), ("explain", "--qos", "n")])
def test_settings_that_nothing_reads_are_reported_with_their_place(
    run: Run, tmp_path: Path, quota: Path, command: tuple[str, ...],
):
    path = tmp_path / "recording.yaml"
    path.write_text(RECORDING.replace("files:", f"{NODE_SLO}files:"))
    done = run(*command, "--replay", path, "--policies", quota)
    assert (done.exit, done.err.splitlines()[0]) == (0, f"{path}:4:40: warning: NodeSLO `n`: {UNREAD}")


@pytest.mark.parametrize("command", [("diff", "/dev/null"), ("audit",)])
def test_settings_of_a_cluster_that_nothing_reads_are_reported_with_the_object(
    run: Run, tmp_path: Path, quota: Path, command: tuple[str, ...],
):
    path = tmp_path / "cluster.yaml"
    slos = [f"{{kind: NodeSLO, metadata: {{name: {name}}}, spec: {{extensions: {{a: 1}}}}}}" for name in "mn"]
    node = "{kind: Node, metadata: {name: n}, status: {allocatable: {cpu: '4', memory: 8Gi, pods: '9'}}}"
    path.write_text("\n---\n".join([node, *slos]))
    done = run(*command, quota, "--cluster", path)
    assert (done.exit, [line for line in done.err.splitlines() if "SLO" in line]) == (
        0, [f"warning: NodeSLO `m` and 1 more: {UNREAD}"],
    )
