"""`koord-policy scheduler` as a process on a real control plane."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

T = TypeVar("T")
GRACE_S = 30.0
"""The seconds that a kubelet leaves a process between SIGTERM and SIGKILL. L63 says 10, on a machine that is idle."""


class SchedulerProcess:
    """One process; use as a context manager. Standard error is in the file `log`."""

    def __init__(self, kubeconfig: Path, directory: Path, *options: str, name: str = "koord-policy",
                 leader_elect: bool = False, installed: Path | None = None) -> None:
        """`installed` is a directory with another version of the package; None for this one."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"scheduler-{time.monotonic_ns()}.log"
        self.out = self.log.with_suffix(".out")
        lease = () if leader_elect else ("--leader-elect=false",)
        names = () if "--config" in options else ("--scheduler-name", name)
        self._command = [
            sys.executable, "-m", "koordpolicy", "scheduler", "--cluster", "kube", *names, *lease, *options]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        if installed is not None:
            self._environment["PYTHONPATH"] = str(installed)
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if not any(_exception):
            log = self.log.read_text()
            assert " is forbidden: " not in log, f"it lacks a right:\n{log[-3000:]}"

    def start(self) -> None:
        with self.log.open("ab") as log, self.out.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment)

    def until_ready(self) -> None:
        until(lambda: self._alive() and "ready: generation" in self.out.read_text())

    def stop(self) -> int:
        """Send SIGTERM; return the exit code, or fail if the process does not end in time."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GRACE_S)

    def _alive(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
        return True


def until(found: Callable[[], T], seconds: float = 120.0) -> T:
    """Return the first true result; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s; last: {result!r}"
        time.sleep(0.05)
    return result
