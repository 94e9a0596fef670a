"""Prediction of what prod pods request and will not use: the amount that mid pods may be given.

Each minute the usage of every prod pod, of all prod pods together, and of what runs outside of pods goes into
histograms whose samples lose weight with time. There are two predictions, as in koordlet: by pods, the sum of what each
one requests beyond its peak; by the tier, what all of them request beyond the peak of their sum and of the system. The
smaller one counts. A peak is the 95th percentile of CPU, the 98th of memory, and a margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.vocabulary import LSE, LSR, PROD

from ..metric_cache.series import UsageStatistics
from .histogram import Buckets, DecayingHistogram

RESOURCES: Final = ("cpu", "memory")
BY_PODS: Final = "podReclaimablePredictor"
BY_TIER: Final = "priorityReclaimablePredictor"
LEAST: Final = "minPredictor"
"""koordlet's names of the predictions."""
_PEAK: Final[Mapping[str, float]] = {"cpu": 0.95, "memory": 0.98}
_BUCKETS: Final[Mapping[str, Buckets]] = {
    "cpu": Buckets.exponential(1024 * 1000.0, 25.0, 1.05),
    # koordlet's end at 2 GiB, so that larger pods have a peak of 2 GiB.
    "memory": Buckets.exponential(2.0**41, 5 * 2.0**20, 1.05),
}
"""Milli-cores up to 1024 cores, and bytes up to 2 TiB. A peak is too large by 25 milli-cores, or 5 MiB, and 5 percent
at most."""
_BOUND: Final = (LSE, LSR)
_ENDED: Final = ("Succeeded", "Failed")
_TIER: Final = "tier/prod"
_SYSTEM: Final = "system"
_NS: Final = 1_000_000_000
_LARGEST: Final = 1e12
"""The end of times and weights that are restored: the weight of a sample a second for ever is below a million."""


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """koordlet's flags `-prediction-*`; all times in seconds."""

    safety_margin_percent: float = 10.0
    cold_start: float = 24 * 3600.0
    """The time for which a pod must have been observed until something of it is reclaimable."""
    half_life: Mapping[str, float] = field(default_factory=lambda: {"cpu": 12 * 3600.0, "memory": 24 * 3600.0})
    training_interval: float = 60.0
    expiration: float = 1800.0
    """After that time without a measurement a pod is forgotten."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The amounts by prediction and resource: cpu in milli-cores, memory in bytes; empty if nothing was measured."""

    reclaimable: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    peaks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The amounts that will be used, with the margin."""

    @property
    def result(self) -> Mapping[str, float]:
        """The reclaimable amounts that count; empty without a prediction."""
        return self.reclaimable.get(LEAST, {})


@dataclass(slots=True)
class _Model:
    since: float
    updated: float
    histograms: dict[str, DecayingHistogram]


class PeakPredictor:
    """Histograms of usage by the UID of pods, of the prod tier, and of the system.

    Belongs to one thread; times are seconds since the epoch.
    """

    def __init__(self, settings: PredictorSettings | None = None, stored: object = None) -> None:
        """`stored` is what `to_json` returned before; anything malformed in it is left out."""
        self.settings = settings or PredictorSettings()
        self._models: dict[str, _Model] = {}
        self._json: dict[str, Any] | None = None
        for name, each in stored.items() if isinstance(stored, Mapping) else ():
            if (model := self._restored(each)) is not None:
                self._models[name] = model

    def train(self, node: str, pods: Iterable[PodInfo], statistics: UsageStatistics, now: float) -> None:
        """Include the usage since the last training, a 90th percentile, and forget what has not been measured for long.

        `node` is the node's name in `statistics`. A pod without a measurement of both resources is left out.
        """
        window = int(now * _NS) - int(self.settings.training_interval * _NS), int(now * _NS)
        of_tier: dict[str, float] = dict.fromkeys(RESOURCES, 0.0)
        of_all = dict(of_tier)
        for pod in pods:
            used = _usage(statistics, "pod", pod.key, window)
            if used is None:
                continue
            for resource, amount in used.items():
                of_all[resource] += amount
            if pod.priority_band == PROD:
                self._add(pod.uid, used, now)
                for resource, amount in used.items():
                    of_tier[resource] += amount
        of_node = _usage(statistics, "node", node, window)
        if of_node is not None:
            self._add(_TIER, of_tier, now)
            self._add(_SYSTEM, {name: max(0.0, of_node[name] - of_all[name]) for name in RESOURCES}, now)
        self._models = {name: model for name, model in self._models.items()
                        if abs(now - model.updated) <= self.settings.expiration}
        self._json = None

    def predict(self, pods: Iterable[PodInfo], capacity: Mapping[str, float], now: float) -> Prediction:
        """Return the predictions for the pods of a node with a capacity; empty without a training.

        Pods that are being deleted or have ended hold nothing that could be reclaimed, nor do the bound CPUs of LSE and
        LSR pods.
        """
        tier, system = self._models.get(_TIER), self._models.get(_SYSTEM)
        if tier is None or system is None or capacity.keys() < set(RESOURCES):
            return Prediction()
        margin = 1.0 + self.settings.safety_margin_percent / 100.0
        prod = [pod for pod in pods if pod.priority_band == PROD and not _is_leaving(pod)]
        reclaimable: dict[str, dict[str, float]] = {BY_PODS: {}, BY_TIER: {}, LEAST: {}}
        peaks: dict[str, dict[str, float]] = {BY_PODS: {}, BY_TIER: {}}
        for resource in RESOURCES:
            unused, peak = 0.0, 0.0
            for pod in prod:
                model = self._models.get(pod.uid)
                if model is None or now - model.since < self.settings.cold_start:
                    continue
                of_pod = model.histograms[resource].percentile(_PEAK[resource]) * margin
                peak += of_pod
                if resource != "cpu" or pod.qos_class not in _BOUND:
                    unused += max(0.0, pod.requests[resource] - of_pod)
            peaks[BY_PODS][resource] = peak
            reclaimable[BY_PODS][resource] = min(unused, max(0.0, capacity[resource] - peak))
            peak = margin * sum(each.histograms[resource].percentile(_PEAK[resource]) for each in (tier, system))
            peaks[BY_TIER][resource] = peak
            unused = max(0.0, sum(pod.requests[resource] for pod in prod) - peak)
            reclaimable[BY_TIER][resource] = min(unused, max(0.0, capacity[resource] - peak))
            reclaimable[LEAST][resource] = min(reclaimable[BY_PODS][resource], reclaimable[BY_TIER][resource])
        return Prediction(reclaimable, peaks)

    def to_json(self) -> dict[str, Any]:
        """Return the histograms as plain data, which must not be changed; made once per training."""
        if self._json is None:
            self._json = {
                name: {"since": model.since, "updated": model.updated,
                       **{resource: {"weight": each.weight(model.updated), "buckets": each.checkpoint()}
                          for resource, each in model.histograms.items()}}
                for name, model in self._models.items()}
        return self._json

    def _add(self, name: str, used: Mapping[str, float], now: float) -> None:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(now, now, self._histograms())
        if now < model.updated:  # the clock was set back: else new samples would weigh nothing beside those before
            model.since += now - model.updated
            for each in model.histograms.values():
                each.move(now - model.updated)
        model.updated = now
        for resource, amount in used.items():
            model.histograms[resource].add(amount, now)

    def _histograms(self) -> dict[str, DecayingHistogram]:
        return {resource: DecayingHistogram(_BUCKETS[resource], self.settings.half_life[resource])
                for resource in RESOURCES}

    def _restored(self, stored: Any) -> _Model | None:
        if not isinstance(stored, Mapping):
            return None
        since, updated, histograms = _amount(stored.get("since")), _amount(stored.get("updated")), self._histograms()
        if since is None or updated is None:
            return None
        for resource, each in histograms.items():
            known = stored.get(resource)
            if not isinstance(known, Mapping):
                return None
            weight = _amount(known.get("weight"))
            if weight is None or not each.restore(known.get("buckets"), weight, updated):
                return None
        return _Model(since, updated, histograms)


def _usage(
    statistics: UsageStatistics, what: str, name: str, window: tuple[int, int],
) -> dict[str, float] | None:
    """Return the 90th percentile of each resource; None if one of them was not measured."""
    found: dict[str, float] = {}
    for resource in RESOURCES:
        measured = statistics.aggregate(what, name, resource, *window)
        if measured is None:
            return None
        found[resource] = measured.p90
    return found


def _is_leaving(pod: PodInfo) -> bool:
    status: Any = pod.object.get("status") or {}
    return bool(pod.object["metadata"].get("deletionTimestamp")) or status.get("phase") in _ENDED


def _amount(value: Any) -> float | None:
    """Return a stored time or weight; None if it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _LARGEST else None
