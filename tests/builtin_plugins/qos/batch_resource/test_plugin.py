"""BatchResource: shares, quotas and memory limits of best-effort pods."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.batch_resource.plugin import (
    BatchResource,
    memory_limit_of,
    normalization_ratio,
    quota_of,
    shares_of,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo
from tests.builtin_plugins.qos.readings import PlainReadings, container, running_pod, slo

GIB = 2**30
DIRECTORY = "besteffort/podtrain-uid"


def batch(name: str, cpu: int, memory: int, *, limited: bool = True) -> dict[str, Any]:
    amounts = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}
    return container(name, requests=amounts, limits=amounts if limited else {})


def train(*containers: dict[str, Any]) -> PodInfo:
    return running_pod("train", *containers, qos="BE", kube="BestEffort")


def readings(*pods: PodInfo, **threshold: Any) -> PlainReadings:
    given = PlainReadings(pods=pods, objects=slo(resourceUsedThresholdWithBE=threshold))
    for pod in pods:
        for directory in (given.directory(pod), *(given.directory(pod, each["name"])
                                                  for each in pod.object["spec"]["containers"])):
            given.files |= {f"{directory}/cpu.shares": "2", f"{directory}/cpu.cfs_quota_us": "-1",
                            f"{directory}/memory.limit_in_bytes": "-1"}
    return given


def values(given: PlainReadings, directory: str) -> tuple[str, ...]:
    return tuple(given.files[f"{directory}/{name}"]
                 for name in ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"))


@pytest.mark.parametrize(("milli", "shares"), [(0, 2), (1, 2), (1000, 1024), (1500, 1536), (10**9, 262144)])
def test_shares_follow_the_request(milli: int, shares: int) -> None:
    assert shares_of(milli) == shares


@pytest.mark.parametrize(("limits", "ratio", "quota"), [
    ([1000, 500], 1.0, 150_000), ([1000, 0], 1.0, -1), ([1], 1.0, 1000), ([1000], 1.5, 66_667), ([1000], 0.5, 100_000),
])
def test_quotas_follow_the_limits_and_the_speed_of_the_node(limits: list[int], ratio: float, quota: int) -> None:
    assert quota_of(limits, ratio) == quota


@pytest.mark.parametrize(("annotation", "ratio"), [
    (None, 1), ("1.20", 1.2), ("fast", 1), ("nan", 1), ("-2", 1), ("inf", 1),
])
def test_a_ratio_that_cannot_be_read_is_1(annotation: str | None, ratio: float) -> None:
    annotations = {} if annotation is None else {"node.koordinator.sh/cpu-normalization-ratio": annotation}
    assert normalization_ratio({"metadata": {"annotations": annotations}}) == ratio


def test_memory_is_unlimited_where_one_container_is() -> None:
    assert (memory_limit_of([1, 2]), memory_limit_of([1, 0])) == (3, -1)


def test_a_pod_has_the_sums_of_its_containers() -> None:
    given = readings(train(batch("a", 1000, GIB), batch("b", 500, GIB)))
    given.apply(BatchResource({}).adjust(given))
    assert [values(given, directory) for directory in (DIRECTORY, f"{DIRECTORY}/a", f"{DIRECTORY}/b")] == [
        ("1536", "150000", str(2 * GIB)), ("1024", "100000", str(GIB)), ("512", "50000", str(GIB)),
    ]


def test_a_pod_with_an_unlimited_container_is_unlimited() -> None:
    given = readings(train(batch("a", 1000, GIB), batch("b", 500, GIB, limited=False)))
    given.apply(BatchResource({}).adjust(given))
    assert values(given, DIRECTORY) == ("1536", "-1", "-1")
    assert values(given, f"{DIRECTORY}/a") == ("1024", "100000", str(GIB))


def test_pods_have_no_quota_while_the_tier_has_one() -> None:
    given = readings(train(batch("a", 1000, GIB)), enable=True, cpuSuppressPolicy="cfsQuota")
    given.apply(BatchResource({}).adjust(given))
    assert values(given, DIRECTORY) == ("1024", "-1", str(GIB))


def test_pods_of_other_classes_and_without_batch_resources_are_left_alone() -> None:
    given = readings(train(container("a")), running_pod("web", batch("a", 1000, GIB), qos="LS"))
    assert BatchResource({}).adjust(given) == ()


def test_a_pod_with_a_malformed_amount_costs_only_itself() -> None:
    broken = running_pod("broken", batch("a", 1, GIB), qos="BE", kube="BestEffort")
    limits: Any = broken.object["spec"]["containers"][0]["resources"]["limits"]
    limits["kubernetes.io/batch-cpu"] = "many"
    given = readings(broken, train(batch("a", 1000, GIB)))
    assert {each.subject for each in BatchResource({}).adjust(given)} == {"d/train"}


def test_recovering_restores_the_former_values_and_a_second_round_does_nothing() -> None:
    plugin, given = BatchResource({}), readings(train(batch("a", 1000, GIB)))
    before = dict(given.files)
    given.apply(plugin.adjust(given))
    assert plugin.adjust(given) == ()
    given.apply(plugin.recover(given))
    assert given.files == before
