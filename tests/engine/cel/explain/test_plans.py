from __future__ import annotations

from koordpolicy.engine.cel.check.environment import Function, Overload
from koordpolicy.engine.cel.explain.plans import describe, shown
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import INT
from koordpolicy.engine.framework.slots import Slot, environment

FILTER = environment(Slot.FILTER)


def planned(text: str) -> list[tuple[int, str, str]]:
    return [(part.depth, part.text, part.strategy.value) for part in describe(compile_program(text, FILTER))]


def test_an_expression_is_told_part_by_part_as_the_columns_answer_it() -> None:
    text = "usage.cpu * 100 / allocatable.cpu < 65 && nodeInfo.zone == 'a' && requests.cpu > 0"
    assert planned(text) == [
        (0, text, "by column"),
        (1, "usage.cpu * 100 / allocatable.cpu < 65", "by column"),
        (2, "usage.cpu * 100 / allocatable.cpu", "by column"),
        (3, "usage.cpu * 100", "by column"),
        (4, "usage.cpu", "numeric column"),
        (3, "allocatable.cpu", "numeric column"),
        (1, "nodeInfo.zone == 'a'", "once per distinct input"),
        (1, "requests.cpu > 0", "once per decision"),
    ]


def test_what_is_the_same_for_all_rows_is_one_part() -> None:
    assert planned("pod.spec.containers.size() > 1") == [(0, "pod.spec.containers.size() > 1", "once per decision")]
    assert planned("1 + 1") == [(0, "1 + 1", "constant")]


def test_parts_say_what_they_read_what_is_cached_and_what_they_cost() -> None:
    (part,) = describe(compile_program("toleratesNode(pod, node)", FILTER))
    assert (part.rows, part.decision) == (("node.spec.taints",), ("pod.spec.tolerations",))
    assert part.cached == (
        "the column for each pod.spec.tolerations, from their second use on; changed rows are evaluated again"
    )
    assert (part.cost.low, part.cost.high) == (2, 2 + 1 + 3 * 100 * 50)


def test_variables_are_plans_of_their_own() -> None:
    scope = FILTER.with_definition("cpu", compile_program("usage.cpu * 100", FILTER).checked)
    parts = describe(compile_program("variables.cpu < 65", scope))
    assert [(part.text, part.strategy.value) for part in parts] == [
        ("variables.cpu < 65", "by column"), ("variables.cpu", "variable"),
    ]


def test_what_is_not_pure_is_evaluated_row_by_row() -> None:
    scope = FILTER.with_functions(Function("draw", (Overload("draw", (INT,), INT, lambda _: 4, pure=False),)))
    parts = describe(compile_program("draw(1) > requested.cpu", scope))
    assert [(part.text, part.strategy.value, part.cached) for part in parts] == [
        ("draw(1) > requested.cpu", "row by row", "nothing"),
    ]


def test_paths_are_shown_as_they_are_written() -> None:
    assert shown(("node", "metadata", "labels", "a.b/c")) == 'node.metadata.labels["a.b/c"]'
