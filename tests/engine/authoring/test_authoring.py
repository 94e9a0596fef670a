"""Completion, descriptions and names at the place marked by `@`."""

from __future__ import annotations

import pytest

from koordpolicy.engine.authoring.hover import described
from koordpolicy.engine.authoring.policy_text import PolicyText
from koordpolicy.engine.authoring.positions import offset_of, position_of
from koordpolicy.engine.authoring.proposals import Proposal, proposals
from koordpolicy.engine.authoring.symbols import declaration, name_at, occurrences, renamed
from koordpolicy.engine.cel.check.environment import Function, Overload
from koordpolicy.engine.cel.values.types import STRING
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.source import PolicyError, Source

PLUGIN = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a}
spec:
  paramsFrom: [{name: shared}]
  params: {cpu: 5, zones: [a, b], nested: {deep: 1}}
  aggregates:
  - {name: most, over: nodes, function: max, expression: usage.cpu}
  variables:
  - {name: used, expression: usage.cpu * 100 / allocatable.cpu}
  - {name: broken, expression: nothing.at.all}
  filter:
  - name: below
    expression: FILTER
"""
HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nmetadata: {name: shared}\n"
SHARED = f"{HEAD}kind: PolicyParams\nspec:\n  params: {{hot: 9}}\n"
QOS = f"""{HEAD}kind: QoSPlugin
spec:
  thresholds: [{{name: hot, expression: 'true'}}]
  actions:
  - name: x
    ACTION
"""


def shared() -> dict[str, YamlNode]:
    return {"shared": PolicyText(Source("shared.yaml", SHARED)).documents[0]}


def labels(text: str) -> list[str]:
    offset = text.index("@")
    found = proposals(PolicyText(Source("", text.replace("@", ""))), offset, shared())
    return [each.label for each in found]


def in_filter(expression: str) -> list[str]:
    return labels(PLUGIN.replace("FILTER", expression))


@pytest.mark.parametrize(("expression", "expected"), [
    ("alloc@", ["allocatable"]),
    ("variables.@", ["broken", "used"]),
    ("variables.used < params.@", ["cpu", "hot", "nested", "zones"]),
    ("aggregates.@", ["most"]),
    ("usage.c@ < 5 && true", ["cpu"]),
    ('"pod.spec.containers.all(c, c.na@)"', ["name"]),
    ('"pod.spec.containers.exists(c, c.ports.exists(p, p.hostP@"', ["hostPort"]),
    ("'pod.metadata.labels[\"a\"].starts@'", ["startsWith"]),
    ("params.zones.exi@", ["exists", "exists_one"]),
    ("pod.spec.?nodeN@", ["nodeName"]),
    ("math.gr@", ["greatest"]),
    ("cel.bind(x, node.status, x.node@)", ["nodeInfo"]),
    ("cel.bind(x, node.status, x.node@", ["nodeInfo"]),
    ("cel.bind(x, pod.spec.containers.filter(c, true), x.siz@", ["size"]),
    ("cel.bind(x, x@", []),
    ("cel.@", ["bind"]),
    ("usage.cpu > 1 && cel.b@", ["bind"]),
    ("'[1, 2].exi@'", ["exists", "exists_one"]),
    ("'[pod.spec][0].nodeN@'", ["nodeName"]),
    ("params.nested.@ < 3", [
        "all", "deep", "exists", "exists_one", "filter", "map", "size", "sortBy", "transformList", "transformMap",
        "transformMapEntry"]),
    ("params.nested.d@", ["deep"]),
    ("node.?status.?nodeI@", ["nodeInfo"]),
    ("node.?status.@", ["hasValue", "optFlatMap", "optMap", "or", "orValue", "value"]),
    ("node.status.?capacity.?o@", []),
    ("node.?status.optM@", ["optMap"]),
    ("pod.spec.containers.transformMa@", ["transformMap", "transformMapEntry"]),
    ("has(pod.spec.nodeNa@)", ["nodeName"]),
    ("'\"a string.@\"'", []),
    ("nothing.at.@", []),
    ("|\n      usage.cpu >\n        params.c@", ["cpu"]),
])
def test_what_fits_in_an_expression_is_proposed(expression: str, expected: list[str]):
    assert in_filter(expression) == expected


def test_functions_of_python_plugins_are_proposed():
    function = Function("zoneOf", (Overload("zone_of", (STRING,), STRING, str),), "The zone of a node.")
    text = PLUGIN.replace("FILTER", "zoneO")
    offset = text.index("zoneO") + len("zoneO")
    assert proposals(PolicyText(Source("", text)), offset, shared(), (function,)) == (
        Proposal("zoneOf", "function", "zoneOf(string) -> string", "The zone of a node."),)


def test_an_empty_expression_proposes_all_names():
    found = in_filter("@")
    assert {"pod", "node", "usage", "params", "variables", "aggregates", "has", "cel.bind", "math.greatest"} <= {*found}
    assert "thresholds" not in found


@pytest.mark.parametrize(("line", "expected"), [
    ('"true"\n  sco@', ["score"]),
    ('"true"\n    rea@', ["reason"]),
    ('"true"\n    reason: @', ["Unschedulable", "UnschedulableAndUnresolvable"]),
    ('"true"\n  - {name: x, mess@}', ["message", "messageExpression"]),
    ('"true"\n  matchC@', ["matchConditions"]),
])
def test_fields_and_values_are_proposed(line: str, expected: list[str]):
    assert in_filter(line) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("@", ["apiVersion", "kind"]),
    ("kind: Q@", ["QoSPlugin"]),
    ("apiVersion: @", ["policy.koordinator.sh/v1alpha2"]),
    ("kind: KubeSchedulerConfiguration\nprof@", ["profiles"]),
    ("kind: DeschedulerConfiguration\nprofiles:\n- pluginConfig:\n  - name: LowNodeLoad\n    args: {highT@}",
     ["highThresholds"]),
    ("a: [1, @", []),
    ("kind: Nothing\nx@", []),
    ("kind: SchedulerPlugin\nmetadata: {na@", ["name"]),
    ("kind: SchedulerPlugin\nmetadata: {na@\nspec: {}", ["name"]),
    ("kind: SchedulerPlugin\nspec: {enforcement: @", ["Audit", "Enforce", "Warn"]),
    (f"{HEAD}kind: SchedulerPlugin\nspec: {{filter: [{{expression: 'node.sp@", ["spec"]),
    (f"{HEAD}kind: SchedulerPlugin\nspec: {{filter: [{{expression: node.sp@}}]}}", ["spec"]),
    (f"{HEAD}kind: SchedulerPlugin\nspec: {{filter: [{{expression: \"pod.metadata.labels['a'].siz@", ["size"]),
])
def test_documents_are_begun(text: str, expected: list[str]):
    assert labels(text) == expected


def test_slots_of_other_kinds_have_their_own_variables():
    assert labels(QOS.replace("ACTION", "when: thresholds.@")) == ["hot"]
    assert labels(QOS.replace("ACTION", "suppressCPU: {target: nonBest@}")) == ["nonBestEffortUsage"]
    other = f"{HEAD}kind: DeschedulerPlugin\nspec:\n  EXPR\n"
    assert labels(other.replace("EXPR", "sort: [{expression: podInfo.prio@}]")) == ["priority", "priorityBand"]
    assert labels(other.replace("EXPR", "nodes: {source: podInf@}")) == []
    assert labels(other.replace("EXPR", "nodes: {fi@}")) == ["fit"]
    assert labels(other.replace("EXPR", "nodes: {room: {of@}}")) == ["ofPod", "ofTarget"]
    assert labels(other.replace("EXPR", "nodes: {sort: [{expression: podInf@}]}")) == []
    assert labels(other.replace("EXPR", "nodes: {sort: [{expression: nodeInfo.unsch@}]}")) == ["unschedulable"]
    assert labels(other.replace("EXPR", "nodes: {room: {ofTarget: podUs@}}")) == []
    assert labels(other.replace("EXPR", "nodes: {room: {ofPod: podUs@}}")) == ["podUsage"]
    assert labels(other.replace("EXPR", "nodes: {fit: podUs@}")) == ["podUsage"]


def hover(expression: str) -> str:
    text = PLUGIN.replace("FILTER", expression)
    return described(PolicyText(Source("", text.replace("@", ""))), text.index("@"), shared())


@pytest.mark.parametrize(("expression", "expected"), [
    ("usage.c@pu < 5", "```\nusage.cpu: int\n```\n\nIn milli-cores."),
    ("variables.us@ed < 5", "```\nvariables.used: int\n```\n\n`usage.cpu * 100 / allocatable.cpu`"),
    ("params.h@ot < 5", "```\nparams.hot: int\n```"),
    ("pod.metadata.name.starts@With('x')",
     "```\nstring.startsWith(string) -> bool\n```\n\nTrue if a string begins with another."),
    ("requ@ests.cpi < 5",
     "```\nrequests: ResourceList\n```\n\nThe pod's effective requests. (cpu: milli-cores, all else: base units)"),
    ("1 +@ 2 == 3", ""),
    ("pod.spec.containers.ex@ists(c, true)",
     "```\nx.exists(e, condition)\n```\n\nTrue if the condition holds for an element, or a key of a map."),
    ("pod.spec.containers.ma@p(c, c.nam",
     "```\nx.map(e, value)\n```\n\nA value for each element, or key of a map."),
    ("h@as(pod.spec.nodeName)", "```\nhas(e.field)\n```\n\nTrue if the field is set."),
    *((text, "```\ncel.bind(name, value, expression)\n```\n\nGives a value a name within an expression.")
      for text in ("ce@l.bind(x, 1, x) > 0", "cel.b@ind(x, 1, x) > 0", "cel.bi@nd(x, 1")),
    ("node.?status.opt@Map(s, 1)",
     "```\nx.optMap(v, value)\n```\n\nThe value with `v` for what is in the optional; none if it is empty."),
    ("pod.spec.ma@p", ""),
])
def test_parts_of_expressions_are_described(expression: str, expected: str):
    assert hover(expression) == expected


def test_fields_are_described():
    text = PLUGIN.replace("FILTER", '"true"')
    found = described(PolicyText(Source("", text)), text.index("ilter:"), {})
    assert found.startswith("`filter`: array\n\n")
    assert described(PolicyText(Source("", text)), text.index("below"), {}) == ""


def names(expression: str) -> tuple[PolicyText, int]:
    text = PLUGIN.replace("FILTER", expression)
    return PolicyText(Source("a.yaml", text.replace("@", ""))), text.index("@")


def test_declarations_and_uses_are_found():
    used = name_at(*names("variables.us@ed < params.hot && variables['used'] > 1"))
    assert used is not None
    assert str(declaration(used, {})) == "a.yaml:10:12"
    assert [str(each) for each in occurrences(used)] == ["a.yaml:10:12", "a.yaml:14:27", "a.yaml:14:59"]
    param = name_at(*names("params.h@ot > 1"))
    assert param is not None
    assert (str(declaration(param, shared())), declaration(param, {})) == ("shared.yaml:5:12", None)
    assert name_at(*names("usage.c@pu > 1")) is None


def test_a_param_is_renamed_in_its_tests_too():
    param = name_at(*names("params.cp@u > 1"))
    suite = "kind: PolicyTest\nspec:\n  cases:\n  - {params: {cpu: 1}}\n  - {plugin: other, params: {cpu: 1}}\n"
    assert param is not None
    documents = PolicyText(Source("a.test.yaml", suite)).documents
    assert [str(each) for each in renamed(param, "most", documents)] == [
        "a.yaml:6:12", "a.yaml:14:24", "a.test.yaml:4:15"]


@pytest.mark.parametrize(("expression", "name", "why"), [
    ("params.cp@u > 1", "zones", "there is `params.zones` already"),
    ("params.cp@u > 1", "in", "`in` is not a name"),
    ("params.h@ot > 1", "cold", "`params.hot` is not declared in this document"),
])
def test_renaming_to_what_cannot_be_is_refused(expression: str, name: str, why: str):
    found = name_at(*names(expression))
    assert found is not None
    with pytest.raises(PolicyError, match=why):
        renamed(found, name, ())


def test_positions_count_utf16_units():
    source = Source("", "a: '\U0001f600 b'\nc: d\n")
    assert [position_of(source, offset) for offset in (0, 5, 6, 9, 12)] == [(0, 0), (0, 6), (0, 7), (1, 0), (1, 3)]
    assert [offset_of(source, *place) for place in ((0, 0), (0, 6), (0, 7), (1, 0), (1, 99), (9, 0))] == [
        0, 5, 6, 9, 13, 14]
