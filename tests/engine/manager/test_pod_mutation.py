"""The mutation of pods by ClusterColocationProfiles."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from koordpolicy.engine.manager.admission import AdmissionRefusal
from koordpolicy.engine.manager.pod_mutation import mutated_pod

POD = {
    "metadata": {"name": "web", "labels": {"app": "web", "zone": "a"}},
    "spec": {
        "priority": 0, "overhead": {"cpu": "250m"},
        "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "1"}}}],
        "containers": [{"name": "main", "resources": {
            "requests": {"cpu": "500m"}, "limits": {"cpu": "1500u", "memory": "1Gi", "example.com/disk": "2"}}}]}}
CLASSES = {"batch": {"metadata": {"name": "batch"}, "value": 5500, "preemptionPolicy": "Never"}}


def profile(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def mutated(*profiles: dict[str, Any], pod: dict[str, Any] | None = None, chance: int = 50) -> dict[str, Any]:
    given = copy.deepcopy(pod or POD)
    found = mutated_pod(given, profiles, {"env": "test"}, CLASSES.get, chance=lambda: chance)
    assert given == (pod or POD)
    return found


def test_without_a_matching_profile_a_pod_stays_as_it_is():
    assert mutated(profile(selector={"matchLabels": {"app": "db"}}, qosClass="BE"),
                   profile(namespaceSelector={"matchLabels": {"env": "prod"}}, qosClass="BE")) == POD


def test_the_resources_of_a_batch_pod_get_the_names_of_the_band():
    found = mutated(profile(qosClass="BE", priorityClassName="batch"))
    assert found["spec"] == {
        "priority": 5500, "priorityClassName": "batch", "preemptionPolicy": "Never",
        "overhead": {"kubernetes.io/batch-cpu": "250"},
        "initContainers": [{"name": "init", "resources": {"requests": {"kubernetes.io/batch-cpu": "1000"}}}],
        "containers": [{"name": "main", "resources": {
            "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
            "limits": {"kubernetes.io/batch-cpu": "2", "kubernetes.io/batch-memory": "1Gi", "example.com/disk": "2"}}}]}
    assert json.loads(found["metadata"]["annotations"]["node.koordinator.sh/extended-resource-spec"]) == {
        "containers": {"main": {
            "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
            "limits": {"kubernetes.io/batch-cpu": "2", "kubernetes.io/batch-memory": "1Gi"}}}}


def test_a_prod_pod_keeps_its_names():
    assert mutated(profile(qosClass="LS"))["spec"] == POD["spec"]


def test_all_parts_of_a_profile_are_applied_in_their_order():
    found = mutated(profile(
        labels={"team": "data"}, annotations={"a": "1"}, labelKeysMapping={"team": "group", "none": "empty"},
        annotationKeysMapping={"a": "b"}, labelSuffixes={"zone": "-1", "absent": "x"}, schedulerName="koord",
        koordinatorPriority=7, patch={"spec": {"containers": [{"name": "main", "image": "new"}], "nodeName": None}}))
    assert found["metadata"]["labels"] == {
        "app": "web", "zone": "a-1", "team": "data", "group": "data", "empty": "", "koordinator.sh/priority": "7"}
    assert found["metadata"]["annotations"] == {"a": "1", "b": "1"}
    assert found["spec"]["schedulerName"] == "koord"
    assert found["spec"]["containers"] == [{**POD["spec"]["containers"][0], "image": "new"}]


def test_profiles_apply_by_name_and_later_ones_win():
    assert mutated(profile("b", labels={"x": "b"}), profile("a", labels={"x": "a"}))["metadata"]["labels"]["x"] == "b"


@pytest.mark.parametrize(("probability", "chance", "applied"), [
    (0, 0, False), ("0%", 0, False), (50, 49, True), (50, 50, False), ("99%", 99, False), (100, 99, True),
    (None, 99, True),
])
def test_a_profile_applies_if_the_draw_is_below_its_probability(probability: Any, chance: int, applied: bool):
    found = mutated(profile(probability=probability, labels={"x": "y"}), chance=chance)
    assert ("x" in found["metadata"]["labels"]) is applied


def test_the_resources_of_a_matching_pod_change_even_if_the_draw_skips_the_profile():
    pod = {**POD, "metadata": {"name": "be", "labels": {"koordinator.sh/qosClass": "BE"}}}
    assert "kubernetes.io/batch-cpu" in mutated(profile(probability=0), pod=pod)["spec"]["overhead"]
    assert mutated(pod=pod)["spec"] == POD["spec"]


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_a_profile_may_leave_resources_as_they_are(field: str):
    found = mutated({"metadata": {"name": "p", field: {"config.koordinator.sh/skip-update-resources": "true"}},
                     "spec": {"qosClass": "BE", "priorityClassName": "batch"}})
    assert found["spec"]["containers"] == POD["spec"]["containers"]


def test_a_profile_whose_selector_is_invalid_matches():
    assert "x" in mutated(profile(selector={"matchExpressions": [{"key": "a", "operator": "Like"}]},
                                  labels={"x": "y"}))["metadata"]["labels"]


def test_a_priority_class_that_there_is_not_refuses_the_pod():
    with pytest.raises(AdmissionRefusal, match="there is no PriorityClass `none`") as caught:
        mutated(profile(priorityClassName="none"))
    assert caught.value.code == 500
