from __future__ import annotations

import pytest

from ..deschedule import cycle, evicted, faults, node, pod

NAME = "RemovePodsViolatingNodeAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def term(value):
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}


def required(value):
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term(value)]}}}}


def preferred(**weights):
    terms = [{"weight": weight, "preference": term(value)} for value, weight in weights.items()]
    return {"affinity": {"nodeAffinity": {PREFERRED: terms}}}


def of(types, *objects, **given):
    return evicted(NAME, {"nodeAffinityType": types}, *objects, **given)


def test_a_pod_goes_when_its_node_no_longer_matches_what_it_requires():
    nodes = node("a", zone="x"), node("b", zone="y")
    pods = [
        pod("wrong", **required("y")), pod("right", "b", **required("y")), pod("plain"),
        pod("selects", nodeSelector={"zone": "y"}), pod("finished", status={"phase": "Failed"}, **required("y")),
    ]
    found = cycle(NAME, {"nodeAffinityType": [REQUIRED]}, *nodes, *pods)
    assert [(each.pod, each.decision.reason) for each in found.evicted] == [
        ("d/wrong", "its required node affinity does not match its node"),
    ]


@pytest.mark.parametrize("other", [
    node("b", zone="z"), node("b", {"key": "k", "effect": "NoSchedule"}, zone="y"), node("b", cpu="500m", zone="y"),
])
def test_a_pod_that_fits_nowhere_stays(other):
    assert of([REQUIRED], node("a", zone="x"), other, pod("it", **required("y"))) == []


def test_a_pod_goes_when_a_node_outweighs_its_own():
    nodes = node("a", zone="x"), node("b", zone="y"), node("c", zone="z")
    pods = [
        pod("prefers-y", **preferred(x=1, y=5)), pod("prefers-own", **preferred(x=5, y=1)),
        pod("indifferent", **preferred(x=5, y=5)), pod("nowhere", **preferred(w=5)),
    ]
    found = cycle(NAME, {"nodeAffinityType": [PREFERRED]}, *nodes, *pods)
    assert [(each.pod, each.decision.reason) for each in found.evicted] == [
        ("d/prefers-y", "its node has the weight 1 by its preferred node affinity, another one 5"),
    ]


def test_types_are_checked_in_their_order_and_unknown_ones_have_no_effect():
    nodes = node("a", zone="x"), node("b", zone="y")
    pods = pod("soft", **preferred(y=1)), pod("hard", **required("y"))
    assert of([REQUIRED, PREFERRED], *nodes, *pods) == ["hard", "soft"]
    assert of([PREFERRED, "some", REQUIRED], *nodes, *pods) == ["soft", "hard"]
    assert of(["some"], *nodes, *pods) == []


@pytest.mark.parametrize(("args", "wanted"), [
    ({}, ["nodeAffinityType: nodeAffinityType needs to be set"]),
    ({"nodeAffinityType": []}, ["nodeAffinityType: nodeAffinityType needs to be set"]),
    ({"nodeAffinityType": ["any"]}, []),
])
def test_faults_of_arguments_are_reported(args, wanted):
    assert faults(NAME, args) == wanted
