"""The metrics advisor: all collectors of a node, and what they collect of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Processor, Storage

from ..enforcement import LoggedCauses
from ..host.devices import GPU, RDMA
from ..parts import PeriodicCollector
from .collector import SECOND, MetricCollector, Sources
from .devices import DeviceUsage
from .facts import FactCollector
from .measured_groups import MeasuredGroups
from .memory import ColdMemory, PageCache
from .pressure import PressureStall
from .resctrl import ResctrlMonitoring
from .usage import BestEffortResource, HostApplication, NodeResource, PodResource, PodThrottled, SystemResource

_LOG: Final = logging.getLogger(__name__)
_SWEEP: Final = 60 * SECOND
"""The interval at which descriptors of files that are not read any more are closed."""


DEVICE_GATES: Final = {GPU: "Accelerators", RDMA: "RDMADevices"}
"""koordlet's feature gates by type of device."""
OPTIONAL: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "psi": ("psi", ("PSICollector",)), "coldmemoryresource": ("cold_memory", ("ColdPageCollector",)),
    "resctrl": ("resctrl", ("ResctrlCollector",)), "nodestorageinfo": ("storage", ("BlkIOReconcile",)),
    "pagecache": ("page_cache", ()), "devices": ("devices", tuple(DEVICE_GATES.values())),
}
"""The collectors that are off by default, with their setting and koordlet's feature gates, each of which is enough."""


@dataclass(frozen=True, slots=True)
class AdvisorSettings:
    """Intervals in nanoseconds, with koordlet's defaults, and switches of the collectors that are off by default."""

    interval: int = SECOND
    node_info_interval: int = 60 * SECOND
    storage_interval: int = SECOND
    psi_interval: int = 10 * SECOND
    cold_interval: int = 5 * SECOND
    resctrl_interval: int = 10 * SECOND
    outdated: int = 10 * SECOND
    """The age from which on a usage does not count for the system's."""
    storage: bool = False
    page_cache: bool = False
    psi: bool = False
    cold_memory: bool = False
    resctrl: bool = False
    devices: bool = False

    @classmethod
    def of(cls, interval: int, gates: Mapping[str, bool], collect: Collection[str] = ()) -> AdvisorSettings:
        """Return the settings for koordlet's feature gates, and for collectors that are switched on by name.

        `interval` is that of usages, in nanoseconds.
        """
        return cls(interval, **{
            attribute: name in collect or any(gates.get(gate, False) for gate in of_collector)
            for name, (attribute, of_collector) in OPTIONAL.items()})


class MetricsAdvisor:
    """Runs collectors into the metric cache; for one thread, but `synced` may be read from any."""

    def __init__(
        self, sources: Sources, settings: AdvisorSettings, processors: Callable[[], tuple[Processor, ...]],
        storage: Callable[[], Storage],
    ) -> None:
        """`processors` and `storage` read the machine; they raise `OSError` or `ValueError` if it cannot be read."""
        self.sources = sources
        self.node_info = FactCollector("nodeinfo", sources, settings.node_info_interval, processors)
        self.node_storage = FactCollector(
            "nodestorageinfo", sources, settings.storage_interval, storage, enabled=settings.storage)
        usage = settings.interval
        self.devices = DeviceUsage(sources, usage, enabled=settings.devices)
        self.collectors: Sequence[MetricCollector] = (
            self.node_info,
            NodeResource(sources, usage, lambda: self.node_info.value or ()),
            PodResource(sources, usage),
            HostApplication(sources, usage),
            SystemResource(sources, usage, settings.outdated),  # after those whose usages it takes
            BestEffortResource(sources, usage),
            PodThrottled(sources, usage),
            self.node_storage,
            PageCache(sources, usage, enabled=settings.page_cache),
            ColdMemory(sources, settings.cold_interval,
                       enabled=settings.cold_memory and ColdMemory.supported(sources)),
            PressureStall(sources, settings.psi_interval, enabled=settings.psi),
            ResctrlMonitoring(sources, settings.resctrl_interval, enabled=settings.resctrl),
            self.devices,
        )
        self._pods: tuple[PodInfo, ...] | None = None
        self._failing: dict[str, bool] = {}
        """The collectors that fail, and whether that was logged."""
        self._causes = LoggedCauses(lambda: sources.monotonic() / SECOND)
        self._due: dict[str, int] = {}
        self._sweep = max(_SWEEP, 2 * max(each.interval for each in self.enabled))
        self._swept = sources.monotonic()

    @property
    def enabled(self) -> tuple[MetricCollector, ...]:
        """The collectors that run, in the order in which those that are due together must run."""
        return tuple(each for each in self.collectors if each.enabled)

    @property
    def synced(self) -> bool:
        """True once every enabled collector has produced."""
        return all(each.started for each in self.collectors if each.enabled)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of the enabled collectors that have not produced yet."""
        return tuple(each.name for each in self.collectors if each.enabled and not each.started)

    def use_pods(self, pods: tuple[PodInfo, ...]) -> None:
        """Collect of these pods from now on; the series of others are dropped."""
        if pods is self._pods:  # a list without a change is the same one
            return
        self._pods = pods
        self._use(self.sources.subjects.with_pods(self.sources.groups, pods))

    def use_applications(self, declared: Iterable[Mapping[str, Any]]) -> None:
        """Collect of the host applications that a NodeSLO declares from now on."""
        self._use(self.sources.subjects.with_applications(self.sources.groups, declared))

    def collect(self, collector: MetricCollector, now: int) -> None:
        """Run one collector, at `now` in nanoseconds since the epoch.

        A failure is logged when it begins and when it ends, each cause once in ten minutes. It costs the samples of
        this round only.
        """
        try:
            collector.collect(now)
        except (OSError, ValueError, ArithmeticError, LookupError) as error:
            if collector.name not in self._failing:
                is_new_cause = self._failing[collector.name] = self._causes.is_new((collector.name, str(error)))
                if is_new_cause:
                    _LOG.warning("the collector %s cannot measure: %s", collector.name, error)
        else:
            if self._failing.pop(collector.name, False):
                _LOG.info("the collector %s measures again", collector.name)
        time = self.sources.monotonic()
        if time - self._swept > self._sweep:
            self._swept = time
            self.sources.files.sweep()

    def collect_due(self, now: int) -> None:
        """Run all enabled collectors that are due, at `now` in nanoseconds since the epoch: a loop without rounds."""
        time = self.sources.monotonic()
        for each in self.enabled:
            if time >= self._due.get(each.name, 0):
                self._due[each.name] = time + each.interval
                self.collect(each, now)

    def periodic(self) -> tuple[PeriodicCollector, ...]:
        """Return the enabled collectors for the daemon's rounds, those of one interval together and in order."""
        by_interval: dict[int, list[MetricCollector]] = {}
        for each in self.enabled:
            by_interval.setdefault(each.interval, []).append(each)
        return tuple(
            PeriodicCollector(", ".join(each.name for each in group), interval / SECOND, partial(self._run, group))
            for interval, group in by_interval.items()
        )

    def _run(self, collectors: Iterable[MetricCollector], now: int) -> None:
        for each in collectors:
            self.collect(each, now)

    def _use(self, subjects: MeasuredGroups) -> None:
        before = self.sources.subjects
        if subjects == before:
            return
        self.sources.subjects = subjects
        for each in before.stale(subjects):
            self.sources.cache.forget(each.what, each.name)
