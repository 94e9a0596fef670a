"""Keywords of a paramsSchema that have no effect are found, with a hint."""

from __future__ import annotations

import pytest

from koordpolicy.engine.lint.edits import apply

from .conftest import HEAD, findings, marked, scheduler_policy


def policy(schema: str) -> str:
    """Return a document with a schema in YAML's flow style."""
    return scheduler_policy(f"paramsSchema: {schema}\nfilter:\n- {{name: it, expression: nodeInfo.pods < 9}}")


def found(text: str) -> list[tuple[str, str, str]]:
    """Return marked text, message and help of the findings about schemas."""
    return [(marked(each), each.found.message.removesuffix(", in the schema of the params"), each.found.help)
            for each in findings(text) if each.rule.id == "KP024"]


def in_property(schema: str) -> list[tuple[str, str, str]]:
    return found(policy(f"{{properties: {{pool: {schema}}}}}"))


@pytest.mark.parametrize(("given", "similar"), [
    ("maxLenght: 3", "maxLength"), ("minlength: 3", "minLength"), ("patern: a", "pattern"), ("maxmum: 3", "maximum"),
    ("requierd: [a]", "required"), ("propertys: {}", "properties"),
    ("additionalproperties: false", "additionalProperties"),
    ("uniqueitems: true", "uniqueItems"), ("typ: string", "type"), ("enums: [a]", "enum"), ("anyof: [true]", "anyOf"),
    ("defaults: 3", "default"), ("descripton: a", "description"),
])
def test_a_misspelt_keyword_is_found_where_it_stands_and_mended(given: str, similar: str) -> None:
    keyword = given.partition(":")[0]
    text = policy(f"{{properties: {{pool: {{{given}}}}}}}")
    assert found(text) == [
        (keyword, f"`{keyword}` is not a keyword of JSON Schema", f"did you mean `{similar}`?"),
    ]
    edits = [each.found.fix() for each in findings(text) if each.rule.id == "KP024" and each.found.fix is not None]
    assert apply(each for each in edits if each) == {"policy.yaml": text.replace(keyword, similar)}


@pytest.mark.parametrize("schema", [
    "{{{bad}}}", "{{properties: {{a: {{{bad}}}}}}}", "{{properties: {{a: {{items: {{{bad}}}}}}}}}",
    "{{additionalProperties: {{{bad}}}}}", "{{patternProperties: {{a: {{{bad}}}}}}}", "{{allOf: [true, {{{bad}}}]}}",
    "{{if: {{{bad}}}, then: true}}", "{{not: {{not: {{{bad}}}}}}}", "{{$ref: '#/$defs/a', $defs: {{a: {{{bad}}}}}}}",
    "{{$ref: '#a', $defs: {{a: {{$anchor: a, {bad}}}}}}}", "{{properties: {{a: {{prefixItems: [{{{bad}}}]}}}}}}",
    "{{dependentSchemas: {{a: {{{bad}}}}}}}", "{{propertyNames: {{{bad}}}}}",
])
def test_a_misspelt_keyword_is_found_in_every_subschema(schema: str) -> None:
    text = policy(schema.format(bad="maxLenght: 3"))
    assert found(text) == [
        ("maxLenght", "`maxLenght` is not a keyword of JSON Schema", "did you mean `maxLength`?"),
    ]


@pytest.mark.parametrize(("given", "help_"), [
    ("nullable: true", "it is OpenAPI's: write a list of types, such as `type: [string, 'null']`"),
    ("dependencies: {a: [b]}", "write `dependentRequired` or `dependentSchemas`"),
    ("additionalItems: false", "write `items` beside `prefixItems`"),
    ("example: a", "write `examples`, a list"),
])
def test_a_keyword_of_openapi_or_an_older_draft_is_found_with_what_to_write(given: str, help_: str) -> None:
    keyword = given.partition(":")[0]
    assert in_property(f"{{{given}}}") == [(keyword, f"`{keyword}` is not a keyword of JSON Schema 2020-12", help_)]


@pytest.mark.parametrize(("given", "marked_text", "message", "help_"), [
    ("type: string, format: email", "format", "the format `email` is not checked",
     "checked are `byte`, `date-time`, `duration`; write a `pattern` for others"),
    ("type: string, format: datetime", "format", "the format `datetime` is not checked", "did you mean `date-time`?"),
    ("format: duration", "format", "the format `duration` is checked beside `type: string` only", "add `type: string`"),
    ("anyOf: [{type: string, format: duration}]", "format", "the format `duration` is not checked here",
     "write it where the param is declared, under `properties`, `items` or `additionalProperties`"),
    ("type: string, contentEncoding: base64", "contentEncoding", "`contentEncoding` is not checked",
     "write `format: byte` for base64, or a `pattern`"),
    ("properties: {a: {default: 3}}", "default", "`default` has no effect here", "write it for the param as a whole"),
    ("then: {minimum: 3}", "then", "`then` has no effect without `if`", "add `if`, or remove it"),
    ("if: {minimum: 3}", "if", "`if` has no effect without `then` or `else`", "add `then` or `else`, or remove it"),
    ("minContains: 2", "minContains", "`minContains` has no effect without `contains`", "add `contains`, or remove it"),
    ("type: integer, maxLength: 3", "maxLength", "`maxLength` has no effect on the type integer",
     "it applies to string"),
    ("type: string, minimum: 3", "minimum", "`minimum` has no effect on the type string",
     "it applies to integer or number"),
    ("type: [string, 'null'], items: {type: string}", "items", "`items` has no effect on the type null or string",
     "it applies to array"),
    ("$defs: {a: {type: string}}", "a", "nothing refers to the definition `a`",
     "write `$ref: '#/properties/pool/$defs/a'` where it applies, or remove it"),
    ("x-kubernetes-list-typ: set", "x-kubernetes-list-typ", "`x-kubernetes-list-typ` has no effect on params",
     "did you mean `x-kubernetes-list-type`?"),
])
def test_a_keyword_without_effect_is_found(given: str, marked_text: str, message: str, help_: str) -> None:
    assert in_property(f"{{{given}}}") == [(marked_text, message, help_)]


@pytest.mark.parametrize("schema", [
    "{type: string, format: date-time}", "{type: array, items: {type: string, format: duration}}",
    "{type: object, additionalProperties: {type: string, format: byte}}", "{type: string, default: a}",
    "{type: [string, integer], maxLength: 3, minimum: 3}", "{maxLength: 3, minimum: 3}",
    "{title: a, description: b, examples: [a], $comment: c, deprecated: true, readOnly: true, x-mine: 3}",
    "{if: {minimum: 3}, else: {minimum: 1}}", "{contains: {const: 1}, maxContains: 3}",
    "{x-kubernetes-int-or-string: true}", "{type: number, multipleOf: 2, exclusiveMaximum: 9}", "true",
])
def test_a_keyword_with_an_effect_and_a_note_are_not_found(schema: str) -> None:
    assert in_property(schema) == []


def test_a_definition_is_used_by_reference_from_outside_of_it_only() -> None:
    used = (
        "{properties: {p: {$ref: '#/$defs/a'}}, $defs: {a: {$ref: '#/definitions/c/d'}}, "
        "definitions: {c: {d: {type: string}}, e: {type: string}}}"
    )
    assert [each[:2] for each in found(policy(used))] == [("e", "nothing refers to the definition `e`")]
    unused = "{$defs: {a: {items: {$ref: '#/$defs/a'}}}}"
    assert [each[:2] for each in found(policy(unused))] == [("a", "nothing refers to the definition `a`")]


def test_the_schema_of_policy_params_is_checked_too() -> None:
    spec = "  params: {a: b}\n  paramsSchema: {properties: {a: {maxLenght: 3}}}\n"
    assert [each[0] for each in found(HEAD.format(kind="PolicyParams", name="shared") + spec)] == ["maxLenght"]


def test_a_schema_of_many_unknown_keywords_is_reported_quickly_and_whole() -> None:
    words = ", ".join(f"maxLenght{number}: 1" for number in range(5000))
    reported = in_property(f"{{{words}}}")
    assert len(reported) == 5000
    assert [help_ for _, _, help_ in reported[:2]] == ["did you mean `maxLength`?"] * 2
    assert reported[-1][2] == "remove it; names of your own begin with `x-`"


_MAP = "x-kubernetes-list-type: map, x-kubernetes-list-map-keys"
_WITHOUT_VALUE = "has no effect with this value"
_KIND, _KEYS, _EITHER = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-int-or-string"
_PLACE = "write it where the param is declared, under `properties`"


@pytest.mark.parametrize(("schema", "told"), [
    (f"{_EITHER}: 'yes'", (_EITHER, f"`{_EITHER}` {_WITHOUT_VALUE}", "it is `true` or `false`")),
    (f"{_KIND}: sets", (_KIND, f"`{_KIND}` {_WITHOUT_VALUE}", "it is `atomic`, `set` or `map`")),
    (f"{_MAP}: x", (_KEYS, f"`{_KEYS}` {_WITHOUT_VALUE}", "it is a list of names")),
    (f"{_MAP}: []", (_KEYS, f"`{_KEYS}` {_WITHOUT_VALUE}", "it is a list of names")),
    (f"type: string, {_KIND}: set", (_KIND, f"`{_KIND}` has no effect on the type string", "it applies to array")),
    (f"{_KEYS}: [a]", (
        _KEYS, f"`{_KEYS}` has no effect without `{_KIND}: map`", "add it, or remove the keys")),
    (f"{_KIND}: map", (
        _KIND, f"`{_KIND}: map` has no effect without `{_KEYS}`",
        "add the keys that identify an element, or write `set`")),
    (f"items: {{{_KIND}: set}}", (_KIND, f"`{_KIND}` has no effect here", _PLACE)),
    (f"allOf: [{{{_EITHER}: true}}]", (_EITHER, f"`{_EITHER}` has no effect here", _PLACE)),
])
def test_an_extension_of_kubernetes_without_effect_is_found(schema: str, told: tuple[str, str, str]) -> None:
    assert in_property(f"{{{schema}}}") == [told]


@pytest.mark.parametrize("schema", [
    f"{_EITHER}: true", f"{_EITHER}: false", f"type: array, {_KIND}: set", f"{_KIND}: atomic", f"{_MAP}: [a, b]",
    f"items: {{{_EITHER}: true}}", f"properties: {{a: {{{_KIND}: set}}}}",
    f"items: {{properties: {{a: {{{_KIND}: set}}}}}}",
])
def test_an_extension_of_kubernetes_with_effect_is_not_found(schema: str) -> None:
    assert in_property(f"{{{schema}}}") == []
