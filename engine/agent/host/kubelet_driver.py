"""The question to kubelet for its driver of control groups, asked without waiting for the answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DriverQuestion:
    """Returns the driver that kubelet's last answer names, and asks again; empty if there is none.

    It is called by the agent's thread, which must not wait for the network.
    """

    def __init__(self, send_request: Callable[[], Future[dict[str, Any]] | None]) -> None:
        """`send_request` requests kubelet's configuration; None if that cannot be done yet."""
        self._send_request = send_request
        self._request: Future[dict[str, Any]] | None = None

    def __call__(self) -> str:
        """Return `systemd`, `cgroupfs`, or an empty text."""
        driver = ""
        if self._request is not None:
            if not self._request.done():
                return ""
            if not self._request.cancelled() and self._request.exception() is None:
                driver = str(self._request.result().get("cgroupDriver") or "")
        if not driver:
            self._request = self._send_request()
        return driver
