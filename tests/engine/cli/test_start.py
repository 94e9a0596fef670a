from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from koordpolicy.engine.cli import COMMANDS

from .conftest import Run

HEAVY = (
    "aiohttp", "celpy", "jsonschema", "kubernetes", "lsprotocol", "numpy", "prometheus_client", "pygls", "rich",
    "shtab", "watchdog", "yaml",
)


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom koordpolicy.__main__ import main\nsys.argv = ['koord-policy', '--help']\n"
        f"try:\n    main()\nexcept SystemExit:\n    print('loaded:', [each for each in {HEAVY} if each in "
        "sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
    assert done.stderr == ""


def test_checking_valid_documents_imports_nothing_that_decides(policies: Path):
    program = (
        "import sys\nfrom koordpolicy.__main__ import main\n"
        f"sys.argv = ['koord-policy', 'lint', {str(policies)!r}]\nmain()\n"
        f"print('loaded:', [each for each in {HEAVY} if each in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0 errors, 0 warnings in 1 document of 1 file\nloaded: ['yaml']\n"


def test_help_names_every_command_and_every_exit_code(run: Run):
    done = run("--help")
    assert done.exit == 0
    assert all(f"\n    {command} " in done.out for command in COMMANDS)
    assert "0 ok, 1 unexpected, 2 usage, 3 policies invalid, 4 tests failed, 5 decision not possible" in done.out


def test_every_command_has_help_with_examples(run: Run):
    for command in COMMANDS:
        done = run(command, "--help")
        assert done.exit == 0
        assert f"usage: koord-policy {command}" in done.out
        assert f"\nexamples:\n  koord-policy {command}" in done.out
        assert "Traceback" not in done.err


def test_an_unknown_command_is_a_usage_error(run: Run):
    done = run("lnt")
    assert (done.exit, done.err.splitlines()[-1]) == (
        2, "koord-policy: error: there is no command `lnt`: did you mean `lint`?")
    assert run("frobnicate").err.splitlines()[-1] == (
        "koord-policy: error: there is no command `frobnicate`: `koord-policy --help` lists them")


def test_an_unknown_option_is_told_with_the_usage_of_its_command(run: Run):
    done = run("explain", "web-1", "--clutser=c.yaml")
    assert done.exit == 2
    assert done.err.startswith("usage: koord-policy explain ")
    assert done.err.splitlines()[-1] == (
        "koord-policy explain: error: there is no option `--clutser=c.yaml`: did you mean `--cluster`?")
    assert [run(command, "--policies", "policies").err.splitlines()[-1] for command in ("audit", "diff", "lint")] == [
        f"koord-policy {command}: error: there is no option `--policies`: policies are named without an option"
        for command in ("audit", "diff", "lint")
    ]
    assert run("plugins", "policies").err.splitlines()[-1] == (
        "koord-policy plugins: error: `policies` is one argument too many")
    assert run("plugins", "--role", "policies").err.splitlines()[-1] == (
        "koord-policy plugins: error: `--role` takes no value: `policies` is one argument too many")
    assert [run("eval", *words).err.splitlines()[-1] for words in (("-(1)",), ("--node", "a"), ("-o", "text"))] == [
        ("koord-policy eval: error: the following arguments are required: EXPR (`-(1)` begins as options do: write it "
         "after `--`)"), *["koord-policy eval: error: the following arguments are required: EXPR"] * 2]
    assert run("--vesrion").err.splitlines()[-1] == (
        "koord-policy: error: there is no option `--vesrion`: did you mean `--version`?")


@pytest.mark.parametrize(("words", "usage"), [
    ("lint --bogus", "koord-policy lint [OPTIONS] [PATH...]"),
    ("qos", "koord-policy qos [OPTIONS] --replay FILE"),
    ("explain a b --cluster c", "koord-policy explain [OPTIONS] [POD]"),
    ("scheduler --seed x", "koord-policy scheduler [OPTIONS]"),
])
def test_a_usage_error_has_one_line_of_usage_with_a_pointer_to_the_help(run: Run, words: str, usage: str):
    done = run(*words.split())
    command = " ".join(usage.split()[:2])
    first, second = done.err.splitlines()
    assert (done.exit, first) == (2, f"usage: {usage} (`{command} --help` explains the options)")
    assert second.startswith(f"{command}: error: ")


def test_without_a_command_the_help_is_told_on_standard_error(run: Run):
    done = run()
    assert (done.exit, done.out) == (2, "")
    assert done.err.startswith(run("--help").out)
    last = done.err.splitlines()[-1]
    assert last == "koord-policy: error: which command? `koord-policy COMMAND --help` describes one"


@pytest.mark.parametrize("word", ["version", "help"])
def test_an_option_without_its_dashes_is_named(run: Run, word: str):
    done = run(word)
    assert (done.exit, done.err.splitlines()[-1]) == (
        2, f"koord-policy: error: there is no command `{word}`: did you mean `--{word}`?")


@pytest.mark.parametrize(("words", "wanted"), [
    (("new", "schedular", "x"), "argument framework: there is no `schedular`: did you mean `scheduler`?"),
    (("completion", "tcsh2"), "argument SHELL: there is no `tcsh2`: write one of `bash`, `zsh`, `fish`"),
])
def test_a_value_that_an_option_does_not_have_is_answered_with_a_similar_one_or_with_all(
    run: Run, words: tuple[str, ...], wanted: str,
):
    done = run(*words)
    assert (done.exit, done.err.splitlines()[-1]) == (2, f"koord-policy {words[0]}: error: {wanted}")
