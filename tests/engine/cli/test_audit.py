from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run, metric, node, pod, write_dump

POLICIES = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: never}
spec:
  match: {pods: {namespaces: [shp]}}
  filter: [{name: rule, expression: "false", message: no}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: cool}
spec:
  filter: [{name: below, expression: "!nodeInfo.measured || usage.cpu * 100 / allocatable.cpu < 65", message: hot}]
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return policies of which one matches nothing, and a cluster."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(POLICIES, encoding="utf-8")
    return tmp_path / "policies", write_dump(tmp_path / "cluster.json", [
        node("cool"), node("hot"), metric("cool", "1"), metric("hot", "3"), pod("web-1", "1", "cool"),
        pod("web-2", "1"),
    ])


def test_a_reader_of_tables_that_stops_early_is_told_like_the_signal_and_in_silence(files: tuple[Path, Path]):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "koordpolicy", "audit", files[0], "--cluster", files[1]],
                          stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_findings_and_what_each_policy_is_about_are_printed(run: Run, files: tuple[Path, Path]):
    done = run("audit", files[0], "--cluster", files[1])
    assert (done.exit, done.err) == (0, "")
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        "", "warnings", "policy finding what was found",
        "never matches-nothing `match.pods` takes none of 2 pods", "",
        "what each policy is about",
        "policy framework pods nodes rules: evaluated, refused, failed (pairs of a pod and a node)",
        "cool scheduler 2 of 2 2 of 2 below 4 2 0", "never scheduler 0 of 2 2 of 2", "",
        "1 warning and 0 notes about 2 policies over 2 nodes and 2 pods",
    ]


def test_the_json_holds_findings_and_policies(run: Run, files: tuple[Path, Path]):
    found = run("audit", files[0], "--cluster", files[1], "--output", "json").json
    assert found["findings"] == [{
        "level": "warning", "finding": "matches-nothing", "message": "`match.pods` takes none of 2 pods",
        "policy": "never",
        "framework": "scheduler", "origin": f"{files[0]}/p.yaml:3", "examples": [],
    }]
    assert (found["nodes"], found["pods"], [each["policy"] for each in found["policies"]]) == (2, 2, ["cool", "never"])


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 6)])
def test_warnings_end_with_six_only_where_that_is_asked_for(
    run: Run, files: tuple[Path, Path], options: tuple[str, ...], code: int,
):
    assert run("audit", files[0], "--cluster", files[1], *options).exit == code


def test_strict_is_content_with_policies_that_do_their_work(run: Run, files: tuple[Path, Path]):
    (files[0] / "p.yaml").write_text(POLICIES.partition("---\n")[2], encoding="utf-8")
    assert run("audit", files[0], "--cluster", files[1], "--strict").exit == 0


def test_the_moment_decides_whether_metrics_count(run: Run, files: tuple[Path, Path]):
    done = run("audit", files[0], "--cluster", files[1], "--now", "2026-01-02T13:00:00Z", "--output", "json")
    assert [
        (each["finding"], each["message"], each["examples"]) for each in done.json["findings"] if "policy" not in each
    ] == [
        (
            "expired-metrics", "the metric of 2 nodes of 2 is expired, the oldest of 3,600 s; read by `cool`",
            ["cool", "hot"],
        ),
    ]


def test_what_a_cluster_says_does_not_reach_the_terminal_raw(run: Run, files: tuple[Path, Path], tmp_path: Path):
    (files[0] / "p.yaml").write_text(POLICIES.replace("namespaces: [shp]", "namespaces: [shop]"), encoding="utf-8")
    dump = write_dump(tmp_path / "evil.json", [node("cool"), pod("\x1b[31m\u202eevil", "1"), pod("a\x00b", "1")])
    done = run("audit", files[0], "--cluster", dump)
    assert done.exit == 0
    assert not {"\x1b", "\u202e", "\x00"} & {*done.out}


@pytest.mark.parametrize(("options", "told"), [
    (("--few", "101"), "`101` is not a percentage from 0 to 100"), (("--few", "nan"), "`nan` is not a percentage"),
    (("--few", "few"), "`few` is not a percentage"), (("--now", "noon"), "`noon` is not a time"),
])
def test_bad_options_are_usage_errors(run: Run, files: tuple[Path, Path], options: tuple[str, ...], told: str):
    done = run("audit", files[0], "--cluster", files[1], *options)
    assert (done.exit, done.out) == (2, "")
    assert told in done.err


def test_policies_that_do_not_load_are_not_audited(run: Run, files: tuple[Path, Path]):
    (files[0] / "bad.yaml").write_text("a: [", encoding="utf-8")
    done = run("audit", files[0], "--cluster", files[1])
    assert (done.exit, done.out) == (3, "")


def test_params_alone_are_nothing_to_audit(run: Run, files: tuple[Path, Path]):
    (files[0] / "p.yaml").write_text(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\nmetadata: {name: p}\nspec: {params: {a: 1}}\n",
        encoding="utf-8",
    )
    done = run("audit", files[0], "--cluster", files[1])
    assert (done.exit, done.out) == (3, "")
    assert done.err.endswith("nothing to audit\n")


def test_no_shipped_policy_fails_in_the_shipped_cluster(run: Run):
    found = run("audit", "policies", "--cluster", "examples/cluster", "--output", "json").json
    assert [each for each in found["findings"] if each["finding"] == "fails"] == []
