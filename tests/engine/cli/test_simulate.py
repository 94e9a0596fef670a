from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,16384,2,T4\nn2,8000,16384,2,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{number},1000,1024,1,500\n" for number in range(8)
) + "huge,99000,1024,1,1000\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    path = tmp_path / "pods.csv"
    path.write_text(PODS)
    return path


def test_a_replay_tells_allocation_by_load_and_failures(run: Run, trace: Path):
    done = run("simulate", "--trace", trace, "--tune", "0", "--seed", "1", "--output", "json")
    found = done.json
    assert (done.exit, done.err, found["arrivals"], found["failed"]) == (0, "", 9, 1)
    assert found["podsPerSecond"] > 0
    assert found["final"] == {"cpu": 50.0, "memory": 25.0, "gpu": 100.0}
    assert all(set(each) == {"cpu", "memory", "gpu"} for each in found["allocation"].values())
    assert found["reasons"] == {"Insufficient cpu": 1}
    assert found["run"] == {"trace": str(trace), "seed": 1, "tune": 0.0, "tieBreak": "first"}


def test_the_text_shows_a_table_per_load_and_the_reasons(run: Run, trace: Path):
    lines = run("simulate", "--trace", trace, "--tune", "0").out.splitlines()
    assert lines[1] == "allocation in percent of the cluster, by arrived load"
    assert lines[2].split() == ["load", "cpu", "memory", "gpu", "gpu", "fragmented", "of", "the", "idle", "gpu"]
    without = run("simulate", "--trace", trace, "--tune", "0", "--no-fragmentation").out.splitlines()
    assert without[2].split() == ["load", "cpu", "memory", "gpu"]
    assert any("Insufficient cpu" in line for line in lines)
    assert lines[-1].startswith("9 pods arrived at 2 nodes, 1 failed; ")


def test_a_replay_that_is_too_short_for_the_table_tells_its_end(run: Run, trace: Path):
    (trace.parent / "openb_node_list_gpu_node.csv").write_text(NODES.replace(",2,T4", ",16,T4"))
    done = run("simulate", "--trace", trace, "--tune", "0", "--limit", "1")
    assert done.out.splitlines()[2] == "the replay ended below 10% of load, at cpu 6.25, memory 3.12, gpu 1.56"


def test_a_missing_list_of_nodes_is_asked_for(run: Run, trace: Path):
    (trace.parent / "openb_node_list_gpu_node.csv").unlink()
    for where in (trace, trace.parent):
        done = run("simulate", "--trace", where)
        assert (done.exit, done.err) == (2, (
            f"koord-policy: there is no list of nodes `{trace.parent}/openb_node_list_gpu_node.csv` beside the pods: "
            "name one with `--nodes`\n"
        ))


def test_a_limit_ends_the_replay_early(run: Run, trace: Path):
    assert run("simulate", "--trace", trace, "--limit", "3", "--output", "json").json["arrivals"] == 3


def test_a_faulty_list_is_told_with_its_place(run: Run, trace: Path):
    trace.write_text(PODS.replace("p3,1000", "p3,many"))
    done = run("simulate", "--trace", trace)
    assert done.exit == 3
    assert f"{trace}:5:4: error: `cpu_milli` is `many`" in done.err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--tune", "lots"), "argument --tune: `lots` is not a ratio from 0 to 100"),
    (("--limit", "0"), "argument --limit: `0` is not a whole number above 0"),
    (("--nodes", "gone.csv"), "there is no file `gone.csv`"),
])
def test_usage_errors_name_the_option(run: Run, trace: Path, arguments: tuple[str, ...], message: str):
    done = run("simulate", "--trace", trace, *arguments)
    assert done.exit == 2
    assert message in done.err


def test_a_plugin_that_does_not_exist_cannot_be_enabled(run: Run, trace: Path):
    done = run("simulate", "--trace", trace, "--enable", "FragmentationGradien={typicalPods: []}")
    assert (done.exit, done.err) == (2, (
        "koord-policy: `--enable`: there is no plugin `FragmentationGradien`: did you mean `FragmentationGradient`?\n"
    ))


def test_a_report_is_written_beside_the_same_output(run: Run, trace: Path, tmp_path: Path):
    arguments = ("simulate", "--trace", trace, "--tune", "0", "--output", "json")
    plain, done = run(*arguments), run(*arguments, "--report", tmp_path / "out.html")
    timed = ("seconds", "podsPerSecond")
    assert (done.exit, done.err, {name: value for name, value in done.json.items() if name not in timed}) == (
        0, "", {name: value for name, value in plain.json.items() if name not in timed})
    text = (tmp_path / "out.html").read_text()
    assert text.startswith("<!doctype html>")
    assert f"<h1>Replay of {trace}</h1>" in text


@pytest.mark.parametrize(("name", "message"), [
    ("out.pdf", "`--report {}`: the name must end with .html or .htm"),
    ("gone/out.html", "`--report {}`: there is no directory `{}`"),
])
def test_a_report_that_could_not_be_written_is_told_before_the_replay(
    run: Run, trace: Path, tmp_path: Path, name: str, message: str,
):
    path = tmp_path / name
    done = run("simulate", "--trace", trace, "--report", path)
    assert (done.exit, done.out, done.err) == (2, "", f"koord-policy: {message.format(path, path.parent)}\n")
