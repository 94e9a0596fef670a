from __future__ import annotations

import dataclasses
import os

import pytest

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND, Rate
from koordpolicy.engine.agent.metrics_advisor.usage import (
    BestEffortResource,
    HostApplication,
    NodeResource,
    PodResource,
    PodThrottled,
    SystemResource,
)
from koordpolicy.engine.framework.qos import Processor
from tests.bench.agent_tree import write_group

HZ = os.sysconf("SC_CLK_TCK")
PROCESSORS = (Processor(0, 0, 0, 0), Processor(1, 1, 1, 1))


@pytest.fixture
def node(machine):
    for number in (0, 1):
        machine.write(f"sys/devices/system/node/node{number}/meminfo", "".join(
            f"Node {number} {name}: {amount} kB\n" for name, amount in (
                ("MemTotal", 500), ("MemFree", 100), ("Active(file)", 20), ("Inactive(file)", 30), ("SReclaimable", 50),
            )))
    return NodeResource(machine.sources, SECOND, lambda: PROCESSORS)


def test_a_node_is_measured_from_the_second_reading_on(machine, node):
    machine.write_stat(0, 0)
    machine.collect(node)
    assert (machine.last("node"), node.started) == ({}, False)
    machine.write_stat(HZ, HZ // 2)
    machine.collect(node, after=1)
    assert (machine.last("node"), node.started) == ({"cpu": 1500, "memory": 400 * 1024}, True)
    assert [machine.last("numaNode", number) for number in "01"] == [
        {"cpu": 1000, "memory": 300 * 1024}, {"cpu": 500, "memory": 300 * 1024}]


def test_a_file_that_fails_costs_one_sample_and_the_next_rate_spans_the_gap(machine, node):
    machine.write_stat(0, 0)
    machine.collect(node)
    machine.write("proc/stat", "cpu 1 2")
    with pytest.raises(ValueError, match="no CPU times"):
        machine.collect(node)
    machine.write_stat(HZ, HZ)
    machine.collect(node, after=3)
    assert machine.last("node")["cpu"] == 500


def test_a_numa_node_whose_memory_is_unknown_is_left_out(machine, node):
    machine.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 500 kB\n")
    machine.write_stat(0, 0)
    machine.collect(node)
    machine.write_stat(HZ, HZ)
    machine.collect(node)
    assert (machine.last("numaNode", "0")["cpu"], machine.last("numaNode", "1")) == (1000, {})
    assert node.failures == 2


def test_pods_and_containers_are_measured_by_their_own_control_groups(machine):
    pod, container = machine.subject("pod", "d/p"), machine.subject("container", "d/p/c")
    machine.use(pod, container)
    collector = PodResource(machine.sources, SECOND)
    machine.collect(collector)
    assert (machine.last("pod", "d/p"), collector.started, machine.sources.shared.pods) == ({}, False, None)
    machine.set_cpu(pod.directory, 501)
    machine.set_memory(pod.directory, 8192)
    machine.set_cpu(container.directory, 251)
    machine.collect(collector, after=0.5)
    assert machine.last("pod", "d/p") == {"cpu": 1000, "memory": 8192}
    assert machine.last("container", "d/p/c") == {"cpu": 500, "memory": 4096}
    assert (collector.started, machine.sources.shared.pods) == (True, (machine.now, 1000, 8192))


def test_a_pod_without_control_group_is_left_out_and_costs_only_itself(machine):
    pod, other = machine.subject("pod", "d/p"), machine.subject("pod", "d/q")
    machine.use(pod, other)
    collector = PodResource(machine.sources, SECOND)
    machine.collect(collector)
    machine.group("memory", other.directory, "memory.stat", "cache 0\nrs")
    machine.set_cpu(pod.directory, 101)
    machine.collect(collector)
    assert (machine.last("pod", "d/p")["cpu"], machine.last("pod", "d/q"), collector.failures) == (100, {}, 1)


def test_a_counter_that_begins_anew_is_no_usage(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    collector = PodResource(machine.sources, SECOND)
    for milliseconds in (5000, 10, 60):
        machine.set_cpu(pod.directory, milliseconds)
        machine.collect(collector)
    assert machine.cache.at(machine.now).pod_usage("d/p", "cpu", "count", 60 * SECOND) == 1
    assert machine.last("pod", "d/p")["cpu"] == pytest.approx(50)


def test_rates_do_not_depend_on_the_wall_clock(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    collector = PodResource(machine.sources, SECOND)
    collector.collect(1000 * SECOND)
    machine.seconds += 1
    machine.set_cpu(pod.directory, 201)
    collector.collect(10 * SECOND)  # it was set back by almost 1000 seconds
    assert machine.cache.at(10 * SECOND).measured("pod", "d/p", "last", SECOND)["cpu"] == 200


def test_a_node_without_pods_does_not_wait_for_them(machine):
    collectors = [kind(machine.sources, SECOND) for kind in (PodResource, HostApplication, PodThrottled)]
    machine.collect(*collectors)
    assert [each.started for each in collectors] == [True, True, True]
    assert machine.sources.shared.pods == (machine.now, 0, 0)


def test_the_system_has_what_neither_pods_nor_applications_use(machine, node):
    pod, application = machine.subject("pod", "d/p"), machine.subject("application", "a")
    machine.use(pod, application)
    system = SystemResource(machine.sources, SECOND)
    collectors = node, PodResource(machine.sources, SECOND), HostApplication(machine.sources, SECOND), system
    machine.write_stat(0, 0)
    machine.collect(*collectors)
    assert (machine.last("system"), system.started) == ({}, False)
    machine.write_stat(HZ, HZ)
    machine.set_cpu(pod.directory, 301)
    machine.set_cpu(application.directory, 201)
    machine.set_memory(application.directory, 1024)
    machine.collect(*collectors)
    assert machine.last("application", "a") == {"cpu": 200, "memory": 1024}
    assert (machine.last("system"), system.started) == ({"cpu": 1500, "memory": 400 * 1024 - 4096 - 1024}, True)
    machine.set_cpu(pod.directory, 99_000)
    machine.collect(*collectors)
    assert machine.last("system")["cpu"] == 0


def test_the_system_is_unknown_when_an_input_is_outdated(machine):
    system = SystemResource(machine.sources, SECOND)
    shared = machine.sources.shared
    shared.node = shared.applications = machine.now, 100, 100
    shared.pods = machine.now - 11 * SECOND, 10, 10
    machine.collect(system, after=0)
    assert machine.last("system") == {}
    shared.pods = machine.now - 10 * SECOND, 10, 10
    shared.applications = machine.now, 0, 0
    machine.collect(system, after=0)
    assert machine.last("system") == {"cpu": 90, "memory": 90}


def best_effort(machine, quota: str, cpus: str) -> None:
    tier = machine.groups.tier("besteffort")
    if machine.version == 2:
        machine.group("", tier, "cpu.max", f"{'max' if quota == '-1' else quota} 100000\n")
        machine.group("", tier, "cpuset.cpus.effective", cpus)
    else:
        machine.group("cpu", tier, "cpu.cfs_quota_us", f"{quota}\n")
        machine.group("cpu", tier, "cpu.cfs_period_us", "100000\n")
        machine.group("cpuset", tier, "cpuset.cpus", cpus)


@pytest.mark.parametrize(("quota", "limit"), [("-1", 3000), ("250000", 2500), ("900000", 3000)])
def test_the_best_effort_tier_has_usage_request_and_real_limit(machine, quota: str, limit: int):
    best_effort(machine, quota, "0-1,5\n")
    machine.use(batch_cpu=4000)
    collector = BestEffortResource(machine.sources, SECOND)
    for milliseconds in (0, 1200):
        machine.set_cpu(machine.groups.tier("besteffort"), milliseconds)
        machine.collect(collector)
    assert machine.last("bestEffort") == {"usage": 1200, "request": 4000, "realLimit": limit}
    assert collector.started


@pytest.mark.parametrize(("quota", "cpus", "message"), [
    ("ten", "0-1\n", "is no amount"), ("1000", "0-x\n", "neither a CPU"), ("1000", "\udcff\n", "decode"),
])
def test_a_malformed_limit_leaves_the_best_effort_tier_unmeasured(machine, quota: str, cpus: str, message: str):
    best_effort(machine, "1000", "0\n")
    collector = BestEffortResource(machine.sources, SECOND)
    machine.set_cpu(machine.groups.tier("besteffort"), 0)
    machine.collect(collector)
    best_effort(machine, quota, cpus)
    with pytest.raises(ValueError, match=message):
        machine.collect(collector)
    assert (machine.last("bestEffort"), collector.started) == ({}, False)


def test_throttling_is_the_share_of_periods_since_the_last_reading(machine):
    pod, container = machine.subject("pod", "d/p"), machine.subject("container", "d/p/c")
    machine.use(pod, container)
    collector = PodThrottled(machine.sources, SECOND)
    machine.set_cpu(container.directory, 1, periods=100, throttled=50)
    machine.collect(collector)
    assert (machine.last("container", "d/p/c"), collector.started) == ({}, False)
    machine.set_cpu(container.directory, 2, periods=110, throttled=54)
    machine.collect(collector)
    assert machine.last("container", "d/p/c") == {"throttled": pytest.approx(0.4)}
    assert (machine.last("pod", "d/p"), collector.started) == ({"throttled": 0}, True)
    machine.set_cpu(container.directory, 3, periods=5, throttled=5)  # another control group of the same name
    machine.collect(collector)
    assert machine.cache.at(machine.now).container_usage("d/p/c", "throttled", "count", 10**12) == 1


def test_a_rate_needs_two_readings_and_time_between_them():
    rate = Rate()
    assert [rate.per_nanosecond(*each) for each in ((10, 5), (20, 5), (30, 15), (0, 20), (5, 25))] == [
        None, None, 2, None, 1,
    ]


def test_a_group_that_has_used_no_cpu_for_longer_than_its_last_periods_has_no_share_and_is_not_read(machine):
    pod, other = machine.subject("pod", "d/p"), machine.subject("pod", "d/q")
    machine.use(pod, other)
    collectors = PodResource(machine.sources, SECOND), PodThrottled(machine.sources, SECOND)
    shares = []

    def collect(milliseconds: int, periods: int, throttled: int) -> None:
        machine.set_cpu(pod.directory, milliseconds, periods=periods, throttled=throttled)
        machine.collect(*collectors)
        shares.append([machine.last("pod", name).get("throttled") for name in ("d/p", "d/q")])

    collect(100, 10, 0)
    collect(100, 12, 1)  # the periods that the kernel still counts
    for _ in range(4):
        collect(100, 12, 1)
    if machine.version == 1:
        # No kernel counts any now: that the file was not read is what is seen.
        collect(100, 99, 99)
    collect(200, 14, 2)
    assert shares == [[None, None], [0.5, 0.0], *[[0.0, 0.0]] * (5 if machine.version == 1 else 4), [0.5, 0.0]]


def test_the_state_of_a_subject_stays_when_others_come_and_go(machine):
    first, second, third = (machine.subject("pod", f"d/{name}") for name in "abc")
    collectors = PodResource(machine.sources, SECOND), PodThrottled(machine.sources, SECOND)
    found = []
    for milliseconds, subjects in enumerate(((first, second), (third, second), (second,), (first, second)), 1):
        machine.use(*subjects)
        machine.set_cpu(second.directory, milliseconds * 100, periods=milliseconds * 10, throttled=milliseconds)
        machine.collect(*collectors)
        found.append({name: machine.last("pod", f"d/{name}") for name in "abc"})
    second_one = {"cpu": pytest.approx(100), "memory": 4096, "throttled": 0.1}
    assert found == [{"a": {}, "b": {}, "c": {}}] + [{"a": {}, "b": second_one, "c": {}}] * 3


def test_throttling_is_measured_where_cpu_time_is_not(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    collectors = PodResource(machine.sources, SECOND), PodThrottled(machine.sources, SECOND)
    shares = []
    for periods in range(6):
        machine.set_cpu(pod.directory, 0, periods=periods * 10, throttled=periods)
        machine.group("cpuacct", pod.directory, "cpuacct.usage", "")
        machine.collect(*collectors)
        shares.append(machine.last("pod", "d/p").get("throttled"))
    assert shares == [None, *[0.1] * 5]


def numa_stat_of(machine, anonymous: tuple[int, int]) -> str:
    """The memory.numa_stat of a control group with these pages on two NUMA nodes, and an unevictable one on each."""
    page = 1 if machine.version == 1 else os.sysconf("SC_PAGE_SIZE")
    lines = {"total": (99, 99), "file": (98, 98), "anon": anonymous, "unevictable": (1, 1)}
    if machine.version == 2:
        lines = {"anon": anonymous, "inactive_anon": (0, 0), "active_anon": anonymous, "unevictable": (1, 1)}
    prefix = "hierarchical_" if machine.version == 1 else ""
    return "".join(
        f"{prefix}{name}{f'={a + b}' if machine.version == 1 else ''} N0={a * page} N1={b * page}\n"
        for name, (a, b) in lines.items())


def numa_group(machine, directory: str, *, times: tuple[int, int], pages: tuple[int, int]) -> None:
    """Set the CPU time of each processor in ms, and the pages on each NUMA node."""
    if machine.version == 1:
        machine.group("cpuacct", directory, "cpuacct.usage_percpu",
                      "".join(f"{each * 10**6} " for each in times) + "\n")
    machine.group("memory", directory, "memory.numa_stat", numa_stat_of(machine, pages))


def test_the_system_of_a_numa_node_has_what_neither_pods_nor_applications_use_there(machine, node):
    pods = machine.groups.tier("guaranteed")
    outside, inside, idle = (
        machine.subject("application", name) for name in ("outside", "inside", "idle"))
    inside = dataclasses.replace(inside, directory=f"{pods}/inside")
    write_group(machine.groups, inside.directory)
    machine.use(outside, inside, idle)
    collectors = (node, PodResource(machine.sources, SECOND), HostApplication(machine.sources, SECOND),
                  SystemResource(machine.sources, SECOND))
    page = os.sysconf("SC_PAGE_SIZE")
    for seconds in range(3):
        machine.write_stat(HZ * seconds, HZ // 2 * seconds)
        numa_group(machine, pods, times=(300 * seconds, 0), pages=(10, 0))
        numa_group(machine, inside.directory, times=(900 * seconds, 900 * seconds), pages=(50, 50))
        numa_group(machine, outside.directory, times=(100 * seconds, 200 * seconds), pages=(0, 20))
        machine.collect(*collectors)
    cpu = [{"cpu": 600}, {"cpu": 300}] if machine.version == 1 else [{}, {}]
    assert [machine.last("systemNumaNode", number) for number in "01"] == [
        {**cpu[0], "memory": 300 * 1024 - (11 + 1) * page}, {**cpu[1], "memory": 300 * 1024 - (1 + 21) * page}]


def test_the_system_of_the_only_numa_node_needs_no_files_of_its_own(machine):
    machine.write("sys/devices/system/node/node0/meminfo", "".join(
        f"Node 0 {name}: {amount} kB\n" for name, amount in (
            ("MemTotal", 500), ("MemFree", 100), ("Active(file)", 0), ("Inactive(file)", 0), ("SReclaimable", 0))))
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    collectors = (NodeResource(machine.sources, SECOND, lambda: PROCESSORS[:1]), PodResource(machine.sources, SECOND),
                  HostApplication(machine.sources, SECOND), SystemResource(machine.sources, SECOND))
    machine.write_stat(0)
    machine.collect(*collectors)
    machine.write_stat(HZ)
    machine.set_cpu(pod.directory, 301)
    machine.collect(*collectors)
    assert machine.last("systemNumaNode", "0") == {"cpu": 700, "memory": 400 * 1024 - 4096}


def test_the_system_of_numa_nodes_is_unknown_without_the_files_of_pods(machine, node):
    machine.use()
    system = SystemResource(machine.sources, SECOND)
    collectors = node, PodResource(machine.sources, SECOND), HostApplication(machine.sources, SECOND), system
    for seconds in (0, 1, 2):
        machine.write_stat(HZ * seconds, 0)
        machine.group("memory", machine.groups.tier("guaranteed"), "memory.numa_stat", "anon=1 N0=1")
        machine.collect(*collectors)
    assert [machine.last("systemNumaNode", number) for number in "01"] == [{}, {}]
    assert system.started
