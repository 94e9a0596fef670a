"""The devices of a machine that pods may be given: GPUs and RDMA adapters, as sysfs has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GPU: Final = "gpu"
RDMA: Final = "rdma"
_DISPLAY: Final = "0x03"
"""The class of display controllers on PCI: VGA and 3D."""
_DRIVERS: Final = frozenset({"nvidia", "amdgpu", "i915", "xe"})
"""The drivers of GPUs; the displays of management controllers have others."""
_ACTIVE: Final = "ACTIVE"
MEMORY_TOTAL_FILE: Final = "mem_info_vram_total"
"""AMD's driver has the memory of a GPU there."""
_FUNCTION: Final = "virtfn"


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device; `minor` numbers those of a type in the order of their addresses."""

    type: str
    minor: int
    name: str
    """The name that the kernel gives it, such as `card0` or `mlx5_0`; the address if it gives none."""
    address: str
    """On PCI, such as `0000:3b:00.0`; empty if it is on another bus."""
    driver: str
    numa_node: int
    """-1 if the machine does not say."""
    healthy: bool
    """False for an adapter without an active port."""
    directory: Path
    """Its directory in sysfs."""
    identity: str = ""
    """NVIDIA's UUID or AMD's serial number, which stays the same in another slot; empty if the driver says neither."""
    root: str = ""
    """The root of PCI below which it is, such as `pci0000:3a`; empty if it is on another bus."""
    memory: int = 0
    """The bytes of a GPU; 0 if sysfs does not have them."""
    functions: tuple[str, ...] = ()
    """The addresses of its virtual functions, by number."""


def read_devices(sys: Path, proc: Path = Path("/proc")) -> tuple[HostDevice, ...]:
    """Return the GPUs, then the RDMA adapters of a machine, by address; virtual functions are no devices of their own.

    `sys` and `proc` are the directories of these file systems.
    """
    return (*_gpus(sys, proc), *_adapters(sys))


def _gpus(sys: Path, proc: Path) -> Iterator[HostDevice]:
    minor = 0
    for address in _names(sys / "bus" / "pci" / "devices"):
        directory = sys / "bus" / "pci" / "devices" / address
        driver = _link(directory / "driver")
        if read_word(directory / "class").startswith(_DISPLAY) and driver in _DRIVERS and not _is_virtual(directory):
            cards = [name for name in _names(directory / "drm") if name.startswith("card")]
            yield HostDevice(GPU, minor, cards[0] if cards else address, address, driver,
                             _numa_node(directory), healthy=True, directory=directory,
                             identity=read_word(directory / "unique_id") or _nvidia_uuid(proc, address),
                             root=_root(directory), memory=amount(directory / MEMORY_TOTAL_FILE) or 0,
                             functions=_functions(directory))
            minor += 1


def _adapters(sys: Path) -> Iterator[HostDevice]:
    root = sys / "class" / "infiniband"
    found = sorted((_link(root / name / "device"), name) for name in _names(root)
                   if not _is_virtual(root / name / "device"))
    for minor, (address, name) in enumerate(found):
        ports = root / name / "ports"
        states = [read_word(ports / port / "state") for port in _names(ports)]
        directory = root / name / "device"
        yield HostDevice(
            RDMA, minor, name, address, _link(directory / "driver"), _numa_node(directory),
            healthy=any(state.endswith(_ACTIVE) for state in states), directory=directory, root=_root(directory),
            functions=_functions(directory))


def read_word(path: Path) -> str:
    """Return the text of a file of sysfs without blanks around it; empty if it cannot be read."""
    try:
        return path.read_text("ascii", errors="replace").strip()
    except OSError:
        return ""


def amount(path: Path) -> int | None:
    """Return the number in a file of sysfs; None if there is none, or it has more than 64 bits."""
    text = read_word(path)
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names only
    except OSError:
        return []


def _link(path: Path) -> str:
    """Return the name of a link's target; empty if it is none."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def _numa_node(directory: Path) -> int:
    text = read_word(directory / "numa_node")
    return int(text) if text.isdecimal() else -1


def _is_virtual(directory: Path) -> bool:
    """Return whether a device is a virtual function, which has a link to the physical one."""
    return bool(_link(directory / "physfn"))


def _functions(directory: Path) -> tuple[str, ...]:
    """Return the addresses of a device's virtual functions, by number."""
    numbers = sorted(int(number) for name in _names(directory)
                     if (number := name.removeprefix(_FUNCTION)) != name and number.isdecimal())
    return tuple(_link(directory / f"{_FUNCTION}{number}") for number in numbers)


def _root(directory: Path) -> str:
    """Return the root of PCI in the path of a device."""
    try:
        parts = directory.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ""
    return next((part for part in parts if part.startswith("pci") and ":" in part), "")


def _nvidia_uuid(proc: Path, address: str) -> str:
    for line in read_word(proc / "driver" / "nvidia" / "gpus" / address / "information").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "GPU UUID":
            return value.strip()
    return ""
