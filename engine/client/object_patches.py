"""Patches of whole objects, given as they were and as they should be: the difference is sent, the status apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .patches import merge_patch, pod_status_patch
from .resources import BY_KIND, ObjectReference
from .writes import ClusterWriter, WriteResult, WriteStatus

_WHOLE_NS: Final = 5 * 60 * 1_000_000_000
"""A new definition may give a kind the subresource that it did not have."""
_CODES: Final[Mapping[WriteStatus, int]] = {
    WriteStatus.GONE: 404, WriteStatus.REPLACED: 409, WriteStatus.CONFLICT: 409, WriteStatus.PDB_BLOCKED: 429,
    WriteStatus.PDB_STALE: 429, WriteStatus.THROTTLED: 429, WriteStatus.FORBIDDEN: 403}


class WriteFailedError(OSError):
    """A write failed; `code` is the HTTP status that stands for the failure, 0 without an answer."""

    def __init__(self, result: WriteResult) -> None:
        super().__init__(result.message or result.status.value)
        self.status = result.status
        self.code = _CODES.get(result.status, 0)


class NotLeadingError(OSError):
    """The process does not hold the Lease any more, so it writes nothing."""


def reference_of(item: Mapping[str, Any]) -> ObjectReference:
    """Return the reference to an object; raises `OSError` if its kind is not known."""
    resource = BY_KIND.get(str(item.get("kind")))
    if resource is None:
        raise OSError(f"objects of the kind {item.get('kind')} are not written")
    metadata = item.get("metadata") or {}
    return ObjectReference(resource, str(metadata.get("namespace") or ""), str(metadata["name"]),
                           str(metadata.get("uid") or ""))


def need_done(result: WriteResult) -> None:
    """Raise `WriteFailedError` unless the object is as the write wants it."""
    if not result.done:
        raise WriteFailedError(result)


class ObjectPatches:
    """Patches objects through one writer, and belongs to its event loop."""

    def __init__(self, writer: ClusterWriter, clock: Callable[[], int]) -> None:
        """`clock` returns the time in nanoseconds."""
        self._writer = writer
        self._clock = clock
        self._whole: dict[str, int] = {}
        """The kinds that have no subresource `status`, and until when that is taken for granted."""

    async def patch(
        self, reference: ObjectReference, original: Mapping[str, Any], modified: Mapping[str, Any],
    ) -> bytes | None:
        """Change an object by the difference, its status by the subresource; return it as the server has it then.

        If only `modified` has a `resourceVersion`, the patch is refused if the object has another one. None if there
        is no difference. Raises `WriteFailedError`.
        """
        patch, answer = merge_patch(original, modified), b""
        if not patch:
            return None
        kind = reference.resource.kind
        version = (patch.get("metadata") or {}).get("resourceVersion")
        whole = kind in self._whole and self._clock() < self._whole[kind]
        main = patch if whole else {name: value for name, value in patch.items() if name != "status"}
        if main:
            result = await self._writer.merge_patch(reference, main, resource_version=version)
            need_done(result)
            answer = result.answer
        if "status" not in patch or whole:
            return answer
        status = patch["status"]
        if kind == "Pod":
            status = pod_status_patch(original.get("status") or {}, modified.get("status") or {})
        result = await self._writer.merge_patch(
            reference, {"status": status}, subresource="status", strategic=kind == "Pod")
        if result.status is WriteStatus.GONE and kind != "Pod":  # without that subresource, or gone
            result = await self._writer.merge_patch(reference, {"status": status})
            if result.done:
                self._whole[kind] = self._clock() + _WHOLE_NS
        need_done(result)
        return result.answer
