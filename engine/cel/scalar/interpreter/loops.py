"""Comprehensions, and their loops: one function per macro."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...check.call_cost import LIST_COST
from ...syntax import ast
from ...syntax.ast import Macro
from ...values.traversal import ordering
from ...values.values import EvaluationError, compare, is_map, key_of, key_value, no_overload, text_of
from ..evaluation import Evaluation, Step
from ..reading import Reader, reader
from .builder import StepBuilder
from .literals import is_folded


@dataclass(frozen=True, slots=True)
class Loop:
    """A comprehension, ready to run."""

    items: Callable[[Evaluation], Iterable[tuple[object, object]]]
    """Yields the values of both variables for each iteration."""
    assign: Callable[[Evaluation, tuple[object, object]], None]
    """Sets the variables for an iteration."""
    holds: Callable[[Evaluation], bool] | None
    """The condition of an iteration; None if the macro has none."""
    transform: Step | None
    listing: int
    """The cost of the list of one transformed element; a constant one costs nothing, because Kubernetes folds it."""
    first: int
    """The slot of the first variable."""
    position: int


def _quantifier(loop: Loop, *, decisive: bool) -> Step:
    items, assign, holds = loop.items, loop.assign, loop.holds
    assert holds is not None
    per_item = 4 if decisive else 3

    def quantifier(evaluation: Evaluation) -> object:
        failure: EvaluationError | None = None
        evaluation.cost += 1
        pairs = iter(items(evaluation))
        for pair in pairs:
            evaluation.charge(per_item)
            try:
                assign(evaluation, pair)
                if holds(evaluation) is decisive:
                    if next(pairs, None) is not None:
                        evaluation.cost += per_item - 1  # the condition is evaluated once more
                    return decisive
            except EvaluationError as error:
                if error.final:
                    raise
                failure = failure or error
        if failure is not None:
            raise failure
        return not decisive

    return quantifier


def _exists_one(loop: Loop) -> Step:
    items, assign, holds = loop.items, loop.assign, loop.holds
    assert holds is not None

    def exists_one(evaluation: Evaluation) -> object:
        count = 0
        evaluation.cost += 2
        for pair in items(evaluation):
            assign(evaluation, pair)
            if holds(evaluation):
                evaluation.charge(2)
                count += 1
            else:
                evaluation.turn()
        return count == 1

    return exists_one


def _filter(loop: Loop) -> Step:
    items, assign, holds, first = loop.items, loop.assign, loop.holds, loop.first
    assert holds is not None

    def filter_(evaluation: Evaluation) -> object:
        result = []
        evaluation.cost += 1
        for pair in items(evaluation):
            assign(evaluation, pair)
            if holds(evaluation):
                evaluation.charge(13)
                result.append(evaluation.locals[first])
            else:
                evaluation.turn()
        return result

    return filter_


def _map(loop: Loop) -> Step:
    items, assign, holds, transform = loop.items, loop.assign, loop.holds, loop.transform
    assert transform is not None
    per_item = 2 + loop.listing

    def map_(evaluation: Evaluation) -> object:
        result = []
        evaluation.cost += 1
        for pair in items(evaluation):
            assign(evaluation, pair)
            if holds is None or holds(evaluation):
                evaluation.charge(per_item)
                result.append(transform(evaluation))
            else:
                evaluation.turn()
        return result

    return map_


def _transform_map(loop: Loop) -> Step:
    items, assign, holds, transform, first = loop.items, loop.assign, loop.holds, loop.transform, loop.first
    assert transform is not None

    def transform_map(evaluation: Evaluation) -> object:
        mapped: dict[object, object] = {}
        evaluation.cost += 1
        for pair in items(evaluation):
            assign(evaluation, pair)
            if holds is None or holds(evaluation):
                evaluation.charge(3)
                mapped[key_of(evaluation.locals[first], doubles=True)] = transform(evaluation)
            else:
                evaluation.turn()
        return mapped

    return transform_map


def _transform_map_entry(loop: Loop) -> Step:
    items, assign, holds, transform, position = loop.items, loop.assign, loop.holds, loop.transform, loop.position
    assert transform is not None

    def transform_map_entry(evaluation: Evaluation) -> object:
        mapped: dict[object, object] = {}
        evaluation.cost += 1
        for pair in items(evaluation):
            assign(evaluation, pair)
            if holds is not None and not holds(evaluation):
                evaluation.turn()
                continue
            evaluation.charge(2)
            new = transform(evaluation)
            if not is_map(new):
                raise no_overload().at(position)
            evaluation.turn(len(new))  # type: ignore[arg-type]
            for key, value in new.items():  # type: ignore[attr-defined]
                if key in mapped:
                    raise EvaluationError(
                        f"insert failed: key {text_of(key_value(key))} already exists", offset=position,
                    )
                mapped[key] = value
        return mapped

    return transform_map_entry


def _sort_by(loop: Loop) -> Step:
    items, assign, transform, first, position = loop.items, loop.assign, loop.transform, loop.first, loop.position
    assert transform is not None
    per_item = 2 + loop.listing

    def sort_by(evaluation: Evaluation) -> object:
        keyed: list[tuple[object, object]] = []
        evaluation.cost += 3
        for pair in items(evaluation):
            assign(evaluation, pair)
            evaluation.charge(per_item)
            keyed.append((transform(evaluation), evaluation.locals[first]))
        factor = 2.1 if keyed and type(keyed[0][0]) in {str, bytes} else 2.0
        evaluation.charge(LIST_COST + 1 + int(len(keyed) ** 2 * factor))
        evaluation.turn(ordering([key for key, _ in keyed]))
        try:
            for (left, _), (right, _) in itertools.pairwise(keyed):
                if type(left) is not right.__class__:
                    raise no_overload()
            order = functools.cmp_to_key(compare)
            keyed.sort(key=lambda pair: order(pair[0]))
        except EvaluationError as error:
            raise error.at(position) from None
        return [value for _, value in keyed]

    return sort_by


MACROS: Final[Mapping[Macro, Callable[[Loop], Step]]] = {
    Macro.ALL: partial(_quantifier, decisive=False),
    Macro.EXISTS: partial(_quantifier, decisive=True),
    Macro.EXISTS_ONE: _exists_one,
    Macro.FILTER: _filter,
    Macro.MAP: _map,
    Macro.TRANSFORM_LIST: _map,
    Macro.TRANSFORM_MAP: _transform_map,
    Macro.TRANSFORM_MAP_ENTRY: _transform_map_entry,
    Macro.SORT_BY: _sort_by,
}


def comprehension(builder: StepBuilder, node: ast.Comprehension) -> Step:
    """Return the step of a macro that runs over a list or a map."""
    items, first_reader, second_reader = _range(builder, node)
    with builder.inner_scope():
        first = builder.declare(node.variable)
        second = builder.declare(node.variable2) if node.variable2 is not None else None
        predicate = None if node.predicate is None else builder.build(node.predicate)
        transform = None if node.transform is None else builder.build(node.transform)
    position, at = node.position, node.range.position

    def assign(evaluation: Evaluation, pair: tuple[object, object]) -> None:
        """Set the loop's variables; an element of another kind than declared is an error of this iteration only."""
        value, other = pair
        try:
            evaluation.locals[first] = value if first_reader is None else first_reader(value)
            if second is not None:
                evaluation.locals[second] = other if second_reader is None else second_reader(other)
        except EvaluationError as error:
            raise error.at(at) from None

    def holds(evaluation: Evaluation) -> bool:
        assert predicate is not None
        value = predicate(evaluation)
        if type(value) is not bool:
            raise no_overload().at(position)
        return value is True

    listing = 0 if node.transform is None or is_folded(builder, node.transform) else LIST_COST
    loop = Loop(items, assign, None if predicate is None else holds, transform, listing, first, position)
    return MACROS[node.macro](loop)


def _range(
    builder: StepBuilder, node: ast.Comprehension,
) -> tuple[Callable[[Evaluation], Iterable[tuple[object, object]]], Reader | None, Reader | None]:
    """Return a function that yields the values of both loop variables, unchecked, and one that checks them."""
    source = builder.build(node.range)
    position = node.range.position
    two = node.variable2 is not None
    declared = builder.types[node.range.id]
    element = key = None
    if declared.name == "list" and declared.parameters:
        element = reader(declared.parameters[0], builder.environment)
    elif declared.name == "map" and len(declared.parameters) == 2:
        key = reader(declared.parameters[0], builder.environment)
        element = reader(declared.parameters[1], builder.environment)
    readers = (element, None) if declared.name == "list" and not two else (key, element)

    def pairs(evaluation: Evaluation) -> Iterable[tuple[object, object]]:
        container = source(evaluation)
        if type(container) is list:
            items: list[object] = container
            return enumerate(items) if two else ((each, None) for each in items)
        if is_map(container):
            mapping: Mapping[object, object] = container  # type: ignore[assignment]
            if two:
                return ((key_value(each), mapping[each]) for each in mapping)
            return ((key_value(each), None) for each in mapping)
        raise no_overload().at(position)

    return pairs, readers[0], readers[1]
