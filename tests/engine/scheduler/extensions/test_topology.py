from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.extensions.topology import (
    NumaState,
    TopologyDemand,
    admit,
    affinity_of,
    mask_of,
    masks,
    merge,
    nodes_of,
)
from koordpolicy.plugin import CycleState, TopologyHint

POD = PodInfo.of({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})


def hint(mask, *, preferred=True, score=0):
    return TopologyHint(mask, preferred, score)


def test_masks_come_by_size_and_then_by_node():
    assert list(masks([0, 1, 3])) == [1, 2, 8, 3, 9, 10, 11]
    assert (mask_of([0, 3]), nodes_of(9)) == (9, [0, 3])


@pytest.mark.parametrize(("policy", "hints", "expected"), [
    # One set suits all: the narrowest, then the one of the lowest number, then the one with the higher score.
    ("Restricted", [{"cpu": [hint(1), hint(2), hint(3, preferred=False)]}], (hint(1), [])),
    ("Restricted", [{"cpu": [hint(1, score=5), hint(2, score=9)]}], (hint(2, score=9), [])),
    ("Restricted", [{"cpu": [hint(1), hint(2)], "gpu": [hint(2)]}], (hint(2), [])),
    # No common set: both are named.
    (
        "Restricted", [{"cpu": [hint(1)]}, {"gpu": [hint(2)]}],
        (
            hint(3, preferred=False),
            ["Unaligned NUMA Hint cause cpu prefer [01] among [01] & gpu prefer [10] among [10]"],
        ),
    ),
    (
        "SingleNUMANode", [{"cpu": [hint(1)]}, {"gpu": [hint(2)]}],
        (
            TopologyHint(None, False),
            ["Unaligned NUMA Hint cause cpu prefer [01] among [01],gpu prefer [10] among [10]"],
        ),
    ),
    ("BestEffort", [{"cpu": [hint(1)]}, {"gpu": [hint(2)]}], (hint(3, preferred=False), [])),
    # Wide sets are no single node.
    ("SingleNUMANode", [{"cpu": [hint(3)]}], (
        TopologyHint(None, False), ["Unaligned NUMA Hint cause cpu prefer [11] among [11]"])),
    # What nothing satisfies.
    ("Restricted", [{"cpu": []}], (hint(3, preferred=False), ["Unsatisfied NUMA cpu"])),
    ("SingleNUMANode", [{"cpu": []}], (TopologyHint(None, False), ["Unsatisfied NUMA cpu"])),
    ("BestEffort", [{"cpu": []}], (hint(3, preferred=False), [])),
    # Who does not care decides nothing.
    ("Restricted", [{}, {"cpu": None}, {"gpu": [hint(2)]}], (hint(2), [])),
    ("SingleNUMANode", [{}], (TopologyHint(None, True), [])),
])
def test_one_set_of_numa_nodes_is_chosen_by_policy(policy, hints, expected):
    assert merge(hints, TopologyDemand([0, 1], policy)) == expected


@pytest.mark.parametrize(("states", "exclusive", "admitted"), [
    ({0: NumaState.SHARED}, "Required", False), ({0: NumaState.SHARED}, "", True),
    ({0: NumaState.SINGLE}, "Required", True),
])
def test_a_pod_that_must_not_share_avoids_numa_nodes_of_pods_that_span_several(states, exclusive, admitted):
    _, reasons = merge([{"cpu": [hint(1)]}], TopologyDemand([0, 1], "Restricted", exclusive, states))
    assert (not reasons) is admitted


class Provider:
    def __init__(self, hints, refusal=None):
        self.hints = hints
        self.refusal = refusal
        self.asked = []

    def topology_hints(self, state, pod, snapshot, row):
        self.asked.append("hints")
        return self.hints

    def allocate_by_topology(self, state, pod, snapshot, row, affinity):
        self.asked.append(affinity.mask)
        return self.refusal


def test_an_affinity_is_chosen_once_per_view_of_a_node_and_tried_by_everybody():
    cluster = Cluster([{"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {}}}])
    snapshot, state = cluster.snapshot(), CycleState()
    first, second = Provider({"cpu": [hint(1)]}), Provider({})
    demand = TopologyDemand([0, 1], "Restricted")
    for _ in range(2):
        assert admit(state, POD, snapshot, 0, providers=(first, second), demand=demand) is None
    assert (first.asked, second.asked) == (["hints", 1, 1], ["hints", 1, 1])
    assert affinity_of(state, snapshot, 0) == hint(1)
    other = snapshot.overlay({"a": NodeChange(add=(POD,))})
    assert affinity_of(state, other, 0) is None
    twin = state.clone()
    admit(twin, POD, other, 0, providers=(first,), demand=demand)
    assert affinity_of(state, other, 0) is None
    assert first.asked[3:] == ["hints", 1]


def test_what_a_provider_refuses_is_the_reason():
    cluster = Cluster([{"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {}}}])
    demand, state = TopologyDemand([0], "Restricted"), CycleState()
    refusing = Provider(Refusal("x", "no hints"))
    assert admit(state, POD, cluster.snapshot(), 0, providers=(refusing, refusing), demand=demand) == Refusal(
        "topology", "no hints, no hints")
    unable = Provider({"cpu": [hint(1)]}, Refusal("x", "gone", Code.UNRESOLVABLE))
    assert admit(state, POD, cluster.snapshot(), 0, providers=(unable,), demand=demand).message == "gone"
    assert affinity_of(state, cluster.snapshot(), 0) is None


HINTS = st.lists(st.builds(TopologyHint, st.integers(1, 7), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None)
@given(st.lists(HINTS, min_size=1, max_size=3))
def test_merging_step_by_step_finds_what_all_combinations_hold(lists):
    """Against the definition: every combination of one hint per resource, in their order."""
    best, satisfied = TopologyHint(7, False), True
    for chosen in product(*lists):
        mask = 7
        for each in chosen:
            mask &= each.mask
        if not mask:
            continue
        preferred = all(each.preferred and each.mask == chosen[0].mask for each in chosen)
        score = sum(each.score for each in chosen if each.mask == mask)
        key, other = (mask.bit_count(), mask), (best.mask.bit_count(), best.mask)
        better = key < other or (key[0] == other[0] and score > best.score)
        if preferred if preferred != best.preferred else better:
            best = TopologyHint(mask, preferred, score)
            satisfied = max(each.mask.bit_count() for each in chosen) == mask.bit_count()
    hints = [{f"r{number}": found} for number, found in enumerate(lists)]
    assert merge(hints, TopologyDemand([0, 1, 2], "Restricted"))[0] == best
    assert merge(hints, TopologyDemand([0, 1, 2], "BestEffort"))[0] == (best if satisfied else TopologyHint(7, False))
