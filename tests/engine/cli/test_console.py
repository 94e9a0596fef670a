"""`console`: what it refuses before it listens."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import console

from .conftest import Run


@pytest.mark.parametrize(("arguments", "message"), [
    (("--bind", "0.0.0.0:0"), "`--bind 0.0.0.0` lets other machines in: name a file of tokens with `--tokens`"),
    (("--bind", "console.example.org:0"), "`--bind console.example.org` lets other machines in"),
    (("--tls-cert", "README.md"), "`--tls-cert` and `--tls-key` go together"),
    (("--view-timeout", "0"), "`0` is not a number of seconds above 0 and up to 600"),
    (("--view-timeout", "soon"), "`soon` is not a number of seconds"),
    (("--bind", "8080"), "`8080` is not an address such as"),
])
def test_a_wrong_option_is_refused(run: Run, dump: Path, arguments: tuple[str, ...], message: str):
    done = run("console", "--cluster", dump, *arguments)
    assert done.exit == 2
    assert message in done.err


def test_a_file_of_tokens_must_hold_some(run: Run, dump: Path, tmp_path: Path):
    (tmp_path / "tokens").write_text("# nobody yet\n", encoding="utf-8")
    done = run("console", "--cluster", dump, "--tokens", tmp_path / "tokens")
    assert (done.exit, done.err) == (
        2, f"koord-policy: `--tokens`: `{tmp_path / 'tokens'}` holds no token: write lines TOKEN,USER\n")


def options(*arguments: object) -> Namespace:
    parser = ArgumentParser()
    console.add_arguments(parser)
    return parser.parse_args([str(each) for each in arguments])


def test_invalid_policies_are_shown_and_valid_ones_decide(policies: Path, dump: Path, capsys):
    (policies / "broken.yaml").write_text("kind: [", encoding="utf-8")
    state = console.state_of(options("--cluster", dump, "--policies", policies), builtins)
    assert [plugin.name for plugin in state.policies.plugins] == ["keep-off-hot-nodes"]
    assert [Path(problem.span.name).name for problem in state.policies.problems] == ["broken.yaml"]
    assert "some policies are invalid and do not decide" in capsys.readouterr().err
    assert state.explained("shop/web-2").verdict.node == "cool"
