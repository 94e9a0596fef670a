from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from koordpolicy.engine.cel.check.environment import Environment, Function, Scope, Variable
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import INT
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.kubernetes.library import FUNCTIONS, KOORDINATOR
from koordpolicy.engine.source import PolicyError
from tests.engine.cel.agreement import agreed

FILTER = environment(Slot.FILTER)
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
NODE = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"taints": [TAINT]}}


def answer(text: str, **variables: Any) -> object:
    return agreed(compile_program(text, FILTER), variables)


@pytest.mark.parametrize("function", KOORDINATOR, ids=lambda each: each.name)
def test_every_function_of_koordinator_has_an_example_that_is_true(function: Function) -> None:
    assert answer(function.example) is True


def test_no_function_takes_a_name_of_kubernetes() -> None:
    assert {each.name for each in KOORDINATOR} & FUNCTIONS.keys() == set()


def test_a_pods_band_and_class_are_those_of_the_vocabulary() -> None:
    labelled = {"metadata": {"labels": {"koordinator.sh/qosClass": "LS", "koordinator.sh/priority-class": "koord-mid"}}}
    assert answer("[priorityBand(pod), qosClass(pod)]", pod=labelled) == ["koord-mid", "LS"]
    assert answer("[priorityBand(pod), qosClass(pod)]", pod={"spec": {}}) == ["koord-batch", "BE"]
    assert [answer(f"priorityBand({number})") for number in (9999, 10_000, 5000, -1)] == [
        "koord-prod", "", "koord-batch", "",
    ]
    assert answer("[priorityBand('koord-free'), priorityBand('x')]") == ["koord-free", ""]


def test_tolerations_are_those_of_kubernetes() -> None:
    pod = {"spec": {"tolerations": [{"key": "dedicated", "operator": "Equal", "value": "gpu"}]}}
    assert answer("node.spec.taints.all(t, tolerates(pod, t))", pod=pod, node=NODE) is True
    assert answer("tolerates(pod.spec.tolerations, node.spec.taints[0])", pod=pod, node=NODE) is True
    assert answer("[toleratesNode(pod, node)]", pod={"spec": {}}, node=NODE) == [False]
    assert answer(
        "toleratesNode(pod, node)", pod={}, node={"spec": {"taints": [TAINT | {"effect": "PreferNoSchedule"}]}},
    ) is True
    assert answer("toleratesNode(pod, node)", pod={}, node={}) is True


def test_a_selector_that_makes_no_sense_is_an_error() -> None:
    pod = {
        "spec": {
            "topologySpreadConstraints": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}],
        },
    }
    text = "matchesSelector(node.metadata.labels, pod.spec.topologySpreadConstraints[0].labelSelector)"
    assert answer(text, pod=pod, node=NODE) == "error: `Is` is not an operator of a selector"


def test_node_affinity_looks_at_names_and_labels() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert answer(
        "matchesNodeAffinity(pod, node)", pod={"spec": {"affinity": affinity, "nodeSelector": {"zone": "a"}}},
        node=NODE,
    ) is True
    assert answer("matchesNodeAffinity(pod, node)", pod={"spec": {"nodeSelector": {"zone": "b"}}}, node=NODE) is False


def test_resource_lists_are_canonical_and_what_is_absent_reads_0() -> None:
    lists = "resourceList({'cpu': '250m', 'memory': '1Ki', 'nvidia.com/gpu': '2'})"
    assert answer(
        f"[{lists}.cpu, {lists}.memory, {lists}['nvidia.com/gpu'], {lists}.pods, {lists}['x']]",
    ) == [250, 1024, 2, 0, 0]
    # type: ignore[attr-defined]
    assert answer("resourceList({'cpu': '1 core'}).cpu").startswith("error: the amount of `cpu`: ")


@pytest.mark.parametrize(
    ("part", "whole", "wanted"),
    [
        (1, 3, 33), (2, 3, 67), (1, 200, 1), (-1, 200, -1), (1, -200, -1), (0, 5, 0),
        (5, 0, "error: division by zero: a percentage of nothing"), (2**62, 1, "error: integer overflow"),
        (2**62, 2**62, 100),
    ],
)
def test_percentages_are_rounded_half_away_from_zero(part: int, whole: int, wanted: object) -> None:
    assert answer("percent(requests.cpu, requests.memory)", requests={"cpu": part, "memory": whole}) == wanted


def test_percentages_by_column_are_those_by_row() -> None:
    declared = Environment(functions={each.name: each for each in KOORDINATOR}).with_variables(
        Variable("a", INT), Variable("b", INT), Variable("k", INT, Scope.DECISION),
    )
    values = [0, 1, -1, 2, 3, 200, 2**53, 2**54, 2**62, 2**63 - 1, -(2**63), 7, 1000]
    rows = [{"a": a, "b": b} for a in values for b in values]
    for text in ("percent(a, b)", "percent(a, k)", "percent(k, b)"):
        program = compile_program(text, declared)
        column = evaluate(program, RowFrame(rows, {"k": 3}))
        wanted: list[object] = []
        for row in rows:
            try:
                wanted.append(program.metered({**row, "k": 3})[0])
            except EvaluationError as error:
                wanted.append(error.message)
        found = [
            column.errors[row].message if row in column.errors else value
            for row, value in enumerate(column.values.tolist())
        ]
        assert found == wanted
        assert column.values.dtype == np.int64


def test_what_a_function_reads_is_known_exactly() -> None:
    checked = compile_program("toleratesNode(pod, node) && !ownedBy(pod, 'DaemonSet')", FILTER).checked
    assert checked.reads == {
        ("pod", "spec", "tolerations"), ("node", "spec", "taints"), ("pod", "metadata", "ownerReferences"),
    }


def test_arguments_are_held_against_the_types_of_kubernetes() -> None:
    with pytest.raises(PolicyError) as caught:
        compile_program("qosClass(node) == 'BE'", FILTER)
    assert [(each.message, each.help) for each in caught.value.problems] == [
        ("no overload of `qosClass` takes (kubernetes.Node)", "there is `qosClass(kubernetes.Pod) -> string`"),
    ]
