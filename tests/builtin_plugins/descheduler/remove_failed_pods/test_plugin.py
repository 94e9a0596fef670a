from __future__ import annotations

import pytest

from ..deschedule import cycle, evicted, faults, node, pod

NODES = node("a"), node("b")
CREATING = {"name": "c", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}
ENDED = {"name": "c", "state": {"terminated": {"reason": "Error", "exitCode": 3}}}


def failed(name, on="a", created="2026-01-01T10:00:00Z", kind="ReplicaSet", **status):
    return pod(name, on, created, kind=kind, status={"phase": "Failed", **status})


def of(args, *pods, **given):
    return evicted("RemoveFailedPods", args, *NODES, *pods, **given)


def test_only_failed_pods_go_node_by_node_an_hour_after_their_creation():
    pods = [
        failed("second", "b", "2026-01-01T11:00:00Z"), failed("first", "a", "2026-01-01T11:00:00Z"),
        failed("young", "a", "2026-01-01T11:00:01Z"), failed("timeless", "b", None), pod("runs"),
        pod("done", status={"phase": "Succeeded"}),
    ]
    assert of({}, *pods) == ["first", "second", "timeless"]
    assert sorted(of({"minPodLifetimeSeconds": 0}, *pods)) == ["first", "second", "timeless", "young"]


@pytest.mark.parametrize(("args", "gone"), [
    ({"reasons": ["CreateContainerConfigError", "Evicted"]}, ["creating", "evicted"]),
    ({"reasons": ["CreateContainerConfigError"], "includingInitContainers": True}, ["creating", "of-init"]),
    ({"reasons": ["Error"]}, ["ended"]), ({"exitCodes": [3]}, ["ended"]), ({"exitCodes": [2]}, []),
    ({"exitCodes": [3], "includingInitContainers": True}, ["ended", "init-ended"]),
    ({"exitCodes": [3], "reasons": ["Evicted"]}, []), ({"excludeOwnerKinds": ["Job"]}, [
        "creating", "of-init", "ended", "init-ended", "evicted",
    ]),
    ({"excludeOwnerKinds": ["Job", "ReplicaSet"]}, []),
])
def test_reasons_exit_codes_and_owners_narrow_the_choice(args, gone):
    pods = [
        failed("creating", containerStatuses=[CREATING]), failed("of-init", initContainerStatuses=[CREATING]),
        failed("ended", containerStatuses=[ENDED]), failed("init-ended", initContainerStatuses=[ENDED]),
        failed("evicted", reason="Evicted"),
    ]
    assert of(args, *pods, *([failed("of-job", kind="Job")] if "excludeOwnerKinds" in args else [])) == gone


def test_a_failed_pod_without_owner_needs_the_leave_of_the_evictor():
    bare = failed("bare", kind="", reason="Evicted")
    assert of({}, bare) == []
    found = cycle("RemoveFailedPods", {"reasons": ["Evicted"]}, *NODES, bare, evictor={"evictFailedBarePods": True})
    assert [(pod, of.reason) for pod, _, of in found.evicted] == [("d/bare", "it failed for the reason Evicted")]


@pytest.mark.parametrize(("args", "wanted"), [
    ({}, []), ({"minPodLifetimeSeconds": None}, []),
    ({"minPodLifetimeSeconds": -1}, ["`minPodLifetimeSeconds`: -1 is less than the minimum of 0"]),
    ({"namespaces": {"include": ["a"], "exclude": ["b"]}},
     ["namespaces: only one of Include/Exclude namespaces can be set"]),
])
def test_faults_of_arguments_are_reported(args, wanted):
    assert faults("RemoveFailedPods", args) == wanted
