from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.output_schemas import read_output

from .conftest import Run, metric, node, objects, pod, write_dump

PACK = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: fullest}
spec:
  score:
  - {name: fullest, expression: "requested.cpu * 100 / allocatable.cpu"}
"""


@pytest.fixture
def recording(run: Run, dump: Path, policies: Path, tmp_path: Path) -> Path:
    path = tmp_path / "flight"
    done = run("scheduler", "--cluster", dump, "--policies", policies, "--record", path)
    assert (done.exit, done.err) == (0, "")
    return path


def test_the_recorded_policies_place_all_as_recorded(run: Run, recording: Path, policies: Path):
    done = run("replay", "--recorded", recording, "--policies", policies, "--output", "json")
    assert (done.exit, done.err) == (0, "")
    found = read_output("replay", done.out)
    assert found["counts"] == {"same": 1, "elsewhere": 0, "later": 0, "sooner": 0, "never": 0, "onlyReplayed": 0,
                               "neither": 2}
    assert found["policies"]["recorded"] == [found["policies"]["replayed"]]
    assert found["use"]["recorded"] == found["use"]["replayed"]
    assert found["run"] == {"recorded": str(recording), "tieBreak": "first", "seed": 0}


def test_other_policies_show_what_would_differ(run: Run, recording: Path, tmp_path: Path):
    (tmp_path / "pack.yaml").write_text(PACK)
    done = run("replay", "--recorded", recording, "--policies", tmp_path / "pack.yaml", "--output", "json")
    found = read_output("replay", done.out)
    assert [(each["pod"], each["changes"], each["recorded"] and each["recorded"]["node"], each["replayed"]["node"])
            for each in found["differences"]] == [("shop/web-2", ["onlyReplayed"], None, "hot")]
    text = run("replay", "--recorded", recording, "--policies", tmp_path / "pack.yaml").out
    assert "under other policies; 3 recorded and 3 replayed decisions" in text


def test_the_text_has_waits_use_and_pods_that_differ(run: Run, recording: Path, policies: Path):
    lines = run("replay", "--recorded", recording, "--policies", policies).out.splitlines()
    assert lines[1] == "waiting, from arrival to the first node"
    assert lines[3].split()[:2] == ["recorded", "1"]
    assert "requested, in percent of what is allocatable, and pods" in lines
    assert "   1  placed on the same node at the same time" in lines
    moment = "2026-01-02T12:00:00Z"
    assert lines[-1].startswith(f"3 pods from {moment} to {moment} under the recorded policies; ")


READS_VOLUMES = PACK.replace(
    "requested.cpu * 100 / allocatable.cpu", "has(pod.spec.volumes) && size(pod.spec.volumes) > 3 ? 1 : 0")


def test_a_policy_that_reads_what_was_not_recorded_is_refused(run: Run, dump: Path, recording: Path, tmp_path: Path):
    policy = tmp_path / "volumes.yaml"
    policy.write_text(READS_VOLUMES)
    refused = run("replay", "--recorded", recording, "--policies", policy)
    assert refused.exit == 3
    assert "the recording does not contain Pod.spec.volumes (read by `fullest`)" in refused.err
    assert "record with `--record-fields Pod.spec.volumes`, or with `--record-fields all`" in refused.err
    for number, fields in enumerate(("Pod.spec.volumes", "all", "Pod")):
        wider = tmp_path / f"wider-{number}"
        assert run("scheduler", "--cluster", dump, "--record", wider, "--record-fields", fields).exit == 0
        assert run("replay", "--recorded", wider, "--policies", policy).exit == 0


def test_exactly_one_of_trace_and_recording_is_replayed(run: Run, recording: Path):
    message = ("koord-policy: replay what? name a trace with `--trace`, or a flight recording with `--recorded`\n")
    assert (run("replay").err, run("replay", "--trace", "x", "--recorded", recording).err) == (
        message, "koord-policy: `--trace` and `--recorded` exclude each other: give one\n")
    done = run("replay", "--recorded", recording, "--stretch", "2")
    assert (done.exit, done.err) == (2, "koord-policy: `--stretch` goes with `--trace`\n")
    done = run("replay", "--trace", "examples/08-replay-a-trace", "--config", "x")
    assert (done.exit, done.err) == (
        2, "koord-policy: `--config` goes with `--recorded`: for a trace there is `--enable`\n")


def test_a_directory_without_segments_is_no_recording(run: Run, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = run("replay", "--recorded", tmp_path / "empty")
    assert done.exit == 3
    assert "there is no segment of a flight recording in" in done.err
    (tmp_path / "empty" / "20260101T000000.000000000Z.segment").write_bytes(b"\xff\x00garbage")
    done = run("replay", "--recorded", tmp_path / "empty")
    assert done.exit == 3
    assert "no segment of the recording can be used: `20260101T000000.000000000Z.segment`: it is no segment" in done.err


def test_the_series_is_written_as_csv(run: Run, tmp_path: Path):
    dump = write_dump(tmp_path / "dump.json", [node("a"), metric("a", "1"), pod("p", "1")])
    run("scheduler", "--cluster", dump, "--record", tmp_path / "flight")
    path = tmp_path / "use.csv"
    assert run("replay", "--recorded", tmp_path / "flight", "--series", path).exit == 0
    assert path.read_text() == (  # of a dump, whose time stands still
        "start,end,recorded_cpu,recorded_memory,recorded_gpu,recorded_running,recorded_pending,"
        "replayed_cpu,replayed_memory,replayed_gpu,replayed_running,replayed_pending\n")


def test_the_decision_log_has_a_line_per_decision(run: Run, dump: Path, policies: Path, tmp_path: Path):
    path = tmp_path / "decisions.jsonl"
    assert run("scheduler", "--cluster", dump, "--policies", policies, "--decision-log", path).exit == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line["pod"] for line in lines] == ["shop/web-3", "shop/web-2", "shop/web-4"]
    placed, refused = next(line for line in lines if line["node"]), lines[-1]
    assert placed.keys() - {"next", "score"} == {
        "time", "pod", "uid", "profile", "generation", "hash", "node", "nodes", "passed", "durationMs"}
    assert refused["node"] is None
    assert refused["refusals"][0].keys() == {"plugin", "rule", "reason", "nodes"}
    assert (placed["time"], placed["generation"], len(placed["hash"])) == ("2026-01-02T12:00:00.000000Z", 1, 16)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--record-fields", "all"], "`--record-fields` goes with `--record`"),
    (["--decision-log-sample", "0.5"], "`--decision-log-sample` goes with `--decision-log`"),
    (["--record", "{tmp}/flight", "--record-fields", "pod.spec"],
     "`--record-fields`: `pod.spec` is neither `all` nor a kind such as `Namespace` nor a field such as `Pod"),
    (["--record", "{tmp}/flight", "--record-fields", "Namespace,Pod.spec.volumez.name"],
     "`--record-fields`: there is no field `Pod.spec.volumez`: did you mean `volumes`?\n"),
    (["--record", "{tmp}/flight", "--record-fields", "Nodes"],
     "`--record-fields`: there is no kind `Nodes`: did you mean `Node`?\n"),
    (["--record", "{tmp}/file"], "cannot record into `{tmp}/file`: "),
    (["--record", "{tmp}/flight", "--record-size", "100Mi"],
     "`--record-size` must hold two segments at least: a segment is removed as a whole"),
    (["--decision-log", "{tmp}/link"], "cannot write `{tmp}/link`: it is a symbolic link"),
    (["--decision-log", "{tmp}/gone/log"], "cannot write `{tmp}/gone/log`: no such file or directory"),
])
def test_usage_errors_name_the_option(run: Run, dump: Path, tmp_path: Path, arguments: list[str], message: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    done = run("scheduler", "--cluster", dump, *(each.format(tmp=tmp_path) for each in arguments))
    assert done.exit == 2
    assert done.err.startswith(f"koord-policy: {message.format(tmp=tmp_path)}"), done.err


def test_an_extender_decides_nothing_that_could_be_recorded(run: Run, tmp_path: Path):
    done = run("scheduler", "--extender", "--enable", "GpuShare", "--record", tmp_path)
    assert (done.exit, done.err) == (
        2, "koord-policy: `--record` means nothing with `--extender`: kube-scheduler decides\n")


def test_the_recording_of_objects_with_odd_names_is_escaped(run: Run, tmp_path: Path):
    odd = pod("p", "1", schedulerName="\x1b[31m::error")
    dump = write_dump(tmp_path / "dump.json", [*objects(), odd])
    assert run("scheduler", "--cluster", dump, "--record", tmp_path / "flight").exit == 0
    done = run("replay", "--recorded", tmp_path / "flight")
    assert done.exit == 0
    assert "\x1b" not in done.out + done.err


def test_a_sweep_replays_recordings_under_several_policies(
    run: Run, recording: Path, policies: Path, tmp_path: Path,
):
    (tmp_path / "pack.yaml").write_text(PACK)
    done = run("sweep", f"policy={policies},{tmp_path / 'pack.yaml'}", "--recorded", recording, "--processes", "1",
               "--output", "json")
    assert (done.exit, done.err) == (0, "")
    found = read_output("sweep", done.out)
    assert [(each["recording"], each["figures"]["same"], each["figures"]["only_replayed"])
            for each in found["experiments"]] == [(".", 1, 0), (".", 1, 1)]
    text = run("sweep", f"policy={policies}", "--recorded", recording, "--processes", "1", "--out", tmp_path / "r.csv")
    assert text.exit == 0
    assert "only_replayed" in (tmp_path / "r.csv").read_text()
