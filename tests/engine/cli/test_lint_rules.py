"""The linter's options, from the command line."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run

HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
    "metadata: {name: NAME, annotations: {policy.koordinator.sh/description: About.}}\n"
)
UNUSED = (
    HEAD + "spec:\n  params: {most: 5}   # kept for later\n  filter:\n  - {name: few, expression: nodeInfo.pods < 9}\n"
)
CLEAN = HEAD + "spec:\n  filter:\n  - {name: few, expression: nodeInfo.pods < 9}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text.replace("NAME", path.stem), newline="")
    return path


def test_a_warning_is_told_and_passes_and_is_an_error_where_that_is_asked_for(run: Run, here: Path):
    write(here / "a.yaml", UNUSED)
    done = run("lint", "a.yaml")
    assert (done.exit, done.out) == (0, (
        "a.yaml:5:12: warning: nothing reads the param `most` [KP002]\n 5 |   params: {most: 5}   # kept for later\n"
        "   |            ^^^^ remove it\n\n0 errors, 1 warning in 1 document of 1 file\n"
        "1 finding can be fixed with --fix\n"
    ))
    strict = run("lint", "a.yaml", "--strict")
    assert strict.exit == 3
    assert strict.out.splitlines()[-2] == "1 error, 0 warnings in 1 document of 1 file"


def test_settings_beside_the_policies_are_read_and_are_no_policy(run: Run, here: Path):
    write(here / "a.yaml", UNUSED)
    (here / "koord-policy.yaml").write_text("lint: {rules: {unused-param: error}}")
    assert run("lint", ".").exit == 3
    (here / "other.yml").write_text("lint: {rules: {unused-param: off}}")
    assert run("lint", "a.yaml", "--settings", "other.yml").out == "0 errors, 0 warnings in 1 document of 1 file\n"
    (here / "koord-policy.yaml").write_text("lint: {rules: {unused-params: error}}")
    done = run("lint", ".")
    assert done.exit == 3
    assert "koord-policy.yaml:1:16: error: there is no rule `unused-params`" in done.err
    assert run("lint", ".", "--settings", "gone.yml").exit == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_fix_mends_the_file_and_keeps_its_line_ends(run: Run, here: Path, end: str):
    path = write(here / "a.yaml", UNUSED.replace("\n", end))
    done = run("lint", "a.yaml", "--fix")
    assert (done.exit, done.out, done.err) == (
        0, "0 errors, 0 warnings in 1 document of 1 file\n", "fixed 1 finding\n",
    )
    assert path.read_bytes().decode() == CLEAN.replace("NAME", "a").replace("\n", end)


def test_fix_leaves_what_needs_no_mending_untouched(run: Run, here: Path):
    path = write(here / "a.yaml", CLEAN)
    before = path.stat().st_mtime_ns
    assert run("lint", "a.yaml", "--fix").err == "fixed 0 findings\n"
    assert path.stat().st_mtime_ns == before


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words], check=True)


def test_only_what_changed_since_a_commit_is_told(run: Run, here: Path):
    write(here / "old.yaml", UNUSED)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")
    write(here / "new.yaml", UNUSED)
    done = run("lint", ".", "--changed-since", "HEAD", "--output", "json")
    assert [(each["file"], each["code"]) for each in done.json["problems"]] == [("new.yaml", "KP002")]
    assert run("lint", ".", "--changed-since", "nowhere").err == "koord-policy: git has no commit `nowhere`\n"
    assert run("lint", ".", "--changed-since", "--output=x").exit == 2


def test_without_a_repository_that_is_said(run: Run, here: Path):
    write(here / "old.yaml", UNUSED)
    done = run("lint", ".", "--changed-since", "HEAD")
    assert done.exit == 2
    assert "not a git repository" in done.err


def test_an_editor_gets_diagnostics_of_what_is_not_saved(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(UNUSED.replace("NAME", "a").encode())))
    done = run("lint", "-", "--stdin-name", "a.yaml", "--output", "lsp-json")
    assert json.loads(done.out) == [{"uri": (here / "a.yaml").as_uri(), "diagnostics": [{
        "range": {"start": {"line": 4, "character": 11}, "end": {"line": 4, "character": 15}}, "severity": 2,
        "code": "KP002", "source": "koord-policy", "message": "nothing reads the param `most` (remove it)",
        "data": {"rule": "unused-param", "page": "docs/lint.md", "fixable": True}, "tags": [1],
    }]}]


@pytest.mark.parametrize("text", ["words\n", "", "# none\n", "kind: ConfigMap\ndata: {}\n"])
def test_a_file_without_a_configuration_is_refused(run: Run, here: Path, text: str):
    write(here / "a.yaml", CLEAN)
    (here / "plain.yaml").write_text(text)
    done = run("lint", "a.yaml", "--config", "plain.yaml")
    assert done.exit == 3
    assert done.out.startswith("plain.yaml:1:1: error: `plain.yaml` holds no configuration\n")


def test_the_settings_of_koordinator_are_a_configuration(run: Run, here: Path):
    write(here / "a.yaml", CLEAN)
    (here / "slo.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slo-controller-config}\n"
        "data: {resource-threshold-config: '{\"clusterStrategy\": {\"memoryEvictThresholdPercent\": 1}}'}\n")
    done = run("lint", "a.yaml", "--config", "slo.yaml")
    assert done.exit == 0
    assert re.findall(r"(error|warning): (.*)", done.out) == [("warning", (
        "`memoryEvictThresholdPercent` of `resource-threshold-config` is 1, and percent are expected: that is 1 of 100 "
        "[KP045]"))]


def test_a_component_configuration_is_looked_at_beside_the_policies(run: Run, here: Path):
    write(here / "a.yaml", CLEAN)
    (here / "config.yaml").write_text(
        "kind: DeschedulerConfiguration\nprofiles:\n- {name: p, plugins: {balance: {enabled: [{name: a}, {name: "
        "LowNodeLoad}]}}}\n",
    )
    done = run("lint", "a.yaml", "--config", "config.yaml")
    assert done.exit == 3
    assert "the profile `p` names the plugin `a` under `balance.enabled`, which does not exist [KP036]" in done.out
    assert run("lint", "a.yaml", "--config", "gone.yaml").exit == 2


def test_the_rules_are_listed(run: Run):
    done = run("lint", "--rules")
    assert done.exit == 0
    assert "KP001  unused-variable          warning  --fix\n" in done.out


def test_without_a_path_the_usage_is_told(run: Run):
    assert run("lint").exit == 2


def test_a_fix_is_promised_only_where_it_is_written(run: Run, here: Path):
    spec = {"filter": [{"name": "it", "expression": 'node.metadata.labels["pool"] == "a"'}]}
    about = {"name": "a", "annotations": {"policy.koordinator.sh/description": "About."}}
    document = {
        "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": about, "spec": spec,
    }
    (here / "a.json").write_text(json.dumps(document))
    folded = HEAD + "spec:\n  filter:\n  - name: it\n    expression: >-\n"
    write(here / "b.yaml", folded + "      node.metadata\n        .labels['pool'] == 'a'\n")
    write(here / "c.yaml", folded + "      node.metadata.labels['pool'] == 'a'\n")
    before = run("lint", ".")
    assert before.out.splitlines()[-1] == "2 findings can be fixed with --fix"
    done = run("lint", ".", "--fix")
    assert done.err == "fixed 2 findings\n"
    assert done.out.splitlines()[-1] == "0 errors, 1 warning in 3 documents of 3 files"
    mended = json.loads((here / "a.json").read_text())["spec"]["filter"][0]["expression"]
    assert mended == """node.metadata.?labels[?"pool"].orValue('') == "a\""""
