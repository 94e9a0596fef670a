"""The validation of pods and ElasticQuotas."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.manager.admission import AdmissionRefusal
from koordpolicy.engine.manager.validation import check_pod, check_quota, check_quota_deletion

QUOTAS = {"parent": {"metadata": {"name": "parent", "labels": {"quota.scheduling.koordinator.sh/is-parent": "true"}}}}


def pod(qos: str = "", priority: int | None = None, labels: dict[str, str] | None = None, **requests: str) -> Any:
    held = {"koordinator.sh/qosClass": qos} if qos else {}
    amounts = {name if name in ("cpu", "memory") else f"kubernetes.io/{name.replace('_', '-')}": amount
               for name, amount in requests.items()}
    return {"metadata": {"name": "web", "labels": {**held, **(labels or {})}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": amounts}}],
                     **({} if priority is None else {"priority": priority})}}


def refusal(item: Any, old: Any = None) -> str:
    try:
        check_pod(item, old or {}, QUOTAS.get)
    except AdmissionRefusal as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("item", "message"), [
    (pod(), ""), (pod("BE", 5500, batch_cpu="500"), ""), (pod("LSR", 9500, cpu="2"), ""), (pod("LS", 5500), ""),
    (pod("LS", batch_cpu="500"), "must specify koordinator QoS BE with koordinator colocation resources"),
    (pod("BE"), "koordinator.sh/qosClass=BE and priorityClass= cannot be used in combination"),
    (pod("BE", 9500), "koordinator.sh/qosClass=BE and priorityClass=koord-prod cannot be used in combination"),
    (pod("LSR", 7500, cpu="1"), ("koordinator.sh/qosClass=LSR and priorityClass=koord-mid cannot be used in "
     "combination")),
    (pod("LSR", 9500), "LSR Pod must declare the requested CPUs"),
    (pod("LSE", 9500, cpu="1500m"), "the requested CPUs of LSE Pod must be integer"),
    (pod(labels={"quota.scheduling.koordinator.sh/name": "parent"}),
     "quota parent is a parent quota group, pods cannot be in it"),
    (pod(labels={"quota.scheduling.koordinator.sh/name": "other"}), ""),
])
def test_pods_are_checked_on_their_creation(item: Any, message: str):
    assert refusal(item) == message


@pytest.mark.parametrize(("now", "before", "fragment"), [
    (pod("LS"), pod("LS"), ""), (pod("LS"), pod(), "labels[koordinator.sh/qosClass]: Invalid value: 'LS'"),
    (pod("", 9500), pod("", 5500), "labels[koordinator.sh/priority-class]: Invalid value: 'koord-prod'"),
    (pod(labels={"koordinator.sh/priority": "2"}), pod(), "labels[koordinator.sh/priority]: Invalid value: '2'"),
    (pod(labels={"koordinator.sh/priority": "2"}), pod(labels={"koordinator.sh/priority": "2"}), ""),
])
def test_classes_do_not_change(now: Any, before: Any, fragment: str):
    found = refusal(now, before)
    assert fragment in found
    assert bool(found) is bool(fragment)


@pytest.mark.parametrize(("spec", "message"), [
    ({"min": {"cpu": "1"}, "max": {"cpu": "1000m"}}, ""), ({}, ""), ({"max": {"cpu": "1"}}, ""),
    ({"min": {"cpu": "-1"}, "max": {"cpu": "1"}}, "q quota.Spec.min's value < 0, in dimensions :[cpu]"),
    ({"min": {"cpu": "2"}, "max": {"cpu": "1"}}, "q min > max, in dimensions :[cpu]"),
    ({"min": {"memory": "2"}, "max": {"cpu": "1"}}, "q min > max, in dimensions :[memory]"),
])
def test_the_minimum_of_a_quota_is_not_above_its_maximum(spec: dict[str, Any], message: str):
    found = ""
    try:
        check_quota({"metadata": {"name": "q"}, "spec": spec})
    except AdmissionRefusal as error:
        found = str(error)
    assert found == message


def bound(name: str, phase: str = "Running") -> PodInfo:
    return PodInfo.of({"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": phase}})


@pytest.mark.parametrize(("name", "pods", "message"), [
    ("q", [], ""), ("q", [bound("old", "Succeeded")], ""),
    ("q", [bound("a")], "delete quota failed, quota q has 1 child pods: a"),
    ("q", [bound("a"), bound("b"), bound("c")], "delete quota failed, quota q has 3 child pods: a, b and 1 more"),
    ("parent", [], "delete quota failed, quota parent has 1 child quotas: child"),
    ("koordinator-root-quota", [], "invalid quota koordinator-root-quota: it cannot be deleted"),
])
def test_a_quota_that_is_in_use_is_not_deleted(name: str, pods: list[PodInfo], message: str):
    quotas = [{"metadata": {"name": "child", "labels": {"quota.scheduling.koordinator.sh/parent": "parent"}}}]
    found = ""
    try:
        check_quota_deletion(name, quotas, pods)
    except AdmissionRefusal as error:
        found = str(error)
    assert found == message
