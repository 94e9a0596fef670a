"""Times in the format of the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(nanoseconds: int) -> str:
    """Return a time (ns since the epoch) as RFC 3339 text in UTC, in whole seconds."""
    return (_EPOCH + timedelta(seconds=nanoseconds // 1_000_000_000)).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(nanoseconds: int) -> str:
    """Return a time since the epoch in UTC as a `MicroTime`, as leases and events hold it: microseconds, always six."""
    return (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
