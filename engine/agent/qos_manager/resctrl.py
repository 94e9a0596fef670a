"""Last-level cache and memory bandwidth of resctrl groups: masks, bandwidth values, schemata, tasks.

Pure functions; the formulas are Koordinator's (resctrl_reconcile.go). A group's `schemata` is written by lines
(`L3:0=ff;1=ff;`), and one line changes only what it names. `tasks` takes one task id per write and moves that task
out of its present group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Host, Readings
from koordpolicy.engine.kubernetes.vocabulary import BE, LS, LSE, LSR, RESCTRL_ANNOTATION

from .node_slo import node_name
from .suppression import Writes

GROUPS: Final = (LSR, LS, BE)
"""The groups, one per class of the QoS strategy."""
GROUP_OF_QOS: Final[Mapping[str, str]] = {LSE: LSR, LSR: LSR, LS: LS, BE: BE}
"""The group of a pod by its QoS class; pods of class SYSTEM are in none."""
CLASS_OF_GROUP: Final[Mapping[str, str]] = {LSR: "lsrClass", LS: "lsClass", BE: "beClass"}
"""The section of the NodeSLO's QoS strategy by group."""

INTEL: Final = "GenuineIntel"
AMD: Final = "AuthenticAMD"
_FLAGS: Final = frozenset(("cat_l3", "mba"))
_UNLIMITED_AMD: Final = 2048
_AMD_UNITS: Final = 160  # 25 GB/s of one die at 80 %, in the hardware's units of 1/8 GB/s
_ACTIVE: Final = ("Pending", "Running")
_TASK_FILES: Final = ("tasks", "cgroup.procs")


def unsupported(host: Host) -> str:
    """Return why the machine has no cache and bandwidth allocation; empty if it has."""
    if not host.flags >= _FLAGS:
        return f"the processor lacks {' and '.join(f'`{each}`' for each in sorted(_FLAGS - host.flags))}"
    return "" if host.cbm_mask else "resctrl is not mounted"


def l3_mask(full: int, start_percent: int, end_percent: int) -> int:
    """Return the mask of the cache ways from `start_percent` to `end_percent` of the full mask's.

    A range that is smaller than a way may come to 0, which no kernel accepts.

    Raises:
        ValueError: the full mask is not a row of ones, or the range is not within 0 to 100 percent.
    """
    if full <= 0 or full & (full + 1):
        raise ValueError(f"the full mask of the last-level cache must be a row of ones, not {full:x}")
    if not 0 <= start_percent < end_percent <= 100:
        raise ValueError(
            f"the range of the last-level cache must be within 0 to 100 percent and not empty, "
            f"not {start_percent} to {end_percent}",
        )
    ways = full.bit_length()
    first, end = (-(-ways * percent // 100) for percent in (start_percent, end_percent))
    return (1 << end) - (1 << first)


def mba_value(vendor: str, percent: int | None) -> int | None:
    """Return the memory bandwidth in the vendor's unit: percent in steps of 10 (Intel), 1/8 GB/s (AMD).

    None if the percentage is absent or not in 1 to 100, or the vendor is another one.
    """
    if percent is None or not 0 < percent <= 100:
        return None
    if vendor == INTEL:
        return -(-percent // 10) * 10
    if vendor == AMD:
        return _UNLIMITED_AMD if percent == 100 else _AMD_UNITS * percent // 100
    return None


def parse_schemata(text: str) -> dict[str, dict[int, int]]:
    """Return the values of a `schemata` file by kind (`L3`, `MB`) and cache; lines that are malformed are left out.

    Values of `MB` are decimal, all others are masks in hexadecimal.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        kind, _, rest = line.strip().partition(":")
        try:
            pairs = [pair.split("=") for pair in rest.split(";") if pair.strip()]
            found[kind] = {int(cache): int(value, 10 if kind == "MB" else 16) for cache, value in pairs}
        except ValueError:
            continue
    return found


def schemata_writes(group: str, kind: str, value: int, host: Host, files: Mapping[str, str]) -> Writes:
    """Return the write that gives a group `value` of every last-level cache; empty if it has it already."""
    if not host.l3_caches:
        return ()
    file = f"resctrl/{group}/schemata"
    desired = dict.fromkeys(host.l3_caches, value)
    if parse_schemata(files.get(file, "")).get(kind, {}).items() >= desired.items():
        return ()
    return ((file, format_line(kind, desired)),)


def format_line(kind: str, values: Mapping[int, int]) -> str:
    """Return a line of a `schemata` file: `L3:0=ff;1=ff;` and the line break."""
    return f"{kind}:{''.join(f'{cache}={value:{_format(kind)}};' for cache, value in values.items())}\n"


def _format(kind: str) -> str:
    return "d" if kind == "MB" else "x"


def cache_writes(
    group: str, start_percent: int, end_percent: int, host: Host, files: Mapping[str, str],
) -> Writes:
    """Return the write that gives a group a range of the last-level cache, in percent; empty if it has it already.

    Raises `EvaluationError` if the range is invalid or smaller than a cache way.
    """
    try:
        mask = l3_mask(int(host.cbm_mask, 16), start_percent, end_percent)
    except ValueError as error:
        raise EvaluationError(str(error)) from None
    if mask == 0:
        raise EvaluationError(
            f"{start_percent} to {end_percent} percent of the last-level cache are less than one of its ways",
        )
    return schemata_writes(group, "L3", mask, host, files)


def bandwidth_writes(group: str, percent: int, host: Host, files: Mapping[str, str]) -> Writes:
    """Return the write that gives a group a share of the memory bandwidth; empty if it has it already.

    Raises `EvaluationError` if the percentage is not in 1 to 100, or the vendor is unknown.
    """
    value = mba_value(host.vendor, percent)
    if value is None and 0 < percent <= 100:
        raise EvaluationError(f"memory bandwidth of processors by `{host.vendor}` cannot be allocated")
    if value is None:
        raise EvaluationError(f"the share of the memory bandwidth must be 1 to 100 percent, not {percent}")
    return schemata_writes(group, "MB", value, host, files)


def full_writes(group: str, host: Host, files: Mapping[str, str]) -> Writes:
    """Return the writes that give a group all of the cache and the bandwidth; empty if it does not exist."""
    if f"resctrl/{group}/schemata" not in files or unsupported(host):
        return ()
    found: list[tuple[str, str]] = []
    # A machine whose mask or vendor is unknown was never limited either.
    with contextlib.suppress(EvaluationError):
        found += cache_writes(group, 0, 100, host, files)
    with contextlib.suppress(EvaluationError):
        found += bandwidth_writes(group, 100, host, files)
    return tuple(found)


def restoring_writes(
    group: str, kinds: Iterable[str], originals: Mapping[str, str], host: Host, files: Mapping[str, str],
) -> Writes:
    """Return the writes that give a group back its lines of these kinds; without an original text, everything."""
    file = f"resctrl/{group}/schemata"
    if file not in originals:
        return full_writes(group, host, files)
    before, now = parse_schemata(originals[file]), parse_schemata(files.get(file, originals[file]))
    return tuple(
        (file, format_line(kind, before[kind])) for kind in kinds if kind in before and now.get(kind) != before[kind]
    )


def active_pods(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Return the pods whose tasks belong to the group of their class: neither ended nor in a group of their own."""
    return [
        pod for pod in pods
        if ((pod.object.get("status") or {}).get("phase") or "Pending") in _ACTIVE
        and RESCTRL_ANNOTATION not in ((pod.object.get("metadata") or {}).get("annotations") or {})
    ]


def task_directories(files: Iterable[str]) -> dict[str, set[str]]:
    """Return the directories below each pod's (`besteffort/podUID`), by that: its containers and its sandbox."""
    found: dict[str, set[str]] = {}
    for name in files:
        parts = name.split("/")
        if len(parts) == 4:
            found.setdefault(f"{parts[0]}/{parts[1]}", set()).add(f"{parts[0]}/{parts[1]}/{parts[2]}")
    return found


TASK_INTERVAL: Final = 10_000_000_000
"""The interval at which the tasks of a pod are looked at, in nanoseconds. The kernel puts new threads and children into
the group of their parent, so that only processes that enter a running container are found late."""


@dataclass(slots=True)
class TaskSchedule:
    """When the tasks of each pod were looked at, by node and pod: a pod with new containers is looked at at once."""

    _seen: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def due(self, readings: Readings, pods: Iterable[PodInfo]) -> list[PodInfo]:
        """Return the pods to look at in this round; pods that are not among `pods` are forgotten."""
        now, node, found = readings.now, node_name(readings), []
        seen: dict[tuple[str, str], tuple[int, str]] = {}
        for pod in pods:
            key = node, pod.key
            containers = _container_ids(pod)
            last, known = self._seen.get(key, (0, ""))
            if key not in self._seen or known != containers or not 0 <= now - last < TASK_INTERVAL:
                found.append(pod)
                seen[key] = now, containers
            else:
                seen[key] = last, known
        self._seen = {**{key: value for key, value in self._seen.items() if key[0] != node}, **seen}
        return found

    def again(self, readings: Readings, pod: PodInfo) -> None:
        """Look at a pod in the next round too: its tasks are being moved."""
        self._seen.pop((node_name(readings), pod.key), None)


def _container_ids(pod: PodInfo) -> str:
    statuses = (pod.object.get("status") or {}).get("containerStatuses") or ()
    return " ".join(str(each.get("containerID", "")) for each in statuses)


def task_writes(
    group: str, pod: PodInfo, readings: Readings, present: frozenset[int], listed: Mapping[str, set[str]],
) -> Writes:
    """Return the writes that move a pod's tasks into a group, one per task, without those that are `present`."""
    below = set(listed.get(readings.directory(pod), ()))
    containers = (pod.object.get("spec") or {}).get("containers") or ()
    below |= {readings.directory(pod, str(each.get("name", ""))) for each in containers}
    tasks: set[int] = set()
    for directory in below:
        text = next((text for file in _TASK_FILES if (text := readings.files.get(f"{directory}/{file}"))), "")
        tasks |= read_tasks(text)
    return tuple((f"resctrl/{group}/tasks", str(task)) for task in sorted(tasks - present))


def read_tasks(text: str) -> frozenset[int]:
    """Return the task ids of a `tasks` file; a line that is no id is left out."""
    return frozenset(int(line) for line in text.split() if line.isascii() and line.isdigit())
