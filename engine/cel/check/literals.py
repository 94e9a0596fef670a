"""Checks of literals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..syntax.ast import Expr, ListLiteral, Literal, MapLiteral, MessageLiteral, children
from ..values.types import BOOL, BYTES, DOUBLE, DYN, ERROR, INT, NULL, STRING, UINT, Type, list_of, map_of
from .node_checker import NodeChecker
from .signatures import show

_LITERAL_TYPES: Final[dict[type, Type]] = {bool: BOOL, int: INT, float: DOUBLE, str: STRING, bytes: BYTES}


def literal(_: NodeChecker, node: Literal) -> Type:
    """Check a constant."""
    value = node.value
    if value is None:
        return NULL
    if node.unsigned:
        return UINT
    return _LITERAL_TYPES[value.__class__]


def list_literal(checker: NodeChecker, node: ListLiteral) -> Type:
    """Check `[...]`."""
    types = []
    for index, element in enumerate(node.elements):
        type_ = checker.check(element)
        types.append(_unwrapped(checker, element, type_) if index in node.optional else type_)
    if ERROR in types:
        return ERROR
    if len(types) > 1:
        _must_agree(checker, node.elements, node.optional)
    return list_of(checker.join(types))


def map_literal(checker: NodeChecker, node: MapLiteral) -> Type:
    """Check `{...}`."""
    keys, values = [], []
    for entry in node.entries:
        keys.append(checker.check(entry.key))
        type_ = checker.check(entry.value)
        values.append(_unwrapped(checker, entry.value, type_) if entry.optional else type_)
    if ERROR in keys or ERROR in values:
        return ERROR
    if len(keys) > 1:
        optional = frozenset(index for index, entry in enumerate(node.entries) if entry.optional)
        _must_agree(checker, [entry.key for entry in node.entries], frozenset())
        _must_agree(checker, [entry.value for entry in node.entries], optional)
    return map_of(checker.join(keys), checker.join(values))


def _unwrapped(checker: NodeChecker, node: Expr, type_: Type) -> Type:
    """Return the type in an optional element."""
    type_ = checker.substitute(type_)
    if type_.name == "optional_type" and not type_.variable:
        return type_.parameters[0]
    if type_ in (DYN, ERROR) or type_.variable:
        return ERROR if type_ == ERROR else DYN
    return checker.complain(
        f"an element marked with `?` must be optional, not `{checker.shown(type_)}`", node,
        help="write `optional.of(...)`, or leave the `?` out",
    )  # fmt: skip


def _must_agree(checker: NodeChecker, nodes: Sequence[Expr], optional: frozenset[int]) -> None:
    if checker.environment.homogeneous_literals and not checker.mixed and not checker.lenient:
        checker.literals.append((list(nodes), optional))


def check_agreement(checker: NodeChecker) -> bool:
    """Report literals with elements of several types; return whether there are any."""
    for nodes, optional in checker.literals:
        common: Type | None = None
        is_open: bool | None = None
        for index, node in enumerate(nodes):
            type_ = checker.ground(checker.types[node.id])
            if index in optional and type_.name == "optional_type":
                type_ = type_.parameters[0]
            if common is None:
                common = type_
            elif type_ != common:
                both = _common(common, type_) if checker.open_calls else None
                if both is not None and is_open is None:
                    is_open = _has_open_call(checker, nodes[0])
                if both is None or not (is_open or _has_open_call(checker, node)):
                    checker.complain(
                        f"expected `{show(common)}`, found `{show(type_)}`", node,
                        end=max(node.end, node.position + 1),
                        help="all elements of a literal have one type; `dyn()` around each of them allows any",
                    )  # fmt: skip
                    break
                common, is_open = both, True
    return bool(checker.problems)


def _common(one: Type, other: Type) -> Type | None:
    """Return the type of both if a dyn in either may be any type; None if they differ elsewhere."""
    if DYN in (one, other):
        return other if one == DYN else one
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return None
    found = [_common(*each) for each in zip(one.parameters, other.parameters, strict=True)]
    parameters = tuple(each for each in found if each is not None)
    return replace(one, parameters=parameters) if len(parameters) == len(found) else None


def _has_open_call(checker: NodeChecker, node: Expr) -> bool:
    pending = [node]
    while pending:
        part = pending.pop()
        if part.id in checker.open_calls:
            return True
        pending.extend(children(part))
    return False


def message(checker: NodeChecker, node: MessageLiteral) -> Type:
    """Refuse `Type{...}`: there are no message types."""
    for field in node.fields:
        checker.check(field.value)
    return checker.complain(
        f"no message type `{node.type_name}`", node, code="cel-name",
        help="objects are written as maps: `{'field': value}`",
    )  # fmt: skip
