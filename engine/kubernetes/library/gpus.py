"""The function `gpuWorth`: how much of a node's free GPUs pods of known shapes could use.

Policies use it to place a pod where later ones lose least (docs/beyond-fgd.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import DOUBLE, DYN, INT, STRING, list_of
from koordpolicy.engine.cel.values.values import EvaluationError

_MOST_WORKLOADS: Final = 16
_MOST_STATES: Final = 200_000
_PER_DEVICE: Final = 0.1
_NUMBERS: Final = ("cpuMilli", "gpuMilli", "gpus")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A shape of pods that want GPU: `gpus` devices, `milli` thousandths of each; `models` is empty for any."""

    cpu: int
    milli: int
    gpus: int
    models: frozenset[str]
    probability: float
    share: float = 0.0
    """The probability among the pods that want GPU."""


class _Workload:
    """Shapes of pods, and cached results for free GPUs."""

    def __init__(self, pods: Sequence[object]) -> None:
        self.pods = pods
        self._worth: dict[tuple[int, tuple[int, ...], str], float] = {}
        self._shapes = _shapes(pods)

    def worth(self, cpu: int, free: Iterable[int], model: str) -> float:
        # The order of devices is irrelevant, and devices without free capacity are dropped.
        devices = tuple(sorted(filter(None, free)))
        key = cpu, devices, model
        found = self._worth.get(key)
        if found is None:
            if len(self._worth) >= _MOST_STATES:
                self._worth.clear()
            found = self._worth[key] = _worth(self._shapes, cpu, devices, model)
        return found


def _shapes(pods: Sequence[object]) -> tuple[_Shape, ...]:
    read = [_read(f"pod {number} of the workload", pod) for number, pod in enumerate(pods)]
    wanting = [each for each in read if each.milli * each.gpus]
    total = sum(each.probability for each in wanting)
    return tuple(replace(each, share=each.probability / total if total else 0.0) for each in wanting)


def _read(place: str, pod: object) -> _Shape:
    if not isinstance(pod, Mapping):
        raise EvaluationError(f"{place} is not a map")
    probability, models = pod.get("probability"), pod.get("models") or []
    amounts = [each for each in map(pod.get, _NUMBERS) if type(each) is int and each >= 0]
    if len(amounts) < len(_NUMBERS):
        raise EvaluationError(f"{place}: {', '.join(f'`{name}`' for name in _NUMBERS)} must be whole numbers from 0")
    if not isinstance(probability, int | float) or isinstance(probability, bool) or not 0 <= probability <= 1:
        raise EvaluationError(f"{place}: `probability` must be a number from 0 to 1")
    if not isinstance(models, list) or not all(isinstance(each, str) for each in models):
        raise EvaluationError(f"{place}: `models` must be a list of strings")
    cpu, milli, gpus = amounts
    return _Shape(cpu, milli, gpus, frozenset(models), float(probability))


def _worth(shapes: Sequence[_Shape], cpu: int, free: Sequence[int], model: str) -> float:
    fitting: dict[int, tuple[int, int, int]] = {}
    worth = 0.0
    for shape in shapes:
        if shape.models and model not in shape.models:
            continue
        milli = shape.milli
        if milli not in fitting:
            large = [amount for amount in free if amount >= milli]
            fitting[milli] = len(large), sum(large), sum(amount // milli for amount in large)
        devices, usable, shares = fitting[milli]
        if devices < shape.gpus:
            continue
        if cpu >= shape.cpu:
            worth += shape.probability * usable
        pods: float = shares // shape.gpus
        if shape.cpu:
            pods = min(pods, cpu / shape.cpu)
        worth += shape.share * pods * shape.gpus * milli
    return worth


_WORKLOADS: dict[int, _Workload] = {}


def _gpu_worth(pods: Sequence[object], cpu: int, free: Sequence[int], model: str) -> float:
    # The list is a plugin's params, so it is the same object in all decisions. It is cached too, so that its id stays
    # unique.
    workload = _WORKLOADS.get(id(pods))
    if workload is None or workload.pods is not pods:
        if len(_WORKLOADS) >= _MOST_WORKLOADS:
            _WORKLOADS.clear()
        workload = _WORKLOADS[id(pods)] = _Workload(pods)
    return workload.worth(max(cpu, 0), free, model)


_ONE: Final = "{'cpuMilli': 8000, 'gpus': 1, 'gpuMilli': 500, 'probability': 1}"

GPUS: Final[tuple[Function, ...]] = (
    Function(
        "gpuWorth",
        (
            Overload(
                "gpu_worth", (list_of(DYN), INT, list_of(INT), STRING), DOUBLE, _gpu_worth,
                cost=Cost(1, ((0, 1.0), (2, _PER_DEVICE))),
            ),
        ),
        "What a node's free GPU is worth to the pods of a workload, in thousandths of a device, given its free cpu in"
        " milli-cores, what is free of each device, and their model. A sum of two expectations over the pods"
        " (`cpuMilli`, `gpus`, `gpuMilli` of each, `models`, `probability`): the free GPU on devices that are large"
        " enough for the next pod, if it fits; and the GPU that pods like the next one that wants GPU could take until"
        " devices or cpu run out.",
        f"gpuWorth([{_ONE}], 4000, [500, 1000], 'T4') == 250.0 && gpuWorth([{_ONE}], 8000, [500, 1000], 'T4') =="
        " 2000.0",
    ),
)
