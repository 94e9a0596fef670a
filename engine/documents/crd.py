"""CustomResourceDefinitions of the kinds of documents, made of their JSON Schemas.

A structural schema may hold less than a JSON Schema: no references, one type per field, no conditions. References are
inlined; conditions become validation rules in CEL; lists of named items become maps by their name, so that names are
unique. Fields that the schema does not know are pruned by the API server (`kubectl` refuses them). Defaults are left
out: a stored object is what its author wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .objects import PLURALS
from .specs import GROUP, VERSION, Kind
from .validation import schema

Json = dict[str, Any]

_VERSION: Final = VERSION.partition("/")[2]
_LONGEST_NAME: Final = 63
_COPIED: Final = frozenset((
    "description", "type", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "required"))
_DROPPED: Final = frozenset(("title", "$schema", "examples", "default", "x-wanted", "x-one-of", "x-language"))
_CONDITIONS: Final = frozenset(("if", "then", "else", "allOf", "oneOf"))
_ANY: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_RESERVED: Final = frozenset((
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while"))
"""Words of CEL, which the API server has between underscores where they are fields."""

_CONDITION: Final[Json] = {
    "type": "object", "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {"type": "string", "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
    },
}
_STATUS: Final[Json] = {
    "type": "object", "description": "What koord-policy makes of the object. It is written by one of its servers.",
    "properties": {
        "observedGeneration": {
            "type": "integer", "format": "int64", "description": "The `metadata.generation` that the status is about."},
        "hash": {"type": "string", "description": "sha256 of the observed document."},
        "activeGeneration": {
            "type": "integer", "format": "int64",
            "description": "The `metadata.generation` that decides; absent if none does, or it is not known."},
        "activeHash": {"type": "string", "description": "sha256 of the document that decides; absent if none does."},
        "conditions": {
            "type": "array", "description": "`Active` is True if the observed generation decides.", "items": _CONDITION,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        "errors": {
            "type": "array", "description": "Why the observed generation does not decide.",
            "items": {
                "type": "object", "required": ["message"],
                "properties": {
                    "message": {"type": "string", "description": "The problem."},
                    "help": {"type": "string", "description": "What to do about it."},
                    "code": {"type": "string", "description": "A stable identifier of the kind of fault."},
                    "field": {"type": "string", "description": "Where it is, such as `spec.filter[0].expression`."},
                    "object": {"type": "string", "description": "Kind and name of another object that the field is in; "
                                                                "or the file that it is in."},
                }}},
    },
}
_COLUMNS: Final = (
    {"name": "Active", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Active")].status',
     "description": "Whether the newest generation decides."},
    {"name": "Generation", "type": "integer", "jsonPath": ".status.activeGeneration",
     "description": "The generation that decides."},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Active")].reason',
     "description": "Why it is active or not."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Active")].message', "priority": 1,
     "description": "Problems of the observed generation."},
    {"name": "Hash", "type": "string", "jsonPath": ".status.hash", "priority": 1,
     "description": "sha256 of the newest document."},
)


class UnsupportedSchemaError(ValueError):
    """A JSON Schema says something that neither a structural schema nor a rule made here can say."""


def definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions of all kinds that live in a cluster, sorted by name."""
    return tuple(sorted((_definition(kind, plural) for kind, plural in PLURALS.items()),
                        key=lambda each: str(each["metadata"]["name"])))


def _definition(kind: Kind, plural: str) -> Json:
    declared = schema(kind.value)
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "koord-policy"}},
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {
                "kind": kind.value, "listKind": f"{kind.value}List", "plural": plural,
                "singular": kind.value.lower(), "categories": ["koord-policy"]},
            "versions": [{
                "name": _VERSION, "served": True, "storage": True, "subresources": {"status": {}},
                "additionalPrinterColumns": list(_COLUMNS),
                "schema": {"openAPIV3Schema": {
                    "type": "object", "description": declared["description"], "required": ["spec"],
                    "properties": {
                        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
                        "spec": structural(declared["properties"]["spec"], "spec"), "status": _STATUS},
                    "x-kubernetes-validations": [{
                        "rule": f"size(self.metadata.name) <= {_LONGEST_NAME}",
                        "message": f"a policy's name has at most {_LONGEST_NAME} characters",
                    }],
                }},
            }],
        },
    }


def structural(declared: Mapping[str, Any], path: str) -> Json:
    """Return the structural schema of a JSON Schema without references; `path` is its place, for errors.

    Raises `UnsupportedSchemaError` for keywords, or uses of them, that have no equivalent.
    """
    found: Json = {key: value for key, value in declared.items() if key in _COPIED}
    for key, value in declared.items():
        match key:
            case "properties":
                found["properties"] = {name: structural(each, f"{path}.{name}") for name, each in value.items()}
            case "items":
                found["items"] = structural(value, f"{path}[]")
            case "additionalProperties":
                if value is not False:
                    found["additionalProperties"] = structural(value, f"{path}.*")
            case "const":
                found["enum"] = [value]
            case "uniqueItems":
                if value:
                    found["x-kubernetes-list-type"] = "set"
            case _ if key not in _COPIED | _DROPPED | _CONDITIONS:
                raise UnsupportedSchemaError(f"`{path}` has `{key}`")
    if isinstance(declared.get("type"), list):
        del found["type"]
        found[_INT_OR_STRING if set(declared["type"]) == {"integer", "string"} else _ANY] = True
    elif declared.get("type") == "object" and "properties" not in declared and "additionalProperties" not in found:
        found[_ANY] = True
    elif "type" not in found:
        raise UnsupportedSchemaError(f"`{path}` has no type")
    if "name" in (found.get("items") or {}).get("required", ()):
        found |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    if rules := list(_rules(declared, path)):
        found["x-kubernetes-validations"] = rules
    return found


def _rules(declared: Mapping[str, Any], path: str) -> Iterable[Json]:
    """Yield the validation rules of the conditions of an object."""
    for part in (declared, *declared.get("allOf", ())):
        if "if" in part:
            condition = _expression(part["if"], path)
            if "then" in part:
                yield _rule(f"!({condition}) || ({_expression(part['then'], path)})",
                            f"where {_words(part['if'])}, {_words(part['then'])}")
            if "else" in part:
                yield _rule(f"{condition} || ({_expression(part['else'], path)})",
                            f"except where {_words(part['if'])}, {_words(part['else'])}")
    if "oneOf" in declared:
        branches = [_expression(each, path) for each in declared["oneOf"]]
        names = ", ".join(f"`{name}`" for each in declared["oneOf"] for name in each.get("required", ()))
        yield _rule(f"[{', '.join(branches)}].exists_one(given, given)", f"exactly one of {names} is needed")


def _rule(expression: str, message: str) -> Json:
    return {"rule": expression, "message": message}


def _expression(part: Mapping[str, Any], path: str) -> str:
    """Return the CEL expression that is true where an object fulfils a schema of required and restricted fields."""
    required = tuple(part.get("required", ()))
    terms = [f"has({_field(name)})" for name in required]
    for name, limits in part.get("properties", {}).items():
        field = _field(name)
        checks = []
        for key, value in limits.items():
            match key:
                case "const":
                    checks.append(f"{field} == {_literal(value)}")
                case "enum":
                    checks.append(f"{field} in [{', '.join(map(_literal, value))}]")
                case "minItems":
                    checks.append(f"size({field}) >= {value}")
                case "maxItems":
                    checks.append(f"size({field}) <= {value}")
                case _:
                    raise UnsupportedSchemaError(f"a condition of `{path}.{name}` has `{key}`")
        given = "" if name in required else f"!has({field}) || "
        terms += [f"({given}{check})" for check in checks]
    if unknown := part.keys() - {"required", "properties"}:
        raise UnsupportedSchemaError(f"a condition of `{path}` has `{min(unknown)}`")
    return " && ".join(terms) or "true"


def _field(name: str) -> str:
    return f"self.__{name}__" if name in _RESERVED else f"self.{name}"


def _words(part: Mapping[str, Any]) -> str:
    """Return a condition in words."""
    words = []
    for name, limits in part.get("properties", {}).items():
        for key, value in limits.items():
            match key:
                case "const":
                    words.append(f"`{name}` is `{value}`")
                case "enum":
                    words.append(f"`{name}` is {' or '.join(f'`{each}`' for each in value)}")
                case "minItems":
                    words.append(f"`{name}` has at least {value} item{'' if value == 1 else 's'}")
                case "maxItems":
                    words.append(f"`{name}` is left out" if value == 0 else f"`{name}` has at most {value} items")
    restricted = part.get("properties", {}).keys()
    words += [f"`{name}` is needed" for name in part.get("required", ()) if name not in restricted]
    return " and ".join(words)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
