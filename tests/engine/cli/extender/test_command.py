"""The command line of the extender: options, start, signals, end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from koordpolicy.engine.cli.ending import Ending

from .serving import Client, document, question, serving


def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_one_ends_the_process():
    stop, times, ended = asyncio.Event(), [5.0, 5.4, 5.5], []
    ending = Ending(stop, 3600, clock=lambda: times.pop(0), give_up=ended.append)
    ending()
    ending()
    assert (stop.is_set(), ending.timer.is_alive(), ended) == (True, True, [])
    ending()
    ending.timer.cancel()
    assert ended == ["a second signal came"]


@pytest.mark.parametrize(("words", "message"), [
    (["--bind", "nowhere"], "`nowhere` is not an address such as 127.0.0.1:8888"),
    (["--bind", "127.0.0.1:99999"], "`127.0.0.1:99999` is not an address such as 127.0.0.1:8888"),
    ([], "nothing would decide: name policies with `--policies`, or built-in plugins with `--enable`"),
    (["--enable", "x", "--tls-cert", "a"], "`--tls-cert` and `--tls-key` go together"),
    (
        ["--enable", "x", "--client-ca", "a"],
        "`--client-ca` needs `--tls-cert` and `--tls-key`: without TLS no certificate is read",
    ),
    (["--enable", "x", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "there is no file `/nowhere`"),
    (
        ["--enable", "NodeResourceFit", "--bind", "127.0.0.1:0"],
        "`--enable`: there is no plugin `NodeResourceFit`: did you mean `NodeResourcesFit`?",
    ),
    (["--enable", "x", "--output", "json"], "`--output`, `--dry-run` and `--tie-break` mean nothing to an extender"),
    (["--max-body", "0"], "`0` is not a whole number from 1 to 1024"),
    (["--refresh", "0.5"], "`0.5` is not a number of seconds from 1 to 86400, or 0"),
    (["--max-error-rate", "2"], "`2` is not a number from 0 to 1"),
])
def test_options_that_cannot_be_meant_are_refused(run, words, message):
    done = run("scheduler", "--extender", *words)
    assert done.exit == 2
    assert message in done.err


def test_options_of_the_extender_go_with_it(run):
    done = run("scheduler", "--cluster", "c.yaml", "--state-dir", "s")
    assert (done.exit, done.err) == (
        2, "koord-policy: `--state-dir` goes with `--extender`, or a live cluster without `--dry-run`\n")
    assert "which cluster?" in run("scheduler").err


def test_policies_that_are_invalid_at_start_end_the_command(run, policies, dump):
    (policies / "policy.yaml").write_text(document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
    done = run("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies", policies, "--cluster", dump)
    assert done.exit == 3
    assert "policy.yaml:6:" in done.err
    assert "cpuu" in done.err


def test_a_path_of_policies_that_does_not_exist_is_the_same_usage_error_as_of_other_commands(run, tmp_path, dump):
    missing = tmp_path / "missing"
    message = f"koord-policy: there is no file or directory `{missing}` to read policies from\n"
    for command in ("scheduler --extender --bind 127.0.0.1:0", "scheduler", "plugins", "scheduler --cluster kube"):
        cluster = () if command == "plugins" or "kube" in command else ("--cluster", dump)
        done = run(*command.split(), "--policies", missing, *cluster)
        assert (command, done.exit, done.err) == (command, 2, message)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_listens_and_ends_on_a_signal(policies, dump, number):
    command = [
        sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies",
        str(policies), "--cluster", str(dump),
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONWARNINGS": "default"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:
        try:
            found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
            assert process.stdout.readline() == f"ready: generation 1, plugins small-enough; 4 nodes from {dump}\n"
            client = Client(found[1])
            assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
            client.connection.close()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, out) == (0, "")
    assert err == "INFO koordpolicy.engine.reload.reloader: generation 1 is active: 1 policy (small-enough)\n"


def test_sigusr2_logs_nodes_and_ends_nothing(policies, dump):
    command = [
        sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies",
        str(policies), "--cluster", str(dump),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as process:
        try:
            for _ in range(2):
                process.stdout.readline()
            process.send_signal(signal.SIGUSR2)
            lines = []
            while not lines or not lines[-1].startswith("INFO koordpolicy.engine.scheduler.extender.server: Node"):
                lines.append(process.stderr.readline())
                assert lines[-1]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0
    assert [line.partition(",")[0] for line in lines[1:]] == [
        "INFO koordpolicy.engine.scheduler.extender.server: Dump of cached NodeInfo\n",
        "INFO koordpolicy.engine.scheduler.extender.server: Node name: eight"]


def test_an_address_that_is_taken_is_told(run, policies):
    with serving("--policies", policies) as client:
        port = urlsplit(client.url).port
        done = run("scheduler", "--extender", "--bind", f"127.0.0.1:{port}", "--policies", policies)
    assert (done.exit, done.err) == (2, (
        f"koord-policy: cannot listen: error while attempting to bind on address ('127.0.0.1', {port}): "
        "address already in use: name another address with `--bind`\n"))
