"""The ranges of an expression hold for every row, and are as narrow as can be known."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.lint.ranges import ALWAYS, EITHER, NEVER, Analysis
from koordpolicy.engine.source import Source

from .conftest import filtering, findings, scheduler_policy, scoring, told


def analysis(text: str) -> Analysis:
    source = Source("<expression>", text)
    return Analysis(check(source, parse(source), environment(Slot.FILTER)))


def truth(text: str) -> str:
    found = analysis(text)
    return {ALWAYS: "always", NEVER: "never", EITHER: "either"}[found.truth(found.checked.root)]


@pytest.mark.parametrize(("text", "wanted"), [
    ("nodeInfo.pods >= 0", "always"),
    ("nodeInfo.pods < 0", "never"),
    ("nodeInfo.pods >= 1", "either"),
    ("usage.cpu < 5 && usage.cpu > 10", "never"),
    ("usage.cpu < 5 && usage.cpu > 4", "never"),
    ("usage.cpu < 6 && usage.cpu > 4", "either"),
    ("usage.cpu < 10 || usage.cpu > 5", "always"),
    ("usage.cpu < 5 || usage.cpu > 10", "either"),
    ("!(usage.cpu < 5) && usage.cpu < 5", "never"),
    ("usage.cpu == 3 && usage.cpu != 3", "never"),
    ("usage.cpu * 100 / allocatable.cpu < 10 && usage.cpu * 100 / allocatable.cpu > 20", "never"),
    ("podInfo.qosClass == 'BE' && podInfo.qosClass == 'LS'", "never"),
    ("podInfo.qosClass == 'BE' && podInfo.qosClass in ['LS', 'LSR']", "never"),
    ("podInfo.qosClass in ['LS', 'BE'] && podInfo.qosClass == 'BE'", "either"),
    ("nodeInfo.zone == nodeInfo.zone", "always"),
    ("double(usage.cpu) == double(usage.cpu)", "either"),
    ("1 + 1 == 2", "always"),
    ("'a' + 'b' == 'ab'", "always"),
    ("size(pod.spec.containers) >= 0", "always"),
    ("math.greatest(0, podInfo.priority) >= 0", "always"),
    ("podInfo.priority >= 0", "either"),
    ("metricAge >= 0", "either"),
    ("nodeInfo.pods > 5 ? nodeInfo.pods > 3 : false", "either"),
    ("nodeInfo.pods > 5 ? nodeInfo.pods > 3 : true", "always"),
    ("nodeInfo.zone in []", "never"),
    ("allocatable.cpu - requested.cpu >= 0", "either"),
    ("percent(usage.cpu, allocatable.cpu) >= 0", "always"),
    ("percent(usage.cpu, allocatable.cpu) <= 100", "either"),
    ("usage.cpu % 10 < 10", "always"),
    ("usage.cpu % 10 > 9", "never"),
    ("usage.cpu % 10 < 9", "either"),
])
def test_what_a_condition_can_be_is_known(text: str, wanted: str):
    assert truth(text) == wanted


def test_a_part_that_the_condition_before_it_settles_is_told():
    assert told(filtering("usage.cpu > 5000 && usage.cpu > 3000")) == [("KP010", "usage.cpu > 3000")]
    assert told(filtering("usage.cpu > 3000 && usage.cpu > 5000")) == []


def test_loop_variables_of_the_same_name_are_not_taken_for_each_other():
    assert told(filtering(
        "devices.all(d, d.free > 5 && devices.filter(e, e.free < 3).all(d2, d2.free < 3)) && nodeInfo.pods < 9",
    )) == []
    assert ("KP011", "d.free > 5 && d.free < 3") in told(filtering("devices.exists(d, d.free > 5 && d.free < 3)"))


def test_params_are_unknown_for_profiles_change_them():
    assert told(scheduler_policy(
        "params: {on: true, most: 0}\nfilter:\n- {name: it, expression: '!params.on || nodeInfo.pods >= params.most'}",
    )) == []


def test_a_bare_false_is_fine_where_match_says_what_it_is_about():
    spec = "filter:\n- {name: never, expression: 'false'}"
    assert ("KP011", "false") in told(scheduler_policy(spec))
    assert told(scheduler_policy(f"match: {{nodes: {{names: [old]}}}}\n{spec}")) == []


@pytest.mark.parametrize(("expression", "more", "wanted"), [
    ("nodeInfo.pods", "", True),
    ("nodeInfo.pods", "  normalize: Max\n", False),
    ("0 - nodeInfo.pods", "  normalize: MaxReverse\n", True),
    ("0 - nodeInfo.pods", "  normalize: MinMax\n", False),
    ("math.least(100, nodeInfo.pods)", "", False),
    ("allocatable.cpu - requested.cpu", "", True),
    ("allocatable.cpu - requested.cpu", "  normalize: MinMax\n", False),
    ("(allocatable.cpu - requested.cpu) * 100 / allocatable.cpu", "", False),
    ("101 + nodeInfo.pods", "", True),
    ("nodeInfo.unschedulable ? 0 : 101", "", True),
    ("nodeInfo.unschedulable ? 0 : 100", "", False),
    ("usage.cpu * 100 / allocatable.cpu", "", True),
])
def test_a_score_that_leaves_its_range_is_told_only_where_inputs_prove_it(expression: str, more: str, wanted: bool):
    assert ("KP015" in {rule for rule, _ in told(scoring(expression, more))}) is wanted


def nested(levels: int) -> str:
    text = "nodeInfo.pods"
    for number in range(levels):
        text = f"(nodeInfo.pods > {number} && {text} < 9{number} ? requested.cpu : requested.memory)"
    return f"{text} > 7"


def test_conditions_within_conditions_are_given_up_on_before_they_take_long():
    for levels in (5, 30):
        found = analysis(nested(levels))
        assert found.truth(found.checked.root) == EITHER
        assert all(value is not None for _, value in found.determined())


# -- soundness ---------------------------------------------------------------------------------------------------------

@st.composite
def numbers(draw: st.DrawFn, depth: int = 4) -> str:
    """Expressions of a number that nest at most so deep."""
    match draw(st.integers(0, 4 if depth else 1)):
        case 0:
            return draw(st.sampled_from(["metricAge", "nodeInfo.pods", "requested.cpu"]))
        case 1:
            return f"({draw(st.integers(-5, 5))})"
        case 2:
            left, right = draw(numbers(depth - 1)), draw(numbers(depth - 1))
            return f"({left} {draw(st.sampled_from('+-*/%'))} {right})"
        case 3:
            left, right = draw(numbers(depth - 1)), draw(numbers(depth - 1))
            return f"{draw(st.sampled_from(['math.greatest', 'math.least']))}({left}, {right})"
        case _:
            return f"({draw(bools(depth - 1))} ? {draw(numbers(depth - 1))} : {draw(numbers(depth - 1))})"


@st.composite
def bools(draw: st.DrawFn, depth: int = 4) -> str:
    """Expressions of a bool that nest at most so deep."""
    match draw(st.integers(0, 2 if depth else 0)):
        case 0:
            left, right = draw(numbers(max(0, depth - 1))), draw(numbers(max(0, depth - 1)))
            return f"({left} {draw(st.sampled_from(['<', '<=', '>', '>=', '==', '!=']))} {right})"
        case 1:
            return f"({draw(bools(depth - 1))} {draw(st.sampled_from(['&&', '||']))} {draw(bools(depth - 1))})"
        case _:
            return f"!{draw(bools(depth - 1))}"


ROWS = [
    {"metricAge": age, "nodeInfo": {"pods": pods}, "requested": {"cpu": cpu}}
    for age in (-7, 0, 2) for pods in (0, 1, 4) for cpu in (0, 3, 1000)
]


@settings(max_examples=60, deadline=None)
@given(bools())
def test_no_row_gives_another_answer_than_the_one_that_is_certain(text: str):
    found = analysis(text)
    certain = found.truth(found.checked.root)
    program = Program(found.checked)
    for row in ROWS:
        try:
            assert program.evaluate({name: row[name] for name in program.variables}) in certain
        except EvaluationError:
            continue


@settings(max_examples=60, deadline=None)
@given(numbers())
def test_no_row_gives_a_number_outside_of_the_range(text: str):
    found = analysis(text)
    bounds = found.range(found.checked.root)
    assert bounds is not None
    program = Program(found.checked)
    for row in ROWS:
        try:
            value = program.evaluate({name: row[name] for name in program.variables})
        except EvaluationError:
            continue
        assert bounds.low <= value <= bounds.high


def definitions(first: str, step: str, levels: int = 28, letter: str = "v") -> str:
    lines = []
    for level in range(levels):
        lines += [
            f"- name: {letter}{level}",
            f"  expression: \"{first if not level else step.replace('Y', f'variables.{letter}{level - 1}')}\"",
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("first", "step", "text"), [
    ("[1]", "[Y, Y]", "Y == Y"), ("[1]", "[Y, Y]", "[Y, Y].distinct().size() == 1"),
    ("[1]", "[Y, Y]", "[Y].indexOf(Y) == 0"),
    ("[1]", "[Y, Y]", "'%s'.format([Y]) == ''"), ("[1]", "[Y, Y]", "Y in [Y]"),
    ("[1]", "[Y, Y]", "sets.contains([Y], [Y])"),
    ("'a'", "Y + Y", "Y == ''"), ("'aa'", "Y.replace('a', Y)", "Y == ''"), ("'a'", "'%s%s'.format([Y, Y])", "Y == ''"),
    ("[1]", "[Y, Y].flatten()", "Y.size() == 0"),
])  # fmt: skip
def test_constants_that_grow_are_not_computed_to_the_end(first: str, step: str, text: str):
    expression = text.replace("Y", "variables.v27")
    lines = definitions(first, step)
    found = told(scheduler_policy(f'variables:\n{lines}filter:\n- name: it\n  expression: "{expression}"'))
    assert "KP013" in {rule for rule, _ in found} or "KP010" in {rule for rule, _ in found}


@pytest.mark.parametrize("expression", [
    "Y in [Y]", "Y == Z", "[Y] in [[Z]]", "dyn(pod.metadata.labels)[?'a'].orValue(Y) == Z",
    "dyn(pod.metadata.labels[?'a'].orValue('b')) in [Y]", "[Y, Z].all(each, each in [Z])", "{'a': Y}['a'] == Z",
    "[Y, Z].exists(each, dyn(pod.metadata.labels)[?'a'].orValue(each) == Z)",
])  # fmt: skip
def test_constants_that_grow_are_neither_printed_nor_compared(expression: str):
    levels = 21
    lines = definitions("[1]", "[Y, Y]", levels) + definitions("[2]", "[Y, Y]", levels, "w")
    text = expression.replace("Y", f"variables.v{levels - 1}").replace("Z", f"variables.w{levels - 1}")
    tracemalloc.start()
    try:
        found = told(scheduler_policy(f'variables:\n{lines}filter:\n- name: it\n  expression: "{text}"'))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {rule for rule, _ in found} & {"KP010", "KP013"}
    assert peak < 2**21, "a text of all elements has more bytes than there are elements"


def test_ordinary_constants_are_computed():
    assert truth("[1, 2].sum() > 2 && lists.range(3).size() < 4") == "always"


@pytest.mark.parametrize(("expression", "hint"), [
    ("false", "`match` says for which rows a bare `false` is meant; or else write the condition, or remove it"),
    ("nodeInfo.pods < 5 && nodeInfo.pods > 10", "no value meets it: are the bounds the right way round?"),
])
def test_the_hint_for_what_is_never_true_speaks_of_bounds_only_where_there_are_some(expression: str, hint: str) -> None:
    assert [each.found.help for each in findings(filtering(expression)) if each.rule.id == "KP011"] == [hint]
