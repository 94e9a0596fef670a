from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.engine.cel.values.types import (
    BOOL,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    Type,
    list_of,
    map_of,
)
from koordpolicy.engine.kubernetes.types import FILES, load, read

SCHEMAS = Path(__file__).parents[3] / "schemas" / "kubernetes"
TYPES = load()


def type_at(path: str) -> Type:
    root, *names = path.split(" ")
    found = Type(root)
    for name in names:
        found = TYPES[found.name].fields[name].type
    return found


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("kubernetes.Pod metadata labels", map_of(STRING, STRING)),
        ("kubernetes.Pod metadata creationTimestamp", TIMESTAMP),
        ("kubernetes.Pod spec nodeName", STRING),
        ("kubernetes.Pod spec priority", INT),
        ("kubernetes.Pod spec hostNetwork", BOOL),
        ("kubernetes.Pod spec containers", list_of(Type("kubernetes.Container"))),
        ("kubernetes.Container resources requests", map_of(STRING, STRING)),
        ("kubernetes.Probe exec", Type("kubernetes.ExecAction")),
        ("kubernetes.HTTPGetAction port", DYN),
        ("kubernetes.Node spec taints", list_of(Type("kubernetes.Taint"))),
        ("kubernetes.Node status allocatable", map_of(STRING, STRING)),
        ("kubernetes.PodDisruptionBudget status disruptionsAllowed", INT),
        ("kubernetes.PodDisruptionBudget status disruptedPods", map_of(STRING, TIMESTAMP)),
        ("koordinator.NodeMetric status nodeMetric nodeUsage resources", map_of(STRING, STRING)),
        ("koordinator.NodeMetric status updateTime", TIMESTAMP),
        ("koordinator.Reservation spec template spec nodeName", STRING),
        ("koordinator.Reservation spec ttl", DURATION),
        ("koordinator.Device spec devices", list_of(Type("koordinator.DeviceInfo"))),
        ("koordinator.NodeSLO spec resourceUsedThresholdWithBE cpuSuppressThresholdPercent", INT),
        ("koordinator.PodGroup spec minMember", INT),
        ("koordinator.ElasticQuota spec max", map_of(STRING, STRING)),
        ("koordinator.NodeResourceTopology zones", list_of(Type("koordinator.TopologyZone"))),
        ("koordinator.PodMigrationJob spec podRef namespace", STRING),
    ],
)
def test_fields_have_the_types_that_the_api_server_serves(path, want):
    assert type_at(path) == want


def test_every_type_that_is_mentioned_is_declared_or_the_languages_own():
    own = {"dyn", "bool", "int", "double", "string", "bytes", "list", "map", TIMESTAMP.name, DURATION.name}

    def mentioned(type_: Type) -> set[str]:
        return {type_.name}.union(*map(mentioned, type_.parameters))

    everything = {name for of in TYPES.values() for field in of.fields.values() for name in mentioned(field.type)}
    assert everything - own - TYPES.keys() == set()


def test_no_name_is_declared_in_two_files():
    names = [name for file in FILES for name in json.loads((SCHEMAS / file).read_text())["types"]]
    assert sorted(set(names)) == sorted(names)


def test_koordinators_own_kinds_say_of_every_field_what_it_is():
    own = [of for name, of in TYPES.items() if name.startswith("koordinator.")]
    assert [f"{of.name}.{name}" for of in own for name, field in of.fields.items() if not field.doc] == []
    assert [of.name for of in own if not of.doc] == []


def test_a_field_that_must_be_there_says_so():
    assert TYPES["kubernetes.PodSpec"].fields["containers"].required
    assert not TYPES["kubernetes.PodSpec"].fields["nodeName"].required


def test_a_declaration_is_read_whole():
    content = {
        "types": {"x.T": {"doc": "a thing", "fields": {"f": {"type": "list(int)", "doc": "d", "required": True}}}},
    }
    (of,) = read(content).values()
    assert (of.name, of.doc, of.index, of.absent, dict(of.fields)) == (
        "x.T", "a thing", None, None, {"f": Field(list_of(INT), "d", required=True)})


def test_types_are_read_once():
    assert load() is load()
