"""The inputs of a document's expressions in one decision, and the frames of its aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.environment import Scope
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Frame, Rows
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import pod_facts
from koordpolicy.engine.cluster.snapshot import NodeFrame, Snapshot
from koordpolicy.engine.compile.programs import AggregateProgram
from koordpolicy.engine.documents import Over

State: TypeAlias = MutableMapping[object, Any]
"""The state of one decision (`CycleState`)."""
Booleans = NDArray[np.bool_]

CONDITIONS: Final = "matchConditions"
"""The rule name of errors of conditions: if one fails, it is not known whether the document matches the row."""


@dataclass(slots=True)
class EvaluationContext:
    """The inputs of one document's expressions in one decision, and which nodes the document matches.

    `error` is that of a condition that does not read the node; `condition_errors` are those of the others, by row.
    """

    frame: NodeFrame
    values: Mapping[str, object]
    matches: bool
    error: EvaluationError | None
    nodes: Booleans | None
    """The nodes that the document matches; None for all."""
    condition_errors: dict[int, EvaluationError]
    pod: PodInfo
    snapshot: Snapshot

    def errors(self, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
        """Return the errors of the conditions at the rows."""
        if self.error is not None:
            return {CONDITIONS: dict.fromkeys(rows.tolist(), self.error)}
        if not self.condition_errors:
            return {}
        found = {row: self.condition_errors[row] for row in rows.tolist() if row in self.condition_errors}
        return {CONDITIONS: found} if found else {}


class Inputs(Mapping[str, object]):
    """The variables of a program at a row of a frame; reading one that has no value raises `EvaluationError`."""

    __slots__ = ("_frame", "_program", "_row")

    def __init__(self, frame: NodeFrame, program: Program, row: int | None) -> None:
        self._frame = frame
        self._program = program
        self._row = row

    def __getitem__(self, name: str) -> object:
        if self._program.checked.environment.variables[name].scope is not Scope.ROW:
            return self._frame.value(name)
        if self._row is None:
            raise KeyError(name)
        return self._frame.row_value(name, self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._program.variables)

    def __len__(self) -> int:
        return len(self._program.variables)


def bindings_of(program: Program, frame: NodeFrame, row: int | None) -> dict[str, object]:
    """Return the variables that a program reads, at a row of a frame.

    Raises `EvaluationError` if one of them has no value there.
    """
    variables = program.checked.environment.variables
    found: dict[str, object] = {}
    for name in program.variables:
        if variables[name].scope is Scope.ROW:
            assert row is not None
            found[name] = frame.row_value(name, row)
        else:
            found[name] = frame.value(name)
    return found


def frame_of(aggregate: AggregateProgram, snapshot: Snapshot, context: EvaluationContext) -> tuple[Frame, Rows | None]:
    """Return the rows that an aggregate runs over: the nodes that the document matches, or the pods on them."""
    nodes = None if context.nodes is None else np.flatnonzero(context.nodes)
    if aggregate.over is Over.NODES:
        return context.frame, nodes
    programs = [each for each in (aggregate.program, aggregate.group_by) if each is not None]
    names = {name for program in programs for name in program.variables}
    declared = programs[0].checked.environment.variables if programs else {}
    of_pod = {name: read for name, read in _OF_POD.items() if name in names}
    of_node = [name for name in names if declared[name].scope is Scope.ROW and name not in of_pod]
    rows: list[dict[str, object]] = []
    for row in range(snapshot.size) if nodes is None else nodes.tolist():
        pods = snapshot.pods(row)
        if not pods:
            continue
        shared = {name: _value_or_error(context.frame, name, row) for name in of_node}
        rows.extend({**shared, **{name: read(pod) for name, read in of_pod.items()}} for pod in pods)
    return RowFrame(rows, context.values), None


def _object_of(pod: PodInfo) -> object:
    return pod.object


_OF_POD: Final[Mapping[str, Callable[[PodInfo], object]]] = {"existingPod": _object_of, "existingPodInfo": pod_facts}


def _value_or_error(frame: NodeFrame, name: str, row: int) -> object:
    try:
        return frame.row_value(name, row)
    except EvaluationError as error:
        return error
