from __future__ import annotations

import json

import pytest

from .kube_scheduler_runs import parts, run
from .result import Result


def node(name, cpu):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def pod(name, cpu, node_name=None, priority=0, **status):
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], "priority": priority,
            "schedulerName": "default-scheduler"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": spec | ({"nodeName": node_name} if node_name else {}), "status": status}


@pytest.fixture
def results(tmp_path):
    def write(*cases, objects=(), **later):
        config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        cluster = {"id": "c", "config": config, "objects": list(objects), "later": later}
        (tmp_path / "runs.json").write_text(json.dumps({"clusters": [cluster], "cases": [
            {"id": f"c-{number}", "cluster": "c", "now": "2026-01-01T00:00:00Z", **case}
            for number, case in enumerate(cases)
        ]}))
        assert parts(tmp_path / "runs.json") == ["c"]
        return list(run(tmp_path / "runs.json"))

    return write


def bound(*feasible):
    return {"outcome": "bound", "feasible": list(feasible), "scores": {}, "totals": {}, "message": None, "victims": [],
            "nominated": None}


AGREES = {"feasible": (1, 1), "nominated": (1, 1)}


def test_each_decision_sees_its_own_cluster_whatever_came_before(results):
    small, large = node("small", "1"), node("large", "4")
    full = pod("full", "4", "large")
    found = results(
        {"pod": pod("a", "3"), "expect": bound("large")},
        {"pod": pod("a", "500m"), "with": ["full"], "expect": bound("small")},
        {"pod": pod("b", "500m"), "without": ["default/old"], "with": ["full", "grown"], "expect": bound("small")},
        {"pod": pod("c", "3"), "expect": bound("large")},
        objects=[small, large, pod("old", "500m", "small")], full=full,
        grown=node("large", "4500m") | {"spec": {"unschedulable": True}},
    )
    assert found == [Result("kube_scheduler_runs", f"c-{number}", True, "", AGREES) for number in range(4)]


def test_what_differs_is_named_by_its_part(results):
    expect = {
        "outcome": "bound", "feasible": ["a"],
        "scores": {"NodeResourcesFit": {"a": 1, "b": 97}, "DynamicResources": {"a": 0}}, "totals": {"a": 2},
        "message": None, "victims": [], "nominated": "b",
    }
    (found,) = results({"pod": pod("p", "100m"), "expect": expect}, objects=[node("a", "4"), node("b", "4")])
    assert not found.passed
    assert {part: counts for part, counts in found.agreement.items() if part != "scores"} == {
        "feasible": (0, 1), "totals": (0, 1), "nominated": (0, 1), "victims": (0, 1)}
    assert found.detail.startswith("feasible: has b; scores: ")
    assert "NodeResourcesFit (a is 97, expected 1)" in found.detail
    assert found.detail.endswith("nominated: is None, expected 'b'; victims: is None, expected []")


def test_a_case_that_cannot_be_decided_hides_no_other(results):
    first, second = results(
        {"pod": {"metadata": {}}, "expect": bound()}, {"pod": pod("p", "1"), "expect": bound("a")},
        objects=[node("a", "4")],
    )
    assert (first.passed, first.detail.partition(":")[0]) == (False, "stopped by PolicyError")
    assert second.passed
