"""Conversion of the fields that plugins of several frameworks have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from koordpolicy.engine.framework.points import Code, Enforcement, FailurePolicy

from .document_fields import DocumentFields
from .json_schema import JsonSchema
from .nodes import YamlNode, to_plain
from .schema_run import Steps
from .specs import (
    NOTHING,
    Aggregate,
    AggregateFunction,
    Check,
    Condition,
    Criterion,
    LabelRequirement,
    LabelSelector,
    Match,
    NamedExpression,
    NodeMatch,
    Over,
    ParamsReference,
    PodMatch,
    SelectorOperator,
    SortKey,
    SortOrder,
)
from .validation import read_schema, validate_against

_INT64_MAX: Final = 2**63 - 1
_OF_SINGLE_PARAMS: Final = frozenset(("properties", "patternProperties", "additionalProperties"))


def plugin_fields(fields: DocumentFields) -> dict[str, Any]:
    """Return the fields of a spec that all kinds of plugins have, by their names in the spec."""
    defaults, params_schema = params(fields)
    return {
        "match": _match(fields.sub("match")),
        "match_conditions": fields.each(
            "matchConditions", lambda item: Condition(item.text("name"), item.required("expression")),
        ),
        "variables": fields.each(
            "variables", lambda item: NamedExpression(item.text("name"), item.required("expression")),
        ),
        "params": defaults,
        "params_schema": params_schema,
        "params_from": fields.each(
            "paramsFrom", lambda item: ParamsReference(item.text("name"), item.node.fields["name"].span),
        ),
        "aggregates": fields.each("aggregates", _aggregate),
        "failure_policy": FailurePolicy(fields.value("failurePolicy")),
        "enforcement": Enforcement(fields.value("enforcement")),
        "profiles": fields.texts("profiles"),
        "order": fields.whole("order"),
        "replaces": fields.value("replaces"),
    }


def _selector(fields: DocumentFields | None) -> LabelSelector | None:
    if fields is None:
        return None
    requirements = tuple(
        LabelRequirement(
            item.text("key"), SelectorOperator(item.value("operator")), item.texts("values") or frozenset(),
        )
        for item in fields.items("matchExpressions")
    )
    return LabelSelector(fields.value("matchLabels") or NOTHING, requirements)


def _match(fields: DocumentFields | None) -> Match:
    if fields is None:
        return Match()
    pods, nodes = fields.sub("pods"), fields.sub("nodes")
    return Match(
        PodMatch(
            pods.texts("namespaces"), _selector(pods.sub("namespaceSelector")), _selector(pods.sub("labelSelector")),
            pods.texts("qosClasses"), pods.texts("priorityClasses"),
        ) if pods is not None else None,
        NodeMatch(nodes.texts("names"), _selector(nodes.sub("labelSelector"))) if nodes is not None else None,
    )


def params(fields: DocumentFields) -> tuple[Mapping[str, Any], Any]:
    """Return params and their schema: None if there is none, one of the params' names alone if it is faulty."""
    node, declared = fields.node.fields.get("params"), fields.node.fields.get("paramsSchema")
    _check_range(fields, node)
    params: dict[str, Any] = to_plain(node) if node is not None else {}
    if declared is None:
        return params or NOTHING, None
    rules = to_plain(declared)
    schema = read_schema(declared, rules, fields.problems)
    if schema is None:
        names = declared.at("properties")
        return params or NOTHING, {"properties": {name: {} for name in names.fields} if names is not None else {}}
    steps = Steps.for_values(declared.size + (node.size if node is not None else 0))
    defaults: dict[str, Any] = {}
    if isinstance(rules, Mapping):
        defaults, faulty = _defaults(fields, declared, schema, steps)
        whole = dict(rules)
        if faulty:  # a param with a faulty default is not missing
            whole["required"] = [name for name in rules.get("required", ()) if name not in faulty]
        if "paramsFrom" in fields.node.fields:
            # Rules about all params together are checked when those of other documents are merged, in compilation.
            whole = {key: rule for key, rule in whole.items() if key in _OF_SINGLE_PARAMS}
        schema = schema.part(whole)
    fields.problems.extend(validate_against(node or declared, defaults | params, schema, steps))
    return params or NOTHING, rules


def _check_range(fields: DocumentFields, node: YamlNode | None) -> None:
    for below in node.walk() if node is not None else ():
        if isinstance(below.scalar, int) and below.scalar > _INT64_MAX:
            message = f"`{below.text}` is larger than the largest integer of expressions"
            fields.problem(message, below.span, f"at most {_INT64_MAX}")


def _defaults(
    fields: DocumentFields, declared: YamlNode, schema: JsonSchema, steps: Steps,
) -> tuple[dict[str, Any], set[str]]:
    """Return the valid defaults of a schema, and the names of the others, which are reported."""
    found: dict[str, Any] = {}
    faulty: set[str] = set()
    properties = declared.at("properties")
    for name, rule in (properties.fields if properties is not None else {}).items():
        default = rule.at("default")
        if default is None:
            continue
        _check_range(fields, default)
        value = to_plain(default)
        # Treated as a given value, so that problems name the param and point at the default.
        given = replace(declared, value={name: default})
        alone = schema.part({"properties": {name: to_plain(rule)}})
        faults = list(validate_against(given, {name: value}, alone, steps))
        fields.problems.extend(faults)
        if faults:
            faulty.add(name)
        else:
            found[name] = value
    return found, faulty


def _aggregate(item: DocumentFields) -> Aggregate:
    function = AggregateFunction(item.value("function"))
    if "percentile" in item.node.fields and function is not AggregateFunction.PERCENTILE:
        item.problem(
            f"`percentile` means nothing for the function `{function.value}`", item.place("percentile"), "remove it",
        )
    return Aggregate(
        item.text("name"), Over(item.value("over")), function, item.expression("expression"),
        item.expression("groupBy"), item.whole("percentile"), item.node.fields["name"].span,
    )


def check(item: DocumentFields) -> Check:
    """Return a check of a point that allows or refuses."""
    return Check(
        item.text("name"), item.required("expression"), item.text("message"), item.expression("messageExpression"),
        Code(item.value("reason")), item.node.fields["name"].span,
    )


def criterion(item: DocumentFields) -> Criterion:
    """Return a criterion by which pods are chosen."""
    return Criterion(
        item.text("name"), item.required("expression"), item.text("message"), item.expression("messageExpression"),
        item.node.fields["name"].span,
    )


def sort_key(item: DocumentFields) -> SortKey:
    """Return a key of an order."""
    return SortKey(item.required("expression"), SortOrder(item.value("order")))
