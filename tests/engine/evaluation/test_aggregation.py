from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.compile.programs import AggregateProgram
from koordpolicy.engine.documents import AggregateFunction, Over
from koordpolicy.engine.evaluation.aggregation import summarize
from koordpolicy.engine.evaluation.facts import Facts, combine
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import Source, Span

USED = compile_program("requested.cpu", environment(Slot.FILTER))
DOUBLED = compile_program("double(requested.cpu) * 0.5", environment(Slot.FILTER))
PLACE = Span(Source("a.yaml", ""), 0, 0)
AMOUNTS = st.one_of(st.integers(0, 10), st.integers(-(2**63), 2**63 - 1), st.just(2**53 + 1))


def outcome(ask: object) -> object:
    try:
        found = ask()  # type: ignore[operator]
    except EvaluationError as error:
        return error.message
    return type(found), found


@pytest.mark.parametrize("program", [USED, DOUBLED], ids=["integers", "doubles"])
@pytest.mark.parametrize("function", [each for each in AggregateFunction if each is not AggregateFunction.COUNT])
@given(amounts=st.lists(AMOUNTS, min_size=1, max_size=30), percentile=st.integers(1, 100))
def test_a_column_is_summed_up_as_its_values_are(
    function: AggregateFunction, program: Program, amounts: list[int], percentile: int,
) -> None:
    aggregate = AggregateProgram("a", Over.NODES, function, program, None, percentile, PLACE)
    rows = [{"requested": {"cpu": amount}} for amount in amounts]
    values = [program.evaluate(row) for row in rows]

    def by_column() -> object:
        facts = Facts()
        summarize(facts, [aggregate], lambda _: (RowFrame(rows, {}), None))
        return facts["a"]

    one_by_one = outcome(lambda: combine(aggregate, ((None, value) for value in values)))
    by_rows = outcome(by_column)
    assert by_rows == (one_by_one if isinstance(one_by_one, tuple) else f"aggregate `a`: {one_by_one}")
