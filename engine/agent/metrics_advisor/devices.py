"""The collector of devices (as koordlet's), and of their use where the kernel's driver publishes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..host.devices import GPU, MEMORY_TOTAL_FILE, HostDevice, amount, read_devices
from .collector import SECOND, MetricCollector, Sources

LOOK: Final = 60 * SECOND
"""The interval at which devices are listed. Their use is measured at the collector's interval."""
CORE: Final = "core"
MEMORY: Final = "memory"
MEMORY_TOTAL: Final = "memory-total"
_FILES: Final = ((CORE, "gpu_busy_percent"), (MEMORY, "mem_info_vram_used"), (MEMORY_TOTAL, MEMORY_TOTAL_FILE))
"""The files of AMD's driver in sysfs: percent of the time, bytes. Other drivers have libraries for it."""


class DeviceUsage(MetricCollector):
    """GPUs and RDMA adapters, and the use of GPUs where sysfs has it: `gpu` in the metric cache, by minor number."""

    name = "devices"

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        self.devices: tuple[HostDevice, ...] = ()
        self._listed: int | None = None

    def collect(self, now: int) -> None:
        """List the devices if that is due, and measure."""
        time = self.sources.monotonic()
        if self._listed is None or time - self._listed >= LOOK:
            self._listed = time
            known, self.devices = self.devices, read_devices(
                Path(self.sources.sys), Path(self.sources.proc))
            for removed in {each.minor for each in known if each.type == GPU} - {
                    each.minor for each in self.devices if each.type == GPU}:
                self.sources.cache.forget(GPU, str(removed))
        found: dict[str, dict[str, float]] = {resource: {} for resource, _ in _FILES}
        for device in self.devices:
            for resource, file in _FILES if device.type == GPU else ():
                value = amount(device.directory / file)
                if value is not None:
                    found[resource][str(device.minor)] = float(value)
        for resource, values in found.items():
            if values:
                self.sources.cache.table(GPU, resource, self.interval).append_all(now, values)
        self.started = True
