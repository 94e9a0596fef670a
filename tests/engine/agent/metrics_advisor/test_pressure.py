from __future__ import annotations

from pathlib import Path

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.agent.metrics_advisor.pressure import PressureStall, pressure_name


def lines(some: str, full: str = "") -> str:
    found = [("some", some), *([("full", full)] if full else [])]
    return "".join(f"{degree} avg10={value} avg60=0.00 avg300=0.00 total=1\n" for degree, value in found)


def test_pressures_of_node_pods_and_containers_are_percents(machine):
    pod, container = machine.subject("pod", "d/p"), machine.subject("container", "d/p/c")
    machine.use(pod, container)
    for resource, text in (("cpu", lines("12.50")), ("memory", lines("1.00", "0.50")), ("io", "some avg10=")):
        machine.group("cpuacct", container.directory, f"{resource}.pressure", text)
        machine.write(f"proc/pressure/{resource}", text)
    collector = PressureStall(machine.sources, 10 * SECOND, enabled=True)
    machine.collect(collector)
    expected = {"cpu-pressure-some": 12.5, "memory-pressure-some": 1, "memory-pressure-full": 0.5}
    assert (machine.last("container", "d/p/c"), machine.last("node")) == (expected, expected)
    assert machine.last("pod", "d/p") == {
        pressure_name(resource, degree): 0.5 if degree == "some" else 0
        for resource in ("cpu", "memory", "io") for degree in ("some", "full")
    }
    assert (collector.started, collector.failures) == (True, 2)


def test_a_kernel_without_pressures_gives_none(machine):
    collector = PressureStall(machine.sources, 10 * SECOND, enabled=True)
    machine.collect(collector)
    assert (machine.last("node"), collector.started, collector.failures) == ({}, True, 3)


def test_a_kernel_whose_tiers_have_no_pressures_has_none_of_pods_on_v1(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    tier = Path(machine.sources.path("cpuacct", machine.groups.tier("guaranteed"), ""))
    tier.mkdir(parents=True)
    collector = PressureStall(machine.sources, 10 * SECOND, enabled=True)
    machine.collect(collector)
    without = machine.last("pod", "d/p")
    machine.group("cpuacct", machine.groups.tier("guaranteed"), "cpu.pressure", lines("1.00"))
    machine.collect(collector)
    measured = {pressure_name(resource, degree): 0.5 if degree == "some" else 0
                for resource in ("cpu", "memory", "io") for degree in ("some", "full")}
    assert (without, machine.last("pod", "d/p")) == ({} if machine.version == 1 else measured, measured)
