"""The replay of a trace: pods arrive one by one, and each is placed, or fails, before the next.

The procedure and the figures are those of the public simulator (hkust-adsl/kubernetes-scheduler-simulator), so that its
published results can be compared digit by digit: arrivals only, no departures; a failed pod is deleted and not tried
again; the load is the GPU request of all pods that have arrived, also of the failed ones, in percent of the cluster's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.trace import DEVICE, KINDS, TracePod, Workload
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.records import fast_init

from .cycle.schedule_one import Scheduler, Settings
from .extensions.fragmentation import Fragmentation, TypicalPod
from .profiling import DecisionMeter
from .trace_profile import trace_settings
from .verdict.verdict import Failure, Verdict


@dataclass(frozen=True, slots=True)
class Allocation:
    """The usage in percent of the cluster's capacity; 0 of a resource without capacity."""

    cpu: float
    memory: float
    gpu: float

    def to_json(self) -> dict[str, float]:
        """Return plain data."""
        return {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu}


@fast_init
@dataclass(frozen=True, slots=True)
class ArrivalState:
    """The state after one arrival: milli-cores, MiB and thousandths of devices."""

    arrived_gpu: int
    cpu: int
    memory: int
    gpu: int
    fragmented: float | None = None
    """The idle GPU that is useless to the next pod, in thousandths; None if it was not measured."""
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class Curves:
    """The figures at each whole percent of load, from 0 up to the highest that was reached, in percent.

    A load that no arrival rounds to has its neighbours' figures, as in `SimulationResult.allocation`; NaN without
    neighbours. Without a measured fragmentation its two curves are empty.
    """

    cpu: tuple[float, ...]
    memory: tuple[float, ...]
    gpu: tuple[float, ...]
    fragmented_of_cluster: tuple[float, ...] = ()
    """The idle GPU that is useless to the next pod, in percent of the cluster's GPU."""
    fragmented_of_idle: tuple[float, ...] = ()
    """The same in percent of the idle GPU."""


@dataclass(frozen=True, slots=True)
class UnplacedPods:
    """The unplaced pods of one shape: their number, and the reasons of the first one (nodes by reason)."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]
    count: int
    first: str
    reasons: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "cpuMilli": self.cpu_milli, "memoryMiB": self.memory_mib, "gpus": self.gpus, "gpuMilli": self.gpu_milli,
            "models": list(self.models), "count": self.count, "first": self.first, "reasons": dict(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a replay."""

    arrivals: int
    placed: Mapping[str, str]
    """The node of each placed pod, by the pods' names, in the order of their arrival."""
    records: Sequence[ArrivalState] = field(repr=False)
    capacity: ArrivalState
    """The cluster's capacity; its `arrived_gpu` is the load at the end."""
    failed_shapes: tuple[UnplacedPods, ...]
    """The unplaced pods by shape, commonest first."""
    reasons: Mapping[str, int]
    """The number of pods that failed (also) for each reason, commonest first."""
    errors: tuple[Failure, ...]
    """The failures of plugins and expressions, each kind once."""
    seconds: float
    """The seconds of the loop over the pods."""
    loads: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    """The load of each record in whole percents, half to even; it never falls."""

    def __post_init__(self) -> None:
        # The simulator divides in this order: first by the number of devices, then by ten.
        devices = self.capacity.gpu / DEVICE
        loads = [round(record.arrived_gpu / devices / 10) for record in self.records] if devices else []
        object.__setattr__(self, "loads", np.array(loads or [0] * len(self.records), np.int64))

    @property
    def failed(self) -> int:
        """The number of unplaced pods."""
        return self.arrivals - len(self.placed)

    @property
    def pods_per_second(self) -> float:
        """Arrivals per second of the loop."""
        return self.arrivals / self.seconds if self.seconds > 0 else 0.0

    @property
    def final(self) -> Allocation:
        """The usage after the last arrival."""
        last = self.records[-1] if self.records else ArrivalState(0, 0, 0, 0)
        return Allocation(
            _mean_percent([last.cpu], self.capacity.cpu), _mean_percent([last.memory], self.capacity.memory),
            _mean_percent([last.gpu], self.capacity.gpu),
        )

    def allocation(self, percent: int) -> Allocation | None:
        """Return the usage at this load: the mean over the arrivals that round to it.

        Loads are rounded to whole percents, half to even; a load that no arrival rounds to has the mean of its
        neighbours; None without neighbours. `gpu` is the figure that the published results call `alloc_pct`.
        """
        records = self._at(percent)
        if not records:
            return None
        return Allocation(
            _mean_percent([record.cpu for record in records], self.capacity.cpu),
            _mean_percent([record.memory for record in records], self.capacity.memory),
            _mean_percent([record.gpu for record in records], self.capacity.gpu),
        )

    def fragmentation(self, percent: int) -> tuple[float, float] | None:
        """Return the fragmented GPU at this load, in percent of the cluster's GPU and of its idle GPU.

        Both are means as in `allocation`; the second is not rounded. None if nothing was measured, or the cluster has
        no GPU.
        """
        amounts = [(each.fragmented, each.idle) for each in self._at(percent) if each.fragmented is not None]
        if not amounts or not self.capacity.gpu:
            return None
        ratios = [round(100 * part / idle, 2) if idle else 0.0 for part, idle in amounts]
        # Unlike allocations, these amounts are not rounded before their mean is taken.
        share = np.mean([round(part, 2) for part, _ in amounts]) / (self.capacity.gpu / DEVICE) / 10
        return float(np.round(share, 2)), float(np.mean(ratios))

    def allocations(self, step: int = 10) -> dict[int, Allocation]:
        """Return the usage at each `step` percent of load, up to the highest that was reached."""
        found = {percent: self.allocation(percent) for percent in range(step, self.highest_load + 1, step)}
        return {percent: allocation for percent, allocation in found.items() if allocation is not None}

    @property
    def highest_load(self) -> int:
        """The load at the end, in whole percents."""
        return int(self.loads[-1]) if len(self.loads) else 0

    def curves(self) -> Curves:
        """Return all figures by load, for the study's plots."""
        nothing = Allocation(math.nan, math.nan, math.nan)
        allocations = [self.allocation(percent) or nothing for percent in range(self.highest_load + 1)]
        fragmented: list[tuple[float, float]] = []
        if any(record.fragmented is not None for record in self.records[:1]):
            fragmented = [self.fragmentation(percent) or (math.nan, math.nan)
                          for percent in range(self.highest_load + 1)]
        return Curves(
            tuple(each.cpu for each in allocations), tuple(each.memory for each in allocations),
            tuple(each.gpu for each in allocations), tuple(each[0] for each in fragmented),
            tuple(each[1] for each in fragmented),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "arrivals": self.arrivals,
            "failed": self.failed,
            "podsPerSecond": round(self.pods_per_second, 1),
            "seconds": round(self.seconds, 3),
            "allocation": {str(percent): each.to_json() for percent, each in self.allocations().items()},
            "final": self.final.to_json(),
            **self._fragmentation_json(),
            "reasons": dict(self.reasons),
            "failedPods": [each.to_json() for each in self.failed_shapes],
            "errors": [each.to_json() for each in self.errors],
        }

    def _fragmentation_json(self) -> dict[str, Any]:
        figures = {percent: self.fragmentation(percent) for percent in self.allocations()}
        found = {
            str(percent): {"amount": each[0], "ratio": round(each[1], 4)} for percent, each in figures.items() if each
        }
        return {"fragmentation": found} if found else {}

    def _at(self, percent: int) -> Sequence[ArrivalState]:
        first, end = np.searchsorted(self.loads, [percent, percent + 1]).tolist()
        if first == end:
            first, end = np.searchsorted(self.loads, [percent - 1, percent + 2]).tolist()
        return self.records[first:end]


def simulate(
    workload: Workload,
    live: Live,
    settings: Settings | None = None,
    *,
    clock: Callable[[], float],
    progress: Callable[[int], None] | None = None,
    typical: Sequence[TypicalPod] = (),
    meter: DecisionMeter | None = None,
) -> SimulationResult:
    """Replay a workload under the plugins of a registry and return the result.

    `clock` returns seconds, for the speed alone: no decision depends on it. `progress` is called every hundred arrivals
    with their number. With `typical` pods (`fragmentation.typical_pods` of the trace as it was recorded), fragmentation
    is measured after each arrival. `meter` measures the costs of decisions, and slows them down a little.

    Raises:
        PolicyError: a plugin cannot be instantiated, or the trace's nodes are malformed.
    """
    cluster = Cluster((node.object() for node in workload.nodes), kinds=KINDS)
    scheduler = Scheduler(cluster, live, settings or trace_settings(live.registry))
    records: list[ArrivalState] = []
    placed: dict[str, str] = {}
    failures = _Failures()
    errors: dict[tuple[str, str, str], Failure] = {}
    fragmentation = Fragmentation(typical, workload.nodes) if typical else None
    arrived = cpu = memory = gpu = 0
    read = _Reader()
    start = clock()
    for number, pod in enumerate(workload.pods):
        info = read.pod(pod)
        verdict = scheduler.schedule(info) if meter is None else meter.schedule(scheduler, info)
        arrived += pod.gpu_total
        if verdict.node is None:
            failures.add(pod, verdict)
        else:
            placed[pod.name] = verdict.node
            cpu += pod.cpu_milli
            memory += pod.memory_mib
            gpu += pod.gpu_total
            if fragmentation is not None:
                row = cluster.rows[verdict.row]
                fragmentation.update(verdict.row, row.allocatable["cpu"] - row.requested["cpu"], row.free)
        for failure in verdict.errors():
            errors.setdefault((failure.plugin, failure.point.value, failure.message), failure)
        amounts = fragmentation.amounts if fragmentation is not None else (None, 0.0)
        records.append(ArrivalState(arrived, cpu, memory, gpu, *amounts))
        if progress is not None and number % 100 == 99:
            progress(number + 1)
    seconds = clock() - start
    scheduler.close()
    capacity = ArrivalState(
        arrived, sum(node.cpu_milli for node in workload.nodes), sum(node.memory_mib for node in workload.nodes),
        DEVICE * sum(node.gpus for node in workload.nodes),
    )
    return SimulationResult(len(workload.pods), placed, records, capacity, failures.shapes(), failures.reasons(),
                  tuple(errors.values()), seconds)


class _Reader:
    """Reads one object per shape of pods: others of that shape differ only in their names."""

    def __init__(self) -> None:
        self._read: dict[_Shape, PodInfo] = {}

    def pod(self, pod: TracePod) -> PodInfo:
        """Return the same as `PodInfo.of` for the pod's object."""
        shape = _shape(pod)
        known = self._read.get(shape)
        if known is None:
            known = self._read[shape] = PodInfo.of(pod.object())
            return known
        metadata = {**known.object["metadata"], "name": pod.name, "uid": pod.name}
        return known.like({**known.object, "metadata": metadata}, pod.name, pod.name)


_Shape: TypeAlias = tuple[int, int, int, int, tuple[str, ...]]


def _shape(pod: TracePod) -> _Shape:
    return pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli, pod.models


class _Failures:
    """Collects the unplaced pods by shape."""

    def __init__(self) -> None:
        self._shapes: dict[_Shape, list[Any]] = {}
        self._reasons: dict[str, int] = {}

    def add(self, pod: TracePod, verdict: Verdict) -> None:
        reasons = verdict.reasons()
        for reason in reasons:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        shape = _shape(pod)
        if shape in self._shapes:
            self._shapes[shape][0] += 1
        else:
            self._shapes[shape] = [1, pod.name, reasons]

    def shapes(self) -> tuple[UnplacedPods, ...]:
        found = [UnplacedPods(*shape, *rest) for shape, rest in self._shapes.items()]
        return tuple(sorted(found, key=lambda each: (-each.count, each.first)))

    def reasons(self) -> dict[str, int]:
        return dict(sorted(self._reasons.items(), key=lambda item: (-item[1], item[0])))


def _mean_percent(amounts: Sequence[int], capacity: int) -> float:
    """Return the mean of the amounts in percent of the capacity, rounded as the published figures are.

    Each amount is rounded to 2 decimals as a Python float, the mean as a numpy scalar (scale, round half to even,
    unscale): about one figure in a thousand differs by 0.01 between the two.
    """
    if not capacity:
        return 0.0
    return float(np.round(np.mean([round(amount / (capacity / 1000) / 10, 2) for amount in amounts]), 2))
