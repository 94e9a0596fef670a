"""The syntax tree of an expression: few node classes, numbered.

Later stages never copy or change the tree. (The classes are not frozen: that triples the time of making a node, which
is most of parsing.) Checker, cost estimate and evaluators have tables by the node's `id`: types, chosen overloads,
paths, operators.

Macros (`all`, `map`, `has`, `cel.bind`, ...) have nodes of their own instead of being expanded to cel-go's generic
fold: such a node is simpler to check, to estimate and to evaluate.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

Constant: TypeAlias = "bool | int | float | str | bytes | None"
"""A literal's value; `Literal.unsigned` tells whether an int is unsigned."""


@dataclass(slots=True, unsafe_hash=True)
class Node:
    """A node of the syntax tree: a number, unique in its tree, and a place.

    `position` is where errors of the node point, as in cel-go: the operator of a binary operation, the `(` of a call,
    the `.` of a selection, the `[` of an index or list. `start` and `end` are its whole extent. All three are offsets
    into the expression's text.
    """

    id: int
    position: int
    start: int
    end: int


@dataclass(slots=True, unsafe_hash=True)
class Literal(Node):
    """A constant. `unsigned` tells `1u` from `1`."""

    value: Constant
    unsigned: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Ident(Node):
    """A name; `.name` has `rooted` set and skips comprehension variables."""

    name: str
    rooted: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Select(Node):
    """`operand.field`, `operand.?field` (`optional`), or `has(operand.field)` (`test`)."""

    operand: Expr
    field: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Call(Node):
    """A call or an operator.

    Operators carry cel-go's names: `_+_ _-_ _*_ _/_ _%_ _==_ _!=_ _<_ _<=_ _>_ _>=_`, `_&&_ _||_ !_ -_ _?_:_`,
    `@in _[_] _[?_]`.
    `target` is the receiver of a member call. `rooted` marks `.f(x)`.
    """

    function: str
    target: Expr | None
    args: tuple[Expr, ...]
    rooted: bool = False


@dataclass(slots=True, unsafe_hash=True)
class ListLiteral(Node):
    """`[a, ?b]`; `optional` holds the indexes of the elements marked with `?`."""

    elements: tuple[Expr, ...]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, unsafe_hash=True)
class MapEntry(Node):
    """One `key: value` of a map literal."""

    key: Expr
    value: Expr
    optional: bool = False


@dataclass(slots=True, unsafe_hash=True)
class MapLiteral(Node):
    """`{k: v, ?k2: o}`."""

    entries: tuple[MapEntry, ...]


@dataclass(slots=True, unsafe_hash=True)
class FieldInit(Node):
    """One `field: value` of a message literal."""

    field: str
    value: Expr
    optional: bool = False


@dataclass(slots=True, unsafe_hash=True)
class MessageLiteral(Node):
    """`a.b.C{f: v}`: parsed only for clear errors, as there are no message types."""

    type_name: str
    fields: tuple[FieldInit, ...]


class Macro(enum.Enum):
    """The comprehensions: the standard macros and those of two variables (cel-go `ext/comprehensions.go`)."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    MAP = "map"
    FILTER = "filter"
    TRANSFORM_LIST = "transformList"
    TRANSFORM_MAP = "transformMap"
    TRANSFORM_MAP_ENTRY = "transformMapEntry"
    SORT_BY = "sortBy"


@dataclass(slots=True, unsafe_hash=True)
class Comprehension(Node):
    """A macro over a list or map.

    One variable: list elements or map keys. Two: (index, element) or (key, value). `predicate` is the test of
    all/exists/exists_one/filter and the optional condition of map and transform*; `transform` is the new element
    (list), the new value (map), the map literal of transformMapEntry, or the key of sortBy.
    """

    macro: Macro
    range: Expr
    variable: str
    variable2: str | None
    predicate: Expr | None
    transform: Expr | None


@dataclass(slots=True, unsafe_hash=True)
class Bind(Node):
    """`cel.bind(variable, init, body)`: init is evaluated at most once, when body first reads it."""

    variable: str
    init: Expr
    body: Expr


@dataclass(slots=True, unsafe_hash=True)
class OptionalMap(Node):
    """`target.optMap(variable, body)`, or `optFlatMap` where `flat`."""

    target: Expr
    variable: str
    body: Expr
    flat: bool


Expr: TypeAlias = (
    Literal | Ident | Select | Call | ListLiteral | MapLiteral | MessageLiteral | Comprehension | Bind | OptionalMap
)


def children(node: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions of a node in source order."""
    # Most nodes are one of these; `match` takes several times as long for them.
    kind = node.__class__
    if kind is Literal or kind is Ident:
        return ()
    if kind is Select:
        return (node.operand,)  # type: ignore[union-attr]
    if kind is Call:
        return node.args if node.target is None else (node.target, *node.args)  # type: ignore[union-attr]
    match node:
        case ListLiteral(elements=elements):
            return elements
        case MapLiteral(entries=entries):
            return tuple(part for entry in entries for part in (entry.key, entry.value))
        case MessageLiteral(fields=fields):
            return tuple(each.value for each in fields)
        case Comprehension():
            parts = (node.range, node.predicate, node.transform)
            return tuple(part for part in parts if part is not None)
        case Bind():
            return (node.init, node.body)
        case OptionalMap():
            return (node.target, node.body)
        case _:
            return ()
