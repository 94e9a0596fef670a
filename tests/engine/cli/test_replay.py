from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.cli.sparks import spark

from .conftest import Run

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,16384,0,\nn2,4000,16384,0,\n"
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time
big,8000,1024,0,0,,LS,10,7210
next,8000,1024,0,0,,LS,20,10810
huge,99000,1024,0,0,,BE,30,40
small,1000,1024,0,0,,BE,30,10810
"""
EVICT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: move-along}
spec:
  type: Deschedule
  criteria:
  - {name: best-effort, expression: "podInfo.qosClass == 'BE'"}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    path = tmp_path / "pods.csv"
    path.write_text(PODS)
    return path


def test_a_replay_tells_who_waited_and_what_was_taken(run: Run, trace: Path):
    done = run("replay", "--trace", trace, "--points", "2", "--output", "json")
    found = done.json
    assert (done.exit, done.err) == (0, "")
    assert found["waits"] == {
        "pods": 3, "mean": 2396.667, "p50": 0.0, "p90": 7190.0, "p95": 7190.0, "p99": 7190.0, "most": 7190.0,
    }
    assert found["neverRan"] == [{"pod": "huge", "waited": 10.0, "left": True, "reasons": {"Insufficient cpu": 2}}]
    assert [(each["start"], each["end"], each["evicted"]) for each in found["series"]] == [
        (10.0, 5410.0, 0), (5410.0, 10810.0, 0),
    ]
    assert found["run"] == {"trace": str(trace), "nodes": 2, "nodeShare": 1.0, "stretch": 1.0, "leave": "recorded",
                            "tieBreak": "first", "seed": 0}


def test_the_text_shows_waits_use_over_time_and_who_never_ran(run: Run, trace: Path):
    lines = run("replay", "--trace", trace, "--points", "3").out.splitlines()
    assert lines[:12] == [
        "",
        "waiting, from creation to the first node",
        "     pods  mean     p50  p90     p95     p99     most",
        "ran     3  39m 57s  0s   1h 59m  1h 59m  1h 59m  1h 59m",
        "",
        "taken, in percent of the cluster, and pods",
        "          mean   most  over time (10s to 3h)",
        "cpu      74.98  75.00  ▆▆▆",
        "memory    6.24   6.25  ▁▁▁",
        "gpu       0.00   0.00",
        "running   2.00   2.00  ███",
        "pending   0.67   2.00  ██",
    ]
    assert lines[13:17] == [
        "1 of 4 pods never ran: 1 left, 0 wait for ever",
        "pods  reason at first (a pod may have several)",
        "   1  Insufficient cpu",
        "",
    ]
    assert lines[-1].startswith("4 pods came to 2 nodes in 3h; ")


def test_a_descheduler_among_the_policies_takes_part(run: Run, trace: Path, tmp_path: Path):
    (tmp_path / "policy.yaml").write_text(EVICT)
    options = ("--trace", trace, "--policies", tmp_path / "policy.yaml", "--points", "3")
    found = run("replay", *options, "--output", "json").json
    assert found["cycles"] == 4
    assert [(each["time"], each["pod"], each["plugin"], each["again"]) for each in found["evictions"]] == [
        (3610.0, "small", "move-along", 0.0), (7210.0, "small", "move-along", 0.0),
    ]
    often = run("replay", *options, "--descheduling-interval", "30m").out.splitlines()
    assert "5 evictions in 7 cycles of the descheduler" in often
    assert any(line.split() == ["5", "move-along", "best-effort", "loop"] for line in often)
    assert any(line.startswith("ran again after an eviction") for line in often)


def test_evictions_that_a_proof_stops_are_listed_by_themselves(run: Run, trace: Path, tmp_path: Path):
    (tmp_path / "policy.yaml").write_text(f"{EVICT}  proof: Enforce\n")
    options = ("--trace", trace, "--policies", tmp_path / "policy.yaml", "--points", "3")
    found = run("replay", *options, "--output", "json").json
    assert (found["cycles"], found["evictions"]) == (4, [])
    (useless,) = found["useless"]
    proof = useless.pop("proof")
    assert useless == {"time": 3610.0, "pod": "small", "node": "n2", "plugin": "move-along", "rule": "best-effort",
                       "cycles": 2}
    assert (proof["result"], proof["effect"]) == ("loop", "Enforce")
    page = tmp_path / "page.html"
    lines = [" ".join(line.split()) for line in run("replay", *options, "--report", page).out.splitlines()]
    assert "nobody was evicted in 4 cycles of the descheduler" in lines
    assert "1 eviction would not have helped, and was not made" in lines
    assert f"small n2 move-along best-effort 1h 2 {proof['message']}" in lines
    assert "1 eviction would not have helped, so that the pods stayed:" in page.read_text(encoding="utf-8")


def test_the_series_is_written_as_csv(run: Run, trace: Path, tmp_path: Path):
    path = tmp_path / "use.csv"
    assert run("replay", "--trace", trace, "--points", "1", "--series", path).exit == 0
    assert path.read_text() == (
        "start,end,cpu,memory,gpu,running,pending,most_pending,evicted\n"
        "10.0,10810.0,74.985,6.244,0.0,1.998,0.667,2,0\n"
    )
    refused = run("replay", "--trace", trace, "--series", tmp_path)
    assert (refused.exit, refused.err) == (2, f"koord-policy: cannot write `{tmp_path}`: is a directory\n")


@pytest.mark.parametrize(("arguments", "message"), [
    (["--node-share", "0"], "argument --node-share: `0` is not a share above 0 and up to 1"),
    (["--stretch", "-1"], "argument --stretch: `-1` is not a factor from 0 to 10000"),
    (
        ["--descheduling-interval", "10"],
        "argument --descheduling-interval: `10` is not a duration such as `30s`, `5m` or `1h30m`",
    ),
    (["--descheduling-interval", "10ms"], "argument --descheduling-interval: `10ms` is less than a second"),
    (["--nodes", "gone.csv"], "there is no file `gone.csv`"),
    (
        ["--descheduler-config", "gone.yaml"],
        ("there is no file `gone.yaml`: `--descheduler-config` takes a DeschedulerConfiguration or a "
        "DeschedulerPolicy"),
    ),
])
def test_usage_errors_name_the_option(run: Run, trace: Path, arguments: list[str], message: str):
    done = run("replay", "--trace", trace, *arguments)
    assert done.exit == 2
    assert done.err.splitlines()[-1].endswith(message)


def test_a_list_without_times_is_no_recording(run: Run, trace: Path):
    trace.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n")
    done = run("replay", "--trace", trace)
    assert done.exit == 3
    assert "the list has no column `creation_time`" in done.err


def test_who_leaves_before_he_comes_is_refused(run: Run, trace: Path):
    trace.write_text(PODS + "odd,1000,1,0,0,,LS,50,49\n")
    done = run("replay", "--trace", trace)
    assert done.exit == 3
    assert "pods.csv:6:23: error: `odd` was deleted at 49, before it was created at 50" in done.err


def test_blocks_grow_with_their_values():
    assert spark([0, 0.1, 50, 100], 100) == " ▁▄█"
    assert spark([0, 0], 0) == "  "
