"""Directories of pods and containers have the names that kubelet and the runtimes give them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.host.control_groups import (
    CGROUPFS,
    SYSTEMD,
    TIERS,
    ContainerId,
    ControlGroups,
    LogicalDirectories,
    container_ids,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo

UID = "0a1b2c3d-0000-4000-8000-00000000000f"
ID = "f" * 64


def groups(driver: str = SYSTEMD, kubepods: str = "kubepods") -> ControlGroups:
    return ControlGroups(1, driver, {"cpu": "/sys/fs/cgroup/cpu"}, kubepods)


def pod(uid: str = UID, *, qos: str = "BestEffort", **containers: str) -> PodInfo:
    resources = {"BestEffort": {}, "Burstable": {"requests": {"cpu": "1"}},
                 "Guaranteed": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}}[qos]
    names = list(containers) or ["main"]
    return PodInfo.of({
        "metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {"containers": [{"name": name, "resources": resources} for name in names]},
        "status": {"containerStatuses": [{"name": name, "containerID": each} for name, each in containers.items()]},
    })


def test_systemd_nests_slices_and_spells_uids_with_underscores() -> None:
    uid, found = UID.replace("-", "_"), groups()
    assert [found.pod(tier, UID) for tier in TIERS] == [
        f"kubepods.slice/kubepods-pod{uid}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice",
    ]


def test_cgroupfs_has_plain_names() -> None:
    found = groups(CGROUPFS, "nested/kubepods")
    assert [found.pod(tier, UID) for tier in TIERS] == [
        f"nested/kubepods/pod{UID}", f"nested/kubepods/burstable/pod{UID}", f"nested/kubepods/besteffort/pod{UID}",
    ]
    assert found.container("burstable", UID, ContainerId("docker", ID)) == f"{found.pod('burstable', UID)}/{ID}"


@pytest.mark.parametrize(("runtime", "name"), [
    ("containerd", f"cri-containerd-{ID}.scope"), ("docker", f"docker-{ID}.scope"), ("cri-o", f"crio-{ID}.scope"),
    ("pouch", f"pouch-{ID}.scope"),
])
def test_scopes_are_named_after_the_runtime(runtime: str, name: str) -> None:
    found = groups()
    assert found.container_name(ContainerId.parse(f"{runtime}://{ID}")) == name
    assert found.parse_container(name) == ID


@pytest.mark.parametrize("text", [
    "", ID, "rkt://x", "docker://", "docker:///etc", "docker://../x", "containerd://a b", f"containerd://{'x' * 200}",
])
def test_other_texts_are_no_container_ids(text: str) -> None:
    with pytest.raises(ValueError, match=r"container id|valid id"):
        ContainerId.parse(text)


@pytest.mark.parametrize(("driver", "name", "uid", "container"), [
    (SYSTEMD, "kubepods-besteffort.slice", None, None),
    (SYSTEMD, "kubepods-pod1_2.slice", "1-2", None),
    (SYSTEMD, "other-besteffort-pod1.slice", None, None),
    (SYSTEMD, f"crio-{ID}", None, ID),
    (SYSTEMD, f"docker-{ID}", None, None),
    (SYSTEMD, f"crio-conmon-{ID}.scope", None, None),
    (SYSTEMD, "init.scope", None, None),
    (CGROUPFS, "burstable", None, "burstable"),
    (CGROUPFS, f"pod{UID}", UID, f"pod{UID}"),
    (CGROUPFS, "pod", None, "pod"),
    (CGROUPFS, "\udcff", None, None),
])
def test_names_of_directories_are_read_back(driver: str, name: str, uid: str | None, container: str | None) -> None:
    assert (groups(driver).parse_pod(name), groups(driver).parse_container(name)) == (uid, container)


@given(driver=st.sampled_from([SYSTEMD, CGROUPFS]), tier=st.sampled_from(TIERS), uid=st.uuids().map(str))
def test_the_uid_in_a_directorys_name_is_the_pods(driver: str, tier: str, uid: str) -> None:
    found = groups(driver)
    assert found.parse_pod(found.pod(tier, uid).rpartition("/")[2]) == uid


@given(st.text())
def test_no_name_of_a_directory_raises(name: str) -> None:
    for driver in (SYSTEMD, CGROUPFS):
        groups(driver).parse_pod(name)
        groups(driver).parse_container(name)


@pytest.mark.parametrize(("declared", "path"), [
    ({"name": "nginx", "qos": "LS"}, "host-latency-sensitive/nginx"),
    ({"name": "nginx", "qos": "BE"}, "host-best-effort/nginx"),
    ({"name": "nginx"}, "nginx"),
    ({"name": "a", "cgroupPath": {"base": "CgroupRoot", "parentDir": "/host/", "relativePath": "a/"}}, "host/a"),
    ({"name": "a", "cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "a"}},
     "kubepods.slice/kubepods-besteffort.slice/a"),
    ({"name": "a", "cgroupPath": {"base": "Kubepods"}}, "kubepods.slice"),
])
def test_host_applications_are_where_they_declare(declared: dict[str, Any], path: str) -> None:
    assert groups().application(declared) == path


@pytest.mark.parametrize("declared", [
    {}, {"name": ""}, {"name": "../x"}, {"name": "a", "cgroupPath": {"base": "Moon"}}, {"name": "a", "cgroupPath": {}},
    {"name": "a", "cgroupPath": {"relativePath": "x/../../y"}},
])
def test_host_applications_cannot_leave_the_hierarchy(declared: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="host application"):
        groups().application(declared)
    assert len(LogicalDirectories(groups()).use_applications([declared])) == 1


def test_logical_directories_lead_to_the_current_container_of_a_name() -> None:
    found = LogicalDirectories(groups(CGROUPFS))
    main = f"besteffort/pod{UID}/main"
    found.use_pods([pod(main="docker://aaa")])
    first = found.path(main)
    found.use_pods([pod(main="docker://bbb")])
    base = f"kubepods/besteffort/pod{UID}"
    assert (first, found.path(main), found.generation) == (f"{base}/aaa", f"{base}/bbb", 2)
    assert [found.container_name(f"pod{UID}", name) for name in ("bbb", "aaa", "..")] == ["main", "aaa", None]


def test_pods_that_did_not_change_change_no_directories() -> None:
    found, same = LogicalDirectories(groups()), pod(main="docker://aaa")
    found.use_pods([same])
    found.use_pods([same])
    assert found.generation == 1
    found.use_pods([])
    assert found.generation == 2


@pytest.mark.parametrize(("directory", "path"), [
    ("root", ""), ("guaranteed", "kubepods"), ("burstable", "kubepods/burstable"),
    (f"burstable/pod{UID}", f"kubepods/burstable/pod{UID}"), ("applications/nginx", "nginx"),
    ("applications/other", None), ("besteffort/../x", None), ("besteffort/other", None), ("besteffort/pod", None),
    (f"besteffort/pod{UID}/../x", None), (f"besteffort/pod{UID}/a/b", None), ("", None), ("what", None),
    ("besteffort//", None),
])
def test_only_known_logical_directories_have_a_path(directory: str, path: str | None) -> None:
    found = LogicalDirectories(groups(CGROUPFS))
    assert found.use_applications([{"name": "nginx"}]) == ()
    assert found.path(directory) == path


def test_the_tier_is_that_of_the_kubernetes_class() -> None:
    found = LogicalDirectories(groups(CGROUPFS))
    found.use_pods([pod(qos="Guaranteed", main="docker://aaa")])
    assert found.path(f"guaranteed/pod{UID}/main") == f"kubepods/pod{UID}/aaa"


def test_container_ids_that_are_malformed_are_left_out() -> None:
    statuses = [{"name": "a", "containerID": "docker://1"}, {"name": "b"}, {"containerID": "docker://2"}, "c", None]
    assert container_ids({"status": {"containerStatuses": statuses}}) == {"a": ContainerId("docker", "1")}
    assert container_ids({}) == container_ids({"status": None}) == {}
