"""The forge's workflows and the pre-commit configuration run what the Makefile and .venv have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[1]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
HOOKS = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def steps(path: Path) -> list[dict[str, object]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job.get("steps", [])]


def targets_of(line: str) -> set[str]:
    return {
        next(word for word in shlex.split(part)[1:] if "=" not in word)
        for part in re.split(r"&&|;|\|", line) if part.strip().startswith("make ")
    }


def test_both_workflows_are_checked():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_the_repository_and_no_more(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == ({"release": {"contents": "write"}} if path.name == "release.yml" else {})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_those_of_the_forge_at_a_version(path: Path):
    used = [str(step["uses"]) for step in steps(path) if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", each)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_of_the_makefile(path: Path):
    used = set().union(*(targets_of(str(step.get("run", ""))) for step in steps(path)))
    assert used == {"ci.yml": {"demo", "check", "lock", "test", "coverage"}, "release.yml": {"release"}}[path.name]
    assert used <= TARGETS


def test_hooks_run_what_is_installed_here():
    [local] = HOOKS
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        first, *_ = words = shlex.split(hook["entry"])
        if first == "make":
            assert set(words[1:]) <= TARGETS
        else:
            assert (PROJECT / first).exists(), f"{first}: run `make check`"


def test_owners_are_named_for_folders_and_files_that_exist():
    lines = (PROJECT / ".github" / "CODEOWNERS").read_text().splitlines()
    owned = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert owned[0] == "*"
    assert [each for each in owned[1:] if each.endswith("/") is not (PROJECT / each.strip("/")).is_dir()
            or not (PROJECT / each.strip("/")).exists()] == []


def test_forms_for_issues_ask_for_something():
    forms = {
        path.name: yaml.safe_load(path.read_text())
        for path in (PROJECT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
    }
    assert set(forms) == {"bug.yml", "feature.yml"}
    for form in forms.values():
        assert {"name", "description", "body"} <= form.keys()
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 2
