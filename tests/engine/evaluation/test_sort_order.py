from __future__ import annotations

import pytest

from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile.programs import SortProgram
from koordpolicy.engine.documents import SortOrder
from koordpolicy.engine.evaluation.sort_order import sort_key
from koordpolicy.engine.framework.slots import Slot, environment

ROWS = [
    {"podInfo": {"name": name, "priority": priority}} for name, priority in [("b", 1), ("a", 2), ("c", 2), ("a", 1)]
]


def program(text: str, order: SortOrder) -> SortProgram:
    return SortProgram(compile_program(text, environment(Slot.SORT)), order)


def test_the_first_key_counts_before_the_others_and_texts_go_down_as_numbers_do() -> None:
    keys = [program("podInfo.priority", SortOrder.DESCENDING), program("podInfo.name", SortOrder.DESCENDING)]
    assert [tuple(row["podInfo"].values()) for row in sorted(ROWS, key=lambda row: sort_key(keys, row))] == [
        ("c", 2), ("a", 2), ("b", 1), ("a", 1),
    ]
    keys = [program("podInfo.name", SortOrder.ASCENDING)]
    assert [row["podInfo"]["name"] for row in sorted(ROWS, key=lambda row: sort_key(keys, row))] == ["a", "a", "b", "c"]


def test_a_key_without_a_value_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="no such key: other"):
        sort_key([program("pod.metadata.labels['other']", SortOrder.ASCENDING)], {"pod": {"metadata": {"labels": {}}}})
