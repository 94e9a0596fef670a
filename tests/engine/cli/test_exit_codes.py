"""The exit code of every command for each class of fault, as docs/commands.md has them."""

from __future__ import annotations

import contextlib
import fcntl
import http.server
import os
import shlex
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TextIO

import pytest

from koordpolicy.engine.cli import COMMANDS, main
from koordpolicy.engine.cli.exits import Exit

from .conftest import Run
from .hanging import command

ROOT: Final = Path(__file__).parents[3]
GOOD: Final = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a, annotations: {policy.koordinator.sh/description: About.}}
spec:
  params: {p: 1}
  filter:
  - {name: r, expression: "usage.cpu < 5000 + params.p"}
"""
TEST: Final = """\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: t}
spec:
  policies: [THIS]
  fixtures: {nodes: {n: {cpu: 10, memory: 1Gi, usage: {cpu: 1, memory: 1Mi}}}, pods: {p: {cpu: 1}}}
  cases: [{name: c, pod: p, filter: {n: pass}}]
"""
KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: x}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""
LINES: Final[Mapping[str, str]] = {
    "lint": "POLICIES",
    "fmt": "--check POLICIES",
    "test": "POLICIES",
    "plugins": "--policies POLICIES",
    "hash": "POLICIES",
    "scheduler": "--dry-run --cluster CLUSTER --policies POLICIES --config CONFIG",
    "explain": "shop/web-101 --cluster CLUSTER --policies POLICIES --config CONFIG",
    "diff": "POLICIES good.yaml --cluster CLUSTER",
    "audit": "POLICIES --cluster CLUSTER",
    "descheduler": "--once --dry-run --cluster CLUSTER --policies POLICIES",
    "sweep": "params.p=1,2 --cluster CLUSTER --policies POLICIES",
    "qos": "--replay RECORDING --policies POLICIES",
    "simulate": "--trace TRACE --nodes nodes.csv --policies POLICIES",
    "replay": "--trace TRACE --nodes nodes.csv --policies POLICIES",
    "push": "127.0.0.1:9/team/policies:v1 POLICIES",
    "eval": "1+1 --cluster CLUSTER --node general-01",
    "console": "--cluster CLUSTER --policies POLICIES --bind 127.0.0.1:0",
    "dump": "--cluster kube --policies POLICIES --out dump.yaml",
    "status": "--endpoints SERVER --token-file TOKEN",
    "top": "--endpoints SERVER --token-file TOKEN --once",
    "reload": "--endpoints SERVER --token-file TOKEN --timeout 1s --wait 0123456789ab",
    "promote": "--endpoints SERVER --token-file TOKEN",
    "rollback": "--endpoints SERVER --token-file TOKEN",
    "pull": "127.0.0.1:9/team/policies:v1 --out pulled --verify-key KEY",
    "manager": "--cluster kube",
    "agent": "--once --dry-run --kubeconfig KUBECONFIG",
    "new": "scheduler a-name --out made",
    "lsp": "", "schema": "SchedulerPlugin", "crd": "", "completion": "bash",
}
"""A command line of each command; a word in capitals stands for a file or a server."""
FILES: Final = ("POLICIES", "CLUSTER", "CONFIG", "RECORDING", "TRACE", "TOKEN", "KEY", "KUBECONFIG")
SHOWING: Final = "console"
"""The command that shows what is wrong with policies and a dump, and goes on."""
SERVERS: Final = ("status", "top", "reload", "promote", "rollback")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with good and bad files."""
    for name, text in {
        "good.yaml": GOOD + TEST, "policies.yaml": GOOD + TEST, "bad.yaml": "a: [\n", "empty.yaml": "",
        "invalid.yaml": GOOD.replace("usage.cpu <", "usage.cp <") + TEST,
        "pods.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
                    "p,1,1,0,0,,1,2\n",
        "nodes.csv": "sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,0,\n",
        "config.yaml": "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n",
        "token": "t", "kubeconfig": KUBECONFIG.format(port=_free_port()),
    }.items():
        (tmp_path / name).write_text(text.replace("THIS", name))
    (tmp_path / "directory").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path


def line(name: str, **words: str) -> list[str]:
    """Return the command line of a command, with other words for some in capitals."""
    known = {
        "POLICIES": "policies.yaml", "CLUSTER": str(ROOT / "examples/cluster"), "CONFIG": "config.yaml",
        "RECORDING": str(ROOT / "examples/09-qos-replay/metrics.yaml"), "TRACE": "pods.csv", "TOKEN": "token",
        "KEY": "key", "KUBECONFIG": "kubeconfig", "SERVER": "http://127.0.0.1:9", **words,
    }
    return [name, *(known.get(word, word) for word in LINES[name].split())]


def with_word(*words: str, without: str = "") -> list[tuple[str, str]]:
    return [(name, word) for name, text in LINES.items() for word in words
            if word in text.split() and name != without]


def test_every_command_is_in_the_table() -> None:
    assert list(COMMANDS.keys() - LINES.keys()) == []


@pytest.mark.parametrize("name", LINES)
def test_an_unknown_option_is_a_usage_error(name: str, place: Path, run: Run) -> None:
    assert run(name, *line(name)[1:], "--no-such-option").exit == Exit.USAGE


@pytest.mark.parametrize(("name", "word"), with_word(*FILES))
@pytest.mark.parametrize("path", ["missing", "good.yaml/below"])
def test_a_path_that_does_not_exist_is_a_usage_error(name: str, word: str, path: str, place: Path, run: Run) -> None:
    assert run(*line(name, **{word: path})).exit == Exit.USAGE


@pytest.mark.parametrize(("name", "word"), with_word("CONFIG", "RECORDING", "TOKEN", "KEY", "KUBECONFIG"))
def test_a_directory_in_place_of_a_file_is_a_usage_error(name: str, word: str, place: Path, run: Run) -> None:
    assert run(*line(name, **{word: "directory"})).exit == Exit.USAGE


@pytest.mark.parametrize(("name", "word"), with_word("POLICIES", "CLUSTER", "CONFIG", "RECORDING", without=SHOWING))
def test_bad_yaml_is_invalid(name: str, word: str, place: Path, run: Run) -> None:
    # A hash is one of bytes.
    assert run(*line(name, **{word: "bad.yaml"})).exit == (Exit.OK if name == "hash" else Exit.INVALID)


@pytest.mark.parametrize(("name", "word"), with_word("POLICIES", without=SHOWING))
def test_an_invalid_document_is_invalid(name: str, word: str, place: Path, run: Run) -> None:
    # The layout of an invalid document may be right.
    expected = Exit.OK if name in ("hash", "fmt") else Exit.INVALID
    assert run(*line(name, **{word: "invalid.yaml"})).exit == expected


@pytest.mark.parametrize(("name", "word"), with_word("POLICIES", without=SHOWING))
def test_files_and_directories_without_policies_are_invalid(name: str, word: str, place: Path, run: Run) -> None:
    expected = {"hash": Exit.OK, "fmt": Exit.OK, "test": Exit.FAILED}.get(name, Exit.INVALID)
    assert run(*line(name, **{word: "empty.yaml"})).exit == expected


@pytest.mark.parametrize(("name", "word"), with_word("CLUSTER", without=SHOWING))
@pytest.mark.parametrize("dump", ["empty.yaml", "directory", "good.yaml"])
def test_a_dump_without_nodes_is_invalid(name: str, word: str, dump: str, place: Path, run: Run) -> None:
    assert run(*line(name, **{word: dump})).exit == Exit.INVALID


@pytest.mark.parametrize("name", [name for name, _ in with_word("CLUSTER")] + ["dump"])
def test_an_api_server_that_does_not_answer_makes_the_cluster_invalid(name: str, place: Path, run: Run) -> None:
    assert run(*line(name, CLUSTER="kube")).exit == Exit.INVALID


# -- servers -----------------------------------------------------------------------------------------------------------

UNABLE: Final = {"promote": Exit.IMPOSSIBLE, "rollback": Exit.IMPOSSIBLE}
"""The exit codes of what cannot be done; a check that does not hold has `EXCEEDED`."""


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("server", ["http://127.0.0.1:9", "dns+http://no-such-name.invalid:80"])
def test_a_server_that_does_not_answer_is_not_as_wanted(name: str, server: str, place: Path, run: Run) -> None:
    assert run(*line(name, SERVER=server)).exit == UNABLE.get(name, Exit.EXCEEDED)


@pytest.fixture(params=[401, 403])
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a server that refuses every token."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"error": "refused"}'
            self.send_response(request.param)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - as http.server calls it

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", SERVERS)
def test_a_refused_token_is_a_usage_error_of_what_changes_a_server(
    name: str, refusing: str, place: Path, run: Run,
) -> None:
    expected = Exit.USAGE if name in UNABLE else Exit.EXCEEDED
    assert run(*line(name, SERVER=refusing)).exit == expected


# -- ends from outside -------------------------------------------------------------------------------------------------

READERS: Final = tuple(name for name, _ in with_word("POLICIES") if name not in ("console", "dump", "hash", "push"))


@pytest.mark.parametrize("name", READERS)
def test_a_command_that_is_interrupted_ends_with_130(name: str, place: Path, run: Run) -> None:
    endless = place / "endless.yaml"
    os.mkfifo(endless)
    # Whoever runs the tests in the background has them ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = threading.Event()
    beside = threading.Thread(target=_interrupt_reader, args=(endless, threading.get_ident(), ended))
    beside.start()
    try:
        outcome = run(*line(name, POLICIES="endless.yaml"))
    finally:
        ended.set()
        beside.join()
        signal.signal(signal.SIGINT, before)
    assert (outcome.exit, outcome.err) == (130, "")


def _interrupt_reader(path: Path, thread: int, ended: threading.Event) -> None:
    """Interrupt a thread that reads a pipe until it has ended."""
    pipe = None
    while pipe is None and not ended.wait(0.005):
        with contextlib.suppress(OSError):  # nobody reads yet
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    if pipe is None:
        return
    # Once the first byte is read the file is open, and its reader waits for more.
    os.write(pipe, b"#")
    while fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4) and not ended.wait(0.005):
        pass
    signal.pthread_kill(thread, signal.SIGINT)
    ended.wait(60)
    os.close(pipe)


class _Interrupted(list[str]):
    """A command line while which is read, Ctrl-C is pressed."""

    def __iter__(self) -> Iterator[str]:
        raise KeyboardInterrupt


def test_a_command_that_is_interrupted_before_it_runs_ends_with_130_and_without_a_traceback() -> None:
    assert main(_Interrupted()) == 130


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_whose_output_is_closed_when_it_starts_runs_as_with_devnull(closed: str) -> None:
    words = shlex.join(command("eval", "1"))
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["lint", "fmt", "test", "plugins", "scheduler", "explain", "diff", "sweep", "qos",
                                  "schema", "crd", "completion", "hash", "eval", "simulate", "replay", "descheduler"])
def test_a_command_whose_output_nobody_reads_ends_with_141(
    name: str, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:
    unread = _unread()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", unread)
        outcome = run(*line(name))
    unread.close()
    assert (outcome.exit, "Traceback" in outcome.err) == (141, False)


@pytest.mark.parametrize(("words", "buffered"), [
    ("lint policies.yaml", True), ("lint policies.yaml", False), ("hash policies.yaml", True), ("--help", True),
])
def test_a_process_whose_output_nobody_reads_ends_with_141_and_says_nothing(
    words: str, buffered: bool, place: Path,
) -> None:
    with _unread() as unread:
        environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
        process = subprocess.run(command(*words.split()), stdout=unread, stderr=subprocess.PIPE, check=False,
                                 timeout=120, env=environment)
    assert (process.returncode, process.stderr) == (141, b"")


def _unread() -> TextIO:
    """Return a pipe's end for writing whose reader has ended."""
    read, written = os.pipe()
    os.close(read)
    return open(written, "w")  # noqa: PTH123 - it has no path, and the caller closes it
