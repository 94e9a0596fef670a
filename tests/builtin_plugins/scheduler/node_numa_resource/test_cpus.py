from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.node_numa_resource.cpus import (
    Cpu,
    CpuSelection,
    CpuTopology,
    Taken,
    cpu_mask,
    cpu_numbers,
    format_cpus,
    parse_cpus,
    take_cpus,
    take_preferred_cpus,
)


def machine(sockets=2, nodes=1, cores=4, threads=2):
    cpus = {}
    for node in range(sockets * nodes):
        for core in range(node * cores, (node + 1) * cores):
            for _ in range(threads):
                cpus[len(cpus)] = Cpu(core, node, node // nodes)
    return CpuTopology(cpus)


def take(topology, needed, *, free=None, taken=None, **choice):
    found = take_cpus(
        topology, topology.all if free is None else parse_cpus(free), taken or {}, needed=needed,
        choice=CpuSelection(**choice),
    )
    return None if found is None else format_cpus(found)


@pytest.mark.parametrize(
    ("text", "numbers"), [("", []), ("3", [3]), ("0-2,5, 7-8", [0, 1, 2, 5, 7, 8]), ("1,1-2", [1, 2])],
)
def test_sets_of_cpus_are_read_and_written_as_linux_does(text, numbers):
    assert cpu_numbers(parse_cpus(text)) == numbers
    assert cpu_numbers(parse_cpus(format_cpus(cpu_mask(numbers)))) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1;2", "99999999"])
def test_what_is_no_set_of_cpus_is_refused(text):
    with pytest.raises(ValueError, match="is not a list of cpus"):
        parse_cpus(text)


def test_cores_of_different_sockets_are_told_apart():
    detail = [
        {"id": number, "core": number // 2 % 2, "socket": number // 4, "node": number // 4} for number in range(8)
    ]
    topology = CpuTopology.of(detail)
    assert (topology.cores, topology.cpus_per_core, topology.cpus_per_node, topology.cpus_per_socket) == (4, 2, 4, 4)
    assert format_cpus(topology.usable(parse_cpus("0-2,5"), "FullPCPUs")) == "0-1"
    assert format_cpus(topology.usable(parse_cpus("0-3,5"), "SpreadByPCPUs")) == "0,2,5"


@pytest.mark.parametrize(("needed", "free", "choice", "expected"), [
    (2, "4-15", {}, "8-9"),  # the emptier NUMA node
    (2, "4-15", {"strategy": "MostAllocated"}, "4-5"),
    (3, None, {}, "0-2"),
    (12, None, {}, "0-11"),
    (4, "1,3,5,7,8-11", {}, "8-11"),  # whole cores
    (4, "1,3,5,7", {}, "1,3,5,7"),  # where there are none, single cpus
    (4, None, {"bind": "SpreadByPCPUs"}, "0,2,4,6"),
    (6, "0-3,8-15", {"bind": "SpreadByPCPUs"}, "8-12,14"),  # a second one of each core
    (10, "0-3,8-15", {"bind": "SpreadByPCPUs"}, "0,2,8-15"),  # the socket that has most, before the other
    (17, None, {}, None),
])
def test_cpus_are_taken_as_the_policies_want(needed, free, choice, expected):
    assert take(machine(), needed, free=free, **choice) == expected


def test_no_more_is_taken_than_was_asked_for_where_sockets_hold_an_odd_rest():
    # Two whole sockets of 8, then one core of the next: 19 are needed, and not 20.
    assert take(machine(sockets=4), 19).count(",") <= 2
    found = take_cpus(machine(sockets=4), machine(sockets=4).all, {}, needed=19, choice=CpuSelection())
    assert found.bit_count() == 19


@pytest.mark.parametrize(("exclusive", "holders", "expected"), [
    ("PCPULevel", "PCPULevel", "4,6"), ("PCPULevel", "NUMANodeLevel", "1,3"),
    ("NUMANodeLevel", "NUMANodeLevel", "8,10"),
    ("", "PCPULevel", "1,3"),
])
def test_exclusive_pods_of_one_kind_avoid_each_other(exclusive, holders, expected):
    taken = {number: Taken(1, holders) for number in (0, 2)}
    assert take(machine(), 2, free="1,3-15", taken=taken, bind="SpreadByPCPUs", exclusive=exclusive,
                strategy="MostAllocated") == expected


def test_exclusive_pods_share_where_there_is_nothing_else():
    taken = {number: Taken(1, "PCPULevel") for number in (0, 2)}
    assert take(machine(), 2, free="1,3", taken=taken, bind="SpreadByPCPUs", exclusive="PCPULevel") == "1,3"


def test_the_cpus_with_the_fewest_references_come_first_where_cpus_are_shared():
    taken = {number: Taken() for number in range(4)}
    assert take(machine(sockets=1), 2, taken=taken, max_references=2) == "4-5"
    assert take(machine(sockets=1), 2, taken=taken, max_references=2, bind="SpreadByPCPUs") == "4,6"


def test_preferred_cpus_come_before_all_others():
    topology = machine()
    found = take_preferred_cpus(topology, topology.all, parse_cpus("14-15"), {}, needed=4, choice=CpuSelection())
    assert format_cpus(found) == "0-1,14-15"


MACHINES = st.builds(machine, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.integers(1, 2))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_is_taken_was_free_and_is_as_much_as_was_asked_for(data):
    topology = data.draw(MACHINES)
    free = data.draw(st.integers(0, topology.all))
    needed = data.draw(st.integers(0, topology.all.bit_count() + 1))
    policies = ("", "PCPULevel", "NUMANodeLevel")
    taken = {
        number: Taken(1, data.draw(st.sampled_from(policies))) for number in cpu_numbers(topology.all & ~free)
    }
    choice = CpuSelection(
        data.draw(st.sampled_from(("FullPCPUs", "SpreadByPCPUs"))), data.draw(st.sampled_from(policies)),
        data.draw(st.sampled_from(("MostAllocated", "LeastAllocated", "DistributeEvenly"))),
    )
    found = take_cpus(topology, free, taken, needed=needed, choice=choice)
    if needed > free.bit_count():
        assert found is None
    else:
        assert (found & ~free, found.bit_count()) == (0, needed)
        assert found == take_cpus(topology, free, taken, needed=needed, choice=choice)
