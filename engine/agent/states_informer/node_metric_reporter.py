"""Reports of the node's usage: a patch of the NodeMetric's status at the interval of its spec.

The patch has no resourceVersion, so that it cannot conflict with the manager, which writes the spec. Nothing is created
if there is no NodeMetric: that is the manager's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.cluster.objects.pods import canonical_amount

from ..metric_cache.series import UsageStatistics
from ..prediction.predictor import RESOURCES, PeakPredictor, Prediction, PredictorSettings
from .node_metric import LEAST_INTERVAL_S, MEMORY, WITHOUT_PAGE_CACHE, CollectPolicy, NodeMetricReport
from .node_objects import NODE_METRIC
from .states_informer import StatesInformer

_LOG: Final = logging.getLogger(__name__)

_SPREAD: Final = 0.1
_PREDICTION: Final = "Prediction"
"""The name of the histograms among the stored states."""
_HELP: Final[Mapping[WriteStatus, str]] = {
    WriteStatus.FORBIDDEN: ": grant `patch` on `nodemetrics/status`",
    WriteStatus.GONE: ": the manager creates it",
}


@dataclass(slots=True)
class ReportCounts:
    """The reports so far."""

    reported: int = 0
    failed: int = 0
    skipped: int = 0
    """Reports that were due without a NodeMetric, or without a measurement of the node."""


def spread(name: str) -> float:
    """Return the factor of a node's intervals, 0.9 to 1.1 by its name: not all nodes report at the same time."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return 1.0 - _SPREAD + 2 * _SPREAD * share


class NodeMetricReporter:
    """Reports until it is cancelled. Belongs to the event loop of `states`."""

    def __init__(
        self, states: StatesInformer, writer: ClusterWriter, statistics: UsageStatistics, *,
        server_time: Callable[[], int], predictor: PredictorSettings | None = None,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
        least_interval: float = LEAST_INTERVAL_S,
    ) -> None:
        """`server_time` returns the API server's time in ns since the epoch, `now` this machine's in seconds, which
        samples have; `clock` measures intervals.
        """
        self.counts = ReportCounts()
        self.prediction = Prediction()
        """That of the last report."""
        self.usage: Mapping[str, Any] = {}
        """`nodeMetric` of the last status that was written."""
        self._states = states
        self._writer = writer
        self._statistics = statistics
        self._server_time = server_time
        self._clock = clock
        self._now = now
        self._least_interval = least_interval
        self._target = ObjectReference(BY_KIND[NODE_METRIC], "", states.settings.node)
        self._spread = spread(states.settings.node)
        self._faults = RepeatedFaults()
        self._respecified = asyncio.Event()
        stored = states.stored.get(_PREDICTION)
        self._predictor = PeakPredictor(predictor, stored.object if stored is not None else None)
        states.store_also(_PREDICTION, self._predictor.to_json)
        states.on_change(self._note)

    async def run(self) -> None:
        """Report at the interval of the spec; the first time an interval after the start."""
        last = trained = self._clock()
        training = self._predictor.settings.training_interval
        while True:
            self._respecified.clear()
            policy = self._policy()
            due = last + policy.interval * self._spread
            delay = max(0.0, min(due, trained + training) - self._clock())
            try:
                async with asyncio.timeout(delay):
                    await self._respecified.wait()
            except TimeoutError:
                pass
            else:
                continue  # with the interval of the new spec
            if self._clock() >= trained + training:
                trained = self._clock()
                self._predictor.train(self._states.settings.node, self._states.pods, self._statistics, self._now())
            if self._clock() >= due:
                last = self._clock()
                await self.report()

    async def report(self) -> WriteResult | None:
        """Report now; return the result, or None if there is nothing to report or no NodeMetric."""
        if self._states.node_metric is None:
            self.counts.skipped += 1
            self._log("there is no NodeMetric of the node, and nothing is reported: the manager creates it")
            return None
        policy = self._policy()
        policy.require(self._statistics)
        now = self._now()
        self.prediction = self._predictor.predict(self._states.pods, self._capacity(), now)
        report = NodeMetricReport(
            self._states.settings.node, int(now * 1e9), self._server_time(), self._states.pods, self._applications(),
            policy, self.prediction.result)
        if policy.memory != WITHOUT_PAGE_CACHE and not report.memory_measured(self._statistics):
            self._log(f"memory is not measured as `{policy.memory}`, but without page cache: switch the collector of "
                      f"`{MEMORY[policy.memory]}` on")
            report = replace(report, policy=replace(policy, memory=WITHOUT_PAGE_CACHE))
        status = report.status(self._statistics)
        if status is None:
            self.counts.skipped += 1
            return None
        result = await self._writer.merge_patch(self._target, {"status": status}, subresource="status")
        if result.done:
            self.counts.reported += 1
            self.usage = status["nodeMetric"]
        else:
            self.counts.failed += 1
            self._log(f"the usage of the node could not be reported: {result.message}"
                      f"{_HELP.get(result.status, '')}")
        return result

    def _policy(self) -> CollectPolicy:
        return CollectPolicy.of(self._states.node_metric or {}, least_interval=self._least_interval)

    def _capacity(self) -> dict[str, float]:
        """Return the node's capacity in canonical units; without what is not known or malformed."""
        status = (self._states.node or {}).get("status")
        known = status.get("capacity") if isinstance(status, Mapping) else None
        found: dict[str, float] = {}
        if not isinstance(known, Mapping):
            return found
        for resource in RESOURCES:
            with contextlib.suppress(ValueError, KeyError):
                found[resource] = canonical_amount(resource, known[resource], f"status.capacity.{resource}")
        return found

    def _applications(self) -> list[Mapping[str, Any]]:
        applications = ((self._states.node_slo or {}).get("spec") or {}).get("hostApplications")
        return [each for each in applications if isinstance(each, Mapping)] if isinstance(applications, list) else []

    def _note(self, kind: str) -> None:
        if kind == NODE_METRIC:
            self._respecified.set()

    def _log(self, message: str) -> None:
        if self._faults.is_due(message, self._states.settings.node):
            _LOG.warning("%s", message)
