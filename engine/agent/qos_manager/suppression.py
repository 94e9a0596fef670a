"""Suppression of best-effort pods: the CPUs that they may run on, or their CPU time.

Pure functions: control group files come in as texts by logical name (`besteffort/cpuset.cpus`) and go out as writes,
in the order in which they must be made. The formulas are Koordinator's (cpu_suppress.go); amounts are milli-cores.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Processor, Readings
from koordpolicy.engine.kubernetes.vocabulary import (
    CPU_MANAGER_POLICY_ANNOTATION,
    CPU_TOPOLOGY_ANNOTATION,
    NODE_RESERVATION_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM_QOS_RESOURCE_ANNOTATION,
    raw_qos_class,
)

from ..cpuset import format_cpuset, parse_cpuset

Writes: TypeAlias = tuple[tuple[str, str], ...]
"""Control group files to write, in order, each with its text."""

ROOT: Final = "besteffort"
QUOTA_FILE: Final = f"{ROOT}/cpu.cfs_quota_us"
CPUSET_FILE: Final = f"{ROOT}/cpuset.cpus"
UNLIMITED: Final = -1
PERIOD: Final = 100_000
"""The period of the CFS quota, in microseconds."""

_SMALLEST_CPUSET: Final = 2
_SMALLEST_QUOTA: Final = 2_000
_LARGEST_STEP: Final = 0.1  # of the node per round, upwards
DEAD_BAND_PERCENT: Final = 1
"""The dead band of the quota, of the node's CPU, as in koordlet."""


def choose_cpus(count: int, processors: Sequence[Processor]) -> list[int]:
    """Return `count` CPUs, scattered over NUMA nodes and stacked on hyper-threads, in the order they are picked.

    Empty if there are fewer processors: an incomplete choice would starve the tier.
    """
    if count <= 0 or len(processors) < count:
        return []
    groups: dict[int, list[Processor]] = {}
    for each in processors:
        groups.setdefault((each.numa_node + len(processors)) * (each.socket + 1), []).append(each)
    for group in groups.values():
        group.sort(key=lambda each: (each.core, each.cpu))
    buckets = sorted(groups.values(), key=lambda group: (-len(group), group[0].cpu))
    picked: list[int] = []
    used: set[int] = set()
    at, idle = 0, True  # the current bucket; whether nothing was picked from it so far
    while count - len(picked) > 1:
        pair = _free_pair(buckets[at], used)
        picked += pair
        used.update(pair)
        idle = idle and not pair
        at = (at + 1) % len(buckets)
        if at == 0:
            if idle:
                break
            idle = True
    while len(picked) < count:
        free = next((each.cpu for each in buckets[at] if each.cpu not in used), None)
        if free is not None:
            picked.append(free)
            used.add(free)
        at = (at + 1) % len(buckets)
    return picked


def _free_pair(bucket: Sequence[Processor], used: AbstractSet[int]) -> tuple[int, ...]:
    for one, two in itertools.pairwise(bucket):
        if one.cpu not in used and two.cpu not in used and one.core == two.core:
            return one.cpu, two.cpu
    return ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs of a node and their allocation.

    `owners` has the QoS class (the label's value) of the pod that a CPU is allocated to. `reserved` and
    `system_exclusive` are never for best-effort pods.
    """

    processors: tuple[Processor, ...]
    reserved: frozenset[int] = frozenset()
    system_exclusive: frozenset[int] = frozenset()
    owners: Mapping[int, str] | None = None
    kubelet_static: bool = False

    @property
    def _owned(self) -> Mapping[int, str]:
        return self.owners or {}

    def best_effort(self) -> frozenset[int]:
        """Return all CPUs that best-effort pods may use."""
        exclusive = {cpu for cpu, qos in self._owned.items() if qos == "LSE"}
        return frozenset(each.cpu for each in self.processors) - self.reserved - self.system_exclusive - exclusive


def owned_cpus(pod: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the CPUs that are allocated to a pod by its resource status, with its QoS class (the label's value)."""
    try:
        return dict.fromkeys(_annotated_cpus(pod, RESOURCE_STATUS_ANNOTATION, "cpuset"), raw_qos_class(pod))
    except EvaluationError:
        return {}  # as in koordlet, a pod whose status cannot be read has no CPUs of its own


def read_topology(
    resource_topology: Mapping[str, Any], owned: Iterable[Mapping[int, str]],
    processors: Sequence[Processor] | None = None,
) -> Topology:
    """Read the CPUs and their allocation from a NodeResourceTopology's annotations and the CPUs that pods own.

    Without `processors` they are those of the CPU topology annotation. Raises `EvaluationError` if an annotation of the
    NodeResourceTopology is malformed.
    """
    system = read_annotation(resource_topology, SYSTEM_QOS_RESOURCE_ANNOTATION)
    exclusive = frozenset[int]()
    if system.get("cpusetExclusive", True):
        exclusive = _annotated_cpus(resource_topology, SYSTEM_QOS_RESOURCE_ANNOTATION, "cpuset")
    owners: dict[int, str] = {}
    for each in owned:
        owners |= each
    return Topology(
        processors=read_processors(resource_topology) if processors is None else tuple(processors),
        reserved=_annotated_cpus(resource_topology, NODE_RESERVATION_ANNOTATION, "reservedCPUs"),
        system_exclusive=exclusive,
        owners=owners,
        kubelet_static=read_annotation(resource_topology, CPU_MANAGER_POLICY_ANNOTATION).get("policy") == "static",
    )


def _annotated_cpus(owner: Mapping[str, Any], annotation: str, field: str) -> frozenset[int]:
    try:
        return parse_cpuset(str(read_annotation(owner, annotation).get(field) or ""))
    except ValueError as error:
        raise EvaluationError(f"annotation `{annotation}`: `{field}`: {error}") from None


def read_processors(resource_topology: Mapping[str, Any]) -> tuple[Processor, ...]:
    """Return the processors in a NodeResourceTopology's CPU topology annotation; empty without one.

    Raises `EvaluationError` if it is malformed.
    """
    return _processors_of(_annotation(resource_topology, CPU_TOPOLOGY_ANNOTATION))


@functools.lru_cache(maxsize=64)
def _processors_of(text: str) -> tuple[Processor, ...]:
    """Return the processors in the text of an annotation: the same in every round, and on all nodes of a kind."""
    detail = _parsed(CPU_TOPOLOGY_ANNOTATION, text).get("detail") or ()
    try:
        rows = [[each[key] for key in ("id", "core", "socket", "node")] for each in detail]
        if all(type(number) is int and number >= 0 for row in rows for number in row):
            return tuple(Processor(*row) for row in rows)
    except (TypeError, KeyError):
        pass
    raise EvaluationError(
        f"annotation `{CPU_TOPOLOGY_ANNOTATION}`: `detail` is not a list of `id`, `core`, `socket` and `node`",
    )


def topology_of(readings: Readings, owned: Iterable[Mapping[int, str]] | None = None) -> Topology:
    """Return the CPUs of a node and their allocation. `owned` are the `owned_cpus` of its pods, if they are known.

    The processors are those of the CPU topology annotation, or without one, those of the machine. Raises
    `EvaluationError` if an annotation is malformed.
    """
    resource_topology = readings.object("NodeResourceTopology") or {}
    processors = read_processors(resource_topology) or readings.host.processors
    if owned is None:
        owned = (owned_cpus(pod.object) for pod in readings.pods)
    return read_topology(resource_topology, owned, processors)


def best_effort_cpus(files: Mapping[str, str]) -> frozenset[int]:
    """Return the present CPUs of the best-effort tier; raise `EvaluationError` if the file cannot be read."""
    try:
        return parse_cpuset(files.get(CPUSET_FILE, ""))
    except ValueError as error:
        raise EvaluationError(f"`{CPUSET_FILE}`: {error}") from None


def best_effort_quota(files: Mapping[str, str]) -> int:
    """Return the present quota of the best-effort tier; raise `EvaluationError` if the file cannot be read."""
    text = files.get(QUOTA_FILE, "").strip() or str(UNLIMITED)
    try:
        return int(text)
    except ValueError:
        raise EvaluationError(f"`{QUOTA_FILE}` is not a number: {text!r}") from None


def read_annotation(owner: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the JSON object in an annotation, empty without one; raise `EvaluationError` if it holds another value."""
    return _parsed(key, _annotation(owner, key))


def _annotation(owner: Mapping[str, Any], key: str) -> str:
    return ((owner.get("metadata") or {}).get("annotations") or {}).get(key) or ""


def _parsed(key: str, text: str) -> Mapping[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        raise EvaluationError(f"annotation `{key}` is not JSON: `{text}`") from None
    if not isinstance(value, dict):
        raise EvaluationError(f"annotation `{key}` is not an object: `{text}`")
    return value


def choose_best_effort_cpus(
    milli: int, current: AbstractSet[int], topology: Topology, *, dead_band_percent: int = 0,
) -> list[int]:
    """Return the CPUs for best-effort pods that together provide `milli`, in pick order.

    At least two CPUs; at most a tenth of the node more than the `current` ones. The current ones stay if they would
    provide an amount that differs from `milli` by at most the dead band, a share of the node. Empty means no change.
    """
    band = len(topology.processors) * 10 * dead_band_percent
    if band and len(current) >= _SMALLEST_CPUSET and current <= topology.best_effort():
        least = -math.inf if len(current) == _SMALLEST_CPUSET else (len(current) - 1) * 1000 - band
        if least < milli <= len(current) * 1000 + band:
            return sorted(current)
    excluded = topology.reserved | topology.system_exclusive
    owner = topology.owners or {}
    free = [each for each in topology.processors if each.cpu not in excluded]
    shared = [each for each in free if owner.get(each.cpu) == "LSR"]
    common = [each for each in free if owner.get(each.cpu) not in ("LSR", "LSE")]
    if not shared and not common:
        return []
    count = max(-(-milli // 1000), _SMALLEST_CPUSET)
    step = math.ceil(len(topology.processors) * _LARGEST_STEP)
    count = min(count, len(current) + step)
    of_shared = count * len(shared) // (len(shared) + len(common))
    return choose_cpus(of_shared, shared) + choose_cpus(count - of_shared, common)


def directories(files: Iterable[str], *, deepest: int = 2) -> list[str]:
    """Return the best-effort directories that have a CPU set, parents first; depth 0 is the tier's own."""
    found = [name.removesuffix("/cpuset.cpus") for name in files if name.endswith("/cpuset.cpus")]
    tier = [each for each in found if each == ROOT or each.startswith(f"{ROOT}/")]
    return sorted((each for each in tier if each.count("/") <= deepest), key=lambda each: (each.count("/"), each))


def set_cpus(cpus: Iterable[int], files: Mapping[str, str], topology: Topology) -> Writes:
    """Return the writes that confine all best-effort pods to `cpus`.

    A directory must never have a CPU that its parent lacks: first all directories get old and new CPUs from the top
    down, then the new ones from the bottom up. Under kubelet's `static` policy kubelet rewrites the directories of pods
    and of the tier, so these get all CPUs and only containers are confined.
    """
    chosen = frozenset(cpus)
    every = directories(files)
    new = format_cpuset(chosen)
    if topology.kubelet_static:
        containers = [(f"{each}/cpuset.cpus", new) for each in every if each.count("/") > 1]
        return (*recover_cpus(files, topology, deepest=1), *_changes(containers, files))
    both = format_cpuset(chosen | best_effort_cpus(files))
    writes = [(each, both) for each in every] + [(each, new) for each in reversed(every)]
    return _changes([(f"{directory}/cpuset.cpus", text) for directory, text in writes], files)


def recover_cpus(
    files: Mapping[str, str], topology: Topology, *, deepest: int = 2, except_for: AbstractSet[str] = frozenset(),
) -> Writes:
    """Return the writes that give best-effort pods all CPUs that they may use, down to a depth.

    No directory loses a CPU before those below it. No write if there are no such CPUs: the kernel refuses an empty set
    where pods run.
    """
    wide = topology.best_effort()
    if not wide:
        return ()
    names = [f"{each}/cpuset.cpus" for each in directories(files, deepest=deepest) if each not in except_for]
    both = [(name, format_cpuset(wide | _present_cpus(files, name))) for name in names]
    return _changes([*both, *((name, format_cpuset(wide)) for name in reversed(names))], files)


def _present_cpus(files: Mapping[str, str], name: str) -> frozenset[int]:
    try:
        return parse_cpuset(files.get(name, ""))
    except ValueError:
        return frozenset()


def _changes(writes: Iterable[tuple[str, str]], files: Mapping[str, str]) -> Writes:
    now: dict[str, str | None] = {}
    changes = []
    for name, text in writes:
        present = now[name] if name in now else files.get(name)
        if present is None or present.strip() != text:
            changes.append((name, text))
            now[name] = text
    return tuple(changes)


def set_quota(
    milli: int, files: Mapping[str, str], capacity_milli: int, *, dead_band_percent: int = DEAD_BAND_PERCENT,
) -> Writes:
    """Return the write that gives best-effort pods `milli` of CPU time per period; empty if it hardly differs.

    A rise is at most a tenth of the node per call; a fall and the first setting are immediate. Unlike in koordlet, a
    small quota is not taken for hardly different from none.
    """
    quota = max(milli * PERIOD // 1000, _SMALLEST_QUOTA)
    current = best_effort_quota(files)
    cores = -(-capacity_milli // 1000)
    if current >= 0:
        if abs(quota - current) < cores * PERIOD * dead_band_percent / 100 and quota != _SMALLEST_QUOTA:
            return ()
        quota = min(quota, current + int(cores * PERIOD * _LARGEST_STEP))
    return _changes([(QUOTA_FILE, str(quota))], files)


def recover_quota(files: Mapping[str, str]) -> Writes:
    """Return the write that removes the quota; empty if there is none."""
    return _changes([(QUOTA_FILE, str(UNLIMITED))], files) if QUOTA_FILE in files else ()
