"""The collector of the last-level cache and memory bandwidth of QoS classes (resctrl monitoring)."""

from __future__ import annotations

import os
import re
from typing import Final

from . import parsing
from .collector import SECOND, MetricCollector, Rate, Sources

GROUPS: Final = ("LSR", "LS", "BE")
_DOMAIN: Final = re.compile(r"mon_L3_([0-9]{1,5})")
_BANDWIDTHS: Final = {"mbm_total_bytes": "total", "mbm_local_bytes": "local"}


def occupancy_name(cache_id: str) -> str:
    """Return the name of a cache's occupancy in the metric cache."""
    return f"llc-occupancy.{cache_id}"


def bandwidth_name(cache_id: str, kind: str) -> str:
    """Return the name of a cache's memory bandwidth (`total` or `local`) in the metric cache."""
    return f"memory-bandwidth.{cache_id}.{kind}"


def parse_name(name: str) -> tuple[str, str]:
    """Return the cache's id, and `total` or `local` of a bandwidth, empty of an occupancy."""
    _, cache_id, *kind = name.split(".")
    return cache_id, kind[0] if kind else ""


class ResctrlMonitoring(MetricCollector):
    """Occupied cache in bytes, and memory bandwidth in bytes per second, of the groups LSR, LS and BE per L3 cache.

    What the processor does not monitor has no series (koordlet's resctrl).
    """

    name = "resctrl"

    def __init__(self, sources: Sources, interval: int, *, enabled: bool) -> None:
        super().__init__(sources, interval, enabled=enabled)
        self._root = sources.resctrl
        self._rates: dict[str, Rate] = {}

    def collect(self, now: int) -> None:
        """Measure."""
        for group in GROUPS:
            for domain, cache_id in self._domains(group):
                self._measure(now, group, f"{self._root}/{group}/mon_data/{domain}", cache_id)
        self.started = True

    def _domains(self, group: str) -> list[tuple[str, str]]:
        try:
            names = sorted(os.listdir(f"{self._root}/{group}/mon_data"))  # noqa: PTH208 - names only
        except OSError:
            return []  # the strategy makes the groups
        # Without leading zeros, as in the lines of schemata.
        return [(name, str(int(found[1]))) for name in names if (found := _DOMAIN.fullmatch(name))]

    def _measure(self, now: int, group: str, directory: str, cache_id: str) -> None:
        cache, read, time = self.sources.cache, self.sources.files.read, self.sources.monotonic
        try:
            occupied = parsing.number(read(f"{directory}/llc_occupancy"))
            cache.table("resctrl", occupancy_name(cache_id), self.interval).append(now, group, occupied)
        except (OSError, ValueError):
            self.failures += 1
        for file, kind in _BANDWIDTHS.items():
            path = f"{directory}/{file}"
            try:
                moved = parsing.number(read(path))
            except (OSError, ValueError):
                self.failures += 1
                continue
            rate = self._rates.setdefault(path, Rate()).per_nanosecond(moved, time())
            if rate is not None:
                table = cache.table("resctrl", bandwidth_name(cache_id, kind), self.interval)
                table.append(now, group, rate * SECOND)
