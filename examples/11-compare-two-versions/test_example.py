from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.documents import read, read_file, to_plain

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SETS = ("examples/11-compare-two-versions/old", "examples/11-compare-two-versions/new", "--cluster", "examples/cluster")


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)


def test_pods_leave_the_nodes_above_the_new_watermark(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["diff", *SETS, "--output", "json"], builtins) == 0
    found = json.loads(capsys.readouterr().out)["difference"]
    assert {name: count for name, count in found["counts"].items() if count} == {
        "moved": 8, "nodesLost": 2, "nowMisfits": 14, "nowEvicted": 1, "otherBestNode": 59, "totalsChanged": 75,
    }
    assert {(each["old"], each["new"], each["cause"]["rule"]) for each in found["moved"]} == {
        ("memory-02", "general-14", "below-watermark"),
    }
    assert [(each["pod"], each["node"]) for each in found["added"]["evicted"]] == [("shop/web-16", "general-03")]


def test_the_markdown_is_as_shown_and_the_budget_is_exceeded(capsys: pytest.CaptureFixture[str]):
    budgets = ("--max-moved", "10%", "--max-pending", "0", "--max-evicted", "2")
    assert cli.main(["diff", *SETS, "--output", "markdown", *budgets], builtins) == 6
    assert capsys.readouterr().out == (HERE / "pull-request.md").read_text(encoding="utf-8")


def test_the_workflow_compares_the_work_tree_with_the_base_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(HERE / "old", "policies")
    shutil.copy(PROJECT / "examples" / "cluster" / "cluster.yaml", "cluster.yaml")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (
        ("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Begin"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
    ):
        subprocess.run([*git, *words], check=True)
    shutil.copytree(HERE / "new", "policies", dirs_exist_ok=True)
    steps = to_plain(read(read_file(HERE / "github.yaml"))[0])["jobs"]["diff"]["steps"]
    (line,) = (each["run"] for each in steps if each.get("name") == "Compare")
    command = shlex.split(line.replace("${{ github.base_ref }}", "main").partition(" > ")[0])
    assert cli.main(command[1:], builtins) == 6
    shown, want = (
        text.splitlines()[4:] for text in (capsys.readouterr().out, (HERE / "pull-request.md").read_text("utf-8"))
    )
    assert shown == want
