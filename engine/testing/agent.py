"""Fakes of the node agent, for tests of QoS plugins with a life of their own."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.resource_executor.results import AdjustmentResult, FileWriteResult, FileWriteStatus
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Adjustment, Readings, StrategyContext

from .states import FakeStates


@dataclass(slots=True)
class FakeExecutor:
    """An executor that writes to `files`, a plain dictionary by logical name; `applied` are all adjustments.

    Files in `refusing` cannot be written, with that reason.
    """

    files: dict[str, str] = field(default_factory=dict)
    applied: list[Adjustment] = field(default_factory=list)
    refusing: Mapping[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    """The journal: the text of each changed file before its first change."""
    unrecovered: set[str] = field(default_factory=set)
    """The files whose recovery was refused."""

    def apply(self, adjustments: Sequence[Adjustment], now: int = 0) -> Sequence[AdjustmentResult]:
        """Write the files of the adjustments."""
        self.applied += adjustments
        results = tuple(
            AdjustmentResult(each, tuple(self._write(name, text) for name, text in each.writes))
            for each in adjustments)
        for each in results:
            self.unrecovered -= {write.path for write in each.writes}
            if each.adjustment.recovers:
                self.unrecovered |= {write.path for write in each.writes if write.failed}
        return results

    def recover_again(self, now: int = 0) -> Sequence[FileWriteResult]:
        """Restore the files whose recovery was refused, and is not any more."""
        found = self.restore(now, self.unrecovered - self.refusing.keys())
        self.unrecovered -= {each.path for each in found}
        return found

    def journaled(self) -> frozenset[str]:
        """Return the files that were changed and not restored."""
        return frozenset(self.originals)

    def restore(self, now: int = 0, paths: Iterable[str] | None = None) -> Sequence[FileWriteResult]:
        """Write the original texts of these files, or of all; a file's path is its logical name."""
        found = []
        for name in sorted(self.originals) if paths is None else sorted(set(paths) & self.originals.keys()):
            self.files[name] = text = self.originals.pop(name)
            found.append(FileWriteResult(name, text, FileWriteStatus.WRITTEN, name))
        return found

    def _write(self, name: str, text: str) -> FileWriteResult:
        if name in self.refusing:
            return FileWriteResult(name, text, FileWriteStatus.FAILED, name, error=self.refusing[name])
        if name not in self.files:
            return FileWriteResult(name, text, FileWriteStatus.UNSUPPORTED)
        before, now = self.files[name], text.strip()
        if before == now:
            return FileWriteResult(name, text, FileWriteStatus.UNCHANGED, name, before)
        self.originals.setdefault(name, before)
        self.files[name] = now
        return FileWriteResult(name, text, FileWriteStatus.WRITTEN, name, before)


@dataclass(slots=True)
class FakePodEvictor:
    """An evictor that only records: `evicted` are pairs of a pod's key and the reason. Pods in `refusing` stay."""

    evicted: list[tuple[str, str]] = field(default_factory=list)
    refusing: frozenset[str] = frozenset()

    def evict(self, pod: PodInfo, reason: str, message: str = "") -> bool:
        """Record an eviction; return False for a pod that stays."""
        if pod.key in self.refusing:
            return False
        self.evicted.append((pod.key, reason))
        return True


class FakeMetricCache(MetricCache):
    """A metric cache that is filled with quantities."""

    def measure(self, what: str, name: str, time: int, **usage: str) -> None:
        """Append a sample of a `node`, `pod`, `container` or `application`: `measure("node", "n", now, cpu="2")`."""
        for resource, quantity in usage.items():
            self.append(what, name, resource, time, canonical_amount(resource, quantity, resource))


def strategy_context(
    readings: Readings | Callable[[], Readings], *, executor: FakeExecutor | None = None,
    evictor: FakePodEvictor | None = None, strategies: Mapping[str, object] | None = None,
    states: FakeStates | None = None, **options: object,
) -> StrategyContext:
    """Return the context of a plugin with a life of its own; `options` are the values of its flags."""
    return StrategyContext(
        node="node", readings=readings if callable(readings) else lambda: readings,
        executor=executor or FakeExecutor(), evictor=evictor or FakePodEvictor(), strategies=strategies or {},
        log=logging.getLogger("koordpolicy.testing"), options=argparse.Namespace(**options),
        states=states or FakeStates(),
    )
