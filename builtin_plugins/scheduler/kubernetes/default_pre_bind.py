"""DefaultPreBind: sends the preBind plugins' changes of a pod or a Reservation as one patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.profiles.args import no_args
from koordpolicy.plugin import SKIP, CycleState, Handle, Skip

_KINDS: Final = frozenset({"Pod", "Reservation"})
_ATTEMPTS: Final = 5
_WORTH_ANOTHER_TRY: Final = frozenset({409, 429})
"""HTTP's Conflict and Too Many Requests."""


class DefaultPreBind:
    """Sends the patch; its preBind does nothing. Without it, changes of drafts are not sent."""

    name = "DefaultPreBind"
    thread_safe = True
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._client = handle.client

    def apply_patch(
        self, state: CycleState, original: Mapping[str, Any], modified: Mapping[str, Any],
    ) -> Refusal | Skip | None:
        """Patch the object if it differs, without its status.

        Conflicts, too many requests and closed connections are retried; other failures, and that of the last retry, are
        errors.
        """
        if original.get("kind") not in _KINDS:
            return SKIP
        status = {"status": original["status"]} if "status" in original else {}
        before, after = original, {**{key: modified[key] for key in modified if key != "status"}, **status}
        if before == after:
            return None
        if original["kind"] == "Reservation":
            # The uid is sent, so that another object of this name is not changed.
            before = {**before, "metadata": {key: value for key, value in before["metadata"].items() if key != "uid"}}
        try:
            patched = self._patch(before, after)
        except OSError as error:
            return Refusal("patch", str(error), Code.ERROR)
        if patched is not None and (patched.get("metadata") or {}).get("deletionTimestamp"):
            return Refusal("deleted", "pod is being deleted", Code.ERROR)
        return None

    def _patch(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any] | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._client.patch(before, after)
            except OSError as error:
                if attempt == _ATTEMPTS or not _is_worth_another_try(error):
                    raise
        return None


def _is_worth_another_try(error: OSError) -> bool:
    code = getattr(error, "status", None) or getattr(error, "code", None)
    return isinstance(error, ConnectionError) or code in _WORTH_ANOTHER_TRY
