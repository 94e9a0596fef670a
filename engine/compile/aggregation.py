"""Facts of the whole: many values to one, or to one per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ..cel.columns import evaluate
from ..cel.frame import Frame, Rows
from ..cel.values import INT64_MAX, INT64_MIN, BoolKey, EvaluationError
from ..documents import AggregateFunction
from .programs import AggregateProgram


class Facts(dict[str, Any]):
    """What `aggregates` reads: values by name. Reading one that failed is the error that it failed with."""

    __slots__ = ("errors",)

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, EvaluationError] = {}

    def __missing__(self, name: str) -> NoReturn:
        raise self.errors.get(name) or EvaluationError(f"no such key: {name}")

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - a failure is never a default
        """Return the value; raise `EvaluationError` where it failed."""
        return self[key]


def summarize(
    aggregates: Iterable[AggregateProgram], frame_of: Callable[[AggregateProgram], tuple[Frame, Rows | None]],
) -> Facts:
    """Return the facts; `frame_of` says over which rows of which frame an aggregate runs (None: all of them).

    Rows without a metric (`NoMetric`) are left out; any other error of a row is the aggregate's error.
    """
    facts = Facts()
    for aggregate in aggregates:
        try:
            frame, rows = frame_of(aggregate)
            facts[aggregate.name] = combine(aggregate, _pairs(aggregate, frame, rows))
        except EvaluationError as error:
            facts.errors[aggregate.name] = EvaluationError(
                f"aggregate `{aggregate.name}`: {error.message}", reason=error.reason, final=error.final,
            )
    return facts


def _pairs(aggregate: AggregateProgram, frame: Frame, rows: Rows | None) -> Iterator[tuple[Any, Any]]:
    """Yield group and value of every row; a row without `group_by` is of the group None."""
    asked = np.arange(frame.size) if rows is None else rows
    left_out: set[int] = set()
    columns: list[list[Any]] = []
    for program in (aggregate.group_by, aggregate.program):
        if program is None:
            columns.append([True if columns else None] * len(asked))
            continue
        column = evaluate(program, frame, rows)
        if column.errors:
            wanted = set(asked.tolist())
            for row, error in column.errors.items():
                if row in wanted and error.reason != "NoMetric":
                    raise error
                left_out.add(row)
        columns.append(column.values[asked].tolist())
    for row, group, value in zip(asked.tolist(), *columns, strict=True):
        if row not in left_out:
            yield group, value


def combine(aggregate: AggregateProgram, values: Iterable[tuple[Any, Any]]) -> Any:
    """Return one value, or one per group, of (group, value) pairs; raises `EvaluationError` where there is none."""
    groups: dict[Any, list[Any]] = {}
    for group, value in values:
        groups.setdefault(group, []).append(value)
    if aggregate.group_by is None:
        return _one(aggregate, groups.get(None, []))
    return {
        BoolKey(group) if isinstance(group, bool) else group: _one(aggregate, found)
        for group, found in groups.items()
    }


def _one(aggregate: AggregateProgram, values: Sequence[Any]) -> Any:
    function = aggregate.function
    if function is AggregateFunction.COUNT:
        return sum(1 for value in values if value is True)
    if function is AggregateFunction.SUM:
        return _sum(values)
    if not values:
        raise EvaluationError(f"there is nothing to take the {function.value} of", reason="NoRows")
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        raise EvaluationError("a value is not a number")
    if function is AggregateFunction.AVG:
        return float(_sum([float(value) for value in values])) / len(values)
    if function is AggregateFunction.MIN:
        return min(values)
    if function is AggregateFunction.MAX:
        return max(values)
    # The nearest rank: the smallest value that at least so many percent of the values do not exceed.
    rank = -(-len(values) * (aggregate.percentile or 100) // 100)
    return sorted(values)[max(rank, 1) - 1]


def _sum(values: Sequence[Any]) -> Any:
    if any(isinstance(value, float) for value in values):
        try:
            return math.fsum(values)
        except (OverflowError, ValueError):
            return sum(values)  # beyond the doubles, or of both infinities: what doubles add up to
    total = sum(values)
    if not INT64_MIN <= total <= INT64_MAX:
        raise EvaluationError("integer overflow")
    return total
