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


def read_devices(sys: Path) -> tuple[HostDevice, ...]:
    """Return the GPUs, then the RDMA adapters of a machine, by address."""
    return (*_gpus(sys), *_adapters(sys))


def _gpus(sys: Path) -> Iterator[HostDevice]:
    minor = 0
    for address in _names(sys / "bus" / "pci" / "devices"):
        directory = sys / "bus" / "pci" / "devices" / address
        driver = _link(directory / "driver")
        if read_word(directory / "class").startswith(_DISPLAY) and driver in _DRIVERS:
            cards = [name for name in _names(directory / "drm") if name.startswith("card")]
            yield HostDevice(GPU, minor, cards[0] if cards else address, address, driver,
                             _numa_node(directory), healthy=True, directory=directory)
            minor += 1


def _adapters(sys: Path) -> Iterator[HostDevice]:
    root = sys / "class" / "infiniband"
    found = sorted((_link(root / name / "device"), name) for name in _names(root))
    for minor, (address, name) in enumerate(found):
        ports = root / name / "ports"
        states = [read_word(ports / port / "state") for port in _names(ports)]
        directory = root / name / "device"
        yield HostDevice(
            RDMA, minor, name, address, _link(directory / "driver"), _numa_node(directory),
            healthy=any(state.endswith(_ACTIVE) for state in states), directory=directory)


def read_word(path: Path) -> str:
    """Return the text of a file of sysfs without blanks around it; empty if it cannot be read."""
    try:
        return path.read_text("ascii", errors="replace").strip()
    except OSError:
        return ""


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
