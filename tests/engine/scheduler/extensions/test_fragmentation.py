from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.sources.trace import TraceNode, TracePod
from koordpolicy.engine.scheduler.extensions.fragmentation import (
    Fragmentation,
    FragmentTable,
    TypicalPod,
    fragment,
    typical_pods,
)


def typical(cpu=1000, milli=500, gpus=1, models=(), probability=1.0):
    return TypicalPod(cpu, milli, gpus, frozenset(models), probability)


@pytest.mark.parametrize(("pod", "amounts"), [
    (typical(), (300.0, 1800.0)),  # a device of 300 is too small, the others would do
    (typical(milli=1000, gpus=2), (1800.0, 1800.0)),  # not enough devices
    (typical(cpu=9000), (1800.0, 1800.0)),  # not enough cpu
    (typical(cpu=9000, milli=1000, gpus=3), (1800.0, 1800.0)),  # neither
    (typical(milli=0, gpus=0), (1800.0, 1800.0)),  # wants no GPU, so all of it is idle for it
    (typical(cpu=9000, milli=0, gpus=0), (1800.0, 1800.0)),
    (typical(models=["P100"]), (1800.0, 1800.0)),  # may not use it
    (typical(models=["T4", "P100"]), (300.0, 1800.0)),
])
def test_what_a_typical_pod_cannot_use_is_fragmented(pod, amounts):
    assert fragment([pod], 8000, [300, 500, 1000], "T4") == amounts


def test_amounts_are_weighed_by_probability():
    pods = [typical(probability=0.75), typical(cpu=9000, probability=0.25)]
    assert fragment(pods, 8000, [300, 500, 1000], "T4") == (0.75 * 300 + 0.25 * 1800, 1800.0)


def test_a_node_without_idle_gpu_has_nothing_to_waste():
    assert fragment([typical()], 8000, [0, 0], "T4") == (0.0, 0.0)


def test_the_commonest_shapes_that_cover_95_percent_are_typical():
    pods = [TracePod(f"a{n}", 1000, n, 1, 500) for n in range(60)]  # memory makes no shape of its own
    pods += [TracePod(f"b{n}", 2000, 1) for n in range(36)]
    pods += [TracePod("c", 3000, 1, 2, 1000, ("T4", "P100")), TracePod("d", 3000, 1, 2, 1000, ("P100", "T4"))]
    pods += [TracePod("e", 1, 1), TracePod("f", 2, 1)]
    assert typical_pods(pods) == (
        typical(1000, 500, 1, probability=0.6 / 0.96), typical(2000, 0, 0, probability=0.36 / 0.96),
    )


def test_where_every_shape_is_needed_the_probabilities_are_the_shares():
    pods = [TracePod("a", 1000, 1), TracePod("b", 2000, 1, 1, 1000, ("T4",))]
    assert typical_pods(pods) == (typical(2000, 1000, 1, ["T4"], 0.5), typical(1000, 0, 0, probability=0.5))
    assert typical_pods([]) == ()


def test_the_fragmentation_of_a_cluster_follows_its_nodes():
    nodes = [TraceNode("a", 8000, 1, 2, "T4"), TraceNode("b", 500, 1, 1, "T4")]
    cluster = Fragmentation([typical()], nodes)
    assert cluster.amounts == (1000.0, 3000.0)
    cluster.update(0, 4000, [200, 1000])
    assert cluster.amounts == (1200.0, 2200.0)


def test_a_table_returns_what_fragment_returns_of_states_that_share_a_result():
    pods = [typical(cpu=4000, milli=500, probability=0.5), typical(cpu=2000, milli=0, gpus=0, probability=0.3),
            typical(cpu=4000, milli=1000, gpus=2, models=["P100"], probability=0.2)]
    table = FragmentTable(pods)
    states = [(cpu, free, model) for cpu in (0, 1999, 2000, 3999, 4000, 9000) for model in ("T4", "P100")
              for free in ([300, 1000, 1000], [1000, 300, 1000], [0, 400, 500])]
    for _ in range(2):
        assert [table.amounts(*state) for state in states] == [fragment(pods, *state) for state in states]
