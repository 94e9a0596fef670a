"""A scheduler plugin in Python: pods of one owner go to different nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordpolicy.plugin import CycleState, Framework, Handle, PodInfo, Snapshot, python_plugin


class SpreadOwners:
    """Prefers nodes with fewer pods of the same owner."""

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._penalty = int(args.get("penalty", 50))
        handle.log.debug("each pod of the same owner costs a node %d points", self._penalty)

    def score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return 100, less the penalty for each pod of the same owner on the node, but not less than 0."""
        owners = set(_owners(pod))
        together = sum(not owners.isdisjoint(_owners(each)) for each in snapshot.pods(row))
        return max(0, 100 - self._penalty * together)


def _owners(pod: PodInfo) -> Iterator[str]:
    for owner in pod.object["metadata"].get("ownerReferences") or ():
        yield owner["uid"]


PLUGINS = [python_plugin("SpreadOwners", Framework.SCHEDULER, SpreadOwners, enabled=True)]
