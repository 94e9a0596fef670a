"""The difference of two versions of an object as patches: only what was changed is sent, other fields are left alone.

An object may be a projection, which lacks the fields that nobody reads. Fields that both versions lack are in no patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ABSENT: Final = object()


def merge_patch(original: Mapping[str, Any], modified: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one object to another; empty if they are equal.

    Lists are replaced as a whole; removed fields are None.
    """
    patch: dict[str, Any] = dict.fromkeys(original.keys() - modified.keys())
    for key, value in modified.items():
        before = original.get(key, _ABSENT)
        if before is value or before == value:
            continue
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        patch[key] = merge_patch(before, value) if both else value
    return patch


def pod_status_patch(original: Mapping[str, Any], modified: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strategic merge patch from one status of a pod to another: of the conditions only changed ones."""
    patch = merge_patch(original, modified)
    if patch.get("conditions"):
        before = {each.get("type"): each for each in original.get("conditions") or ()}
        patch["conditions"] = [each for each in patch["conditions"] if before.get(each.get("type")) != each]
    return patch
