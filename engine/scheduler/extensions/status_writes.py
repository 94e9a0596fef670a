"""Writes of desired states, which controllers compute of the cluster again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.framework.handle import Handle

_SECOND: Final = 1_000_000_000
FIRST_RETRY: Final = 5 * _SECOND
LONGEST_RETRY: Final = 5 * 60 * _SECOND


@dataclass(frozen=True, slots=True)
class _Sent:
    original: Mapping[str, Any]
    retry_at: int
    delay: int


class StatusWrites:
    """Brings objects to their desired states by merge patches, one per object until the cluster shows its effect.

    The cluster shows a write some time after it was sent, and a failed one never: it is sent again after 5 seconds,
    then 10, up to 5 minutes. A controller therefore calls `patch` in each run for each object that is not as it should
    be. For the scheduling thread.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._sent: dict[tuple[str, str, str], _Sent] = {}
        self._swept = 0

    def patch(self, original: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
        """Send what differs, and return whether anything was sent; `original` is the cluster's object."""
        now = self._handle.now()
        self._sweep(now)
        metadata = original["metadata"]
        key = str(original.get("kind")), str(metadata.get("namespace") or ""), str(metadata["name"])
        sent = self._sent.get(key)
        delay = FIRST_RETRY
        if sent is not None and sent.original is original:
            if now < sent.retry_at:
                return False
            delay = min(2 * sent.delay, LONGEST_RETRY)
        self._sent[key] = _Sent(original, now + delay, delay)
        try:
            self._handle.client.patch(original, desired)
        except OSError as error:
            self._handle.log.warning("%s `%s` was not written: %s", key[0], "/".join(filter(None, key[1:])), error)
        return True

    def _sweep(self, now: int) -> None:
        """Forget objects that have long been as they should be."""
        if now - self._swept > 2 * LONGEST_RETRY:
            self._swept = now
            self._sent = {key: sent for key, sent in self._sent.items() if now <= sent.retry_at + LONGEST_RETRY}
