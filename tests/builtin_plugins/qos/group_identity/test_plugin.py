"""GroupIdentity: the scheduling priority of tiers, pods and host applications."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.group_identity.plugin import GroupIdentity, check_args
from koordpolicy.engine.cel.values.values import EvaluationError
from tests.builtin_plugins.qos.readings import PlainReadings, container, running_pod, slo

FILE = "cpu.bvt_warp_ns"
PODS = (
    running_pod("own", container("c"), qos="LSE", kube="Guaranteed"),
    running_pod("web", container("c"), qos="LS"),
    running_pod("train", container("c"), qos="BE", kube="BestEffort"),
    running_pod("daemon", container("c"), qos="SYSTEM"),
    running_pod("plain", container("c"), qos="", kube="Guaranteed"),
    running_pod("free", container("c"), qos="", kube="BestEffort"),
)


def strategy(policy: str = "", **enabled: bool) -> dict[str, Any]:
    values = {"lsrClass": 2, "lsClass": 1, "beClass": -1}
    return {"policies": {"cpuPolicy": policy}, **{
        name: {"cpuQOS": {"enable": enabled.get(name, True), "groupIdentity": value}} for name, value in values.items()
    }}


def readings(of: dict[str, Any] | None = None, **sections: Any) -> PlainReadings:
    given = PlainReadings(pods=PODS, objects=slo(resourceQOSStrategy=of or strategy(), **sections))
    directories = ["guaranteed", "burstable", "besteffort", "applications/nginx", *map(given.directory, PODS)]
    given.files = {f"{directory}/{FILE}": "0" for directory in directories}
    given.files["proc/sys/kernel/sched_group_identity_enabled"] = "0"
    return given


def identities(given: PlainReadings) -> dict[str, str]:
    return {name.removesuffix(f"/{FILE}"): text for name, text in given.files.items() if text != "0"}


def test_each_class_has_its_identity() -> None:
    given = readings(hostApplications=[{"name": "nginx", "qos": "LS"}])
    given.apply(GroupIdentity({}).adjust(given))
    assert identities(given) == {
        "burstable": "1", "besteffort": "-1", "guaranteed/podown-uid": "2", "burstable/podweb-uid": "1",
        "besteffort/podtrain-uid": "-1", "guaranteed/podplain-uid": "2", "besteffort/podfree-uid": "-1",
        "applications/nginx": "1", "proc/sys/kernel/sched_group_identity_enabled": "1",
    }


def test_a_class_that_is_not_enabled_has_none_and_guaranteed_pods_that_of_ls() -> None:
    given = readings(strategy(lsrClass=False, beClass=False))
    given.apply(GroupIdentity({}).adjust(given))
    assert identities(given) == {
        "burstable": "1", "burstable/podweb-uid": "1", "guaranteed/podplain-uid": "1",
        "proc/sys/kernel/sched_group_identity_enabled": "1",
    }


def test_another_cpu_policy_gives_all_identities_back() -> None:
    plugin, given = GroupIdentity({}), readings()
    before = dict(given.files)
    given.apply(plugin.adjust(given))
    given.objects = slo(resourceQOSStrategy=strategy("coreSched"))
    given.apply(plugin.adjust(given))
    assert given.files == before


def test_core_scheduling_is_switched_off_and_the_kernels_switch_left_to_the_node_slo_that_sets_it() -> None:
    given = readings(systemStrategy={"schedGroupIdentityEnabled": 0})
    given.files["proc/sys/kernel/sched_core"] = "1"
    given.apply(GroupIdentity({}).adjust(given))
    assert given.files["proc/sys/kernel/sched_core"] == "0"
    assert given.files["proc/sys/kernel/sched_group_identity_enabled"] == "0"


def test_recovering_restores_the_former_identities() -> None:
    plugin, given = GroupIdentity({}), readings()
    before = dict(given.files)
    given.apply(plugin.adjust(given))
    assert plugin.adjust(given) == ()
    given.apply(plugin.recover(given))
    assert given.files == before
    assert plugin.recover(given) == ()


def test_malformed_settings_are_an_error_and_no_settings_are_none() -> None:
    wrong = strategy()
    wrong["lsClass"]["cpuQOS"]["groupIdentity"] = "2"
    with pytest.raises(EvaluationError, match=r"`resourceQOSStrategy\.lsClass\.cpuQOS\.groupIdentity`"):
        GroupIdentity({}).adjust(readings(wrong))
    given = readings()
    given.objects = slo()
    assert GroupIdentity({}).adjust(given) == ()
    given.objects = {}
    with pytest.raises(EvaluationError, match="has no NodeSLO"):
        GroupIdentity({}).adjust(given)


@pytest.mark.parametrize("args", [{"interval": 1}, {"intervalSeconds": 0}])
def test_invalid_arguments_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="intervalSeconds"):
        check_args(args)


def test_rounds_are_ten_seconds_apart_unless_said_otherwise() -> None:
    assert (GroupIdentity({}).interval, GroupIdentity({"intervalSeconds": 2}).interval) == (10 * 10**9, 2 * 10**9)
