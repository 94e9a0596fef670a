from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.descheduler.pod_life_time.args import (
    STATES,
    ConditionMatch,
    PodLifeTimeArgs,
    check_args,
    read_args,
)
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.plugin_args import PodSelection

from ..deschedule import cycle, evicted, faults, node, pod

NODES = node("a"), node("b")
CRASHING = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "name": "c"}
KILLED = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "name": "c"}
READY = {"type": "Ready", "status": "False", "reason": "Slow", "lastTransitionTime": "2026-01-01T11:59:00Z"}


def of(args, *pods, **given):
    return evicted("PodLifeTime", args, *NODES, *pods, **given)


def test_pods_that_are_older_than_the_maximum_go_the_oldest_first():
    pods = [
        pod("exactly", created="2026-01-01T11:59:00Z"), pod("older", "b", created="2026-01-01T11:58:59Z"),
        pod("oldest", created="2026-01-01T11:58:58Z"), pod("timeless", "b", created=None),
        pod("coming", created="2026-01-01T12:00:01Z"), pod("finished", status={"phase": "Succeeded"}),
    ]
    assert of({"maxPodLifeTimeSeconds": 60}, *pods) == ["timeless", "finished", "oldest", "older"]


@pytest.mark.parametrize(("created", "gone"), [
    ("2026-01-01T11:58:59.000000001Z", False), ("2026-01-01T11:58:59.000Z", True),
    ("2026-01-01T12:58:59+01:00", True), ("2026-01-01T12:59:00+01:00", False), ("0999-01-01T00:00:00Z", True),
])
def test_times_in_any_form_are_compared_as_instants(created, gone):
    assert of({"maxPodLifeTimeSeconds": 60}, pod("it", created=created), pod("new", created="2026-01-01T12:00:00Z")) \
        == ["it"] * gone


@pytest.mark.parametrize("seconds", [2**40, 2**64 - 1])
def test_a_maximum_beyond_all_times_keeps_every_pod_with_a_time(seconds):
    assert of({"maxPodLifeTimeSeconds": seconds}, pod("it", created="0001-01-01T00:00:00Z")) == []


@pytest.mark.parametrize(("args", "gone"), [
    ({"states": ["Running"]}, ["plain", "crashing", "of-init", "of-debug", "killed"]),
    ({"states": ["Shutdown", "CrashLoopBackOff"]}, ["crashing", "shut"]),
    ({"states": ["CrashLoopBackOff"], "includingInitContainers": True}, ["crashing", "of-init"]),
    ({"states": ["CrashLoopBackOff"], "includingEphemeralContainers": True}, ["crashing", "of-debug"]),
    ({"states": ["OOMKilled"], "exitCodes": [1, 137]}, ["killed"]),
    ({"exitCodes": [1]}, []),
    ({"exitCodes": [137], "includingEphemeralContainers": True}, ["killed"]),
    ({"exitCodes": [0]}, ["done"]),
])
def test_states_and_exit_codes_are_those_of_now(args, gone):
    pods = [
        pod("plain"), pod("crashing", status={"containerStatuses": [CRASHING]}),
        pod("of-init", status={"initContainerStatuses": [CRASHING]}),
        pod("of-debug", status={"ephemeralContainerStatuses": [CRASHING]}),
        pod("killed", status={"containerStatuses": [KILLED], "ephemeralContainerStatuses": [KILLED]}),
        pod("shut", status={"phase": "Failed", "reason": "Shutdown"}),
        pod("done", status={"phase": "Succeeded", "containerStatuses": [{"name": "c", "state": {"terminated": {}}}]}),
        pod("before", status={"phase": "Pending", "containerStatuses": [{"name": "c", "lastState": KILLED["state"]}]}),
    ]
    assert sorted(of(args, *pods)) == sorted(gone)


@pytest.mark.parametrize(("match", "gone"), [
    ({"type": "Ready"}, True), ({"type": "Ready", "status": "True"}, False), ({"status": "False"}, True),
    ({"reason": "Slow"}, True), ({"reason": "Fast"}, False), ({"minTimeSinceLastTransitionSeconds": 60}, True),
    ({"type": "Ready", "minTimeSinceLastTransitionSeconds": 61}, False),
])
def test_one_condition_must_match_in_all_its_fields(match, gone):
    held = pod("held", status={"conditions": [READY]})
    timeless = pod("timeless", status={"conditions": [{"type": "Other", "status": "Unknown"}]})
    assert of({"conditions": [{"type": "Other", "status": "True"}, match]}, held, timeless) == ["held"] * gone


@pytest.mark.parametrize(("kinds", "gone"), [
    ({"include": ["Job"]}, ["of-job"]), ({"exclude": ["Job"]}, ["bare", "of-set"]), ({}, ["bare", "of-job", "of-set"]),
])
def test_kinds_of_owners_select_pods(kinds, gone):
    pods = pod("bare", kind=""), pod("of-job", kind="Job"), pod("of-set", kind="StatefulSet")
    args = {"maxPodLifeTimeSeconds": 0, "ownerKinds": kinds}
    assert sorted(of(args, *pods, evictor={"podProtections": {"defaultDisabled": ["FailedBarePods"]}})) \
        == [name for name in gone if name != "bare"]
    failed = [{**each, "status": {"phase": "Failed"}} for each in pods]
    assert sorted(of(args, *failed, evictor={"podProtections": {"defaultDisabled": ["FailedBarePods"]}})) == gone


def test_namespaces_and_labels_select_pods():
    pods = pod("web", labels={"app": "web"}), pod("db", labels={"app": "db"}), pod("other", namespace="e")
    age = {"maxPodLifeTimeSeconds": 0}
    assert of({**age, "namespaces": {"include": ["d"]}, "labelSelector": {"matchLabels": {"app": "web"}}}, *pods) \
        == ["web"]
    assert of({**age, "namespaces": {"exclude": ["d"]}}, *pods) == ["other"]


def test_a_veto_and_the_reason_of_an_eviction_are_recorded():
    found = cycle("PodLifeTime", {"maxPodLifeTimeSeconds": 60, "states": ["Running"]}, *NODES, pod("old"),
                  pod("bare", kind=""), pod("new", created="2026-01-01T12:00:00Z", kind=""))
    assert [(each.pod, each.decision.reason) for each in found.evicted] == [
        ("d/old", "it is older than 60 s, its state is Running"),
    ]
    assert [(each.pod, each.decision.stopped_by) for each in found.staying] == [("d/bare", "DefaultEvictor")]


def test_what_changes_between_cycles_is_seen():
    cluster = Cluster([*NODES, pod("it"), pod("other", "b")])
    args = {"states": ["CrashLoopBackOff"]}
    assert evicted("PodLifeTime", args, cluster=cluster) == []
    cluster.upsert(pod("it", status={"containerStatuses": [CRASHING]}))
    assert evicted("PodLifeTime", args, cluster=cluster) == ["it"]
    cluster.upsert(pod("it", status={"phase": "Failed", "reason": "Shutdown"}))
    assert evicted("PodLifeTime", args, cluster=cluster) == []
    assert evicted("PodLifeTime", {"states": ["Shutdown"]}, cluster=cluster) == ["it"]
    cluster.delete("Pod", "d/it")
    assert evicted("PodLifeTime", {"states": ["Shutdown"]}, cluster=cluster) == []


NO_CRITERION = ("at least one filtering criterion must be specified (maxPodLifeTimeSeconds, states, conditions, or "
                "exitCodes)")


@pytest.mark.parametrize(("args", "wanted"), [
    ({}, [NO_CRITERION]),
    ({"states": [], "exitCodes": []}, [NO_CRITERION]),
    ({"maxPodLifeTimeSeconds": 0}, []),
    ({"states": ["Running", "Sleeping"]}, [f"states: states must be one of [{' '.join(STATES)}]"]),
    ({"exitCodes": [1], "namespaces": {"include": ["a"], "exclude": ["b"]}, "ownerKinds": {"include": ["Job"],
      "exclude": ["Job"]}}, ["namespaces: only one of Include/Exclude namespaces can be set",
                             "ownerKinds: only one of Include/Exclude ownerKinds can be set"]),
    ({"conditions": [{"type": "Ready"}, {}]}, [
        "conditions[1]: at least one of type, status, reason, or minTimeSinceLastTransitionSeconds must be set",
    ]),
    ({"conditions": [{"minTimeSinceLastTransitionSeconds": 0}]}, []),
    ({"maxPodLifeTimeSeconds": "5"}, ["`maxPodLifeTimeSeconds`: '5' is not of type 'integer'"]),
    ({"exitCodes": [1], "age": 5},
     ["Additional properties are not allowed ('age' was unexpected)"]),
    ({"exitCodes": [1], "labelSelector": {"matchLabels": {"-a": "b"}}}, [(
        "labelSelector: failed to get label selectors from strategy's params: key: Invalid value: \"-a\": name part"
        " must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
        " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    )]),
])
def test_faults_of_arguments_are_reported_with_their_path(args, wanted):
    assert faults("PodLifeTime", args) == wanted


def test_arguments_are_read_into_their_internal_form():
    assert read_args(check_args({
        "apiVersion": "descheduler/v1alpha2", "kind": "PodLifeTimeArgs", "maxPodLifeTimeSeconds": 5, "states": None,
        "conditions": [{"type": "Ready", "minTimeSinceLastTransitionSeconds": 3}], "exitCodes": [1, 1],
        "namespaces": {"include": ["n"]}, "ownerKinds": {"exclude": ["Job"]}, "includingInitContainers": True,
        "includingEphemeralContainers": True,
    })) == PodLifeTimeArgs(
        PodSelection(frozenset({"n"})), frozenset(), frozenset({"Job"}), 5, frozenset(),
        (ConditionMatch("Ready", least_seconds=3),), frozenset({1}),
        ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"),
        ("containerStatuses", "initContainerStatuses"),
    )
