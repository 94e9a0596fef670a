from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine import cli
from koordpolicy.engine.descheduler.config import load as read_configuration
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError

FRAMEWORKS = ("scheduler", "qos", "descheduler")


def run(*arguments):
    return cli.main(["new", *map(str, arguments)], builtins)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_policy_is_valid_and_its_tests_pass(framework, tmp_path, capsys):
    assert run(framework, "my-policy", "--out", tmp_path / "made") == 0
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["my-policy.test.yaml", "my-policy.yaml"]
    out = capsys.readouterr().out
    assert f"koord-policy test {tmp_path}/made/my-policy.test.yaml" in out
    assert cli.main(["lint", str(tmp_path / "made")], builtins) == 0
    assert cli.main(
        ["test", str(tmp_path / "made"), "--require-tests", "--min-coverage", "100", "--mutate"], builtins,
    ) == 0


def test_the_schemas_beside_a_new_policy_are_not_read_as_policies(tmp_path, capsys):
    run("scheduler", "my-policy", "--out", tmp_path)
    schemas = tmp_path / ".schemas"
    assert capsys.readouterr().out.endswith(f"koord-policy schema --all --out {schemas}\n")
    assert cli.main(["schema", "--all", "--out", str(schemas)], builtins) == 0
    first = (tmp_path / "my-policy.yaml").read_text().splitlines()[0]
    assert (tmp_path / first.partition("$schema=")[2]).is_file()
    assert cli.main(["lint", str(tmp_path)], builtins) == 0


@pytest.mark.parametrize("name", ["null", "123", "1e3", "0x1f"])
def test_a_name_that_yaml_would_take_for_something_else_stays_a_name(name, tmp_path):
    assert run("scheduler", name, "--out", tmp_path) == 0
    assert cli.main(["test", str(tmp_path), "--require-tests"], builtins) == 0


def test_a_file_is_no_place_for_a_new_policy(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run("scheduler", "mine", "--out", tmp_path / "file") == 2
    assert capsys.readouterr().err == (
        f"koord-policy: nothing can be written to `{tmp_path}/file`: it is not a directory\n")


def test_a_directory_that_may_not_be_read_is_no_place_for_a_new_policy(tmp_path, capsys, monkeypatch):
    there = tmp_path / "theirs"
    allowed = os.stat

    def stat(path: object, *arguments: object, **options: object):
        if str(path).startswith(str(there)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return allowed(path, *arguments, **options)

    def mkdir(path: Path, *_: object, **__: object):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert run("scheduler", "mine", "--out", there) == 2
    assert capsys.readouterr().err == (
        f"koord-policy: nothing can be written to `{tmp_path}/theirs`: Permission denied\n")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_python_plugin_passes_its_own_tests_and_can_be_offered(framework, tmp_path):
    assert run(framework, "my-plugin", "--python", "--out", tmp_path) == 0
    folder = tmp_path / "my-plugin"
    configuration = ["descheduler.yaml"] if framework == "descheduler" else []
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", *configuration, "my_plugin.py", "pyproject.toml", "test_my_plugin.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder),
            str(folder),
        ],
        env=environment, capture_output=True, text=True, check=False, cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_of_a_new_descheduler_plugin_runs_it(tmp_path, capsys):
    assert run("descheduler", "my-plugin", "--python", "--out", tmp_path) == 0
    folder = tmp_path / "my-plugin"
    assert capsys.readouterr().out.endswith(
        f"once installed, it runs where a configuration names it, as {folder}/descheduler.yaml does\n")
    module = run_path(str(folder / "my_plugin.py"))

    def built():
        profiles = read_configuration(folder / "descheduler.yaml").profiles
        (profile,) = build_profiles(profiles, Registry.of([*PLUGINS, *module["PLUGINS"]], generation=1), dry_run=True)
        return [each.name for each in profile.deschedule]

    assert built() == ["MyPlugin"]
    text = (folder / "descheduler.yaml").read_text()
    (folder / "descheduler.yaml").write_text(text.replace("restarts: 50", "restart: 50"))
    with pytest.raises(PolicyError) as caught:
        built()
    assert caught.value.problems[0].render().startswith(
        f"{folder}/descheduler.yaml:8:11: error: profile `default`: initializing plugin `MyPlugin`: "
        "unknown field `restart`; there are restarts, namespaces")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_written_over(framework, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("mine")
    assert run(framework, "mine", "--out", tmp_path) == 2
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine.yaml", "mine")]
    assert "exists already: choose another name" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "options", "message"), [
    ("Busy", (), "`Busy` cannot be a plugin's name: write at most 63 small letters"),
    ("a" * 64, (), "cannot be a plugin's name"),
    ("../up", (), "`../up` cannot be a plugin's name"),
    ("1st", ("--python",), "`1st` cannot be the name of a Python module"),
    ("import", ("--python",), "`import` cannot be the name of a Python module"),
    ("none", ("--python",), "`none` cannot be the name of a Python module"),
    ("json", ("--python",), "`json` cannot be the name of a Python module"),
    ("numpy", ("--python",), "`numpy` cannot be the name of a Python module"),
    ("framework", ("--python",), "`framework` cannot be the name of a Python module"),
    ("node-name", ("--python",), "`NodeName` is a built-in plugin: choose another name"),
])
def test_a_name_that_cannot_be_is_refused(name, options, message, tmp_path, capsys):
    assert run("scheduler", name, *options, "--out", tmp_path) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
