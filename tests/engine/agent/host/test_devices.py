from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.agent.host.devices import read_devices


def pci(sys: Path, address: str, driver: str, class_: str = "0x030200", **files: str) -> Path:
    """A PCI device bound to a driver."""
    directory = sys / "bus" / "pci" / "devices" / address
    directory.mkdir(parents=True)
    (directory / "class").write_text(f"{class_}\n")
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")
    if driver:
        (sys / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (directory / "driver").symlink_to(sys / "drivers" / driver)
    return directory


def adapter(sys: Path, name: str, device: Path, *states: str) -> None:
    """An RDMA adapter on a PCI device, with a port per state."""
    directory = sys / "class" / "infiniband" / name
    for number, state in enumerate(states, start=1):
        (directory / "ports" / str(number)).mkdir(parents=True)
        (directory / "ports" / str(number) / "state").write_text(f"{state}\n")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "device").symlink_to(device)


def test_gpus_are_numbered_by_their_addresses_without_the_displays_of_management_controllers(tmp_path: Path):
    pci(tmp_path, "0000:af:00.0", "nvidia", numa_node="1")
    first = pci(tmp_path, "0000:3b:00.0", "amdgpu", class_="0x030000", numa_node="0")
    (first / "drm" / "card1").mkdir(parents=True)
    (first / "drm" / "renderD128").mkdir()
    pci(tmp_path, "0000:01:00.0", "ast", class_="0x030000")
    pci(tmp_path, "0000:02:00.0", "nvme", class_="0x010802")
    pci(tmp_path, "0000:03:00.0", "")
    assert [(each.type, each.minor, each.name, each.address, each.driver, each.numa_node, each.healthy)
            for each in read_devices(tmp_path)] == [
        ("gpu", 0, "card1", "0000:3b:00.0", "amdgpu", 0, True),
        ("gpu", 1, "0000:af:00.0", "0000:af:00.0", "nvidia", 1, True)]


@pytest.mark.parametrize(("states", "healthy"), [
    (("4: ACTIVE",), True), (("1: DOWN", "4: ACTIVE"), True), (("1: DOWN",), False), ((), False)])
def test_an_adapter_is_healthy_with_an_active_port(tmp_path: Path, states: tuple[str, ...], healthy: bool):
    device = pci(tmp_path, "0000:5e:00.0", "mlx5_core", class_="0x020000", numa_node="-1")
    adapter(tmp_path, "mlx5_0", device, *states)
    found, = read_devices(tmp_path)
    assert (found.type, found.minor, found.name, found.address, found.driver, found.numa_node, found.healthy) == (
        "rdma", 0, "mlx5_0", "0000:5e:00.0", "mlx5_core", -1, healthy)


def test_a_machine_without_devices_has_none(tmp_path: Path):
    assert read_devices(tmp_path) == ()


def test_a_device_has_its_identity_its_memory_and_its_place_on_the_bus(tmp_path: Path):
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    amd = pci(sys, "0000:3b:00.0", "amdgpu", unique_id="5a", mem_info_vram_total="4096")
    place = sys / "devices" / "pci0000:3a" / "0000:3a:00.0"
    place.mkdir(parents=True)
    amd.rename(place / "0000:3b:00.0")
    amd.symlink_to(place / "0000:3b:00.0")
    pci(sys, "0000:af:00.0", "nvidia")
    information = proc / "driver" / "nvidia" / "gpus" / "0000:af:00.0" / "information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1:2\nBus Type: \t PCIe\n")
    pci(sys, "0000:d8:00.0", "nvidia", mem_info_vram_total="-1")
    assert [(each.identity, each.memory, each.root) for each in read_devices(sys, proc)] == [
        ("5a", 4096, "pci0000:3a"), ("GPU-1:2", 0, ""), ("", 0, "")]


def test_a_virtual_function_is_part_of_its_device(tmp_path: Path):
    device = pci(tmp_path, "0000:5e:00.0", "mlx5_core", class_="0x020000")
    adapter(tmp_path, "mlx5_0", device, "4: ACTIVE")
    for number in (10, 0, 2):
        function = pci(tmp_path, f"0000:5e:01.{number}", "mlx5_core", class_="0x020000")
        (function / "physfn").symlink_to(device)
        (device / f"virtfn{number}").symlink_to(function)
        adapter(tmp_path, f"mlx5_v{number}", function, "4: ACTIVE")
    assert [(each.name, each.functions) for each in read_devices(tmp_path)] == [
        ("mlx5_0", ("0000:5e:01.0", "0000:5e:01.2", "0000:5e:01.10"))]
