from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler.fragmentation_aware.imbalance import imbalance, imbalances, requests_of
from koordpolicy.builtin_plugins.descheduler.fragmentation_aware.plugin import FragmentationAware, check_args, read_args
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.argument_faults import ArgumentError
from koordpolicy.engine.testing.kit import FakeEvictor
from tests.balance_cycles import Json, evicted, kept, node, pod, run

EVEN = [node("even"), pod("e", "even", "1", "2Gi")]
UNEVEN = [node("uneven"), pod("cpu", "uneven", "2", "1Gi"), pod("more", "uneven", "1", "1Gi"), pod("ram", "uneven")]


def fragmentation(objects: list[Json], **args: Any):
    return run("FragmentationAware", objects, **args)


def test_the_pod_whose_removal_evens_out_a_node_most_leaves_it():
    result = fragmentation([*EVEN, *UNEVEN])
    # cpu 3/4, memory 2/8: 0.25. Without `cpu` 1/4 and 1/8, without `more` 2/4 and 1/8.
    assert [(each.pod, each.decision.rule, each.decision.reason) for each in result.evicted] == [
        ("d/cpu", "imbalanceThreshold", "fragmentation reduction: stdBefore=0.2500 stdAfter=0.0625 gain=0.1875")]
    assert [(note.node, note.role, note.message) for note in result.node_notes] == [
        ("uneven", "source", "its imbalance 0.2500 is above 0.15")]


@pytest.mark.parametrize(("args", "stays"), [
    ({"paused": True}, {}), ({"dryRun": True}, {"cpu": "dryRun"}), ({"imbalanceThreshold": 0.25}, {}),
    ({"minImprovementThreshold": 0.1875}, {}), ({"resources": ["cpu"]}, {}),
    ({"nodeSelector": {"matchLabels": {"a": "b"}}}, {}), ({"evictableNamespaces": {"exclude": ["d"]}}, {}),
    ({"evictableNamespaces": {"include": ["e"]}}, {}),
    ({"podSelectors": [{"selector": {"matchLabels": {"a": "b"}}}]}, {}),
])
def test_arguments_that_say_so_keep_all_pods(args, stays):
    result = fragmentation([*EVEN, *UNEVEN], **args)
    assert (evicted(result), kept(result), result.failures) == ([], stays, ())


def test_the_next_best_pod_goes_if_the_best_fits_on_no_other_node_or_must_stay():
    small = [node("even", cpu="2"), pod("e", "even", "500m", "2Gi")]
    result = fragmentation([*small, *UNEVEN])
    assert (evicted(result), kept(result)) == (["more"], {"cpu": "nodeFit"})
    assert evicted(fragmentation([*small, *UNEVEN], nodeFit=False)) == ["cpu"]
    vetoed = run("FragmentationAware", [*EVEN, *UNEVEN], kept=("cpu",))
    assert (evicted(vetoed), kept(vetoed)) == (["more"], {"cpu": "kept"})


def test_its_own_node_and_nodes_that_do_not_take_part_are_no_other_nodes():
    apart = {"nodeSelector": {"matchExpressions": [{"key": "apart", "operator": "DoesNotExist"}]}}
    other = node("other", labels={"apart": "yes"})
    third = node("third", spec={"unschedulable": True})
    result = fragmentation([other, third, *UNEVEN], **apart)
    assert (evicted(result), kept(result)) == ([], {"cpu": "nodeFit", "more": "nodeFit"})


def test_of_equal_pods_the_first_goes_and_only_one_per_node():
    twins = [node("n"), pod("b", "n", "1"), pod("a", "n", "1"), *EVEN]
    assert evicted(fragmentation(twins)) == ["b"]


def test_finished_pods_and_pods_that_leave_already_do_not_count():
    done = [node("n"), pod("a", "n", "3", phase="Succeeded"), pod("b", "n", "1", "2Gi"), *EVEN]
    assert evicted(fragmentation(done)) == []
    snapshot = Cluster([*EVEN, *UNEVEN]).snapshot(0)
    evictor = FakeEvictor()
    evictor.evicted["d/cpu"] = "another plugin's"
    plugin = FragmentationAware(read_args(check_args({})))
    plugin.balance(snapshot, np.arange(2, dtype=np.intp), evictor)
    # Without `cpu` the imbalance is 0.0625.
    assert evictor.evicted == {"d/cpu": "another plugin's"}


def test_the_resource_pods_counts_pods():
    full = [node("full", pods="4"), *(pod(f"p{each}", "full", "500m", "1Gi") for each in range(4)), *EVEN]
    assert evicted(fragmentation(full, resources=["cpu", "pods"])) == ["p0"]
    assert evicted(fragmentation(full, resources=["cpu", "memory"])) == []


def test_a_node_explains_its_imbalance():
    snapshot = Cluster([*EVEN, *UNEVEN]).snapshot(0)
    rows = np.arange(2, dtype=np.intp)

    def told(name: str, **args: Any) -> list[str]:
        plugin = FragmentationAware(read_args(check_args(args)))
        return [each.text for each in plugin.explain_node(snapshot, rows, name)]

    assert told("uneven") == [
        "its imbalance of cpu, memory is 0.2500, pods leave above 0.15: over by 0.1000"]
    assert told("uneven", minImprovementThreshold=1)[1:] == ["no pod's removal reduces it by more than 1"]
    assert told("even") == ["its imbalance of cpu, memory is 0.0000, pods leave above 0.15: short by 0.1500"]
    assert told("even", paused=True) == ["it is paused (`paused: true`)"]
    assert told("none") == ["`nodeSelector` does not take none"]


AMOUNTS = st.integers(0, 5000)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=4)), min_size=1, max_size=4))
def test_columns_and_single_nodes_have_equal_imbalances(nodes):
    objects = []
    for number, (cpu, memory, pods) in enumerate(nodes):
        objects.append(node(f"n{number}", cpu=f"{cpu}m" if cpu else "", memory=str(memory) if memory else ""))
        objects += [
            pod(f"p{number}-{each}", f"n{number}", f"{used}m", str(held)) for each, (used, held) in enumerate(pods)
        ]
    snapshot = Cluster(objects).snapshot(0)
    resources = ("cpu", "memory", "pods", "example.com/none")
    found = imbalances(snapshot, np.arange(snapshot.size, dtype=np.intp), resources)
    assert found.tolist() == [
        imbalance(requests_of(snapshot.pods(row), resources), snapshot.row(row).allocatable, resources)
        for row in range(snapshot.size)
    ]


@pytest.mark.parametrize(("args", "fault"), [
    ({"resources": ["cpu", "cpu"]}, "resources[1]: Duplicate value: `cpu`"),
    ({"imbalanceThreshold": -1}, "imbalanceThreshold: must be greater than or equal to 0"),
    ({"minImprovementThreshold": float("nan")}, "minImprovementThreshold: must be greater than or equal to 0"),
    ({"evictableNamespaces": {"include": ["a"], "exclude": ["b"]}},
     "evictableNamespaces: only one of Include/Exclude namespaces can be set"),
    ({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
     "nodeSelector: invalid selector: `Is` is not a valid label selector operator"),
    ({"podSelectors": [{"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]},
     "podSelectors[0].selector: invalid labelSelector , `In` on label `a` needs values"),
])
def test_invalid_arguments_are_refused_with_their_field(args, fault):
    with pytest.raises(ArgumentError) as refused:
        check_args(args)
    assert str(refused.value) == fault
