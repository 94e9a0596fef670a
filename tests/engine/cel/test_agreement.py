"""By column == by row == by the interpreter, for random expressions over the Kubernetes types and random rows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.values.types import BOOL, INT
from tests.fuzz.__main__ import case_of
from tests.fuzz.examination import Case, examine, place
from tests.fuzz.expressions import Grammar

FILTER, SCORE, PLAIN = (Grammar(place(name)) for name in ("filter", "score", "plain"))
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROWS = st.integers(0, 2**32)


@QUICK
@given(FILTER.of(BOOL), ROWS)
def test_random_rules_over_kubernetes_objects_have_one_answer(text, number):
    examine(case_of(text, "filter", number))


@QUICK
@given(SCORE.of(INT), ROWS)
def test_random_scores_over_kubernetes_objects_have_one_answer(text, number):
    examine(case_of(text, "score", number))


@QUICK
@given(FILTER.expressions(), ROWS)
def test_random_expressions_of_any_type_have_one_answer(text, number):
    examine(case_of(text, "filter", number))


@QUICK
@given(PLAIN.expressions(), ROWS)
def test_random_expressions_over_what_has_no_type_have_one_answer(text, number):
    examine(case_of(text, "plain", number))


EXTREMES = [
    0, 1, -1, 2**63 - 1, -(2**63), 2**62, 2**53 + 1, 2**70, 0.5, -0.0, float("nan"), float("inf"), True, None, "1", [1],
    {"k": 1},
]


@pytest.mark.parametrize("text", [
    "a * 1 == b", "a * -1 < b", "(a - b) * 100 > 0", "(a + b) * 0 == 0", "a / b == 1", "(a * 3) / 2 + (b * 3) / 2 > 0",
    "a % b", "a % 7 + b % 7",
    "(a + 1) / 2 - 1", "-a / b", "a == b", "a != b", "a < b", "a in [b, 1, 'x']", "a in ['1', 'x', 'y', 'z']",
    "a in {'k': 1}", "b in a", "a[b]", "a[0]", "a['k']",
    "a.startsWith(b)", "a.contains('1')", "a + b", "size(a)", "has(a.k)", "a.k == b", "a.all(x, x == b)",
    "a.exists(x, x == b)", "a.map(x, b)", "int(a)", "string(a)",
    "a > 0 && b > 0", "a > 0 || b > 0", "a ? b : 1", "!a", "a == null", "a.k[b]", "math.greatest(a, b)",
])
def test_untyped_operands_of_every_kind_have_one_answer(text):
    for value in EXTREMES:
        examine(Case(text, "plain", [{"a": each} for each in [*EXTREMES, *EXTREMES]], {"b": value}))
    examine(Case(text, "plain", [*({"a": each} for each in EXTREMES), *({} for _ in range(9))], {}))


@pytest.mark.parametrize("text", [
    "b.all(k, k in a && a[k] == b[k])", "b.exists(k, a[k] == b[k])", "b.all(k, a[k] > 1)",
    "['x', 'y'].all(k, a[k] == 1)", "['x', 'y'].exists(k, a[k] == 1)",
    "b.all(k, 1 / a[k] > 0 || k == 'x')", "b.exists(k, k in a)", "b.all(k, a.x[k] == k)",
    "b.exists(k, !(k in a.x) || a.x[k] == 1 / 0)", "b.all(k, a[k])",
    "!b.all(k, k in a) || b.exists(k, b[k] == a[k])", "b.all(k, a[k] == b.all(j, j == k))",
    "b.all(k, a['x'][k] == 1 && k.startsWith('x'))", "b.all(k, k in [a[k]])",
])
def test_a_loop_over_what_all_rows_share_has_one_answer(text):
    rows = [{"a": each} for each in (
        {"x": 1}, {"x": 2, "y": 1}, {"y": 0, "z": 3}, {"x": {"x": 1, "y": "y"}}, {"x": {"y": 2}}, {"x": True},
        {"x": "x", "y": "y"}, {}, [1], "x", None, 2**70, 0.5,
        {"x": 0, "y": 0}, {"x": float("nan")}, {"x": None},
    )]
    for shared in (
        {"x": 1}, {"x": 1, "y": 1}, {"y": "y", "x": 5, "z": 3}, {}, ["x"], ["y", "x"], ["x", 1], [1], [], {"x": None},
        "x", None, 3, {f"k{n}": n for n in range(40)},
    ):
        examine(Case(text, "plain", [*rows, *rows, {}], {"b": shared}))
    examine(Case(text, "plain", [*rows, *rows, {}], {}))
