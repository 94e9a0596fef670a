"""Version and driver of control groups are detected from directories, mounts and kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.detection import HostRoots, detect_control_groups, kubelet_driver_of_process


def machine(tmp_path: Path) -> HostRoots:
    for name in ("cgroup", "proc", "sys"):
        (tmp_path / name).mkdir()
    return HostRoots(str(tmp_path / "cgroup"), str(tmp_path / "proc"), str(tmp_path / "sys"))


def kubelet(roots: HostRoots, *words: str, configuration: str | None = None, pid: str = "42") -> None:
    process = Path(roots.proc, pid)
    (process / "root" / "var").mkdir(parents=True)
    (process / "comm").write_text("kubelet\n")
    (process / "cmdline").write_bytes(b"\0".join(each.encode() for each in ("/usr/bin/kubelet", *words)) + b"\0")
    if configuration is not None:
        (process / "root" / "var" / "config").write_text(configuration)


def mount(roots: HostRoots, *lines: str) -> None:
    Path(roots.proc, "self").mkdir()
    Path(roots.proc, "self", "mountinfo").write_text("".join(
        f"1 2 0:1 / {roots.cgroup}/{path} rw - {kind} {kind} rw,{options}\n"
        for path, kind, options in (line.split(":") for line in lines)
    ))


def test_a_root_with_controllers_is_version_2(tmp_path: Path) -> None:
    roots = machine(tmp_path)
    Path(roots.cgroup, "cgroup.controllers").write_text("cpu memory\n")
    Path(roots.cgroup, "kubepods.slice").mkdir()
    found, known = detect_control_groups(roots)
    assert (found.version, found.driver, dict(found.roots), known) == (2, "systemd", {"": roots.cgroup}, True)


def test_version_1_has_a_hierarchy_for_each_subsystem_or_for_several(tmp_path: Path) -> None:
    roots = machine(tmp_path)
    for name in ("cpu,cpuacct", "cpuset", "unified", "memory"):
        Path(roots.cgroup, name).mkdir()
    Path(roots.cgroup, "unified", "cgroup.controllers").write_text("")
    Path(roots.cgroup, "cpu,cpuacct", "kubepods").mkdir()
    mount(roots, "cpu,cpuacct:cgroup:cpu,cpuacct", "cpuset:cgroup:cpuset", "unified:cgroup2:x")
    found, known = detect_control_groups(roots)
    assert (found.version, found.driver, known) == (1, "cgroupfs", True)
    assert found.roots == {
        "cpu": f"{roots.cgroup}/cpu,cpuacct", "cpuacct": f"{roots.cgroup}/cpu,cpuacct",
        "cpuset": f"{roots.cgroup}/cpuset", "memory": f"{roots.cgroup}/memory",
    }


@pytest.mark.parametrize(("words", "configuration", "driver"), [
    (("--cgroup-driver=cgroupfs",), None, "cgroupfs"),
    (("--cgroup-driver", "systemd", "--v=2"), None, "systemd"),
    (("--config=/var/config",), "kind: KubeletConfiguration\ncgroupDriver: cgroupfs\n", "cgroupfs"),
    (("--config", "/var/config"), '{"kind":"KubeletConfiguration","cgroupDriver":"systemd"}', "systemd"),
    (("--config=/var/config",), "#cgroupDriver: cgroupfs\n", ""),
    (("--config=/var/config",), "{", ""),
    (("--config=/absent",), None, ""),
    (("--cgroup-driver=moon",), None, ""),
    ((), None, ""),
    (("--cgroup-driver",), None, ""),
])
def test_kubelets_command_line_or_configuration_names_the_driver(
    tmp_path: Path, words: tuple[str, ...], configuration: str | None, driver: str,
) -> None:
    roots = machine(tmp_path)
    kubelet(roots, *words, configuration=configuration)
    Path(roots.proc, "7").mkdir()  # a process that ended meanwhile
    assert kubelet_driver_of_process(Path(roots.proc)) == driver


def test_directories_count_before_kubelet(tmp_path: Path) -> None:
    roots = machine(tmp_path)
    Path(roots.cgroup, "cpu", "kubepods.slice").mkdir(parents=True)
    kubelet(roots, "--cgroup-driver=cgroupfs")
    assert detect_control_groups(roots)[0].driver == "systemd"


def test_the_name_of_kubelets_root_is_an_option(tmp_path: Path) -> None:
    roots = machine(tmp_path)
    Path(roots.cgroup, "cpu", "kubepods.slice").mkdir(parents=True)
    Path(roots.cgroup, "cpu", "own").mkdir()
    found, known = detect_control_groups(roots, "own")
    assert (found.driver, found.kubepods, known) == ("cgroupfs", "own", True)


def test_an_unknown_driver_is_assumed_to_be_systemd_until_kubelet_starts(tmp_path: Path) -> None:
    def refuse() -> str:
        raise ConnectionRefusedError

    roots = machine(tmp_path)
    assert [detect_control_groups(roots, kubelet_driver=ask)[1] for ask in (None, refuse, lambda: "")] == [False] * 3
    found, known = detect_control_groups(roots, kubelet_driver=lambda: "cgroupfs")
    assert (found.driver, known, dict(found.roots)) == ("cgroupfs", True, {})
    assert detect_control_groups(HostRoots("/absent", "/absent"))[0].driver == "systemd"
