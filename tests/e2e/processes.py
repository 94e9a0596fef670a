"""Commands as processes that print their address and end at SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .scheduler_process import GRACE_S


@contextmanager
def process(log: Path, *command: str, **environment: str) -> Iterator[str]:
    """A process of the command; yields the URL that is the last word of its first line."""
    with log.open("w") as errors, subprocess.Popen(
            [sys.executable, "-m", "koordpolicy", *command], stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment}) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert line, log.read_text()
            yield line.split()[-1].rstrip("/")
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                ended = running.wait(GRACE_S)
            finally:
                running.kill()
    assert ended == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()
