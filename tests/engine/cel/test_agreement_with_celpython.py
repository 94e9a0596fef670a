from __future__ import annotations

import pytest

from koordpolicy.engine.cel import celpython
from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import DYN
from koordpolicy.engine.cel.values.values import EvaluationError, Uint
from koordpolicy.engine.source import PolicyError

POD = {
    "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web", "tier": "front"}},
    "spec": {
        "priority": 9000, "nodeSelector": {"zone": "a"},
        "containers": [
            {"name": "web", "image": "reg/web:v1", "resources": {"limits": {"cpu": "1"}}},
            {"name": "log", "image": "reg/log:v2"},
        ],
        "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "team", "operator": "Equal", "value": "a"}],
    },
}
NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a"}}, "allocatable": {"cpu": 8000, "memory": 2**34},
    "requested": {"cpu": 4100, "memory": 2**33},
    "spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}, "ratio": 0.25,
}
VALUES: dict[str, object] = {"pod": POD, "node": NODE, "no": {}}
ENVIRONMENT = Environment(functions=table(STANDARD), homogeneous_literals=False).with_variables(
    *(Variable(name, DYN) for name in VALUES),
)

AGREED = [
    # arithmetic and order
    "1 + 2 * 3 - 4", "-7 / 2", "-7 % 2", "7 % -2", "1.5 * 2.0", "1u + 2u", "7u / 2u", "-(3)", "1 < 2 && 2.5 >= 2.5",
    "'a' < 'b'", "b'a' == b'a'",
    "node.allocatable.cpu - node.requested.cpu >= 500", "node.requested.cpu * 100 / node.allocatable.cpu",
    "node.ratio < 0.5",
    # logic and what it absorbs
    "true || 1 / 0 == 1", "1 / 0 == 1 || true", "false && no.x == 1", "no.x == 1 && false",
    "pod.spec.priority > 5000 ? 'high' : 'low'", "!(1 == 2)",
    # fields, lists, maps
    "pod.metadata.name", "pod.metadata.labels['app'] == 'web'", "'tier' in pod.metadata.labels", "'x' in ['x', 'y']",
    "has(pod.spec.priority)",
    "has(pod.spec.nodeName)", "pod.spec.containers[0].name", "size(pod.spec.containers)", "pod.metadata.name.size()",
    "[1, 2] + [3]", "{'a': 1}['a']",
    "[1, 2] == [1, 2]", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}",
    # macros
    "pod.spec.containers.all(c, c.image.startsWith('reg/'))",
    "pod.spec.containers.exists(c, has(c.resources) == false)",
    "pod.spec.containers.filter(c, has(c.resources)).map(c, c.name)",
    "pod.spec.tolerations.exists_one(t, t.key == 'gpu')",
    "pod.spec.nodeSelector.all(k, k in node.metadata.labels && node.metadata.labels[k] == pod.spec.nodeSelector[k])",
    (
        "node.spec.taints.all(t, pod.spec.tolerations.exists(o, o.key == t.key && (o.operator == 'Exists' || o.value "
        "== t.value)))"
    ),
    # texts
    "pod.metadata.name.startsWith('web-')", "pod.metadata.name.endsWith('1')", "pod.metadata.namespace.contains('ho')",
    "'web-12'.matches('^web-[0-9]+$')",
    "'a' + 'b'",
    # conversions
    "int('42')", "double('1.5')", "string(42)", "uint(3)", "int(2.9)", "bytes('a')", "type(1) == int",
    "type('a') == string",
    # time
    "timestamp('2026-03-01T10:20:30Z') + duration('90m') == timestamp('2026-03-01T11:50:30Z')",
    "timestamp('2026-03-01T10:20:30Z').getHours()",
    "timestamp('2026-03-01T10:20:30Z').getMonth()", "duration('1h') > duration('59m')",
    "timestamp('2026-03-02T00:00:00Z') - timestamp('2026-03-01T00:00:00Z') == duration('24h')",
]
FAILING_IN_BOTH = [
    "1 / 0", "1 % 0", "pod.spec.nodeName", "[1, 2][2]", "{'a': 1}['b']", "int('x')", "1 / 0 == 1 && true",
    "9223372036854775807 + 1",
    "pod.spec.containers.all(c, c.resources.limits.cpu == '1')", "pod.metadata.name + 1", "timestamp('yesterday')",
]
DEVIATIONS = {
    "string(true)": "cel-python prints Python's True",
    "[1].map(x, x > 0, x + 1)": "cel-python has no map with a condition",
    "string(1.0)": "cel-python prints the point of a whole double",
    "timestamp(60)": "cel-python has no timestamps of seconds",
    "dyn(1) == 1u": "cel-python refuses to compare numbers across kinds",
    "[1, 2][-1]": "cel-python lets Python's negative indexes through",
    "{'a': 1}.exists(k, v, v == 1)": "cel-python has no macros of two variables",
    "{'a': 1}.?a": "cel-python has no optionals",
}


def ours(text: str) -> object:
    return compile_program(text, ENVIRONMENT).evaluate(VALUES)


@pytest.mark.parametrize("text", AGREED)
def test_both_engines_give_the_same_value(text: str) -> None:
    mine, other = ours(text), celpython.evaluate(text, VALUES)
    assert (mine, type(mine)) == (other, type(other))


@pytest.mark.parametrize("text", FAILING_IN_BOTH)
def test_both_engines_have_no_value(text: str) -> None:
    with pytest.raises((EvaluationError, PolicyError)):
        ours(text)
    with pytest.raises(EvaluationError):
        celpython.evaluate(text, VALUES)


@pytest.mark.parametrize("text", DEVIATIONS)
def test_a_known_deviation_still_is_one(text: str) -> None:
    def answer(evaluate: object) -> object:
        try:
            return evaluate(text)  # type: ignore[operator]
        except (EvaluationError, PolicyError):
            return "no value"

    assert answer(ours) != answer(lambda text: celpython.evaluate(text, VALUES)), DEVIATIONS[text]


def test_what_cel_python_cannot_parse_is_a_problem_with_a_place() -> None:
    with pytest.raises(PolicyError) as caught:
        celpython.evaluate("1 +\n* 2", {})
    assert [(each.message, str(each.span)) for each in caught.value.problems] == [
        ("cel-python cannot parse this", "<expression>:2:1"),
    ]


def test_functions_take_and_return_plain_values() -> None:
    assert celpython.evaluate("twice(x) + 1u", {"x": Uint(3)}, {"twice": lambda number: Uint(number * 2)}) == Uint(7)
