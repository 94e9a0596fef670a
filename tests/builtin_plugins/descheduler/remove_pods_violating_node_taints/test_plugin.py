from __future__ import annotations

import pytest

from ..deschedule import cycle, evicted, faults, node, pod

NAME = "RemovePodsViolatingNodeTaints"
KEEP_OUT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
SPOT = {"key": "spot", "effect": "PreferNoSchedule"}
LEAVE = {"key": "broken", "effect": "NoExecute"}
TOLERANT = {"tolerations": [{"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]}


def of(args, *objects, **given):
    return evicted(NAME, args, *objects, node("other"), **given)


def test_active_pods_that_do_not_tolerate_a_taint_go():
    pods = [
        pod("plain"), pod("tolerant", **TOLERANT), pod("all-tolerant", tolerations=[{"operator": "Exists"}]),
        pod("other-value", tolerations=[{"key": "dedicated", "value": "cpu"}]),
        pod("finished", status={"phase": "Succeeded"}), pod("elsewhere", "other"),
    ]
    found = cycle(NAME, {}, node("a", KEEP_OUT), node("other"), *pods)
    reason = "it does not tolerate the taint dedicated=gpu:NoSchedule of its node"
    assert [(pod, of.reason) for pod, _, of in found.evicted] == [("d/plain", reason), ("d/other-value", reason)]


@pytest.mark.parametrize(("args", "taint", "gone"), [
    ({}, SPOT, False), ({"includePreferNoSchedule": True}, SPOT, True),
    ({"includePreferNoSchedule": True}, LEAVE, False),
    ({"excludedTaints": ["dedicated"]}, KEEP_OUT, False), ({"excludedTaints": ["dedicated=gpu"]}, KEEP_OUT, False),
    ({"excludedTaints": ["dedicated=cpu", "dedi"]}, KEEP_OUT, True),
    ({"includedTaints": ["dedicated"]}, KEEP_OUT, True), ({"includedTaints": ["dedicated=gpu"]}, KEEP_OUT, True),
    ({"includedTaints": ["other"]}, KEEP_OUT, False), ({"includedTaints": []}, KEEP_OUT, False),
])
def test_arguments_say_which_taints_count(args, taint, gone):
    assert of(args, node("a", taint), pod("it")) == ["it"] * gone


def test_every_taint_that_counts_must_be_tolerated():
    both = node("a", KEEP_OUT, SPOT)
    assert of({"includePreferNoSchedule": True}, both, pod("it", **TOLERANT)) == ["it"]
    assert of({"includePreferNoSchedule": True, "excludedTaints": ["spot"]}, both, pod("it", **TOLERANT)) == []


@pytest.mark.parametrize(("args", "wanted"), [
    ({"includedTaints": ["a"], "excludedTaints": ["b"]},
     ["includedTaints: either includedTaints or excludedTaints can be set, but not both"]),
    ({"includedTaints": [], "excludedTaints": ["b"]}, []), ({"excludedTaints": [5]}, [
        "`excludedTaints[0]`: 5 is not of type 'string'",
    ]),
])
def test_faults_of_arguments_are_reported(args, wanted):
    assert faults(NAME, args) == wanted
