from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl, check_args
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Host
from tests.builtin_plugins.qos.machine import Machine, pod

HOST = Host(vendor="GenuineIntel", flags=frozenset(("cat_l3", "mba")), cbm_mask="7ff", l3_caches=(0, 1))
FULL = "    MB:0=100;1=100\n    L3:0=7ff;1=7ff"
GROUPS = {f"resctrl/{group}/schemata": FULL for group in ("LSR", "LS", "BE")}
TASKS = {"besteffort/podtrain/main/tasks": "12\n7", "besteffort/podtrain/sandbox/cgroup.procs": "3"}


def strategy(**classes: dict[str, Any]) -> dict[str, Any]:
    return {"resourceQOSStrategy": {name: {"resctrlQOS": section} for name, section in classes.items()}}


def limits(start: int | None, end: int | None, bandwidth: int | None, *, enable: bool = True) -> dict[str, Any]:
    return {"enable": enable, "catRangeStartPercent": start, "catRangeEndPercent": end, "mbaPercent": bandwidth}


def test_a_class_gets_its_range_and_share_and_its_pods_are_moved() -> None:
    machine = Machine(strategy(beClass=limits(0, 30, 45)), {**GROUPS, **TASKS, "resctrl/BE/tasks": "7"},
                      host=HOST, pods=[pod("train"), pod("web", "LS")])
    plugin = RdtResctrl({})
    assert machine.after(plugin.adjust) == [
        ("BE", False, (("resctrl/BE/schemata", "L3:0=f;1=f;\n"), ("resctrl/BE/schemata", "MB:0=50;1=50;\n"))),
        ("d/train", False, (("resctrl/BE/tasks", "3"), ("resctrl/BE/tasks", "12"))),
    ]
    assert machine.files["resctrl/BE/schemata"] == "MB:0=50;1=50\nL3:0=f;1=f"
    assert machine.after(plugin.adjust) == []


def test_tasks_of_a_known_pod_are_looked_at_every_ten_seconds_and_those_of_new_containers_at_once() -> None:
    machine = Machine(strategy(beClass=limits(0, 100, 100)), {**GROUPS, **TASKS, "resctrl/BE/tasks": "3\n7\n12"},
                      host=HOST, pods=[pod("train")])
    plugin = RdtResctrl({})
    found = []
    for second in range(22):
        machine.now = second * 10**9
        if second == 5:
            machine.files["besteffort/podtrain/main/tasks"] += "\n20"
        if second == 15:
            machine.files["besteffort/podtrain/main/tasks"] = "30"
            restarted = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://b"}]}
            machine.run_pods([{**pod("train"), "status": restarted}])
        found += [(second, [text for _, text in writes]) for _, _, writes in machine.after(plugin.adjust)]
    assert found == [(10, ["20"]), (15, ["30"])]


def test_a_disabled_class_gets_everything_back_and_its_tasks_stay() -> None:
    machine = Machine(strategy(beClass=limits(0, 30, 45)), {**GROUPS, **TASKS}, host=HOST, pods=[pod("train")])
    plugin = RdtResctrl({})
    machine.after(plugin.adjust)
    machine.use(strategy(beClass=limits(0, 30, 45, enable=False)))
    assert machine.after(plugin.adjust) == [
        ("BE", False, (("resctrl/BE/schemata", "L3:0=7ff;1=7ff;\n"), ("resctrl/BE/schemata", "MB:0=100;1=100;\n"))),
    ]
    assert machine.files["resctrl/BE/tasks"].split() == ["3", "7", "12"]


def test_recovery_gives_everything_to_changed_groups_once() -> None:
    machine = Machine(strategy(beClass=limits(0, 30, 45), lsClass=limits(0, 100, 100)), GROUPS, host=HOST)
    plugin = RdtResctrl({})
    machine.after(plugin.adjust)
    assert [(subject, recovers) for subject, recovers, _ in machine.after(plugin.recover)] == [("BE", True)]
    assert machine.files["resctrl/BE/schemata"] == "MB:0=100;1=100\nL3:0=7ff;1=7ff"
    assert machine.after(plugin.recover) == []


def test_a_group_that_is_not_there_is_written_all_the_same() -> None:
    machine = Machine(strategy(lsrClass=limits(50, 100, None)), {}, host=HOST)
    assert machine.after(RdtResctrl({}).adjust) == [("LSR", False, (("resctrl/LSR/schemata", "L3:0=7c0;1=7c0;\n"),))]


@pytest.mark.parametrize("left_out", [
    pod("train", annotations={"node.koordinator.sh/resctrl": "{}"}), pod("train", phase="Succeeded"),
    pod("train", "SYSTEM"), pod("train", "LS"),
], ids=["in a group of its own", "has ended", "system", "of a class that is not enabled"])
def test_pods_that_are_not_the_strategys_are_left_alone(left_out: dict[str, Any]) -> None:
    machine = Machine(strategy(beClass=limits(0, 100, 100)), {**GROUPS, **TASKS}, host=HOST, pods=[left_out])
    assert machine.after(RdtResctrl({}).adjust) == []


@pytest.mark.parametrize("host", [
    Host(), Host(flags=frozenset(("cat_l3",)), cbm_mask="ff"), Host(flags=HOST.flags),
], ids=["no flags", "no mba", "not mounted"])
def test_a_machine_without_allocation_is_left_alone(host: Host) -> None:
    machine = Machine(strategy(beClass=limits(0, 30, 45)), GROUPS, host=host)
    assert machine.after(RdtResctrl({}).adjust) == []
    assert "nothing is allocated" in RdtResctrl({}).explain_round(machine.readings)[0].text


def test_a_class_that_is_malformed_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(
        strategy(beClass=limits(50, 30, 200), lsClass=limits(0, 50, 80), lsrClass={"enable": True, "mbaPercent": "x"}),
        GROUPS, host=HOST,
    )
    plugin = RdtResctrl({})
    assert [subject for subject, _, _ in machine.after(plugin.adjust)] == ["LS"]
    machine.after(plugin.adjust)
    assert sorted(record.getMessage() for record in caplog.records) == [
        ("n: BE: the range of the last-level cache must be within 0 to 100 percent and not empty, not 50 to 30; "
         "the share of the memory bandwidth must be 1 to 100 percent, not 200"),
        "n: LSR: `spec.resourceQOSStrategy.lsrClass.resctrlQOS.mbaPercent` must be a whole number, not 'x'",
    ]


def test_a_range_smaller_than_a_way_is_refused() -> None:
    machine = Machine(strategy(beClass=limits(1, 2, None)), GROUPS, host=HOST)
    assert machine.after(RdtResctrl({}).adjust) == []


def test_without_a_node_slo_nothing_is_known() -> None:
    with pytest.raises(EvaluationError, match="has no NodeSLO"):
        RdtResctrl({}).adjust(Machine(None, {}, host=HOST).readings)


def test_an_explanation_has_share_and_schemata_of_each_group() -> None:
    machine = Machine(strategy(beClass=limits(0, 30, 45), lsClass={"mbaPercent": True}), GROUPS, host=HOST)
    assert [each.text for each in RdtResctrl({}).explain_round(machine.readings)] == [
        "LSR: not set; schemata: MB:0=100;1=100 L3:0=7ff;1=7ff",
        "LS: `spec.resourceQOSStrategy.lsClass.resctrlQOS.mbaPercent` must be a whole number, not True",
        "BE: cache 0 to 30 percent, bandwidth 45 percent; schemata: MB:0=100;1=100 L3:0=7ff;1=7ff",
    ]


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown argument `x`: known are `intervalSeconds`"):
        check_args({"x": 1})
