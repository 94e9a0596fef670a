"""What came of something that was tried on single nodes, kept for the next pod of the same kind."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from koordpolicy.engine.cel.checked import Path
from koordpolicy.engine.cluster.snapshot import Snapshot

_MOST_KINDS = 128
_Outcome = TypeVar("_Outcome")


class KeptOutcomes(Generic[_Outcome]):
    """Outcomes by row, for as long as the row does not change at `paths`; those of an overlay's rows are not kept."""

    def __init__(self, paths: frozenset[Path]) -> None:
        self._paths = paths

    def of(self, snapshot: Snapshot, kind: Hashable) -> dict[int, _Outcome]:
        """Return what is known of pods of this kind, to be read and written for rows that no overlay changes."""
        frame = Snapshot(snapshot.cluster, snapshot.now).frame({})
        stamp = frame.stamp(self._paths)
        kept = frame.kept.get(self)
        if not isinstance(kept, dict):
            kept = frame.kept[self] = {}
        found: tuple[int, dict[int, _Outcome]] | None = kept.pop(kind, None)
        outcomes: dict[int, _Outcome] = {}
        if found is not None:
            rows = frame.changed(self._paths, found[0])
            if rows is not None:
                outcomes = found[1]
                for row in rows.tolist():
                    outcomes.pop(row, None)
        elif len(kept) >= _MOST_KINDS:
            del kept[next(iter(kept))]  # the one that nobody has asked for for the longest time
        kept[kind] = (stamp, outcomes)
        return outcomes
