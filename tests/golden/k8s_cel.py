"""Results of Kubernetes' own CEL library: value, type, error and place of the first issue, and the cost.

An error that Kubernetes finds at one stage may be found here at that stage or before. Texts are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.check.signatures import show
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.kubernetes.library import FUNCTIONS
from koordpolicy.engine.source import PolicyError

from . import cel_values
from .result import Result

_SUITE = "k8s_cel"
_FORMATS = {"byte": BYTES, "date": TIMESTAMP, "date-time": TIMESTAMP, "duration": DURATION}
_SCALARS = {"boolean": BOOL, "integer": INT, "number": DOUBLE, "string": STRING}


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Compare every case: one result for the answer, and one, with an id that ends in `:cost`, for its cost."""
    content = json.loads(path.read_text(encoding="utf-8"))
    types: dict[str, ObjectType] = {}
    schema = content["schema_of_self"]
    _declare("selfType", schema, types, root=True)
    plain = Environment(functions=FUNCTIONS)
    environments = {
        None: plain,
        "self": plain.with_types(*types.values()).with_variables(Variable("self", Type("selfType"))),
        "object": plain.with_variables(Variable("object", DYN)),
    }
    bindings = {"self": _named(content["self"], schema), "object": content["object"]}
    for number, case in enumerate(content["cases"]):
        name = f"{case['group']}:{number:04} {case['expr']}"
        answer, cost = _compare(case, environments[case.get("vars")], bindings)
        yield Result(_SUITE, name, *answer)
        if cost is not None:
            yield Result(_SUITE, f"{name}:cost", *cost)


_Answer = tuple[bool, str]


def _compare(
    case: dict[str, Any], environment: Environment, bindings: Mapping[str, Any],
) -> tuple[_Answer, _Answer | None]:
    try:
        program = compile_program(case["expr"], environment)
    except PolicyError as error:
        return _compare_refusal(case, error), None
    if "compile_error" in case:
        return (False, f"accepted, but: {case['compile_error']}"), None
    used = {name: bindings[name] for name in program.variables}
    try:
        value = cel_values.show(program.evaluate(used))
        exact, cost = program.metered(used)
    except EvaluationError as error:
        failed = "eval_error" in case or "program_error" in case
        return (failed, f"wanted {case.get('value')}, failed: {error.message}"), None
    answer = _compare_value(case, program, value, cel_values.show(exact))
    return answer, _compare_cost(case, cost)


def _compare_value(case: dict[str, Any], program: Program, value: Any, exact: Any) -> _Answer:
    if "eval_error" in case or "program_error" in case:
        return False, f"found {value}, but: {case.get('eval_error') or case['program_error']}"
    if value != exact:
        return False, f"the fast evaluator says {value}, the exact one {exact}"
    if "value" not in case:
        return True, ""
    wanted = cel_values.show_wanted(case["value"])
    if case.get("unordered"):
        value, wanted = (sorted(each["list"], key=str) for each in (value, wanted))
    if value != wanted:
        return False, f"wanted {wanted}, found {value}"
    types = (str(cel_values.read_type(case["type"])), str(cel_values.read_type(show(program.type))))
    return types[0] == types[1], f"wanted type {types[0]}, found {types[1]}"


def _compare_refusal(case: dict[str, Any], error: PolicyError) -> _Answer:
    message = error.problems[0].message
    if "compile_error" not in case:
        return "eval_error" in case or "program_error" in case, f"refused: {message}"
    first, span = case["issues"][0], error.problems[0].span
    assert span is not None
    found = span.place[1:]
    wanted = (first["line"], first["column0"] + 1)
    return found == wanted, f"refused at {found}, not at {wanted}: {message}; {first['message']}"


def _compare_cost(case: dict[str, Any], cost: int) -> _Answer | None:
    if "cost_range" in case:
        low, high = case["cost_range"]
        return int(low) <= cost <= int(high), f"wanted {low} to {high}, found {cost}"
    if "cost" not in case or "value" not in case:
        return None
    return cost == case["cost"], f"wanted {case['cost']}, found {cost}"


# --- the schema of `self` --------------------------------------------------------------------------------------------


def _declare(name: str, schema: dict[str, Any], types: dict[str, ObjectType], *, root: bool = False) -> Type:
    if schema.get("x-kubernetes-int-or-string"):
        return DYN
    kind = schema.get("type")
    if kind == "array":
        return list_of(_declare(f"{name}.@idx", schema["items"], types))
    if kind == "object":
        if "additionalProperties" in schema:
            return map_of(STRING, _declare(f"{name}.@elem", schema["additionalProperties"], types))
        fields = {
            _escaped(key): Field(
                _declare(f"{name}.{_escaped(key)}", each, types), list_type=each.get("x-kubernetes-list-type", ""),
                list_keys=tuple(each.get("x-kubernetes-list-map-keys", ())),
            )
            for key, each in schema.get("properties", {}).items()
        }
        if root or schema.get("x-kubernetes-embedded-resource"):
            meta = f"{name}.metadata"
            types[meta] = ObjectType(meta, {"name": Field(STRING), "generateName": Field(STRING)})
            fields |= {"apiVersion": Field(STRING), "kind": Field(STRING), "metadata": Field(Type(meta))}
        types[name] = ObjectType(name, fields)
        return Type(name)
    return _FORMATS.get(schema.get("format", ""), _SCALARS[kind])  # type: ignore[index]


def _escaped(name: str) -> str:
    for plain, word in (("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")):
        name = name.replace(plain, f"__{word}__")
    return name


def _named(value: Any, schema: dict[str, Any]) -> Any:
    """Return an object under the names that expressions know its fields by."""
    if isinstance(value, list):
        return [_named(each, schema.get("items", {})) for each in value]
    if isinstance(value, dict) and "additionalProperties" not in schema:
        properties = schema.get("properties", {})
        return {_escaped(key): _named(each, properties.get(key, {})) for key, each in value.items()}
    return f"{value}T00:00:00Z" if schema.get("format") == "date" else value
