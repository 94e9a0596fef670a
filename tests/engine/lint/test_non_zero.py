"""Comparisons that prove a value not to be zero do so for all values that `optional.ofNonZeroValue` gets."""

from __future__ import annotations

import operator
from itertools import product

import pytest

from koordpolicy.engine.cel.library.optionals import OPTIONALS
from koordpolicy.engine.cel.values.types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, list_of
from koordpolicy.engine.cel.values.values import NONE
from koordpolicy.engine.lint.non_zero import proves_non_zero

COMPARED = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}
VALUES = {
    INT: [-2, -1, 0, 1, 2], DOUBLE: [-1.5, -0.0, 0.0, 0.5, float("nan")], STRING: ["", "a", "b"], BYTES: [b"", b"a"],
    BOOL: [False, True], list_of(INT): [[], [0]],
}
VALUES[DYN] = [each for values in VALUES.values() for each in values]
(OF_NON_ZERO,) = (each.overloads[0].evaluate for each in OPTIONALS if each.name == "optional.ofNonZeroValue")


def _holds(one: object, sign: str, other: object) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return sign == "!="
    try:
        return COMPARED[sign](one, other)
    except TypeError:
        return False


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_comparison_that_proves_it_holds_for_no_zero(kind):
    proved = set()
    for sign, constant in product(COMPARED, VALUES[DYN]):
        if proves_non_zero(kind, sign, constant):
            proved.add(sign)
            assert not [each for each in VALUES[kind] if _holds(each, sign, constant) and OF_NON_ZERO(each) is NONE]
    assert "==" in proved
    assert ("!=" in proved) is (kind != DYN)
