"""A user's JSON Schema costs bounded time, opens nothing, and gives the same results as the library jsonschema."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load, schema
from koordpolicy.engine.documents.json_schema import JsonSchema
from koordpolicy.engine.documents.schema_faults import BadSchema
from koordpolicy.engine.documents.schema_run import Steps
from koordpolicy.engine.source import Problems, Source

NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1.0, "", "a", "b", "5s"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below, max_size=3),
    max_leaves=8,
)
COUNTS = st.integers(0, 2)
LEAVES = st.booleans() | st.fixed_dictionaries({}, optional={
    "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null", ["string", "null"]]),
    "enum": st.sampled_from([["a", "b"], [1, "a", True], [[1], {"a": 1}]]),
    "const": st.sampled_from(["a", 1, True, [1, "a"]]),
    "pattern": st.sampled_from(["^a", "^[0-9]+s$"]), "minimum": st.integers(-1, 2), "maximum": st.integers(-1, 2),
    "exclusiveMinimum": st.integers(-1, 2), "exclusiveMaximum": st.integers(-1, 2),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": COUNTS, "maxLength": COUNTS, "minItems": COUNTS, "maxItems": COUNTS, "uniqueItems": st.booleans(),
    "minProperties": COUNTS, "maxProperties": COUNTS, "required": st.lists(NAMES, max_size=2, unique=True),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
})
REFERENCES = st.sampled_from([{"$ref": "#/$defs/d"}, {"$ref": "#e"}, {"$dynamicRef": "#e"}])


def _holding(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(below, min_size=1, max_size=2)
    return st.fixed_dictionaries({}, optional={
        "properties": st.dictionaries(NAMES, below, max_size=3), "additionalProperties": below, "propertyNames": below,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c"]), below, max_size=2),
        "dependentSchemas": st.dictionaries(NAMES, below, max_size=2),
        "items": below, "prefixItems": some, "contains": below, "minContains": COUNTS, "maxContains": COUNTS,
        "anyOf": some, "allOf": some, "oneOf": some, "not": below, "if": below, "then": below, "else": below,
        "unevaluatedItems": below, "unevaluatedProperties": below,
    })


INNER = st.recursive(LEAVES, _holding, max_leaves=4)
WHOLE = st.recursive(LEAVES | REFERENCES, _holding, max_leaves=6)


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    whole = draw(WHOLE)
    if isinstance(whole, bool):
        return whole
    anchored = draw(INNER)
    return {
        **whole,
        "$defs": {
            "d": draw(INNER), "e": {"$anchor": "e", **anchored} if isinstance(anchored, dict) else {"$anchor": "e"},
        },
    }


@settings(max_examples=100, deadline=None)
@given(schemas(), VALUES)
def test_data_holds_where_jsonschema_says_that_it_holds(declared: Any, data: Any) -> None:
    expected = not list(jsonschema.Draft202012Validator(declared).iter_errors(data))
    assert (not JsonSchema(declared).faults(data, Steps.for_values(100))) == expected


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "abc", "#", "string"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(
        st.sampled_from(
            [
                "type", "properties", "items", "allOf", "required", "enum", "minimum", "minLength", "pattern",
                "multipleOf", "$ref", "dependentRequired", "$defs", "x", "uniqueItems", "if", "format", "title",
            ],
        ),
        below, max_size=3,
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(ODD, VALUES)
def test_whatever_stands_where_a_schema_should_is_understood_or_refused(declared: Any, data: Any) -> None:
    try:
        found = JsonSchema(declared)
    except BadSchema:
        return
    jsonschema.Draft202012Validator.check_schema(declared)
    found.faults(data, Steps.for_values(100))


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "schemas").glob("v1alpha2/*.json")), ids=lambda path: path.stem,
)
def test_every_schema_of_the_project_is_one(path: Path) -> None:
    if path.stem != "definitions":
        JsonSchema(schema(path.stem))


HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: x}\nspec:\n  filter:\n"
    "  - {name: f, expression: 'true'}\n"
)


def complaints(params: str, declared: str) -> list[str]:
    problems = Problems()
    loaded = load([Source("a.yaml", f"{HEAD}  params: {params}\n  paramsSchema: {declared}\n")])
    problems.extend(loaded.problems)
    compile_documents(loaded, problems)
    assert all(each.span is not None for each in problems.found)
    return [f"{each.span}: {each.message}" for each in problems.found]


def test_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for keyword in ("$ref", "$dynamicRef", "$schema", "$id", "$recursiveRef"):
            assert len(complaints("{a: 1}", f"{{{keyword}: '{address}'}}")) == 1
            assert len(complaints("{a: 1}", f"{{properties: {{a: {{{keyword}: '{address}', $ref: 'x'}}}}}}")) in (1, 2)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("reference", [
    "http://127.0.0.1:9/x", "https://json-schema.org/draft/2020-12/schema", "file:///etc/passwd", "/etc/passwd",
    "other.json#/a", "ftp://x", "urn:x:y", "",
    "//host/x", "data:,{}", "http:", "?x", "x#",
])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_reference_to_another_place_is_refused_where_it_stands(keyword: str, reference: str) -> None:
    assert complaints("{a: 1}", f"{{properties: {{a: {{'{keyword}': '{reference}'}}}}}}") == [(
        f"a.yaml:8:{39 + len(keyword)}: not a JSON Schema: `properties.a.{keyword}` refers to `{reference}`, which is "
        "outside of this "
        "schema: only references that begin with `#` are followed"
    )]


@pytest.mark.parametrize(("declared", "complaint"), [
    (
        "{$schema: 'http://json-schema.org/draft-07/schema#'}",
        (
            "a.yaml:8:27: not a JSON Schema: `$schema` is another dialect: write "
            "`https://json-schema.org/draft/2020-12/schema`, or leave it out"
        ),
    ),
    (
        "{properties: {a: {$schema: 'file:///x'}}}",
        (
            "a.yaml:8:44: not a JSON Schema: `properties.a.$schema` is another dialect: write "
            "`https://json-schema.org/draft/2020-12/schema`, or leave it out"
        ),
    ),
    (
        "{$id: 'https://example.com/x'}",
        "a.yaml:8:23: not a JSON Schema: `$id` is not local: remove it, references begin with `#`",
    ),
    (
        "{$recursiveRef: '#'}",
        "a.yaml:8:33: not a JSON Schema: `$recursiveRef` is not part of JSON Schema 2020-12: write `$ref: '#'`",
    ),
    (
        "{$ref: '#/$defs/none'}",
        "a.yaml:8:24: not a JSON Schema: `$ref` refers to `#/$defs/none`, which is not in this schema",
    ),
    ("{$ref: '#anchor'}", "a.yaml:8:24: not a JSON Schema: `$ref` refers to `#anchor`, which is not in this schema"),
    ("{properties: abc}", "a.yaml:8:30: not a JSON Schema: `properties` is not a mapping from names to schemas"),
    ("abc", "a.yaml:8:17: `spec.paramsSchema` is the string `abc`, not a mapping or `true` or `false`"),
    (
        "{type: [string, text]}",
        (
            "a.yaml:8:24: not a JSON Schema: `type` is not one or several of array, boolean, integer, null, number, "
            "object, string"
        ),
    ),
    ("{format: [x]}", "a.yaml:8:26: not a JSON Schema: `format` is not a string"),
    ("{multipleOf: 0}", "a.yaml:8:30: not a JSON Schema: `multipleOf` is not a finite number above 0"),
    ("{minimum: .nan}", "a.yaml:8:27: not a JSON Schema: `minimum` is not a finite number"),
    (
        "{pattern: '(?=a)'}",
        (
            "a.yaml:8:27: not a JSON Schema: `pattern` is not a pattern that RE2 knows: error parsing regexp: invalid "
            "perl operator: (?=: `(?=a)`"
        ),
    ),
    (
        "{patternProperties: {'(': {}}}",
        (
            "a.yaml:8:43: not a JSON Schema: `patternProperties.(` is not a pattern that RE2 knows: error parsing "
            "regexp: missing ): (: `(`"
        ),
    ),
    ("{$ref: '#'}", "a.yaml:8:17: not a JSON Schema: `the schema` leads back to itself without a step into the value"),
    ("{$defs: {a: {anyOf: [{$ref: '#/$defs/b'}]}, b: {not: {$ref: '#/$defs/a'}}}}",
     "a.yaml:8:38: not a JSON Schema: `$defs.a.anyOf[0]` leads back to itself without a step into the value"),
])
def test_what_is_no_schema_is_refused_where_it_stands(declared: str, complaint: str) -> None:
    assert complaints("{a: 1}", declared)[0] == complaint


def branching(depth: int) -> str:
    rules = ", ".join(
        f"d{n}: {{allOf: [{{$ref: '#/$defs/d{n + 1}'}}, {{$ref: '#/$defs/d{n + 1}'}}]}}" for n in range(depth)
    )
    return f"{{$defs: {{{rules}, d{depth}: {{type: object}}}}, $ref: '#/$defs/d0'}}"


def nested(keyword: str, depth: int) -> str:
    listed = keyword in ("allOf", "anyOf", "oneOf")
    return f"{{{keyword}: {'[' if listed else ''}" * depth + "{}" + f"{']' if listed else ''}}}" * depth


LONG = "[" + ", ".join(f"{{k: {n}, v: [{n}, '{n}']}}" for n in range(1500)) + "]"
HOSTILE = {
    "pattern": ("{a: '" + "a" * 5000 + "!'}", "{properties: {a: {pattern: '^(a+)+$'}}}"),
    "pattern-properties": (
        "{" + "a" * 5000 + "!: 1}", "{patternProperties: {'^(a+)+$': {}}, additionalProperties: {pattern: '(a*)*b'}}",
    ),
    "huge-patterns": (
        "{a: x}",
        "{properties: {a: {allOf: [" + ", ".join(f"{{pattern: '(\\pL{{{n}}}){{{n}}}'}}" for n in range(1, 300))
        + "]}}}",
    ),
    "large-patterns": (
        "{a: é}",
        "{properties: {a: {allOf: [" + ", ".join(f"{{pattern: '\\pL{{200}}x{n}'}}" for n in range(1000)) + "]}}}",
    ),
    "messages": ("{a: {" + ", ".join(f"k{n}: 1" for n in range(20_000)) + "}}", "{$defs: {" + ", ".join(
        f"d{n}: {{allOf: [" + ", ".join([f"{{$ref: '#/$defs/d{n + 1}'}}"] * 30) + "]}" for n in range(3)
    ) + ", d3: {not: true}}, properties: {a: {$ref: '#/$defs/d0'}}}"),
    "branching": ("{a: 1}", branching(20)),
    "branching-any": ("{a: 1}", branching(20).replace("allOf", "anyOf").replace("type: object", "type: string")),
    "branching-one": ("{a: 1}", branching(20).replace("allOf", "oneOf")),
    "branching-unevaluated": ("{a: 1}", branching(20).replace("{allOf", "{unevaluatedProperties: true, allOf")),
    "chain": (
        "{a: 1}",
        "{$defs: {" + ", ".join(f"d{n}: {{$ref: '#/$defs/d{n + 1}'}}" for n in range(3000))
        + ", d3000: {}}, $ref: '#/$defs/d0'}",
    ),
    "self-reference-through-items": (
        f"{{a: {'[' * 50}1{']' * 50}}}",
        (
            "{properties: {a: {$ref: '#/$defs/l'}}, $defs: {l: {anyOf: [{type: string}, {items: {$ref: '#/$defs/l'}}, "
            "{items: {$ref: '#/$defs/l'}}]}}}"
        ),
    ),
    "unique": (f"{{a: {LONG}}}", "{properties: {a: {uniqueItems: true}}}"),
    "unique-many-times": (
        f"{{a: {LONG}}}", "{properties: {a: {allOf: [" + ", ".join(["{uniqueItems: true}"] * 500) + "]}}}",
    ),
    "enum": (f"{{a: {LONG}, b: 7}}", f"{{properties: {{a: {{items: {{enum: {LONG}}}}}, b: {{enum: {LONG}}}}}}}"),
    "const": (f"{{a: {LONG}}}", f"{{properties: {{a: {{items: {{const: {LONG}}}}}}}}}"),
    "contains": (
        f"{{a: {LONG}}}",
        (
            "{properties: {a: {contains: {contains: {contains: false}}, unevaluatedItems: {allOf: [{unevaluatedItems: "
            "false}]}}}}"
        ),
    ),
    "required": (
        f"{{a: {LONG}}}", "{properties: {a: {items: {required: [" + ", ".join(f"r{n}" for n in range(3000)) + "]}}}}",
    ),
    "any-of-messages": (
        f"{{a: {LONG}}}", "{properties: {a: {anyOf: [" + ", ".join(["{items: {type: string}}"] * 200) + "]}}}",
    ),
    "deep-not": ("{a: 1}", nested("not", 50)),
    "deep-all": ("{a: 1}", nested("allOf", 25)),
    "defaults": ("{}", "{$defs: " + branching(14)[len("{$defs: "):].split(", $ref")[0] + ", properties: {" + ", ".join(
        f"p{n}: {{default: {{}}, $ref: '#/$defs/d0'}}" for n in range(1000)) + "}}"),
    "numbers": ("{a: 1.0e308, b: .inf, c: .nan, d: 9223372036854775807, e: -.inf}",
                "{additionalProperties: {multipleOf: 5.0e-324, minimum: 9223372036854775807, maximum: -1.0e308}}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_decided_within_a_bound(name: str) -> None:
    params, declared = HOSTILE[name]
    started = time.process_time()
    complaints(params, declared)
    # Reading the YAML is the larger part of it; what is not bounded takes minutes to years.
    assert time.process_time() - started < 10


def test_the_bound_is_named_with_the_place_of_the_params() -> None:
    assert complaints("{a: 1}", branching(20)) == [
        "a.yaml:7:3: validating params takes more than 7,540 steps: simplify the schema",
    ]


def test_a_value_of_many_parts_has_more_steps() -> None:
    items = {"items": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    assert JsonSchema(items).faults([{"a": 1}] * 10_000, Steps.for_values(20_001)) == []


def test_each_property_that_is_taken_over_holds_against_the_schema_of_its_own_document() -> None:
    shared = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\nmetadata: {name: p}\nspec:\n  params: {a: 1}\n"
        "  paramsSchema: {$defs: {d: {maximum: 5}}, properties: {a: {$ref: '#/$defs/d'}}}\n---\n"
    )
    own = (
        f"{HEAD}  paramsFrom: [{{name: p}}]\n  params: {{a: 7}}\n"
        f"  paramsSchema: {{$defs: {{d: {{maximum: 9}}}}, properties: {{b: {{$ref: '#/$defs/d'}}}}}}\n"
    )
    problems = Problems()
    compile_documents(load([Source("a.yaml", shared + own)]), problems)
    assert [f"{each.span}: {each.message}" for each in problems.found] == [
        "a.yaml:15:12: params of `x`: 7 is greater than the maximum of 5",
    ]


@pytest.mark.parametrize(("branches", "complaint"), [
    ("oneOf: [true, true, false]", "`params` fits more than one of its forms"),
    ("oneOf: [false, false]", "`params`: {'a': 1, 'b': 2} is not allowed here"),
    ("oneOf: [{required: []}, {required: [b]}]", "`params` fits more than one of its forms"),
    ("oneOf: [{required: [a]}, {required: [a, b]}]", "`params` fits more than one of its forms"),
    ("oneOf: [{required: [a]}, {required: [a]}]", "`params` fits more than one of its forms"),
    ("oneOf: [{required: [a]}, {required: [b]}, false]", "`params` fits more than one of its forms"),
    ("oneOf: [{required: [a]}, {required: [b]}]", "`params` has both `a` and `b`"),
    ("anyOf: [{required: [a, c]}, {required: [d, e]}]", "missing field `c` in `params`"),
    ("anyOf: [{required: [c]}, {required: [d]}]", "missing field in `params`"),
    ("anyOf: [false, {required: [c]}]", "`params`: {'a': 1, 'b': 2} is not allowed here"),
])
def test_a_choice_is_explained_whatever_its_branches_are(branches: str, complaint: str) -> None:
    assert [each.split(": ", 1)[1] for each in complaints("{a: 1, b: 2}", f"{{{branches}}}")] == [complaint]


def test_a_string_that_is_too_long_for_a_pattern_is_a_complaint() -> None:
    assert complaints("{a: " + "é" * 300 + "}", "{properties: {a: {pattern: '(?i)\\pL{190}'}}}") == [
        (
            "a.yaml:7:3: a string of 300 characters in params is too long for the pattern `(?i)\\pL{190}`: "
            "simplify the schema"
        ),
    ]


def test_a_list_of_thousands_of_values_is_gone_through_once() -> None:
    values = ", ".join(f"v{number}" for number in range(4_000))
    params = ", ".join(["v1"] * 3_000)
    declared = f"{{properties: {{a: {{items: {{enum: [{values}]}}}}}}}}"
    assert complaints(f"{{a: [{params}]}}", declared) == []
    assert complaints(f"{{a: [{params}, w]}}", declared)[0].startswith("a.yaml:7:") is True


@pytest.mark.parametrize(("listed", "value", "holds"), [
    ("[1, a, true, null, [1], {a: 1}]", "1.0", True), ("[1, a, true, null, [1], {a: 1}]", "true", True),
    ("[1]", "true", False), ("[true]", "1", False), ("['1']", "1", False), ("[[1, 2]]", "[2, 1]", False),
    ("[{a: 1, b: [2]}]", "{b: [2.0], a: 1}", True), ("[[]]", "{}", False), ("[]", "a", False),
])
def test_membership_follows_the_equality_of_json_schema(listed: str, value: str, *, holds: bool) -> None:
    assert (complaints(f"{{a: {value}}}", f"{{properties: {{a: {{enum: {listed}}}}}}}") == []) is holds


@pytest.mark.parametrize(("params", "declared", "message"), [
    ("{'': x}", "{properties: {'': {type: integer}}}", "`['']` is the string `x`, not a whole number"),
    ("{'': 1}", "{additionalProperties: false}", "unknown field without a name in `params`"),
    ("{a: 1}", "{required: ['']}", "missing field without a name in `params`"),
    ("{a: {'': {b: x}}}", "{properties: {a: {properties: {'': {properties: {b: {type: integer}}}}}}}",
     "`a[''].b` is the string `x`, not a whole number"),
    ("{a: 1}", "{type: string}", "`params` is a mapping, not a string"),
    ("{a: 1}", "{minProperties: 3}", "`params`: {'a': 1} has less than 3 fields"),
    ("{a: 1}", "{properties: {a: {const: true}}}", "`1` is not a value of `a`"),
    ("{a: false}", "{properties: {a: {const: true}}}", "`false` is not a value of `a`"),
    ("{a: null}", "{properties: {a: {enum: [1, [true]]}}}", "`null` is not a value of `a`"),
    ("{a: [true, null]}", "{properties: {a: {not: {const: [true, null]}}}}",
     "`a`: [true, null] is what `not` forbids"),
])
def test_a_complaint_names_the_params_and_fields_without_a_name(params: str, declared: str, message: str) -> None:
    assert [each.split(": ", 1)[1] for each in complaints(params, declared)] == [message]


@pytest.mark.parametrize(("allowed", "hint"), [
    ("const: true", "write `true`"), ("enum: [false, null]", "one of `false`, `null`"),
    ("enum: [[1, true], {a: null}, 1.5]", 'one of `[1, true]`, `{"a": null}`, `1.5`'),
])
def test_allowed_values_are_shown_as_yaml_has_them(allowed: str, hint: str) -> None:
    text = f"{HEAD}  params: {{a: b}}\n  paramsSchema: {{properties: {{a: {{{allowed}}}}}}}\n"
    (problem,) = load([Source("a.yaml", text)]).problems
    assert (problem.message, problem.help) == ("`b` is not a value of `a`", hint)


def test_a_misspelt_required_param_is_one_problem() -> None:
    declared = "{required: [percent], additionalProperties: false, properties: {percent: {}}}"
    for params, messages in (
        ("{percnt: 1}", ["unknown field `percnt` in `params`"]),
        ("{other: 1}", ["missing field `percent` in `params`", "unknown field `other` in `params`"]),
    ):
        assert [each.split(": ", 1)[1] for each in complaints(params, declared)] == messages
