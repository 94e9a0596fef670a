"""Waiting for what other threads bring about, with a limit: a test that fails must not hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0
"""The default of the limit, of a machine that does a lot else."""


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.005)
