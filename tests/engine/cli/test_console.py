"""`console`: what it refuses before it listens."""

from __future__ import annotations

import socket
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import console
from koordpolicy.engine.cli.console_state import sources_of
from koordpolicy.engine.console.audits import audit_view
from koordpolicy.engine.console.server import Static
from koordpolicy.engine.console.views import VIEWS

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


@pytest.mark.parametrize("arguments", [
    ("--tokens",), ("--agents", "http://127.0.0.1:1", "--token-file"), ("--endpoints", "http://a", "--token-file"),
])
def test_a_file_that_is_not_there_is_named_with_its_option(run: Run, dump: Path, arguments: tuple[str, ...]):
    done = run("console", "--cluster", dump, *arguments, "missing")
    assert (done.exit, done.err) == (2, f"koord-policy: `{arguments[-1]} missing`: No such file or directory\n")


def test_an_authority_that_is_not_there_is_refused(run: Run, dump: Path):
    done = run("console", "--cluster", dump, "--endpoints", "http://a", "--ca", "missing")
    assert (done.exit, done.err) == (
        2, "koord-policy: `--ca missing` cannot be used: no such file or directory\n")


@pytest.mark.parametrize(("options", "told"), [
    (("--ca", "other"), "`--ca other` cannot be used: it holds no certificate (PEM)"),
    (("--cert", "other"), "`--cert other` cannot be used: it holds no certificate with its private key (PEM)"),
    (("--cert", "other", "--key", "other"),
     "`--cert other` with `--key other` cannot be used: they are no certificate with its private key (PEM)"),
    (("--cert", "missing"), "`--cert missing` cannot be used: no such file or directory"),
])
def test_files_that_are_no_certificates_are_named_with_their_options(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], told: str,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text("kind: Pod\n", encoding="utf-8")
    done = run("status", *options)
    assert (done.exit, done.err) == (2, f"koord-policy: {told}\n")


def test_an_address_in_use_is_named(run: Run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "index.html").touch()
    monkeypatch.setattr(console, "_static", lambda: Static(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("console", "--cluster", dump, "--bind", place)
    assert (done.exit, done.err) == (
        2, f"koord-policy: cannot listen on {place}: address already in use: name another address with `--bind`\n")


def options(*arguments: object) -> Namespace:
    parser = ArgumentParser()
    console.add_arguments(parser)
    return parser.parse_args([str(each) for each in arguments])


def test_invalid_policies_are_shown_and_valid_ones_decide(policies: Path, dump: Path, capsys):
    (policies / "broken.yaml").write_text("kind: [", encoding="utf-8")
    state = sources_of(options("--cluster", dump, "--policies", policies), builtins).state
    assert [plugin.name for plugin in state.policies.plugins] == ["keep-off-hot-nodes"]
    assert [Path(problem.span.name).name for problem in state.policies.problems] == ["broken.yaml"]
    assert "some policies are invalid and do not decide" in capsys.readouterr().err
    assert state.explained("shop/web-2").verdict.node == "cool"


@pytest.mark.parametrize(("arguments", "message"), [
    (("--audit-log", "audit.log"), "`--audit-log` goes with `--allow-changes`"),
    (("--admin-token-file", "token"), "`--admin-token-file` goes with `--endpoints`"),
    (("--allow-changes",), "`--allow-changes` needs `--endpoints` and `--admin-token-file` and `--audit-log`"),
    (("--allow-changes", "--endpoints", "http://a", "--admin-token-file", "token", "--audit-log", "audit.log"),
     "`--allow-changes` is for users who are known: name a file of tokens with `--tokens`, or the cluster"),
    (("--allow-changes", "--endpoints", "http://a", "--admin-token-file", "empty", "--audit-log", "audit.log",
      "--tokens", "tokens.csv"), "`empty` holds no token"),
    (("--allow-changes", "--endpoints", "http://a", "--admin-token-file", "token", "--audit-log", "missing/audit.log",
      "--tokens", "tokens.csv"), "`--audit-log missing/audit.log` cannot be written: no such file or directory"),
    (("--allow-changes", "--endpoints", "ftp://a", "--admin-token-file", "token", "--audit-log", "audit.log",
      "--tokens", "tokens.csv"), "`--endpoints`: `ftp://a` is not a URL"),
    (("--tokens", "tokens.csv", "--authentication-kubeconfig", "in-cluster"),
     "`--tokens` and `--authentication-kubeconfig` are two ways to know the users: name one"),
    (("--authorization-kubeconfig", "config"),
     "`--authorization-kubeconfig` goes with `--authentication-kubeconfig`"),
    (("--authentication-kubeconfig", "missing"), "`--authentication-kubeconfig` takes a kubeconfig"),
])
def test_changes_and_users_need_all_that_belongs_to_them(
    run: Run, dump: Path, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str,
):
    monkeypatch.chdir(tmp_path)
    for name, text in (("token", "0123456789abcdef"), ("empty", ""), ("tokens.csv", "0123456789abcdef,ana\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run("console", "--cluster", dump, *arguments)
    assert done.exit == 2
    assert message in done.err


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "name a cluster with `--cluster`, or a flight recording with `--recorded`"),
    (("--recorded", "/nowhere"), "there is no directory `/nowhere`: `--recorded` takes that of `scheduler --record`"),
    (("--recorded", ".", "--kubernetes", "1.35"),
     "`--kubernetes` goes with `--cluster`: without it, settings are those of the recording"),
    (("--recorded", ".", "--replay-timeout", "0"), "`0` is not a number of seconds above 0 and up to 86400"),
])
def test_a_wrong_recording_is_refused(run: Run, arguments: tuple[str, ...], message: str):
    done = run("console", *arguments)
    assert done.exit == 2
    assert message in done.err


def test_a_directory_without_a_recording_is_refused(run: Run, tmp_path: Path):
    done = run("console", "--recorded", tmp_path)
    assert (done.exit, done.err) == (3, f"""\
error: there is no segment of a flight recording in `{tmp_path}`
  = name the directory that `scheduler --record` wrote to
""")


@pytest.mark.parametrize(("arguments", "message"), [
    (("--agent-recording", "/nowhere.jsonl"), "there is no `/nowhere.jsonl`: `--agent-recording` takes what"),
    (("--agent-recording", "README.md"), "`README.md` is no recording: `--agent-recording` takes what"),
    (("--agents", "10.0.0.7"), "`--agents`: `10.0.0.7` is not a URL such as"),
    (("--endpoints", "foo"), "`--endpoints`: `foo` is not a URL such as"),
    (("--replay-timeout", "10"), "`--replay-timeout` goes with `--recorded`"),
])
def test_a_wrong_source_of_a_nodes_timeline_is_refused(run: Run, dump: Path, arguments: tuple[str, ...], message: str):
    done = run("console", "--cluster", dump, *arguments)
    assert done.exit == 2
    assert message in done.err


def test_a_cluster_without_nodes_is_shown_with_a_warning(policies: Path, tmp_path: Path, capsys):
    dump = tmp_path / "empty.yaml"
    dump.write_text("{apiVersion: v1, kind: List, items: []}", encoding="utf-8")
    state = sources_of(options("--cluster", dump, "--policies", policies), builtins).state
    assert f"warning: there is no usable node in `{dump}`" in capsys.readouterr().err
    views = {each.name: each for each in VIEWS}
    assert [views["map"].of(state, {}).nodes, views["overview"].of(state, {}).waiting] == [[], []]
    assert views["colour"].of(state, {"expression": "usage.cpu * 2"}).numbers == []
    assert views["evictions"].of(state, {}).evicted == []
    assert audit_view(state).nodes == 0
