from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.plugin import CycleState

MODEL = "alibabacloud.com/gpu-card-model"


@pytest.fixture
def cluster(kit):
    """a: no GPU; b: two T4, 600 and 1000 free; c: four P100, 300, 500, 500 and 1000 free."""
    cluster = kit.cluster(
        kit.node("a"), kit.node("b", gpus=2, labels={MODEL: "T4"}), kit.node("c", gpus=4, labels={MODEL: "P100"}),
    )
    cluster.assume(kit.gpu_pod("one", 1, 400), "b", (0,))
    for device, milli in ((0, 700), (1, 500), (2, 500)):
        cluster.assume(kit.gpu_pod(f"c{device}", 1, milli), "c", (device,))
    return cluster


def chosen(plugin, pod, cluster, name):
    state, snapshot = CycleState(), cluster.snapshot()
    refusal = plugin.reserve(state, pod, snapshot, snapshot.index[name])
    return refusal.message if refusal else state.get(ReservedDevices)


@pytest.mark.parametrize(("count", "milli", "models", "names"), [
    (1, 500, "", ["b", "c"]), (1, 601, "", ["b", "c"]), (1, 1000, "", ["b", "c"]), (2, 1000, "", []),
    (2, 600, "", ["b"]),
    (3, 500, "", ["c"]), (1, 100, "P100", ["c"]), (1, 100, "P100|T4", ["b", "c"]), (1, 100, "A10", []),
])
def test_enough_devices_of_an_accepted_model_have_the_share_free(kit, cluster, count, milli, models, names):
    assert kit.passed(kit.make("GpuShare"), kit.gpu_pod("p", count, milli, models), cluster) == names


def test_pods_without_gpus_pass_everywhere_and_get_nothing(kit, cluster):
    plugin = kit.make("GpuShare")
    assert kit.passed(plugin, kit.pod(), cluster) == ["a", "b", "c"]
    assert chosen(plugin, kit.pod(), cluster, "b") is None


def test_reasons_tell_no_device_from_the_wrong_one_and_from_a_full_one(kit, cluster):
    plugin, pod = kit.make("GpuShare"), kit.gpu_pod("p", 2, 1000, "T4")
    assert kit.reasons(plugin, pod, cluster) == {
        "node(s) had no GPU": ["a"], "node(s) had no GPU of a model that the pod accepts": ["c"],
        "Insufficient GPU": ["b"],
    }
    refusal = kit.refusal(plugin, pod, cluster, "b")
    assert (refusal.code, refusal.values) == (
        Code.UNSCHEDULABLE, (("count", 2), ("share", 1000), ("free", [600, 1000, 0, 0])),
    )
    assert kit.refusal(plugin, kit.gpu_pod("p", 3, 1000), cluster, "b").code is Code.UNRESOLVABLE


@pytest.mark.parametrize(("count", "milli", "devices"), [
    (1, 200, (0,)), (1, 400, (1,)), (1, 501, (3,)), (1, 1000, (3,)), (2, 300, (0, 1)), (3, 500, (1, 2, 3)),
])
def test_the_tightest_devices_are_taken_the_lowest_number_on_ties(kit, cluster, count, milli, devices):
    assert chosen(kit.make("GpuShare"), kit.gpu_pod("p", count, milli), cluster, "c") == devices


def test_random_devices_fit_too_and_follow_from_the_seed(kit, cluster):
    def draw(seed):
        plugin = kit.make("GpuShare", seed=seed, select="random")
        return [chosen(plugin, kit.gpu_pod("p", 1, 400), cluster, "c") for _ in range(20)]

    assert set(draw(1)) == {(1,), (2,), (3,)}
    assert draw(1) == draw(1) != draw(2)


def test_a_node_that_has_filled_up_meanwhile_is_refused(kit, cluster):
    assert chosen(kit.make("GpuShare"), kit.gpu_pod("p", 2), cluster, "b") == "Insufficient GPU"


def test_what_was_reserved_can_be_given_back_more_than_once(kit, cluster):
    plugin, state, snapshot = kit.make("GpuShare"), CycleState(), cluster.snapshot()
    plugin.reserve(state, kit.gpu_pod(), snapshot, 1)
    for _ in range(2):
        plugin.unreserve(state, kit.gpu_pod(), snapshot, 1)
    assert state == {}


def test_an_unknown_way_to_select_is_refused(kit):
    with pytest.raises(ValueError, match="`select` is `worst`, expected `best` or `random`"):
        kit.make("GpuShare", select="worst")


def test_a_request_that_nothing_can_give_is_refused_everywhere_with_its_fault(kit, cluster):
    pod = kit.pod(requests={"koordinator.sh/gpu": "150"})
    assert kit.passed(kit.make("GpuShare"), pod, cluster) == []
    refusal = kit.refusal(kit.make("GpuShare"), pod, cluster, "b")
    assert refusal.message.startswith("150 percent of `koordinator.sh/gpu` cannot be split into 2 equal devices")
