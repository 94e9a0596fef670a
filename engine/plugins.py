"""What a Python plugin is: a class with a name that fulfils one or more of these small protocols.

The same protocols hold for what documents compile to. A plugin may answer per column (`filter`, `score`: one answer
for all nodes) or per node (`filter_node`, `score_node`); the frameworks ask whichever it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from .cel.frame import Rows
from .cluster.snapshot import PodInfo, Snapshot
from .points import Answer, Refusal, Scores


class CycleState(dict[object, Any]):
    """What plugins remember during one decision, under keys of their own (use a class as the key)."""


@runtime_checkable
class PreFilter(Protocol):
    """Asked once per pod, before any node: a refusal ends the decision."""

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why this pod cannot be placed at all, or None."""


@runtime_checkable
class Filter(Protocol):
    """Asked once per pod for all nodes."""

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Return which nodes the pod may run on; only `rows` (ascending row numbers) need an answer."""


@runtime_checkable
class FilterNode(Protocol):
    """Asked per node; simpler to write than `Filter`, and much slower on large clusters."""

    def filter_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Return why the pod may not run on the node at this row, or None."""


@runtime_checkable
class Score(Protocol):
    """Asked once per pod for the nodes that passed."""

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return 0..100 for `rows`, normalised over them; the framework checks the range."""


@runtime_checkable
class ScoreNode(Protocol):
    """Asked per node; see `FilterNode`."""

    def score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return 0..100 for the node at this row."""


@runtime_checkable
class Reserve(Protocol):
    """Takes what the pod needs on the chosen node (devices, for example) and can give it back."""

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Reserve for the pod on the node; a refusal undoes what others reserved."""

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Undo `reserve`; idempotent, and may come without it."""


@runtime_checkable
class Closeable(Protocol):
    """Has something to give back when the last decision that holds its generation is done."""

    def close(self) -> None:
        """Release what the instance holds; called once."""


Arguments = Mapping[str, Any]
