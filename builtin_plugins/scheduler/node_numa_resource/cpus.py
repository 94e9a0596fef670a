"""The CPU topology of a node, and the choice among its free cpus for a pod.

A set of cpus is an integer with one bit per cpu id. The choice is Koordinator's (nodenumaresource cpu_accumulator.go),
except that it never takes more than requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FULL_PCPUS: Final = "FullPCPUs"
SPREAD_BY_PCPUS: Final = "SpreadByPCPUs"
PCPU_LEVEL: Final = "PCPULevel"
NUMA_NODE_LEVEL: Final = "NUMANodeLevel"
MOST_ALLOCATED: Final = "MostAllocated"
LEAST_ALLOCATED: Final = "LeastAllocated"

_MOST_CPUS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Cpu:
    """The location of a logical cpu; `core` is unique on the whole node."""

    core: int
    node: int
    socket: int


@dataclass(frozen=True, slots=True)
class Taken:
    """By how many pods a cpu is taken, and the exclusive policy of the last of them."""

    count: int = 1
    exclusive: str = ""


class CpuTopology:
    """The cpus of a node by id; it is invalid where there are none."""

    __slots__ = ("_of_core", "_of_node", "_of_socket", "all", "cores", "cpus", "nodes", "sockets")

    def __init__(self, cpus: Mapping[int, Cpu]) -> None:
        self.cpus = dict(sorted(cpus.items()))
        self.all = cpu_mask(self.cpus)
        self.cores = len({cpu.core for cpu in self.cpus.values()})
        self.nodes = len({(cpu.socket, cpu.node) for cpu in self.cpus.values()})
        self.sockets = len({cpu.socket for cpu in self.cpus.values()})
        self._of_core: dict[int, int] = {}
        self._of_node: dict[int, int] = {}
        self._of_socket: dict[int, int] = {}
        for number, cpu in self.cpus.items():
            for groups, key in ((self._of_core, cpu.core), (self._of_node, cpu.node), (self._of_socket, cpu.socket)):
                groups[key] = groups.get(key, 0) | 1 << number

    @staticmethod
    def of(detail: Iterable[Mapping[str, Any]]) -> CpuTopology:
        """Read `detail[]{id, core, socket, node}`, as a NodeResourceTopology reports it.

        Raises:
            ValueError: something in it is not a number, or out of any range.
        """
        cpus: dict[int, Cpu] = {}
        for each in detail:
            number, core, socket, node = (_number(each, name) for name in ("id", "core", "socket", "node"))
            cpus[number] = Cpu(socket << 16 | core, node, socket)
        return CpuTopology(cpus)

    def __bool__(self) -> bool:
        return bool(self.cpus)

    @property
    def cpus_per_core(self) -> int:
        """Threads per core; 0 without cpus."""
        return len(self.cpus) // self.cores if self.cores else 0

    @property
    def cpus_per_node(self) -> int:
        """Cpus per NUMA node; 0 without cpus."""
        return len(self.cpus) // self.nodes if self.nodes else 0

    @property
    def cpus_per_socket(self) -> int:
        """Cpus per socket; 0 without cpus."""
        return len(self.cpus) // self.sockets if self.sockets else 0

    def of_node(self, node: int) -> int:
        """Return the cpus of a NUMA node."""
        return self._of_node.get(node, 0)

    def nodes_of(self, cpus: int) -> list[int]:
        """Return the NUMA nodes that these cpus are on."""
        return [node for node, mask in self._of_node.items() if mask & cpus]

    def cores_of(self, cpus: int) -> list[int]:
        """Return, per core that has any of them, which of these cpus it has."""
        return [mask & cpus for mask in self._of_core.values() if mask & cpus]

    def usable(self, cpus: int, policy: str) -> int:
        """Return those of the cpus that a required bind policy may use: whole free cores, or one cpu of each core."""
        if policy == FULL_PCPUS:
            whole = self.cpus_per_core
            return sum(mask for mask in self.cores_of(cpus) if mask.bit_count() == whole)
        if policy == SPREAD_BY_PCPUS:
            return sum(mask & -mask for mask in self.cores_of(cpus))
        return cpus

    def satisfies(self, cpus: int, policy: str) -> bool:
        """Return whether the cpus satisfy a required bind policy."""
        cores = len(self.cores_of(cpus))
        if policy == FULL_PCPUS:
            return cores * self.cpus_per_core == cpus.bit_count()
        return policy != SPREAD_BY_PCPUS or cores == cpus.bit_count()


@dataclass(frozen=True, slots=True)
class CpuSelection:
    """The policies of a choice: the bind and exclusive policies of the pod, and the node's NUMA allocate strategy."""

    bind: str = FULL_PCPUS
    exclusive: str = ""
    strategy: str = LEAST_ALLOCATED
    max_references: int = 1


def cpu_mask(numbers: Iterable[int]) -> int:
    """Return the set of these cpu ids."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def cpu_numbers(mask: int) -> list[int]:
    """Return the cpu ids of a set, ascending."""
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def parse_cpus(text: str) -> int:
    """Read a set of cpus in Linux list format, such as `0-3,8`.

    Raises:
        ValueError: it is none.
    """
    mask = 0
    for part in filter(None, (each.strip() for each in text.split(","))) if text.strip() else ():
        first, dash, last = part.partition("-")
        if not (_is_cpu(first) and (not dash or _is_cpu(last))):
            raise ValueError(f"`{text}` is not a list of cpus: write numbers and ranges, like `0-3,8`")
        low, high = int(first), int(last) if dash else int(first)
        if low > high:
            raise ValueError(f"`{text}` is not a list of cpus: the range `{part}` runs backwards")
        mask |= (1 << high + 1) - (1 << low)
    return mask


def format_cpus(mask: int) -> str:
    """Return a set of cpus in Linux list format."""
    parts: list[str] = []
    numbers = cpu_numbers(mask)
    for place, number in enumerate(numbers):
        if place and numbers[place - 1] == number - 1:
            continue
        last = number
        while mask >> last + 1 & 1:
            last += 1
        parts.append(str(number) if last == number else f"{number}-{last}")
    return ",".join(parts)


def take_preferred_cpus(
    topology: CpuTopology,
    available: int,
    preferred: int,
    taken: Mapping[int, Taken],
    *,
    needed: int,
    choice: CpuSelection,
) -> int | None:
    """Return `needed` of the available cpus, the preferred ones before all others; None where that fails."""
    preferred &= available
    result = 0
    if preferred:
        first = take_cpus(
            topology, preferred, taken, needed=min(needed, preferred.bit_count()), choice=choice)
        if first is None:
            return None
        result, available = first, available & ~preferred
        needed -= first.bit_count()
    if needed > 0:
        rest = take_cpus(topology, available, taken, needed=needed, choice=choice)
        return None if rest is None else result | rest
    return result


def take_cpus(
    topology: CpuTopology, available: int, taken: Mapping[int, Taken], *, needed: int, choice: CpuSelection,
) -> int | None:
    """Return `needed` of the available cpus, by the policies as far as possible; None where there are too few."""
    if needed < 1:
        return 0
    if needed > (available & topology.all).bit_count():
        return None
    taking = _Taking(topology, available & topology.all, taken, needed, choice)
    return taking.result if taking.run() else None


@dataclass(slots=True)
class _Taking:
    """One choice, step by step: `free` shrinks, `result` grows, `needed` counts down to 0."""

    topology: CpuTopology
    free: int
    taken: Mapping[int, Taken]
    needed: int
    choice: CpuSelection
    result: int = 0
    exclusive_cores: set[int] = field(default_factory=set)
    exclusive_nodes: set[int] = field(default_factory=set)
    most: bool = False

    def run(self) -> bool:
        cpus, topology = self.topology.cpus, self.topology
        self.most = self.choice.strategy == MOST_ALLOCATED
        for number, taken in self.taken.items():
            if number in cpus and taken.exclusive == PCPU_LEVEL:
                self.exclusive_cores.add(cpus[number].core)
            elif number in cpus and taken.exclusive == NUMA_NODE_LEVEL:
                self.exclusive_nodes.add(cpus[number].node)
        full = self.choice.bind == FULL_PCPUS
        done = (full or topology.cpus_per_core == 1) and self._take_whole_cores()
        done = done or (not full and self._take_spread())
        return done or self._take_rest()

    # The three ways

    def _take_whole_cores(self) -> bool:
        topology = self.topology
        if self.needed <= topology.cpus_per_node:
            for careful in (True, False):
                if self._take_first(self._whole_cores_by_node(careful)):
                    return True
        groups = self._whole_cores_by_socket()
        if self.needed <= topology.cpus_per_socket and self._take_first(groups):
            return True
        left = []
        for group in sorted(groups, key=len, reverse=True):
            if len(group) > self.needed:
                left.append(group)
            else:
                self._take(group)
                if not self.needed:
                    return True
        size = topology.cpus_per_core
        for group in sorted(left, key=len):
            for start in range(0, len(group), size):
                if self.needed < size:
                    break
                self._take(group[start : start + size])
        return not self.needed

    def _take_spread(self) -> bool:
        for limit, groups in (
            (self.topology.cpus_per_node, self._cpus_by_node), (self.topology.cpus_per_socket, self._cpus_by_socket),
        ):
            if self.needed <= limit and any(
                self._take_first(groups(careful), self._round_robin) for careful in (True, False)
            ):
                return True
        return False

    def _take_rest(self) -> bool:
        for careful in (True, False):
            for number in self._round_robin(self._single_cpus(careful)):
                self._take([number])
                if not self.needed:
                    return True
        return False

    def _take_first(
        self, groups: Iterable[list[int]], order: Callable[[list[int]], list[int]] = lambda group: group,
    ) -> bool:
        """Take all that is needed of the first group that has so many."""
        for group in groups:
            if len(group) >= self.needed:
                self._take(order(group)[: self.needed])
                return True
        return False

    def _take(self, numbers: list[int]) -> None:
        mask = cpu_mask(numbers)
        self.result |= mask
        self.free &= ~mask
        self.needed -= len(numbers)
        for number in numbers:
            cpu = self.topology.cpus[number]
            if self.choice.exclusive == PCPU_LEVEL:
                self.exclusive_cores.add(cpu.core)
            elif self.choice.exclusive == NUMA_NODE_LEVEL:
                self.exclusive_nodes.add(cpu.node)

    # Free cpus in the order of allocation

    def _free_cpus(self, *, avoid_cores: bool, avoid_nodes: bool) -> Iterator[tuple[int, Cpu]]:
        avoid_cores = avoid_cores and self.choice.exclusive == PCPU_LEVEL
        avoid_nodes = avoid_nodes and self.choice.exclusive == NUMA_NODE_LEVEL
        for number in cpu_numbers(self.free):
            cpu = self.topology.cpus[number]
            if not (avoid_cores and cpu.core in self.exclusive_cores) and not (
                avoid_nodes and cpu.node in self.exclusive_nodes
            ):
                yield number, cpu

    def _cores(self, *, avoid_nodes: bool) -> list[list[int]]:
        """Return the free cpus of each core, cores with most of them first, then those least referred to."""
        cores: dict[int, list[int]] = {}
        for number, cpu in self._free_cpus(avoid_cores=False, avoid_nodes=avoid_nodes):
            cores.setdefault(cpu.core, []).append(number)
        return [cores[core] for core in sorted(cores, key=lambda core: (
            -len(cores[core]), self._references(cores[core]), core,
        ))]

    def _whole_cores_by_node(self, careful: bool) -> list[list[int]]:
        cores = self._cores(avoid_nodes=careful)
        sockets = _counts(self.topology.cpus[number].socket for core in cores for number in core)
        nodes = self._joined(cores, lambda cpu: cpu.node)
        return [nodes[node] for node in self._ordered_nodes(nodes, sockets)]

    def _ordered_nodes(self, nodes: Mapping[int, list[int]], sockets: Mapping[int, int]) -> list[int]:
        """Return the NUMA nodes in the order of the strategy: by their free cpus, then by those of their socket."""
        def order(node: int) -> tuple[int, int, int]:
            socket = self.topology.cpus[nodes[node][0]].socket
            return self._sign(len(nodes[node])), self._sign(sockets[socket]), node

        return sorted(nodes, key=order)

    def _whole_cores_by_socket(self) -> list[list[int]]:
        sockets = self._joined(self._cores(avoid_nodes=False), lambda cpu: cpu.socket)
        return [sockets[each] for each in sorted(sockets, key=lambda each: (self._sign(len(sockets[each])), each))]

    def _joined(self, cores: list[list[int]], place: Callable[[Cpu], int]) -> dict[int, list[int]]:
        """Return the cpus of the cores that are free as a whole, by the place of the core."""
        groups: dict[int, list[int]] = {}
        for core in cores:
            if len(core) == self.topology.cpus_per_core:
                groups.setdefault(place(self.topology.cpus[core[0]]), []).extend(core)
        return groups

    def _cpus_by_node(self, careful: bool) -> list[list[int]]:
        nodes: dict[int, list[int]] = {}
        sockets: dict[int, int] = {}
        for number, cpu in self._free_cpus(avoid_cores=careful, avoid_nodes=careful):
            nodes.setdefault(cpu.node, []).append(number)
            sockets[cpu.socket] = sockets.get(cpu.socket, 0) + 1
        return [self._listed(nodes[node], careful) for node in self._ordered_nodes(nodes, sockets)]

    def _cpus_by_socket(self, careful: bool) -> list[list[int]]:
        sockets: dict[int, list[int]] = {}
        for number, cpu in self._free_cpus(avoid_cores=careful, avoid_nodes=False):
            sockets.setdefault(cpu.socket, []).append(number)
        listed = {socket: self._listed(numbers, careful) for socket, numbers in sockets.items()}
        return [listed[each] for each in sorted(listed, key=lambda each: (self._sign(len(listed[each])), each))]

    def _listed(self, numbers: list[int], careful: bool) -> list[int]:
        """Return the cpus, those least referred to first; one of each core only where that is cared about."""
        numbers = sorted(numbers, key=lambda number: (self._references([number]), number))
        if not careful:
            return numbers
        first: dict[int, int] = {}
        for number in numbers:
            first.setdefault(self.topology.cpus[number].core, number)
        return list(first.values())

    def _single_cpus(self, careful: bool) -> list[int]:
        cores: dict[int, list[int]] = {}
        sockets: dict[int, int] = {}
        nodes: dict[int, int] = {}
        for number, cpu in self._free_cpus(avoid_cores=careful, avoid_nodes=careful):
            cores.setdefault(cpu.core, []).append(number)
            sockets[cpu.socket] = sockets.get(cpu.socket, 0) + 1
            nodes[cpu.node] = nodes.get(cpu.node, 0) + 1
        together = _counts(self.topology.cpus[number].socket for number in cpu_numbers(self.result))

        def order(core: int) -> tuple[int, ...]:
            cpu = self.topology.cpus[cores[core][0]]
            return (
                -together.get(cpu.socket, 0), self._sign(sockets[cpu.socket]), self._sign(nodes[cpu.node]),
                len(cores[core]), cpu.socket, self._references(cores[core]), core,
            )

        return [
            number for core in sorted(cores, key=order)
            for number in sorted(cores[core], key=lambda number: (self._references([number]), number))
        ]

    def _round_robin(self, numbers: list[int]) -> list[int]:
        """Return the cpus one per core first, then a second one per core, and so on."""
        if len(numbers) <= self.topology.cpus_per_core:
            return numbers
        seen: dict[int, int] = {}
        rounds: list[tuple[int, int]] = []
        for number in numbers:
            core = self.topology.cpus[number].core
            rounds.append((seen.get(core, 0), number))
            seen[core] = seen.get(core, 0) + 1
        return [number for _, number in sorted(rounds, key=lambda each: each[0])]

    def _references(self, numbers: list[int]) -> int:
        if self.choice.max_references <= 1:
            return 0
        return sum(self.taken[number].count for number in numbers if number in self.taken)

    def _sign(self, count: int) -> int:
        return count if self.most else -count


def _counts(keys: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return counts


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_CPUS:
        raise ValueError(f"`{name}` must be a number from 0 to {_MOST_CPUS - 1}")
    return value


def _is_cpu(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < _MOST_CPUS
