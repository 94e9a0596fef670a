from __future__ import annotations

import pytest

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.kubernetes.library.gpus import GPUS

WHOLE = {"cpuMilli": 8000, "gpus": 1, "gpuMilli": 1000, "probability": 0.25}
HALF = {"cpuMilli": 2000, "gpus": 1, "gpuMilli": 500, "probability": 0.25}
NO_GPU = {"cpuMilli": 1000, "gpus": 0, "gpuMilli": 0, "probability": 0.5}
FOUR = {"cpuMilli": 0, "gpus": 4, "gpuMilli": 1000, "probability": 1}
OF_MODEL = {**HALF, "models": ["T4"]}


def worth(pods: object, cpu: int, free: list[int], model: str = "G2") -> object:
    (function,) = GPUS
    return function.overloads[0].evaluate(pods, cpu, free, model)


@pytest.mark.parametrize(("pods", "cpu", "free", "wanted"), [
    pytest.param(
        [WHOLE, HALF, NO_GPU], 32_000, [1000, 1000], 0.5 * 2000 + 2000,
        id="enough of all: what is free, by either measure",
    ),
    pytest.param(
        [WHOLE, HALF, NO_GPU], 12_000, [1000, 1000], 0.5 * 2000 + 0.5 * 1500 + 0.5 * 2000, id="cpu for one and a half",
    ),
    pytest.param(
        [WHOLE, HALF, NO_GPU], 4000, [1000, 1000], 0.25 * 2000 + 0.5 * 500 + 0.5 * 1000,
        id="too little cpu for the first pod",
    ),
    pytest.param([WHOLE], 8000, [999, 500], 0, id="devices too small"),
    pytest.param(
        [HALF], 8000, [999, 500], 0.25 * 1499 + 1000, id="what is left over of a device counts for the next pod alone",
    ),
    pytest.param([FOUR], 0, [1000] * 7, 7000 + 4000, id="pods of several devices, and none of cpu"),
    pytest.param([FOUR], 0, [1000] * 3, 0, id="too few devices"),
    pytest.param([OF_MODEL], 8000, [1000], 0, id="another model"),
    pytest.param([NO_GPU], 8000, [1000], 0, id="nobody wants GPU"),
    pytest.param([], 8000, [1000], 0, id="nobody at all"),
    pytest.param([WHOLE, HALF], 8000, [], 0, id="no device"),
    pytest.param([WHOLE, HALF], -1, [1000], 0, id="cpu overcommitted"),
])
def test_free_gpu_is_worth_what_the_next_pods_can_do_with_it(
    pods: object, cpu: int, free: list[int], wanted: float,
) -> None:
    assert worth(pods, cpu, free) == wanted


def test_the_model_is_one_of_those_that_a_pod_accepts() -> None:
    assert worth([OF_MODEL], 8000, [1000], "T4") == worth([HALF], 8000, [1000])


def test_the_order_of_devices_makes_no_difference_and_neither_does_who_asked_before() -> None:
    pods = [WHOLE, HALF]
    found = [worth(pods, 9000, free) for free in ([1000, 0, 700], [700, 1000], [700, 1000, 0, 0])]
    assert found == [worth([WHOLE, HALF], 9000, [1000, 700])] * 3


def test_workloads_are_kept_apart_however_many_there_are() -> None:
    workloads = [[{**HALF, "probability": number / 64}] for number in range(64)]
    assert [worth(pods, 8000, [1000]) for pods in workloads] == [
        1000 * number / 64 + 1000 * (number > 0) for number in range(64)
    ]


@pytest.mark.parametrize(("pod", "message"), [
    (7, "pod 0 of the workload is not a map"),
    ({**HALF, "gpus": -1}, "pod 0 of the workload: `cpuMilli`, `gpuMilli`, `gpus` must be whole numbers from 0"),
    ({"probability": 1}, "pod 0 of the workload: `cpuMilli`, `gpuMilli`, `gpus` must be whole numbers from 0"),
    ({**HALF, "probability": 1.5}, "pod 0 of the workload: `probability` must be a number from 0 to 1"),
    ({**HALF, "models": "T4"}, "pod 0 of the workload: `models` must be a list of strings"),
])
def test_a_workload_that_makes_no_sense_is_an_error(pod: object, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        worth([pod], 8000, [1000])
    assert caught.value.message == message
