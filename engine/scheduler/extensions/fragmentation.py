"""Fragmentation: the part of a cluster's idle GPU that the next pod could not use, as the openb study measures it.

A node's fragmentation is the idle GPU there that is useless to a pod drawn from the workload, as an expectation
over its typical shapes (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 4; the order of the tests and
of the sums is that of hkust-adsl/kubernetes-scheduler-simulator, so that figures can be compared digit by digit).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.sources.trace import TraceNode, TracePod

_COVERED: Final = 0.95
_MOST_STATES: Final = 200_000


@dataclass(frozen=True, slots=True)
class TypicalPod:
    """A shape of pods, and the probability that the next pod has it. Memory is ignored."""

    cpu_milli: int
    gpu_milli: int
    gpus: int
    models: frozenset[str]
    probability: float

    def to_json(self) -> dict[str, object]:
        """Return plain data, as the plugin FragmentationGradient takes it among its arguments."""
        return {
            "cpuMilli": self.cpu_milli, "gpuMilli": self.gpu_milli, "gpus": self.gpus, "models": sorted(self.models),
            "probability": self.probability,
        }


def typical_pods(pods: Sequence[TracePod]) -> tuple[TypicalPod, ...]:
    """Return the commonest shapes of a trace, most frequent first, that cover 95 percent of its pods.

    Their probabilities are relative to the pods that they cover. Lists of models in a different order are different
    shapes, as in the simulator.
    """
    shapes = Counter((pod.cpu_milli, pod.gpu_milli, pod.gpus, "|".join(pod.models)) for pod in pods)
    ordered = sorted(shapes.items(), key=lambda item: (item[1], item[0]), reverse=True)
    total = len(pods)
    covered, chosen = 0, []
    for shape, count in ordered:
        if covered >= _COVERED * total:
            break
        covered += count
        chosen.append((shape, count))
    probabilities = [count / total for _, count in chosen]
    if len(chosen) < len(ordered):
        probabilities = [probability / (covered / total) for probability in probabilities]
    return tuple(
        TypicalPod(cpu, milli, gpus, frozenset(models.split("|")) if models else frozenset(), probability)
        for ((cpu, milli, gpus, models), _), probability in zip(chosen, probabilities, strict=True)
    )


def fragment(
    typical: Sequence[TypicalPod], cpu_milli: int, free: Sequence[int], model: str,
) -> tuple[float, float]:
    """Return a node's fragmented and idle GPU in thousandths of a device, given what is free on it.

    A device that is too small for the typical pod counts as fragmented even if other devices of the node suffice.
    """
    total = sum(free)
    q1 = q2 = q3 = q4 = left = right = no_access = 0.0
    fitting: dict[int, tuple[int, int]] = {}
    for pod in typical:
        weighed = pod.probability * total
        milli = pod.gpu_milli
        if milli == 0:
            if cpu_milli >= pod.cpu_milli:
                left += weighed
            else:
                right += weighed
            continue
        if pod.models and model not in pod.models:
            no_access += weighed
            continue
        if milli not in fitting:
            large = [amount for amount in free if amount >= milli]
            fitting[milli] = len(large), total - sum(large)
        count, small = fitting[milli]
        enough_cpu = cpu_milli >= pod.cpu_milli
        if count >= pod.gpus:
            if enough_cpu:
                q2 += pod.probability * small
                q3 += pod.probability * (total - small)
            else:
                q4 += weighed
        elif enough_cpu:
            q2 += weighed
        else:
            q1 += weighed
    fragmented = q1 + q2 + q4 + left + right + no_access
    return fragmented, fragmented + q3


class FragmentTable:
    """The cached results of `fragment` for one list of typical pods.

    Nodes that no typical pod distinguishes share a result: the order of devices is irrelevant, and
    cpu counts only by which of the typical requests it satisfies.
    """

    def __init__(self, typical: Sequence[TypicalPod]) -> None:
        self._typical = typical
        self._cpu_requests = sorted({pod.cpu_milli for pod in typical})
        self._as_array = np.array(self._cpu_requests, np.int64)
        self._found: dict[tuple[int, tuple[int, ...], str], tuple[float, float]] = {}

    @classmethod
    def of(cls, typical: Sequence[TypicalPod]) -> FragmentTable:
        """Return the table of these typical pods: the same one as long as anything uses it."""
        key = tuple(typical)
        table = _TABLES.get(key)
        if table is None:
            table = _TABLES[key] = cls(key)
        return table

    def covered(self, cpu_milli: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return how many of the distinct cpu requests of the typical pods each of these amounts covers."""
        return self._as_array.searchsorted(cpu_milli, side="right")

    def amounts(self, cpu_milli: int, free: Iterable[int], model: str) -> tuple[float, float]:
        """Return the result of `fragment` for a node in this state."""
        key = bisect_right(self._cpu_requests, cpu_milli), tuple(sorted(free)), model
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _MOST_STATES:
                self._found.clear()
            found = self._found[key] = fragment(self._typical, cpu_milli, key[1], model)
        return found


_TABLES: Final[WeakValueDictionary[tuple[TypicalPod, ...], FragmentTable]] = WeakValueDictionary()


class Fragmentation:
    """The fragmentation of a cluster, updated node by node."""

    def __init__(self, typical: Sequence[TypicalPod], nodes: Sequence[TraceNode]) -> None:
        self._table = FragmentTable.of(typical)
        self._models = [node.model for node in nodes]
        states = [self._table.amounts(node.cpu_milli, [1000] * node.gpus, node.model) for node in nodes]
        self._by_node = np.array(states, np.float64).reshape(len(states), 2).T.copy()
        self._sums: tuple[float, float] | None = None

    def update(self, row: int, cpu_milli: int, free: Sequence[int]) -> None:
        """Set the free resources of a node."""
        self._by_node[:, row] = self._table.amounts(cpu_milli, free, self._models[row])
        self._sums = None

    @property
    def amounts(self) -> tuple[float, float]:
        """The cluster's fragmented and idle GPU, in thousandths of a device."""
        if self._sums is None:
            fragmented, idle = np.add.reduce(self._by_node, axis=1).tolist()
            self._sums = fragmented, idle
        return self._sums
