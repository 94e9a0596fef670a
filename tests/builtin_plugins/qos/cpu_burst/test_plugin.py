"""CPUBurst: static bursts and quotas of pods, on a node that is idle, busy or unmeasured."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.cpu_burst.plugin import CPUBurst, check_args
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Host
from tests.builtin_plugins.qos.readings import HOST, SECOND, PlainReadings, container, running_pod, slo

MAIN = "burstable/podweb-uid/main"
POD = "burstable/podweb-uid"
AUTO = {"policy": "auto"}


def limited(name: str = "main", cpu: str = "2") -> dict[str, Any]:
    return container(name, requests={"cpu": "1"}, limits={"cpu": cpu})


def readings(strategy: dict[str, Any] | None = None, quota: str = "200000", **given: Any) -> PlainReadings:
    files = {f"{MAIN}/cpu.cfs_burst_us": "0", f"{MAIN}/cpu.cfs_quota_us": quota,
             f"{POD}/cpu.cfs_burst_us": "0", f"{POD}/cpu.cfs_quota_us": quota}
    given = {"pods": (running_pod("web", limited()),), "usage": 1000.0, **given}
    return PlainReadings(files=files, objects=slo(cpuBurstStrategy=strategy or AUTO), **given)


def test_a_throttled_container_gets_a_static_burst_and_a_larger_quota_the_pod_first():
    given = readings(throttled={"d/web/main": 0.5})
    adjustments = CPUBurst({}).adjust(given)
    assert [(each.kind, each.subject, each.writes) for each in adjustments] == [
        ("cpuBurst", "d/web", ((f"{MAIN}/cpu.cfs_burst_us", "2000000"), (f"{POD}/cpu.cfs_burst_us", "2000000"))),
        ("cfsQuotaBurst", "d/web", ((f"{POD}/cpu.cfs_quota_us", "240000"), (f"{MAIN}/cpu.cfs_quota_us", "240000"))),
    ]
    assert adjustments[1].reason == "CFS quota on a node that is idle: main up from 200000 to 240000"
    assert adjustments[1].values == {"nodeState": "idle", "policy": "auto", "main": 240000}


def test_the_quota_falls_container_first_when_the_node_is_overloaded():
    given = readings(quota="400000", usage=9000.0, throttled={"d/web/main": 0.5})
    assert CPUBurst({}).adjust(given)[1].writes == (
        (f"{MAIN}/cpu.cfs_quota_us", "320000"), (f"{POD}/cpu.cfs_quota_us", "320000"),
    )


def test_the_quota_of_a_pod_without_one_stays():
    given = readings(throttled={"d/web/main": 0.5})
    given.files[f"{POD}/cpu.cfs_quota_us"] = "-1"
    assert CPUBurst({}).adjust(given)[1].writes == ((f"{MAIN}/cpu.cfs_quota_us", "240000"),)


def test_two_containers_change_their_pods_quota_one_after_the_other():
    given = readings(pods=(running_pod("web", limited(), limited("side", "1")),),
                     throttled={"d/web/main": 0.5, "d/web/side": 0.1})
    given.files |= {f"{POD}/cpu.cfs_quota_us": "300000", f"{POD}/side/cpu.cfs_quota_us": "100000"}
    assert CPUBurst({}).adjust(given)[1].writes == (
        (f"{POD}/cpu.cfs_quota_us", "340000"), (f"{MAIN}/cpu.cfs_quota_us", "240000"),
        (f"{POD}/cpu.cfs_quota_us", "360000"), (f"{POD}/side/cpu.cfs_quota_us", "120000"),
    )


@pytest.mark.parametrize(("qos", "phase"), [
    ("LSE", "Running"), ("LSR", "Running"), ("BE", "Running"), ("LS", "Succeeded"), ("LS", "Failed"),
])
def test_pods_with_their_own_cpus_best_effort_and_ended_pods_are_left_alone(qos, phase):
    given = readings(pods=(running_pod("web", limited(), qos=qos, phase=phase),), throttled={"d/web/main": 0.5})
    assert CPUBurst({}).adjust(given) == []


@pytest.mark.parametrize("annotation", ["{", "[]", '{"cpuBurstPercent": "many"}', '{"policy": 1}', '{"policy": ""}'])
def test_a_pod_with_a_malformed_annotation_has_the_settings_of_the_node(annotation):
    pods = (running_pod("web", limited(), annotations={"koordinator.sh/cpuBurst": annotation}),)
    assert CPUBurst({}).adjust(readings(pods=pods)) == CPUBurst({}).adjust(readings())


def test_a_pod_may_change_single_settings_of_the_node():
    annotation = json.dumps({"cpuBurstPercent": 200, "policy": "cpuBurstOnly"})
    pods = (running_pod("web", limited(), annotations={"koordinator.sh/cpuBurst": annotation}),)
    given = readings(pods=pods, throttled={"d/web/main": 0.5})
    assert [each.writes for each in CPUBurst({}).adjust(given)] == [
        ((f"{MAIN}/cpu.cfs_burst_us", "400000"), (f"{POD}/cpu.cfs_burst_us", "400000")),
    ]


def test_without_a_sample_of_the_node_no_quota_rises():
    assert len(CPUBurst({}).adjust(readings(usage=None, throttled={"d/web/main": 0.5}))) == 1
    unknown = readings(throttled={"d/web/main": 0.5}, host=Host())
    assert len(CPUBurst({}).adjust(unknown)) == 1


def test_reserved_cpus_and_their_usage_do_not_count():
    own = running_pod("own", container("main", requests={"cpu": "8"}, limits={"cpu": "8"}), qos="LSR")
    given = readings(pods=(running_pod("web", limited()), own), usage=9000.0, pod_cpu={"d/own": 7000.0},
                     throttled={"d/web/main": 0.5})
    assert CPUBurst({}).adjust(given)[1].values["nodeState"] == "idle"


def test_the_policy_none_gives_everything_back():
    given = readings({"policy": "none"}, quota="500000")
    given.files |= {f"{MAIN}/cpu.cfs_burst_us": "9", f"{POD}/cpu.cfs_burst_us": "9"}
    given.apply(CPUBurst({}).adjust(given))
    assert given.files == readings().files


def test_a_burst_beyond_what_koordlet_writes_is_left_out_in_control_groups_v1():
    large = (running_pod("web", limited(cpu="2000")),)
    files = [file for each in CPUBurst({}).adjust(readings(pods=large)) for file, _ in each.writes]
    assert [file for file in files if file.endswith("burst_us")] == []
    second = dataclasses.replace(HOST, cgroup_version=2)
    files = [file for each in CPUBurst({}).adjust(readings(pods=large, host=second)) for file, _ in each.writes]
    assert [file for file in files if file.endswith("burst_us")] == [
        f"{MAIN}/cpu.cfs_burst_us", f"{POD}/cpu.cfs_burst_us",
    ]


def test_a_container_that_spent_its_tokens_falls_back_to_its_limit():
    strategy = CPUBurst({"seed": 1})
    given = readings({**AUTO, "cfsQuotaBurstPeriodSeconds": 10}, throttled={"d/web/main": 0.5},
                     container_cpu={"d/web/main": 4000.0})
    quotas = []
    for second in range(40):
        given.now = second * SECOND
        given.apply(strategy.adjust(given))
        quotas.append(int(given.files[f"{MAIN}/cpu.cfs_quota_us"]))
    assert max(quotas) > 200_000
    assert quotas[-1] == 200_000


def test_the_first_tokens_depend_on_the_seed_and_nothing_else():
    def quotas(seed: int) -> list[str]:
        strategy, given = CPUBurst({"seed": seed}), readings(
            {**AUTO, "cfsQuotaBurstPeriodSeconds": 100}, throttled={"d/web/main": 0.5},
            container_cpu={"d/web/main": 3000.0},
        )
        found = []
        for second in range(250):
            given.now = second * SECOND
            given.apply(strategy.adjust(given))
            found.append(given.files[f"{MAIN}/cpu.cfs_quota_us"])
        return found

    assert quotas(1) == quotas(1)
    assert quotas(1) != quotas(2)


def test_a_pod_with_a_malformed_limit_costs_only_itself():
    broken = running_pod("broken", limited())
    status: Any = broken.object["spec"]["containers"][0]["resources"]["limits"]
    status["cpu"] = "two"
    given = readings(pods=(broken, running_pod("web", limited())))
    assert [each.subject for each in CPUBurst({}).adjust(given)] == ["d/web"]


def test_without_settings_nothing_is_done_and_without_a_node_slo_that_is_an_error():
    given = readings()
    given.objects = slo()
    assert CPUBurst({}).adjust(given) == ()
    given.objects = {}
    with pytest.raises(EvaluationError, match="node `n` has no NodeSLO"):
        CPUBurst({}).adjust(given)


@pytest.mark.parametrize("field", [{"cpuBurstPercent": "1"}, {"policy": 3}, {"sharePoolThresholdPercent": True}])
def test_malformed_settings_of_a_node_are_an_error_with_their_name(field):
    with pytest.raises(EvaluationError, match=rf"cpuBurstStrategy.*{next(iter(field))}"):
        CPUBurst({}).adjust(readings({**AUTO, **field}))


def test_recovering_gives_bursts_and_quotas_back_and_then_does_nothing():
    strategy, given = CPUBurst({}), readings(throttled={"d/web/main": 0.5})
    before = dict(given.files)
    given.apply(strategy.adjust(given))
    assert given.files != before
    found = strategy.recover(given)
    assert all(each.recovers for each in found)
    given.apply(found)
    assert given.files == before
    assert strategy.recover(given) == []


def test_the_explanation_names_the_state_and_the_policies():
    texts = [each.text for each in CPUBurst({}).explain_round(readings())]
    assert texts == [
        "idle: the usage of shared CPUs is 1000m of 16000m, the threshold 50%", "pods whose CPU may burst: 1 by `auto`",
    ]


@pytest.mark.parametrize("args", [{"interval": 1}, {"intervalSeconds": 0}, {"seed": "x"}, {"intervalSeconds": True}])
def test_invalid_arguments_are_refused(args):
    with pytest.raises(ValueError, match=r"intervalSeconds|seed"):
        check_args(args)


class CountingFiles(dict[str, str]):
    """Files that count how often each is looked up."""

    def __init__(self, files: dict[str, str]) -> None:
        super().__init__(files)
        self.reads: Counter[str] = Counter()

    def __getitem__(self, name: str) -> str:
        self.reads[name] += 1
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.reads[name] += 1
        return super().get(name, default)


def test_files_that_are_as_they_should_be_are_read_once_a_minute():
    strategy, given = CPUBurst({}), readings({"policy": "none"})
    given.files = files = CountingFiles(given.files)
    for second in range(60):
        given.now = second * SECOND
        assert strategy.adjust(given) == []
    assert set(files.reads.values()) == {1}
    given.now = 60 * SECOND
    files[f"{MAIN}/cpu.cfs_burst_us"] = "5"
    assert [each.writes for each in strategy.adjust(given)] == [((f"{MAIN}/cpu.cfs_burst_us", "0"),)]


def test_a_quota_that_stays_is_read_once_a_minute_and_again_as_soon_as_it_has_to_change():
    strategy, given = CPUBurst({}), readings(AUTO)
    given.apply(strategy.adjust(given))
    given.files = files = CountingFiles(given.files)
    for second in range(60, 120):
        given.now = second * SECOND
        assert strategy.adjust(given) == []
    assert files.reads[f"{MAIN}/cpu.cfs_quota_us"] == 1
    given.throttled = {"d/web/main": 0.5}
    assert (f"{MAIN}/cpu.cfs_quota_us", "240000") in list(written(strategy, given))


@pytest.mark.parametrize(("given", "quota"), [
    pytest.param({"usage": 9000.0}, "200000", id="at the limit, on a node that is overloaded"),
    pytest.param({"throttled": {"d/web/main": 0.5}}, "600000", id="at the largest burst, throttled"),
])
def test_a_quota_that_can_change_no_further_is_read_once_a_minute(given, quota):
    strategy, given = CPUBurst({}), readings(AUTO, quota, **given)
    given.apply(strategy.adjust(given))
    given.files = files = CountingFiles(given.files)
    for second in range(60, 120):
        given.now = second * SECOND
        assert strategy.adjust(given) == []
    assert files.reads[f"{MAIN}/cpu.cfs_quota_us"] == 1


def test_a_quota_is_changed_from_what_is_in_the_file_by_then():
    strategy, given = CPUBurst({}), readings(AUTO)
    given.apply(strategy.adjust(given))
    given.files[f"{MAIN}/cpu.cfs_quota_us"] = "300000"
    given.now, given.throttled = SECOND, {"d/web/main": 0.5}
    assert (f"{MAIN}/cpu.cfs_quota_us", "360000") in list(written(strategy, given))


def test_a_quota_that_was_changed_is_read_in_the_next_round():
    strategy, given = CPUBurst({}), readings(AUTO)
    given.throttled = {"d/web/main": 0.5}
    assert (f"{MAIN}/cpu.cfs_quota_us", "240000") in list(written(strategy, given))  # and the kernel refuses it
    given.now, given.throttled = SECOND, {"d/web/main": 0.0}
    given.files[f"{MAIN}/cpu.cfs_quota_us"] = "900000"
    assert (f"{MAIN}/cpu.cfs_quota_us", "600000") in list(written(strategy, given))


def test_a_static_burst_that_the_kernel_refuses_is_tried_again_after_a_minute():
    strategy, given = CPUBurst({}), readings({"policy": "cpuBurstOnly"})
    tries = []
    for second in range(130):
        given.now = second * SECOND
        tries += [second for _ in strategy.adjust(given)]
    assert tries == [0, 61, 122]


def test_a_new_version_of_a_pod_is_looked_at_at_once():
    strategy, given = CPUBurst({}), readings({"policy": "cpuBurstOnly"})
    given.apply(strategy.adjust(given))
    assert strategy.adjust(given) == []
    given.pods = (running_pod("web", limited(cpu="1")),)
    assert strategy.adjust(given)[0].writes[0] == (f"{MAIN}/cpu.cfs_burst_us", "1000000")


def states() -> st.SearchStrategy[list[tuple[float, float, float]]]:
    """Return rounds of the node's usage, the container's, and its throttling."""
    return st.lists(st.tuples(st.floats(0, 16000), st.floats(0, 8000), st.sampled_from((0.0, 0.3))), max_size=20)


@given(rounds=states(), period=st.integers(-1, 20), percent=st.integers(100, 400))
def test_quotas_stay_between_the_limit_and_the_largest_burst_and_the_pod_holds_its_container(rounds, period, percent):
    strategy = CPUBurst({})
    given = readings({**AUTO, "cfsQuotaBurstPeriodSeconds": period, "cfsQuotaBurstPercent": percent})
    for second, (usage, used, throttled) in enumerate(rounds):
        given.now, given.usage = second * SECOND, usage
        given.container_cpu, given.throttled = {"d/web/main": used}, {"d/web/main": throttled}
        for file, text in written(strategy, given):
            given.files[file] = text
            if file.endswith("quota_us"):
                quota, of_pod = (int(given.files[f"{each}/cpu.cfs_quota_us"]) for each in (MAIN, POD))
                assert 200_000 <= quota <= max(200_000 * percent // 100, 200_000)
                assert quota <= of_pod
    given.apply(strategy.recover(given))
    assert given.files == readings().files


def written(strategy: CPUBurst, given: PlainReadings) -> Iterator[tuple[str, str]]:
    for each in strategy.adjust(given):
        yield from each.writes
