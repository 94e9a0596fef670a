from __future__ import annotations

import logging
from typing import Any

from koordpolicy.engine.agent.host.control_groups import SYSTEMD, ControlGroups
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroup, MeasuredGroups, Probes
from koordpolicy.engine.cluster.objects.pods import PodInfo

GROUPS = ControlGroups(2, SYSTEMD, {"": "/sys/fs/cgroup"})
ID = "0123456789abcdef"


def pod(name: str, qos: str, *, uid: str = "u-1", batch_cpu: object = None, phase: str = "Running",
        identifier: str = f"containerd://{ID}") -> PodInfo:
    requests = {} if batch_cpu is None else {"kubernetes.io/batch-cpu": batch_cpu}
    spec: dict[str, Any] = {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": requests}}]}
    return PodInfo.of({
        "kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": uid,
                                    "labels": {"koordinator.sh/qosClass": qos}}, "spec": spec,
        "status": {"phase": phase, "containerStatuses": [{"name": "c", "containerID": identifier}]},
    })


def test_pods_and_containers_have_the_directories_of_kubelet_and_runtime():
    found = MeasuredGroups().with_pods(GROUPS, [pod("a", "LS")])
    directory = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice"
    assert found.pods == (MeasuredGroup("pod", "d/a", "u-1", directory),)
    assert found.containers == (
        MeasuredGroup("container", "d/a/c", f"containerd://{ID}", f"{directory}/cri-containerd-{ID}.scope"),)


def test_pods_that_ended_and_containers_without_id_are_not_measured():
    found = MeasuredGroups().with_pods(GROUPS, [pod("a", "LS", phase="Succeeded"), pod("b", "LS", identifier="")])
    assert ([each.name for each in found.pods], found.containers) == (["d/b"], ())


def test_the_request_of_the_best_effort_tier_is_that_of_its_pods():
    pods = [pod("a", "BE", batch_cpu="1500"), pod("b", "LS", batch_cpu="700"), pod("c", "BE"),
            pod("e", "BE", batch_cpu=500)]
    assert MeasuredGroups().with_pods(GROUPS, pods).batch_cpu == 2000


def test_applications_are_those_of_the_node_slo_and_malformed_ones_are_logged(caplog):
    declared = [
        {"name": "db", "qos": "LS"}, {"name": "up", "cgroupPath": {"relativePath": "../../etc"}}, "text", {},
        {"name": "fs", "cgroupPath": {"base": "CgroupRoot", "parentDir": "system.slice/", "relativePath": "fs"}},
    ]
    with caplog.at_level(logging.WARNING):
        found = MeasuredGroups().with_applications(GROUPS, declared)
    assert [(each.name, each.directory, each.qos_class) for each in found.applications] == [
        ("db", "host-latency-sensitive/db", "LS"), ("fs", "system.slice/fs", "")]
    assert len(caplog.records) == 3


def test_measured_groups_are_gone_when_they_are_missing_or_others_of_their_name():
    before = MeasuredGroups().with_pods(GROUPS, [pod("a", "LS"), pod("b", "LS", uid="u-2"), pod("c", "LS", uid="u-3")])
    after = MeasuredGroups().with_pods(GROUPS, [pod("a", "LS"), pod("b", "LS", uid="u-9", identifier="docker://ff")])
    assert sorted((each.what, each.name) for each in before.stale(after)) == [
        ("container", "d/b/c"), ("container", "d/c/c"), ("pod", "d/b"), ("pod", "d/c")]


def test_probes_are_made_once_per_subject():
    made: list[str] = []
    probes = Probes(lambda subject: made.append(subject.name) or subject.name.upper())
    one, two, new = (MeasuredGroup("pod", name, "1", name) for name in ("a", "b", "c"))
    first = (one, two)
    assert (probes.of(first), probes.of(first), probes.of((two, new)), made) == (
        ["A", "B"], ["A", "B"], ["B", "C"], ["a", "b", "c"])
