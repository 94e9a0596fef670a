"""The CustomResourceDefinitions say what the JSON Schemas say, as far as a structural schema can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordpolicy.engine.documents.crd import UnsupportedSchemaError, definitions, structural


def schemas_in(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all below it."""
    yield part
    for each in (*part.get("properties", {}).values(), part.get("items"), part.get("additionalProperties")):
        if isinstance(each, dict):
            yield from schemas_in(each)


def spec_of(kind: str) -> dict[str, Any]:
    (found,) = (each for each in definitions() if each["spec"]["names"]["kind"] == kind)
    (version,) = found["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_there_is_one_for_each_kind_but_tests_and_all_are_cluster_scoped_with_a_status():
    found = definitions()
    assert [each["metadata"]["name"] for each in found] == [
        "deschedulerplugins.policy.koordinator.sh", "policyparams.policy.koordinator.sh",
        "qosplugins.policy.koordinator.sh", "schedulerplugins.policy.koordinator.sh"]
    assert {each["spec"]["scope"] for each in found} == {"Cluster"}
    assert all(each["spec"]["versions"][0]["subresources"] == {"status": {}} for each in found)


@pytest.mark.parametrize("definition", definitions(), ids=lambda each: each["spec"]["names"]["kind"])
def test_all_schemas_are_structural(definition):
    allowed = {
        "type", "description", "properties", "items", "additionalProperties", "required", "enum", "pattern", "format",
        "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "minProperties", "maxProperties",
        "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"}
    for schema in schemas_in(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        assert schema.keys() <= allowed
        assert isinstance(schema.get("type", "object"), str)
        assert ("type" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
                or schema["x-kubernetes-int-or-string"])
        assert schema.get("type") != "array" or "items" in schema


def test_conditions_become_rules():
    terms = spec_of("SchedulerPlugin")["properties"]["match"]["properties"]["pods"]["properties"]["labelSelector"]
    assert terms["properties"]["matchExpressions"]["items"]["x-kubernetes-validations"] == [
        {"rule": "!(has(self.operator) && (self.operator in ['In', 'NotIn'])) || "
                 "(has(self.values) && (size(self.values) >= 1))",
         "message": "where `operator` is `In` or `NotIn`, `values` has at least 1 item"},
        {"rule": "has(self.operator) && (self.operator in ['In', 'NotIn']) || "
                 "((!has(self.values) || size(self.values) <= 0))",
         "message": "except where `operator` is `In` or `NotIn`, `values` is left out"},
    ]
    aggregates = spec_of("SchedulerPlugin")["properties"]["aggregates"]["items"]["x-kubernetes-validations"]
    assert [each["message"] for each in aggregates] == [
        "where `function` is `percentile`, `percentile` is needed and `expression` is needed",
        "where `function` is `avg` or `min` or `max` or `sum`, `expression` is needed"]
    assert "self.__function__" in aggregates[0]["rule"]
    (one_of,) = spec_of("QoSPlugin")["properties"]["actions"]["items"]["x-kubernetes-validations"]
    assert one_of == {
        "rule": "[has(self.suppressCPU), has(self.evict), has(self.cpuBurst), has(self.cgroup), has(self.resctrl), "
                "has(self.blkio), has(self.sysctl)].exists_one(given, given)",
        "message": "exactly one of `suppressCPU`, `evict`, `cpuBurst`, `cgroup`, `resctrl`, `blkio`, `sysctl` is "
                   "needed"}


def test_lists_of_named_items_are_maps_and_lists_of_different_values_are_sets():
    spec = spec_of("SchedulerPlugin")["properties"]
    assert (spec["filter"]["x-kubernetes-list-type"], spec["filter"]["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert spec["profiles"]["x-kubernetes-list-type"] == "set"
    assert "x-kubernetes-list-type" not in spec_of("DeschedulerPlugin")["properties"]["sort"]


def test_values_of_any_type_are_left_as_they_are():
    spec = spec_of("PolicyParams")["properties"]
    assert spec["params"]["x-kubernetes-preserve-unknown-fields"]
    assert spec["paramsSchema"].keys() == {"description", "x-kubernetes-preserve-unknown-fields"}


@pytest.mark.parametrize("schema", [
    {"type": "object", "patternProperties": {}}, {"description": "of no type"},
    {"type": "object", "properties": {}, "if": {"properties": {"a": {"pattern": "x"}}}, "then": {}},
    {"type": "object", "properties": {}, "oneOf": [{"not": {}}]},
])
def test_what_cannot_be_said_is_refused(schema):
    with pytest.raises(UnsupportedSchemaError):
        structural(schema, "spec")
