from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import BINDINGS, OPTIONALS, STANDARD, STRINGS, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.values.types import BOOL, DYN, INT
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.source import PolicyError

ENVIRONMENT = Environment(functions=table(STANDARD, STRINGS, OPTIONALS, BINDINGS)).with_variables(
    Variable("pod", DYN), Variable("node", DYN), Variable("n", INT),
)
POD = {"name": "web", "priority": 5, "labels": {"app": "web"}}
NODE = {"cpu": 8, "labels": {}}


def test_a_program_takes_the_variables_that_it_reads_in_the_environments_order() -> None:
    program = compile_program("n > 1 && pod.priority > n", ENVIRONMENT)
    assert program.variables == ("pod", "n")
    assert program.call(POD, 2) is True
    assert program.evaluate({"pod": POD, "n": 2, "node": NODE}) is True


def test_variables_of_definitions_are_variables_of_the_program() -> None:
    definition = compile_program("node.cpu * 2", ENVIRONMENT)
    program = compile_program("variables.twice > n", ENVIRONMENT.with_definition("twice", definition.checked))
    assert program.variables == ("node", "n")
    assert program.call(NODE, 3) is True


def test_all_faults_of_an_expression_are_told_with_their_places() -> None:
    with pytest.raises(PolicyError) as caught:
        compile_program("nod.cpu > 1 || n == 'x'", ENVIRONMENT)
    assert [each.span.start if each.span else None for each in caught.value.problems] == [0, 17]


def test_the_expected_type_is_checked() -> None:
    assert compile_program("n > 1", ENVIRONMENT, expected=BOOL).type == BOOL
    with pytest.raises(PolicyError):
        compile_program("n + 1", ENVIRONMENT, expected=BOOL)


def test_a_missing_variable_is_an_error_where_it_is_read() -> None:
    program = compile_program("true || n > 1", ENVIRONMENT)
    assert program.evaluate({}) is True
    with pytest.raises(EvaluationError) as caught:
        compile_program("1 + n", ENVIRONMENT).evaluate({})
    assert (caught.value.message, caught.value.offset) == ("no value for variable `n`", 4)


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("1 + 2", 1), ("[1, 2, 3].all(x, x > 0)", 16), ("[1, 2, 3].exists(x, x == 3)", 19),
        ("[1, 2, 3].map(x, x * 2)", 43),
        ("[1, 2, 3].filter(x, x > 1)", 33), ("[1, 2, 3].exists_one(x, x > 1)", 12), ("pod.name == 'web'", 3),
        ("has(pod.name)", 1), ("'x' in ['x', 'y']", 0),
    ],
)
def test_costs_are_kubernetes_units(text: str, cost: int) -> None:
    assert compile_program(text, ENVIRONMENT).metered({"pod": POD})[1] == cost


def test_a_metered_evaluation_stops_at_its_limit() -> None:
    program = compile_program("[1, 2, 3].all(x, x > 0)", ENVIRONMENT)
    assert program.metered({}, 16) == (True, 16)
    with pytest.raises(EvaluationError) as caught:
        program.metered({}, 10)
    assert (caught.value.reason, caught.value.final) == ("CostLimit", True)


def test_loops_without_cost_are_bounded_too() -> None:
    environment = replace(ENVIRONMENT, limits=ExpressionLimits(cost=50_000))
    program = compile_program("pod.l.filter(x, pod.l.filter(y, false).size() > 0).size() > 0", environment)
    with pytest.raises(EvaluationError, match="cost limit"):
        program.call({"l": list(range(500))})


def test_an_explanation_shows_the_values_of_the_parts_in_source_order() -> None:
    program = compile_program("pod.priority > 3 && node.labels.zone == 'a' || pod.name == 'web'", ENVIRONMENT)
    shown = [
        (text, f"error: {value.message}" if isinstance(value, EvaluationError) else value)
        for _, text, value in explain(program, {"pod": POD, "node": NODE}) if text not in {"pod", "node"}
    ]
    assert shown == [
        ("pod.priority > 3 && node.labels.zone == 'a' || pod.name == 'web'", True),
        ("pod.priority > 3 && node.labels.zone == 'a'", "error: no such key: zone"),
        ("pod.priority > 3", True),
        ("pod.priority", 5),
        ("node.labels.zone == 'a'", "error: no such key: zone"),
        ("node.labels.zone", "error: no such key: zone"),
        ("node.labels", {}),
        ("pod.name == 'web'", True),
        ("pod.name", "web"),
    ]


def test_an_explanation_leaves_out_what_was_not_evaluated_and_what_happens_in_loops() -> None:
    program = compile_program("n > 5 && [1, 2].all(x, x > n)", ENVIRONMENT)
    assert [text for _, text, _ in explain(program, {"n": 1})] == ["n > 5 && [1, 2].all(x, x > n)", "n > 5", "n"]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("1 + pod.x", 7), ("n / 0", 2), ("[1][n]", 3), ("pod.labels['y']", 10), ("int(pod.name)", 3),
        ("pod.priority && true", 13),
    ],
)
def test_an_error_points_at_the_node_that_failed(text: str, offset: int) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_program(text, ENVIRONMENT).evaluate({"pod": POD, "n": 7})
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("pod.?labels.?app.orValue('none')", "web"), ("pod.?labels.?zone.orValue('none')", "none"),
        ("pod[?'x'].hasValue()", False),
        ("[?pod.?name, ?pod.?x]", ["web"]), ("{?'a': pod.?name, ?'b': pod.?x}", {"a": "web"}),
        ("pod.?priority.optMap(x, x * 2).value()", 10),
        ("optional.none().orValue(1 / 1)", 1), ("optional.of(1).orValue(1 / 0)", 1),
        ("[1, 2, 3].transformMap(i, v, v > 1, v * 10)", {1: 20, 2: 30}),
        ("{'a': 1}.transformMapEntry(k, v, {v: k})", {1: "a"}), ("cel.bind(x, 1 / 0, true)", True),
    ],
)
def test_what_is_not_emitted_is_evaluated_all_the_same(text: str, value: object) -> None:
    assert compile_program(text, ENVIRONMENT).evaluate({"pod": POD}) == value


def test_programs_of_one_expression_do_not_share_what_a_call_computed() -> None:
    definition = compile_program("n + 1", ENVIRONMENT).checked
    environment = ENVIRONMENT.with_definition("next", definition)
    program = Program.of(
        compile_program(
            "[variables.next, variables.next].all(x, x == variables.next) ? variables.next : 0", environment,
        ).checked,
    )
    assert [program.call(each) for each in (1, 5, 1)] == [2, 6, 2]
