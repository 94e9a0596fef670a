from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

import pytest

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
