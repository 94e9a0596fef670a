"""Params: what is wrong with them is reported at their lines, and a plugin is made with those of all sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import PolicyError, Problems, Source

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: under-test}\nspec:\n"
SCHEMA = """\
  paramsSchema:
    type: object
    properties:
      percent: {type: integer, maximum: 100}
      after: {type: string, format: duration, default: soon}
      windows: {type: array, items: {type: string, format: duration}}
"""


def compiled(spec: str, *, shared: str = "") -> Plugin:
    (found,) = compile_documents(load([Source("a.yaml", f"{shared}{HEAD}{spec}")]))
    return found


def params_of(spec: str, *, shared: str = "", args: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the params of a document that is made with these arguments."""
    params: Mapping[str, Any] = compiled(spec, shared=shared).make(args or {}, None).params
    return params


def shared_params(spec: str) -> str:
    return f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\nmetadata: {{name: p}}\nspec: {spec}\n---\n"


def lines(params: str, schema: str = SCHEMA) -> list[int]:
    """Return the lines of the complaints about a document's params; the first line of the document is 1."""
    text = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata:\n  name: example\nspec:\n"
        f"{params}{schema}  filter:\n  - {{name: it, expression: requests.cpu < 1000}}\n"
    )
    with pytest.raises(PolicyError) as caught:
        compile_documents(load([Source("policy.yaml", text)]))
    return [each.span.place[1] for each in caught.value.problems if each.span is not None]


def test_a_time_that_cannot_be_read_is_reported_at_its_line():
    assert lines("  params:\n    percent: 60\n    after: 5 minutes\n") == [8]


def test_so_is_one_inside_of_a_list():
    assert lines("  params:\n    after: 1h\n    windows:\n    - 1h\n    - never\n") == [10]


def test_a_default_that_cannot_be_read_is_reported_where_it_is_declared():
    assert lines("  params:\n    percent: 60\n") == [12]


def test_of_many_faults_of_params_a_thousand_are_reported_and_that_there_are_more():
    many = f"  params: {{modes: [{', '.join(f'm{number}' for number in range(3000))}]}}\n"
    modes = ", ".join(f"{number}z" for number in range(500))
    schema = f"  paramsSchema: {{properties: {{modes: {{items: {{enum: [{modes}]}}}}}}}}\n"
    text = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata:\n  name: example\nspec:\n"
        f"{many}{schema}  filter:\n  - {{name: it, expression: requests.cpu < 1000}}\n"
    )

    with pytest.raises(PolicyError) as caught:
        compile_documents(load([Source("policy.yaml", text)]))

    of_values = [each for each in caught.value.problems if "is not a value" in each.message]
    assert len(of_values) == 1000
    assert of_values[7].help.endswith("and 470 more")
    assert [each.message for each in caught.value.problems if "more than" in each.message] == [
        "there are more than 1,000 faults here: the others are not shown"]


def test_params_are_shared_and_overridden_in_order() -> None:
    shared = shared_params("{params: {low: 1, high: 2, own: 3}}")
    spec = (
        "  paramsFrom: [{name: p}]\n  params: {own: 4}\n"
        "  filter:\n  - {name: x, expression: params.low + params.high + params.own > 0}\n"
    )
    assert params_of(spec, shared=shared, args={"high": 20}) == {"low": 1, "high": 20, "own": 4}
    with pytest.raises(ValueError, match="under-test") as caught:
        params_of(spec, shared=shared, args={"hihg": 1, "low": "x"})
    assert str(caught.value) == (
        "`under-test` has no param `hihg`: did you mean `high`?; the param `low` of `under-test` is `x`, not of the "
        "type int"
    )


def test_params_hold_against_their_own_schema() -> None:
    spec = (
        "  params: {ratio: 1}\n"
        "  paramsSchema: {properties: {ratio: {type: number, maximum: 2}, zone: {type: string}}}\n"
        "  filter:\n  - {name: x, expression: 'params.ratio * 2.0 == 3.0 || has(params.zone)'}\n"
    )
    assert params_of(spec, args={"ratio": 1.5}) == {"ratio": 1.5}
    assert params_of(spec, args={"zone": "x"}) == {"ratio": 1.0, "zone": "x"}
    with pytest.raises(ValueError, match="3 is greater than the maximum of 2"):
        params_of(spec, args={"ratio": 3})


def test_params_that_nobody_gives_have_the_default_of_their_schema() -> None:
    shared = shared_params(
        "{params: {given: 1}, "
        "paramsSchema: {properties: {low: {default: 2}, given: {default: 9}, both: {default: 9}}}}")
    spec = (
        "  paramsFrom: [{name: p}]\n  params: {own: 4}\n  paramsSchema:\n    required: [zones, both]\n"
        "    properties:\n"
        "      zones: {type: array, items: {type: string}, default: [a, b]}\n      both: {type: integer, default: 3}\n"
        "      own: {type: integer, default: 9}\n      absent: {type: integer}\n"
        "  filter:\n  - {name: x, expression: '!has(params.absent) && params.low + params.both > 0'}\n"
    )
    whole = {"given": 1, "low": 2, "both": 3, "zones": ["a", "b"]}
    assert params_of(spec, shared=shared) == {**whole, "own": 4}
    assert params_of(spec, shared=shared, args={"own": 5}) == {**whole, "own": 5}


def test_a_default_holds_against_its_own_schema() -> None:
    spec = (
        "  paramsSchema:\n    $defs: {percent: {type: integer, maximum: 100}}\n    required: [good, high]\n"
        "    properties:\n"
        "      good: {$ref: '#/$defs/percent', default: 65}\n      high: {$ref: '#/$defs/percent', default: 165}\n"
        "      text: {type: string, default: 1}\n      huge: {default: {a: 18446744073709551615}}\n"
        "  filter:\n  - {name: x, expression: params.good < 70}\n"
    )
    with pytest.raises(PolicyError) as caught:
        params_of(spec)
    assert [(problem.span.place[1:], problem.message) for problem in caught.value.problems if problem.span] == [
        ((10, 48), "`high` is 165"),
        ((11, 37), "`text` is the number `1`, not a string"),
        ((12, 27), "`18446744073709551615` is larger than the largest integer of expressions"),
    ]


@pytest.mark.parametrize(("shared", "own", "told"), [
    (
        "{params: {x: abc}}", "paramsSchema: {properties: {x: {type: integer}}}",
        "a.yaml:10:23: 'abc' is not of type 'integer'",
    ),
    (
        "{params: {x: 1}, paramsSchema: {properties: {x: {type: integer}}}}", "params: {x: abc}",
        "a.yaml:11:12: 'abc' is not of type 'integer'",
    ),
    ("{params: {y: 1}}", "paramsSchema: {required: [x]}", "a.yaml:8:18: 'x' is a required property"),
    ("{params: {x: 1}}", "paramsSchema: {required: [x]}", ""),
])
def test_shared_and_own_params_hold_against_the_schema_together(shared: str, own: str, told: str) -> None:
    spec = f"  paramsFrom: [{{name: p}}]\n  {own}\n  filter:\n  - {{name: x, expression: 'true'}}\n"
    problems = Problems()
    compile_documents(load([Source("a.yaml", f"{shared_params(shared)}{HEAD}{spec}")]), problems)
    assert [f"{each.span}: {each.message}" for each in problems.found] == (
        [told.replace(": '", ": params of `under-test`: '", 1)] if told else []
    )


def test_a_param_that_is_no_time_or_span_is_told_when_it_is_declared_as_one() -> None:
    spec = (
        "  params: {grace: soon, deep: {at: [noon]}}\n  paramsSchema:\n    properties:\n"
        "      grace: {type: string, format: duration}\n"
        "      deep: {type: object, properties: {at: {type: array, items: {type: string, format: date-time}}}}\n"
        "  filter:\n  - {name: x, expression: 'true'}\n"
    )
    with pytest.raises(PolicyError) as caught:
        compile_documents(load([Source("a.yaml", f"{HEAD}{spec}")]))
    assert [each.message for each in caught.value.problems] == [
        "the param `grace` of `under-test`: `soon` is not a duration: write it as 1h30m, 1.5s or 250ms (a day is 24h)",
        "the param `deep.at.0` of `under-test`: `noon` is not a timestamp: write it as 2006-01-02T15:04:05Z",
    ]


EXTENDED = (
    "{port: {x-kubernetes-int-or-string: true},"
    " names: {type: array, items: {}, x-kubernetes-list-type: set},"
    " rules: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, zone],"
    " items: {properties: {ports: {additionalProperties: {x-kubernetes-int-or-string: true}}}}}}"
)


@pytest.mark.parametrize(("params", "told"), [
    ("{port: 1.5}", ["`port` of `under-test`: `1.5` is neither an integer nor a string"]),
    ("{port: true}", ["`port` of `under-test`: `true` is neither an integer nor a string"]),
    ("{port: 80}", []), ("{port: 10%}", []),
    ("{names: [1, a, 1, {x: 1, y: 2}, {y: 2, x: 1}]}", [
        "`names.2` of `under-test`: `1` is in the list twice",
        '`names.4` of `under-test`: `{"y": 2, "x": 1}` is in the list twice',
    ]),
    ("{names: [1, '1', [1], [2]]}", []),
    ("{rules: [{name: a, zone: b}, {name: a, zone: b, more: 1}, {name: a}, 5]}", [
        '`rules.1` of `under-test`: `{"name": "a", "zone": "b"}` is in the list twice',
        "`rules.2` of `under-test`: it has no `zone`, a key that identifies an element of the list",
        "`rules.3` of `under-test`: it has no `name`, a key that identifies an element of the list",
    ]),
    ("{rules: [{name: a, zone: b}, {name: a, zone: c, ports: {x: 1, y: [1]}}]}", [
        "`rules.1.ports.y` of `under-test`: `[1]` is neither an integer nor a string",
    ]),
])
def test_a_param_holds_against_the_extensions_of_kubernetes(params: str, told: list[str]) -> None:
    spec = f"  params: {params}\n  paramsSchema: {{properties: {EXTENDED}}}\n"
    problems = Problems()
    source = Source("a.yaml", f"{HEAD}{spec}  filter:\n  - {{name: x, expression: 'true'}}\n")
    compile_documents(load([source]), problems)
    assert [each.message for each in problems.found] == [f"the param {each}" for each in told]


def test_a_span_that_is_too_long_is_told_how_to_be_written() -> None:
    spec = (
        "  params: {grace: 99999999999999999999h}\n"
        "  paramsSchema: {properties: {grace: {type: string, format: duration}}}\n"
        "  filter:\n  - {name: x, expression: 'true'}\n"
    )
    with pytest.raises(PolicyError) as caught:
        compile_documents(load([Source("a.yaml", f"{HEAD}{spec}")]))
    (problem,) = caught.value.problems
    assert problem.message == (
        "the param `grace` of `under-test`: `99999999999999999999h` is too long for a duration: at most 292 years,"
        " written as 1h30m, 1.5s or 250ms")


def test_a_param_that_the_schema_requires_is_missed_also_where_there_are_no_params() -> None:
    with pytest.raises(PolicyError, match="missing field `x`"):
        params_of("  paramsSchema: {required: [x]}\n  filter:\n  - {name: x, expression: 'true'}\n")


def test_the_digest_of_a_plugin_follows_shared_params() -> None:
    def digest(value: int) -> str:
        spec = "  paramsFrom: [{name: p}]\n  filter: [{name: x, expression: params.a == 1}]\n"
        return compiled(spec, shared=shared_params(f"{{params: {{a: {value}}}}}")).digest

    assert digest(1) == digest(1) != digest(2)


def test_a_shared_param_of_another_type_makes_another_plugin() -> None:
    def digest(kind: str) -> str:
        shared = shared_params(f"{{params: {{x: 1}}, paramsSchema: {{properties: {{x: {{type: {kind}}}}}}}}}")
        spec = "  paramsFrom: [{name: p}]\n  filter:\n  - {name: x, expression: string(params.x) == '1'}\n"
        return compiled(spec, shared=shared).digest

    assert digest("integer") != digest("number")
