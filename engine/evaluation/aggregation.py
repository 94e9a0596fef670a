"""Evaluation of aggregates over the rows of a frame, vectorized where that is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Frame, Rows
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.compile.programs import AggregateProgram
from koordpolicy.engine.documents import AggregateFunction

from .facts import Facts, add_facts, combine, combine_group, rank

_EXACT_SUM: Final = 2**53
"""Up to this bound integers and doubles have the same sum."""


def summarize(
    facts: Facts, aggregates: Iterable[AggregateProgram],
    frame_of: Callable[[AggregateProgram], tuple[Frame, Rows | None]],
) -> None:
    """Add the facts; `frame_of` returns the frame of an aggregate and its rows (None: all of them).

    Rows without a metric (`NoMetric`) are omitted; any other error of a row is the aggregate's error.
    """
    add_facts(facts, aggregates, lambda aggregate: _over(aggregate, *frame_of(aggregate)))


def _over(aggregate: AggregateProgram, frame: Frame, rows: Rows | None) -> Any:
    """Return one value, or one per group, of the rows of a frame; without `group_by` the group of all rows is None."""
    requested = np.arange(frame.size) if rows is None else rows
    left_out: set[int] = set()
    columns: list[NDArray[Any] | None] = []
    for program in (aggregate.group_by, aggregate.program):
        if program is None:
            columns.append(None)
            continue
        column = evaluate(program, frame, rows)
        for row, error in column.errors.items():
            if error.reason != "NoMetric":
                raise error
            left_out.add(row)
        columns.append(column.values)
    if left_out:
        measured = ~np.isin(requested, list(left_out))
        requested, columns = requested[measured], [None if column is None else column[measured] for column in columns]
    groups, values = columns
    if groups is None and values is not None and values.dtype == np.int64 and len(values):
        return _of_integers(aggregate, values)
    return combine(aggregate, zip(
        [None] * len(requested) if groups is None else groups.tolist(),
        [True] * len(requested) if values is None else values.tolist(), strict=True,
    ))


def _of_integers(aggregate: AggregateProgram, values: NDArray[np.int64]) -> Any:
    """Return the result of `combine_group` for integers, vectorized."""
    low, high = int(values.min()), int(values.max())
    match aggregate.function:
        case AggregateFunction.MIN:
            return low
        case AggregateFunction.MAX:
            return high
        case AggregateFunction.PERCENTILE:
            return int(np.sort(values)[rank(aggregate, len(values))])
        case AggregateFunction.SUM | AggregateFunction.AVG if max(-low, high) * len(values) <= _EXACT_SUM:
            total = int(values.sum())
            return total if aggregate.function is AggregateFunction.SUM else total / len(values)
        case _:
            return combine_group(aggregate, values.tolist())
