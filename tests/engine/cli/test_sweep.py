from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from koordpolicy.engine.experiments.journal import Journal
from tests.output_schemas import read_output

from .conftest import Run

PROJECT = Path(__file__).parents[3]
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},64000,262144,{n % 3},T4\n" for n in range(9))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{n},{1000 * (1 + n % 5)},1024,{int(n % 4 > 0)},{(0, 250, 500, 1000)[n % 4]}\n" for n in range(60))


OVER_WHAT = ("over what? name a trace with `--trace`, a snapshot of a cluster with `--cluster`, or flight recordings "
             "with `--recorded`")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    return tmp_path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_over_a_trace_writes_a_row_per_experiment_and_tells_means(run: Run, trace: Path):
    done = run(
        "sweep", "policy=BestFit,FGD", "seed=1..2", "--trace", trace, "--out", trace / "r.csv", "--processes", 1,
        "--every", 50,
    )
    assert (done.exit, done.err) == (0, "")
    rows = table(trace / "r.csv")
    assert [(row["workload"], row["policy"], row["seed"]) for row in rows] == [
        ("default", policy, seed) for policy in ("BestFit", "FGD") for seed in ("1", "2")]
    assert list(rows[0])[3:] == [
        "arrivals", "failed", "load_pct", "cpu_alloc_pct", "memory_alloc_pct", "gpu_alloc_pct", "frag_amount_pct",
        "frag_ratio_pct",
        "errors", "pods_per_second",
        *(f"{name}_alloc_pct_{load}" for name in ("cpu", "memory", "gpu") for load in (50, 100)),
        *(f"frag_{name}_pct_{load}" for name in ("amount", "ratio") for load in (50, 100)), "seconds"]
    lines = done.out.splitlines()
    assert lines[0].split() == ["policy", "runs", "gpu_alloc_pct", "frag_amount_pct", "frag_ratio_pct", "failed"]
    assert [line.split()[:2] for line in lines[1:3]] == [["BestFit", "2"], ["FGD", "2"]]
    assert lines[-1] == f"4 experiments are finished; written: `{trace}/r.csv`"


def test_the_same_again_runs_only_what_is_new_and_fresh_runs_all(run: Run, trace: Path):
    def before(seeds: str, *more: str) -> int:
        return int(run("sweep", "policy=BestFit", seeds, "--trace", trace, "--out", trace / "r.csv", "--processes", 1,
                       "--output", "json", *more).json["finishedBefore"])

    assert before("seed=1..2") == 0
    assert before("seed=1..3") == 2
    assert len(table(trace / "r.csv")) == 3
    assert before("seed=1..3", "--fresh") == 0


def test_several_processes_come_to_what_one_process_comes_to(run: Run, trace: Path):
    def figures(*more: object) -> list[dict[str, object]]:
        done = run("sweep", "policy=Random,GpuPacking", "seed=1..2", "--trace", trace, "--output", "json", *more)
        assert (done.exit, done.err) == (0, "")
        changing = ("pods_per_second",)
        return [
            {name: value for name, value in each["figures"].items() if name not in changing}
            for each in done.json["experiments"]
        ]

    assert figures("--processes", 2) == figures("--processes", 1)


def test_a_sweep_that_is_killed_goes_on_and_never_counts_half_an_experiment(trace: Path):
    out = trace / "r.csv"
    kept = trace / "r.csv.runs.jsonl"

    def command(seeds: str, *more: str) -> list[str]:
        return [
            sys.executable, "-m", "koordpolicy", "sweep", "policy=BestFit", seeds, "--trace", str(trace), "--out",
            str(out), *more,
        ]

    with subprocess.Popen(command("seed=1..4000", "--processes", "2"), cwd=PROJECT, stdout=subprocess.DEVNULL) as sweep:
        while not kept.exists() or kept.read_bytes().count(b"\n") < 5:
            assert sweep.poll() is None
            time.sleep(0.01)
        os.kill(sweep.pid, signal.SIGKILL)
    with Journal(kept) as journal:
        finished = len(journal.finished)
    assert 5 <= finished < 4000
    assert not out.exists()
    found = subprocess.run(
        command("seed=1..8", "--processes", "1", "--output", "json"), cwd=PROJECT, capture_output=True, check=True,
    )
    data = read_output("sweep", found.stdout)
    assert data["finishedBefore"] >= 4
    assert len(data["experiments"]) == len(table(out)) == 8


def test_a_sweep_over_a_snapshot_tells_each_step_and_draws_it(run: Run, tmp_path: Path):
    done = run("sweep", "params.cpuPercent=60..90:15", "--cluster", PROJECT / "examples/cluster", "--policies",
               PROJECT / "policies/scheduler", "--out", tmp_path / "r.csv", "--plot", tmp_path / "r.svg", "--report",
               tmp_path / "r.html", "--processes", 1)
    assert (done.exit, done.err) == (0, "")
    assert [row["params.cpuPercent"] for row in table(tmp_path / "r.csv")] == ["60", "75", "90"]
    assert done.out.splitlines()[0].split() == [
        "params.cpuPercent", "pending", "misfits", "evictions", "suppressed", "hot", "cpu_usage_spread",
        "cpu_requested_spread",
    ]
    assert (tmp_path / "r.svg").read_text().startswith('<?xml version="1.0" encoding="utf-8"?>\n<svg')
    assert "<h1>3 experiments over " in (tmp_path / "r.html").read_text()


def test_expressions_that_fail_are_told_with_the_command_that_names_them(run: Run, tmp_path: Path):
    policy = tmp_path / "cool.yaml"
    policy.write_text("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: cool}
spec:
  params: {percent: 80}
  filter: [{name: cool, expression: usage.cpu * 100 / allocatable.cpu < params.percent}]
""")
    options = ("--cluster", PROJECT / "examples/cluster", "--processes", 1)
    done = run("sweep", "params.percent=80", *options, "--policies", policy)
    assert (done.exit, done.err) == (
        0, "warning: plugins or expressions failed in 1 experiment: `koord-policy audit` says what\n")
    told = run("audit", policy, "--cluster", PROJECT / "examples/cluster").out
    assert " fails " in told
    assert "no metric of the node, or an expired one" in told


@pytest.mark.parametrize(("arguments", "message"), [
    (["seed=1"], OVER_WHAT),
    (["seed=1", "--trace", "DIR", "--cluster", "c.yaml"], OVER_WHAT),
    (["seed=1", "--trace", "DIR/nothing"], "there is no file or directory `DIR/nothing`"),
    (["seed=1", "seed=2", "--trace", "DIR"], "the axis `seed` is named twice: give it all its values at once"),
    (["seed=1..2000000", "--trace", "DIR"], "`1..2000000` has more than 100000 values"),
    (
        ["seed=1..2000", "tune=1..100:0.1", "--trace", "DIR"],
        "these are 11,892,000 experiments: at most 1,000,000 are run",
    ),
    (["--trace", "DIR", "--out", "r.xls"], "`--out r.xls`: the name must end with .csv or .parquet"),
    (["--trace", "DIR", "--plot", "DIR/no/r.svg"], "`--plot DIR/no/r.svg`: there is no directory `DIR/no`"),
    (
        ["--trace", "DIR", "--policies", "nowhere"],
        "there is no file or directory `nowhere`: name the policies with `--policies PATH`",
    ),
    (["--cluster", "examples/cluster"], "vary what? name an axis, such as params.cpuPercent=55..90:5"),
    (
        ["policy=BestFit", "params.x=1", "--trace", "DIR"],
        "no policy has the param `x`: there are `largestCPU`, `largestGPU`",
    ),
])
def test_what_cannot_be_done_is_told_before_anything_runs(run: Run, trace: Path, monkeypatch, arguments, message):
    monkeypatch.chdir(PROJECT)
    done = run("sweep", *(each.replace("DIR", str(trace)) for each in arguments))
    assert (done.exit, done.out, done.err) == (2, "", f"koord-policy: {message.replace('DIR', str(trace))}\n")


def test_a_second_sweep_into_the_same_table_is_refused(run: Run, trace: Path):
    with Journal(trace / "r.csv.runs.jsonl"):
        done = run("sweep", "--trace", trace, "--out", trace / "r.csv")
    assert (done.exit, done.err) == (2, (
        f"koord-policy: another sweep is writing `{trace}/r.csv.runs.jsonl`: wait for it, or name another `--out`\n"))


def test_an_extra_that_is_missing_is_named(run: Run, trace: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("sweep", "policy=BestFit", "--trace", trace, "--report", trace / "r.html", "--processes", 1)
    assert (done.exit, done.err) == (
        2, "koord-policy: `matplotlib` is not installed: pip install 'koord-policy[plots]'\n",
    )


def test_a_scheduler_that_does_not_answer_is_told(run: Run, trace: Path):
    done = run("sweep", "policy=BestFit", "--trace", trace, "--scheduler-address", "nonsense://x")
    assert done.exit == 1
    assert done.err.startswith("koord-policy: no Dask scheduler answers at `nonsense://x`: ")
