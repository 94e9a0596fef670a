import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.cost import ASSUMED_SIZES, Estimate, check_cost, estimate
from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import BINDINGS, STANDARD, table
from koordpolicy.engine.cel.scalar.interpreter.interpreter import interpreter_of
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import DYN, INT, STRING, list_of, map_of
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.source import PolicyError, Source

PLAIN = Environment(
    variables={
        each.name: each
        for each in (
            Variable("n", INT), Variable("text", STRING), Variable("texts", list_of(STRING)),
            Variable("labels", map_of(STRING, STRING)), Variable("pod", DYN), Variable("grid", list_of(list_of(INT))),
        )
    },
    functions=table(STANDARD, BINDINGS),
)  # fmt: skip


def analyze(text: str, environment: Environment = PLAIN) -> Checked:
    source = Source("<expression>", text)
    return check(source, parse(source), environment)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", Estimate(0, 0)),
        ("n", Estimate(1, 1)),
        ("n + 1 > 2", Estimate(3, 3)),
        ("pod.a.b['c']", Estimate(4, 4)),
        ("n > 1 && n < 3", Estimate(2, 4)),
        ("n > 1 ? n : n + 1", Estimate(3, 4)),
        ("text == 'abcdefghijkl'", Estimate(1, 3)),
        ("text == text", Estimate(2, 28)),
        ("[n, n]", Estimate(2, 12)),
        ("texts.all(t, t == 'a')", Estimate(2, 503)),
        ("[1, 2, 3].all(x, x > 0)", Estimate(4, 27)),
    ],
)
def test_costs_follow_the_table(text: str, wanted: Estimate):
    assert estimate(analyze(text)) == wanted


def test_sizes_come_from_the_path_before_the_type():
    checked = analyze("texts.all(t, t.contains('a'))")
    assert estimate(checked).high > 2_000
    assert estimate(checked, {"list": 10}).high < estimate(checked).high
    assert estimate(checked, {("texts",): 3, ("texts", "*"): 10}).high == 3 + 3 * (3 + 1 + 1)


def test_what_a_loop_makes_is_no_larger_than_what_it_runs_over():
    small = {("texts",): 2}
    one = estimate(analyze("texts.filter(t, t != '').all(t, t != 'a')"), small).high
    assert one == 3 + 2 * (13 + 1 + 1) + 2 + 2 * (3 + 1 + 1)
    assert estimate(analyze("(texts + texts).map(t, 1).all(x, x > 0)"), small).high < 200


def test_nested_loops_multiply():
    checked = analyze("grid.all(row, row.all(x, x > 0))")
    assert estimate(checked, {("grid",): 3, ("grid", "*"): 5}).high == 3 + 3 * (3 + 3 + 5 * (3 + 2))


def test_a_definition_is_paid_once():
    environment = PLAIN.with_definition("sum", analyze("texts.all(t, t == 'a')"))
    assert estimate(analyze("variables.sum && variables.sum", environment)).high == 2 + 503


def test_joining_lists_costs_what_copying_them_does():
    made, joining = 2 * (1 + 10), 1  # two lists of one variable, and the call
    assert estimate(analyze("[n] + [n]")).high == made + joining + 2 * 10
    assert estimate(analyze("([n] + [n]) + ([n] + [n])")).high == 2 * (made + joining + 2 * 10) + joining + 4 * 10


def test_what_may_cost_too_much_is_refused_with_the_reason():
    environment = Environment(
        PLAIN.variables, functions=PLAIN.functions, limits=ExpressionLimits(estimated_cost=10_000),
    )
    assert check_cost(analyze("texts.all(t, t == 'a')", environment)) == Estimate(2, 503)
    with pytest.raises(PolicyError) as caught:
        check_cost(analyze("n > 0 && texts.exists(a, texts.exists(b, a == b))", environment))
    (problem,) = caught.value.problems
    assert problem.code == "cel-cost"
    assert problem.span is not None
    assert problem.span.start == 21
    assert problem.message == (
        "may cost 320,705, more than the limit of 10,000: `exists` may run 100 times, inside it `exists` 100 times"
    )


def test_every_assumed_size_is_positive():
    assert min(ASSUMED_SIZES.values()) > 0


LOOPS = [
    "texts.all(t, t != n_text)", "texts.exists(t, t == text || t.contains(text))", "texts.exists_one(t, t == text)",
    "texts.map(t, t + text)", "texts.map(t, t != text, [t])", "texts.filter(t, t in texts)",
    "texts.filter(t, t != '').map(t, t + t).exists(t, t == text)", "labels.all(k, labels[k] != k)",
    "labels.transformMap(k, v, k + v)", "labels.transformList(k, v, v)", "labels.exists(k, v, k == v)",
    "grid.map(row, row.map(x, x * n))", "grid.all(row, row.exists(x, x == n))", "(texts + texts) == texts",
    "grid.transformList(i, row, i)", "texts.transformMapEntry(i, t, {t: i})",
    "{'a': texts, text: []}.a.all(t, t < text)",
    "cel.bind(all, texts + texts, all.map(t, t + text))", "pod.all(x, x == pod)",
    "[[n], [n, n]].map(r, r.map(x, [x, x]))",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    expression=st.sampled_from(LOOPS),
    text=st.text("ab", max_size=12),
    texts=st.lists(st.text("ab", max_size=12), max_size=6),
    labels=st.dictionaries(st.text("ab", max_size=12), st.text("ab", max_size=12), max_size=6),
    grid=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6),
)
def test_no_evaluation_costs_more_than_estimated(
    expression: str, text: str, texts: list[str], labels: dict[str, str], grid: list[list[int]],
):
    environment = PLAIN.with_variables(Variable("n_text", STRING))
    checked = analyze(expression, environment)
    bindings = {"n": 2, "text": text, "n_text": text, "texts": texts, "labels": labels, "grid": grid, "pod": texts}
    try:
        _, cost = interpreter_of(checked).evaluate(bindings, 10**9)
    except EvaluationError:
        return
    assert cost <= estimate(checked, {"string": 12, "list": 6, "map": 6, "dyn": 12}).high
