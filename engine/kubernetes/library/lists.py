"""Functions of lists that Kubernetes adds (apiserver `pkg/cel/library/lists.go`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.library.core import add_int, checked_uint
from koordpolicy.engine.cel.values.traversal import everything, search
from koordpolicy.engine.cel.values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    variable,
)
from koordpolicy.engine.cel.values.values import Duration, EvaluationError, Timestamp, Uint, compare, equal, no_overload

_T: Final = variable("T")
_COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_ZEROS: Final = {INT: 0, UINT: Uint(0), DOUBLE: 0.0, DURATION: Duration(0)}
_TRAVERSAL: Final = Cost(0, ((0, 1.0),))


_KINDS: Final = frozenset({bool, int, Uint, float, str, bytes, Timestamp, Duration})


def _order(left: object, right: object) -> int | None:
    """Return -1, 0 or 1; None for two values without an order, which these functions skip as Kubernetes does."""
    try:
        return compare(left, right)
    except EvaluationError:
        return None


def _check_kinds(items: list[object]) -> None:
    if any(each.__class__ not in _KINDS for each in items):
        raise no_overload()


def _is_sorted(items: list[object]) -> bool:
    for position, each in enumerate(items):
        if each.__class__ not in _KINDS:
            raise no_overload()
        if position and _order(items[position - 1], each) == 1:
            return False
    return True


def _sum(items: list[object], zero: object) -> object:
    total = items[0] if items else zero
    if total.__class__ not in {int, Uint, float, Duration}:
        raise no_overload()
    for each in items[1:]:
        total = _added(total, each)
    return total + 0.0 if type(total) is float else total  # it begins at 0.0: there is no -0.0


def _added(left: object, right: object) -> object:
    kind = left.__class__
    if kind is not right.__class__:
        raise no_overload()
    if kind is int:
        return add_int(left, right)  # type: ignore[arg-type]
    if kind is Uint:
        return checked_uint(left + right)  # type: ignore[operator]
    if kind is float:
        return left + right  # type: ignore[operator]
    return Duration.of(left.ns + right.ns)  # type: ignore[attr-defined]


def _extreme(name: str, sign: int) -> Callable[[list[object]], object]:
    def evaluate(items: list[object]) -> object:
        if not items:
            raise EvaluationError(f"{name} called on empty list")
        _check_kinds(items)
        best = items[0]
        for each in items[1:]:
            if _order(best, each) == -sign:
                best = each
        return best

    return evaluate


def _index_of(items: list[object], value: object) -> int:
    return next((position for position, each in enumerate(items) if equal(each, value)), -1)


def _last_index_of(items: list[object], value: object) -> int:
    return next((position for position in range(len(items) - 1, -1, -1) if equal(items[position], value)), -1)


def _over(
    name: str, kinds: tuple[Type, ...], result: Type | None, evaluate: Callable[..., object],
) -> tuple[Overload, ...]:
    return tuple(
        Overload(
            f"list_{kind}_{name}", (list_of(kind),), result or kind, evaluate, member=True, cost=_TRAVERSAL,
            walk=everything,
        )
        for kind in kinds
    )


LISTS: Final = (
    Function(
        "isSorted", _over("is_sorted", _COMPARABLE, BOOL, _is_sorted), "True if the elements are in ascending order.",
        "[1, 2, 2].isSorted()",
    ),
    Function(
        "sum", tuple(
            each for kind, zero in _ZEROS.items() for each in _over("sum", (kind,), None, partial(_sum, zero=zero))
        ),
        "The sum; 0 for an empty list.", "[1, 3].sum() == 4",
    ),
    Function(
        "min", _over("min", _COMPARABLE, None, _extreme("min", -1)), "The least element; an error for an empty list.",
        "[2, 1].min() == 1",
    ),
    Function(
        "max", _over("max", _COMPARABLE, None, _extreme("max", 1)), "The greatest element; an error for an empty list.",
        "[2, 1].max() == 2",
    ),
    Function(
        "indexOf",
        (Overload("list_index_of", (list_of(_T), _T), INT, _index_of, member=True, cost=_TRAVERSAL, walk=search),),
        "Where an equal element first stands, else -1.", "['a', 'b'].indexOf('b') == 1",
    ),
    Function(
        "lastIndexOf",
        (
            Overload(
                "list_last_index_of", (list_of(_T), _T), INT, _last_index_of, member=True, cost=_TRAVERSAL, walk=search,
            ),
        ),
        "Where an equal element last stands, else -1.", "['b', 'b'].lastIndexOf('b') == 1",
    ),
)
