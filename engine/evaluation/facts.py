"""Aggregates over rows that are evaluated one by one: many values to one, or to one per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from koordpolicy.engine.cel.values.values import INT64_MAX, INT64_MIN, BoolKey, EvaluationError
from koordpolicy.engine.compile.programs import AggregateProgram
from koordpolicy.engine.documents import AggregateFunction


class Facts(dict[str, Any]):
    """The variable `aggregates`: values by name. Reading a failed one raises its error."""

    __slots__ = ("errors",)

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, EvaluationError] = {}

    def __missing__(self, name: str) -> NoReturn:
        raise self.errors.get(name) or EvaluationError(f"no such key: {name}")

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - a failure is never a default
        """Return the value; raise `EvaluationError` if it failed."""
        return self[key]


def summarize_rows(
    facts: Facts, aggregates: Iterable[AggregateProgram],
    rows_of: Callable[[AggregateProgram], Iterable[Mapping[str, object]]],
) -> None:
    """Add the facts over rows without a frame, each given as the variables that an expression sees.

    Rows without a metric and errors are handled as by `summarize`.
    """
    add_facts(facts, aggregates, lambda aggregate: combine(aggregate, _measured(aggregate, rows_of(aggregate))))


def add_facts(
    facts: Facts, aggregates: Iterable[AggregateProgram], value_of: Callable[[AggregateProgram], Any],
) -> None:
    """Add the facts in order, each the result of `value_of` or its error: rows may read those before in `facts`."""
    for aggregate in aggregates:
        try:
            facts[aggregate.name] = value_of(aggregate)
        except EvaluationError as error:
            facts.errors[aggregate.name] = EvaluationError(
                f"aggregate `{aggregate.name}`: {error.message}", reason=error.reason, final=error.final,
            )


def _measured(aggregate: AggregateProgram, rows: Iterable[Mapping[str, object]]) -> Iterator[tuple[Any, Any]]:
    """Yield group and value of every row with a metric; any error other than `NoMetric` is the aggregate's."""
    for row in rows:
        try:
            group = aggregate.group_by.evaluate(row) if aggregate.group_by is not None else None
            value = aggregate.program.evaluate(row) if aggregate.program is not None else True
        except EvaluationError as error:
            if error.reason != "NoMetric":
                raise
            continue
        yield group, value


def combine(aggregate: AggregateProgram, values: Iterable[tuple[Any, Any]]) -> Any:
    """Return one value, or one per group, of (group, value) pairs; raises `EvaluationError` if there is none.

    Each key of a value that is a map is a group.
    """
    groups: dict[Any, list[Any]] = {}
    is_map = aggregate.is_map
    for group, value in values:
        for key, each in value.items() if is_map else ((group, value),):
            groups.setdefault(key, []).append(each)
    if aggregate.group_by is None and not is_map:
        return combine_group(aggregate, groups.get(None, []))
    return {
        BoolKey(group) if isinstance(group, bool) else group: combine_group(aggregate, found)
        for group, found in groups.items()
    }


def combine_group(aggregate: AggregateProgram, values: Sequence[Any]) -> Any:
    """Return the result of one group; raises `EvaluationError` if there is none."""
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
    return sorted(values)[rank(aggregate, len(values))]


def rank(aggregate: AggregateProgram, count: int) -> int:
    """Return the index of the nearest-rank percentile in sorted values."""
    return max(-(-count * (aggregate.percentile or 100) // 100), 1) - 1


def _sum(values: Sequence[Any]) -> Any:
    if any(isinstance(value, float) for value in values):
        try:
            return math.fsum(values)
        except (OverflowError, ValueError):
            return sum(values)  # beyond the range of doubles, or both infinities: the sum of doubles
    total = sum(values)
    if not INT64_MIN <= total <= INT64_MAX:
        raise EvaluationError("integer overflow")
    return total
