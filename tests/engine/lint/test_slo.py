"""Each setting of slo-controller-config is compared with documents, or is reported where it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.kubernetes import types
from koordpolicy.engine.lint.slo import COMPARED, KEYS

from .conftest import findings

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slo-controller-config}\n"
FIELDS = types.load()["koordinator.ResourceThresholdStrategy"].fields


def config(**data: Any) -> str:
    """Return the ConfigMap with these keys; what is not a string is written as JSON."""
    held = {key.replace("_", "-"): each if isinstance(each, str) else json.dumps(each) for key, each in data.items()}
    return f"{HEAD}data: {json.dumps(held)}\n"


def told(text: str, rule: str = "KP037") -> list[tuple[tuple[int, int], str]]:
    """Return the place and the message of each setting without effect."""
    return [(each.problem.span.place[1:], each.problem.message)  # type: ignore[union-attr]
            for each in findings("", text) if each.rule.id == rule]


@pytest.mark.parametrize("field", FIELDS)
def test_each_threshold_is_compared_or_reported(field: str) -> None:
    text = config(resource_threshold_config={"clusterStrategy": {field: 7}})
    message = f"`{field}` of slo-controller-config has no effect here: no rule reads it"
    assert [each for _, each in told(text)] == ([] if field in (*COMPARED, "enable") else [message])


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_compared_or_reported(key: str) -> None:
    text = f"{HEAD}data:\n  {key}: '{{}}'\n"
    assert told(text) == ([] if key == "resource-threshold-config" else [
        ((5, 3), f"`{key}` of slo-controller-config has no effect here: no rule reads it"),
    ])


@pytest.mark.parametrize(("text", "wanted"), [
    pytest.param(f"{HEAD}data:\n  resource-threshold-confg: '{{}}'\n",
                 [((5, 3), "there is no field `resource-threshold-confg` in slo-controller-config")], id="a key"),
    pytest.param(f"{HEAD}daat: {{}}\nbinaryData: {{a: aGk=}}\nimmutable: true\n",
                 [((4, 1), "there is no field `daat` in a ConfigMap"),
                  ((5, 1), "`binaryData` of slo-controller-config has no effect here: no rule reads it")],
                 id="fields of the object"),
    pytest.param(f'{HEAD}data:\n  resource-threshold-config: |\n    {{\n      "clusterStrategy": {{\n'
                 '        "enble": true,\n        "cpuEvictPolicy": "evictByRealLimit"\n      },\n'
                 '      "nodeStrategies": [{"name": "a"}],\n      "nodeStrategys": []\n    }\n',
                 [((8, 9), "there is no field `enble` in `clusterStrategy`"),
                  ((9, 9), "`cpuEvictPolicy` of slo-controller-config has no effect here: no rule reads it"),
                  ((11, 7), "`nodeStrategies` of slo-controller-config has no effect here: no rule reads it"),
                  ((12, 7), "there is no field `nodeStrategys` in `resource-threshold-config`")],
                 id="fields inside of the JSON"),
    pytest.param(f"{HEAD}data:\n  resource-threshold-config: '{{'\n  system-config: '[]'\n  cpu-burst-config: ''\n"
                 "  colocation-config: {a: 1}\n",
                 [((5, 3), ("`resource-threshold-config` is not JSON: Expecting property name enclosed in double "
                           "quotes: line 1 column 2 (char 1)")),
                  ((6, 3), "`system-config` must be an object, not a list"),
                  ((8, 3), "`colocation-config` must be a string with JSON in it")], id="what is not JSON"),
    pytest.param(HEAD.replace("slo-controller-config", "another") + "data: {a: b}\nx: 1\n", [], id="another ConfigMap"),
])
def test_what_there_is_not(text: str, wanted: list[tuple[tuple[int, int], str]]) -> None:
    assert told(text) == wanted


def test_unknown_names_are_found_in_node_entries_and_other_keys() -> None:
    text = config(
        cpu_burst_config={"clusterStrategy": {"polcy": "auto"}},
        resource_threshold_config={"nodeStrategies": [{"nodeSelector": {}, "cpuSuppressPolice": "cpuset"}]})
    assert [message for _, message in told(text) if "no field" in message] == [
        "there is no field `polcy` in `clusterStrategy` of `cpu-burst-config`",
        "there is no field `cpuSuppressPolice` in `nodeStrategies[0]` of `resource-threshold-config`",
    ]


def test_invalid_settings_are_reported_where_they_stand() -> None:
    text = (f'{HEAD}data:\n  resource-threshold-config: |\n    {{\n      "clusterStrategy": {{\n'
            '        "cpuSuppressThresholdPercent": 650,\n        "enable": "yes"}\n    }\n'
            '  resource-qos-config: |\n    {"nodeStrategies": [\n'
            '      {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}},\n'
            '      {"name": "a", "nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}},\n'
            '      {"name": "c"}\n    ]}\n')
    assert sorted(told(text, "KP038")) == [
        ((8, 9), ("`clusterStrategy.cpuSuppressThresholdPercent` of `resource-threshold-config` is 650: it must be 100 "
                 "or less")),
        ((9, 9), "`clusterStrategy.enable` of `resource-threshold-config` must be true or false, not a string"),
        ((14, 8), "`nodeStrategies[1].name` of `resource-qos-config` is `a`, as that of entry 0: names must differ"),
        ((14, 21), ("`nodeStrategies[1].nodeSelector` of `resource-qos-config` overlaps with that of `a`, which comes "
                   "first and is used: both match a node with pool=a")),
        ((15, 7), "`nodeStrategies[2]` of `resource-qos-config` has no `nodeSelector`: it matches no node"),
    ]
