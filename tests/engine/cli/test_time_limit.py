from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.cli import time_limit
from koordpolicy.engine.cli.exits import Exit, Stop
from koordpolicy.engine.cli.time_limit import TimeLimit
from koordpolicy.engine.source import Source

from .hanging import GOOD, command, install


def spin(source: Source) -> None:
    while source:
        with contextlib.suppress(Exception):
            pass


def test_what_goes_on_for_too_long_ends_with_the_file_that_is_worked_on():
    with pytest.raises(Stop) as raised, TimeLimit(0.05, "--timeout").holds("linting"):
        spin(Source("zone.yaml", "x"))
    message = (
        "linting took longer than 0.05 s, and `zone.yaml` was being worked on: make it smaller or simpler, or give "
        "it more time with `--timeout`"
    )
    assert (str(raised.value), raised.value.exit) == (message, Exit.EXCEEDED)


def test_what_loses_the_first_interruption_gets_another_one():
    def stubborn():
        try:
            signal.pause()
        except BaseException:
            signal.pause()

    with pytest.raises(
        Stop, match=r"linting took longer than 0\.05 s: make",
    ), TimeLimit(0.05, "--timeout").holds("linting"):
        stubborn()


def test_the_limit_is_that_of_all_blocks_together_and_a_handler_before_it_is_back_after_it():
    before = signal.getsignal(signal.SIGALRM)
    limit = TimeLimit(60.0, "--timeout")
    with limit.holds("linting"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert (signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)) == (0, before)
    over = TimeLimit(1e-9, "--timeout")
    with pytest.raises(Stop), over.holds("linting"):
        signal.pause()
    with pytest.raises(Stop), over.holds("linting"):
        signal.pause()


def test_without_a_limit_and_beside_the_main_thread_nothing_is_bounded():
    with TimeLimit(0, "--timeout").holds("linting"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    seen = []

    def beside():
        with TimeLimit(60, "--timeout").holds("linting"):
            seen.append(signal.getitimer(signal.ITIMER_REAL)[0])

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.fixture
def lint(tmp_path):
    """Lint a file that is good and one that never ends to be read."""
    environment = install(tmp_path / "site")
    good, endless = tmp_path / "good.yaml", tmp_path / "endless.yaml"
    good.write_text(GOOD)
    os.mkfifo(endless)

    def run(*words):
        # Whoever runs the tests in the background has them ignore SIGINT, and a process inherits that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(command("lint", good, endless, *words), env=environment, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True), endless
        finally:
            signal.signal(signal.SIGINT, before)

    return run


def test_lint_ends_within_its_time_and_names_the_file(lint):
    process, endless = lint("--timeout", "1s")
    with process:
        out, err = process.communicate(timeout=60)
    message = (f"koord-policy: linting took longer than 1 s, and `{endless}` was being worked on: make it smaller or "
               "simpler, or give it more time with `--timeout`\n")
    assert (process.returncode, out, err) == (6, "", message)


def test_lint_is_interrupted_by_sigint(lint):
    process, endless = lint()
    with process, open(endless, "w"):  # noqa: PTH123 - it is being read now, and nothing will come
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


# -- all commands that compile policies --------------------------------------------------------------------------------

SLOW = "".join((
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: slow}\nspec:\n  filter:\n",
    *(f"  - {{name: r{rule}, expression: \"{' || '.join(f'usage.cpu > {each}' for each in range(2000))}\"}}\n"
      for rule in range(60)),
))
"""A policy that takes ten seconds to compile, and that no bound refuses."""
TEST = """\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: t}
spec:
  policies: [slow]
  fixtures: {nodes: {n: {cpu: 10, memory: 1Gi, usage: {cpu: 1, memory: 1Mi}}}, pods: {p: {cpu: 1}}}
  cases: [{name: c, pod: p, filter: {n: pass}}]
"""
ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "examples/cluster"
RECORDING = ROOT / "examples/09-qos-replay/metrics.yaml"
TRACE = "--trace pods.csv --nodes nodes.csv"
COMMANDS = (
    "lint slow --timeout 0.8s",
    "fmt --check slow",
    "test slow",
    "plugins --policies slow",
    f"scheduler --dry-run --cluster {CLUSTER} --policies slow",
    f"explain shop/web-101 --cluster {CLUSTER} --policies slow",
    f"diff slow slow2 --cluster {CLUSTER}",
    f"audit slow --cluster {CLUSTER}",
    f"descheduler --once --dry-run --cluster {CLUSTER} --policies slow",
    f"sweep params.a=1,2 --cluster {CLUSTER} --policies slow",
    f"qos --replay {RECORDING} --policies slow",
    f"simulate {TRACE} --policies slow",
    f"replay {TRACE} --policies slow",
    "push 127.0.0.1:1/team/policies:v1 slow",
)


# Python reports an interruption in a callback of a collection, such as that of hypothesis, and loses it: another
# follows.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("words", COMMANDS, ids=[each.split()[0] for each in COMMANDS])
def test_no_command_compiles_for_longer_than_its_limit(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("slow", "slow2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.yaml").write_text(SLOW.replace("slow", name) + TEST.replace("slow", name))
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib\n")
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,0,\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time_limit, "COMPILE_S", 0.8)
    # The timer counts processor time here: on a busy machine all of the time could pass while modules are imported.
    monkeypatch.setattr(time_limit, "signal", SimpleNamespace(
        setitimer=signal.setitimer, signal=signal.signal, SIGALRM=signal.SIGVTALRM, ITIMER_REAL=signal.ITIMER_VIRTUAL))
    started = time.process_time()
    code = cli.main(words.split(), builtins)
    took = time.process_time() - started
    what = {"lint": "linting", "fmt": "formatting"}.get(words.split(maxsplit=1)[0], "reading policies")
    more = ", or give it more time with `--timeout`" if words.startswith("lint") else ""
    assert (code, capsys.readouterr().err.splitlines()[-1]) == (
        Exit.EXCEEDED, (f"koord-policy: {what} took longer than 0.8 s, and `slow/slow.yaml` was being worked on: "
                        f"make it smaller or simpler{more}"))
    assert took < 5
