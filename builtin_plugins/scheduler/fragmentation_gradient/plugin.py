"""FragmentationGradient: pods go where they leave the least GPU that the next pods could not use.

The policy FGD of the openb study (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): the score falls with the
growth of the node's fragmentation by a hypothetical placement, and a pod that shares a device gets the one that the
growth is smallest on. It needs to know the workload's typical pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import WHOLE_DEVICE, DeviceRequest, PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, CacheKey, Point, Refusal, Scores
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.engine.scheduler.extensions.fragmentation import FragmentTable, TypicalPod
from koordpolicy.plugin import CycleState, Handle

_PATHS: Final = frozenset({("allocatable", "cpu"), ("requested", "cpu"), ("devices",), ("nodeInfo", "gpuModel")})
_FIELDS: Final = ("cpuMilli", "gpuMilli", "gpus")
_MOST_STATES: Final = 200_000

_State: TypeAlias = tuple[int, int, tuple[int, ...], str]
"""The state of a node that a score depends on: the numbers of cpu requests that its free cpu covers without the pod and
with it, the free devices, the model."""


class FragmentationGradient:
    """Score and reserve.

    Argument `typicalPods`: the expected shapes of the next pods, each `{cpuMilli, gpuMilli, gpus, models,
    probability}`.
    """

    name = "FragmentationGradient"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._table = FragmentTable.of([
            TypicalPod(each["cpuMilli"], each["gpuMilli"], each["gpus"], frozenset(each.get("models", ())),
                       float(each["probability"]))
            for each in args["typicalPods"]
        ])
        self._best: dict[tuple[DeviceRequest | None, int], dict[_State, int]] = {}
        """The computed scores, by request for devices and cpu."""
        self._states = 0

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; raises `ValueError` if they are invalid."""
        for name in args:
            if name not in ("apiVersion", "kind", "typicalPods"):
                raise ValueError(f"there is no argument `{name}`: the fields are `typicalPods`")
        pods = args.get("typicalPods")
        if not isinstance(pods, Sequence) or isinstance(pods, str) or not pods:
            raise ValueError("`typicalPods` must list at least one pod")
        for index, pod in enumerate(pods):
            place = f"`typicalPods[{index}]`"
            if not isinstance(pod, Mapping) or not set(_FIELDS) | {"probability"} <= set(pod):
                raise ValueError(f"{place} must have {', '.join(f'`{name}`' for name in _FIELDS)} and `probability`")
            if any(isinstance(pod[name], bool) or not isinstance(pod[name], int) or pod[name] < 0 for name in _FIELDS):
                raise ValueError(f"{place}: {', '.join(f'`{name}`' for name in _FIELDS)} must be whole numbers from 0")
            if not isinstance(pod["probability"], (int, float)) or not 0 <= pod["probability"] <= 1:
                raise ValueError(f"{place}: `probability` must be a number from 0 to 1")
        return {"typicalPods": list(pods)}

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes: 50 if the fragmentation does not change, more if it shrinks."""
        requested = pod.requests["cpu"]
        known = self._best.setdefault((pod.gpu, requested), {})
        at = snapshot.gathered
        free_cpu = at(snapshot.allocatable("cpu"), rows) - at(snapshot.requested("cpu"), rows)
        covered = self._table.covered
        scores: list[int] = []
        for row, without, beside in zip(
            rows.tolist(), covered(free_cpu).tolist(), covered(free_cpu - requested).tolist(), strict=True,
        ):
            node = snapshot.row(row)
            key = without, beside, tuple(sorted(node.free)), node.model
            found = known.get(key)
            if found is None:
                found = known[key] = self._best_score(pod, node)
                self._states += 1
            scores.append(found)
        if self._states > _MOST_STATES:
            self._best.clear()
            self._states = 0
        return Scores(np.array(scores, np.int64))

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return the key of the scores: they depend on the node's free cpu and devices."""
        return CacheKey((pod.requests["cpu"], pod.gpu), _PATHS, stable_for_shape=True)

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Choose the device that the score came from; whole devices, and their refusal, are left to GpuShare."""
        request = pod.gpu
        if request is not None and _shares(request):
            best, at = None, snapshot.row(row)
            cpu = at.allocatable["cpu"] - at.requested["cpu"]
            for score, devices in self._placements(pod, cpu, at.free, at.model):
                if best is None or score > best[0]:
                    best = score, devices
            if best is not None and best[1]:
                state[ReservedDevices] = best[1]
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Release the device, which only the cycle state records so far."""
        state.pop(ReservedDevices, None)

    def _best_score(self, pod: PodInfo, at: NodeRow) -> int:
        """Return the highest score of the ways to place the pod on a node."""
        cpu = at.allocatable["cpu"] - at.requested["cpu"]
        return max(score for score, _ in self._placements(pod, cpu, sorted(at.free), at.model))

    def _placements(
        self, pod: PodInfo, cpu: int, free: Sequence[int], model: str,
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the score of each way to place the pod on a node that makes a difference, with its devices."""
        before, _ = self._table.amounts(cpu, free, model)
        cpu -= pod.requests["cpu"]
        ways = list(_ways(free, pod.gpu)) or [()]
        for devices in ways:
            after = list(free)
            for minor in devices:
                after[minor] -= pod.gpu.share if pod.gpu is not None else 0
            delta = before - self._table.amounts(cpu, after, model)[0]
            yield int(HIGHEST_SCORE / (1 + math.exp(-delta / WHOLE_DEVICE))), devices


def _shares(request: DeviceRequest) -> bool:
    return request.count == 1 and request.share < WHOLE_DEVICE


def _ways(free: Sequence[int], request: DeviceRequest | None) -> Iterator[tuple[int, ...]]:
    """Yield the sets of devices to try: the first device of each free amount for a share, else the first that fit."""
    if request is None:
        return
    fitting = [minor for minor, left in enumerate(free) if left >= request.share]
    if not _shares(request):
        yield tuple(sorted(fitting, key=free.__getitem__)[: request.count])
        return
    tried: set[int] = set()
    for minor in fitting:
        if free[minor] not in tried:
            tried.add(free[minor])
            yield (minor,)
