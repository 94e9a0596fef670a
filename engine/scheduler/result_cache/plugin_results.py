"""The results of plugins, checked as the protocols of filters and scores demand."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Errors, Point, Scores, are_scores
from koordpolicy.engine.framework.scheduler import CycleState

_BOOLEAN: Final = np.dtype(np.bool_)
_INTEGER: Final = np.dtype(np.int64)


class Uncacheable(Exception):
    """A plugin's result breaks its protocol: the plugin is called uncached, which reports it."""


def filtered(
    plugin: Any, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
) -> tuple[NDArray[np.bool_], Errors]:
    """Return which of the rows pass, and the errors."""
    answer: Answer = plugin.filter(state, pod, snapshot, rows)
    return of_rows(answer.passed, np.bool_, rows, snapshot), answer.errors


def scored(
    plugin: Any, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
) -> tuple[NDArray[np.int64], Errors]:
    """Return the scores of the rows, and the errors."""
    scores: Scores = plugin.score(state, pod, snapshot, rows)
    chosen = of_rows(scores.values, np.int64, rows, snapshot)
    if not are_scores(chosen):
        raise Uncacheable
    return chosen, scores.errors


def checked(values: NDArray[Any], point: Point, size: int) -> NDArray[Any] | None:
    """Return a validated vectorized result; None for scores out of range: the plugin is then called for its errors."""
    required = _BOOLEAN if point is Point.FILTER else _INTEGER
    if values.dtype != required or values.shape != (size,):
        raise TypeError(f"it must be {size} values of {required}, not {values.dtype} of shape {values.shape}")
    return values if point is Point.FILTER or not len(values) or are_scores(values) else None


def of_rows(values: NDArray[Any], required: type[np.generic], rows: Rows, snapshot: Snapshot) -> NDArray[Any]:
    """Return the part of a plugin's result that is about these rows."""
    if values.dtype != required or values.ndim != 1:
        raise Uncacheable
    if len(values) == len(rows):
        return values
    if len(values) != snapshot.size:
        raise Uncacheable
    return values[rows]
