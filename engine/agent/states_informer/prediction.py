"""Prediction of what prod pods request and will not use: the amount that mid pods may be given.

koordlet trains a histogram of usage per pod with decaying weights. This predictor holds one number per pod and
resource, the decaying peak, and so needs no storage of histograms: the peak of a pod is the largest 95th percentile of
CPU (99th of memory) of five minutes, each halved by its age (12 hours for CPU, 24 for memory). Reclaimable is the
request minus the peak and a margin of 10 %. Pods that were observed for less than a day count as if they used all they
request, as do the bound CPUs of LSE and LSR pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.vocabulary import LSE, LSR, PROD

from ..metric_cache.series import WindowStatistics

TRAINING_S: Final = 60.0
_WINDOW_NS: Final = 300 * 1_000_000_000
_HALF_LIFE_S: Final[Mapping[str, float]] = {"cpu": 12 * 3600.0, "memory": 24 * 3600.0}
_BOUND: Final = (LSE, LSR)
ACTIVE_PHASES: Final = (None, "Pending", "Running")


class UsageStatistics(Protocol):
    """The measurements of a node, as the metric cache has them; times in ns since the epoch."""

    def aggregate(self, what: str, name: str, resource: str, start: int, end: int) -> WindowStatistics | None:
        """Return the statistics of a series from `start` to `end`; None without a sample."""
        ...

    def require(self, what: str, window: int) -> None:
        """Keep the samples of a kind for at least `window` ns."""
        ...


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Margin and cold start of the prediction, as koordlet's flags have them."""

    safety_margin_percent: float = 10.0
    cold_start: float = 24 * 3600.0
    """Seconds for which a pod must have been observed."""


@dataclass(slots=True)
class _Peak:
    since: float
    trained: float
    amounts: dict[str, float]


class PeakPredictor:
    """Decaying peaks of prod pods, by UID. Belongs to one thread; times in seconds since the epoch."""

    def __init__(self, settings: PredictorSettings | None = None, stored: object = None) -> None:
        """`stored` is what `to_json` returned before; anything malformed in it is left out."""
        self._settings = settings or PredictorSettings()
        self._peaks: dict[str, _Peak] = {}
        for uid, each in stored.items() if isinstance(stored, Mapping) else ():
            if (isinstance(each, list) and len(each) == 4
                    and all(isinstance(value, int | float) and value >= 0 for value in each)):
                self._peaks[uid] = _Peak(each[0], each[1], {"cpu": each[2], "memory": each[3]})

    def train(self, pods: Iterable[PodInfo], statistics: UsageStatistics, now: float) -> None:
        """Include the usage of the last five minutes, and forget pods that are gone."""
        peaks: dict[str, _Peak] = {}
        end = int(now * 1e9)
        for pod in pods:
            if not _is_prod(pod):
                continue
            peak = self._peaks.get(pod.uid)
            seen = {resource: statistics.aggregate("pod", pod.key, resource, end - _WINDOW_NS, end)
                    for resource in _HALF_LIFE_S}
            if peak is None:
                if all(each is None for each in seen.values()):
                    continue
                peak = _Peak(now, now, dict.fromkeys(_HALF_LIFE_S, 0.0))
            passed = max(0.0, now - peak.trained)
            for resource, half_life in _HALF_LIFE_S.items():
                known = peak.amounts[resource] * 0.5 ** (passed / half_life)
                found = seen[resource]
                used = 0.0 if found is None else found.p95 if resource == "cpu" else found.p99
                peak.amounts[resource] = max(known, used)
            peak.trained = now
            peaks[pod.uid] = peak
        self._peaks = peaks

    def reclaimable(self, pods: Iterable[PodInfo], now: float) -> dict[str, float]:
        """Return the amounts of all prod pods: cpu in milli-cores, memory in bytes."""
        total = dict.fromkeys(_HALF_LIFE_S, 0.0)
        margin = 1.0 + self._settings.safety_margin_percent / 100.0
        for pod in pods:
            peak = self._peaks.get(pod.uid) if _is_prod(pod) else None
            if peak is None or now - peak.since < self._settings.cold_start:
                continue
            for resource, amount in peak.amounts.items():
                if resource != "cpu" or pod.qos_class not in _BOUND:
                    total[resource] += max(0.0, pod.requests[resource] - amount * margin)
        return total

    def to_json(self) -> dict[str, list[float]]:
        """Return the peaks as plain data."""
        return {uid: [each.since, each.trained, each.amounts["cpu"], each.amounts["memory"]]
                for uid, each in self._peaks.items()}


def is_active(pod: PodInfo) -> bool:
    """Return whether a pod is pending or running."""
    status: Any = pod.object.get("status") or {}
    return status.get("phase") in ACTIVE_PHASES


def _is_prod(pod: PodInfo) -> bool:
    return pod.priority_band == PROD and is_active(pod)
