"""`==`, `!=` and `+` of lists that are declared as sets or maps (`x-kubernetes-list-type`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..check.checked_ast import Checked
from ..syntax import ast
from ..values.traversal import comparison, product
from ..values.types import Field
from ..values.values import equal, is_map


def list_field(checked: Checked, node: ast.Call) -> Field | None:
    """Return the declaration of the left operand of `==`, `!=` or `+` if it is a field that holds a set or a map."""
    if node.function not in LIST_OPERATORS or not node.args:
        return None
    left = node.args[0]
    if not isinstance(left, ast.Select) or left.test or checked.references.get(left.id) is not None:
        return None
    operand = checked.types[left.operand.id]
    if operand.name == "optional_type" and operand.parameters:
        operand = operand.parameters[0]
    declared = checked.environment.types.get(operand.name)
    field = None if declared is None else declared.fields.get(left.field)
    return field if field is not None and field.list_type in {"set", "map"} else None


def _same(field: Field) -> Callable[[object, object], bool]:
    keys = field.list_keys if field.list_type == "map" else ()

    def same(one: object, other: object) -> bool:
        """Return whether two elements are the same: by their keys, or as a whole."""
        if not keys:
            return equal(one, other)
        if not is_map(one) or not is_map(other):
            return False
        return all(equal(one.get(key), other.get(key)) for key in keys)  # type: ignore[attr-defined]

    return same


def _equal_listed(left: object, right: object) -> bool:
    if type(left) is not list or type(right) is not list:
        return equal(left, right)
    # Neither list has an element twice.
    return len(left) == len(right) and all(any(equal(one, other) for other in right) for one in left)


def listed_walk(left: object, right: object) -> int:
    """Return the steps of comparing or joining two such lists."""
    if type(left) is not list or type(right) is not list:
        return comparison(left, right)
    return product(left, right)


def _merged_listed(field: Field) -> Callable[..., object]:
    same = _same(field)

    def evaluate(left: list[object], right: list[object]) -> list[object]:
        """Return the left elements, each replaced by the same element on the right, then the other right elements."""
        merged = list(left)
        for each in right:
            at = next((place for place, other in enumerate(left) if same(other, each)), None)
            if at is None:
                merged.append(each)
            else:
                merged[at] = each
        return merged

    return evaluate


LIST_OPERATORS: Final[dict[str, Callable[[Field], Callable[..., object]]]] = {
    "_==_": lambda _: _equal_listed,
    "_!=_": lambda _: lambda left, right: not _equal_listed(left, right),
    "_+_": _merged_listed,
}
"""Operators with another meaning for lists that are sets or maps."""
