from __future__ import annotations

import json

import pytest

from .k8s_descheduler_runs import run


def node(name):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}


def pod(name, created="2026-01-01T10:00:00Z"):
    owners = [{"kind": "ReplicaSet", "name": "r", "uid": "r"}]
    return {
        "kind": "Pod", "spec": {"nodeName": "a", "containers": [{"name": "c"}]}, "status": {"phase": "Running"},
        "metadata": {"name": name, "namespace": "d", "labels": {"app": "r"}, "creationTimestamp": created,
                     "ownerReferences": owners},
    }


BUDGET = {
    "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "d"},
    "spec": {"selector": {"matchLabels": {"app": "r"}}},
    "status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 2},
}
OLD, OLDER = pod("old"), pod("older", "2026-01-01T09:00:00Z")
PLUGIN = {"name": "PodLifeTime", "args": {"maxPodLifeTimeSeconds": 60}}
POLICY = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy", "profiles": [{
    "name": "p", "pluginConfig": [PLUGIN], "plugins": {"deschedule": {"enabled": ["PodLifeTime"]}},
}]}


@pytest.fixture
def detail(tmp_path):
    def of(objects, evicted, **expect):
        expect = {"evicted": evicted and [{"pod": each, "node": "a", "plugin": "PodLifeTime"} for each in evicted],
                  "refused": [], "refusedComplete": True, "stableOrder": True, "dryRun": "same", **expect}
        case = {"id": "it", "policy": POLICY, "objects": [node("a"), node("b"), *objects],
                "now": "2026-01-01T12:00:00Z", "expect": expect}
        (tmp_path / "runs.json").write_text(json.dumps({"cases": [case]}))
        (found,) = run(tmp_path / "runs.json")
        assert found.passed == (not found.detail)
        return found.detail

    return of


def test_what_was_evicted_its_order_and_what_was_refused_are_compared(detail):
    assert detail([OLD, OLDER], ["d/older", "d/old"]) == ""
    assert detail([OLD, OLDER], ["d/old", "d/older"]).startswith("order of PodLifeTime")
    assert detail([OLD, OLDER], ["d/old"]).startswith("evicted: lacks [], has ['d/older']")
    bare = pod("bare")
    del bare["metadata"]["ownerReferences"]
    assert detail([bare], []) == "refused: has ['d/bare']"
    assert detail([bare], [], refused=[
        {"pod": "d/bare", "by": "Filter", "reason": "pod does not have any ownerRefs"},
    ]) == ""


def test_evictions_past_a_disruption_budget_are_refused_but_not_dry(detail):
    objects = [OLD, OLDER, BUDGET]
    for each in (OLD, OLDER):
        each["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    dry = {"dryRun": {"evicted": ["d/old", "d/older"]}}
    errors = {"evictionErrorsStable": True, "evictionErrors": [{"pod": "d/old"}]}
    assert detail(objects, ["d/older"], **dry, **errors) == ""
    assert detail(objects, ["d/older"], **errors) == "dry run: lacks [], has ['d/old']"


def test_of_runs_that_differed_what_all_had_in_common_is_compared(detail):
    unstable = {"always": [{"pod": "d/old"}], "total": {"min": 1, "max": 2}, "perNode": {"a": 2}}
    assert detail([OLD, OLDER], None, unstable=unstable, dryRun=None) == ""
    assert detail([OLDER], None, unstable=unstable, dryRun=None) == (
        "evicted: lacks ['d/old']; perNode: expected 2 of a, got 1"
    )
