"""The command lines of the workflow, the job and the hook, run here as they stand there."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.documents import read, read_file, to_plain

HERE = Path(__file__).parent
HOOKS = HERE.parents[1] / ".pre-commit-hooks.yaml"


def plain(path: Path) -> object:
    return to_plain(read(read_file(path))[0])


def lines_of(value: object) -> list[str]:
    if isinstance(value, dict):
        return [line for each in value.values() for line in lines_of(each)]
    if isinstance(value, list):
        return [line for each in value for line in lines_of(each)]
    return [value] if isinstance(value, str) and value.startswith("koord-policy ") else []


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(HERE, tmp_path / "repository", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.chdir(tmp_path / "repository")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "Begin")):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
    return Path.cwd()


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    command = line.partition(" > ")[0].partition(" || ")[0].replace("${{ github.base_ref }}", "main")
    code = cli.main(shlex.split(command)[1:], builtins)
    return code, capsys.readouterr().out


@pytest.mark.parametrize("file", ["github.yaml", "gitlab.yaml"])
def test_the_policies_pass_every_line_of_the_job(repository: Path, capsys: pytest.CaptureFixture[str], file: str):
    lines = lines_of(plain(HERE / file))
    assert lines
    assert [run(line, capsys)[0] for line in lines] == [0] * len(lines)


@pytest.mark.parametrize("file", ["github.yaml", "gitlab.yaml"])
def test_a_mistake_ends_the_job_and_stands_in_every_report(
    repository: Path, capsys: pytest.CaptureFixture[str], file: str,
):
    hot = repository / "policies" / "keep-off-hot-nodes.yaml"
    hot.write_text(hot.read_text().replace("65", "85"))
    reports = [run(line, capsys) for line in lines_of(plain(HERE / file))]
    assert all(code == 3 and "KP030" in out and "hot-nodes.yaml" in out for code, out in reports)
    for _, out in reports:
        if out.startswith(("{", "[")):
            json.loads(out)
        elif out.startswith("<"):
            ET.fromstring(out)


def test_the_readme_shows_what_is_told(repository: Path, capsys: pytest.CaptureFixture[str]):
    hot = repository / "policies" / "keep-off-hot-nodes.yaml"
    hot.write_text(hot.read_text().replace("65", "85"))
    _, out = run("koord-policy lint policies --strict", capsys)
    assert f"    {out.splitlines()[0]}\n" in (HERE / "README.md").read_text()


def test_the_hooks_take_the_files_that_they_are_given(repository: Path, capsys: pytest.CaptureFixture[str]):
    hooks = plain(HOOKS)
    files = sorted(str(path.relative_to(repository)) for path in (repository / "policies").iterdir())
    for hook in hooks:
        assert run(" ".join((hook["entry"], *hook.get("args", ()), *files)), capsys)[0] == 0
    used = plain(HERE / "pre-commit.yaml")["repos"][0]["hooks"]
    assert [each["id"] for each in used] == [hook["id"] for hook in hooks]
