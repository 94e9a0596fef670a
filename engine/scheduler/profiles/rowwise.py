"""Adapters of plugins that are called per node to the protocols for all rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived, sound
from koordpolicy.engine.framework.points import Answer, Code, Refusal, Scores
from koordpolicy.engine.framework.scheduler import CycleState, FilterNode, ScoreNode


class RowwiseFilter:
    """Adapts a `FilterNode` to `Filter`. A row for which the plugin raises is refused with that error."""

    def __init__(self, plugin: FilterNode) -> None:
        self._plugin = plugin

    @property
    def plugin(self) -> FilterNode:
        """The adapted plugin."""
        return self._plugin

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Ask for each of the rows."""
        passed = np.ones(snapshot.size, np.bool_)
        refusals: dict[int, Refusal] = {}
        errors: dict[int, EvaluationError] = {}
        for row in rows.tolist():
            try:
                refusal = self._plugin.filter_node(state, pod, snapshot, row)
                if refusal is not None:
                    refusal = sound(refusal)
            except BaseException as error:
                must_be_survived(error)
                errors[row] = failed(error)
                refusal = Refusal("", errors[row].message, Code.ERROR, errors[row])
            if refusal is not None:
                refusals[row] = refusal
                passed[row] = False
        return Answer(passed, refusals.__getitem__, {"": errors} if errors else {})


class RowwiseScore:
    """Adapts a `ScoreNode` to `Score`. A row for which the plugin raises gets 0 and that error."""

    def __init__(self, plugin: ScoreNode) -> None:
        self._plugin = plugin

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Ask for each of the rows."""
        values = np.zeros(snapshot.size, np.int64)
        errors: dict[int, EvaluationError] = {}
        for row in rows.tolist():
            try:
                values[row] = self._plugin.score_node(state, pod, snapshot, row)
            except BaseException as error:
                must_be_survived(error)
                errors[row] = failed(error)
        return Scores(values, {"": errors} if errors else {})


def failed(error: BaseException) -> EvaluationError:
    """Return a plugin's exception as an `EvaluationError`; one that is already an `EvaluationError` is returned
    unchanged.
    """
    if isinstance(error, EvaluationError):
        return error
    return EvaluationError(describe(error), reason="PluginError")


def has(instance: Any, *methods: str) -> bool:
    """Return whether an instance has all the methods (as `isinstance` with a protocol does, at lower cost)."""
    return all(callable(getattr(instance, method, None)) for method in methods)
