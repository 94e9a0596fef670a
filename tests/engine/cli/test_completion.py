from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from koordpolicy.engine import cli
from koordpolicy.engine.cli import COMMANDS
from koordpolicy.engine.cli.completion import SHELLS, Completions, candidates, kubectl_lines, script

from .conftest import Run


def words(*line: str) -> list[str]:
    return [word for word, _ in candidates(line).words]


def test_commands_and_options_are_completed_with_their_descriptions():
    assert candidates(["f"]) == Completions((("fmt", COMMANDS["fmt"]),))
    assert words("") == list(COMMANDS)
    assert words("--v") == ["--version"]
    assert words("hash", "--o") == ["--output"]
    assert words("lint", "--strict", "--output", "json", "--s") == ["--settings", "--stdin-name"]
    assert words("lint", "--config", "a.yaml", "--conf") == ["--configmap", "--config"]
    assert words("nothing", "") == []


def test_values_are_completed():
    assert words("lint", "--output", "j") == ["json", "junit"]
    assert words("lint", "-o", "s") == ["sarif"]
    assert words("lint", "--output=te") == ["--output=text"]
    assert candidates(["lint", "--config", "a"]) == candidates(["lint", "a"]) == Completions(files=True)
    assert candidates(["lint", "--config=a"]) == Completions(files=True)
    assert candidates(["hash", "policies", ""]) == Completions()
    assert words("completion", "") == list(SHELLS)
    assert candidates(["lint", "--timeout", ""]) == Completions()
    assert words("schema", "Sched") == ["SchedulerPlugin"]
    assert words("schema", "--output-of", "e") == ["eval", "explain"]


def test_kubectl_reads_a_word_a_line_and_a_directive():
    assert kubectl_lines(["completion", "b"]) == "bash\n:4\n"
    assert kubectl_lines(["hash", "pol"]) == ":0\n"
    assert kubectl_lines(["fmt", "--ch"]) == (
        "--check\twrite nothing, list the files that have another layout, and end with 6 if there are any\n:4\n"
    )
    assert kubectl_lines([]).startswith("new\tcreate a policy")


def test_a_script_has_every_command_with_its_options(run: Run):
    done = run("completion", "zsh")
    assert (done.exit, done.err) == (0, "")
    assert [name for name in (*COMMANDS, "output-of", "evicted") if name not in done.out] == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_does_not_say_where_to_store_it(shell: str):
    assert "Copy this to" not in script(shell)


def test_bash_completes_commands_options_values_and_files(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    harness = script("bash") + """
complete_line() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _shtab_koord_policy "$1" "${@: -1}" "${@: -2:1}"
    echo "${COMPREPLY[*]}"
}
complete_line koord-policy li
complete_line koord-policy lint --chang
complete_line koord-policy lint --output j
complete_line koord-policy lint pol
complete_line koord-policy completion ''
complete_line koord-policy new --out po
"""
    done = subprocess.run(["bash", "--norc"], input=harness, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == [
        "lint", "--changed-since", "json junit", "policies", "bash zsh fish", "policies",
    ]
    assert done.stderr == ""


def test_the_plugin_of_kubectl_says_its_own_name(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        cli.main(["lnt"], prog="kubectl koord-policy")
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "usage: kubectl koord-policy [OPTIONS] COMMAND (`kubectl koord-policy --help` explains the options)\n"
        "kubectl koord-policy: error: there is no command `lnt`: did you mean `lint`?\n"
    )
