"""Clusters that no API server would serve, and policies over all frameworks: an answer, and never an exception."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.audit import audit
from koordpolicy.engine.comparison.difference import difference
from koordpolicy.engine.comparison.outcome import outcome

from .conftest import NOW, Policies, document, metric, node, pod

BOUND = document("bound", """
interval: 1s
forEach: node
window: 10s
thresholds: [{name: hot, expression: usage.cpu > 0, for: 1m}]
actions: [{name: it, suppressCPU: {target: "1000.0", policy: CPUSet}}]
""", kind="QoSPlugin")
DRAIN = document("drain", """
type: Balance
nodes: {source: usage.cpu > 0}
criteria: [{name: used, expression: podUsage.cpu > 0, message: m}]
""", kind="DeschedulerPlugin")
CHECK = document("check", """
filter: [{name: small, expression: pod.spec.containers.size() < 3, message: no}]
score: [{name: used, expression: usage.cpu}]
""")
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def topology(name: str, annotations: Any) -> dict[str, Any]:
    return {
        "kind": "NodeResourceTopology", "apiVersion": "x/v1", "metadata": {"name": name, "annotations": annotations},
    }


def cpus(text: str) -> dict[str, str]:
    return {"node.koordinator.sh/cpu-topology": text}


def with_spec(each: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**each, "spec": {**each["spec"], **spec}}


def with_metadata(each: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**each, "metadata": {**each["metadata"], **metadata}}


def with_container(each: dict[str, Any], **container: Any) -> dict[str, Any]:
    return with_spec(each, containers=[{**each["spec"]["containers"][0], **container}])


@pytest.mark.parametrize("objects", [
    pytest.param([], id="nothing"),
    pytest.param([node("a"), metric("a", "1"), topology("a", cpus("{broken"))], id="topology is not JSON"),
    pytest.param([node("a"), metric("a", "1"), topology("a", cpus("[]"))], id="topology is a list"),
    pytest.param([node("a"), metric("a", "1"), topology("a", cpus('{"detail": [1]}'))], id="a processor is a number"),
    pytest.param([node("a"), metric("a", "1"), topology("a", None)], id="no annotations"),
    pytest.param([node("a"), pod("x", on="gone"), pod("y")], id="a pod on an unknown node"),
    pytest.param([node("a"), with_spec(pod("x", on="a"), when=MOMENT)], id="a date in a pod"),
    pytest.param([node("a", cpu="0"), metric("a", "1"), pod("x", on="a")], id="no cpu"),
    pytest.param(
        [node("a", cpu="9000000"), metric("a", "1"), pod("x", on="a", labels={"koordinator.sh/qosClass": "BE"})],
        id="nine million cpus",
    ),
    pytest.param([node("a"), metric("a", "-5"), pod("x", on="a")], id="negative use"),
    pytest.param([node("a"), with_container(pod("x"), env="x", volumeMounts=5)], id="odd containers"),
    pytest.param([node("a"), with_metadata(pod("x", on="a"), ownerReferences="no")], id="owners are a text"),
    pytest.param([node("a"), with_metadata(pod("x"), ownerReferences=[{}])], id="an owner without a name"),
    pytest.param([node("a"), with_spec(pod("x"), initContainers=None)], id="null containers"),
    pytest.param([node("a"), with_metadata(pod("x"), labels=None, annotations=None)], id="null labels"),
    pytest.param([node("a"), pod("x\ud800")], id="half a character"),
])
def test_what_is_malformed_costs_only_itself(policies: Policies, objects: list[dict[str, Any]]):
    cluster = Cluster()
    cluster.upsert_all(objects)
    before = outcome(policies(BOUND, DRAIN, CHECK), cluster, now=NOW)
    after = outcome(policies(CHECK), cluster, now=NOW, before=before)
    assert json.dumps(difference(before, after).to_json())
    assert json.dumps(audit(policies(BOUND, DRAIN, CHECK), cluster, now=NOW).to_json())


def test_a_malformed_topology_is_told_as_a_failure_of_its_action(policies: Policies):
    cluster = Cluster([node("a"), metric("a", "1"), topology("a", cpus("{broken"))])
    assert [(each.plugin, each.rule, each.message) for each in outcome(policies(BOUND), cluster, now=NOW).faults] == [
        ("bound", "it", "annotation `node.koordinator.sh/cpu-topology` is not JSON: `{broken`"),
    ]
