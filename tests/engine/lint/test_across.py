"""Rules that compare documents and configurations with each other."""

from __future__ import annotations

import pytest

from .conftest import descheduler_policy, findings, scheduler_policy, told

BELOW = "filter:\n- {name: below, expression: '%s'}"
DRAIN = "type: Balance\nnodes:\n  source: usage.cpu * 100 / allocatable.cpu > %s"
SUPPRESS = """\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: squeeze, annotations: {policy.koordinator.sh/description: About.}}
spec:
  featureGate: BECPUSuppress
  params: {percent: 65}
  actions:
  - name: squeeze
    suppressCPU: {target: allocatable.cpu * params.percent / 100 - nonBestEffortUsage.cpu}
"""


def rules(text: str, configuration: str = "") -> set[str]:
    return {rule for rule, _ in told(text, configuration)}


@pytest.mark.parametrize("written", [
    "usage.cpu * 100 / allocatable.cpu < 85",
    "85 > usage.cpu * 100 / allocatable.cpu",
    "100 * usage.cpu < allocatable.cpu * 85",
    "usage.cpu < allocatable.cpu * 85 / 100",
    "double(usage.cpu) / double(allocatable.cpu) < 0.85",
    "!nodeInfo.measured || estimated.cpu * 100 / allocatable.cpu < 85",
    "!(usage.cpu * 100 / allocatable.cpu >= 85)",
    "percent(usage.cpu, allocatable.cpu) < 85",
    "(allocatable.cpu > 0 ? usage.cpu * 100 / allocatable.cpu : 100) < 85",
])
def test_a_watermark_is_the_same_however_it_is_written(written: str):
    place = scheduler_policy(BELOW % written, "place")
    assert rules(place + "---\n" + descheduler_policy(DRAIN % 80, "drain")) == {"KP030"}
    assert rules(place + "---\n" + descheduler_policy(DRAIN % 85, "drain")) == set()


def test_watermarks_of_other_resources_pods_and_nodes_do_not_meet():
    place = scheduler_policy(BELOW % "usage.memory * 100 / allocatable.memory < 85", "place")
    assert rules(place + "---\n" + descheduler_policy(DRAIN % 80, "drain")) == set()
    hot = BELOW % "usage.cpu * 100 / allocatable.cpu < 85"
    for one, other in (
        ("match: {pods: {namespaces: [a]}}\n", "match: {pods: {namespaces: [b]}}\n"),
        ("match: {nodes: {labelSelector: {matchLabels: {pool: a}}}}\n",
         "match: {nodes: {labelSelector: {matchExpressions: [{key: pool, operator: In, values: [b, c]}]}}}\n"),
        ("enforcement: Audit\n", ""),
    ):
        assert rules(
            scheduler_policy(one + hot, "place") + "---\n" + descheduler_policy(other + DRAIN % 80, "d"),
        ) == set()


def test_suppression_concerns_best_effort_pods_only():
    hot = BELOW % "usage.cpu * 100 / allocatable.cpu < 85"
    assert rules(scheduler_policy(hot, "place") + SUPPRESS) == {"KP030"}
    assert rules(
        scheduler_policy(f"match: {{pods: {{priorityClasses: [koord-prod]}}}}\n{hot}", "place") + SUPPRESS,
    ) == set()


def test_a_finding_names_the_other_place():
    place = scheduler_policy(BELOW % "usage.cpu * 100 / allocatable.cpu < 85", "place")
    (finding,) = findings(place + "---\n" + descheduler_policy(DRAIN % 80, "drain"))
    assert finding.found.message == (
        "pods are placed on nodes of up to 85 % cpu, but `drain` drains nodes from 80 %: a pod may be evicted and "
        "placed"
        " back for ever"
    )
    assert [span.place[1] for span in finding.found.related] == [14]


def test_a_component_configuration_is_held_against_documents():
    configuration = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: default
  pluginConfig:
  - name: LowNodeLoad
    args: {lowThresholds: {cpu: 80}, highThresholds: {cpu: 75, memory: 100}}
"""
    place = scheduler_policy(BELOW % "usage.cpu * 100 / allocatable.cpu < 85")
    assert told(place, configuration) == [
        ("KP030", "usage.cpu * 100 / allocatable.cpu < 85"), ("KP033", "100"), ("KP034", "80"),
    ]


def test_the_threshold_of_load_aware_scheduling_and_that_of_the_slo_controller_meet():
    scheduler = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: koord-scheduler
  plugins: {filter: {enabled: [{name: LoadAwareScheduling}, {name: keep-of}]}}
  pluginConfig:
  - name: LoadAwareScheduling
    args: {usageThresholds: {cpu: 65, memory: 95}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config}
data:
  resource-threshold-config: '{"clusterStrategy": {"enable": true, "memoryEvictThresholdPercent": 70}}'
"""
    assert told("", scheduler) == [("KP030", "95"), ("KP036", "keep-of")]


def test_draining_that_ends_before_it_begins_is_told():
    until = "\nuntil: usage.cpu * 100 / allocatable.cpu < %s"
    assert rules(descheduler_policy(DRAIN % 80 + until % 90)) == {"KP034"}
    assert rules(descheduler_policy(DRAIN % 80 + until % 80)) == set()


def test_overlapping_pools_that_drain_differently_are_told():
    pool = "match: {nodes: {labelSelector: {matchLabels: {%s}}}}\n"
    first = descheduler_policy(pool % "pool: a" + DRAIN % 80, "one")
    assert rules(first + "---\n" + descheduler_policy(pool % "pool: a, zone: b" + DRAIN % 70, "two")) == {"KP031"}
    assert rules(first + "---\n" + descheduler_policy(pool % "pool: b" + DRAIN % 70, "two")) == set()
    assert rules(first + "---\n" + descheduler_policy(pool % "zone: b" + DRAIN % 70, "two")) == set()


def test_scores_that_prefer_the_opposite_fight_where_they_meet():
    fullest = "score:\n- {name: it, expression: 'math.least(100, requested.cpu * 100 / allocatable.cpu)'}"
    emptiest = "score:\n- {name: it, expression: requested.cpu, normalize: MaxReverse}"
    both = scheduler_policy(fullest, "pack"), scheduler_policy(emptiest, "spread")
    assert rules("---\n".join(both)) == {"KP032"}
    apart = scheduler_policy(f"profiles: [a]\n{fullest}", "pack"), scheduler_policy(
        f"profiles: [b]\n{emptiest}", "spread",
    )
    assert rules("---\n".join(apart)) == set()


def test_a_policy_of_kubernetes_names_no_unknown_plugin():
    policy = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: default
  plugins: {deschedule: {enabled: [PodLifeTime, PodLifeTimes]}}
"""
    assert told("", policy) == [("KP036", "PodLifeTimes")]
