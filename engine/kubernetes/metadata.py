"""Reads of an object's metadata; parts that it lacks, or that are null, are empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an object."""
    return (item.get("metadata") or {}).get("labels") or {}


def uid_of(item: Mapping[str, Any]) -> str:
    """Return the UID of an object; empty without one."""
    return str((item.get("metadata") or {}).get("uid") or "")
