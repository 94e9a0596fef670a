"""GpuShare: pods that take whole GPUs, or a fraction of one, in thousandths of a device.

The filter and the choice of devices are those of the public trace simulator (hkust-adsl/kubernetes-scheduler-simulator,
Open-Gpu-Share with `gpuSelMethod: best` or `random`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.edits import Edit, removal_edit, request_edits, without_annotation_edit
from koordpolicy.engine.cluster.objects.pods import MODEL_ANNOTATION, WHOLE_DEVICE, DeviceRequest, PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Point, Refusal
from koordpolicy.engine.kubernetes.vocabulary import GPU, GPU_CORE, WHOLE_GPUS
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.engine.scheduler.profiles.args import check_fields
from koordpolicy.plugin import CacheKey, CycleState, Handle

_PATHS: Final = frozenset({("devices",), ("nodeInfo", "gpuModel")})
_NO_DEVICES: Final = "node(s) had no GPU"
_OTHER_MODEL: Final = "node(s) had no GPU of a model that the pod accepts"
_INSUFFICIENT: Final = "Insufficient GPU"
_THOUSANDTHS_PER_PERCENT: Final = WHOLE_DEVICE // 100


class GpuShare:
    """Filter and reserve.

    The argument `select` chooses the devices of a pod that requests fractions: with `best` the fullest ones that fit,
    on ties those with the lowest number; with `random` any that fit. Whole devices are the first free ones.
    """

    name = "GpuShare"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        seed = handle.seed
        # A choice of devices needs no cryptographic randomness.
        self._random = random.Random(f"GpuShare/{seed}") if args.get("select") == "random" else None  # noqa: S311 - no secret

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; raises `ValueError` for unknown ones."""
        checked = check_fields(args, {"select": str})
        if checked.get("select", "best") not in ("best", "random"):
            raise ValueError(f"`select` is `{checked['select']}`, expected `best` or `random`")
        return {"select": "best", **checked}

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes that have too few devices of an accepted model whose free share suffices."""
        request = pod.gpu
        if request is None:
            return Answer(np.ones(snapshot.size, np.bool_))
        if request.fault:
            refusal = Refusal("request", request.fault, Code.UNRESOLVABLE)
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: refusal)
        devices, passed = snapshot.devices, _fits(request, snapshot, rows)

        def explain(row: int) -> Refusal:
            return _explain(request, snapshot, row)

        def reasons(refused: Rows) -> dict[str, Rows]:
            return _reasons(request, snapshot, refused)

        def codes(refused: Rows) -> dict[Code, Rows]:
            unresolvable = devices.count[refused] < request.count
            if request.models:
                unresolvable |= ~_accepts(request, devices.models)[devices.model[refused]]
            return {Code.UNSCHEDULABLE: refused[~unresolvable], Code.UNRESOLVABLE: refused[unresolvable]}

        return Answer(passed, explain, reasons=reasons, codes=codes)

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return the dependencies: the pod's device request, and the node's devices."""
        request = pod.gpu
        if request is None:
            return CacheKey(None, frozenset(), vectorized=_all_pass, stable_for_shape=True)
        if request.fault:
            return None
        return CacheKey(
            request,
            _PATHS,
            vectorized=partial(_fits, request),
            stable_for_shape=True,
            reasons=partial(_reasons, request),
        )

    def counterfactuals(self, pod: PodInfo, snapshot: Snapshot, row: int) -> Iterator[Edit]:
        """Yield the acceptance of any model, smaller requests, and evictions of pods with devices."""
        request, held = pod.gpu, snapshot.row(row)
        if request is None or not any(held.total):
            return
        if request.models and held.model not in request.models:
            yield without_annotation_edit(pod, MODEL_ANNOTATION)
        free = sum(1 for left in held.free if left >= request.share)
        largest = max(held.free)
        for name in pod.requests:
            if name in WHOLE_GPUS and 0 < free < request.count:
                yield from request_edits(pod, name, free)
            elif name in (GPU, GPU_CORE) and request.count == 1 and 0 < largest < request.share:
                yield from request_edits(pod, name, largest // _THOUSANDTHS_PER_PERCENT)
        for key in sorted(held.taken, key=lambda key: (len(held.taken[key]), key)):
            yield removal_edit(held, (key,))

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Choose the devices, unless an earlier plugin has; the framework assumes the pod with them."""
        if pod.gpu is None or ReservedDevices in state:
            return None
        free = snapshot.devices.free[row].tolist()
        chosen = self._choose(free, pod.gpu)
        if len(chosen) < pod.gpu.count:
            return _explain(pod.gpu, snapshot, row)
        state[ReservedDevices] = chosen
        return None

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Release the devices, which only the cycle state records so far."""
        state.pop(ReservedDevices, None)

    def _choose(self, free: list[int], request: DeviceRequest) -> tuple[int, ...]:
        fitting = [minor for minor, left in enumerate(free) if left >= request.share]
        if request.share < WHOLE_DEVICE:
            if self._random is not None:
                fitting = self._random.sample(fitting, min(len(fitting), request.count))
            else:
                fitting.sort(key=free.__getitem__)  # stable: the lowest number on ties
        return tuple(fitting[: request.count])


def _all_pass(_: Snapshot, rows: Rows) -> NDArray[np.bool_]:
    return np.ones(len(rows), np.bool_)


def _fits(request: DeviceRequest, snapshot: Snapshot, rows: Rows) -> NDArray[np.bool_]:
    """Return for each row whether it has enough devices of an accepted model whose free share suffices."""
    devices, everywhere = snapshot.devices, len(rows) == snapshot.size
    # A device that does not exist has 0 free, and a share is at least 1.
    if request.count == 1:
        most = devices.most if everywhere else devices.most[rows]
        passed: NDArray[np.bool_] = most >= request.share
    else:
        free = devices.free if everywhere else devices.free[rows]
        passed = (free >= request.share).sum(axis=1) >= request.count
    if request.models:
        model = devices.model if everywhere else devices.model[rows]
        passed &= _accepts(request, devices.models)[model]
    return passed


def _accepts(request: DeviceRequest, models: Any) -> Any:
    return np.array([model in request.models for model in models], np.bool_)


def _reasons(request: DeviceRequest, snapshot: Snapshot, refused: Rows) -> dict[str, Rows]:
    devices = snapshot.devices
    without = devices.count[refused] == 0
    other_model = np.zeros(len(refused), np.bool_)
    if request.models:
        other_model = ~_accepts(request, devices.models)[devices.model[refused]] & ~without
    groups = {_NO_DEVICES: refused[without], _OTHER_MODEL: refused[other_model],
              _INSUFFICIENT: refused[~without & ~other_model]}
    return {reason: rows for reason, rows in groups.items() if len(rows)}


def _explain(request: DeviceRequest, snapshot: Snapshot, row: int) -> Refusal:
    devices = snapshot.devices
    if not devices.count[row]:
        return Refusal("devices", _NO_DEVICES, Code.UNRESOLVABLE)
    model = devices.models[devices.model[row]]
    if request.models and model not in request.models:
        accepted = sorted(request.models)
        return Refusal("model", _OTHER_MODEL, Code.UNRESOLVABLE, values=(("model", model), ("accepted", accepted)))
    values = (("count", request.count), ("share", request.share), ("free", devices.free[row].tolist()))
    code = Code.UNRESOLVABLE if request.count > int(devices.count[row]) else Code.UNSCHEDULABLE
    return Refusal("devices", _INSUFFICIENT, code, values=values)
