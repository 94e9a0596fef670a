"""The question to kubelet for its driver of control groups, asked without waiting for the answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DriverQuestion:
    """Returns the driver that kubelet's last answer names, and asks again; empty if there is none.

    It is called by the agent's thread, which must not wait for the network.
    """

    def __init__(self, ask: Callable[[], Future[dict[str, Any]] | None]) -> None:
        """`ask` requests kubelet's configuration; None if that cannot be done yet."""
        self._ask = ask
        self._asked: Future[dict[str, Any]] | None = None

    def __call__(self) -> str:
        """Return `systemd`, `cgroupfs`, or an empty text."""
        driver = ""
        if self._asked is not None:
            if not self._asked.done():
                return ""
            if not self._asked.cancelled() and self._asked.exception() is None:
                driver = str(self._asked.result().get("cgroupDriver") or "")
        if not driver:
            self._asked = self._ask()
        return driver
