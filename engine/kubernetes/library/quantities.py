"""Quantities in expressions (apiserver `pkg/cel/library/quantity.go`)."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, INT, STRING
from koordpolicy.engine.cel.values.values import EvaluationError

from ..quantity import Quantity, QuantityFormat

_QUANTITY: Final = Quantity.cel_type
_COST: Final = Cost(0, ((0, 0.1),))


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ValueError:
        return False
    return True


def _as_integer(amount: Quantity) -> int:
    whole = amount.integer()
    if whole is None:
        raise EvaluationError("cannot convert value to integer")
    return whole


def _units(number: int) -> Quantity:
    return Quantity(number, format=QuantityFormat.EXPONENT)


QUANTITIES: Final = (
    Function(
        "quantity", (Overload("string_to_quantity", (STRING,), _QUANTITY, _quantity, cost=_COST),),
        "The amount that a string such as `500m` or `1.5Gi` stands for.", "quantity('1.5G') == quantity('1500M')",
    ),
    Function(
        "isQuantity", (Overload("is_quantity_string", (STRING,), BOOL, _is_quantity, cost=_COST),),
        "True if a string is a quantity.", "isQuantity('1Gi') && !isQuantity('12Zi')",
    ),
    Function(
        "sign", (Overload("quantity_sign", (_QUANTITY,), INT, lambda a: a.sign),),
        "-1, 0 or 1.", "sign(quantity('-1')) == -1",
    ),
    Function(
        "isGreaterThan",
        (Overload("quantity_is_greater_than", (_QUANTITY, _QUANTITY), BOOL, lambda a, b: a > b, member=True),),
        "True if an amount is greater than another.", "quantity('150Mi').isGreaterThan(quantity('100Mi'))",
    ),
    Function(
        "isLessThan",
        (Overload("quantity_is_less_than", (_QUANTITY, _QUANTITY), BOOL, lambda a, b: a < b, member=True),),
        "True if an amount is less than another.", "quantity('50M').isLessThan(quantity('100M'))",
    ),
    Function(
        "compareTo",
        (Overload("quantity_compare_to", (_QUANTITY, _QUANTITY), INT, lambda a, b: a.compare(b), member=True),),
        "-1, 0 or 1 as an amount is less than, equal to or greater than another.",
        "quantity('50M').compareTo(quantity('50Mi')) == -1",
    ),
    Function(
        "add",
        (
            Overload("quantity_add", (_QUANTITY, _QUANTITY), _QUANTITY, lambda a, b: a + b, member=True),
            Overload("quantity_add_int", (_QUANTITY, INT), _QUANTITY, lambda a, b: a + _units(b), member=True),
        ),
        "The exact sum; an int counts as base units.", "quantity('50k').add(20) == quantity('50020')",
    ),
    Function(
        "sub",
        (
            Overload("quantity_sub", (_QUANTITY, _QUANTITY), _QUANTITY, lambda a, b: a - b, member=True),
            Overload("quantity_sub_int", (_QUANTITY, INT), _QUANTITY, lambda a, b: a - _units(b), member=True),
        ),
        "The exact difference; an int counts as base units.", "quantity('50k').sub(20000) == quantity('30k')",
    ),
    Function(
        "isInteger",
        (Overload("quantity_is_integer", (_QUANTITY,), BOOL, lambda a: a.integer() is not None, member=True),),
        "True if `asInteger` succeeds.", "quantity('50k').isInteger() && !quantity('100m').isInteger()",
    ),
    Function(
        "asInteger", (Overload("quantity_as_integer", (_QUANTITY,), INT, _as_integer, member=True),),
        "The amount in base units; an error where it is not whole.", "quantity('50k').asInteger() == 50000",
    ),
    Function(
        "asApproximateFloat",
        (Overload("quantity_as_approximate_float", (_QUANTITY,), DOUBLE, float, member=True),),
        "The nearest double.", "quantity('500m').asApproximateFloat() == 0.5",
    ),
)
