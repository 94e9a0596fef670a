"""The choice of cpus against a literal reading of how Koordinator words it, on random topologies."""

from __future__ import annotations

from random import Random

import pytest

from koordpolicy.builtin_plugins.scheduler.node_numa_resource.cpus import (
    Cpu,
    CpuSelection,
    CpuTopology,
    Taken,
    cpu_mask,
    cpu_numbers,
    take_cpus,
)

CORE, NODE, SOCKET = 0, 1, 2


class Text:
    """One choice; `cpus` are (core, NUMA node, socket) by number, all groups are lists of numbers."""

    def __init__(self, cpus, taken, need, choice):
        self.cpus, self.need, self.choice = cpus, need, choice
        self.sign = 1 if choice.strategy == "MostAllocated" else -1
        self.free, self.result = [cpu for cpu in cpus if cpu not in taken], []
        self.threads = len(cpus) // len({cpu[CORE] for cpu in cpus.values()})
        self.avoided = {place: {cpus[cpu][place] for cpu, policy in taken.items() if policy == choice.exclusive == name}
                        for place, name in ((CORE, "PCPULevel"), (NODE, "NUMANodeLevel"))}

    def chosen(self):
        if len(self.free) < self.need:
            return None
        full = self.choice.bind == "FullPCPUs"
        done = ((full or self.threads == 1) and self.whole()) or (not full and self.spread()) or self.rest()
        return set(self.result) if done else None

    def size(self, place):
        return len(self.cpus) // len({cpu[place] for cpu in self.cpus.values()})

    def take(self, numbers):
        self.result += numbers
        self.free = [cpu for cpu in self.free if cpu not in numbers]
        for place, name in ((CORE, "PCPULevel"), (NODE, "NUMANodeLevel")):
            if self.choice.exclusive == name:
                self.avoided[place] |= {self.cpus[cpu][place] for cpu in numbers}
        return len(self.result) == self.need

    def left(self):
        return self.need - len(self.result)

    def visible(self, *places):
        return [cpu for cpu in self.free if not any(self.cpus[cpu][place] in self.avoided[place] for place in places)]

    def groups(self, numbers, place):
        found = {}
        for cpu in numbers:
            found.setdefault(self.cpus[cpu][place], []).append(cpu)
        return found

    def round_robin(self, numbers):
        of_core = self.groups(numbers, CORE)
        return [
            cpu
            for _, cpu in sorted(
                ((of_core[self.cpus[cpu][CORE]].index(cpu), place), cpu) for place, cpu in enumerate(numbers)
            )
        ]

    def first(self, groups, order=lambda group: group):
        return next((self.take(order(group)[: self.need]) for group in groups if len(group) >= self.need), False)

    def by_node(self, groups, seen, sizes):
        sockets = {socket: len(group) for socket, group in self.groups(seen, SOCKET).items()}
        return [groups[node] for node in sorted(groups, key=lambda node: (
            self.sign * sizes[node], self.sign * sockets[self.cpus[groups[node][0]][SOCKET]], node))]

    def whole(self):
        def cores(numbers):
            return [cpu for group in self.groups(numbers, CORE).values() if len(group) == self.threads for cpu in group]

        if self.need <= self.size(NODE):
            for places in ((NODE,), ()):
                groups = self.groups(cores(self.visible(*places)), NODE)
                if self.first(
                    self.by_node(groups, self.visible(*places), {node: len(group) for node, group in groups.items()}),
                ):
                    return True
        of_socket = self.groups(cores(self.free), SOCKET)
        groups = [
            of_socket[socket] for socket in sorted(of_socket, key=lambda each: (self.sign * len(of_socket[each]), each))
        ]
        if self.need <= self.size(SOCKET) and self.first(groups):
            return True
        groups.sort(key=len, reverse=True)
        while groups and self.left() >= len(groups[0]):
            if self.take(groups.pop(0)):
                return True
        for group in sorted(groups, key=len):
            while group and self.left() >= self.threads:
                if self.take([group.pop(0) for _ in range(self.threads)]):
                    return True
        return False

    def spread(self):
        for place in (NODE, SOCKET):
            for careful in (True, False) if self.need <= self.size(place) else ():
                seen = self.visible(*((CORE, NODE) if place == NODE else (CORE,)) if careful else ())
                groups = self.groups(seen, place)
                sizes = {key: len(group) for key, group in groups.items()}
                if careful:
                    groups = {
                        key: [of_core[0] for of_core in self.groups(group, CORE).values()]
                        for key, group in groups.items()
                    }
                ordered = self.by_node(groups, seen, sizes) if place == NODE else [
                    groups[key]
                    for key in sorted(groups, key=lambda each, groups=groups: (self.sign * len(groups[each]), each))]
                if self.first(ordered, self.round_robin):
                    return True
        return False

    def rest(self):
        for places in ((CORE, NODE), ()):
            seen = self.visible(*places)
            cores, nodes, sockets = (self.groups(seen, place) for place in (CORE, NODE, SOCKET))
            together = self.groups(self.result, SOCKET)

            def order(core, cores=cores, nodes=nodes, sockets=sockets, together=together):
                _, node, socket = self.cpus[cores[core][0]]
                return -len(together.get(socket, ())), self.sign * len(sockets[socket]), self.sign * len(
                    nodes[node],
                ), len(cores[core]), socket, core

            if any(
                self.take([cpu])
                for cpu in self.round_robin([cpu for core in sorted(cores, key=order) for cpu in cores[core]])
            ):
                return True
        return False


@pytest.mark.parametrize("seed", range(4))
def test_cpus_are_chosen_as_the_text_says(seed):
    chance = Random(seed)
    for _ in range(400):
        sockets, nodes, cores, threads = chance.choice((1, 2)), chance.choice((1, 2)), chance.choice(
            (2, 3, 4),
        ), chance.choice((1, 2, 2))
        cpus = {number: (number // threads, number // threads // cores, number // threads // cores // nodes)
                for number in range(sockets * nodes * cores * threads)}
        exclusive = chance.choice(("", "PCPULevel", "NUMANodeLevel", "None"))
        theirs = chance.choice((exclusive, "", "PCPULevel"))
        taken = dict.fromkeys(chance.sample(range(len(cpus)), chance.randrange(len(cpus))), theirs)
        need = chance.randint(1, len(cpus))
        choice = CpuSelection(
            chance.choice(("FullPCPUs", "SpreadByPCPUs")), exclusive,
            chance.choice(("MostAllocated", "LeastAllocated", "DistributeEvenly")), 1,
        )
        topology = CpuTopology({number: Cpu(*cpu) for number, cpu in cpus.items()})
        found = take_cpus(
            topology, topology.all & ~cpu_mask(taken), {number: Taken(1, theirs) for number in taken}, needed=need,
            choice=choice,
        )
        assert (None if found is None else set(cpu_numbers(found))) == Text(cpus, taken, need, choice).chosen(), (
            cpus, taken, need, choice,
        )
