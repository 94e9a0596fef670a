"""Params of documents: their origins, their types, and overrides by profiles."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, Type
from koordpolicy.engine.cel.values.values import Duration, EvaluationError, Timestamp
from koordpolicy.engine.documents import Document, ParamsSpec, PluginSpec, place_of
from koordpolicy.engine.documents.json_schema import JsonSchema
from koordpolicy.engine.documents.schema_run import Steps, count_values
from koordpolicy.engine.documents.validation import written
from koordpolicy.engine.framework.typed_values import Typed, typed
from koordpolicy.engine.source import Problems, Span, did_you_mean
from koordpolicy.engine.texts import quoted_list


@dataclass(frozen=True, slots=True)
class ParamsSchema:
    """The schemas of a document's params.

    `properties` are those of all schemas, by the param's name. `own` is the document's schema, which validates all
    params together; `origins` maps each other param to the schema of the PolicyParams document that declares it.
    """

    properties: Mapping[str, Any]
    own: Mapping[str, Any]
    origins: Mapping[str, Mapping[str, Any]]

    def faults(self, params: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield path and fault of invalid params; the schemas were checked when their documents were read."""
        declared = {id(each): each for each in (self.own, *self.origins.values())}
        steps = Steps.for_values(count_values(params) + sum(map(count_values, declared.values())))
        schemas = {key: JsonSchema(each) for key, each in declared.items()}
        parts = [schemas[id(self.own)]]
        for name, origin in self.origins.items():
            parts.append(schemas[id(origin)].part({"properties": {name: origin["properties"][name]}}))
        for part in parts:
            for fault in part.faults(params, steps):
                yield fault.path, fault.message


def gather(
    document: Document, shared: Mapping[str, Document], problems: Problems,
) -> tuple[dict[str, Any], ParamsSchema | None]:
    """Return a document's params, merged with referenced ones (its own win), and their schemas.

    A missing param has its schema's default; defaults inside of a param have no effect. An invalid param is reported
    at its origin: at the reference that it comes from, else at the param.
    """
    spec = document.spec
    assert isinstance(spec, PluginSpec)
    origins: dict[str, Span] = {}
    params: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    declaring: dict[str, Mapping[str, Any]] = {}
    for reference in spec.params_from:
        other = shared.get(reference.name)
        if other is None or not isinstance(other.spec, ParamsSpec):
            problems.add(
                f"there is no PolicyParams document `{reference.name}`", reference.span,
                help=did_you_mean(reference.name, shared) or _known(shared), code="unknown-params",
            )
            continue
        params |= other.spec.params
        origins |= dict.fromkeys(other.spec.params, reference.span)
        declared = other.spec.params_schema
        if isinstance(declared, Mapping) and not other.faulty:
            properties |= declared.get("properties", {})
            declaring |= dict.fromkeys(declared.get("properties", {}), declared)
    params |= spec.params
    own = spec.params_schema if isinstance(spec.params_schema, Mapping) else {}
    properties |= own.get("properties", {})
    if not own and not properties:
        return params, None
    schema = ParamsSchema(
        properties, own, {name: each for name, each in declaring.items() if name not in own.get("properties", {})},
    )
    defaults = {name: rule["default"] for name, rule in properties.items()
                if isinstance(rule, Mapping) and "default" in rule and name not in params}
    params |= defaults
    if spec.params_from and not document.faulty and not problems.errors:
        for path, message in schema.faults(params):
            problems.add(f"params of `{document.name}`: {message}", _place(document, path, origins),
                         help="change it where it is declared, or give the param another value here",
                         code="invalid-value")
    for path, message in (*_unreadable(params, type_of(params, schema)), *_breaches(params, schema)):
        problems.add(f"the param `{'.'.join(path)}` of `{document.name}`: {message}", _place(document, path, origins),
                     code="invalid-value")
    return params, schema


def _known(shared: Mapping[str, Document]) -> str:
    """Return which PolicyParams documents there are."""
    return f"there are {quoted_list(sorted(shared))}" if shared else "there are none in this set"


def _place(document: Document, path: Sequence[str | int], origins: Mapping[str, Span]) -> Span:
    """Return the place of a param: its line, the reference that it comes from, or the schema with its default."""
    assert isinstance(document.spec, PluginSpec)
    if not path:
        return place_of(document, "spec", "params")
    if path[0] in document.spec.params:
        steps = [int(each) if isinstance(each, str) and each.isdecimal() else each for each in path[1:]]
        return place_of(document, "spec", "params", path[0], *steps)
    return origins.get(str(path[0])) or place_of(document, "spec", "paramsSchema", "properties", path[0], "default")


def type_of(params: Mapping[str, Any], schema: ParamsSchema | None) -> Typed:
    """Return the type of params for the checker."""
    return typed(params, {"properties": schema.properties} if schema is not None else None)


def _unreadable(params: Mapping[str, Any], declared: Typed) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield path and fault of each string that is not of its schema's format (time or duration)."""
    types = {each.name: each for each in declared.types}
    pending: deque[tuple[tuple[str, ...], Type, object]] = deque([((), declared.type, params)])
    while pending:
        path, type_, value = pending.popleft()
        read = _READERS.get(type_)
        if read is not None and isinstance(value, str):
            try:
                read(value)
            except EvaluationError as error:
                yield path, error.message
        elif isinstance(value, Mapping):
            fields = types[type_.name].fields if type_.name in types else {}
            other = type_.parameters[1] if type_.name == "map" and type_.parameters else DYN
            pending.extend(((*path, name), fields[name].type if name in fields else other, each)
                           for name, each in value.items())
        elif isinstance(value, list) and type_.name == "list" and type_.parameters:
            pending.extend(((*path, str(place)), type_.parameters[0], each) for place, each in enumerate(value))


def _breaches(params: Mapping[str, Any], schema: ParamsSchema | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield path and fault of each value that an extension of Kubernetes refuses, as its API server does.

    apiextensions-apiserver `pkg/apiserver/schema/listtype` and `pkg/apiserver/validation`. Only extensions that have an
    effect on the types of params are checked.
    """
    pending: deque[tuple[tuple[str, ...], Any, object]] = deque()
    if schema is not None:
        pending.append(((), {"properties": schema.properties}, params))
    while pending:
        path, rule, value = pending.popleft()
        if not isinstance(rule, Mapping):
            continue
        if rule.get("x-kubernetes-int-or-string") is True:
            if isinstance(value, bool) or not isinstance(value, int | str):
                yield path, f"`{written(value)}` is neither an integer nor a string"
            continue
        if isinstance(value, list):
            yield from _repetitions(path, value, rule)
            pending.extend(((*path, str(place)), rule.get("items"), each) for place, each in enumerate(value))
        elif isinstance(value, Mapping):
            properties, others = rule.get("properties"), rule.get("additionalProperties")
            declared = properties if isinstance(properties, Mapping) else {}
            pending.extend(((*path, name), declared.get(name, others), each) for name, each in value.items())


def _repetitions(
    path: tuple[str, ...], items: list[Any], rule: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the elements that a list of the type `set` or `map` has twice, and those without a key of the map."""
    kind, keys = rule.get("x-kubernetes-list-type"), rule.get("x-kubernetes-list-map-keys")
    if kind not in ("set", "map") or (kind == "map" and not isinstance(keys, list)):
        return
    seen: set[str] = set()
    for place, each in enumerate(items):
        below = (*path, str(place))
        identity = each
        if kind == "map":
            lacks = [key for key in keys or () if not isinstance(each, Mapping) or key not in each]
            if lacks:
                yield below, f"it has no `{lacks[0]}`, a key that identifies an element of the list"
                continue
            identity = {key: each[key] for key in keys or ()}
        text = json.dumps(identity, sort_keys=True, default=str)
        if text in seen:
            yield below, f"`{written(identity)}` is in the list twice"
        seen.add(text)


_READERS: Final[Mapping[Type, Callable[[str], object]]] = {TIMESTAMP: Timestamp.parse, DURATION: Duration.parse}


def override(
    name: str, params: Mapping[str, Any], schema: ParamsSchema | None, given: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Return a plugin's params with a profile's overrides.

    Raises `ValueError` with all problems: unknown params, values of another type than its expressions were checked
    with, and values that violate its schema.
    """
    if not given:
        return params
    declared = type_of(params, schema).types[0].fields
    faults: list[str] = []
    for key, value in given.items():
        field = declared.get(key)
        if field is None:
            hint = did_you_mean(key, declared) or f"it has {quoted_list(declared) or 'none'}"
            faults.append(f"`{name}` has no param `{key}`: {hint}")
        elif not _fits(value, field.type, params.get(key)):
            faults.append(f"the param `{key}` of `{name}` is `{written(value)}`, not of the type {field.type}")
    faults.extend(f"the param `{'.'.join(path)}` of `{name}`: {message}"
                  for path, message in (*_unreadable(given, type_of(params, schema)), *_breaches(given, schema)))
    merged = {**params, **given}
    if schema is not None and not faults:
        faults.extend(f"params of `{name}`: {message}" for _, message in schema.faults(merged))
    if faults:
        raise ValueError("; ".join(faults))
    return merged


def _fits(value: object, names: Type, declared: object) -> bool:
    if names == BOOL:
        return isinstance(value, bool)
    if names == INT:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if names == DOUBLE:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if names == STRING:
        return isinstance(value, str)
    if names.name == "list":
        return isinstance(value, list) and all(_fits(each, names.parameters[0], None) for each in value)
    if names.name == "map":
        return isinstance(value, Mapping) and all(_fits(each, names.parameters[1], None) for each in value.values())
    if isinstance(declared, Mapping):  # an object with checked fields: the override must have the same ones
        return isinstance(value, Mapping) and typed({"p": value}).types[1:] == typed({"p": declared}).types[1:]
    return True
