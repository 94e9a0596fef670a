"""CgroupReconcile: memory QoS of tiers, pods and containers, in the order of the hierarchy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.cgroup_reconcile.plugin import CgroupReconcile, check_args
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from tests.builtin_plugins.qos.readings import HOST, SECOND, PlainReadings, container, running_pod, slo

GIB = 2**30
TIERS = {"Guaranteed": "guaranteed", "Burstable": "burstable", "BestEffort": "besteffort"}
FILES = ("memory.min", "memory.low", "memory.high")


def sized(name: str = "main", gib: int = 1) -> dict[str, Any]:
    return container(name, requests={"memory": f"{gib}Gi"}, limits={"memory": f"{gib}Gi"})


def readings(*pods: PodInfo, **classes: dict[str, int]) -> PlainReadings:
    strategy = {name: {"memoryQOS": settings} for name, settings in classes.items()}
    given = PlainReadings(pods=pods, objects=slo(resourceQOSStrategy=strategy),
                          host=dataclasses.replace(HOST, cgroup_version=2))
    directories = [*TIERS.values()]
    for pod in pods:
        directories += [given.directory(pod), *(given.directory(pod, each["name"])
                                                for each in pod.object["spec"]["containers"])]
    given.files = {f"{directory}/{name}": "max" if name == "memory.high" else "0"
                   for directory in directories for name in FILES}
    return given


def test_protection_grows_from_the_tier_to_the_container_and_shrinks_the_other_way() -> None:
    given = readings(running_pod("web", sized()), lsClass={"minLimitPercent": 50})
    strategy = CgroupReconcile({})
    adjustments = strategy.adjust(given)
    half = str(GIB // 2)
    assert [(each.subject, each.writes) for each in adjustments] == [
        ("n", (("guaranteed/memory.min", half), ("burstable/memory.min", half))),
        ("d/web", (("burstable/podweb-uid/memory.min", half), ("burstable/podweb-uid/main/memory.min", half))),
    ]
    given.apply(adjustments)
    given.objects = slo(resourceQOSStrategy={"lsClass": {"memoryQOS": {"minLimitPercent": 0}}})
    assert given.apply(strategy.adjust(given)) == [
        ("burstable/podweb-uid/main/memory.min", "0"), ("burstable/podweb-uid/memory.min", "0"),
        ("burstable/memory.min", "0"), ("guaranteed/memory.min", "0"),
    ]


def test_every_class_gets_its_own_settings_and_the_guaranteed_directory_the_sum_of_all() -> None:
    batch = container("main", requests={"kubernetes.io/batch-memory": GIB}, limits={"kubernetes.io/batch-memory": GIB})
    given = readings(
        running_pod("own", sized(gib=4), qos="LSR", kube="Guaranteed"), running_pod("web", sized(gib=2)),
        running_pod("train", batch, qos="BE", kube="BestEffort"),
        lsrClass={"lowLimitPercent": 100}, lsClass={"lowLimitPercent": 50}, beClass={"throttlingPercent": 80},
    )
    given.apply(CgroupReconcile({}).adjust(given))
    changed = {file: text for file, text in given.files.items() if text not in ("0", "max")}
    assert changed == {
        "guaranteed/memory.low": str(5 * GIB), "burstable/memory.low": str(GIB),
        "guaranteed/podown-uid/memory.low": str(4 * GIB), "guaranteed/podown-uid/main/memory.low": str(4 * GIB),
        "burstable/podweb-uid/memory.low": str(GIB), "burstable/podweb-uid/main/memory.low": str(GIB),
        "besteffort/podtrain-uid/main/memory.high": str(GIB),
    }


def test_ended_pods_and_containers_without_an_id_are_left_alone() -> None:
    ended = running_pod("ended", sized(), phase="Succeeded")
    starting = running_pod("starting", sized())
    status: Any = starting.object["status"]
    status["containerStatuses"] = []
    given = readings(ended, starting, lsClass={"minLimitPercent": 50})
    files = [file for file, _ in given.apply(CgroupReconcile({}).adjust(given))]
    assert files == ["guaranteed/memory.min", "burstable/memory.min", "burstable/podstarting-uid/memory.min"]


def test_a_pod_with_a_malformed_amount_costs_only_itself() -> None:
    broken, web = running_pod("broken", sized()), running_pod("web", sized())
    limits: Any = broken.object["spec"]["containers"][0]["resources"]["limits"]
    limits["memory"] = "much"
    given = readings(broken, web, lsClass={"minLimitPercent": 50})
    assert [each.subject for each in CgroupReconcile({}).adjust(given)] == ["n", "d/web"]


def test_files_are_looked_at_again_once_a_minute_and_new_containers_after_five_seconds() -> None:
    given = readings(running_pod("web", sized()), lsClass={"minLimitPercent": 50})
    strategy = CgroupReconcile({})
    missing = "burstable/podweb-uid/main/memory.min"
    del given.files[missing]
    given.apply(strategy.adjust(given))
    given.now = SECOND
    assert strategy.adjust(given) == ()
    given.files[missing] = "0"
    given.now = 6 * SECOND
    assert given.apply(strategy.adjust(given)) == [(missing, str(GIB // 2))]
    given.now = 7 * SECOND
    assert strategy.adjust(given) == ()
    given.files[missing] = "0"
    given.now = 66 * SECOND
    assert strategy.adjust(given) == ()
    given.now = 67 * SECOND
    assert given.apply(strategy.adjust(given)) == [(missing, str(GIB // 2))]


def test_tiers_are_looked_at_once_a_minute_missing_ones_after_five_seconds_and_after_any_change_of_pods() -> None:
    given = readings(running_pod("web", sized()), running_pod("own", sized()), lsClass={"minLimitPercent": 50})
    strategy, tier, written = CgroupReconcile({}), "burstable/memory.min", {}
    del given.files[tier]
    for second in range(80):
        given.now = second * SECOND
        if second in (2, 8, 70):
            given.files[tier] = "0"
        if second == 75:
            given.pods = given.pods[:1]
        written[second] = [text for file, text in given.apply(strategy.adjust(given)) if file == tier]
    assert {second: texts for second, texts in written.items() if texts} == {
        6: [str(GIB)], 67: [str(GIB)], 75: [str(GIB // 2)],
    }


def test_without_settings_nothing_is_done_and_without_a_node_slo_that_is_an_error() -> None:
    given = readings(running_pod("web", sized()))
    given.objects = slo()
    assert CgroupReconcile({}).adjust(given) == ()
    given.objects = {}
    with pytest.raises(EvaluationError, match="node `n` has no NodeSLO"):
        CgroupReconcile({}).adjust(given)


def test_malformed_settings_of_a_class_are_an_error() -> None:
    with pytest.raises(EvaluationError, match=r"the NodeSLO: `resourceQOSStrategy\.lsClass\.memoryQOS`"):
        CgroupReconcile({}).adjust(readings(lsClass={"minLimitPercent": True}))


def test_the_explanation_names_what_tiers_are_given() -> None:
    given = readings(running_pod("web", sized()), lsClass={"minLimitPercent": 50})
    assert [each.text for each in CgroupReconcile({}).explain_round(given)] == [
        f"guaranteed: memory.min {GIB // 2}", f"burstable: memory.min {GIB // 2}",
    ]


@pytest.mark.parametrize("args", [{"interval": 1}, {"intervalSeconds": 0}, {"intervalSeconds": True}])
def test_invalid_arguments_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="intervalSeconds"):
        check_args(args)


PERCENTS = st.fixed_dictionaries({}, optional={
    "minLimitPercent": st.integers(0, 100), "lowLimitPercent": st.integers(0, 100),
    "throttlingPercent": st.integers(0, 100),
})
PODS = st.lists(st.tuples(st.sampled_from((("LSR", "Guaranteed"), ("LS", "Burstable"), ("BE", "BestEffort"))),
                          st.integers(1, 8)), max_size=4)


@given(pods=PODS, rounds=st.lists(st.tuples(PERCENTS, PERCENTS, PERCENTS), min_size=1, max_size=4))
def test_every_round_settles_no_child_is_ever_protected_beyond_its_parent_and_all_is_given_back(pods, rounds) -> None:
    infos = [running_pod(f"p{number}", sized(gib=gib), qos=qos, kube=kube)
             for number, ((qos, kube), gib) in enumerate(pods)]
    node, strategy = readings(*infos), CgroupReconcile({})
    before = dict(node.files)
    for number, (lsr, ls, be) in enumerate(rounds):
        node.now = number * SECOND
        node.objects = slo(resourceQOSStrategy={
            name: {"memoryQOS": settings} for name, settings in (("lsrClass", lsr), ("lsClass", ls), ("beClass", be))
        })
        write(node, strategy.adjust(node))
        assert strategy.adjust(node) == ()
    write(node, strategy.recover(node))
    assert node.files == before
    assert strategy.recover(node) == ()


def write(node: PlainReadings, adjustments: Any) -> None:
    for each in adjustments:
        for file, text in each.writes:
            node.files[file] = "max" if text == str(2**63 - 1) else text  # as the kernel prints it
            directory, _, name = file.rpartition("/")
            parent = directory.rpartition("/")[0] or "guaranteed"
            if directory != "guaranteed" and name == "memory.min":
                assert int(node.files[f"{parent}/{name}"]) >= int(text)
